//! What instances are created from, as far as AWS must be asked: the image, the types and the key pair.

use super::Aws;
use super::error::AwsError;
use super::session::Call;
use super::xml::Xml;

/// An image that can be used.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) id: String,
    /// What its root disk is called.
    pub(super) root: String,
}

impl Aws {
    pub(super) async fn image(&self) -> Result<Found, AwsError> {
        let doing = "find the image";
        let call = Call::new(doing, "DescribeImages");
        let image = &self.settings.image;
        let call = match (&image.id, &image.newest, &image.parameter) {
            (Some(id), ..) => call.list("ImageId", [id]),
            (None, Some(newest), _) => {
                call.list("Owner", [&newest.owner]).filter("name", [&newest.name]).filter("state", ["available"])
            }
            (None, None, path) => {
                let path = path.as_deref().unwrap_or_default();
                let id = match self.session()?.parameter(&format!("read the parameter {path}"), path).await {
                    Err(error) if error.has_code(&["ParameterNotFound", "ParameterVersionNotFound"]) => {
                        return Err(missing("parameter", path));
                    }
                    id => id?,
                };
                call.list("ImageId", [id])
            }
        };
        let name = self.settings.image.to_string();
        let found = match self.session()?.call(&call).await {
            Err(error) if error.has_code(&["InvalidAMIID.NotFound", "InvalidAMIID.Malformed"]) => {
                return Err(missing("image", &name));
            }
            found => found?,
        };
        let newest = newest_of(found.items("imagesSet")).ok_or_else(|| missing("image", &name))?;
        let state = newest.text("imageState").unwrap_or_default();
        if state != "available" {
            return Err(AwsError::ImageUnusable { image: name, state });
        }
        Ok(Found {
            id: newest.text("imageId").unwrap_or_default(),
            root: newest.text("rootDeviceName").unwrap_or_else(|| String::from("/dev/xvda")),
        })
    }

    /// Checks that there are such types. On those with a data volume, it must have a name.
    pub(super) async fn check_types(&self, types: &[String], has_data: bool) -> Result<(), AwsError> {
        let call = Call::new("find the types of instances", "DescribeInstanceTypes").list("InstanceType", types);
        let found = match self.session()?.call(&call).await {
            Err(error) if error.has_code(&["InvalidInstanceType", "InvalidParameterValue"]) => {
                return Err(missing("type of instance among", &types.join(", ")));
            }
            found => found?,
        };
        for name in types {
            let one = found.items("instanceTypeSet").find(|one| one.text("instanceType").as_deref() == Some(name));
            let hypervisor = one.ok_or_else(|| missing("type of instance", name))?.text("hypervisor");
            // Bare metal has none.
            if has_data && hypervisor.is_some_and(|hypervisor| hypervisor == "xen") {
                return Err(AwsError::NotNitro { name: name.clone() });
            }
        }
        Ok(())
    }

    pub(super) async fn check_key_pair(&self, name: &str) -> Result<(), AwsError> {
        let call = Call::new("find the key pair", "DescribeKeyPairs");
        let found = self.session()?.call(&call).await?;
        let names: Vec<String> = found.items("keySet").filter_map(|pair| pair.text("keyName")).collect();
        if names.iter().any(|known| known == name) {
            return Ok(());
        }
        Err(AwsError::Missing { what: "key pair", name: name.to_owned(), names })
    }
}

/// Dates are written so that their texts have the same order.
fn newest_of<'a>(images: impl Iterator<Item = &'a Xml>) -> Option<&'a Xml> {
    images.max_by_key(|image| image.text("creationDate"))
}

fn missing(what: &'static str, name: &str) -> AwsError {
    AwsError::Missing { what, name: name.to_owned(), names: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_image_is_chosen() {
        let image =
            |id: &str, date: &str| format!("<item><imageId>{id}</imageId><creationDate>{date}</creationDate></item>");
        let text = [
            image("a", "2026-01-01T00:00:00.000Z"),
            image("b", "2026-03-01T00:00:00.000Z"),
            image("c", "2025-12-31T00:00:00.000Z"),
        ];
        let found = Xml::read(&format!("<r><s>{}</s></r>", text.concat())).unwrap();
        assert_eq!(newest_of(found.items("s")).unwrap().text("imageId").as_deref(), Some("b"));
    }
}
