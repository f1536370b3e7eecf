//! Tests as data: every file under `tests/cases/` is a command, one or more inputs, and what comes of each.
//!
//! ```text
//! # What the case shows.
//! run: group
//! ==== input
//! graph "case"
//! ...
//! ==== output
//! graph "case"
//! ...
//! ```
//!
//! `BLESS=1 cargo test --test suite cases::` writes the outputs anew; read the difference before it is
//! committed. The commands stand in [`run`]; `partition ...` runs the program in a folder that holds the
//! case's other sections as files.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use partition::Error;
use partition::unstable::ir::text::parse;
use partition::unstable::ir::{Graph, verify};
use partition::unstable::pass as passes;
use partition::unstable::pass::GroupOptions;
use partition::unstable::place as placing;
use partition::unstable::plan::Plan;
use partition::unstable::topology::Topology;

use crate::cli::partition_in;
use crate::schedule_case::{Problem, scheduled};
use crate::{kernels, topology};

/// A file of cases.
struct CaseFile {
    path: PathBuf,
    /// The comment and the command, as they stand.
    head: String,
    command: Vec<String>,
    sections: Vec<Section>,
}

/// What stands below a line `==== name`, without the line's end before the next one.
struct Section {
    name: String,
    text: String,
}

impl CaseFile {
    fn read(path: PathBuf) -> Self {
        let text = std::fs::read_to_string(&path).unwrap();
        let mut parts = text.split("==== ");
        let head = parts.next().unwrap_or_default().to_owned();
        let comment = head.lines().next().unwrap_or_default();
        assert!(comment.starts_with("# "), "{}: the first line says what the case shows", path.display());
        let command = head.lines().find_map(|line| line.strip_prefix("run: "));
        let command = command.unwrap_or_else(|| panic!("{}: no line `run: ...`", path.display()));
        let command = command.split_whitespace().map(str::to_owned).collect();
        let sections = parts.map(|part| {
            let (name, text) = part.split_once('\n').unwrap_or((part, ""));
            Section { name: name.to_owned(), text: text.to_owned() }
        });
        let sections = sections.collect();
        Self { path, head, command, sections }
    }

    /// Sets every section `output` to what its command makes of the sections before it.
    fn outputs(&self) -> Vec<String> {
        let mut files: Vec<&Section> = Vec::new();
        let mut outputs = Vec::new();
        for section in &self.sections {
            if section.name == "output" {
                outputs.push(run(&self.command, &files));
                files.clear();
            } else {
                files.push(section);
            }
        }
        assert!(files.is_empty() && !outputs.is_empty(), "{}: an input without output", self.path.display());
        outputs
    }

    /// The file with these outputs.
    fn with(&self, outputs: &[String]) -> String {
        let mut outputs = outputs.iter();
        let mut text = self.head.clone();
        for section in &self.sections {
            let body = if section.name == "output" { outputs.next().unwrap() } else { &section.text };
            write!(text, "==== {}\n{body}", section.name).unwrap();
        }
        text
    }
}

/// What a command makes of its input sections.
fn run(command: &[String], sections: &[&Section]) -> String {
    let input = named(sections, "input").unwrap_or_default();
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let text = match &*words {
        ["print"] => graph(input).map(|graph| graph.to_string()).unwrap_or_else(|error| message(&error)),
        ["pass", names @ ..] => passed(input, names),
        ["group"] => grouped(input),
        ["kernels"] => kernels::printed(&graph(input).unwrap()),
        ["check"] => checked(input),
        ["plan-text"] => match crate::plan::small(input) {
            Ok(plan) => plan.to_text(),
            Err(error) => message(&error),
        },
        ["spec"] => match Topology::parse(input.trim_end_matches('\n')) {
            Ok(topology) => topology::full(&topology),
            Err(error) => message(&error),
        },
        ["devices", form] => topology::loaded(&format!("devices.{form}"), input),
        ["schedule"] => scheduled(&Problem::read(input, named(sections, "devices.toml"))),
        ["place", options @ ..] => placed(&Problem::read(input, named(sections, "devices.toml")), options),
        ["partition", arguments @ ..] => program(arguments, sections),
        other => panic!("unknown command {other:?}"),
    };
    let mut text = text.trim_end().to_owned();
    text.push('\n');
    text
}

/// The text of the section with a name.
fn named<'a>(sections: &[&'a Section], name: &str) -> Option<&'a str> {
    sections.iter().find(|section| section.name == name).map(|section| section.text.as_str())
}

fn graph(text: &str) -> Result<Graph, Error> {
    let graph = parse(text)?;
    verify(&graph)?;
    Ok(graph)
}

/// An error with its details, as a terminal would show it.
fn message(error: &Error) -> String {
    let mut text = format!("error: {error}\n");
    for line in error.details() {
        writeln!(text, "    {line}").unwrap();
    }
    text
}

fn passed(text: &str, names: &[&str]) -> String {
    let mut graph = graph(text).unwrap();
    for &name in names {
        match name {
            "fold" => passes::fold(&mut graph).unwrap(),
            "simplify" => passes::simplify(&mut graph).unwrap(),
            "cse" => passes::cse(&mut graph).unwrap(),
            "dce" => passes::dce(&mut graph).unwrap(),
            "fuse" => passes::fuse(&mut graph, &[]).unwrap(),
            other => panic!("unknown pass {other}"),
        };
        verify(&graph).unwrap();
    }
    graph.to_string()
}

fn grouped(text: &str) -> String {
    let graph = graph(text).unwrap();
    let grouping = passes::group(&graph, &GroupOptions::default());
    grouping.verify(&graph).unwrap();
    grouping.dump(&graph)
}

/// What the checker says of a plan whose buffers and steps are given.
fn checked(body: &str) -> String {
    match crate::plan::small(body)
        .map_err(|error| message(&error))
        .map(|plan: Plan| partition::unstable::plan::check(&plan))
    {
        Ok(Ok(checked)) => format!("sound: {} moved", checked.moved),
        Ok(Err(error)) => error.details().join("\n"),
        Err(text) => text,
    }
}

/// Where a cost graph's nodes go, and what it costs.
fn placed(problem: &Problem, options: &[&str]) -> String {
    let mut asked = placing::Options::default();
    for option in options {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "pin" => asked.pins.extend(value.split_once(':').map(|(node, to)| (node.into(), to.into()))),
            "colocate" => asked.colocate.push(value.to_owned()),
            "devices" => asked.devices = value.parse().unwrap(),
            "objective" => asked.objective = value.parse().unwrap(),
            other => panic!("unknown option {other}"),
        }
    }
    let placement = match placing::place(&problem.graph, &problem.topology, &asked) {
        Ok(placement) => placement,
        Err(error) => return message(&error),
    };
    let mut text = String::new();
    for node in problem.graph.nodes() {
        let device = problem.topology.device(placement.device[node.index()]);
        writeln!(text, "{} on {}", problem.graph.node_name(node), device.name).unwrap();
    }
    let cost = placing::evaluate(&problem.graph, &problem.topology, &placement).unwrap();
    writeln!(text, "{} per step, at most {} on a device", cost.step_bytes, cost.max_load).unwrap();
    text
}

/// What the program prints and how it exits, in a folder with the sections as files.
fn program(arguments: &[&str], sections: &[&Section]) -> String {
    let folder = tempfile::tempdir().unwrap();
    for section in sections {
        std::fs::write(folder.path().join(&section.name), &section.text).unwrap();
    }
    let ran = partition_in(folder.path(), arguments, None);
    let mut text = ran.stdout;
    if !ran.stderr.is_empty() {
        write!(text, "-- stderr\n{}", ran.stderr).unwrap();
    }
    if ran.code != 0 {
        writeln!(text, "-- exit code {}", ran.code).unwrap();
    }
    text
}

/// Files under a folder, in the order of their names.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let is_folder = entry.file_type().unwrap().is_dir();
            if is_folder { open.push(entry.path()) } else { found.push(entry.path()) }
        }
    }
    found.sort();
    found
}

/// The cases of one folder. Every difference is shown before the test fails.
fn check_folder(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(name);
    let mut faults = String::new();
    let files = files(&folder);
    assert!(!files.is_empty(), "{} is empty", folder.display());
    for path in files {
        let case = CaseFile::read(path);
        let expected = case.with(&case.sections_named("output"));
        let found = case.with(&case.outputs());
        if found == expected {
            continue;
        }
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&case.path, found).unwrap();
        } else {
            writeln!(faults, "{}\n{}", case.path.display(), difference(&expected, &found)).unwrap();
        }
    }
    assert!(faults.is_empty(), "{faults}BLESS=1 writes what was found");
}

impl CaseFile {
    fn sections_named(&self, name: &str) -> Vec<String> {
        let named = self.sections.iter().filter(|section| section.name == name);
        named.map(|section| section.text.clone()).collect()
    }
}

/// The lines from the first to the last that differ.
fn difference(expected: &str, found: &str) -> String {
    let (expected, found): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), found.lines().collect());
    let same = expected.iter().zip(&found).take_while(|(a, b)| a == b).count();
    let most = expected.len().min(found.len()) - same;
    let tail = expected.iter().rev().zip(found.iter().rev()).take(most).take_while(|(a, b)| a == b).count();
    let mut text = String::new();
    expected[same..expected.len() - tail].iter().for_each(|line| writeln!(text, "  - {line}").unwrap());
    found[same..found.len() - tail].iter().for_each(|line| writeln!(text, "  + {line}").unwrap());
    text
}

macro_rules! folders {
    ($($name:ident),*) => {
        $(mod $name {
            #[test]
            fn cases() {
                super::check_folder(stringify!($name));
            }
        })*

        #[test]
        fn every_folder_of_cases_is_run() {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
            let mut found: Vec<String> = std::fs::read_dir(folder)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            found.sort();
            assert_eq!(found, [$(stringify!($name)),*]);
        }
    };
}

folders!(check, group, ir, kernel, pass, place, plan, schedule, spec);
