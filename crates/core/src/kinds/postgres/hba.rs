//! Access rules in the spec. Patroni writes them into `pg_hba.conf` as they are. If PostgreSQL cannot read one, a reload changes nothing
//! and only the log says so, and the next start of every member fails. So quorate parses them like PostgreSQL, and refuses rules that allow
//! clients without TLS or without authentication.

use std::iter::Peekable;
use std::net::IpAddr;
use std::slice::Iter;
use std::str::Chars;

use super::parameters::Wrong;

/// The format of a rule.
const EXAMPLE: &str = "TYPE DATABASE USER ADDRESS METHOD, such as `hostssl shop report 192.0.2.0/24 scram-sha-256`";
const TYPES: [&str; 6] = ["local", "host", "hostssl", "hostnossl", "hostgssenc", "hostnogssenc"];
/// PostgreSQL 16 and later read other files at such a line.
const INCLUDES: [&str; 3] = ["include", "include_if_exists", "include_dir"];
/// Addresses that are words.
const ADDRESSES: [&str; 3] = ["all", "samehost", "samenet"];
/// Methods of PostgreSQL on Linux, and the first version that has them.
const METHODS: [(&str, u16); 13] = [
    ("cert", 13),
    ("gss", 13),
    ("ident", 13),
    ("ldap", 13),
    ("md5", 13),
    ("oauth", 18),
    ("pam", 13),
    ("password", 13),
    ("peer", 13),
    ("radius", 13),
    ("reject", 13),
    ("scram-sha-256", 13),
    ("trust", 13),
];
/// Those of other systems.
const METHODS_ELSEWHERE: [&str; 2] = ["bsd", "sspi"];
/// Options, and the methods that take them. None: all.
const OPTIONS: [(&str, &[&str]); 27] = [
    ("clientcert", &[]),
    ("clientname", &[]),
    ("delegate_ident_mapping", &["oauth"]),
    ("include_realm", &["gss"]),
    ("issuer", &["oauth"]),
    ("krb_realm", &["gss"]),
    ("ldapbasedn", &["ldap"]),
    ("ldapbinddn", &["ldap"]),
    ("ldapbindpasswd", &["ldap"]),
    ("ldapport", &["ldap"]),
    ("ldapprefix", &["ldap"]),
    ("ldapscheme", &["ldap"]),
    ("ldapsearchattribute", &["ldap"]),
    ("ldapsearchfilter", &["ldap"]),
    ("ldapserver", &["ldap"]),
    ("ldapsuffix", &["ldap"]),
    ("ldaptls", &["ldap"]),
    ("ldapurl", &["ldap"]),
    ("map", &["cert", "gss", "ident", "oauth", "peer"]),
    ("pam_use_hostname", &["pam"]),
    ("pamservice", &["pam"]),
    ("radiusidentifiers", &["radius"]),
    ("radiusports", &["radius"]),
    ("radiussecrets", &["radius"]),
    ("radiusservers", &["radius"]),
    ("scope", &["oauth"]),
    ("validator", &["oauth"]),
];
/// Of each group a rule with this method needs one.
const NEEDED: [(&str, &[&str]); 5] = [
    ("ldap", &["ldapbasedn", "ldapprefix", "ldapsuffix", "ldapurl"]),
    ("oauth", &["issuer"]),
    ("oauth", &["scope"]),
    ("radius", &["radiusservers"]),
    ("radius", &["radiussecrets"]),
];
/// From this version on a database or user that begins with `/` is a regular expression.
const EXPRESSIONS: u16 = 16;
/// From this version on certificates can be compared by their whole name.
const CLIENT_NAMES: u16 = 14;

/// A word of a rule. In quotes it is always a name.
struct Token {
    text: String,
    quoted: bool,
}

/// The words of a field, which commas separate.
type Field = Vec<Token>;

fn wrong<T>(message: impl Into<String>, hint: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong { message: message.into(), hint: hint.into() })
}

/// Checks that this version of PostgreSQL can read a rule, and that it accepts only authenticated clients with TLS. An accepted rule can
/// have a warning.
pub(super) fn check(version: u16, rule: &str) -> Result<Option<Wrong>, Wrong> {
    one_line(rule)?;
    let fields = fields(rule)?;
    let mut fields = fields.iter();
    let Some(kind) = fields.next() else {
        return wrong("the rule is empty", "leave it out; write comments outside of the text, as comments of YAML");
    };
    let kind = connection_type(kind)?;
    names(version, "database", fields.next())?;
    names(version, "user", fields.next())?;
    if kind != "local" {
        address(&mut fields)?;
    }
    let method = method(version, kind, &one("method", fields.next())?.text)?;
    options(version, kind, method, fields.flatten())?;
    lets_in(kind, method)
}

/// A text of several lines would be several rules.
fn one_line(rule: &str) -> Result<(), Wrong> {
    if rule.chars().any(|c| c.is_control() && c != '\t') {
        return wrong(
            "the rule has the end of a line or another control character in it",
            "write each rule as an entry of the list",
        );
    }
    if rule.ends_with('\\') {
        return wrong("the rule ends with `\\`, which makes the next line a part of it", "remove it");
    }
    Ok(())
}

fn fields(rule: &str) -> Result<Vec<Field>, Wrong> {
    let (mut fields, mut field) = (Vec::new(), Vec::new());
    let mut rest = rule.chars().peekable();
    loop {
        while rest.next_if(|c| is_blank(*c) || *c == ',').is_some() {}
        let Some((token, more)) = token(&mut rest)? else { break };
        field.push(token);
        if !more {
            fields.push(std::mem::take(&mut field));
        }
    }
    fields.extend(Some(field).filter(|field| !field.is_empty()));
    Ok(fields)
}

fn is_blank(c: char) -> bool {
    c == ' ' || c == '\t'
}

/// The next word, and whether the field goes on after it. A quote within quotes is doubled, and a comment ends the rule.
fn token(rest: &mut Peekable<Chars<'_>>) -> Result<Option<(Token, bool)>, Wrong> {
    let mut token = Token { text: String::new(), quoted: false };
    let (mut within, mut was_quote, mut saw_quote, mut more) = (false, false, false, false);
    while let Some(c) = rest.next() {
        if !within && c == '#' {
            rest.by_ref().for_each(drop);
            break;
        }
        more = !within && c == ',';
        if more || !within && is_blank(c) {
            break;
        }
        if c != '"' || was_quote {
            token.text.push(c);
        }
        was_quote = within && c == '"' && !was_quote;
        if c == '"' {
            within = !within;
            saw_quote = true;
            token.quoted |= token.text.is_empty();
        }
    }
    if within {
        return wrong(format!("the quotation mark before `{}` is not closed", token.text), "close it, or remove it");
    }
    Ok((saw_quote || !token.text.is_empty()).then_some((token, more)))
}

/// The only word of a field.
fn one<'a>(what: &str, field: Option<&'a Field>) -> Result<&'a Token, Wrong> {
    match field.map(Vec::as_slice) {
        None | Some([]) => wrong(format!("the rule ends before its {what}"), format!("write {EXAMPLE}")),
        Some([token]) => Ok(token),
        Some([first, second, ..]) => wrong(
            format!("`{},{}`: a rule has one {what}", first.text, second.text),
            format!("write a rule for each {what}"),
        ),
    }
}

fn connection_type(field: &Field) -> Result<&'static str, Wrong> {
    let text = &one("type", Some(field))?.text;
    if INCLUDES.contains(&text.as_str()) {
        return wrong(
            format!("`{text}` reads a file that quorate does not put on the machines"),
            "write its rules here",
        );
    }
    match TYPES.into_iter().find(|known| known == text) {
        Some(kind) => Ok(kind),
        None => wrong(format!("`{text}` is not a type of connection"), format!("write {EXAMPLE}")),
    }
}

/// Names of databases or users are not checked: they may be created later.
fn names(version: u16, what: &str, field: Option<&Field>) -> Result<(), Wrong> {
    let Some(field) = field else { return one(what, None).map(drop) };
    for Token { text, quoted } in field {
        if text.starts_with('@') && !quoted {
            let message = format!("the {what} `{text}` is a file that quorate does not put on the machines");
            return wrong(message, "write the names here, separated by commas");
        }
        if text.starts_with('/') && version < EXPRESSIONS {
            let message =
                format!("the {what} `{text}` would be a regular expression, which PostgreSQL {version} does not read");
            return wrong(message, format!("write the names; PostgreSQL {EXPRESSIONS} and later take expressions"));
        }
        if text == "/" {
            return wrong(format!("the {what} `/` is an empty regular expression"), "write one after it, or `all`");
        }
    }
    Ok(())
}

/// A network, an address and its mask, a host name, or a word.
fn address(rest: &mut Iter<'_, Field>) -> Result<(), Wrong> {
    let Token { text, quoted } = one("address", rest.next())?;
    if ADDRESSES.contains(&text.as_str()) && !quoted {
        return Ok(());
    }
    let (address, bits) = text.split_once('/').map_or((text.as_str(), None), |(address, bits)| (address, Some(bits)));
    match (address.parse::<IpAddr>(), bits) {
        (Ok(address), Some(bits)) => prefix(text, address, bits),
        (Ok(address), None) => mask(address, rest.next()),
        (Err(_), None) if is_host(address) => Ok(()),
        (Err(_), Some(_)) if is_host(address) => wrong(
            format!("`{text}`: a host name has no mask"),
            "write the name alone, or a network such as `192.0.2.0/24`",
        ),
        (Err(_), _) => {
            let hint = "write a network such as `192.0.2.0/24`, a host name, or `all`, `samehost` or `samenet`";
            wrong(format!("`{text}` is not an address"), hint)
        }
    }
}

fn prefix(text: &str, address: IpAddr, bits: &str) -> Result<(), Wrong> {
    let most = if address.is_ipv4() { 32 } else { 128 };
    let is_number = !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
    match bits.parse::<u32>() {
        Ok(bits) if is_number && bits <= most => Ok(()),
        _ => wrong(format!("`{text}`: the mask of such an address has 0 to {most} bits"), "correct it"),
    }
}

fn mask(address: IpAddr, field: Option<&Field>) -> Result<(), Wrong> {
    let single = if address.is_ipv4() { 32 } else { 128 };
    let hint = format!("write `{address}/{single}` for this address alone, or a network");
    let text = field.and_then(|field| Some(field.first()?.text.as_str())).unwrap_or_default();
    match text.parse::<IpAddr>() {
        Ok(mask) if mask.is_ipv4() == address.is_ipv4() => Ok(()),
        Ok(_) => wrong(format!("the address `{address}` and the mask `{text}` are not of the same kind"), hint),
        Err(_) => wrong(format!("the address `{address}` has no mask"), hint),
    }
}

/// A keyword in another case is taken as that keyword, and a word of digits and dots as an address.
fn is_host(text: &str) -> bool {
    let labels = text.strip_prefix('.').unwrap_or(text).split('.');
    let legal =
        |label: &str| !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    let is_word = ADDRESSES.iter().any(|word| word.eq_ignore_ascii_case(text));
    !is_word && labels.clone().all(legal) && text.chars().any(|c| c.is_ascii_alphabetic())
}

fn method(version: u16, kind: &str, text: &str) -> Result<&'static str, Wrong> {
    let hint = "use `scram-sha-256`, or `reject` to let nobody in";
    if METHODS_ELSEWHERE.contains(&text) {
        return wrong(format!("PostgreSQL has no method `{text}` on Linux"), hint);
    }
    let Some((method, first)) = METHODS.into_iter().find(|(known, _)| *known == text) else {
        return wrong(format!("`{text}` is not a method"), hint);
    };
    if version < first {
        let message = format!("PostgreSQL {version} has no method `{method}`");
        return wrong(message, format!("PostgreSQL {first} and later have it"));
    }
    let only = |of: &str| wrong(format!("`{method}` is for type `{of}`, and this rule is of type `{kind}`"), hint);
    match (kind, method) {
        ("local", "gss") => only("hostgssenc"),
        (kind, "cert") if kind != "hostssl" => only("hostssl"),
        (kind, "peer") if kind != "local" => only("local"),
        _ => Ok(method),
    }
}

fn options<'a>(version: u16, kind: &str, method: &str, tokens: impl Iterator<Item = &'a Token>) -> Result<(), Wrong> {
    let mut given = Vec::new();
    for Token { text, .. } in tokens {
        let Some((name, value)) = text.split_once('=') else {
            let hint = "write options as NAME=VALUE, without spaces, such as `clientcert=verify-ca`";
            return wrong(format!("`{text}` after the method `{method}` is not an option"), hint);
        };
        option(version, kind, method, (name, value))?;
        given.push(name);
    }
    for (_, group) in NEEDED.iter().filter(|(of, _)| *of == method) {
        if !group.iter().any(|name| given.contains(name)) {
            let message = format!("the method `{method}` needs the option `{}`", group.join("` or `"));
            return wrong(message, "add it as NAME=VALUE");
        }
    }
    Ok(())
}

fn option(version: u16, kind: &str, method: &str, (name, value): (&str, &str)) -> Result<(), Wrong> {
    let Some((_, methods)) = OPTIONS.iter().find(|(known, _)| *known == name) else {
        return wrong(format!("`{name}` is not an option of a rule"), "remove it");
    };
    if !methods.is_empty() && !methods.contains(&method) {
        let of = methods.join("`, `");
        return wrong(
            format!("the option `{name}` cannot be used with the method `{method}`"),
            format!("it is for `{of}`"),
        );
    }
    let one_of = |values: &[&str]| match values.contains(&value) {
        true => Ok(()),
        false => {
            let values = values.join("` or `");
            wrong(format!("the option `{name}` is `{value}`, and can be `{values}`"), "use one of these")
        }
    };
    match name {
        "clientcert" | "clientname" if kind != "hostssl" => {
            wrong(format!("the option `{name}` is for type `hostssl`"), "use `hostssl`")
        }
        "clientcert" if method == "cert" => one_of(&["verify-full"]),
        "clientcert" => one_of(&["verify-ca", "verify-full"]),
        "clientname" if version < CLIENT_NAMES => {
            let message = format!("PostgreSQL {version} has no option `{name}`");
            wrong(message, format!("PostgreSQL {CLIENT_NAMES} and later have it"))
        }
        "clientname" => one_of(&["CN", "DN"]),
        "ldapport" | "radiusports" if value.split(',').any(|port| port.trim().parse::<u16>().is_err()) => {
            wrong(format!("the option `{name}` is `{value}`, which is not a port"), "use a number")
        }
        _ => Ok(()),
    }
}

/// Every client needs TLS, or Kerberos encryption, and must prove its identity.
fn lets_in(kind: &str, method: &str) -> Result<Option<Wrong>, Wrong> {
    let remark = |message: &str, hint: &str| Ok(Some(Wrong { message: message.to_owned(), hint: hint.to_owned() }));
    match (kind, method) {
        ("local", _) => remark("PostgreSQL has no local socket here: the rule has no effect", "leave it out"),
        (_, "reject") => Ok(None),
        (_, "trust") => {
            let message = "`trust` lets anyone who reaches the port log in as any user, without a password";
            wrong(message, "use `scram-sha-256`, or `cert` for clients with a certificate")
        }
        (_, "ident") => {
            let message = "`ident` trusts the user name that the client's machine reports, without a password";
            wrong(message, "use `scram-sha-256`, or `cert` for clients with a certificate")
        }
        ("host" | "hostnossl" | "hostnogssenc", _) => {
            let message = format!("`{kind}` allows connections without TLS: others can read the traffic");
            wrong(message, "use `hostssl`")
        }
        (_, "password") => {
            let message = "with `password` the server receives the password itself: the client sends it, inside TLS, to any server that answers";
            remark(message, "use `scram-sha-256`, which PostgreSQL can check all passwords here with")
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(rule: &str) -> String {
        let Wrong { message, hint } = check(15, rule).expect_err(rule);
        format!("{message}; {hint}")
    }

    #[test]
    fn rules_that_postgresql_reads_are_accepted() {
        let good = [
            "hostssl all report 192.0.2.0/24 reject",
            "hostssl all all 2001:db8::/32 scram-sha-256",
            "hostssl\tall\tall\t10.0.0.0\t255.0.0.0\tmd5",
            "hostssl all all ::1 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff scram-sha-256",
            "hostssl shop,\"my db\", other +staff,report all scram-sha-256 clientcert=verify-ca # a remark",
            "hostssl replication warehouse samenet scram-sha-256",
            "hostssl all all .example.org scram-sha-256",
            "hostssl all all client-1.example.org cert map=operators clientname=DN",
            "hostssl \"all\" \"a \"\"b\"\" c\" 0.0.0.0/0 scram-sha-256",
            "hostssl all all all ldap ldapserver=ldap.example.org ldapprefix=\"cn=\" ldapsuffix=\", dc=example\"",
            "hostgssenc all all 0.0.0.0/0 gss include_realm=0",
            "host all all all reject",
            "hostnossl all all all reject",
        ];
        for rule in good {
            assert_eq!(check(15, rule), Ok(None), "{rule}");
        }
        assert_eq!(check(16, "hostssl all /^app all scram-sha-256"), Ok(None));
        assert_eq!(check(18, "hostssl all all all oauth issuer=https://id.example.org scope=db"), Ok(None));
    }

    #[test]
    fn errors_of_unreadable_rules_name_the_field() {
        let bad = [
            ("", "the rule is empty"),
            ("# passwords 1", "the rule is empty"),
            ("hostsll all all all scram-sha-256", "`hostsll` is not a type of connection"),
            ("host,hostssl all all all reject", "a rule has one type"),
            ("include other.conf", "reads a file"),
            ("hostssl", "ends before its database"),
            ("hostssl all", "ends before its user"),
            ("hostssl all all", "ends before its address"),
            ("hostssl all all all", "ends before its method"),
            ("hostssl all all scram-sha-256", "ends before its method"),
            ("hostssl @dbs all all scram-sha-256", "the database `@dbs` is a file"),
            ("hostssl all /^app all scram-sha-256", "regular expression, which PostgreSQL 15 does not read"),
            ("hostssl all all 10.0.0.0/33 scram-sha-256", "0 to 32 bits"),
            ("hostssl all all ::/129 scram-sha-256", "0 to 128 bits"),
            ("hostssl all all 10.0.0.0/ scram-sha-256", "0 to 32 bits"),
            ("hostssl all all 10.0.0.0/+8 scram-sha-256", "0 to 32 bits"),
            ("hostssl all all 10.0.0.1 scram-sha-256", "`10.0.0.1` has no mask; write `10.0.0.1/32`"),
            ("hostssl all all 10.0.0.1 ffff:: scram-sha-256", "not of the same kind"),
            ("hostssl all all 10.0.0/8 scram-sha-256", "`10.0.0/8` is not an address"),
            ("hostssl all all 10.0.0.256 scram-sha-256", "`10.0.0.256` is not an address"),
            ("hostssl all all db.example.org/8 scram-sha-256", "a host name has no mask"),
            ("hostssl all all ALL scram-sha-256", "`ALL` is not an address"),
            ("hostssl all all all,samenet scram-sha-256", "a rule has one address"),
            ("hostssl all all all scram-sha-265", "`scram-sha-265` is not a method"),
            ("hostssl all all all SCRAM-SHA-256", "is not a method"),
            ("hostssl all all all sspi", "no method `sspi` on Linux"),
            (
                "hostssl all all all oauth issuer=a scope=b",
                "PostgreSQL 15 has no method `oauth`; PostgreSQL 18 and later",
            ),
            ("hostgssenc all all all cert", "`cert` is for type `hostssl`"),
            ("hostssl all all all peer", "`peer` is for type `local`"),
            ("hostssl all all all scram-sha-256 clientcert", "`clientcert` after the method"),
            ("hostssl all all all scram-sha-256 clientcert = verify-ca", "is not an option"),
            ("hostssl all all all scram-sha-256 clientcert=1", "can be `verify-ca` or `verify-full`"),
            ("hostssl all all all cert clientcert=verify-ca", "can be `verify-full`"),
            ("hostgssenc all all all gss clientcert=verify-ca", "is for type `hostssl`"),
            ("hostssl all all all scram-sha-256 map=x", "cannot be used with the method `scram-sha-256`"),
            ("hostssl all all all scram-sha-256 mapp=x", "`mapp` is not an option"),
            ("hostssl all all all ldap ldapserver=x", "needs the option `ldapbasedn` or `ldapprefix`"),
            ("hostssl all all all radius radiusservers=x", "needs the option `radiussecrets`"),
            ("hostssl all all all ldap ldapprefix=x ldapport=many", "is not a port"),
            ("hostssl \"all all all scram-sha-256", "is not closed"),
            ("hostssl all all all scram-sha-256\nhost all all all trust", "the end of a line"),
            ("hostssl all all all \\", "ends with `\\`"),
        ];
        for (rule, says) in bad {
            let said = refused(rule);
            assert!(said.contains(says), "{rule}: {said}");
        }
    }

    #[test]
    fn every_connection_needs_tls_and_authentication() {
        let bad = [
            ("host all all all trust", "`trust` lets anyone"),
            ("hostssl all all 10.0.0.0/8 trust", "`trust` lets anyone"),
            ("hostssl all all all trust clientcert=verify-full", "`trust` lets anyone"),
            ("hostssl all all all ident", "`ident` trusts"),
            ("host all all all scram-sha-256", "`host` allows connections without TLS"),
            ("hostnossl all all all md5", "`hostnossl` allows connections without TLS"),
            ("hostnogssenc all all all password", "`hostnogssenc` allows connections without TLS"),
        ];
        for (rule, says) in bad {
            let said = refused(rule);
            assert!(said.contains(says), "{rule}: {said}");
        }
        let remark = |rule| check(15, rule).unwrap().unwrap().message;
        assert!(remark("local all all trust").contains("no effect"));
        assert!(remark("hostssl all all all password").contains("the server receives the password itself"));
    }
}
