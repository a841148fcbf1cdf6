//! A confirmed plan covers its own steps only: any other step that destroys something needs another confirmation. The program runs in a
//! pseudo-terminal here, because it only asks at a terminal.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::common::{Sandbox, eventually, newest, signal, spec};

/// A command at a terminal.
struct AtTerminal {
    process: Child,
    screen: ChildStdout,
    shown: String,
}

impl AtTerminal {
    fn start(sandbox: &Sandbox, arguments: &[&str]) -> Self {
        let quorate = sandbox.command(arguments);
        let words = std::iter::once(quorate.get_program()).chain(quorate.get_args());
        let line: Vec<&str> = words.map(|word| word.to_str().unwrap()).collect();
        let mut script = Command::new("/usr/bin/script");
        script.args(["-q", "-e", "-f", "-c", &line.join(" "), "/dev/null"]);
        script.envs(quorate.get_envs().filter_map(|(name, value)| Some((name, value?))));
        script.current_dir(sandbox.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = script.spawn().expect("script runs");
        let screen = process.stdout.take().unwrap();
        AtTerminal { process, screen, shown: String::new() }
    }

    /// Reads until a text is shown.
    fn until(&mut self, text: &str) {
        let mut bytes = [0; 1024];
        while !self.shown.contains(text) {
            let count = self.screen.read(&mut bytes).unwrap_or(0);
            assert!(count > 0, "it ended before it showed `{text}`:\n{}", self.shown);
            self.shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        let end = self.shown.find(text).unwrap() + text.len();
        self.shown.drain(..end);
    }

    fn answer(&mut self, text: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{text}").unwrap();
    }

    /// How it ended, and what it showed since the last question.
    fn end(mut self) -> (i32, String) {
        let mut rest = Vec::new();
        let _ = self.screen.read_to_end(&mut rest);
        self.shown.push_str(&String::from_utf8_lossy(&rest));
        (self.process.wait().unwrap().code().unwrap(), self.shown)
    }
}

fn lose_machine(sandbox: &Sandbox, member: &str) {
    let root = sandbox.home().join("machines/c").join(member);
    let of_it = || sandbox.processes().into_iter().filter(|(_, line)| line.contains(&format!("/{member}/")));
    of_it().for_each(|(pid, _)| signal(pid, "KILL"));
    eventually("its processes have ended", 10, || of_it().count() == 0);
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn a_step_that_destroys_and_was_not_shown_is_asked_about() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    sandbox.file("c.yaml", &spec(3, &version, "", ""));
    sandbox.quorate(&["apply", "--yes", "c.yaml"]).ok();
    sandbox.file("c.yaml", &spec(3, &version, "quota: 3GiB", ""));
    sandbox.quorate(&["plan", "c.yaml", "--save", "p.json"]).ok();
    let members = || {
        let list = sandbox.etcdctl(&version, "c", &["member", "list"]).ok().stdout;
        let mut ids: Vec<String> = list.lines().map(|line| line.split(',').next().unwrap().to_owned()).collect();
        ids.sort();
        ids
    };
    let before = members();

    // The machine is lost after the plan was shown and before it is confirmed.
    let mut apply = AtTerminal::start(&sandbox, &["apply", "c.yaml", "--now"]);
    apply.until("apply these");
    lose_machine(&sandbox, "etcd-3");
    apply.answer("y");
    apply.until("not in the plan shown");
    apply.until("from the cluster");
    apply.until("continue? [y/N]");
    apply.answer("n");
    let (code, shown) = apply.end();
    assert!(code == 3 && shown.contains("needs confirmation"), "{code} {shown}");
    assert_eq!(members(), before, "nothing was removed");

    // In a plan that is shown, the same step needs one answer.
    let mut apply = AtTerminal::start(&sandbox, &["apply", "c.yaml", "--now"]);
    apply.until("from the cluster");
    apply.until("apply these");
    apply.answer("y");
    let (code, shown) = apply.end();
    assert!(code == 0 && !shown.contains("not in the plan shown"), "{code} {shown}");
    assert_ne!(members(), before);
    sandbox.quorate(&["destroy", "c", "--yes", "--without-backup"]).ok();
}
