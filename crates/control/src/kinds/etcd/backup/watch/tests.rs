use super::*;

#[test]
fn a_full_backup_is_due_whatever_is_done_to_the_clock() {
    let begun: Timestamp = "2026-11-14T10:00:00Z".parse().unwrap();
    let (hour, start) = (SignedDuration::from_hours(1), Instant::now());
    let at = |wall: SignedDuration, waited: u64| Moment {
        wall: begun + wall,
        monotonic: start + Duration::from_secs(waited),
    };
    // Half of the hour has passed when the recorder starts.
    let due = Due::after(begun, hour, at(hour / 2, 0));
    assert!(!due.has_come(at(hour / 2, 0)) && !due.has_come(at(-hour, 1799)));
    assert!(due.has_come(at(-hour, 1800)), "the clock was set back");
    assert!(due.has_come(at(hour, 5)), "the machine slept");
    let due = Due { not_before: start + Duration::from_secs(60), ..due };
    assert!(!due.has_come(at(hour, 59)) && due.has_come(at(hour, 60)));
    // Taken before the clock was set back.
    assert!(Due::after(begun, hour, at(-hour * 24, 0)).has_come(at(-hour * 23, 3600)));
    // No schedule leads beyond the end of time.
    assert!(!Due::after(begun, SignedDuration::MAX, at(hour, 0)).has_come(at(hour, 3600)));
}

#[test]
fn a_problem_is_reported_when_it_changes_and_now_and_then() {
    let mut trouble = Trouble::default();
    assert_eq!(trouble.news(String::from("away")).as_deref(), Some("warning: away; trying again"));
    assert_eq!(trouble.news(String::from("away")), None);
    assert_eq!(trouble.news(String::from("denied")).as_deref(), Some("warning: denied; trying again"));
    trouble.pauses = 9;
    assert!(trouble.news(String::from("denied")).unwrap().contains("for 0 seconds now"));
}
