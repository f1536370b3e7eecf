"""The tables of `cargo bench --bench planner`: times at fast effort without reading the file, random problems."""
import os
import re
import subprocess

from .common import ROOT, Table

BUILD = ["cargo", "bench", "--quiet", "--locked", "--no-default-features", "--features", "cli,onnx,keras", "--bench",
         "planner", "--"]


def run(bench, name):
    (fast if name == "fast" else robust)(bench, name)


def fast(bench, name):
    sizes = bench.options.sizes or ["1k", "10k", "175k"]
    files = [bench.graph(f"{family}_{size}")[1] for size in sizes for family in bench.options.families]
    copied(bench, name, "Planning at fast effort, reading the file not counted", ["fast", *files],
           ["`blocks`: residual blocks that the benchmark makes itself; medians of five runs, of three for the largest."])


def robust(bench, name):
    table = copied(bench, name, "Random problems", ["robust", str(bench.options.instances or 10_000)],
                   ["Each problem is planned twice: in full, and stopped after a random time below 3 ms. Every plan is "
                    "proven by `plan::check` and `check_costgraph`, caps and all; a full plan is no worse than any one "
                    "device that fits."])
    for line in output(bench, ["threads"]):
        table.say(line)
    table.close()
    copied(bench, "memory", "Memory of planning", ["memory"], []).close()


def copied(bench, name, title, args, notes):
    """A table whose rows another program prints."""
    lines = iter(output(bench, args))
    table = Table(bench, name, title, next(line for line in lines if line.startswith("|")).strip("| ").split(" | "))
    for line in lines:
        if not re.fullmatch(r"\|(-+\|)+", line):
            table.say(line)
    table.notes(*notes)
    table.close()
    return table


def output(bench, args):
    program = [os.path.abspath(bench.options.in_process)] if bench.options.in_process else BUILD
    ran = subprocess.run([*program, *args], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                         env={**os.environ, "CARGO_TERM_COLOR": "never"})
    return ran.stdout.splitlines()
