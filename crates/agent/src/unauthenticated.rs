//! Connections that are not authenticated yet, limited in number. Anyone can open them, so when there are too many, one
//! must be closed. That must not always be the controller's: the source with the most connections loses one of them, chosen
//! at random. A flood from one address displaces itself. A flood from the controller's own address displaces the controller
//! no more often than other connections, and its next attempt has the same chance as the first.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::refused::Refused;

/// The next connection. It ends when its other end has acknowledged nothing for this long.
pub async fn accept(listener: &TcpListener, refused: &Refused, vanished: Duration) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let _ = stream.set_nodelay(true);
                let _ = set_tcp_user_timeout(&stream, vanished.as_millis() as u32);
                return (stream, from);
            }
            Err(error) => {
                // Out of file descriptors, or a peer gone already: both pass.
                refused.say(&"nobody", &format!("a connection could not be accepted: {error}"));
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// The source of a connection, for fairness. None: over a line without addresses.
type Source = Option<IpAddr>;

pub struct Unauthenticated {
    limit: usize,
    slots: Arc<Mutex<Slots>>,
}

#[derive(Default)]
struct Slots {
    of: BTreeMap<Source, Vec<Slot>>,
    count: usize,
    next: u64,
    /// Randomly keyed, so no client can predict which connection is closed next.
    random: RandomState,
}

struct Slot {
    number: u64,
    /// Set right after the slot was taken.
    task: Option<AbortHandle>,
}

impl Unauthenticated {
    pub fn new(limit: usize) -> Self {
        Unauthenticated { limit, slots: Arc::default() }
    }

    /// Runs `work` in a separate slot; it may be aborted when others need the slot.
    pub fn admit(&mut self, from: Option<IpAddr>, work: impl Future<Output = ()> + Send + 'static) {
        let source = from.map(network);
        let number = {
            let mut slots = self.slots.lock().expect("no holder panics");
            if slots.count >= self.limit {
                slots.drop_one();
            }
            slots.take(source)
        };
        let leaving = Leaving { slots: self.slots.clone(), source, number };
        let task = tokio::spawn(async move {
            let _leaving = leaving;
            work.await;
        });
        let mut slots = self.slots.lock().expect("no holder panics");
        if let Some(slot) = slots.find(source, number) {
            slot.task = Some(task.abort_handle());
        }
    }
}

/// What counts as one client: a customer usually has a whole /64 of IPv6 addresses.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

impl Slots {
    fn take(&mut self, source: Source) -> u64 {
        let number = self.next;
        self.next += 1;
        self.count += 1;
        self.of.entry(source).or_default().push(Slot { number, task: None });
        number
    }

    fn find(&mut self, source: Source, number: u64) -> Option<&mut Slot> {
        self.of.get_mut(&source)?.iter_mut().find(|slot| slot.number == number)
    }

    fn leave(&mut self, source: Source, number: u64) {
        let Some(slots) = self.of.get_mut(&source) else { return };
        if let Some(at) = slots.iter().position(|slot| slot.number == number) {
            slots.swap_remove(at);
            self.count -= 1;
        }
        if slots.is_empty() {
            self.of.remove(&source);
        }
    }

    fn drop_one(&mut self) {
        let most = self.of.values().map(Vec::len).max().unwrap_or_default();
        let largest: Vec<Source> = self.of.iter().filter(|(_, p)| p.len() == most).map(|(source, _)| *source).collect();
        if largest.is_empty() {
            return;
        }
        let source = largest[self.below(largest.len())];
        let at = self.below(most);
        let Some(slot) = self.of.get_mut(&source).map(|slots| slots.swap_remove(at)) else { return };
        self.count -= 1;
        slot.task.inspect(AbortHandle::abort);
    }

    fn below(&mut self, bound: usize) -> usize {
        self.next += 1;
        (self.random.hash_one(self.next) % bound as u64) as usize
    }
}

/// Frees the slot when its work has ended, in whatever way.
struct Leaving {
    slots: Arc<Mutex<Slots>>,
    source: Source,
    number: u64,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.slots.lock().expect("no holder panics").leave(self.source, self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const FLOOD: [u8; 4] = [192, 0, 2, 66];

    /// Whether it was dropped.
    fn stay(waiting: &mut Unauthenticated, from: Option<IpAddr>) -> Arc<AtomicBool> {
        struct Gone(Arc<AtomicBool>);
        impl Drop for Gone {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let gone = Arc::new(AtomicBool::new(false));
        let guard = Gone(gone.clone());
        waiting.admit(from, async move {
            let _guard = guard;
            pending().await
        });
        gone
    }

    async fn settle() {
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_flood_from_elsewhere_displaces_itself_alone() {
        let mut waiting = Unauthenticated::new(64);
        let controller = stay(&mut waiting, Some(IpAddr::from([192, 0, 2, 1])));
        let first = stay(&mut waiting, Some(IpAddr::from(FLOOD)));
        for _ in 0..2000 {
            stay(&mut waiting, Some(IpAddr::from(FLOOD)));
        }
        settle().await;
        assert!(!controller.load(Ordering::Relaxed), "the controller was displaced by a stranger's flood");
        assert!(first.load(Ordering::Relaxed), "nobody was displaced");
        assert_eq!(waiting.slots.lock().unwrap().count, 64);
    }

    #[tokio::test]
    async fn in_a_flood_from_one_address_early_connections_are_not_closed_first() {
        let from = Some(IpAddr::from(FLOOD));
        let mut stayed = 0;
        for _ in 0..200 {
            let mut waiting = Unauthenticated::new(64);
            let first = stay(&mut waiting, from);
            for _ in 0..127 {
                stay(&mut waiting, from);
            }
            settle().await;
            stayed += usize::from(!first.load(Ordering::Relaxed));
        }
        // One in e stays: 73 of 200. Outside of these bounds is less likely than one in ten million.
        assert!((30..=120).contains(&stayed), "{stayed} of 200");
    }

    #[tokio::test]
    async fn an_ipv6_network_counts_as_one_source() {
        let mut waiting = Unauthenticated::new(64);
        let controller = stay(&mut waiting, Some("2001:db8:0:1::1".parse().unwrap()));
        for host in 1..2000_u128 {
            stay(&mut waiting, Some(IpAddr::V6(Ipv6Addr::from_bits((0x2001_0db8_0000_0002_u128 << 64) + host))));
        }
        settle().await;
        assert!(!controller.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn a_finished_connection_frees_its_place() {
        let mut waiting = Unauthenticated::new(2);
        let waits = stay(&mut waiting, None);
        for _ in 0..100 {
            waiting.admit(None, async {});
            settle().await;
        }
        assert!(!waits.load(Ordering::Relaxed));
        assert_eq!(waiting.slots.lock().unwrap().count, 1);
    }
}
