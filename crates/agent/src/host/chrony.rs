//! chrony's configuration.

use quorate_core::spec::{Chrony, TimeSource};

pub(super) fn render(chrony: &Chrony) -> String {
    let line = |kind: &str, source: &TimeSource| {
        let words = [kind, &source.address].into_iter().chain(source.options.iter().map(|option| option.trim()));
        words.collect::<Vec<_>>().join(" ") + "\n"
    };
    let servers: String = chrony.servers.iter().map(|server| line("server", server)).collect();
    let pools: String = chrony.pools.iter().map(|pool| line("pool", pool)).collect();
    let (seconds, thousandths) = (chrony.makestep.threshold.0 / 1000, chrony.makestep.threshold.0 % 1000);
    format!(
        "# Written by quorate; changes are lost.\n\
         {servers}{pools}\
         makestep {seconds}.{thousandths:03} {limit}\n\
         driftfile /var/lib/chrony/chrony.drift\n\
         logdir /var/log/chrony\n\
         maxupdateskew 100.0\n\
         rtcsync\n\
         leapsectz right/UTC\n",
        limit = if chrony.makestep.always { String::from("-1") } else { chrony.makestep.limit.to_string() },
    )
}

#[cfg(test)]
mod tests {
    use quorate_core::spec::{MakeStep, Millis};

    use super::*;

    fn full() -> Chrony {
        let source = |address: &str, options: &[&str]| TimeSource {
            address: address.to_owned(),
            options: options.iter().map(|&option| option.to_owned()).collect(),
        };
        Chrony {
            servers: vec![source("192.0.2.1", &["iburst", "maxpoll 10"])],
            pools: vec![source("pool.example.org", &[])],
            makestep: MakeStep { threshold: Millis(50), limit: 3, always: true },
        }
    }

    #[test]
    fn sources_and_steps_are_as_the_spec_says() {
        let text = render(&full());
        for line in ["server 192.0.2.1 iburst maxpoll 10", "pool pool.example.org", "makestep 0.050 -1"] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(render(&Chrony::default()).contains("makestep 1.000 3\n"));
    }

    #[test]
    fn chrony_itself_understands_it() {
        let chronyd = super::super::of_the_lab(&super::super::CHRONY);
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("chrony.conf");
        std::fs::write(&file, render(&full())).unwrap();
        let output = std::process::Command::new(chronyd).arg("-p").arg("-f").arg(&file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
