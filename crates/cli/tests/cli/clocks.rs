//! Wrong clocks, with `faketime`: what still works, and the error messages where it does not.

use std::process::Command;

use crate::common::{OLDEST, Run, Sandbox, spec};

/// quorate under a clock that differs by as much as `faketime -f` understands.
fn with_clock(sandbox: &Sandbox, offset: &str, arguments: &[&str]) -> Run {
    let plain = sandbox.command(arguments);
    let mut command = Command::new("faketime");
    command.args(["-f", offset]).arg(plain.get_program()).args(plain.get_args()).current_dir(sandbox.path());
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.output().expect("faketime runs").into()
}

#[test]
fn a_controller_with_a_clock_off_by_hours_works_and_by_days_gets_an_error() {
    let sandbox = Sandbox::new(OLDEST);
    sandbox.file("c.yaml", &spec(1, OLDEST, "", ""));
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    for offset in ["+6m", "+10h", "-10h"] {
        with_clock(&sandbox, offset, &["status", "c"]).ok();
    }
    let told = with_clock(&sandbox, "+72h", &["status", "c"]).fails().text();
    assert!(told.contains("expired or not valid yet; check its clock"), "{told}");
    assert!(told.contains("The machine's clock is 3 days behind that of this host"), "{told}");
    assert!(!told.contains("canceled"), "{told}");
}

#[test]
fn a_cluster_that_was_begun_with_a_clock_ahead_can_be_stopped_and_destroyed() {
    for offset in ["+1h", "+30d"] {
        let sandbox = Sandbox::new(OLDEST);
        sandbox.file("c.yaml", &spec(1, OLDEST, "", ""));
        // etcd itself, a static program, knows the right time, and serves as far as its certificates let it.
        let begun = with_clock(&sandbox, offset, &["apply", "c.yaml", "--yes"]);
        assert!(sandbox.has_machines(), "{begun:?}");
        sandbox.quorate(&["down", "c"]).ok();
        assert_eq!(sandbox.agents(), [0_u32; 0]);
        sandbox.quorate(&["start", "c"]);
        sandbox.quorate(&["destroy", "c", "--yes", "--without-backup"]).ok();
        assert!(!sandbox.has_machines());
    }
}
