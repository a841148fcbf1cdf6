//! The timeline of one run as SVG: operations over time, failures, pauses of writes, and the faults, commands and steps.
//! Colours come from the page's style, so they follow light and dark.

use std::fmt::Write;

use super::html::escape;
use crate::mark::{Mark, MarkKind, Moment};
use crate::measure::{Answer, Gap, Measures, slices};
use crate::record::Record;

const WIDTH: f64 = 1080.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 16.0;
/// Of the lanes that hold faults, commands and steps.
const LANE: f64 = 20.0;
const THROUGHPUT: f64 = 190.0;
const ERRORS: f64 = 56.0;
const DELAYS: f64 = 56.0;
const BETWEEN: f64 = 30.0;
/// Of a character in a label.
const CHARACTER: f64 = 6.1;
const LONGEST_LABEL: usize = 62;

/// Where things are: time across, whatever else down.
struct Canvas {
    svg: String,
    end: Moment,
    y: f64,
}

pub(super) fn draw(record: &Record, measures: &Measures) -> String {
    let end = record.marks().iter().map(|m| m.to).chain([(measures.seconds * 1e6) as Moment, 1]).max().unwrap_or(1);
    let mut canvas = Canvas { svg: String::new(), end, y: 6.0 };
    let of = |kind: MarkKind| record.marks().iter().filter(move |m| m.kind == kind).collect::<Vec<_>>();
    let faults = of(MarkKind::Fault);
    if !faults.is_empty() {
        canvas.lanes("faults", "fault", &faults, 8);
    }
    let top = canvas.y;
    canvas.y += BETWEEN - 8.0;
    let answers = record.answers();
    canvas.throughput(&answers);
    canvas.errors(&answers);
    if let Some(delays) = record.watch_delays() {
        canvas.delays(&delays);
    }
    let bottom = canvas.y;
    canvas.seconds_axis();
    canvas.overlay(top, bottom, &faults, measures.longest_write_gap);
    for (name, class, kind, most) in
        [("commands", "command", MarkKind::Command, 4), ("steps", "step", MarkKind::Step, 24)]
    {
        let marks = of(kind);
        if !marks.is_empty() {
            canvas.y += 8.0;
            canvas.lanes(name, class, &marks, most);
        }
    }
    let height = canvas.y + 6.0;
    format!(
        "<svg class=\"timeline\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"Timeline of scenario {}\">\n{}</svg>\n",
        escape(&record.about().scenario),
        canvas.svg
    )
}

impl Canvas {
    fn x(&self, moment: Moment) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * moment as f64 / self.end as f64
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.svg, "{element}");
    }

    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.add(format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>", escape(text)));
    }

    /// Bars with their labels next to them, in as many lanes as it takes for none to cover another, up to a bound: the table
    /// below the timeline shows the rest.
    fn lanes(&mut self, name: &str, class: &str, marks: &[&Mark], most: usize) {
        let top = self.y;
        self.text(LEFT - 10.0, top + 14.0, "name", name);
        let mut marks = marks.to_vec();
        marks.sort_by_key(|m| (m.from, m.to));
        // Where the last thing in each lane ends.
        let mut ends: Vec<f64> = Vec::new();
        let mut left_out = 0;
        for mark in marks {
            let (from, to) = (self.x(mark.from), self.x(mark.to).max(self.x(mark.from) + 3.0));
            let label = shortened(&mark.text);
            let width = label.chars().count() as f64 * CHARACTER;
            // After the bar where there is room, else before it.
            let after = to + 5.0 + width <= WIDTH - RIGHT;
            let (begin, end) = if after { (from, to + 5.0 + width) } else { ((from - 5.0 - width).max(LEFT), to) };
            let lane = ends.iter().position(|e| *e + 8.0 <= begin).unwrap_or(ends.len());
            if lane >= most {
                left_out += 1;
                continue;
            }
            match ends.get_mut(lane) {
                Some(taken) => *taken = end,
                None => ends.push(end),
            }
            let y = top + lane as f64 * LANE;
            let title = escape(&format!("{} ({:.3}–{:.3} s)", mark.text, mark.from as f64 / 1e6, mark.to as f64 / 1e6));
            self.add(format_args!(
                "<rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"12\" rx=\"2\" class=\"bar {class}\"><title>{title}</title></rect>",
                y + 4.0,
                to - from
            ));
            if after {
                self.text(to + 5.0, y + 14.0, "label", &label);
            } else {
                self.text(from - 5.0, y + 14.0, "label end", &label);
            }
        }
        if left_out > 0 {
            let y = top + ends.len() as f64 * LANE + 14.0;
            self.text(LEFT, y, "label", &format!("… and {left_out} more, in the table below"));
            ends.push(0.0);
        }
        self.y = top + ends.len() as f64 * LANE;
    }

    /// A plot's frame: its name, its scale, and lines to read values by. Returns how much one unit is.
    fn frame(&mut self, name: &str, height: f64, highest: f64, steps: u32) -> f64 {
        let highest = round_up(highest.max(1.0), f64::from(steps));
        let bottom = self.y + height;
        self.text(LEFT, self.y - 7.0, "title", name);
        for step in 0..=steps {
            let value = highest * f64::from(step) / f64::from(steps);
            let y = bottom - height * f64::from(step) / f64::from(steps);
            self.add(format_args!(
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" class=\"{}\"/>",
                WIDTH - RIGHT,
                if step == 0 { "axis" } else { "grid" }
            ));
            self.text(LEFT - 8.0, y + 4.0, "tick end", &number(value));
        }
        height / highest
    }

    fn throughput(&mut self, answers: &[Answer]) {
        let width = slice_width(self.end);
        let scale = 1e6 / width as f64;
        let slices = slices(answers, width);
        let highest = slices.iter().map(|s| (s.writes + s.others) as f64 * scale).fold(0.0, f64::max);
        let unit = self.frame("answered operations per second", THROUGHPUT, highest, 4);
        let bottom = self.y + THROUGHPUT;
        let heights = |of: fn(&crate::measure::Slice) -> usize| -> Vec<f64> {
            slices.iter().map(|s| of(s) as f64 * scale * unit).collect()
        };
        let (all, writes) = (heights(|s| s.writes + s.others), heights(|s| s.writes));
        self.area("others", &all, width, bottom);
        self.area("writes", &writes, width, bottom);
        self.legend(&[("writes", "writes"), ("others", "reads and refused writes")], self.y - 16.0);
        self.y = bottom + BETWEEN;
    }

    fn errors(&mut self, answers: &[Answer]) {
        let width = slice_width(self.end);
        let scale = 1e6 / width as f64;
        let slices = slices(answers, width);
        let highest = slices.iter().map(|s| s.unanswered as f64 * scale).fold(0.0, f64::max);
        let unit = self.frame("operations without an answer, per second", ERRORS, highest, 2);
        let bottom = self.y + ERRORS;
        let heights: Vec<f64> = slices.iter().map(|s| s.unanswered as f64 * scale * unit).collect();
        self.area("errors", &heights, width, bottom);
        self.y = bottom + BETWEEN;
    }

    fn delays(&mut self, delays: &[(Moment, Moment)]) {
        let width = slice_width(self.end);
        let mut longest = vec![0.0_f64; usize::try_from(self.end / width).unwrap_or(0) + 1];
        for &(at, delay) in delays {
            if let Some(slot) = usize::try_from(at / width).ok().and_then(|slot| longest.get_mut(slot)) {
                *slot = slot.max(delay as f64 / 1e3);
            }
        }
        let unit =
            self.frame("longest delay of a watch, in ms", DELAYS, longest.iter().copied().fold(0.0, f64::max), 2);
        let bottom = self.y + DELAYS;
        let heights: Vec<f64> = longest.iter().map(|delay| delay * unit).collect();
        self.area("delays", &heights, width, bottom);
        self.y = bottom;
    }

    /// One flat step for each slice, filled down to the axis.
    fn area(&mut self, class: &str, heights: &[f64], width: Moment, bottom: f64) {
        let mut path = format!("M{:.1} {bottom:.1}", LEFT);
        for (slot, height) in heights.iter().enumerate() {
            let from = self.x(slot as Moment * width);
            let to = self.x(((slot as Moment + 1) * width).min(self.end));
            let _ = write!(path, "L{from:.1} {0:.1}L{to:.1} {0:.1}", bottom - height);
        }
        let last = self.x((heights.len() as Moment * width).min(self.end));
        self.add(format_args!("<path d=\"{path}L{last:.1} {bottom:.1}Z\" class=\"{class}\"/>"));
    }

    fn legend(&mut self, entries: &[(&str, &str)], y: f64) {
        let mut x = WIDTH - RIGHT;
        for (class, text) in entries.iter().rev() {
            x -= text.chars().count() as f64 * CHARACTER + 4.0;
            self.text(x, y + 9.0, "label", text);
            x -= 16.0;
            self.add(format_args!(
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"11\" height=\"11\" rx=\"2\" class=\"{class}\"/>"
            ));
            x -= 14.0;
        }
    }

    fn seconds_axis(&mut self) {
        let seconds = self.end as f64 / 1e6;
        let step = [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0].into_iter().find(|s| seconds / s <= 16.0);
        let step = step.unwrap_or(300.0);
        let bottom = self.y;
        let mut second = 0.0;
        while second <= seconds {
            let x = self.x((second * 1e6) as Moment);
            self.add(format_args!(
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{bottom:.1}\" y2=\"{:.1}\" class=\"axis\"/>",
                bottom + 4.0
            ));
            self.text(x, bottom + 17.0, "tick middle", &format!("{second} s"));
            second += step;
        }
        self.y = bottom + 24.0;
    }

    /// What is laid over all plots: the faults, and the longest time without a write.
    fn overlay(&mut self, top: f64, bottom: f64, faults: &[&Mark], gap: Option<Gap>) {
        let height = bottom - top;
        if let Some(gap) = gap {
            let (from, to) = (self.x((gap.from * 1e6) as Moment), self.x((gap.to * 1e6) as Moment));
            let width = (to - from).max(1.5);
            self.add(format_args!(
                "<rect x=\"{from:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" class=\"gap\"/>"
            ));
            let text = format!("no write for {:.2} s", gap.seconds());
            let (x, class) = if to + 140.0 < WIDTH { (to + 6.0, "gap-label") } else { (from - 6.0, "gap-label end") };
            self.text(x, top + 44.0, class, &text);
        }
        for mark in faults {
            let (from, to) = (self.x(mark.from), self.x(mark.to));
            if to - from > 2.0 {
                self.add(format_args!(
                    "<rect x=\"{from:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{height:.1}\" class=\"fault-band\"/>",
                    to - from
                ));
            }
            self.add(format_args!(
                "<line x1=\"{from:.1}\" x2=\"{from:.1}\" y1=\"{top:.1}\" y2=\"{bottom:.1}\" class=\"fault-line\"/>"
            ));
        }
    }
}

/// Fine enough to see a gap, coarse enough that a slice holds something.
fn slice_width(end: Moment) -> Moment {
    match end {
        0..=25_000_000 => 100_000,
        25_000_001..=60_000_000 => 250_000,
        60_000_001..=180_000_000 => 500_000,
        _ => 1_000_000,
    }
}

fn shortened(text: &str) -> String {
    if text.chars().count() <= LONGEST_LABEL {
        return text.to_owned();
    }
    text.chars().take(LONGEST_LABEL - 1).chain(['…']).collect()
}

/// The next value that `steps` lines divide into round numbers.
fn round_up(value: f64, steps: f64) -> f64 {
    let part = value / steps;
    let magnitude = 10_f64.powf(part.log10().floor());
    let round = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|r| r * magnitude >= part).unwrap_or(10.0);
    round * magnitude * steps
}

fn number(value: f64) -> String {
    if value == value.round() { format!("{value:.0}") } else { format!("{value:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_round_numbers() {
        assert_eq!(round_up(430.0, 4.0), 800.0);
        assert_eq!(round_up(390.0, 4.0), 400.0);
        assert_eq!(round_up(1.0, 2.0), 1.0);
        assert_eq!(round_up(2.1, 2.0), 4.0);
    }

    #[test]
    fn labels_in_one_lane_do_not_cover_each_other() {
        let mark = |from, text: &str| Mark { kind: MarkKind::Step, text: text.to_owned(), from, to: from + 1000 };
        let marks = [mark(0, "etcd-1: restart etcd"), mark(10_000, "etcd-2: restart etcd"), mark(9_000_000, "late")];
        let mut canvas = Canvas { svg: String::new(), end: 10_000_000, y: 0.0 };
        canvas.lanes("steps", "step", &marks.iter().collect::<Vec<_>>(), 9);
        assert_eq!(canvas.y, 2.0 * LANE, "{}", canvas.svg);
    }
}
