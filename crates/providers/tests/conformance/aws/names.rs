//! What Route53 refuses and moto does not: it carries out all changes of a request or none. A created record must not exist, and a deleted
//! one must match exactly.

use hyper::body::Bytes;
use hyper::http::request::Parts;
use roxmltree::{Document, Node};

use super::cloud::{Api, Fields, items, one, texts};
use super::strict::Answer;

/// Where its paths begin.
pub const BELOW: &str = "/2013-04-01/";

/// A request as the tests know calls.
pub fn fields(parts: &Parts) -> Fields {
    let is_read = parts.method == hyper::Method::GET;
    let path = parts.uri.path().trim_end_matches('/');
    let action = match (path.ends_with("/rrset"), is_read, path.ends_with("byname")) {
        (true, true, _) => "ListResourceRecordSets",
        (true, false, _) => "ChangeResourceRecordSets",
        (false, _, true) => "ListHostedZonesByName",
        (false, ..) => "GetHostedZone",
    };
    vec![(String::from("Action"), action.to_owned())]
}

/// Name, type and all that it leads to.
type Shown = (String, String, Vec<String>);

fn shown(record: &str) -> Shown {
    let mut leads: Vec<String> = ["TTL", "Value", "DNSName"]
        .into_iter()
        .flat_map(|field| texts(record, field))
        .map(|text| text.to_lowercase())
        .collect();
    leads.sort();
    (one(record, "Name").to_lowercase(), one(record, "Type"), leads)
}

pub async fn refusal(path: &str, body: &Bytes) -> Option<Answer> {
    if body.is_empty() {
        return None;
    }
    let zone = path.strip_prefix(BELOW)?.split('/').nth(1)?;
    let listed = Api::new().route53(&format!("hostedzone/{zone}/rrset"), String::new()).await;
    let mut there: Vec<Shown> = items(&listed, "ResourceRecordSets").iter().map(|record| shown(record)).collect();
    let text = String::from_utf8(body.to_vec()).expect("text");
    let document = Document::parse(&text).expect("XML");
    let mut said = Vec::new();
    for change in document.descendants().filter(|node| node.tag_name().name() == "Change") {
        let part = |name: &'static str| {
            change
                .children()
                .find(move |node: &Node<'_, '_>| node.tag_name().name() == name)
                .expect("a part of a change")
        };
        let wanted = shown(&text[part("ResourceRecordSet").range()]);
        let is_same = |(name, kind, _): &Shown| *name == wanted.0 && *kind == wanted.1;
        let is_there = there.iter().any(is_same);
        match part("Action").text().unwrap_or_default() {
            "CREATE" if is_there => {
                said.push(format!("Tried to create {} {} but it already exists", wanted.0, wanted.1))
            }
            "DELETE" if !there.contains(&wanted) => {
                said.push(format!("Tried to delete {} {} but the values provided do not match", wanted.0, wanted.1));
            }
            "DELETE" => there.retain(|known| !is_same(known)),
            _ => there.push(wanted),
        }
    }
    let messages: String = said.iter().map(|said| format!("<Message>{said}</Message>")).collect();
    (!said.is_empty()).then(|| {
        let space = "xmlns=\"https://route53.amazonaws.com/doc/2013-04-01/\"";
        (400, format!("<InvalidChangeBatch {space}><Messages>{messages}</Messages></InvalidChangeBatch>"))
    })
}
