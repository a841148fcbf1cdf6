//! Limits the number of connections, in total and per client. An accepted connection stays: a flood of new ones closes none of them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use quorate_agent::unauthenticated::network;

#[derive(Debug)]
pub struct Places {
    most: usize,
    most_of_one: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    count: usize,
    of: HashMap<IpAddr, usize>,
}

/// One place, free again when dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    client: IpAddr,
}

impl Places {
    pub fn new(most: usize, most_of_one: usize) -> Arc<Self> {
        Arc::new(Places { most, most_of_one, taken: Mutex::default() })
    }

    pub fn take(self: &Arc<Self>, from: IpAddr) -> Result<Place, String> {
        let client = network(from);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.count >= self.most {
            return Err(format!("{} connections are open, which is the limit", self.most));
        }
        let of = taken.of.entry(client).or_default();
        if *of >= self.most_of_one {
            return Err(format!("this address has {} connections open, which is the limit for one", self.most_of_one));
        }
        *of += 1;
        taken.count += 1;
        Ok(Place { places: self.clone(), client })
    }

    pub fn count(&self) -> usize {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).count
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.count -= 1;
        if let Some(of) = taken.of.get_mut(&self.client) {
            *of -= 1;
            if *of == 0 {
                taken.of.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_cannot_take_all_places_and_frees_those_it_leaves() {
        let places = Places::new(3, 2);
        let [one, other] = [IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2])];
        let held = [places.take(one).unwrap(), places.take(one).unwrap()];
        assert!(places.take(one).unwrap_err().contains("this address"));
        let third = places.take(other).unwrap();
        assert!(places.take(other).unwrap_err().contains("3 connections"));
        drop(held);
        assert!(places.take(one).is_ok());
        drop(third);
        assert_eq!((places.count(), places.taken.lock().unwrap().of.len()), (0, 0));
    }
}
