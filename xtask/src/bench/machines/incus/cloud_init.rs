//! cloud-init, trimmed, on an image like those of Incus's own image server: user data is part of the instance's configuration, and
//! reaches cloud-init through the image's templates.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;

use super::super::cloud_init::{TRIMMED, user_data};
use super::instances::{Instances, Made};
use super::{MEMBERS, PREFIX, address, mac, vary};

const NAME: &str = "bench-cloud-init";
const SEED: &str = "/var/lib/cloud/seed/nocloud-net";
const TEMPLATES: [(&str, &str); 3] = [
    ("meta-data", "instance-id: {{ container.name }}\nlocal-hostname: {{ container.name }}\n"),
    ("user-data", "{{ config_get(\"cloud-init.user-data\", \"\") }}\n"),
    ("network-config", "{{ config_get(\"cloud-init.network-config\", \"\") }}\n"),
];

pub fn prepare(instances: &Instances, image: &Path) -> Result<Made> {
    vary(NAME, image, |directory, root| {
        root.put("etc/cloud/cloud.cfg.d/99-trimmed.cfg", TRIMMED)?;
        let templates = directory.join("templates");
        fs::create_dir_all(&templates).context("cannot create the templates")?;
        let mut listed = json!({});
        for (file, text) in TEMPLATES {
            fs::write(templates.join(file), text).with_context(|| format!("cannot write the template {file}"))?;
            listed[format!("{SEED}/{file}")] = json!({ "when": ["create", "copy"], "template": file });
        }
        let metadata = directory.join("metadata.yaml");
        let text = fs::read_to_string(&metadata).context("cannot read the image's metadata")?;
        let mut value: serde_json::Value = serde_json::from_str(&text).context("the image's metadata")?;
        value["templates"] = listed;
        fs::write(&metadata, value.to_string()).context("cannot write the image's metadata")
    })?;
    let certificates = instances.certificates(NAME)?;
    let each = |number: usize| -> Result<_> {
        let config = json!({
            "cloud-init.user-data": user_data(&MEMBERS, &certificates, number)?, "cloud-init.network-config": network_config(number),
        });
        Ok((config, Vec::new()))
    };
    let each = (1..=3).map(each).collect::<Result<_>>()?;
    Ok(Made { name: NAME, certificates, each })
}

fn network_config(number: usize) -> String {
    super::super::cloud_init::network_config(&mac(number), &address(number), PREFIX)
}
