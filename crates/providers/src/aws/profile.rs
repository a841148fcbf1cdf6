//! Files of AWS tools: `~/.aws/config` and `~/.aws/credentials`. Reads only what is needed for credentials and the region.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::error::AwsError;

/// A variable of the environment.
pub(super) type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Settings of a section, by name.
pub(super) type Section = BTreeMap<String, String>;

/// All profiles, and sessions of SSO.
#[derive(Clone, Debug, Default)]
pub(super) struct Profiles {
    profiles: BTreeMap<String, Section>,
    sessions: BTreeMap<String, Section>,
    /// Settings of profiles that the file of credentials has.
    of_credentials: BTreeSet<(String, String)>,
    /// Where they were looked for.
    pub(super) looked: Vec<PathBuf>,
}

impl Profiles {
    pub(super) fn find(variable: Variable<'_>) -> Result<Self, AwsError> {
        let home = variable("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
        let place = |name: &str, usual: &str| variable(name).map_or_else(|| home.join(usual), PathBuf::from);
        let config = place("AWS_CONFIG_FILE", ".aws/config");
        let credentials = place("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials");
        let mut all = Profiles { looked: vec![config.clone(), credentials.clone()], ..Profiles::default() };
        for (title, section) in sections(&read(&config)?) {
            match title.split_once(char::is_whitespace).map(|(kind, name)| (kind, name.trim())) {
                None if title == "default" => all.add(&title, section),
                Some(("profile", name)) => all.add(name, section),
                Some(("sso-session", name)) => drop(all.sessions.insert(name.to_owned(), section)),
                _ => {}
            }
        }
        // What is there counts more.
        for (title, section) in sections(&read(&credentials)?) {
            all.of_credentials.extend(section.keys().map(|name| (title.clone(), name.clone())));
            all.add(&title, section);
        }
        Ok(all)
    }

    fn add(&mut self, name: &str, section: Section) {
        self.profiles.entry(name.to_owned()).or_default().extend(section);
    }

    pub(super) fn get(&self, name: &str) -> Option<&Section> {
        self.profiles.get(name)
    }

    /// The file that has a setting of a profile.
    pub(super) fn file_of(&self, profile: &str, setting: &str) -> Option<&PathBuf> {
        let is_there = self.of_credentials.contains(&(profile.to_owned(), setting.to_owned()));
        if is_there { self.looked.last() } else { self.looked.first() }
    }

    pub(super) fn session(&self, name: &str) -> Option<&Section> {
        self.sessions.get(name)
    }

    pub(super) fn missing(&self, name: &str) -> AwsError {
        let (looked, names) = (self.looked.clone(), self.profiles.keys().cloned().collect());
        AwsError::NoProfile { name: name.to_owned(), looked, names }
    }
}

/// A file that does not exist is empty.
fn read(path: &Path) -> Result<String, AwsError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(AwsError::Config { path: path.to_owned(), why: error.to_string() }),
    }
}

/// Titles with their settings. Lines that begin with a space belong to the setting before them, and none of those matters here.
fn sections(text: &str) -> Vec<(String, Section)> {
    let mut found: Vec<(String, Section)> = Vec::new();
    for line in text.lines() {
        let is_nested = line.starts_with(char::is_whitespace);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(title) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(title, _)| title) {
            found.push((title.trim().to_owned(), Section::new()));
        } else if let (Some((_, section)), Some((name, value)), false) =
            (found.last_mut(), line.split_once('='), is_nested)
        {
            section.insert(name.trim().to_lowercase(), value.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_files_make_one_list_of_profiles() {
        let directory = tempfile::tempdir().unwrap();
        let aws = directory.path().join(".aws");
        fs::create_dir(&aws).unwrap();
        let config = "[default]\nregion = eu-west-2\n# a comment\n[profile prod]\nsso_session = corp\ns3 =\n  region = x\n\
                      [sso-session corp]\nsso_start_url = https://corp.example\n[services y]\n";
        fs::write(aws.join("config"), config).unwrap();
        fs::write(aws.join("credentials"), "[default]\nAWS_Access_Key_Id=AK\n; another\n[dev]\n").unwrap();
        let home = directory.path().to_string_lossy().into_owned();
        let all = Profiles::find(&|name| (name == "HOME").then(|| home.clone())).unwrap();
        let expected = [("aws_access_key_id", "AK"), ("region", "eu-west-2")];
        let default: Vec<(&str, &str)> =
            all.get("default").unwrap().iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(default, expected);
        assert_eq!(all.get("prod").unwrap()["sso_session"], "corp");
        let file = |setting: &str| all.file_of("default", setting).cloned();
        assert_eq!(file("region"), Some(aws.join("config")));
        assert_eq!(file("aws_access_key_id"), Some(aws.join("credentials")));
        assert!(!all.get("prod").unwrap().contains_key("region"), "what is nested is another setting");
        assert_eq!(all.session("corp").unwrap()["sso_start_url"], "https://corp.example");
        let said = all.missing("x").to_string();
        assert!(said.contains("there is no profile `x`") && said.contains("default, dev, prod"), "{said}");
    }

    #[test]
    fn other_files_are_named_by_the_environment() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mine");
        fs::write(&path, "[profile a]\nregion=r\n").unwrap();
        let named = path.to_string_lossy().into_owned();
        let all = Profiles::find(&|name| (name == "AWS_CONFIG_FILE").then(|| named.clone())).unwrap();
        assert_eq!(all.get("a").unwrap()["region"], "r");
    }
}
