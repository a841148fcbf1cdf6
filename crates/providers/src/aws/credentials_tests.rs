//! Each source of credentials, with files and servers like those of AWS' tools.

use std::collections::BTreeMap;
use std::fs;

use serde_json::json;

use super::super::test_server::{Asked, serve};
use super::*;

/// A home with these files, and variables.
struct Home {
    directory: tempfile::TempDir,
    variables: BTreeMap<String, String>,
}

impl Home {
    fn new(config: &str, variables: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join(".aws/sso/cache")).unwrap();
        fs::write(directory.path().join(".aws/config"), config).unwrap();
        let mut variables: BTreeMap<String, String> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        variables.insert(String::from("HOME"), directory.path().display().to_string());
        Home { directory, variables }
    }

    fn set(&mut self, name: &str, value: &str) {
        self.variables.insert(name.to_owned(), value.to_owned());
    }

    fn put(&self, path: &str, text: &str) -> String {
        let path = self.directory.path().join(path);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    async fn find(&self, profile: Option<&str>) -> Result<Credentials, AwsError> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let variable = |name: &str| self.variables.get(name).cloned();
        let settings = json!({ "region": "eu-west-2", "instance_types": [], "image": {} });
        let place = Place::find(&serde_json::from_value(settings).unwrap(), &variable).unwrap();
        let client = Client::new();
        Chain { client: &client, variable: &variable, place: &place, profile }.credentials().await
    }

    async fn key(&self, profile: Option<&str>) -> String {
        self.find(profile).await.map_or_else(|error| error.to_string(), |found| found.access_key)
    }
}

/// What STS answers to a role.
fn role(result: &str, key: &str) -> Option<(u16, String)> {
    let credentials = format!(
        "<Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>\
         <Expiration>2030-01-01T00:00:00Z</Expiration></Credentials>"
    );
    Some((200, format!("<R><{result}>{credentials}</{result}></R>")))
}

#[tokio::test]
async fn variables_come_first_unless_the_spec_names_a_profile() {
    let config = "[default]\naws_access_key_id=D\naws_secret_access_key=s\n[profile p]\naws_access_key_id=P\naws_secret_access_key=s\n";
    let mut home =
        Home::new(config, &[("AWS_ACCESS_KEY_ID", "V"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_SESSION_TOKEN", "t")]);
    let found = home.find(None).await.unwrap();
    assert_eq!((found.access_key.as_str(), found.session_token.unwrap().expose()), ("V", "t"));
    assert_eq!(home.key(Some("p")).await, "P");
    assert!(home.key(Some("x")).await.contains("there is no profile `x`"));
    home.variables.remove("AWS_ACCESS_KEY_ID");
    assert_eq!(home.key(None).await, "D");
    home.set("AWS_PROFILE", "p");
    assert_eq!(home.key(None).await, "P");
}

#[tokio::test]
async fn a_process_prints_credentials() {
    let config = "[default]\ncredential_process = printf '{\"Version\":1,\"AccessKeyId\":\"C\",\"SecretAccessKey\":\"s\",\"Expiration\":\"2030-01-01T00:00:00Z\"}'\n\
                  [profile bad]\ncredential_process = sh -c 'echo locked >&2; exit 3'\n[profile empty]\nregion = x\n";
    let home = Home::new(config, &[]);
    let found = home.find(None).await.unwrap();
    assert_eq!((found.access_key.as_str(), found.expires), ("C", "2030-01-01T00:00:00Z".parse().ok()));
    let said = home.key(Some("bad")).await;
    assert!(said.contains("the profile `bad`") && said.contains("locked"), "{said}");
    assert!(home.key(Some("empty")).await.contains("neither keys, nor a role"));
}

#[tokio::test]
async fn the_arguments_of_a_process_are_not_shown() {
    let commands = [
        ("fails", "/bin/sh -c 'echo locked >&2; exit 3' s3cret", "ended with exit status: 3: locked"),
        ("garbage", "TOKEN=s3cret echo s3cret", "printed no JSON"),
        ("empty", "echo '{}' # s3cret", "printed no keys"),
        ("broken", "echo 's3cret", "ended with"),
    ];
    let config: Vec<String> =
        commands.iter().map(|(name, command, _)| format!("[profile {name}]\ncredential_process={command}\n")).collect();
    let home = Home::new(&config.concat(), &[]);
    let file = home.directory.path().join(".aws/config").display().to_string();
    for (name, _, why) in commands {
        let said = home.key(Some(name)).await;
        assert!(said.contains(&format!("the profile `{name}` in {file}")) && said.contains(why), "{said}");
        assert!(!said.contains("s3cret"), "{said}");
    }
    assert!(home.key(Some("fails")).await.contains("its `credential_process` (`/bin/sh`) "));
}

#[test]
fn a_program_is_the_first_word_that_is_no_variable() {
    let all = [
        ("vault read", "vault"),
        ("  /opt/tool", "/opt/tool"),
        ("\"/opt/my tool\" --key s3cret", "/opt/my tool"),
        ("A=s3cret B='s3 cret' tool x", "tool"),
        ("A=\"s3 cret\" tool", "tool"),
        ("A=s3cret", ""),
        ("", ""),
    ];
    for (command, program) in all {
        assert_eq!(program_of(command), program, "{command}");
    }
}

#[tokio::test]
async fn roles_are_taken_on_from_other_profiles() {
    let (url, seen) = serve(|asked: &Asked| {
        let is_first = asked.body.contains("role%2Ffirst");
        role("AssumeRoleResult", if is_first { "FIRST" } else { "SECOND" })
    })
    .await;
    let config = "[profile base]\naws_access_key_id=B\naws_secret_access_key=s\n\
                  [profile first]\nrole_arn=arn:aws:iam::1:role/first\nsource_profile=base\nexternal_id=ext\n\
                  [profile second]\nrole_arn=arn:aws:iam::1:role/second\nsource_profile=first\n\
                  [profile loop]\nrole_arn=a\nsource_profile=pool\n[profile pool]\nrole_arn=a\nsource_profile=loop\n\
                  [profile code]\nrole_arn=a\nsource_profile=base\nmfa_serial=m\n";
    let home = Home::new(config, &[("AWS_ENDPOINT_URL", &url)]);
    assert_eq!(home.key(Some("second")).await, "SECOND");
    assert!(home.key(Some("loop")).await.contains("more than 5 roles lead to it"));
    assert!(home.key(Some("code")).await.contains("mfa_serial"));
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2);
    assert!(
        seen[0].body.contains("Action=AssumeRole&") && seen[0].body.contains("&ExternalId=ext"),
        "{}",
        seen[0].body
    );
    assert!(
        seen[0].header("authorization").contains("Credential=B/") && seen[0].header("authorization").contains("/sts/")
    );
    assert!(seen[1].header("authorization").contains("Credential=FIRST/"));
    assert_eq!(seen[1].header("x-amz-security-token"), "t");
}

#[tokio::test]
async fn a_token_of_another_identity_becomes_a_role() {
    let (url, seen) = serve(|_| role("AssumeRoleWithWebIdentityResult", "W")).await;
    let mut home = Home::new("", &[("AWS_ENDPOINT_URL", &url), ("AWS_ROLE_ARN", "arn:r")]);
    let file = home.put("token", "the-token\n");
    home.set("AWS_WEB_IDENTITY_TOKEN_FILE", &file);
    assert_eq!(home.key(None).await, "W");
    let body = seen.lock().unwrap()[0].body.clone();
    assert!(body.contains("&WebIdentityToken=the-token") && body.contains("&RoleArn=arn%3Ar&"), "{body}");
    assert_eq!(seen.lock().unwrap()[0].header("authorization"), "", "the token itself proves it");
    let (url, _) =
        serve(|_| Some((400, String::from("<E><Error><Code>Expired</Code><Message>too old</Message></Error></E>"))))
            .await;
    home.set("AWS_ENDPOINT_URL", &url);
    assert_eq!(home.key(None).await, "the credentials of the role arn:r cannot be used: too old (Expired)");
}

#[tokio::test]
async fn a_login_by_sso_is_used_while_it_lasts() {
    let (url, seen) = serve(|_| {
        let keys = json!({ "accessKeyId": "S", "secretAccessKey": "s", "sessionToken": "t", "expiration": 1_900_000_000_000_i64 });
        Some((200, json!({ "roleCredentials": keys }).to_string()))
    })
    .await;
    let config = "[default]\nsso_session=corp\nsso_account_id=123456789012\nsso_role_name=admin\n\
                  [sso-session corp]\nsso_region=eu-west-1\nsso_start_url=https://corp.example\n";
    let home = Home::new(config, &[("AWS_ENDPOINT_URL_SSO", &url)]);
    assert!(home.key(None).await.contains("run `aws sso login --profile default`"));
    // SHA-1 of `corp`.
    let cache = ".aws/sso/cache/ee0bfd2552fbd840c02cc48b6e823320543c450f.json";
    let kept = |expires: &str| json!({ "accessToken": "bearer", "expiresAt": expires }).to_string();
    home.put(cache, &kept("2020-01-01T00:00:00Z"));
    assert!(home.key(None).await.contains("nobody is logged in"));
    home.put(cache, &kept("2030-01-01T00:00:00Z"));
    let found = home.find(None).await.unwrap();
    assert_eq!((found.access_key.as_str(), found.expires), ("S", Timestamp::from_millisecond(1_900_000_000_000).ok()));
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0].what, "GET /federation/credentials?account_id=123456789012&role_name=admin");
    assert_eq!(seen[0].header("x-amz-sso_bearer_token"), "bearer");
}

#[tokio::test]
async fn an_instance_has_a_role() {
    let (url, seen) = serve(|asked: &Asked| {
        let has_token = asked.header("x-aws-ec2-metadata-token") == "tok";
        Some(match asked.what.as_str() {
            "PUT /latest/api/token" => (200, String::from("tok")),
            "GET /latest/meta-data/iam/security-credentials/" if has_token => (200, String::from("etcd")),
            "GET /latest/meta-data/iam/security-credentials/etcd" if has_token => {
                (200, json!({ "AccessKeyId": "I", "SecretAccessKey": "s", "Token": "t", "Expiration": "2030-01-01T00:00:00Z" }).to_string())
            }
            _ => (401, String::new()),
        })
    })
    .await;
    let mut home = Home::new("[default]\nregion=eu-west-2\n", &[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &url)]);
    let found = home.find(None).await.unwrap();
    assert_eq!((found.access_key.as_str(), found.session_token.unwrap().expose()), ("I", "t"));
    assert_eq!(seen.lock().unwrap().len(), 3);
    home.set("AWS_EC2_METADATA_DISABLED", "true");
    let said = home.key(None).await;
    assert!(said.starts_with("no credentials for AWS were found") && said.contains("aws sso login"), "{said}");
}

#[tokio::test]
async fn a_container_has_a_role() {
    let (url, seen) =
        serve(|_| Some((200, json!({ "AccessKeyId": "K", "SecretAccessKey": "s", "Token": "t" }).to_string()))).await;
    let mut home = Home::new("", &[("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url)]);
    let file = home.put("token", "Bearer x\n");
    home.set("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &file);
    assert_eq!(home.key(None).await, "K");
    assert_eq!(seen.lock().unwrap()[0].header("authorization"), "Bearer x");
}

#[tokio::test]
async fn a_container_asks_only_next_to_itself_or_over_tls() {
    let url = |name: &str, value: &str| {
        let home = Home::new("", &[(name, value)]);
        let variable = |name: &str| home.variables.get(name).cloned();
        let settings = json!({ "region": "eu-west-2", "instance_types": [], "image": {} });
        let place = Place::find(&serde_json::from_value(settings).unwrap(), &variable).unwrap();
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::new();
        let chain = Chain { client: &client, variable: &variable, place: &place, profile: None };
        chain.container_url().map(|url| url.expect("a URL").to_string())
    };
    let fine = [
        "https://credentials.example.com/x",
        "http://127.0.0.1:51679/v2",
        "http://localhost/x",
        "http://[::1]/x",
        "http://169.254.170.2/v2",
        "http://169.254.170.23/v1/credentials",
        "http://[fd00:ec2::23]/v1/credentials",
    ];
    for fine in fine {
        assert_eq!(url(FULL, fine).as_deref(), Ok(fine));
    }
    let refused = [
        "http://credentials.example.com/x",
        "http://169.254.169.254/x",
        "http://127.0.0.1@example.com/x",
        "http://10.0.0.1/x",
        "ftp://127.0.0.1/x",
    ];
    for refused in refused {
        let why = url(FULL, refused).unwrap_err();
        assert!(why.starts_with("AWS_CONTAINER_CREDENTIALS_FULL_URI names ") && why.contains("https"), "{why}");
    }
    assert_eq!(url(RELATIVE, "/v2/x").as_deref(), Ok("http://169.254.170.2/v2/x"));
    assert!(url(RELATIVE, "@example.com/x").unwrap_err().contains("does not begin with a slash"));
    // Nothing is sent there.
    let home = Home::new("", &[(FULL, "http://credentials.example.com/x")]);
    let said = home.key(None).await;
    assert!(said.starts_with("the credentials of the container cannot be used: "), "{said}");
}

#[tokio::test]
async fn an_answer_that_does_not_end_is_refused() {
    let (url, _) = serve(|_| Some((200, "x".repeat(LONGEST_ANSWER + 1)))).await;
    let mut home = Home::new("", &[("AWS_ENDPOINT_URL", &url), ("AWS_ROLE_ARN", "arn:r")]);
    let file = home.put("token", "the-token\n");
    home.set("AWS_WEB_IDENTITY_TOKEN_FILE", &file);
    let said = home.key(None).await;
    assert_eq!(said, "the credentials of the role arn:r cannot be used: the answer is longer than 1 MiB");
}

#[tokio::test]
async fn a_login_is_not_sent_without_tls() {
    let config = "[default]\nsso_session=corp\nsso_account_id=123456789012\nsso_role_name=admin\n\
                  [sso-session corp]\nsso_region=eu-west-1\nsso_start_url=https://corp.example\n";
    let home = Home::new(config, &[(SSO_ENDPOINT, "http://sso.example.com")]);
    let kept = json!({ "accessToken": "bearer", "expiresAt": "2030-01-01T00:00:00Z" }).to_string();
    home.put(".aws/sso/cache/ee0bfd2552fbd840c02cc48b6e823320543c450f.json", &kept);
    let said = home.key(None).await;
    assert!(said.starts_with("`AWS_ENDPOINT_URL_SSO` is http://sso.example.com, which cannot be used: "), "{said}");
}
