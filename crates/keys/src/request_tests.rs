use hyper::Request;

use super::*;

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn ask(method: &str, below: &str, query: &str, body: &str) -> Result<Call, Refusal> {
    let request = Request::builder().method(method).uri(format!("/v2/keys{below}?{query}"));
    let request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(()).unwrap();
    parse(&request.into_parts().0, below.as_bytes(), &Bytes::copy_from_slice(body.as_bytes()), now())
}

fn kind(method: &str, query: &str) -> Kind {
    match ask(method, "/a", query, "") {
        Ok(Call::Write(write)) => write.kind,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_kind_of_write_depends_on_method_and_conditions() {
    let expected = |value: &str, index| Expected { value: value.into(), index };
    assert_eq!(kind("PUT", "value=x"), Kind::Set);
    assert_eq!(kind("PUT", "prevExist=false&prevIndex=3"), Kind::Create);
    assert_eq!(kind("PUT", "prevExist=true"), Kind::Update);
    assert_eq!(kind("PUT", "prevExist=true&prevIndex=3"), Kind::CompareAndSwap(expected("", 3)));
    assert_eq!(kind("PUT", "prevValue=x"), Kind::CompareAndSwap(expected("x", 0)));
    assert_eq!(kind("PUT", "prevIndex=0"), Kind::Set);
    assert_eq!(kind("POST", "prevIndex=9"), Kind::Post);
    assert_eq!(kind("DELETE", "recursive=true&dir=true"), Kind::Delete { recursive: true });
    assert_eq!(kind("DELETE", "prevIndex=18446744073709551615"), Kind::CompareAndDelete(expected("", u64::MAX)));
}

#[test]
fn body_and_query_are_one_form_and_the_body_comes_first() {
    let Ok(Call::Write(write)) = ask("PUT", "/a/b", "value=query&dir=true", "value=body&ttl=5") else { panic!() };
    assert_eq!((write.value.as_slice(), write.dir), (&b"body"[..], true));
    assert_eq!(write.ttl, Some(Ttl { seconds: 5, expires: "2026-01-01T00:00:05Z".parse().unwrap() }));
    // The body of a DELETE is not read.
    let Ok(Call::Write(write)) = ask("DELETE", "/a", "", "prevIndex=1") else { panic!() };
    assert_eq!(write.kind, Kind::Delete { recursive: false });
}

#[test]
fn a_wait_is_a_get_without_quorum() {
    let wait = Wait { path: Path::parse(b"/a"), recursive: true, stream: false, since: 7 };
    assert_eq!(ask("GET", "/a", "wait=true&recursive=1&waitIndex=7", ""), Ok(Call::Wait(wait)));
    let get = Call::Get { path: Path::parse(b"/a"), recursive: false };
    assert_eq!(ask("GET", "/a", "wait=true&quorum=true", ""), Ok(get.clone()));
    assert_eq!(ask("HEAD", "/a", "sorted=true", ""), Ok(get));
}

#[test]
fn wrong_fields_are_refused_with_etcds_numbers() {
    for (method, query, code, cause) in [
        ("GET", "prevIndex=-1", 203, "invalid value for \"prevIndex\""),
        ("GET", "waitIndex=x&recursive=y", 203, "invalid value for \"waitIndex\""),
        ("GET", "recursive=perhaps", 209, "invalid value for \"recursive\""),
        ("GET", "sorted=2", 209, "invalid value for \"sorted\""),
        ("PUT", "wait=true", 209, "\"wait\" can only be used with GET requests"),
        ("PUT", "prevValue=", 201, "\"prevValue\" cannot be empty"),
        ("PUT", "ttl=-1", 202, "invalid value for \"ttl\""),
        ("PUT", "ttl=9000000001", 202, "\"ttl\" is more than 9000000000 seconds"),
        ("PUT", "ttl=18446744073709551615", 202, "\"ttl\" is more than 9000000000 seconds"),
        ("PUT", "prevExist=", 209, "invalid value for prevExist"),
        ("PUT", "refresh=true&value=x&ttl=1", 211, "A value was provided on a refresh"),
        ("PUT", "refresh=true&ttl=", 212, "No TTL value set"),
        ("PUT", "value=%zz", 210, "invalid URL escape \"%zz\""),
    ] {
        let refusal = ask(method, "/a", query, "").unwrap_err();
        assert_eq!((refusal.code as u16, String::from_utf8(refusal.cause).unwrap().as_str()), (code, cause), "{query}");
        assert_eq!((refusal.status.as_u16(), refusal.index), (400, 0));
    }
}

#[test]
fn a_key_is_bounded() {
    assert!(ask("PUT", &"/a".repeat(MAX_DEPTH), "", "").is_ok());
    assert!(ask("POST", &"/a".repeat(MAX_DEPTH), "", "").is_err());
    assert_eq!(ask("GET", &"/a".repeat(MAX_DEPTH + 1), "", "").unwrap_err().status, StatusCode::URI_TOO_LONG);
    assert!(ask("GET", &format!("/{}", "a".repeat(MAX_LENGTH)), "", "").is_err());
}

#[test]
fn a_body_that_does_not_say_what_it_is_is_not_read() {
    let request = Request::builder().method("PUT").uri("/v2/keys/a").body(()).unwrap();
    let Ok(Call::Write(write)) = parse(&request.into_parts().0, b"/a", &Bytes::from_static(b"value=x"), now()) else {
        panic!()
    };
    assert_eq!(write.value, b"");
}

/// Whatever comes in is refused or understood, within bounds.
#[test]
fn fuzz_requests() {
    let samples = [
        "GET /a?wait=true&recursive=true&waitIndex=12",
        "PUT /a/b?value=x&ttl=5&prevExist=true",
        "POST /%2f..//a?dir=1",
    ];
    let samples: Vec<Vec<u8>> = samples.iter().map(|sample| sample.as_bytes().to_vec()).collect();
    quorate_fuzz::campaign(&samples, |input| {
        let text = String::from_utf8_lossy(input);
        let (method, rest) = text.split_once(' ').unwrap_or((&text, ""));
        let (below, query) = rest.split_once('?').unwrap_or((rest, ""));
        let Ok(request) = Request::builder().method(method).uri("/v2/keys").body(()) else { return };
        let body = Bytes::copy_from_slice(query.as_bytes());
        if let Ok(Call::Write(write)) = parse(&request.into_parts().0, below.as_bytes(), &body, now()) {
            assert!(write.path.depth() <= MAX_DEPTH && write.path.length() <= MAX_LENGTH);
        }
    });
}
