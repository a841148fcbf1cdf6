//! Alternating rounds of quorate and what it is compared with, and the check of the ratio.

use std::time::Duration;

use crate::bench::figures::{Samples, ratio, table, verdict};

/// What quorate may take of what the others take, and on what.
pub struct Aims {
    pub machines: &'static str,
    pub of_bare: f64,
    pub of_cloud_init: f64,
}

pub struct Round {
    pub quorate: Duration,
    pub bare: Duration,
    pub cloud_init: Option<Duration>,
}

pub struct Outcome {
    pub members: usize,
    pub aims: Aims,
    pub rounds: Vec<Round>,
}

/// What quorate is held against: name, times round by round, and the most that it may take of them.
struct Other {
    name: &'static str,
    times: Vec<Duration>,
    allowed: f64,
}

impl Outcome {
    fn others(&self) -> Vec<Other> {
        let of = |name, allowed, time: fn(&Round) -> Option<Duration>| {
            let times: Vec<Duration> = self.rounds.iter().filter_map(time).collect();
            (!times.is_empty()).then_some(Other { name, times, allowed })
        };
        let bare = of("bare script", self.aims.of_bare, |round| Some(round.bare));
        let cloud_init = of("trimmed cloud-init", self.aims.of_cloud_init, |round| round.cloud_init);
        bare.into_iter().chain(cloud_init).collect()
    }

    /// Of each round its own: a host that becomes slower between rounds changes them little.
    fn ratios(&self, other: &Other) -> Vec<f64> {
        let pairs = self.rounds.iter().zip(&other.times);
        let mut ratios: Vec<f64> = pairs.map(|(round, time)| ratio(round.quorate, *time)).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }

    fn is_within(&self, other: &Other) -> bool {
        median(&self.ratios(other)) <= other.allowed
    }

    pub fn kept(&self) -> bool {
        self.others().iter().all(|other| self.is_within(other))
    }

    pub fn print(&self) {
        let quorate: Samples = self.rounds.iter().map(|round| round.quorate).collect();
        let row = |other: Other| {
            let ratios = self.ratios(&other);
            let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
            [
                other.name.to_owned(),
                quorate.to_string(),
                other.times.iter().copied().collect::<Samples>().to_string(),
                format!("{:.2} ({least:.2}–{most:.2})", median(&ratios)),
                format!("{:.2}", other.allowed),
                verdict(self.is_within(&other)).to_owned(),
            ]
        };
        let rows: Vec<_> = self.others().into_iter().map(row).collect();
        let rounds = self.rounds.len();
        println!(
            "From nothing to {} healthy members on {}: median of {rounds} runs each, in turns, and of their ratios (least–most).\n",
            self.members, self.aims.machines
        );
        print!("{}", table(["compared with", "`quorate apply`", "the other", "ratio", "allowed", ""], &rows));
    }
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(rounds: &[(u64, u64, u64)]) -> bool {
        let time = Duration::from_millis;
        let round = |(quorate, bare, cloud_init): &(u64, u64, u64)| Round {
            quorate: time(*quorate),
            bare: time(*bare),
            cloud_init: Some(time(*cloud_init)),
        };
        let aims = Aims { machines: "some", of_bare: 1.15, of_cloud_init: 0.5 };
        Outcome { members: 3, aims, rounds: rounds.iter().map(round).collect() }.kept()
    }

    #[test]
    fn the_promise_is_little_more_than_the_script_and_half_of_cloud_init() {
        assert!(kept(&[(22_999, 20_000, 50_000)]));
        assert!(!kept(&[(23_100, 20_000, 50_000)]));
        assert!(!kept(&[(22_000, 20_000, 43_000)]));
    }

    #[test]
    fn a_round_counts_by_its_own_ratio() {
        // The host became slower; the medians of the times alone would say 1.20.
        assert!(kept(&[(10_000, 10_000, 30_000), (24_000, 20_000, 60_000), (31_000, 30_000, 90_000)]));
        assert!(!kept(&[(10_000, 10_000, 30_000), (24_000, 20_000, 60_000), (36_000, 30_000, 90_000)]));
    }
}
