//! The JSON schema of the spec, for editors. It accepts what quorate accepts: a key without a value means the default, so every
//! optional field may be null.

use serde_json::{Map, Value, json};

use super::Spec;

/// The JSON schema of the spec.
pub fn json_schema() -> Value {
    let mut schema = schemars::schema_for!(Spec).to_value();
    let definitions = schema["$defs"].clone();
    let description = |reference: &Value| {
        let name = reference.as_str()?.strip_prefix("#/$defs/")?;
        definitions[name].get("description").cloned()
    };
    allow_nothing(&mut schema, &description);
    schema
}

/// Lets all fields below that are not required be null.
fn allow_nothing(schema: &mut Value, description: &dyn Fn(&Value) -> Option<Value>) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(|item| allow_nothing(item, description)),
        Value::Object(map) => {
            let required = map.get("required").cloned().unwrap_or_default();
            let is_required =
                |name: &String| required.as_array().is_some_and(|names| names.iter().any(|n| n == name.as_str()));
            if let Some(Value::Object(properties)) = map.get_mut("properties") {
                for (_, property) in properties.iter_mut().filter(|(name, _)| !is_required(name)) {
                    *property = or_null(property.take(), description);
                }
            }
            map.values_mut().for_each(|value| allow_nothing(value, description));
        }
        _ => {}
    }
}

fn or_null(property: Value, description: &dyn Fn(&Value) -> Option<Value>) -> Value {
    let Value::Object(mut property) = property else { return property };
    let is_listed = property.contains_key("enum") || property.contains_key("const");
    if let Some(types) = property.get_mut("type").filter(|_| !is_listed) {
        let mut all: Vec<Value> = types.as_array().cloned().unwrap_or_else(|| vec![types.clone()]);
        if !all.contains(&json!("null")) {
            all.push(json!("null"));
        }
        *types = Value::Array(all);
        return Value::Object(property);
    }
    if property.contains_key("anyOf") {
        return Value::Object(property);
    }
    let outer = ["description", "default"].into_iter().filter_map(|key| Some((key.to_owned(), property.remove(key)?)));
    let mut wrapped: Map<String, Value> = outer.collect();
    if let Some(text) = property.get("$ref").and_then(description) {
        wrapped.entry("description").or_insert(text);
    }
    wrapped.insert(String::from("anyOf"), json!([property, {"type": "null"}]));
    Value::Object(wrapped)
}

#[cfg(test)]
mod tests {
    use super::super::tree::{Content, Node};
    use super::super::units::check_format;
    use super::super::{Document, template};
    use super::*;
    use crate::providers::TEMPLATES;

    /// As any YAML parser reads it.
    fn plain(node: &Node) -> Value {
        match &node.content {
            Content::Mapping(entries) => entries.iter().map(|e| (e.key.clone(), plain(&e.value))).collect(),
            Content::Sequence(items) => items.iter().map(plain).collect(),
            Content::Scalar { text, plain: true } => {
                serde_json::from_str(text).unwrap_or_else(|_| match node.is_null() {
                    true => Value::Null,
                    false => Value::String(text.clone()),
                })
            }
            Content::Scalar { text, .. } => Value::String(text.clone()),
            Content::Refused => panic!("templates have no such thing"),
        }
    }

    /// Whether a value fits a schema. A keyword that is not known here would be ignored, so it is refused.
    fn fits(value: &Value, schema: &Value, root: &Value) -> Result<(), String> {
        let Value::Object(schema) = schema else {
            return if *schema == Value::Bool(false) { Err(format!("nothing may be here: {value}")) } else { Ok(()) };
        };
        for (keyword, wanted) in schema {
            let fine = match keyword.as_str() {
                "$schema" | "$defs" | "title" | "description" | "default" => true,
                "$ref" => {
                    let at = wanted.as_str().unwrap().trim_start_matches('#');
                    fits(value, root.pointer(at).unwrap(), root)?;
                    true
                }
                "anyOf" => wanted.as_array().unwrap().iter().any(|one| fits(value, one, root).is_ok()),
                "oneOf" => wanted.as_array().unwrap().iter().filter(|one| fits(value, one, root).is_ok()).count() == 1,
                "type" => match wanted {
                    Value::Array(several) => several.iter().any(|one| is_of_type(value, one)),
                    one => is_of_type(value, one),
                },
                "const" => value == wanted,
                "enum" => wanted.as_array().unwrap().contains(value),
                "required" => {
                    let mut names = wanted.as_array().unwrap().iter().filter_map(Value::as_str);
                    value.as_object().is_none_or(|map| names.all(|name| map.contains_key(name)))
                }
                "properties" | "additionalProperties" => {
                    let known = |name: &str| schema.get("properties").and_then(|p| p.get(name));
                    for (name, field) in value.as_object().into_iter().flatten() {
                        match (known(name), keyword.as_str()) {
                            (Some(field_schema), "properties") => {
                                fits(field, field_schema, root).map_err(|e| format!("{name}: {e}"))?;
                            }
                            (None, "additionalProperties") => {
                                fits(field, wanted, root).map_err(|e| format!("{name}: {e}"))?
                            }
                            _ => {}
                        }
                    }
                    true
                }
                "items" => {
                    value.as_array().into_iter().flatten().try_for_each(|item| fits(item, wanted, root))?;
                    true
                }
                "format" => {
                    let text = value.as_str().map(str::to_owned).or_else(|| value.as_u64().map(|n| n.to_string()));
                    let form = wanted.as_str().unwrap();
                    form.trim_start_matches("u").starts_with("int")
                        || text.is_none_or(|text| check_format(form, &text).is_ok())
                }
                "minimum" => value.as_i64().is_none_or(|n| n >= wanted.as_i64().unwrap()),
                "maximum" => value.as_i64().is_none_or(|n| n <= wanted.as_i64().unwrap()),
                "minLength" => value.as_str().is_none_or(|s| s.len() as u64 >= wanted.as_u64().unwrap()),
                "minItems" => value.as_array().is_none_or(|a| a.len() as u64 >= wanted.as_u64().unwrap()),
                // Only of versions, which `format` checks as well.
                "pattern" => schema["format"] == "version",
                other => panic!("the keyword `{other}` is not checked here"),
            };
            if !fine {
                return Err(format!("`{keyword}: {wanted}` does not allow {value}"));
            }
        }
        Ok(())
    }

    fn is_of_type(value: &Value, name: &Value) -> bool {
        match name.as_str().unwrap() {
            "null" => value.is_null(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            other => panic!("no such type: {other}"),
        }
    }

    fn check(text: &str) -> Result<(), String> {
        let document = Document::parse("c.yaml", text).unwrap();
        let schema = json_schema();
        fits(&plain(&document.root), &schema, &schema)
    }

    #[test]
    fn every_template_fits_the_schema() {
        for (provider, _) in TEMPLATES {
            let template = template(provider).unwrap();
            assert_eq!(check(&template), Ok(()), "{provider}");
            // The first two lines are about the schema. A setting is uncommented by taking `# ` away.
            let lines = template.lines().skip(2).map(|line| match line.trim_start().starts_with("# ") {
                true => line.replacen("# ", "", 1) + "\n",
                false => format!("{line}\n"),
            });
            assert_eq!(check(&lines.collect::<String>()), Ok(()), "{provider}");
        }
    }

    #[test]
    fn invalid_specs_do_not_match_the_schema() {
        let spec = |line: &str| format!("quorate: 1\nclusters:\n  - name: c\n    members: [{{name: a}}]\n    {line}\n");
        assert_eq!(check(&spec("etcd:")), Ok(()));
        for wrong in [
            "etcd: {quota: lots}",
            "etcd: {adress: 1}",
            "provider: cloud",
            "etcd: [1]",
            "provider: {local: {keep_data: 1}}",
        ] {
            assert!(check(&spec(wrong)).is_err(), "{wrong}");
        }
        assert!(check("quorate: 1\nclusters:\n").is_err(), "a field that is required is not null");
    }
}
