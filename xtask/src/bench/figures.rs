//! Samples, their median and spread, and tables of them.

use std::fmt;
use std::time::Duration;

/// Times of equal runs.
#[derive(Default)]
pub struct Samples(Vec<Duration>);

impl Samples {
    pub fn add(&mut self, sample: Duration) {
        let position = self.0.partition_point(|other| *other <= sample);
        self.0.insert(position, sample);
    }

    /// Zero without samples.
    pub fn median(&self) -> Duration {
        match self.0.len() {
            0 => Duration::ZERO,
            count if count % 2 == 1 => self.0[count / 2],
            count => (self.0[count / 2 - 1] + self.0[count / 2]) / 2,
        }
    }
}

impl FromIterator<Duration> for Samples {
    fn from_iter<I: IntoIterator<Item = Duration>>(samples: I) -> Self {
        let mut sorted: Vec<Duration> = samples.into_iter().collect();
        sorted.sort();
        Self(sorted)
    }
}

/// `0.512 s (0.480–0.911)`: the median, and from the shortest to the longest.
impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ends = self.0.first().zip(self.0.last()).map(|(first, last)| (first.as_secs_f64(), last.as_secs_f64()));
        let (shortest, longest) = ends.unwrap_or_default();
        write!(f, "{} ({shortest:.3}–{longest:.3})", seconds(self.median()))
    }
}

pub fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

pub fn ratio(time: Duration, to: Duration) -> f64 {
    time.as_secs_f64() / to.as_secs_f64()
}

pub fn verdict(kept: bool) -> &'static str {
    if kept { "PASS" } else { "FAIL" }
}

/// A table as Markdown has it, with its columns aligned for people.
pub fn table<const COLUMNS: usize>(head: [&str; COLUMNS], rows: &[[String; COLUMNS]]) -> String {
    let head = head.map(str::to_owned);
    let width =
        |column: usize| rows.iter().chain([&head]).map(|row| row[column].chars().count()).max().unwrap_or_default();
    let line = |cells: &[String; COLUMNS]| {
        let cells: Vec<String> =
            cells.iter().enumerate().map(|(at, cell)| format!(" {cell:width$} ", width = width(at))).collect();
        format!("|{}|\n", cells.join("|"))
    };
    let rule: [String; COLUMNS] = std::array::from_fn(|column| "-".repeat(width(column)));
    [&head, &rule].into_iter().chain(rows).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(milliseconds: &[u64]) -> Samples {
        milliseconds.iter().map(|time| Duration::from_millis(*time)).collect()
    }

    #[test]
    fn the_median_is_in_the_middle_whatever_the_order() {
        assert_eq!(samples(&[900, 100, 300]).median(), Duration::from_millis(300));
        assert_eq!(samples(&[400, 100, 300, 900]).median(), Duration::from_millis(350));
        assert_eq!(samples(&[]).median(), Duration::ZERO);
        assert_eq!(samples(&[900, 100, 300]).to_string(), "0.300 s (0.100–0.900)");
    }

    #[test]
    fn tables_are_aligned_markdown() {
        let rows = [["3".into(), "0.5–1 s".into()], ["10,000".into(), "2 s".into()]];
        let expected = "\
            | members | time    |\n\
            | ------- | ------- |\n\
            | 3       | 0.5–1 s |\n\
            | 10,000  | 2 s     |\n";
        assert_eq!(table(["members", "time"], &rows), expected);
    }
}
