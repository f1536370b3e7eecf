"""Bytes moved at 3% balance on real training steps, against the best of nine runs of mt-KaHyPar: those of the corpus
(`fx`), and others, which are recorded for it (`steps`)."""
import os
import re
import shutil
import subprocess
import sys

from .common import ROOT, Table, geomean, load, mean, verdict
from .km1 import planned


# Both modes of the peer and its quality mode.
TOOLS = ("mtk", "mtkhg", "mtkhg-q")
SEEDS = range(3)
PARTS = (2, 4, 8)


def run(bench, name):
    options = bench.options
    table = Table(bench, name, f"km1 of real training steps at 3% balance, --effort {options.effort}, "
                  f"mean of {options.seeds} seeds",
                  ["graph", "k", "ours MB", "best seed MB", "imbalance", "best of nine MB", "/ best of nine", "CPU s",
                   "CPU s of nine", "must"])
    cells, refused = [], []
    for graph, arrays, costs, parts, peer in (recorded if name == "steps" else stored)(bench):
        runs = [planned(bench, arrays, costs, parts, seed) for seed in range(options.seeds)]
        if runs[0]["refused"]:
            refused.append(f"{graph} k={parts} ({runs[0]['refused']})")
            continue
        ratio, cpu = mean(run["km1"] for run in runs) / peer["best"], mean(run["cpu_s"] for run in runs)
        imbalance = max(run["imb"] for run in runs)
        holds = ratio <= 1.05 and imbalance <= 0.03 and cpu <= peer["cpu_s"]
        table.row([graph, parts, mean(run["km1"] for run in runs) / 1e6, min(run["km1"] for run in runs) / 1e6,
                   imbalance, peer["best"] / 1e6, ratio, cpu, peer["cpu_s"], verdict(holds)])
        cells.append(dict(name=f"{graph} k={parts}", ratio=ratio, cpu=cpu / peer["cpu_s"], parts=parts, holds=holds))
    summary(table, cells, refused)
    table.close()


def stored(bench):
    """The training steps of the corpus, with what nine runs found of each."""
    for graph, peers in load(bench.shared("bench", "dag", "fx_km1.json")).items():
        step = re.sub("^fx_", "train_", graph) + ".fx.json.gz"
        arrays, costs = converted(bench, graph, bench.shared("corpus", "onnx", step))
        for parts, peer in peers.items():
            yield graph, arrays, costs, int(parts), peer


def recorded(bench):
    """Training steps recorded by torch, with what nine runs beside ours find of each."""
    from .training_steps import STEPS

    for name in bench.options.models or STEPS:
        graph = "fx_" + name
        step = bench.path("steps", f"train_{name}.fx.json.gz")
        if not os.path.exists(step):
            script = os.path.join(ROOT, "scripts", "planner_bench", "training_steps.py")
            subprocess.run([sys.executable, script, name, step], check=True)
        arrays, costs = converted(bench, graph, step)
        for parts in PARTS:
            runs = [bench.peer(tool, arrays, parts, seed) for tool in TOOLS for seed in SEEDS]
            balanced = [run["km1"] for run in runs if run["imb"] <= 0.0301]
            if balanced:
                yield graph, arrays, costs, parts, dict(best=min(balanced), cpu_s=sum(run["cpu_s"] for run in runs))


def converted(bench, graph, step):
    """A training step as arrays (npz), and the same as a cost graph (json)."""
    arrays = bench.path("inst", graph + ".npz")
    if not os.path.exists(arrays):
        script = bench.shared("bench", "dag", "fx2dag.py")
        subprocess.run([sys.executable, script, os.path.abspath(step)], cwd=bench.path("fx", ""), check=True)
        shutil.move(bench.path("fx", graph + ".npz"), arrays)
    return bench.graph(graph)


def summary(table, cells, refused):
    table.section(["cells", "ratio, geometric mean", "worst", "where", "CPU / nine runs, geometric mean"])
    groups = {"all": cells}
    for parts in dict.fromkeys(cell["parts"] for cell in cells):
        groups[f"parts {parts}"] = [cell for cell in cells if cell["parts"] == parts]
    for label, group in groups.items():
        worst = max(group, key=lambda cell: cell["ratio"])
        table.row([label, geomean(cell["ratio"] for cell in group), worst["ratio"], worst["name"],
                   geomean(cell["cpu"] for cell in group)])
    missed = [cell["name"] for cell in cells if not cell["holds"]]
    table.notes("Above 1.05, out of balance or over the processor time of the nine runs: "
                + (", ".join(missed) or "none") + ".",
                "Refused, for no partition is within the balance: " + ("; ".join(refused) or "none") + ".",
                "Our time is that of the whole process, theirs that of partitioning alone.")
