//! The `partition` program.

fn main() -> std::process::ExitCode {
    partition::cli::main()
}
