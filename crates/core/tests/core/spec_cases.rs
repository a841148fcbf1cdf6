//! Runs every case of `tests/spec/*.txt`: a spec, and the problems that an operator is shown for it.
//!
//! A case is a line `== what it shows`, the YAML, a line `----`, and the expected output. `[memory 4GiB]` in the first line
//! sets the machine's memory. `UPDATE_CASES=1` writes the actual output; review the difference before keeping it.

use std::path::{Path, PathBuf};
use std::{env, fs};

use quorate_core::spec::{Document, HostFacts, Size};

struct Case {
    title: String,
    yaml: String,
    expected: String,
}

fn cases(content: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let mut in_yaml = true;
    for line in content.lines() {
        if let Some(title) = line.strip_prefix("== ") {
            cases.push(Case { title: title.to_owned(), yaml: String::new(), expected: String::new() });
            in_yaml = true;
        } else if line == "----" {
            in_yaml = false;
        } else if let Some(case) = cases.last_mut() {
            let part = if in_yaml { &mut case.yaml } else { &mut case.expected };
            part.push_str(line);
            part.push('\n');
        }
    }
    for case in &mut cases {
        case.expected = case.expected.trim_end().to_owned();
    }
    cases
}

fn host(title: &str) -> HostFacts {
    let memory = title.split_once("[memory ").and_then(|(_, rest)| rest.split_once(']'));
    HostFacts { memory: memory.map(|(size, _)| size.parse::<Size>().expect("a size in the title").0) }
}

fn shown(case: &Case) -> String {
    let (spec, problems) = match Document::parse("cluster.yaml", &case.yaml) {
        Ok(document) => {
            let checked = document.spec(&host(&case.title));
            (checked.spec, checked.problems)
        }
        Err(problems) => (None, problems),
    };
    let mut output: Vec<String> = problems.iter().map(|problem| problem.render(&case.yaml)).collect();
    output.push(if spec.is_some() { "accepted" } else { "refused" }.to_owned());
    output.join("\n")
}

fn files() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/spec");
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn every_case_shows_what_it_says() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for file in files() {
        let cases = cases(&fs::read_to_string(&file).unwrap());
        assert!(!cases.is_empty(), "no case in {}", file.display());
        count += cases.len();
        let outputs: Vec<String> = cases.iter().map(shown).collect();
        if env::var_os("UPDATE_CASES").is_some() {
            let written = cases.iter().zip(&outputs);
            let written = written.map(|(case, output)| format!("== {}\n{}----\n{output}\n", case.title, case.yaml));
            fs::write(&file, written.collect::<Vec<_>>().join("\n")).unwrap();
            continue;
        }
        for (case, output) in cases.iter().zip(outputs) {
            if output != case.expected {
                wrong.push(format!(
                    "{}: {}\nexpected:\n{}\nfound:\n{output}",
                    file.display(),
                    case.title,
                    case.expected
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {count} cases:\n\n{}", wrong.len(), wrong.join("\n\n"));
}
