//! Data of an etcd with v2, moved into the store.

use bytes::Bytes;
use quorate_keys::ImportError;

use crate::http::ask;
use crate::stage::{Ours, Theirs, run};

async fn listing(theirs: &Theirs, path: &str) -> Bytes {
    let path = format!("/v2/keys{path}?recursive=true&quorum=true");
    Bytes::from(ask(theirs.at, "GET", &path, "").await.body)
}

#[test]
fn data_of_an_etcd_with_v2_is_imported_once_and_nothing_is_overwritten() {
    run(async {
        let (theirs, ours) = (Theirs::start("3.4.23").await, Ours::start().await);
        for number in 0..120 {
            ask(theirs.at, "PUT", &format!("/v2/keys/many/{}/{number}", number % 7), &format!("value=v{number}")).await;
        }
        for path in ["/empty?dir=true", "/t?value=x&ttl=1000", "/%C3%A4?value=%3C", "/_h/x?value=hidden"] {
            assert_eq!(ask(theirs.at, "PUT", &format!("/v2/keys{path}"), "").await.status, 201);
        }
        let documents = [listing(&theirs, "/").await, listing(&theirs, "/_h").await];
        let imported = ours.keys.import(&documents, &ours.client).await.expect("an import");
        assert_eq!((imported.written, imported.skipped, imported.replaced), (120 + 8 + 3 + 2, 0, 0));
        let again = ours.keys.import(&documents, &ours.client).await.expect("an import");
        assert_eq!((again.written, again.skipped), (0, imported.written));

        for path in ["/many/3/3", "/%C3%A4", "/_h/x", "/empty"] {
            let path = format!("/v2/keys{path}");
            let (theirs, ours) =
                (ask(theirs.at, "GET", &path, "").await.json(), ask(ours.at, "GET", &path, "").await.json());
            assert_eq!(
                (&theirs["node"]["value"], &theirs["node"]["dir"]),
                (&ours["node"]["value"], &ours["node"]["dir"])
            );
        }
        let ttl = ask(ours.at, "GET", "/v2/keys/t", "").await.json()["node"]["ttl"].as_u64().expect("a TTL");
        assert!((900..=1000).contains(&ttl), "{ttl}");

        ask(ours.at, "PUT", "/v2/keys/many/3/3?value=other", "").await;
        ask(ours.at, "DELETE", "/v2/keys/t", "").await;
        let refused = ours.keys.import(&documents, &ours.client).await.expect_err("a refusal");
        assert!(matches!(&refused, ImportError::Exists { count: 1, names } if names == "/many/3/3"), "{refused}");
        assert_eq!(ask(ours.at, "GET", "/v2/keys/t", "").await.status, 404, "nothing was written");
    });
}
