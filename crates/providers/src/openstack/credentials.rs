//! The cloud's address and the login: `clouds.yaml` with `secure.yaml`, or the variables of the `openstack` command. `Debug` does not
//! show secrets.

use std::fs;
use std::path::{Path, PathBuf};

use quorate_core::Secret;
use quorate_core::spec::read_plain_yaml;
use serde_json::{Map, Value, json};

use super::error::OpenstackError;

/// A variable of the environment.
type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A cloud, and how to log in there.
#[derive(Clone, Debug)]
pub(super) struct Cloud {
    /// For people.
    pub(super) name: String,
    /// Of the identity service, with its version.
    pub(super) auth_url: String,
    pub(super) login: Login,
    pub(super) region: Option<String>,
    /// `public`, `internal` or `admin`.
    pub(super) interface: String,
    /// A file with the CAs of the cloud. Without it, those of the system.
    pub(super) ca_file: Option<PathBuf>,
    /// Endpoints that count more than the catalogue: service type, and URL.
    pub(super) overrides: Vec<(String, String)>,
}

/// What the identity service is shown.
#[derive(Clone, Debug)]
pub(super) enum Login {
    Password { user: Who, password: Secret, project: Who },
    ApplicationCredential { credential: Who, secret: Secret, user: Option<Who> },
}

/// Someone or something with an id, or a name in a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Id(String),
    Name { name: String, domain: Option<Domain> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Domain {
    Id(String),
    Name(String),
}

impl Who {
    fn json(&self) -> Value {
        match self {
            Who::Id(id) => json!({ "id": id }),
            Who::Name { name, domain: None } => json!({ "name": name }),
            Who::Name { name, domain: Some(Domain::Id(id)) } => json!({ "name": name, "domain": { "id": id } }),
            Who::Name { name, domain: Some(Domain::Name(domain)) } => {
                json!({ "name": name, "domain": { "name": domain } })
            }
        }
    }
}

impl Login {
    /// The body of the request for a token.
    pub(super) fn request(&self) -> Value {
        match self {
            Login::Password { user, password, project } => {
                let mut user = user.json();
                user["password"] = json!(password.expose());
                json!({ "auth": {
                    "identity": { "methods": ["password"], "password": { "user": user } },
                    "scope": { "project": project.json() },
                } })
            }
            Login::ApplicationCredential { credential, secret, user } => {
                let mut credential = credential.json();
                credential["secret"] = json!(secret.expose());
                if let Some(user) = user {
                    credential["user"] = user.json();
                }
                json!({ "auth": {
                    "identity": { "methods": ["application_credential"], "application_credential": credential },
                } })
            }
        }
    }
}

impl Cloud {
    /// The cloud that the spec, or else the environment, names.
    pub(super) fn find(cloud: Option<&str>, region: Option<&str>) -> Result<Self, OpenstackError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let places = Places::of(&variable);
        let mut found = Self::find_in(cloud, &variable, &places)?;
        found.region = region.map(str::to_owned).or(found.region);
        Ok(found)
    }

    /// Of this file alone.
    pub(super) fn of_file(path: &Path, cloud: Option<&str>) -> Result<Self, OpenstackError> {
        let places = Places { clouds: vec![path.to_owned()], secure: Vec::new() };
        Self::find_in(cloud, &|_| None, &places)
    }

    fn find_in(cloud: Option<&str>, variable: Variable<'_>, places: &Places) -> Result<Self, OpenstackError> {
        let named = cloud.map(str::to_owned).or_else(|| variable("OS_CLOUD"));
        if named.is_none() && variable("OS_AUTH_URL").is_some() {
            return Self::of_environment(variable);
        }
        let clouds = read_first(&places.clouds)?;
        let names: Vec<String> = clouds.keys().cloned().collect();
        let name = match named {
            Some(name) => name,
            None if names.len() == 1 => names[0].clone(),
            None => return Err(OpenstackError::NoCloudNamed { names }),
        };
        let Some(settings) = clouds.get(&name) else {
            return Err(OpenstackError::NoCloud { name, looked: places.clouds.clone(), names });
        };
        let mut settings = settings.clone();
        if let Some(secrets) = read_first(&places.secure)?.get(&name) {
            merge(&mut settings, secrets);
        }
        Self::of_settings(&name, &settings, &|_| None)
    }

    fn of_environment(variable: Variable<'_>) -> Result<Self, OpenstackError> {
        Self::of_settings("the cloud of OS_AUTH_URL", &Value::Null, variable)
    }

    /// Of an entry in clouds.yaml, or of variables, whose names differ by `OS_` and capitals alone.
    fn of_settings(name: &str, settings: &Value, variable: Variable<'_>) -> Result<Self, OpenstackError> {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).filter(|t| !t.is_empty()).map(str::to_owned);
        let top = |field: &str| text(settings.get(field)).or_else(|| variable(&format!("OS_{}", field.to_uppercase())));
        let auth = |field: &str| text(settings.get("auth").and_then(|auth| auth.get(field))).or_else(|| top(field));
        if text(settings.get("profile")).is_some() {
            let why = String::from("`profile` is not supported: write `auth_url` into clouds.yaml");
            return Err(OpenstackError::Unsupported { cloud: name.to_owned(), why });
        }
        let is_on = |field: &str| {
            let said = top(field)?.to_lowercase();
            Some(!matches!(said.as_str(), "false" | "f" | "no" | "n" | "off" | "0"))
        };
        if is_on("verify") == Some(false) || is_on("insecure") == Some(true) {
            let why = String::from("certificates are always verified: name the CA of the cloud in `cacert`");
            return Err(OpenstackError::Unsupported { cloud: name.to_owned(), why });
        }
        let lacks = |what: &'static str| OpenstackError::Incomplete { cloud: name.to_owned(), what };
        let auth_url = auth("auth_url").ok_or_else(|| lacks("`auth_url`"))?;
        let overrides = SERVICES.iter().flat_map(|(service, names)| {
            names.iter().filter_map(|name| Some((service.to_string(), top(&format!("{name}_endpoint_override"))?)))
        });
        Ok(Cloud {
            name: name.to_owned(),
            auth_url: with_version(&auth_url, "v3"),
            login: login(name, &top, &auth)?,
            region: top("region_name"),
            interface: interface(&top("interface").or_else(|| top("endpoint_type")).unwrap_or_default()),
            ca_file: top("cacert").map(|path| expanded(&path, variable)),
            overrides: overrides.collect(),
        })
    }
}

/// Services, by the names under which clouds.yaml knows them.
const SERVICES: [(&str, &[&str]); 4] = [
    ("compute", &["compute"]),
    ("network", &["network"]),
    ("image", &["image"]),
    ("block-storage", &["block_storage", "volumev3", "volume"]),
];

fn login(
    cloud: &str,
    top: &dyn Fn(&str) -> Option<String>,
    auth: &dyn Fn(&str) -> Option<String>,
) -> Result<Login, OpenstackError> {
    let lacks = |what: &'static str| OpenstackError::Incomplete { cloud: cloud.to_owned(), what };
    let domain = |of: &str| {
        let id = auth(&format!("{of}_domain_id")).or_else(|| auth("default_domain_id"));
        let name = auth(&format!("{of}_domain_name")).or_else(|| auth("default_domain_name"));
        let name = name.or_else(|| auth("default_domain"));
        name.map(Domain::Name).or(id.map(Domain::Id))
    };
    let who = |id: &str, name: &str, of: &str| {
        let named = || Some(Who::Name { name: auth(name)?, domain: domain(of) });
        auth(id).map(Who::Id).or_else(named)
    };
    let kind = top("auth_type").unwrap_or_default();
    let credential = auth("application_credential_id").map(Who::Id);
    let credential =
        credential.or_else(|| Some(Who::Name { name: auth("application_credential_name")?, domain: None }));
    match (kind.as_str(), credential) {
        ("v3applicationcredential" | "", Some(credential)) => {
            let secret = auth("application_credential_secret");
            let secret = secret.ok_or_else(|| lacks("`application_credential_secret`"))?;
            let user = who("user_id", "username", "user").filter(|_| matches!(credential, Who::Name { .. }));
            if user.is_none() && matches!(credential, Who::Name { .. }) {
                return Err(lacks("`username` or `user_id`: the name of an application credential is not unique"));
            }
            Ok(Login::ApplicationCredential { credential, secret: Secret::new(secret), user })
        }
        ("v3applicationcredential", None) => Err(lacks("`application_credential_id`")),
        ("password" | "v3password" | "", _) => Ok(Login::Password {
            user: who("user_id", "username", "user").ok_or_else(|| lacks("`username` or `user_id`"))?,
            password: Secret::new(auth("password").ok_or_else(|| lacks("`password`"))?),
            project: who("project_id", "project_name", "project")
                .or_else(|| who("tenant_id", "tenant_name", "project"))
                .ok_or_else(|| lacks("`project_name` or `project_id`"))?,
        }),
        (other, _) => {
            let why = format!("`auth_type: {other}` is not supported: use a password or an application credential");
            Err(OpenstackError::Unsupported { cloud: cloud.to_owned(), why })
        }
    }
}

/// `publicURL` is an older form.
fn interface(text: &str) -> String {
    let text = text.trim_end_matches("URL");
    if text.is_empty() { String::from("public") } else { text.to_owned() }
}

pub(super) fn with_version(url: &str, version: &str) -> String {
    let url = url.trim_end_matches('/');
    if url.ends_with(&format!("/{version}")) { url.to_owned() } else { format!("{url}/{version}") }
}

fn expanded(path: &str, variable: Variable<'_>) -> PathBuf {
    match path.strip_prefix("~/") {
        Some(rest) => home(variable).unwrap_or_default().join(rest),
        None => PathBuf::from(path),
    }
}

fn home(variable: Variable<'_>) -> Option<PathBuf> {
    variable("HOME").or_else(|| std::env::var("HOME").ok()).map(PathBuf::from)
}

/// Where the files may be; the first one that exists counts.
struct Places {
    clouds: Vec<PathBuf>,
    secure: Vec<PathBuf>,
}

impl Places {
    fn of(variable: Variable<'_>) -> Self {
        let config = home(variable).map(|home| home.join(".config/openstack"));
        let directories: Vec<PathBuf> =
            [Some(PathBuf::new()), config, Some(PathBuf::from("/etc/openstack"))].into_iter().flatten().collect();
        let named = |file: &str, other: &str| {
            let given = variable(other).map(PathBuf::from);
            let usual = directories.iter().flat_map(|d| ["yaml", "yml"].map(|end| d.join(format!("{file}.{end}"))));
            given.into_iter().chain(usual).collect()
        };
        Places { clouds: named("clouds", "OS_CLIENT_CONFIG_FILE"), secure: named("secure", "OS_CLIENT_SECURE_FILE") }
    }
}

/// The entries of the first file that exists.
fn read_first(places: &[PathBuf]) -> Result<Map<String, Value>, OpenstackError> {
    let Some(path) = places.iter().find(|path| path.exists()) else { return Ok(Map::new()) };
    let unreadable = |why: String| OpenstackError::Config { path: path.clone(), why };
    let text = fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
    let file = read_plain_yaml(&text).map_err(unreadable)?;
    let clouds = file.get("clouds").and_then(Value::as_object);
    clouds.cloned().ok_or_else(|| unreadable(String::from("it has no `clouds`")))
}

/// What `more` says counts.
fn merge(settings: &mut Value, more: &Value) {
    match (settings, more) {
        (Value::Object(settings), Value::Object(more)) => {
            for (key, value) in more {
                merge(settings.entry(key).or_insert(Value::Null), value);
            }
        }
        (settings, more) => settings.clone_from(more),
    }
}

/// Reads the CAs of a file.
pub(super) fn read_cas(path: &Path) -> Result<Vec<reqwest::Certificate>, OpenstackError> {
    let unreadable = |why: String| OpenstackError::Config { path: path.to_owned(), why };
    let text = fs::read(path).map_err(|error| unreadable(error.to_string()))?;
    let found = reqwest::Certificate::from_pem_bundle(&text).map_err(|error| unreadable(error.to_string()))?;
    if found.is_empty() { Err(unreadable(String::from("it has no certificates"))) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &str) -> Option<String> {
        None
    }

    fn files(clouds: &str, secure: &str) -> (tempfile::TempDir, Places) {
        let directory = tempfile::tempdir().unwrap();
        let [first, second] = ["clouds.yaml", "secure.yaml"].map(|name| directory.path().join(name));
        fs::write(&first, clouds).unwrap();
        fs::write(&second, secure).unwrap();
        (directory, Places { clouds: vec![first], secure: vec![second] })
    }

    const CLOUDS: &str = "
clouds:
  prod:
    auth: {auth_url: 'https://id.example:5000/', username: etcd, project_name: infra, user_domain_name: Default, project_domain_id: default}
    region_name: North
    interface: internalURL
    cacert: /etc/ssl/prod.pem
    network_endpoint_override: https://net.example
  app:
    auth_type: v3applicationcredential
    auth: {auth_url: https://id.example/v3, application_credential_id: abc}
";

    #[test]
    fn a_cloud_is_that_of_clouds_yaml_with_the_secrets_of_secure_yaml() {
        let (_kept, places) = files(CLOUDS, "clouds: {prod: {auth: {password: hidden}}}");
        let cloud = Cloud::find_in(Some("prod"), &nothing, &places).unwrap();
        assert_eq!(cloud.auth_url, "https://id.example:5000/v3");
        assert_eq!((cloud.region.as_deref(), cloud.interface.as_str()), (Some("North"), "internal"));
        assert_eq!(cloud.overrides, [("network".to_owned(), "https://net.example".to_owned())]);
        assert_eq!(cloud.ca_file.as_deref(), Some(Path::new("/etc/ssl/prod.pem")));
        let request = cloud.login.request();
        assert_eq!(request["auth"]["identity"]["password"]["user"]["password"], "hidden");
        assert_eq!(request["auth"]["identity"]["password"]["user"]["domain"]["name"], "Default");
        assert_eq!(request["auth"]["scope"]["project"], json!({ "name": "infra", "domain": { "id": "default" } }));
        assert!(!format!("{cloud:?}").contains("hidden"), "{cloud:?}");
    }

    #[test]
    fn an_application_credential_needs_no_project() {
        let (_kept, places) = files(CLOUDS, "clouds: {app: {auth: {application_credential_secret: hidden}}}");
        let cloud = Cloud::find_in(Some("app"), &nothing, &places).unwrap();
        let request = cloud.login.request();
        assert_eq!(request["auth"]["identity"]["application_credential"], json!({ "id": "abc", "secret": "hidden" }));
        assert!(request["auth"].get("scope").is_none());
    }

    #[test]
    fn missing_credentials_and_clouds_are_named() {
        let (_kept, places) = files(CLOUDS, "clouds: {}");
        let said = |name| Cloud::find_in(name, &nothing, &places).unwrap_err().to_string();
        assert_eq!(said(Some("prod")), "the credentials of prod lack `password`");
        assert_eq!(said(Some("app")), "the credentials of app lack `application_credential_secret`");
        assert!(said(Some("test")).ends_with("there are app, prod"), "{}", said(Some("test")));
        assert!(said(None).contains("(it has app, prod)"), "{}", said(None));
    }

    #[test]
    fn a_cloud_whose_certificate_is_not_verified_is_refused() {
        let refused = |setting: &str| {
            let (_kept, places) =
                files(&format!("clouds: {{a: {{{setting}, auth: {{auth_url: 'https://x'}}}}}}"), "clouds: {}");
            let said = Cloud::find_in(None, &nothing, &places).unwrap_err().to_string();
            said.contains("certificates are always verified")
        };
        for setting in
            ["verify: false", "verify: 'No'", "insecure: true", "insecure: 'True'", "insecure: 1", "insecure: on"]
        {
            assert!(refused(setting), "{setting}");
        }
        for setting in
            ["verify: true", "insecure: false", "insecure: 'False'", "insecure: 0", "insecure: off", "insecure: ''"]
        {
            assert!(!refused(setting), "{setting}");
        }
        let variable = |value: &'static str| {
            move |name: &str| (name == "OS_INSECURE" || name == "OS_AUTH_URL").then(|| String::from(value))
        };
        let said = |value: &'static str| Cloud::of_environment(&variable(value)).unwrap_err().to_string();
        assert!(said("1").contains("certificates are always verified"), "{}", said("1"));
        assert!(said("0").contains("lack"), "{}", said("0"));
    }

    #[test]
    fn variables_describe_a_cloud_and_os_cloud_names_one() {
        let given = |name: &str| {
            let value = match name {
                "OS_AUTH_URL" => "http://127.0.0.1:5000/v3",
                "OS_USERNAME" => "admin",
                "OS_PASSWORD" => "hidden",
                "OS_PROJECT_NAME" => "admin",
                "OS_USER_DOMAIN_NAME" | "OS_PROJECT_DOMAIN_NAME" => "Default",
                "OS_REGION_NAME" => "RegionOne",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let (_kept, places) = files(CLOUDS, "clouds: {prod: {auth: {password: hidden}}}");
        let cloud = Cloud::find_in(None, &given, &places).unwrap();
        assert_eq!((cloud.auth_url.as_str(), cloud.region.as_deref()), ("http://127.0.0.1:5000/v3", Some("RegionOne")));
        let named = |name: &str| if name == "OS_CLOUD" { Some(String::from("prod")) } else { given(name) };
        assert_eq!(Cloud::find_in(None, &named, &places).unwrap().name, "prod");
    }
}
