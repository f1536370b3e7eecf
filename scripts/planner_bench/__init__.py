"""The planner's benchmark tables: one module for each, run by scripts/bench_planner."""
