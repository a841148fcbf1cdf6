//! Calls to a server with scripted answers.

use std::collections::VecDeque;

use super::super::test_server::serve;
use super::*;

fn settings(endpoint: &str) -> AwsSettings {
    let settings = json!({
        "region": "eu-west-2", "endpoint": endpoint, "instance_types": ["m7i.large"], "image": { "id": "ami-1" },
    });
    serde_json::from_value(settings).unwrap()
}

fn session(endpoint: &str) -> Session {
    let variable = |name: &str| match name {
        "AWS_ACCESS_KEY_ID" => Some(String::from("AK")),
        "AWS_SECRET_ACCESS_KEY" => Some(String::from("s3cret")),
        _ => None,
    };
    let pause = Duration::from_millis(1);
    Session::new(&settings(endpoint), Rc::new(variable), Retry { attempts: 4, first: pause, longest: pause }).unwrap()
}

fn error(status: u16, code: &str) -> Option<(u16, String)> {
    let text = format!("<Response><Errors><Error><Code>{code}</Code><Message>no</Message></Error></Errors></Response>");
    Some((status, text))
}

fn page(items: &str, next: &str) -> Option<(u16, String)> {
    Some((200, format!("<R><set>{items}</set><nextToken>{next}</nextToken></R>")))
}

#[tokio::test]
async fn transient_errors_are_retried_with_the_same_token_and_others_are_not() {
    let mut then =
        VecDeque::from([error(503, "RequestLimitExceeded"), None, error(500, "InternalError"), page("", "")]);
    let (url, seen) = serve(move |_| then.pop_front().expect("no more calls")).await;
    let session = session(&url);
    session.call(&Call::new("make one", "CreateThing").with("A", "b c/d").once()).await.unwrap();
    let bodies: Vec<String> = seen.lock().unwrap().iter().map(|asked| asked.body.clone()).collect();
    assert_eq!(bodies.len(), 4);
    assert!(bodies.iter().all(|body| *body == bodies[0]), "{bodies:?}");
    assert!(bodies[0].starts_with("Action=CreateThing&Version=2016-11-15&A=b%20c%2Fd&ClientToken="), "{}", bodies[0]);
    let shown = seen.lock().unwrap()[0].header("authorization");
    assert!(shown.contains("Credential=AK/") && shown.contains("/eu-west-2/ec2/aws4_request"), "{shown}");
    assert!(!shown.contains("s3cret"));

    for (status, code) in
        [(400, "InvalidParameterValue"), (403, "UnauthorizedOperation"), (500, "InsufficientInstanceCapacity")]
    {
        let (url, seen) = serve(move |_| error(status, code)).await;
        let refused = self::session(&url).call(&Call::new("make one", "CreateThing")).await.unwrap_err();
        assert_eq!(refused.to_string(), format!("AWS refused to make one ({code}): no"));
        assert_eq!(seen.lock().unwrap().len(), 1, "{code}");
    }
    let (url, seen) = serve(|_| error(503, "Unavailable")).await;
    let failed = self::session(&url).call(&Call::new("make one", "CreateThing")).await.unwrap_err();
    assert_eq!(
        (failed.to_string().as_str(), seen.lock().unwrap().len()),
        ("AWS failed to make one (Unavailable): no", 4)
    );
}

#[tokio::test]
async fn lists_come_in_pages() {
    let (url, seen) = serve(|asked| {
        let is_next = asked.body.ends_with("&NextToken=a%2Fb");
        if is_next { page("<item><id>2</id></item>", "") } else { page("<item><id>1</id></item>", "a/b") }
    })
    .await;
    let call = Call::new("list", "DescribeThings").filter("tag:x", ["y", "z"]).filter("state", ["on"]);
    let found = session(&url).list(call, "set").await.unwrap();
    let ids: Vec<String> = found.iter().filter_map(|item| item.text("id")).collect();
    assert_eq!((ids, seen.lock().unwrap().len()), (vec![String::from("1"), String::from("2")], 2));
    let body = seen.lock().unwrap()[0].body.clone();
    let expected =
        "&Filter.1.Name=tag%3Ax&Filter.1.Value.1=y&Filter.1.Value.2=z&Filter.2.Name=state&Filter.2.Value.1=on";
    assert!(body.contains(expected), "{body}");
}

#[tokio::test]
async fn credentials_that_expired_are_read_again_once() {
    let (url, seen) = serve(|_| error(400, "ExpiredToken")).await;
    let refused = session(&url).call(&Call::new("look", "DescribeThings")).await.unwrap_err();
    assert_eq!(
        (refused.to_string().as_str(), seen.lock().unwrap().len()),
        ("AWS refused to look (ExpiredToken): no", 2)
    );
}

#[tokio::test]
async fn unreadable_answers_and_an_unreachable_endpoint_are_reported() {
    let (url, _) = serve(|_| Some((200, String::from("<html>")))).await;
    let said = session(&url).call(&Call::new("look", "DescribeThings")).await.unwrap_err().to_string();
    assert!(said.starts_with("unexpected answer from AWS (look): "), "{said}");
    let (url, _) = serve(|_| Some((404, String::from("<html>\n  <p>not here")))).await;
    let said = session(&url).call(&Call::new("look", "DescribeThings")).await.unwrap_err().to_string();
    assert_eq!(said, "AWS refused to look (404): <html> <p>not here");
    let said = session("http://127.0.0.1:1").call(&Call::new("look", "DescribeThings")).await.unwrap_err().to_string();
    assert!(said.starts_with("AWS cannot be reached at http://127.0.0.1:1/ (look): "), "{said}");
}

#[tokio::test]
async fn an_answer_that_does_not_end_is_refused_once() {
    let (url, seen) = serve(|_| Some((200, "x".repeat(LONGEST_ANSWER + 1)))).await;
    let said = session(&url).call(&Call::new("look", "DescribeThings")).await.unwrap_err().to_string();
    assert_eq!(said, "unexpected answer from AWS (look): the answer is longer than 32 MiB");
    assert_eq!(seen.lock().unwrap().len(), 1);
}

#[test]
fn endpoints_without_tls_are_next_to_this_process() {
    let endpoint = |url: &str, variable: Option<&str>| {
        let mut settings = settings(url);
        settings.endpoint = settings.endpoint.filter(|url| !url.is_empty());
        let variable = variable.map(str::to_owned);
        Place::find(&settings, &|name| variable.clone().filter(|_| name == "AWS_ENDPOINT_URL"))
    };
    for fine in [
        "https://vpce-1.example.com/",
        "http://127.0.0.1:5000",
        "http://localhost:4566",
        "http://169.254.9.9",
        "http://[fe80::1]",
    ] {
        assert_eq!(endpoint(fine, None).unwrap().url("ec2"), format!("{}/", fine.trim_end_matches('/')));
    }
    for refused in ["http://10.0.0.1:5000", "http://aws.example.com", "http://127.0.0.1@example.com"] {
        let said = endpoint(refused, None).unwrap_err().to_string();
        let expected = format!(
            "`provider.aws.endpoint` is {refused}, which cannot be used: without TLS, credentials are only sent to loopback and \
             link-local addresses; use https"
        );
        assert_eq!(said, expected);
    }
    let said = endpoint("", Some("http://aws.example.com")).unwrap_err().to_string();
    assert!(said.starts_with("`AWS_ENDPOINT_URL` is http://aws.example.com, "), "{said}");
    assert!(endpoint("ftp://127.0.0.1", None).unwrap_err().to_string().ends_with("it must begin with https://"));
    assert!(endpoint("aws.example.com", None).is_err());
}

#[test]
fn regions_have_endpoints() {
    let place = |region: &str, endpoint: Option<&str>| Place {
        region: region.to_owned(),
        endpoint: endpoint.map(str::to_owned),
    };
    assert_eq!(place("eu-west-2", None).url("ec2"), "https://ec2.eu-west-2.amazonaws.com/");
    assert_eq!(place("cn-north-1", None).url("ssm"), "https://ssm.cn-north-1.amazonaws.com.cn/");
    assert_eq!(place("x", Some("http://h:1")).url("sts"), "http://h:1/");
    let none: AwsSettings = serde_json::from_value(json!({ "instance_types": [], "image": {} })).unwrap();
    assert!(matches!(Place::find(&none, &|_| None), Err(AwsError::NoRegion)));
    let found = Place::find(&none, &|name| (name == "AWS_DEFAULT_REGION").then(|| String::from("r-1"))).unwrap();
    assert_eq!(found.region, "r-1");
}
