//! Answers of AWS: XML without attributes, in which lists are elements with items.

use std::collections::BTreeMap;

use roxmltree::{Document, Node, ParsingOptions};

/// What Route53 answers to changes of which it carried out none.
pub(super) const REFUSED_CHANGE: &str = "InvalidChangeBatch";

/// AWS nests its lists less than half as deep.
const DEEPEST: usize = 64;
/// Elements and texts: some thousands of the largest items that a page can have.
const MOST_NODES: u32 = 4_000_000;

/// An element.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Xml {
    name: String,
    text: String,
    children: Vec<Xml>,
}

impl Xml {
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let options = ParsingOptions { nodes_limit: MOST_NODES, ..ParsingOptions::default() };
        let document = Document::parse_with_options(text, options).map_err(|error| error.to_string())?;
        Self::of(document.root_element(), 1)
    }

    fn of(node: Node<'_, '_>, depth: usize) -> Result<Self, String> {
        if depth > DEEPEST {
            return Err(format!("its elements are nested more than {DEEPEST} deep"));
        }
        let children = node.children().filter(Node::is_element).map(|child| Self::of(child, depth + 1));
        Ok(Xml {
            name: node.tag_name().name().to_owned(),
            text: node.text().unwrap_or_default().trim().to_owned(),
            children: children.collect::<Result<_, _>>()?,
        })
    }

    /// The element at a path such as `a/b`.
    pub(super) fn get(&self, path: &str) -> Option<&Xml> {
        path.split('/').try_fold(self, |at, name| at.children.iter().find(|child| child.name == name))
    }

    /// The result of a call, where an answer wraps it.
    pub(super) fn result(&self) -> Option<&Xml> {
        self.children.iter().find(|child| child.name.ends_with("Result"))
    }

    /// What it contains itself.
    pub(super) fn own_text(&self) -> Option<String> {
        Some(self.text.clone()).filter(|text| !text.is_empty())
    }

    /// Its text; one without any is absent.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        self.get(path).map(|found| found.text.clone()).filter(|text| !text.is_empty())
    }

    /// What is in the list at this path.
    pub(super) fn items(&self, path: &str) -> impl Iterator<Item = &Xml> {
        self.get(path).into_iter().flat_map(|list| &list.children)
    }

    /// Tags, wherever EC2 lists them.
    pub(super) fn tags(&self) -> BTreeMap<String, String> {
        let pair = |item: &Xml| Some((item.text("key")?, item.text("value").unwrap_or_default()));
        self.items("tagSet").filter_map(pair).collect()
    }

    /// The code and the message of an error.
    pub(super) fn error(&self) -> Option<(String, String)> {
        if self.name == REFUSED_CHANGE {
            let messages = self.items("Messages").map(|message| message.text.as_str()).collect::<Vec<_>>();
            return Some((self.name.clone(), messages.join("; ")));
        }
        let error = self.get("Errors/Error").or_else(|| self.get("Error"))?;
        Some((error.text("Code")?, error.text("Message").unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_tags_and_texts_are_found() {
        let text = r#"<?xml version="1.0" encoding="UTF-8"?>
            <DescribeThingsResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">
              <requestId>r</requestId>
              <thingSet><item><id>a</id><none/><tagSet><item><key>k &amp; l</key><value/></item></tagSet></item>
                <item><id>b</id><state><name>on</name></state></item></thingSet>
            </DescribeThingsResponse>"#;
        let found = Xml::read(text).unwrap();
        let ids: Vec<String> = found.items("thingSet").filter_map(|item| item.text("id")).collect();
        assert_eq!(ids, ["a", "b"]);
        let things: Vec<&Xml> = found.items("thingSet").collect();
        assert_eq!(things[0].tags(), BTreeMap::from([(String::from("k & l"), String::new())]));
        assert_eq!((things[0].text("none"), things[1].text("state/name").as_deref()), (None, Some("on")));
        assert_eq!((found.error(), found.items("nothing").count()), (None, 0));
        assert!(Xml::read("<a><b></a>").is_err());
    }

    #[test]
    fn errors_have_three_shapes() {
        let error = |text: &str| Xml::read(text).unwrap().error();
        let expected = Some((String::from("C"), String::from("m")));
        assert_eq!(
            error("<Response><Errors><Error><Code>C</Code><Message>m</Message></Error></Errors></Response>"),
            expected
        );
        let refused = "<InvalidChangeBatch xmlns='x'><Messages><Message>a</Message><Message>b</Message></Messages></InvalidChangeBatch>";
        assert_eq!(error(refused), Some((REFUSED_CHANGE.to_owned(), String::from("a; b"))));
        assert_eq!(error("<ErrorResponse><Error><Code>C</Code><Message>m</Message></Error></ErrorResponse>"), expected);
    }

    /// However deep, it costs no more of the stack.
    #[test]
    fn too_deeply_nested_xml_is_refused() {
        let nested = |depth: usize| format!("{}x{}", "<a>".repeat(depth), "</a>".repeat(depth));
        assert!(Xml::read(&nested(DEEPEST)).is_ok());
        assert_eq!(Xml::read(&nested(DEEPEST + 1)).unwrap_err(), "its elements are nested more than 64 deep");
        assert!(Xml::read(&nested(200_000)).is_err());
    }

    /// Whatever a server answers, reading it ends.
    #[test]
    fn fuzz_answers() {
        let seed = b"<a xmlns='x'><tagSet><item><key>k</key><value>v</value></item></tagSet></a>".to_vec();
        quorate_fuzz::campaign(&[seed], |input| {
            if let Ok(found) = Xml::read(&String::from_utf8_lossy(input)) {
                drop((found.tags(), found.error()));
            }
        });
    }
}
