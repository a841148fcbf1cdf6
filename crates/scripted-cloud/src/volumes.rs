//! Volumes.

use serde_json::{Value, json};

use crate::cloud::{Answer, Cloud, absent, merge, refused, wrapped};

impl Cloud {
    pub(crate) fn make_volume(&mut self, wanted: &Value) -> Answer {
        let mut volume = json!({
            "name": "", "status": "available", "availability_zone": "nova", "volume_type": "default", "metadata": {},
            "attachments": [],
        });
        merge(&mut volume, wanted);
        (202, wrapped("volumes", self.add("volumes", volume)))
    }

    pub(crate) fn delete_volume(&mut self, id: &str) -> Answer {
        match self.find("volumes", id) {
            None => absent(),
            Some(volume) if volume["status"] != "available" => refused(400, "the volume must be available"),
            Some(_) => self.delete("volumes", id),
        }
    }
}
