//! What can be measured of the scheduler.
//!
//! `cargo bench --bench scheduler` prints all tables; `-- TABLE [ARGUMENT...]` one of them:
//! `arena [NAME...]` peaks, lower bounds and arenas of the corpus (those models whose names hold one
//! of the words); `batch [NAME...]` the largest batches of ten models beside brute force;
//! `hidden [NAME...]` how much of the copying hides behind compute, beside the order of
//! earliest starts; `predict [NAME...]` predicted and measured steps; `steps [NAME...]` allocations
//! and memory of steps; `simulator` how fast it is; `plan-size` how long plans take to write and load;
//! `pipelines [COSTGRAPH.json...]` bubbles beside those of theory, and orders on these graphs.

#[allow(missing_docs, unreachable_pub, reason = "shared with the tests")]
#[path = "../../tests/suite/allocations.rs"]
mod allocations;
#[allow(missing_docs, unreachable_pub, dead_code, reason = "shared with the tests")]
#[path = "../../tests/suite/networks.rs"]
mod networks;
#[allow(missing_docs, unreachable_pub, reason = "shared with the tests")]
#[path = "../../tests/suite/rule.rs"]
mod rule;

mod arena;
mod batch;
mod corpus;
mod hidden;
mod pipelines;
mod plan_size;
mod predict;
mod random;
mod simulator;
mod steps;

/// A table's name, and what prints it.
type Table = (&'static str, fn(&[String]));

const TABLES: [Table; 8] = [
    ("arena", arena::print),
    ("batch", batch::print),
    ("hidden", hidden::print),
    ("predict", predict::print),
    ("steps", steps::print),
    ("simulator", simulator::print),
    ("plan-size", plan_size::print),
    ("pipelines", pipelines::print),
];

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
