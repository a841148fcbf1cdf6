//! A slow line between two links, for kernels that cannot delay packets themselves: frames are read from each side, held
//! back, and written to the other in order. It ends when the namespace of either end loses its name, or when this process
//! ends.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketType, eth, recvfrom, sendto, socket};

use super::netns::is_namespace;
use quorate_agent::dial::within;

/// How often a quiet end looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(50);
const LARGEST_FRAME: usize = 1 << 16;

/// One end: the only link of its namespace.
struct End {
    namespace: String,
    socket: OwnedFd,
    /// How the kernel calls the link. It is told with the first frame that passes.
    link: OnceLock<SocketAddrAny>,
}

struct Held {
    until: Instant,
    frame: Vec<u8>,
}

/// Begins to carry frames between the links of two namespaces, each of which has only one.
pub(super) fn lay(namespaces: [&str; 2], time: Duration) -> io::Result<()> {
    let [a, b] = namespaces.map(End::open);
    let (a, b) = (Arc::new(a?), Arc::new(b?));
    for (from, to) in [(a.clone(), b.clone()), (b, a)] {
        let (queue, held) = channel();
        thread::spawn(move || from.read(time, &queue));
        thread::spawn(move || to.write(&held));
    }
    Ok(())
}

impl End {
    fn open(namespace: &str) -> io::Result<Self> {
        let socket = within(namespace, || Ok(socket(AddressFamily::PACKET, SocketType::RAW, Some(eth::ALL))?))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(LOOK))?;
        Ok(End { namespace: namespace.to_owned(), socket, link: OnceLock::new() })
    }

    fn read(&self, time: Duration, queue: &Sender<Held>) {
        let mut buffer = vec![0; LARGEST_FRAME];
        while is_namespace(&self.namespace) {
            let length = match recvfrom(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((length, _, link)) => {
                    if let Some(link) = link {
                        self.link.get_or_init(|| link);
                    }
                    length
                }
                Err(Errno::AGAIN | Errno::INTR) => continue,
                Err(_) => return,
            };
            let held = Held { until: Instant::now() + time, frame: buffer[..length].to_vec() };
            if queue.send(held).is_err() {
                return;
            }
        }
    }

    fn write(&self, held: &Receiver<Held>) {
        for Held { until, mut frame } in held {
            thread::sleep(until.saturating_duration_since(Instant::now()));
            finish_checksum(&mut frame);
            if let Some(link) = self.link.get() {
                // A frame that cannot be sent is lost, as on any network.
                let _ = sendto(&self.socket, &frame, SendFlags::empty(), link);
            }
        }
    }
}

/// Between namespaces the kernel leaves the checksum of TCP to a card that does not exist.
fn finish_checksum(frame: &mut [u8]) {
    const ETHERNET: usize = 14;
    const TCP: u8 = 6;
    let Some((header, packet)) = frame.split_at_mut_checked(ETHERNET) else { return };
    if header[12..] != [0x08, 0x00] || packet.len() < 20 || packet[9] != TCP {
        return;
    }
    let begin = usize::from(packet[0] & 0x0f) * 4;
    let end = usize::from(u16::from_be_bytes([packet[2], packet[3]])).min(packet.len());
    if begin + 20 > end {
        return;
    }
    packet[begin + 16..begin + 18].fill(0);
    let addresses = words(&packet[12..20]);
    let length = u32::try_from(end - begin).unwrap_or_default();
    let mut sum = addresses + u32::from(TCP) + length + words(&packet[begin..end]);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let checksum = !u16::try_from(sum).unwrap_or_default();
    packet[begin + 16..begin + 18].copy_from_slice(&checksum.to_be_bytes());
}

/// The sum of the 16-bit words; an odd end counts as if a zero followed.
fn words(bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
    bytes.chunks(2).map(word).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_that_was_left_open_is_finished() {
        // A SYN from 10.0.0.1:1234 to 10.0.0.2:2379, whose checksum was worked out manually.
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00]);
        frame.extend([0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x04, 0xd2, 0x09, 0x4b, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0xab, 0xcd, 0, 0]);
        finish_checksum(&mut frame);
        assert_eq!(frame[14 + 20 + 16..14 + 20 + 18], [0x8d, 0xc2]);
        let (ip, tcp) = frame[14..].split_at(20);
        let mut sum = words(&ip[12..20]) + 6 + 20 + words(tcp);
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        assert_eq!(sum, 0xffff, "as the receiver checks");
    }

    #[test]
    fn frames_that_are_not_tcp_or_too_short_are_left_alone() {
        for frame in [vec![], vec![1; 13], vec![8; 40], [vec![0; 12], vec![0x08, 0x00], vec![0x4f; 20]].concat()] {
            let mut carried = frame.clone();
            finish_checksum(&mut carried);
            assert_eq!(carried, frame);
        }
    }
}
