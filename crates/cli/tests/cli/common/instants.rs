//! Random but repeatable instants, which are printed when a test fails, and how many of them are tried.

/// Printed when the test fails, to know which of many rounds it was.
pub struct Round(pub String);

impl Drop for Round {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this happened when {}", self.0);
        }
    }
}

/// A number that tells one run from another. `QUORATE_TEST_SEED` repeats one.
pub fn seed() -> u64 {
    let given = std::env::var("QUORATE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seed = given.unwrap_or(now.as_millis() as u64 % 1_000_000);
    eprintln!("QUORATE_TEST_SEED={seed}");
    seed
}

/// Of so many rounds with random instants, those that this run makes. CI runs often and tries other instants each time, so it makes a third
/// of them (`cargo xtask test --quick`).
pub fn rounds(all: usize) -> usize {
    if is_quick() { all.div_ceil(3) } else { all }
}

/// Whether a run is killed at this step boundary: at each, or with `--quick` at every third. Which third follows from the seed.
pub fn is_tried(boundary: usize, seed: u64) -> bool {
    !is_quick() || boundary % 3 == (seed % 3) as usize
}

fn is_quick() -> bool {
    std::env::var_os("QUORATE_TEST_QUICK").is_some()
}

/// The `index`-th of the instants that follow from a seed, as a part of the whole (splitmix64).
pub fn instant(seed: u64, index: u64) -> f64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) as f64 / u64::MAX as f64
}
