use super::*;

const GOOD: &str = "@SET env=prod\r\n@INCLUDE /etc/fluent-bit-customization/dynamic-config/inputs/*.conf\n\
        @include /etc/fluent-bit-customization/default-config/fluent-bit-output.conf\n\
        \n    \n[SERVICE]\n    Flush 1\n    Parsers_File /etc/fluent-bit/parsers.conf\n\
        \x20   storage.path /var/lib/quorate-logs/buffer\n\
        # a comment\n[INPUT]\n\x20   Path /var/log/etcd.log\r\n    Name tail\n    # another\n    DB /var/lib/quorate-logs/mine.db\n\
        [FILTER]\n    Name grep\n    Match *\n    Regex log ^[^ ]+ [a-z]+ \u{a0}é$\n\
        [OUTPUT] \n    name HTTP\n    Host logs.example.org\n    tls On\n    Header X-Host ${HOSTNAME}\n\
        [OUTPUT]\n    Name null\n    Match none\n[PARSER]\n    Name json\n    Format json\n[FILTER]\n";

fn judge(text: &str) -> Result<(), String> {
    check(&BTreeMap::from([(String::from("index.conf"), text.as_bytes().to_vec())]))
}

#[test]
fn a_log_forwarding_configuration_is_accepted() {
    assert_eq!(judge(GOOD), Ok(()));
    assert_eq!(as_fluent_bit_reads(GOOD.as_bytes()).expect("it is well-formed").len(), 7);
    assert_eq!(judge("[INPUT]\n\tName tail\n"), Ok(()), "a tab indents as well");
    let data = BTreeMap::from([(String::from("ca.crt"), vec![0xff]), (String::from("logo"), b"[PLUGINS]".to_vec())]);
    assert_eq!(check(&data), Ok(()), "nothing of it is read as a configuration");
}

#[test]
fn configurations_that_run_programs_load_code_or_write_files_are_refused() {
    for (text, said) in [
        (
            "[INPUT]\n    Name exec\n    Command id\n",
            "index.conf: line 2: the input `exec` is not allowed; allowed are tail,",
        ),
        ("[input]\n NAME  exec_wasi\n", "line 2: the input `exec_wasi`"),
        ("[INPUT]\n    Command id\n    Name exec\n", "line 3: the input `exec`"),
        ("@SET x=exec\n[INPUT]\n    Name ${x}\n", "the input `${x}`"),
        ("[INPUT]\n    Name tail\n    Name exec\n", "line 3: this section has a second Name"),
        ("[INPUT]\n    Command id\n", "line 1: this section has no Name"),
        ("[INPUT]\n    Name tail\u{a0}exec\n", "the input `tail\\u{a0}exec`"),
        ("[FILTER]\n    Name lua\n    Code os.execute()\n", "the filter `lua`"),
        ("[OUTPUT]\n    Name file\n    Path /etc/cron.d\n", "the output `file`"),
        ("[OUTPUT]\n    Name s3\n", "the output `s3`"),
        ("[OUTPUT]\n    Name kafka\n    rdkafka.plugin.library.paths /tmp/a.so\n", "the output `kafka`"),
        ("[PLUGINS]\n    Path /tmp/a.so\n", "the section `PLUGINS`"),
        ("[CUSTOM]\n    Name calyptia\n", "the section `CUSTOM`"),
        (
            "[SERVICE]\n    Plugins_File p.conf\n",
            "line 2: the section `service` may not have the option `plugins_file`; other plugins",
        ),
        ("[SERVICE]\n    Log_File /var/lib/quorate-logs/.aws/config\n", "the option `log_file`; allowed are flush,"),
        ("[SERVICE]\n    HTTP_Server On\n", "the option `http_server`"),
        (
            "[SERVICE]\n    storage.path /var/lib/quorate-logs/../etcd\n",
            "is not written: fluent-bit keeps its state directly below",
        ),
        ("[SERVICE]\n    storage.path /tmp\n", "`/tmp` is not written"),
        (
            "[INPUT]\n    DB /var/lib/quorate-logs/.profile\n    Name tail\n",
            "line 2: `/var/lib/quorate-logs/.profile` is not written",
        ),
        ("[INPUT]\n    Name systemd\n    DB /var/lib/quorate-logs/${x}\n", "is not written"),
        ("[INPUT]\n    Name tail\n    Alias ../../x\n", "`../../x` may only have letters"),
        ("[FILTER]\n    Name rewrite_tag\n    Emitter_Name ${x}\n", "`${x}` may only have letters"),
        ("[OUTPUT]\n    Name http\n    AWS_Auth On\n", "the output `http` may not have the option `aws_auth`"),
        ("[OUTPUT]\n    Name forward\n    Unix_Path /run/x\n", "the option `unix_path`"),
        ("[OUTPUT]\n    Name null\n    Host x\n", "the output `null` may not have the option `host`"),
        ("[OUTPUT]\n    Name forward\n    Upstream /tmp/u.conf\n", "`/tmp/u.conf` is not read"),
    ] {
        refused(text, said);
    }
}

#[test]
fn configurations_that_fluent_bit_would_read_differently_are_refused() {
    let long = format!("[FILTER]\n    Name grep\n    Regex {}\n", "x".repeat(4000));
    for (text, said) in [
        (
            "[INPUT]\n    [PARSER] x\n    Name exec\n    Command id\n",
            "line 2: a section must begin in the first column",
        ),
        ("[INPUT]\n\t[PARSER]\n", "line 2: a section must begin in the first column"),
        ("[INPUT]\nxName exec\nxCommand id\n", "line 2: an entry must be indented"),
        ("[INPUT]\n\u{a0}Name exec\n", "line 2: an entry must be indented"),
        ("\u{feff}[INPUT]\n    Name tail\n", "line 1: an entry must be indented"),
        ("[INPUT]\n    Name\ttail\n", "the character `\\t` is not accepted here"),
        ("[INPUT]\n    Name tail\r    Name exec\n", "the character `\\r`"),
        ("[INPUT]\n    Name tail\0\n", "the character `\\u{0}`"),
        ("[INPUT]\n    Name=exec\n", "this section has no Name"),
        ("[ INPUT ]\n    Name exec\n", "the section ` INPUT `"),
        ("[INPUT] x\n    Name exec\n", "a section is one word in brackets"),
        ("[INPUT\n    Name exec\n", "a section is one word in brackets"),
        ("[OUTPUT][INPUT]\n    Name exec\n", "the section `OUTPUT][INPUT`"),
        ("    Name exec\n", "line 1: an entry must be in a section"),
        (
            "[PARSER]\n@INCLUDE /etc/fluent-bit-customization/a.conf\n    Name exec\n",
            "line 3: an entry must be in a section",
        ),
        ("[INPUT]\n    Name tail\n    @INCLUDE /tmp/x\n", "the option `@include`"),
        ("[INPUT]\n    Name tail\n    \u{2003}Name exec\n", "the option `\\u{2003}name`"),
        (&long, "line 3: it has 4010 bytes; at most 4000 are accepted"),
        ("[SERVICE]\n    Parsers_File /tmp/p.conf\n", "`/tmp/p.conf` is not read"),
        ("[SERVICE]\n    Parsers_File parsers.conf\n", "`parsers.conf` is not read"),
        ("[SERVICE]\n    Streams_File /etc/fluent-bit-customization/${x}.conf\n", "is not read"),
        ("@INCLUDE /tmp/other.conf\n", "`/tmp/other.conf` is not read"),
        ("@INCLUDE tmp/other.conf\n", "`tmp/other.conf` is not read: a file to include is given by its whole path"),
        ("@include /etc/fluent-bit-customization/../../tmp/other.conf\n", "is not read"),
        ("@INCLUDE /etc/fluent-bit-customization/.?/.?/tmp/*.conf\n", "is not read"),
        ("@INCLUDE /etc/fluent-bit-customization/.*/.*/tmp/x.conf\n", "is not read"),
        ("@INCLUDE /etc/fluent-bit-customization/dynamic-config/ca.crt\n", "is not read"),
        ("@INCLUDE /etc/fluent-bit-customization/dynamic-config/*\n", "is not read"),
        ("@INCLUDE\n", "`` is not read"),
        ("@RUN id\n", "the command `@run`"),
    ] {
        refused(text, said);
    }
    for name in ["a.yaml", "a.YML"] {
        assert!(check(&BTreeMap::from([(String::from(name), Vec::new())])).is_err());
    }
    assert!(check(&BTreeMap::from([(String::from("a.conf"), vec![0xff])])).is_err());
}

fn refused(text: &str, said: &str) {
    match judge(text) {
        Ok(()) => panic!("accepted: {text}"),
        Err(why) => assert!(why.contains(said), "{text}: {why}"),
    }
}

/// A section's name and its entries.
type Read = (String, Vec<(String, String)>);

/// A file as fluent-bit 3 and 4 read it (flb_cf_fluentbit.c): what follows a NUL on a line is not there, the first entry decides what
/// indentation is, twice as much is inside a group, and a key ends with a space. `None`: fluent-bit refuses it.
fn as_fluent_bit_reads(input: &[u8]) -> Option<Vec<Read>> {
    let mut sections: Vec<Read> = Vec::new();
    let mut indent: Option<Vec<u8>> = None;
    for line in input.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = line.split(|byte| *byte == 0).next().unwrap_or_default();
        match line {
            [] | [b'#', ..] => continue,
            [b'@', _, _, _, ..] => continue,
            [b'[', rest @ ..] => {
                let end = rest.iter().position(|byte| *byte == b']')?;
                sections.push((String::from_utf8_lossy(&rest[..end]).to_lowercase(), Vec::new()));
                continue;
            }
            _ => {}
        }
        let blank = |byte: &&u8| matches!(**byte, b' ' | b'\t');
        let first = 1 + line[1..].iter().take_while(blank).count();
        let unit = indent.get_or_insert_with(|| line[..first].to_vec());
        let rest = line.strip_prefix(unit.as_slice())?;
        let deeper = rest.iter().take_while(blank).count();
        if deeper != 0 && deeper != unit.len() {
            return None;
        }
        let entry = &rest[deeper..];
        if entry.is_empty() || entry[0] == b'#' {
            continue;
        }
        let space = entry.iter().position(|byte| *byte == b' ')?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        assert_ne!(entry[0], b'[', "a group is not seen");
        sections.last_mut()?.1.push((text(&entry[..space]).to_lowercase(), text(&entry[space..])));
    }
    Some(sections)
}

/// Whatever is accepted says to fluent-bit nothing but what is allowed.
#[test]
fn fuzz_fluent_bit() {
    let samples = [
        GOOD,
        "[INPUT]\n    [PARSER] x\n    Name exec\n    Command id\n",
        "[OUTPUT]\nxName file\nxPath /x\n",
        "[SERVICE]\n    Flush 1\n    Log_File /x\n[INPUT]\n    Name tail\n    Path /x\n[INPUT]\n    Name exec\n",
    ];
    quorate_fuzz::campaign(&samples.map(|text| text.as_bytes().to_vec()), |input| {
        if check(&BTreeMap::from([(String::from("index.conf"), input.to_vec())])).is_err() {
            return;
        }
        for (section, entries) in as_fluent_bit_reads(input).into_iter().flatten() {
            let name = entries.iter().find(|(key, _)| key == "name").map(|(_, value)| value.as_str());
            let allowed = match (options::section(&section).expect("a section that is allowed"), name) {
                (kind, Some(name)) if options::is_plugin(&kind) => options::of_plugin(&kind, name).expect("allowed"),
                (kind, _) => options::of_section(&kind),
            };
            entries.iter().for_each(|(key, _)| allowed.check(key).expect("an option that is allowed"));
        }
    });
}
