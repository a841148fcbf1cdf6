//! The ledger next to a backup, for the recipients alone.

use bytes::Bytes;
use quorate_core::model::Ledger;
use quorate_core::text::with_causes;

use super::{Teller, Vault, note};
use crate::home::Home;
use crate::ledger::{SealFor, export};
use crate::run::history::History;

/// How much of the newest history is stored next to a backup: some thousand steps.
const HISTORY: u64 = 1 << 20;

/// The ledger with its keys is part of what must survive; without recipients it would lie open.
pub(crate) fn sealed_ledger(home: &Home, known: &Ledger, vault: &Vault, teller: &dyn Teller) -> Option<Bytes> {
    let recipients = &vault.settings.recipients;
    if recipients.is_empty() {
        return None;
    }
    let history = History::new(home.history(&vault.cluster)).newest(HISTORY).unwrap_or_default();
    // A long-running controller knows an older one.
    let ledger = note::ledger_of_now(home, known);
    match export(&ledger, &history, &SealFor::Recipients(recipients.clone())) {
        Ok(sealed) => Some(sealed.into()),
        Err(error) => {
            teller.say(&format!("warning: the ledger was not stored with this backup: {}", with_causes(&error)));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use age::secrecy::ExposeSecret;
    use quorate_core::Secret;
    use quorate_core::kinds::etcd::Record;
    use quorate_core::kinds::etcd::versions::DEFAULT;
    use quorate_core::spec::{Document, HostFacts, generated};

    use super::*;
    use crate::backup::Doing;
    use crate::ledger::{OpenWith, import};

    struct Silent;

    impl Teller for Silent {
        fn say(&self, text: &str) {
            panic!("{text}");
        }
        fn doing(&self, _: Doing<'_>) {}
    }

    #[test]
    fn the_ledger_beside_a_backup_is_that_of_the_moment() {
        let directory = tempfile::tempdir().unwrap();
        let key = age::x25519::Identity::generate();
        let yaml =
            generated("demo", 1, DEFAULT, quorate_core::kinds::etcd::spec::ClientAuth::Certificate).unwrap().to_yaml();
        let store = directory.path().join("store").display().to_string();
        let backup =
            format!("    backup:\n      to: {{directory: {store}}}\n      recipients: [{}]\n", key.to_public());
        let checked = Document::parse("test", &format!("{yaml}{backup}")).unwrap().spec(&HostFacts::default());
        let spec = checked.spec.unwrap_or_else(|| panic!("{:?}", checked.problems)).clusters.remove(0);
        let home = Home::new(directory.path());
        let known = Ledger::new(String::from("c"), spec);
        let vault = Vault::open(&known.spec).unwrap();
        // A controller has written since the recorder began.
        let mut now = Ledger { etcd: Record { highest_revision: 4711, ..known.etcd.clone() }, ..known.clone() };
        home.store("demo").write(&mut now).unwrap();
        let sealed = sealed_ledger(&home, &known, &vault, &Silent).unwrap();
        let identity = OpenWith::Identities(Secret::new(key.to_string().expose_secret()));
        assert_eq!(import(&sealed, &identity).unwrap().ledger.etcd.highest_revision, 4711);
    }
}
