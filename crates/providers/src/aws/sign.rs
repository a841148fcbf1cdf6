//! Signatures of requests, version 4. Some sixty lines, because the crates for it bring more than fifty others along.

use jiff::Timestamp;
use quorate_core::Secret;
use quorate_core::text::hex;
use ring::{digest, hmac};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// Whom AWS knows.
#[derive(Clone, Debug)]
pub(super) struct Credentials {
    pub(super) access_key: String,
    pub(super) secret_key: Secret,
    pub(super) session_token: Option<Secret>,
    /// None: never.
    pub(super) expires: Option<Timestamp>,
}

/// What is signed. The query must be sorted and escaped already.
pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) query: &'a str,
    /// Names in lower case, sorted, without those that the signature adds.
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: &'a [u8],
}

/// All headers of the request: those given, and those that prove who it comes from.
pub(super) fn signed(
    request: Request<'_>,
    credentials: &Credentials,
    (region, service): (&str, &str),
    now: Timestamp,
) -> Vec<(&'static str, String)> {
    let time = now.strftime("%Y%m%dT%H%M%SZ").to_string();
    let day = &time[..8];
    let mut headers = request.headers;
    headers.push(("x-amz-date", time.clone()));
    if let Some(token) = &credentials.session_token {
        headers.push(("x-amz-security-token", token.expose().to_owned()));
    }
    headers.sort_by_key(|(name, _)| *name);
    let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
    let whole = [request.method, request.path, request.query, &lines, &names, &sha256(request.body)]
        .map(str::to_owned)
        .join("\n");
    let scope = format!("{day}/{region}/{service}/aws4_request");
    let to_sign = format!("{ALGORITHM}\n{time}\n{scope}\n{}", sha256(whole.as_bytes()));
    let secret = format!("AWS4{}", credentials.secret_key.expose());
    let parts = [day, region, service, "aws4_request", &to_sign];
    let signature = parts.into_iter().fold(secret.into_bytes(), |key, part| {
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), part.as_bytes()).as_ref().to_vec()
    });
    let (key, signature) = (&credentials.access_key, hex(&signature));
    let shown = format!("{ALGORITHM} Credential={key}/{scope}, SignedHeaders={names}, Signature={signature}");
    headers.push(("authorization", shown));
    headers
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(session_token: Option<Secret>) -> Credentials {
        Credentials {
            access_key: String::from("AKIDEXAMPLE"),
            secret_key: Secret::new("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
            session_token,
            expires: None,
        }
    }

    /// The example of AWS' own documentation.
    #[test]
    fn a_known_request_gets_its_known_signature() {
        let request = Request {
            method: "GET",
            path: "/",
            query: "Action=ListUsers&Version=2010-05-08",
            headers: vec![
                ("content-type", String::from("application/x-www-form-urlencoded; charset=utf-8")),
                ("host", String::from("iam.amazonaws.com")),
            ],
            body: b"",
        };
        let now = "2015-08-30T12:36:00Z".parse().unwrap();
        let headers = signed(request, &credentials(None), ("us-east-1", "iam"), now);
        let expected = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/iam/aws4_request, \
                        SignedHeaders=content-type;host;x-amz-date, \
                        Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7";
        assert_eq!(headers.last().unwrap(), &("authorization", expected.to_owned()));
    }

    #[test]
    fn a_session_token_is_signed_too() {
        let request = Request { method: "POST", path: "/", query: "", headers: Vec::new(), body: b"Action=X" };
        let now = "2015-08-30T12:36:00Z".parse().unwrap();
        let headers = signed(request, &credentials(Some(Secret::new("token"))), ("eu-west-2", "ec2"), now);
        assert!(headers.contains(&("x-amz-security-token", String::from("token"))));
        let (_, shown) = headers.last().unwrap();
        assert!(shown.contains("SignedHeaders=x-amz-date;x-amz-security-token,"), "{shown}");
    }
}
