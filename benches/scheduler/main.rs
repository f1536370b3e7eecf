//! What can be measured of the scheduler.
//!
//! `cargo bench --bench scheduler` prints all tables; `-- TABLE [ARGUMENT...]` one of them:
//! `arena [NAME...]` peaks, lower bounds and arenas of the corpus (those models whose names hold one
//! of the words).

#[allow(missing_docs, unreachable_pub, dead_code, reason = "shared with the tests")]
#[path = "../../tests/suite/networks.rs"]
mod networks;
#[allow(missing_docs, unreachable_pub, reason = "shared with the tests")]
#[path = "../../tests/suite/rule.rs"]
mod rule;

mod arena;
mod corpus;

/// A table's name, and what prints it.
type Table = (&'static str, fn(&[String]));

const TABLES: [Table; 1] = [("arena", arena::print)];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.split_first() {
        None => TABLES.iter().for_each(|(_, print)| print(&[])),
        Some((name, rest)) => match TABLES.iter().find(|(table, _)| table == name) {
            Some((_, print)) => print(rest),
            None => {
                let names: Vec<&str> = TABLES.iter().map(|(table, _)| *table).collect();
                eprintln!("no table {name}; there are {}", names.join(", "));
                std::process::exit(2);
            }
        },
    }
}
