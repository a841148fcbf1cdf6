//! The catalogue: the endpoints of a cloud's services.

use serde_json::Value;

use super::credentials::{Cloud, with_version};
use super::error::OpenstackError;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Service {
    Compute,
    Network,
    Image,
    Volume,
}

impl Service {
    /// The types under which catalogues have it, and the name in `clouds.yaml`, which comes first.
    fn types(self) -> &'static [&'static str] {
        match self {
            Service::Compute => &["compute"],
            Service::Network => &["network"],
            Service::Image => &["image"],
            Service::Volume => &["block-storage", "volumev3", "block-store", "volume"],
        }
    }

    /// For people.
    fn name(self) -> &'static str {
        self.types()[0]
    }

    /// As the header for microversions has it.
    pub(super) fn version_name(self) -> &'static str {
        match self {
            Service::Volume => "volume",
            other => other.name(),
        }
    }

    /// The version of its API, as a part of paths.
    fn version(self) -> &'static str {
        match self {
            Service::Compute => "v2.1",
            Service::Network => "v2.0",
            Service::Image => "v2",
            Service::Volume => "v3",
        }
    }

    /// Everything in a link that comes after the endpoint.
    pub(super) fn path_in(self, link: &str) -> Option<String> {
        let version = format!("/{}/", self.version());
        let rest = &link[link.find(&version)? + version.len() - 1..];
        match self {
            // The project comes first.
            Service::Volume => rest[1..].find('/').map(|at| rest[1 + at..].to_owned()),
            _ => Some(rest.to_owned()),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Catalogue {
    services: Vec<Value>,
    pub(super) project: String,
}

impl Catalogue {
    /// Of a token.
    pub(super) fn read(token: &Value) -> Self {
        let services = token.get("catalog").and_then(Value::as_array).cloned().unwrap_or_default();
        let project = token.pointer("/project/id").and_then(Value::as_str).unwrap_or_default().to_owned();
        Catalogue { services, project }
    }

    /// The URL that paths of this service are appended to.
    pub(super) fn endpoint(&self, cloud: &Cloud, service: Service) -> Result<String, OpenstackError> {
        let given = cloud.overrides.iter().find(|(name, _)| name == service.name()).map(|(_, url)| url.clone());
        let url = given.or_else(|| self.find(cloud, service)).ok_or_else(|| OpenstackError::NoService {
            cloud: cloud.name.clone(),
            service: service.name(),
            region: cloud.region.clone(),
            known: self.services.iter().filter_map(|known| known.get("type")?.as_str()).map(str::to_owned).collect(),
        })?;
        Ok(self.complete(service, &url))
    }

    fn find(&self, cloud: &Cloud, service: Service) -> Option<String> {
        let text = |value: &Value, field: &str| value.get(field).and_then(Value::as_str).map(str::to_owned);
        let of_type = |kind: &str| {
            let services = self.services.iter().filter(|known| text(known, "type").as_deref() == Some(kind));
            let mut endpoints = services.filter_map(|known| known.get("endpoints")?.as_array()).flatten();
            let fits = |endpoint: &&Value| {
                let region = text(endpoint, "region_id").or_else(|| text(endpoint, "region"));
                text(endpoint, "interface").as_deref() == Some(&cloud.interface)
                    && (cloud.region.is_none() || region == cloud.region)
            };
            endpoints.find(fits).and_then(|endpoint| text(endpoint, "url"))
        };
        service.types().iter().find_map(|kind| of_type(kind))
    }

    /// Catalogues have endpoints with and without the version and the project.
    fn complete(&self, service: Service, url: &str) -> String {
        let url = url.trim_end_matches('/');
        let version = service.version();
        let url = match url.find(&format!("/{version}/")) {
            Some(at) if service != Service::Volume => url[..at].to_owned(),
            Some(_) => return url.to_owned(),
            None => url.to_owned(),
        };
        let url = with_version(&url, version);
        if service == Service::Volume { format!("{url}/{}", self.project) } else { url }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::credentials::{Login, Who};
    use super::*;
    use quorate_core::Secret;

    fn cloud(region: Option<&str>) -> Cloud {
        let who = Who::Id(String::from("x"));
        Cloud {
            name: String::from("lab"),
            auth_url: String::new(),
            login: Login::Password { user: who.clone(), password: Secret::new("x"), project: who },
            region: region.map(str::to_owned),
            interface: String::from("public"),
            ca_file: None,
            overrides: vec![(String::from("image"), String::from("http://glance/"))],
        }
    }

    #[test]
    fn endpoints_are_those_of_the_region_with_version_and_project() {
        let endpoint = |region, interface, url| json!({ "region_id": region, "interface": interface, "url": url });
        let catalogue = Catalogue::read(&json!({ "project": { "id": "p" }, "catalog": [
            { "type": "compute", "endpoints": [
                endpoint("North", "internal", "http://other"), endpoint("North", "public", "http://nova/v2.1/p"),
                endpoint("South", "public", "http://south/v2.1"),
            ] },
            { "type": "network", "endpoints": [endpoint("North", "public", "http://neutron:9696/")] },
            { "type": "volumev3", "endpoints": [endpoint("North", "public", "http://cinder/v3/p")] },
            { "type": "block-storage", "endpoints": [endpoint("South", "public", "http://cinder/v3")] },
        ] }));
        let at = |region, service| catalogue.endpoint(&cloud(region), service).map_err(|error| error.to_string());
        assert_eq!(at(Some("North"), Service::Compute).as_deref(), Ok("http://nova/v2.1"));
        assert_eq!(at(Some("South"), Service::Compute).as_deref(), Ok("http://south/v2.1"));
        assert_eq!(at(None, Service::Network).as_deref(), Ok("http://neutron:9696/v2.0"));
        assert_eq!(at(Some("North"), Service::Volume).as_deref(), Ok("http://cinder/v3/p"));
        assert_eq!(at(Some("South"), Service::Volume).as_deref(), Ok("http://cinder/v3/p"));
        assert_eq!(at(None, Service::Image).as_deref(), Ok("http://glance/v2"));
        let missing = at(Some("South"), Service::Network).unwrap_err();
        assert!(missing.contains("no network service in the region South"), "{missing}");
    }

    #[test]
    fn the_rest_of_a_link_is_a_path() {
        let path = |service: Service, link: &str| service.path_in(link);
        assert_eq!(
            path(Service::Compute, "http://n/v2.1/servers/detail?marker=a").as_deref(),
            Some("/servers/detail?marker=a")
        );
        assert_eq!(
            path(Service::Volume, "http://c/v3/p/volumes/detail?marker=a").as_deref(),
            Some("/volumes/detail?marker=a")
        );
        assert_eq!(path(Service::Image, "/v2/images?marker=a").as_deref(), Some("/images?marker=a"));
    }
}
