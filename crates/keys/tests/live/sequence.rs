//! Random requests, deterministic for a seed. Indexes in them are relative to the first one.

#[derive(Clone, Debug)]
pub struct Step {
    pub method: &'static str,
    pub path: String,
    pub query: String,
    pub form: String,
}

pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.below(choices.len() as u64)).expect("small")]
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

const NAMES: [&str; 6] = ["a", "b", "_h", "%C3%A4%20x", "z", "a"];
const VALUES: [&str; 7] = ["x", "y", "", "%3C%26%3E%22%5C", "a+b%0A", "%C3%A4", "%ff"];
const FLAGS: [&str; 6] = ["true", "true", "false", "1", "T", "perhaps"];

fn path(dice: &mut Dice) -> String {
    match dice.below(25) {
        0 => String::from("/"),
        1 => String::new(),
        _ => (0..1 + dice.below(3)).map(|_| format!("/{}", dice.pick(&NAMES))).collect(),
    }
}

/// A field of a form, sometimes.
fn field(dice: &mut Dice, percent: u64, name: &str, values: &[&str]) -> Option<String> {
    dice.chance(percent).then(|| format!("{name}={}", dice.pick(values)))
}

/// `written` is how many indexes there are so far.
pub fn step(dice: &mut Dice, written: u64) -> Step {
    let method = dice.pick(&["GET", "GET", "PUT", "PUT", "PUT", "PUT", "POST", "DELETE", "DELETE", "HEAD"]);
    let writes = matches!(method, "PUT" | "POST");
    let mut fields: Vec<String> = Vec::new();
    fields.extend(field(dice, if writes { 75 } else { 3 }, "value", &VALUES));
    fields.extend(field(dice, 15, "dir", &FLAGS));
    fields.extend(field(dice, if method == "GET" { 50 } else { 25 }, "recursive", &FLAGS));
    fields.extend(field(dice, 10, "sorted", &FLAGS));
    fields.extend(field(dice, 10, "quorum", &FLAGS));
    fields.extend(field(dice, 12, "prevExist", &FLAGS));
    fields.extend(field(dice, 12, "prevValue", &["x", "y", "", "x", "%C3%A4"]));
    if dice.chance(12) {
        let index = (1 + written).saturating_sub(dice.below(6));
        fields.push(format!("prevIndex=@{index}"));
    }
    fields.extend(field(dice, 10, "ttl", &["1000", "100000", "", "-1", "x", "1.5"]));
    fields.extend(field(dice, 4, "refresh", &FLAGS));
    fields.extend(field(dice, 4, "noValueOnSuccess", &FLAGS));
    fields.extend(field(dice, 1, "waitIndex", &["x", "-1"]));
    fields.extend(field(dice, 1, "%zz", &["x"]));
    let in_form = writes && dice.chance(70);
    let all = fields.join("&");
    let (query, form) = if in_form { (String::new(), all) } else { (all, String::new()) };
    Step { method, path: path(dice), query, form }
}

impl Step {
    /// As this side must be asked, whose indexes begin after `base`.
    pub fn at(&self, base: u64) -> (String, String) {
        let absolute = |text: &str| {
            let Some((before, rest)) = text.split_once('@') else { return text.to_owned() };
            let digits = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
            let index: u64 = rest[..digits].parse().expect("a number");
            format!("{before}{}{}", index + base, &rest[digits..])
        };
        (format!("/v2/keys{}?{}", self.path, absolute(&self.query)), absolute(&self.form))
    }
}
