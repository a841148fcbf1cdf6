//! For tests only: damages good samples of what quorate parses, and passes them to the parser. A parser may refuse its input; it
//! must not panic or take long. `cargo xtask fuzz` also limits its memory.
//!
//! By default a campaign is short and deterministic, so it is part of every test run. `QUORATE_FUZZ_SECONDS` makes it run that
//! long, with new input; the seed is printed, and `QUORATE_FUZZ_SEED` repeats it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Of a campaign that is part of every test run.
const CASES: u64 = 3000;
/// Of the processor. A reader that takes longer for one input hangs: an input has at most [`LONGEST`] bytes.
const PATIENCE: Duration = Duration::from_secs(10);
const LONGEST: usize = 64 << 10;
/// What breaks readers of numbers.
const NUMBERS: [&str; 10] = [
    "0",
    "-1",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "18446744073709551615",
    "99999999999999999999999999",
    "1e999",
    "0.1",
];
/// What breaks readers of text.
const WORDS: [&str; 20] = [
    "null",
    "{}",
    "[]",
    "\"\"",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\u0000",
    "\n",
    "\0",
    "\u{1b}[2J",
    "../",
    "/",
    "&a ",
    "*a",
    "<<: ",
    "- ",
    ": ",
];

/// Has `read` read damaged samples. It fails the test when `read` panics or takes too long, and prints the input.
pub fn campaign(samples: &[Vec<u8>], read: impl Fn(&[u8])) {
    campaign_of(CASES, samples, read);
}

/// The same with fewer inputs, for a reader that needs files.
pub fn short_campaign(samples: &[Vec<u8>], read: impl Fn(&[u8])) {
    campaign_of(CASES / 20, samples, read);
}

fn campaign_of(most: u64, samples: &[Vec<u8>], read: impl Fn(&[u8])) {
    let seconds = variable("QUORATE_FUZZ_SECONDS");
    let seed = variable("QUORATE_FUZZ_SEED").unwrap_or_else(|| if seconds.is_some() { clock() } else { 1 });
    let deadline = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    samples.iter().for_each(|sample| attempt(sample, seed, 0, &read));
    let mut chance = Chance(seed);
    let mut cases = 0;
    while deadline.map_or(cases < most, |deadline| Instant::now() < deadline) {
        cases += 1;
        attempt(&damaged(samples, &mut chance), seed, cases, &read);
    }
    println!("{cases} inputs, seed {seed}");
}

fn attempt(input: &[u8], seed: u64, case: u64, read: &impl Fn(&[u8])) {
    let before = processor_time();
    let ended = catch_unwind(AssertUnwindSafe(|| read(input)));
    let took = processor_time().saturating_sub(before);
    if let Err(panic) = ended {
        println!("seed {seed}, input {case}: {}", input.escape_ascii());
        resume_unwind(panic);
    }
    assert!(took < PATIENCE, "seed {seed}, input {case} took {took:?}: {}", input.escape_ascii());
}

/// That this thread has used, in steps of 10 ms. A clock would also count the time that a busy machine gives to others.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux has it");
    let (_, fields) = stat.rsplit_once(')').expect("the name of the thread");
    let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum::<u64>();
    Duration::from_millis(ticks * 10)
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64)
}

/// A generator of numbers (splitmix64): the same for the same seed.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `end`, which is not zero.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn of<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }

    /// A place in so many bytes, and a short stretch from there.
    fn stretch(&mut self, length: usize) -> std::ops::Range<usize> {
        let from = self.below(length + 1);
        from..(from + self.below(32)).min(length)
    }
}

fn damaged(samples: &[Vec<u8>], chance: &mut Chance) -> Vec<u8> {
    let mut input = if samples.is_empty() || chance.below(50) == 0 {
        (0..chance.below(200)).map(|_| chance.next() as u8).collect()
    } else {
        samples[chance.below(samples.len())].clone()
    };
    for _ in 0..=chance.below(6) {
        damage(&mut input, samples, chance);
        input.truncate(LONGEST);
    }
    input
}

fn damage(input: &mut Vec<u8>, samples: &[Vec<u8>], chance: &mut Chance) {
    let length = input.len();
    let at = chance.below(length + 1);
    match chance.below(10) {
        0 if length > 0 => input[at % length] ^= 1 << chance.below(8),
        1 if length > 0 => input[at % length] = chance.next() as u8,
        2 => input.truncate(at),
        3 => drop(input.drain(chance.stretch(length))),
        4 => {
            let copy = input[chance.stretch(length)].to_vec();
            insert(input, at, &copy.repeat(1 + chance.below(4)));
        }
        5 if !samples.is_empty() => {
            let other = &samples[chance.below(samples.len())];
            let part = other[chance.stretch(other.len())].to_vec();
            insert(input, at, &part);
        }
        6 => replace_number(input, at, chance.of(&NUMBERS).as_bytes()),
        7 => insert(input, at, chance.of(&WORDS).as_bytes()),
        // Nesting that exhausts the stack of a reader that calls itself.
        8 if chance.below(20) == 0 => {
            insert(input, at, chance.of(&["[", "{\"a\":", "(", "- "]).repeat(8000).as_bytes())
        }
        _ => {
            let bytes = [[0; 8], [0xff; 8], chance.next().to_le_bytes()][chance.below(3)];
            let end = (at + 8).min(length);
            input[at..end].copy_from_slice(&bytes[..end - at]);
        }
    }
}

fn insert(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    input.splice(at..at, bytes.iter().copied());
}

/// The first number at or after a place becomes another one.
fn replace_number(input: &mut Vec<u8>, at: usize, number: &[u8]) {
    let Some(from) = input[at..].iter().position(u8::is_ascii_digit).map(|offset| at + offset) else { return };
    let digits = input[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    input.splice(from..from + digits, number.iter().copied());
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_input_and_another_gives_another() {
        let samples = [b"{\"fence\": 12}".to_vec(), b"some text".to_vec()];
        let inputs = |seed| (0..50).scan(Chance(seed), |chance, _| Some(damaged(&samples, chance))).collect::<Vec<_>>();
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1), inputs(2));
    }

    #[test]
    fn numbers_are_replaced_whole() {
        let mut input = b"{\"fence\": 12, \"a\": 3}".to_vec();
        replace_number(&mut input, 4, b"18446744073709551615");
        assert_eq!(input, b"{\"fence\": 18446744073709551615, \"a\": 3}");
        replace_number(&mut input, 39, b"1");
    }

    #[test]
    fn a_reader_that_panics_fails_the_campaign() {
        let read = Cell::new(0);
        campaign(&[b"1234".to_vec()], |_| read.set(read.get() + 1));
        assert_eq!(read.get(), CASES + 1);
        let careless = |input: &[u8]| assert!(!input.starts_with(b"-1"), "a number below zero");
        assert!(catch_unwind(AssertUnwindSafe(|| campaign(&[b"1234".to_vec()], careless))).is_err());
    }
}
