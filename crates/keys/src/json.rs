//! JSON with exactly the bytes of Go's encoder: fields in the order they are added, and Go's escapes. Pure.

#[derive(Default)]
pub struct Json {
    text: String,
    /// Whether something precedes on this level.
    follows: bool,
}

impl Json {
    fn value(&mut self) {
        if std::mem::replace(&mut self.follows, true) {
            self.text.push(',');
        }
    }

    fn nested(&mut self, open: char, close: char, fill: impl FnOnce(&mut Self)) {
        self.value();
        self.text.push(open);
        self.follows = false;
        fill(self);
        self.text.push(close);
        self.follows = true;
    }

    pub fn object(&mut self, fill: impl FnOnce(&mut Self)) {
        self.nested('{', '}', fill);
    }

    pub fn array(&mut self, fill: impl FnOnce(&mut Self)) {
        self.nested('[', ']', fill);
    }

    pub fn field(&mut self, name: &str) -> &mut Self {
        self.text(name.as_bytes());
        self.text.push(':');
        self.follows = false;
        self
    }

    pub fn number(&mut self, number: u64) {
        self.value();
        self.text.push_str(&number.to_string());
    }

    pub fn float(&mut self, number: f64) {
        self.value();
        self.text.push_str(&number.to_string());
    }

    pub fn flag(&mut self, flag: bool) {
        self.value();
        self.text.push_str(if flag { "true" } else { "false" });
    }

    /// Bytes that are not UTF-8 are replaced.
    pub fn text(&mut self, text: &[u8]) {
        self.value();
        self.text.push('"');
        for chunk in text.utf8_chunks() {
            chunk.valid().chars().for_each(|character| escape(&mut self.text, character));
            // Go replaces each byte; a chunk may have several.
            chunk.invalid().iter().for_each(|_| self.text.push_str("\\ufffd"));
        }
        self.text.push('"');
    }

    pub fn texts<'a>(&mut self, texts: impl IntoIterator<Item = &'a str>) {
        self.array(|json| texts.into_iter().for_each(|text| json.text(text.as_bytes())));
    }

    pub fn finish(self) -> String {
        self.text
    }

    /// As Go's encoder ends it.
    pub fn line(mut self) -> String {
        self.text.push('\n');
        self.text
    }
}

fn escape(text: &mut String, character: char) {
    match character {
        '"' => text.push_str("\\\""),
        '\\' => text.push_str("\\\\"),
        '\n' => text.push_str("\\n"),
        '\r' => text.push_str("\\r"),
        '\t' => text.push_str("\\t"),
        '\0'..='\u{1f}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
            text.push_str(&format!("\\u{:04x}", u32::from(character)));
        }
        plain => text.push(plain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_escapes_are_gos() {
        let mut json = Json::default();
        json.text("a\"\\\n\r\t\u{1}<>&ä\u{2028}\u{7f}".as_bytes());
        assert_eq!(json.finish(), "\"a\\\"\\\\\\n\\r\\t\\u0001\\u003c\\u003e\\u0026ä\\u2028\u{7f}\"");
        let mut json = Json::default();
        json.text(b"a\xff\xe2\x82b");
        assert_eq!(json.finish(), "\"a\\ufffd\\ufffd\\ufffdb\"");
    }

    #[test]
    fn objects_arrays_and_values_are_written_as_json() {
        let mut json = Json::default();
        json.object(|json| {
            json.field("a").number(1);
            json.field("b").array(|json| {
                json.object(|_| {});
                json.flag(true);
                json.float(0.5);
            });
            json.field("c").texts(["x", "y"]);
        });
        assert_eq!(json.line(), "{\"a\":1,\"b\":[{},true,0.5],\"c\":[\"x\",\"y\"]}\n");
    }
}
