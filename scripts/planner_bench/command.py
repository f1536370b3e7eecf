"""Arguments of scripts/bench_planner, and which table is which module."""
import argparse
import importlib
import importlib.util
import os
import subprocess
import sys

from . import common

# Table -> (module, packages that it needs).
TABLES = {
    "msr": ("msr", []),
    "km1": ("km1", ["numpy", "mtkahypar"]),
    "fx": ("fx", ["numpy"]),
    "steps": ("fx", ["numpy", "mtkahypar", "torch", "torchvision", "transformers"]),
    "layers": ("layers", ["numpy", "mtkahypar"]),
    "million": ("million", ["numpy", "mtkahypar"]),
    "fast": ("in_process", ["numpy"]),
    "robust": ("in_process", []),
    "makespan-small": ("makespan", ["numpy"]),
    "makespan": ("makespan", ["numpy"]),
    "models": ("models", ["numpy", "torch", "accelerate"]),
}
FAMILIES = ["tf", "tftrain", "cnn", "moe", "unet", "rand"]


def arguments(argv, doc):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", choices=[*TABLES, "all"], metavar="TABLE")
    parser.add_argument("--families", nargs="+", default=FAMILIES, choices=FAMILIES)
    parser.add_argument("--sizes", nargs="+", help="of the graphs: 1k 10k 100k (km1, makespan), also 175k (fast)")
    parser.add_argument("--parts", nargs="+", type=int, default=[4, 8, 16], help="numbers of devices of km1")
    parser.add_argument("--seeds", type=int, default=3,
                        help="runs of ours (km1, fx, steps, layers, million) and of each peer (km1, layers, million)")
    parser.add_argument("--efforts", nargs="+", default=["fast", "default"], choices=["fast", "default", "best"],
                        help="of msr")
    parser.add_argument("--effort", default="default", choices=["fast", "default", "best"], help="of the other tables")
    parser.add_argument("--instances", type=int, help="random instances of robust")
    parser.add_argument("--models", nargs="+", help="of models and of steps")
    parser.add_argument("--devices", nargs="+", type=int, default=[2, 4, 8], help="numbers of devices of models")
    parser.add_argument("--platforms", nargs="+", help="of models: equal mixed paired; of makespan-small: hom2 hom4")
    parser.add_argument("--modes", nargs="+", default=["mtk", "mtkhg"], choices=["mtk", "mtkhg"],
                        help="of the peer in million: graph, hypergraph")
    parser.add_argument("--same-nets", action="store_true",
                        help="in km1, layers and million each output of a parameter is a parameter of its own, as it is a "
                        "net of its own to the peers; else a device that reads any holds the whole")
    parser.add_argument("--binary", help="the program to measure")
    parser.add_argument("--in-process", help="the program of `cargo bench --bench planner`, for fast and robust")
    parser.add_argument("--cache", default=os.path.join(common.ROOT, "target", "planner-bench"))
    parser.add_argument("--output", default=os.path.join(common.ROOT, "benches", "results"),
                        help="folder for the results")
    return parser.parse_args(argv)


def main(argv, doc):
    options = arguments(argv, doc)
    tables = list(TABLES) if "all" in options.tables else options.tables
    ensure(sorted({package for table in tables for package in TABLES[table][1]}), options.cache)
    bench = common.Bench(options, argv)
    for name in tables:
        module = importlib.import_module("." + TABLES[name][0], __package__)
        module.run(bench, name)
    return 0


def ensure(packages, cache):
    """Continues in a virtual environment of its own where this Python lacks a package."""
    if all(importlib.util.find_spec(package) for package in packages):
        return
    python = os.path.join(cache, "venv", "bin", "python")
    if os.path.realpath(sys.prefix) == os.path.realpath(os.path.dirname(os.path.dirname(python))):
        sys.exit("these packages cannot be installed: " + " ".join(packages))
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", os.path.join(cache, "venv")], check=True)
    extra = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"] if "torch" in packages else []
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages, *extra], check=True)
    os.execv(python, [python, *sys.argv])
