//! Small objects in a store. Anyone who can write to a store can make an object of any size: one that is too large to be quorate's affects
//! only the backup that it belongs to.

use crate::Error;
use crate::damage::Damage;
use crate::names::BackupId;
use crate::store::{Object, SMALL, Store, StoreError, Trouble};

/// A manifest; `None` where there is none.
pub(crate) async fn manifest(store: &Store, id: &BackupId, path: &str) -> Result<Option<Object>, Error> {
    let forged = |found| {
        let why = format!("it has {found} bytes, and no manifest has more than {SMALL}");
        Damage::Forged { id: id.clone(), path: path.to_owned(), why }
    };
    get(store, path, SMALL, forged).await
}

/// A small object next to a snapshot; `None` if it is missing.
pub(crate) async fn beside(store: &Store, id: &BackupId, path: &str, limit: u64) -> Result<Option<Object>, Error> {
    let unreadable = |found| {
        let why = format!("it has {found} bytes, and at most {limit} are read");
        Damage::Unreadable { id: id.clone(), path: path.to_owned(), why }
    };
    get(store, path, limit, unreadable).await
}

async fn get(
    store: &Store,
    path: &str,
    limit: u64,
    too_large: impl FnOnce(u64) -> Damage,
) -> Result<Option<Object>, Error> {
    match store.get_up_to(path, limit).await {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(StoreError { trouble: Trouble::TooLarge { found, .. }, .. }) => Err(too_large(found).into()),
        Err(error) => Err(error.into()),
    }
}
