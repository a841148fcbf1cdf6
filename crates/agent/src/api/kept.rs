//! A value together with the JSON it was read from. An agent that is older than its controller understands only a part of it; it keeps
//! all of it, so the next, newer agent finds the rest.

use std::fmt;
use std::ops::Deref;

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

#[derive(Clone, PartialEq, Eq)]
pub struct Kept<T> {
    value: T,
    came_as: Value,
}

impl<T: Serialize> Kept<T> {
    pub fn new(value: T) -> Self {
        let came_as = serde_json::to_value(&value).expect("plain data serializes");
        Kept { value, came_as }
    }
}

impl<T> Deref for Kept<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

/// Unknown parts of the JSON may be secret.
impl<T: fmt::Debug> fmt::Debug for Kept<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T> Serialize for Kept<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.came_as.serialize(serializer)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Kept<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let came_as = Value::deserialize(deserializer)?;
        let value = T::deserialize(&came_as).map_err(D::Error::custom)?;
        Ok(Kept { value, came_as })
    }
}

#[cfg(test)]
mod tests {
    use quorate_core::model::NodeConfig;

    use super::*;

    #[test]
    fn fields_added_by_a_newer_controller_are_kept_and_not_shown() {
        let etcd = r#"{"version":"3.6.16","binary":"debian_package","flags":{},"cgroup":"fast"}"#;
        let service = format!(r#"{{"name":"etcd","user":"etcd","runs":{{"etcd":{etcd}}},"inputs":[]}}"#);
        let text = format!(r#"{{"files":[],"services":[{service}],"postgres":{{"password":"hidden"}}}}"#);
        let kept: Kept<NodeConfig> = serde_json::from_str(&text).unwrap();
        assert_eq!(kept.etcd().unwrap().version, "3.6.16");
        assert!(!format!("{kept:?}").contains("hidden"));
        let written = serde_json::to_string(&kept).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), serde_json::from_str::<Value>(&text).unwrap());
    }
}
