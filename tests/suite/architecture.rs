//! Reads the sources and fails on a `use` that points up in the module table of ARCHITECTURE.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// From the bottom up: each module may use only what stands before it.
const MODULES: &[&str] = &[
    "units",
    "escape",
    "error",
    "json",
    "files",
    "control",
    "csr",
    "order",
    "random",
    "ir",
    "costgraph",
    "topology",
    "load",
    "data",
    "metrics",
    "kernel",
    "cost",
    "pass",
    "place",
    "schedule",
    "strategy",
    "plan",
    "explain",
    "state",
    "emit",
    "run",
    "report",
    "compile",
    "fit",
    "calibrate",
    "train",
    "cli",
];

fn sources() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("src is readable") {
            let path = entry.expect("src is readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// The module of a file: the first part of its path under `src`.
fn module_of(path: &Path) -> String {
    let under = path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).expect("a file of src");
    let first = under.components().next().expect("a file name").as_os_str().to_string_lossy().into_owned();
    first.trim_end_matches(".rs").to_owned()
}

/// The modules named after `crate::` in the non-test part of a file.
fn mentioned(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim() == "#[cfg(test)]" {
            break;
        }
        let code = line.split("//").next().unwrap_or_default();
        for part in code.split("crate::").skip(1) {
            let names = part.strip_prefix('{').map_or_else(
                || vec![part],
                |list| list.split(['{', '}']).next().unwrap_or_default().split(',').collect(),
            );
            for name in names {
                let end = name.trim().find(|c: char| !c.is_alphanumeric() && c != '_');
                let name = name.trim();
                found.push((number + 1, name[..end.unwrap_or(name.len())].to_owned()));
            }
        }
    }
    found
}

fn rank(module: &str) -> Option<usize> {
    MODULES.iter().position(|one| *one == module)
}

#[test]
fn no_module_uses_one_above_it() {
    let mut wrong = Vec::new();
    let mut arrows = 0;
    for path in sources() {
        let module = module_of(&path);
        let Some(own) = rank(&module) else {
            assert!(matches!(module.as_str(), "lib" | "main"), "{module} is missing in the module table");
            continue;
        };
        let text = fs::read_to_string(&path).expect("a source is text");
        for (line, used) in mentioned(&text) {
            let Some(other) = rank(&used) else { continue };
            arrows += 1;
            if other > own {
                wrong.push(format!("{}:{line}: {module} uses {used}", path.display()));
            }
        }
    }
    assert!(arrows > 50, "only {arrows} arrows found: the test reads nothing");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_table_in_the_architecture_page_is_this_one() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("ARCHITECTURE.md"))
        .expect("it is there");
    let mut last = 0;
    for module in MODULES.iter().filter(|module| {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(module).exists()
            || Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/{module}.rs")).exists()
    }) {
        let position = page.find(&format!("| `{module}`")).unwrap_or_else(|| panic!("{module} has no row"));
        assert!(position > last, "the row of {module} stands too early");
        last = position;
    }
}

#[test]
fn planning_never_touches_running() {
    for path in sources() {
        let module = module_of(&path);
        if !matches!(module.as_str(), "place" | "schedule" | "strategy" | "cost" | "pass" | "plan") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a source is text");
        for (line, used) in mentioned(&text) {
            assert!(used != "run" && used != "emit", "{}:{line} uses {used}", path.display());
        }
    }
}

#[test]
fn the_checker_shares_no_code_with_the_planner() {
    for path in sources().iter().filter(|path| path.to_string_lossy().contains("/plan/check")) {
        let text = fs::read_to_string(path).expect("a source is text");
        for (line, used) in mentioned(&text) {
            assert!(
                !matches!(used.as_str(), "place" | "schedule" | "strategy" | "cost" | "kernel" | "pass"),
                "{}:{line} uses {used}",
                path.display()
            );
        }
    }
}

/// A file with `unsafe` says so in its header, and ARCHITECTURE.md says which files those are.
#[test]
fn files_with_unsafe_say_so() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("ARCHITECTURE.md"))
        .expect("it is there");
    let list = page.split("- **`unsafe` is in few files**").nth(1).expect("the page lists them");
    let list: String = list.split("\n- ").next().unwrap_or_default().split_whitespace().collect();
    let mut holders = 0;
    for path in sources() {
        let text = fs::read_to_string(&path).expect("a source is text");
        let uses = text.lines().any(|line| {
            let code = line.split("//").next().unwrap_or_default();
            code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe")
        });
        let says =
            text.lines().take_while(|line| line.starts_with("//!")).any(|line| line.contains("`unsafe`"));
        assert_eq!(uses, says, "{}: has unsafe, and says so in its header", path.display());
        if uses {
            holders += 1;
            let name = path.to_string_lossy().replace('\\', "/");
            let name = name.rsplit_once("/src/").expect("a file of src").1.to_owned();
            let name = name.strip_suffix(".rs").unwrap_or(&name).trim_end_matches("/mod");
            assert!(list.contains(&format!("`{name}`")), "{name} is missing in ARCHITECTURE.md");
        }
    }
    assert!(holders > 10, "only {holders} files found: the test reads nothing");
}

/// What the crate is built of stands in a table, and nothing else does.
#[test]
fn dependencies_have_rows() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("it is there");
    let mut section = "";
    let mut used: Vec<&str> = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        } else if let Some((name, _)) = line.split_once(" = ").filter(|_| section.ends_with("dependencies]"))
        {
            used.push(name);
        }
    }
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("it is there");
    let table = page.split("| crate | what for |").nth(1).expect("the page has the table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let mut listed: Vec<&str> = rows
        .filter_map(|row| row.split('|').nth(1))
        .flat_map(|names| names.split(',').map(|name| name.trim().trim_matches('`')))
        .collect();
    for names in [&mut used, &mut listed] {
        names.sort_unstable();
        names.dedup();
    }
    assert!(used.len() > 25, "only {} dependencies found: the test reads nothing", used.len());
    assert_eq!(listed, used);
}

/// Files that users name are opened in one place, which knows what may be opened. What else opens files writes
/// them, keeps a store's own, or reads what the system tells of itself; a line that reads says so.
#[test]
fn files_are_opened_to_read_in_one_place() {
    const READS: &[&str] =
        &["File::open(", "fs::read(", "fs::read_to_string(", "read_to_string(path", ".read(true)"];
    const ALLOWED: &[&str] = &["files/read.rs", "run/probe.rs"];
    let mut wrong = Vec::new();
    let mut allowed = 0;
    for path in sources() {
        let text = fs::read_to_string(&path).expect("a source is text");
        for (number, line) in text.lines().enumerate() {
            if line.trim().starts_with("#[cfg(") && line.contains("test") {
                break;
            }
            let code = line.split("//").next().unwrap_or_default();
            if !READS.iter().any(|read| code.contains(read)) || code.contains("sync_all()") {
                continue;
            }
            let name = path.to_string_lossy().replace('\\', "/");
            match ALLOWED.iter().any(|file| name.ends_with(&format!("/src/{file}"))) {
                true => allowed += 1,
                false => wrong.push(format!("{}:{}: {}", path.display(), number + 1, line.trim())),
            }
        }
    }
    assert!(allowed > 2, "only {allowed} found: the test reads nothing");
    assert!(wrong.is_empty(), "use crate::files:\n{}", wrong.join("\n"));
}

/// The pages for readers, and all of `docs`.
fn pages(root: &Path) -> Vec<PathBuf> {
    let docs = fs::read_dir(root.join("docs")).expect("docs is readable");
    let mut pages: Vec<PathBuf> = docs.map(|entry| entry.expect("docs is readable").path()).collect();
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|page| root.join(page)));
    pages.sort();
    pages
}

/// What a page puts in backquotes is there: paths that begin with a folder of the project, and files of Rust, which
/// may be called by the end of their paths under `src`, or by their names in `tests/suite`.
#[test]
fn pages_name_files_that_exist() {
    const FOLDERS: &[&str] =
        &["src/", "tests/", "docs/", "kernels/", "scripts/", "benches/", "examples/", "snapshots/"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = String::new();
    for path in sources() {
        files += &format!("/{}\n", path.strip_prefix(root).expect("a file of src").display());
    }
    let files = files.replace('\\', "/");
    let is_there = |path: &str| match FOLDERS.iter().any(|folder| path.starts_with(folder)) {
        true => root.join(path).exists(),
        false => files.contains(&format!("/{path}\n")) || root.join("tests/suite").join(path).exists(),
    };
    let mut named = 0;
    for page in pages(root) {
        let text = fs::read_to_string(&page).expect("the page is there");
        // Every other part between backquotes is quoted.
        for quoted in text.split('`').skip(1).step_by(2) {
            let path = quoted.split_whitespace().next().unwrap_or_default();
            if FOLDERS.iter().any(|folder| path.starts_with(folder)) || path.ends_with(".rs") {
                named += 1;
                assert!(is_there(path), "{} names {path}, which is not there", page.display());
            }
        }
    }
    assert!(named > 250, "only {named} found: the test reads nothing");
}

/// The child of a module that a file belongs to, and `super::` as often as leads from the file to the module's
/// other children. None for the module's own file.
fn child_of(module: &str, path: &Path) -> Option<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(module);
    let under = path.strip_prefix(root).ok()?.to_string_lossy().replace('\\', "/");
    let child = under.split('/').next()?.trim_end_matches(".rs").to_owned();
    let depth = under.trim_end_matches("/mod.rs").matches('/').count() + 1;
    (child != "mod").then(|| (child, "super::".repeat(depth)))
}

/// The names that come after a path in code: one, or all those of a list in braces.
fn names_after(code: &str, path: &str) -> Vec<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut names = Vec::new();
    for (at, _) in code.match_indices(path) {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| is_name(c) || c == ':') {
            continue;
        }
        let rest = &code[at + path.len()..];
        let end = match rest.starts_with('{') {
            true => rest.find(';'),
            false => rest.find(|c| !is_name(c)),
        };
        let words = rest[..end.unwrap_or(rest.len())].split(|c| !is_name(c));
        names.extend(words.filter(|word| !word.is_empty()).map(str::to_owned));
    }
    names
}

/// What each child of a module uses of the others, outside its tests.
fn uses_within(module: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in sources() {
        let Some((child, up)) = child_of(module, &path) else { continue };
        let text = fs::read_to_string(&path).expect("a source is text");
        let lines = text.lines().take_while(|line| line.trim() != "#[cfg(test)]");
        let code: Vec<&str> = lines.map(|line| line.split("//").next().unwrap_or_default()).collect();
        let code = code.join("\n");
        let used = uses.entry(child).or_default();
        used.extend(names_after(&code, &up));
        used.extend(names_after(&code, &format!("crate::{module}::")));
    }
    let children: BTreeSet<String> = uses.keys().cloned().collect();
    for (child, used) in &mut uses {
        used.retain(|name| name != child && children.contains(name));
    }
    uses
}

/// Files and folders of a module can be put in an order in which each uses only what stands before it.
#[test]
fn files_of_a_module_form_no_circle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let folders = fs::read_dir(root).expect("src is readable").map(|entry| entry.expect("src is readable"));
    let mut arrows = 0;
    for folder in folders.filter(|entry| entry.path().is_dir()) {
        let module = folder.file_name().into_string().expect("names are text");
        let mut left = uses_within(&module);
        arrows += left.values().map(BTreeSet::len).sum::<usize>();
        // What uses none of those that are left stands next in the order.
        while let Some(next) = left.iter().find(|(_, used)| used.is_empty()).map(|(child, _)| child.clone()) {
            left.remove(&next);
            left.values_mut().for_each(|used| used.retain(|name| *name != next));
        }
        assert!(left.is_empty(), "{module}: in a circle, or above one: {left:?}");
    }
    assert!(arrows > 300, "only {arrows} arrows found: the test reads nothing");
}
