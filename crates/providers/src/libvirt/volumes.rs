//! Disks of machines, as volumes in storage pools.

use std::io::Write;

use roxmltree::Document;

use super::domain::{Volume, attribute, child, escaped};
use super::virsh::{LibvirtError, STDIN, Virsh};
use crate::ProviderError;

/// What libvirt knows of a volume.
pub(super) struct Details {
    pub(super) path: String,
    pub(super) format: String,
    pub(super) capacity: u64,
}

impl Details {
    fn read(description: &str) -> Option<Self> {
        let document = Document::parse(description).ok()?;
        let (volume, target) = (document.root_element(), child(document.root_element(), "target")?);
        let format = child(target, "format").and_then(|format| attribute(format, "type"));
        Some(Details {
            path: child(target, "path")?.text()?.to_owned(),
            format: format.unwrap_or_else(|| String::from("raw")),
            capacity: child(volume, "capacity")?.text()?.trim().parse().ok()?,
        })
    }
}

impl Virsh {
    /// Of a volume that must be there.
    pub(super) async fn volume(&self, volume: &Volume) -> Result<Details, LibvirtError> {
        match self.find_volume(volume).await? {
            Some(details) => Ok(details),
            None => {
                let known = self.volumes(&volume.pool).await?;
                Err(LibvirtError::Missing { what: "volume", name: format!("{}/{}", volume.pool, volume.name), known })
            }
        }
    }

    pub(super) async fn find_volume(&self, volume: &Volume) -> Result<Option<Details>, LibvirtError> {
        let description = match self.run(&["vol-dumpxml", "--pool", &volume.pool, &volume.name]).await {
            Ok(description) => description,
            Err(LibvirtError::Missing { what: "volume", .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        Details::read(&description).map(Some).ok_or_else(|| LibvirtError::Unreadable { name: volume.name.clone() })
    }

    /// A disk that begins as a copy of an image, and shares with it what stays the same.
    pub(super) async fn make_root(&self, volume: &Volume, image: &Details, capacity: u64) -> Result<(), LibvirtError> {
        let below = format!(
            "<backingStore><path>{}</path><format type='{}'/></backingStore>",
            escaped(&image.path),
            escaped(&image.format)
        );
        self.make(volume, capacity, &below).await
    }

    pub(super) async fn make_empty(&self, volume: &Volume, capacity: u64) -> Result<(), LibvirtError> {
        self.make(volume, capacity, "").await
    }

    async fn make(&self, volume: &Volume, capacity: u64, below: &str) -> Result<(), LibvirtError> {
        let description = format!(
            "<volume><name>{}</name><capacity unit='b'>{capacity}</capacity>\
             <target><format type='qcow2'/></target>{below}</volume>",
            escaped(&volume.name)
        );
        self.tell(&["vol-create", &volume.pool, STDIN], &description).await.map(drop)
    }

    /// A disk with this content.
    pub(super) async fn make_raw(&self, volume: &Volume, content: &[u8]) -> Result<(), ProviderError> {
        let failed = |source| ProviderError::Io { what: "written", path: std::env::temp_dir(), source };
        // Only its owner can read it: the enrolment token is in there.
        let mut file = tempfile::NamedTempFile::new().map_err(failed)?;
        file.write_all(content).map_err(failed)?;
        let description = format!(
            "<volume><name>{}</name><capacity unit='b'>{}</capacity>\
             <target><format type='raw'/><permissions><mode>0600</mode></permissions></target></volume>",
            escaped(&volume.name),
            content.len()
        );
        self.tell(&["vol-create", &volume.pool, STDIN], &description).await?;
        let path = file.path().to_string_lossy().into_owned();
        self.run(&["vol-upload", "--sparse", "--pool", &volume.pool, &volume.name, &path]).await?;
        Ok(())
    }

    /// One that is not there is gone already.
    pub(super) async fn delete_volume(&self, volume: &Volume) -> Result<(), LibvirtError> {
        match self.run(&["vol-delete", "--pool", &volume.pool, &volume.name]).await {
            Err(error) if !error.is_absent() => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) async fn volumes(&self, pool: &str) -> Result<Vec<String>, LibvirtError> {
        let lines = self.names(&["vol-list", pool]).await?;
        Ok(lines.iter().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
    }

    /// How many bytes a pool has left. The pool must be there and be active.
    pub(super) async fn left_in(&self, pool: &str) -> Result<u64, LibvirtError> {
        let info = match self.run(&["pool-info", "--bytes", pool]).await {
            Err(LibvirtError::Missing { .. }) => {
                let known = self.names(&["pool-list", "--all", "--name"]).await?;
                return Err(LibvirtError::Missing { what: "storage pool", name: pool.to_owned(), known });
            }
            info => info?,
        };
        if field(&info, "State") != Some("running") {
            return Err(LibvirtError::Inactive { what: "storage pool", name: pool.to_owned(), verb: "pool-start" });
        }
        // Somebody may have put files there since. libvirt refuses to look while volumes are made there, which may be our own; what
        // is missing is then reported where it is needed.
        match self.run(&["pool-refresh", pool]).await {
            Err(LibvirtError::Failed { .. }) => {}
            refreshed => drop(refreshed?),
        }
        Ok(field(&info, "Available").and_then(|bytes| bytes.parse().ok()).unwrap_or(u64::MAX))
    }

    /// The name of a network that is there and active, given by its name or its id.
    pub(super) async fn network(&self, wanted: &str) -> Result<String, LibvirtError> {
        let info = match self.run(&["net-info", wanted]).await {
            Err(LibvirtError::Missing { .. }) => {
                let known = self.names(&["net-list", "--all", "--name"]).await?;
                return Err(LibvirtError::Missing { what: "network", name: wanted.to_owned(), known });
            }
            info => info?,
        };
        let name = field(&info, "Name").unwrap_or(wanted).to_owned();
        if field(&info, "Active") != Some("yes") {
            return Err(LibvirtError::Inactive { what: "network", name, verb: "net-start" });
        }
        Ok(name)
    }
}

/// The value in a line such as `State:          running`.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

#[cfg(test)]
mod tests {
    use super::Details;

    #[test]
    fn a_volume_is_not_mistaken_for_the_image_below_it() {
        let description = "<volume type='file'><name>a</name><key>/p/a</key><capacity unit='bytes'>2048</capacity>\
            <backingStore><path>/p/image</path><format type='raw'/></backingStore>\
            <target><path>/p/a &amp; b</path><format type='qcow2'/><permissions><mode>0600</mode></permissions></target></volume>";
        let Details { path, format, capacity } = Details::read(description).unwrap();
        assert_eq!((path.as_str(), format.as_str(), capacity), ("/p/a & b", "qcow2", 2048));
        assert!(Details::read("<volume/>").is_none());
    }
}
