//! Connections for watches. A client may read its watch slowly or not at all, and unread events fill the window of the connection.
//! Therefore each stream has a small window, and the number of streams per connection is limited to what fits into the connection's
//! window: a slow watch never delays another one. Other calls use a separate connection. Some versions of etcd accept at most 250
//! streams per connection.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::transport::{Channel, Endpoint};

use crate::connect::{Sockets, lazily};

/// How much etcd sends ahead of the reader of a watch.
const WINDOW: u32 = 32 << 10;
const ON_ONE: usize = 64;

pub(crate) struct Streams {
    endpoint: Endpoint,
    connections: Mutex<Vec<(Channel, Arc<Semaphore>)>>,
}

impl Streams {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        let whole = WINDOW * ON_ONE as u32;
        let endpoint = endpoint.initial_stream_window_size(WINDOW).initial_connection_window_size(whole);
        Streams { endpoint, connections: Mutex::default() }
    }

    /// A place on a connection that has one, or on another one. Others that nobody uses are closed.
    pub(crate) fn place(&self, sockets: Option<&Sockets>) -> (Channel, OwnedSemaphorePermit) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut free = connections.iter();
            let found =
                free.find_map(|(channel, places)| Some((channel.clone(), places.clone().try_acquire_owned().ok()?)));
            if let Some(found) = found {
                connections.retain(|(_, places)| places.available_permits() < ON_ONE);
                return found;
            }
            connections.push((lazily(&self.endpoint, sockets), Arc::new(Semaphore::new(ON_ONE))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_has_as_many_streams_as_its_window_holds() {
        let streams = Streams::new(Endpoint::from_static("https://127.0.0.1:2379"));
        let open = || streams.connections.lock().expect("a list").len();
        let mut places: Vec<_> = (0..ON_ONE).map(|_| streams.place(None)).collect();
        assert_eq!(open(), 1);
        places.extend((0..=ON_ONE).map(|_| streams.place(None)));
        assert_eq!(open(), 3);
        places.clear();
        let _one = streams.place(None);
        assert_eq!(open(), 1, "those that nobody uses are closed");
    }
}
