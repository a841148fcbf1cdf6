use super::*;
use proptest::prelude::*;

#[test]
fn units_read_as_documented() {
    assert_eq!("8GiB".parse(), Ok(Size(8_589_934_592)));
    assert_eq!("8 GB".parse(), Ok(Size(8_000_000_000)));
    assert_eq!("123".parse(), Ok(Size(123)));
    assert_eq!("1y".parse(), Ok(Validity::days(365)));
    assert_eq!("1s".parse(), Ok(Millis(1000)));
    assert_eq!("12h".parse(), Ok(Retention::Time(Millis(43_200_000))));
    assert_eq!("0".parse(), Ok(Retention::Number(0)));
    assert_eq!(Size::gibibytes(8).to_string(), "8GiB");
    assert_eq!(Validity::hours(36).to_string(), "36h");
}

#[test]
fn errors_say_what_was_expected() {
    let error = |result: Result<Size, Malformed>| result.unwrap_err().to_string();
    assert_eq!(error("8Gib".parse()), "unknown unit `Gib` in `8Gib`; use one of GiB, GB, MiB, MB, KiB, KB, B");
    assert_eq!(error("1.5GiB".parse()), "whole numbers only: write 1536MiB for `1.5GiB`");
    assert_eq!(error("0.5GB".parse()), "whole numbers only: write 500MB for `0.5GB`");
    assert_eq!(error("1.3GiB".parse()), "whole numbers only, not `1.3GiB`");
    assert_eq!(error("0".parse()), "`0` must be more than zero");
    assert_eq!(error("99999999999GiB".parse()), "`99999999999GiB` is too large");
    let hours: Result<Validity, _> = "12".parse();
    assert_eq!(hours.unwrap_err().to_string(), "`12` has no unit; expected a time such as 90d, 1y or 36h");
    assert!("200y".parse::<Validity>().is_err());
    assert!("-5m".parse::<Millis>().is_err());
}

#[test]
fn names_and_sans_are_checked() {
    for wrong in ["", "-a", "a-", "A", "a.b", "a_b", "ü", &"a".repeat(64)] {
        assert!(wrong.parse::<Name>().is_err(), "{wrong:?}");
    }
    assert!("a".repeat(63).parse::<Name>().is_ok());
    for wrong in ["", "10.0.0.300", "a..b", "*", "a b", "*.*.org"] {
        assert!(wrong.parse::<San>().is_err(), "{wrong:?}");
    }
    assert!(matches!("*.example.org".parse(), Ok(San::Dns(_))));
    assert!(matches!("::1".parse(), Ok(San::Ip(_))));
    assert!("a:b".parse::<AuthName>().is_err());
    assert_eq!("52:54:00:DE:E3:64".parse::<Mac>().unwrap(), "52:54:00:de:e3:64");
    for wrong in ["", "52:54:00:de:e3", "52-54-00-de-e3-64", "52:54:00:de:e3:6g", "53:54:00:de:e3:64"] {
        assert!(wrong.parse::<Mac>().is_err(), "{wrong:?}");
    }
    for wrong in ["", "/srv/a.img", "a/b/c", "a/", "a\nb"] {
        assert!(wrong.parse::<VolumeName>().is_err(), "{wrong:?}");
    }
    let volume: VolumeName = "images/debian.qcow2".parse().unwrap();
    assert_eq!(volume.within("etcd"), ("images", "debian.qcow2"));
    assert!("6e1e2b0c-1f5d-4a57-9c1e-0a4f6a1d2b3".parse::<Uuid>().is_err());
    assert!(check_format("uri", "https://mirror.example.org/etcd").is_ok());
    assert!(check_format("uri", "ftp://mirror.example.org").is_err() && check_format("uri", "https:///x").is_err());
}

proptest! {
    #[test]
    fn written_values_read_back(bytes in 1..u64::try_from(i64::MAX).unwrap(), hours in 1..=876_000_u64, millis in 1..1u64<<40) {
        prop_assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        prop_assert_eq!(Validity::hours(hours).to_string().parse(), Ok(Validity::hours(hours)));
        prop_assert_eq!(Millis(millis).to_string().parse(), Ok(Millis(millis)));
        prop_assert_eq!(Retention::Time(Millis(millis)).to_string().parse(), Ok(Retention::Time(Millis(millis))));
        prop_assert_eq!(Retention::Number(bytes).to_string().parse(), Ok(Retention::Number(bytes)));
    }

    #[test]
    fn no_text_makes_reading_panic(text in ".{0,12}") {
        for format in ["size", "validity", "duration", "retention", "name", "auth-name", "sha256", "san", "mac", "uuid", "volume", "age-recipient", "signer", "uri", "version"] {
            let _ = check_format(format, &text);
        }
    }
}
