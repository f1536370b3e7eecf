//! What embedders may rely on, listed: each item at the top of the crate with its fields, variants, methods and
//! traits, read from the sources. The listing changes where the surface does, and is read then.
//!
//! Sources are formatted by rustfmt, which the reading relies on: an item ends with a brace, or a semicolon, that is
//! indented as its first line is.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// An item at the top: where it comes from, and its name there.
struct Export {
    module: String,
    name: String,
}

/// What `src/lib.rs` re-exports, by the name that it has at the top.
fn exports() -> BTreeMap<String, Export> {
    let text = fs::read_to_string(source().join("lib.rs")).unwrap();
    let top = text.split("\npub mod unstable").next().unwrap();
    let mut found = BTreeMap::new();
    for statement in top.split("\npub use ").skip(1) {
        let statement = statement.split(';').next().unwrap();
        let (path, names) = match statement.split_once("::{") {
            Some((path, names)) => (path, names.trim_end_matches('}')),
            None => statement.rsplit_once("::").unwrap(),
        };
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let (name, top) = name.split_once(" as ").unwrap_or((name, name));
            found.insert(top.to_owned(), Export { module: path.to_owned(), name: name.to_owned() });
        }
    }
    found
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The sources of a module and of all within it, in the order of their names.
fn sources(module: &str) -> Vec<String> {
    let path = source().join(module.replace("::", "/"));
    let mut files = Vec::new();
    if path.with_extension("rs").is_file() {
        files.push(path.with_extension("rs"));
    }
    let mut folders = vec![path];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files.sort();
    let mut texts: Vec<String> = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let made: Vec<String> = texts.iter().flat_map(|text| expansions(text)).collect();
    texts.extend(made);
    texts
}

/// What the macros that make one type each, `index!` and `quantity!`, make in a text: their bodies with the name that
/// stands last in the call.
fn expansions(text: &str) -> Vec<String> {
    let mut made = Vec::new();
    for call in ["index", "quantity"] {
        let opened = format!("\n{call}! {{\n");
        for call_body in text.split(&opened).skip(1) {
            let name = call_body.split("\n}").next().unwrap().lines().last().unwrap().trim();
            made.push(macro_body(call).replace("$name", name));
        }
    }
    made
}

/// The lines that a macro of one arm makes, as far to the left as items stand.
fn macro_body(name: &str) -> String {
    let opened = format!("macro_rules! {name} {{");
    let all = ["units.rs", "costgraph/mod.rs"];
    let texts = all.iter().filter_map(|file| fs::read_to_string(source().join(file)).ok());
    let text =
        texts.into_iter().find(|text| text.contains(&opened)).expect("the macro is in one of these files");
    let body = text.split(&opened).nth(1).unwrap().split("\n}\n").next().unwrap();
    let lines = body.split_once("=> {\n").unwrap().1.lines();
    let items = lines.take_while(|line| *line != "    };");
    items.map(|line| format!("{}\n", line.strip_prefix("        ").unwrap_or(line.trim_start()))).collect()
}

/// The lines of an item that begins with one of these words followed by a name, with the attributes before it.
fn item(text: &str, name: &str) -> Option<(Vec<String>, Vec<String>)> {
    const KINDS: [&str; 6] = ["struct", "enum", "trait", "fn", "type", "const"];
    let lines: Vec<&str> = text.lines().collect();
    let is_first = |line: &str| {
        KINDS.iter().any(|kind| {
            let rest = line.strip_prefix("pub ").and_then(|rest| rest.strip_prefix(kind));
            let rest = rest.and_then(|rest| rest.strip_prefix(' ')?.strip_prefix(name));
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        })
    };
    let first = lines.iter().position(|line| is_first(line))?;
    let attributes =
        lines[..first].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
    let mut attributes: Vec<String> = attributes
        .filter(|line| line.starts_with("#[derive") || line.starts_with("#[non_"))
        .map(|&l| l.into())
        .collect();
    attributes.reverse();
    Some((attributes, block(&lines[first..])))
}

/// Lines up to the brace or the semicolon that ends what the first line begins.
fn block(lines: &[&str]) -> Vec<String> {
    let indent = lines[0].len() - lines[0].trim_start().len();
    let ends = |line: &str| {
        let level = line.len() - line.trim_start().len();
        level == indent && (line.ends_with('}') || line.ends_with(';'))
    };
    let last = lines.iter().position(|line| ends(line)).unwrap_or(0);
    lines[..=last].iter().map(|&line| line.to_owned()).collect()
}

/// A signature on one line, without its body.
fn signature(lines: &[String]) -> String {
    let joined = lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    let end = joined.find(" {").unwrap_or(joined.len());
    joined[..end].replace("( ", "(").replace(", )", ")").trim_end_matches(';').to_owned()
}

/// Fields or variants, without documentation; fields that are private are left out.
fn parts(lines: &[String]) -> Vec<String> {
    let is_enum = lines[0].starts_with("pub enum");
    let inner = lines.get(1..lines.len() - 1).unwrap_or(&[]);
    let plain = inner.iter().map(|line| line.trim_end()).filter(|line| {
        let text = line.trim();
        !text.is_empty() && !text.starts_with("//") && !text.starts_with("#[")
    });
    plain.filter(|line| is_enum || line.trim().starts_with("pub ")).map(str::to_owned).collect()
}

/// Public methods of a type, and the traits that are implemented for it.
fn implementations(texts: &[String], name: &str) -> (Vec<String>, Vec<String>) {
    let (mut methods, mut traits) = (Vec::new(), Vec::new());
    for text in texts {
        let lines: Vec<&str> = text.lines().collect();
        for (i, line) in lines.iter().enumerate().filter(|(_, line)| line.starts_with("impl")) {
            let head = line.trim_end_matches([' ', '{', '}']);
            let target = head.rsplit(" for ").next().unwrap().rsplit(' ').next().unwrap();
            if target.split('<').next() != Some(name) {
                continue;
            }
            if head.contains(" for ") {
                traits.push(head.to_owned());
                continue;
            }
            let body: Vec<&str> =
                lines[i + 1..].iter().take_while(|line| !line.starts_with('}')).copied().collect();
            for (j, line) in body.iter().enumerate() {
                if line.starts_with("    pub fn ") || line.starts_with("    pub const ") {
                    methods.push(signature(&opening(&body[j..])));
                }
            }
        }
    }
    methods.sort();
    traits.sort();
    (methods, traits)
}

/// Lines up to the brace that opens a body, or the semicolon.
fn opening(lines: &[&str]) -> Vec<String> {
    let last =
        lines.iter().position(|line| line.ends_with('{') || line.ends_with(';') || line.ends_with('}'));
    lines[..=last.unwrap_or(0)].iter().map(|&line| line.to_owned()).collect()
}

#[test]
fn the_public_surface_is_the_one_that_was_read() {
    let mut listing = String::new();
    for (top, Export { module, name }) in exports() {
        let texts = sources(&module);
        let Some((attributes, lines)) = texts.iter().find_map(|text| item(text, &name)) else {
            panic!("{module}::{name} is not found: is it made by a macro?");
        };
        writeln!(listing, "{top} = {module}::{name}").unwrap();
        attributes.iter().for_each(|line| writeln!(listing, "    {line}").unwrap());
        let is_function = lines[0].starts_with("pub fn");
        writeln!(listing, "    {}", signature(&lines)).unwrap();
        if is_function {
            continue;
        }
        parts(&lines).iter().for_each(|line| writeln!(listing, "    {line}").unwrap());
        let (methods, traits) = implementations(&texts, &name);
        methods.iter().chain(&traits).for_each(|line| writeln!(listing, "      {line}").unwrap());
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots/public_surface.txt");
    if std::env::var_os("BLESS").is_some() {
        fs::write(&file, &listing).unwrap();
    }
    let known = fs::read_to_string(&file).unwrap_or_default();
    let differs = listing.lines().zip(known.lines()).find(|(new, old)| new != old);
    assert!(listing == known, "the surface changed, first at {differs:?}: read it, then run with BLESS=1");
}
