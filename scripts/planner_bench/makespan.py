"""Makespan of one step, re-timed by bench/dag/makespan.py: small graphs against proven optima, larger ones against
list schedulers."""
import json
import subprocess
import sys

from .common import Table, geomean, load, mean, verdict


def run(bench, name):
    (small if name == "makespan-small" else larger)(bench, name)


def timed(bench, graph, platform):
    """Our makespan in us, our bound, and processor seconds."""
    arrays, costs = bench.graph(graph)
    devices = f"{platform.removeprefix('hom')}xa100-80g:link=100GB/s,latency=5us,contention=none"
    plan, ran = bench.plan(costs, "--devices", devices, "--objective", "latency", "--effort", bench.options.effort)
    command = [sys.executable, bench.shared("bench", "dag", "makespan.py"), arrays, plan, platform]
    told = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    bound = load(plan).get("bound")
    return told["makespan_us"], bound["value"] / 1e3 if bound else None, ran.cpu


def one_device(bench, graph):
    """All work after one another on one device, in us."""
    import numpy as np
    return float(np.load(bench.graph(graph)[0])["t0"].sum()) / 1e3


def small(bench, name):
    optima = load(bench.shared("bench", "dag", "optima.json"))
    table = Table(bench, name, f"Makespan against proven optima, --effort {bench.options.effort}",
                  ["graph", "platform", "ours us", "best us", "/ best", "its bound", "our bound", "one device", "CPU s",
                   "optimal", "not above one device", "5 s"])
    ratios, lost = [], []
    for platform in bench.options.platforms or ["hom2", "hom4"]:
        for graph, known in optima[platform].items():
            value, bound, cpu = timed(bench, graph, platform)
            single = one_device(bench, graph)
            ratio = value / known["best"]
            table.row([graph, platform, value, known["best"], ratio, known["bound"], bound, single, cpu,
                       verdict(ratio <= 1.0002), verdict(value <= single * 1.00001), verdict(cpu <= 5)])
            ratios.append(ratio)
            lost += [f"{graph} {platform}"] if ratio > 1.0002 or cpu > 5 or value > single * 1.00001 else []
    table.notes(f"Mean over the best: {mean(ratios):.5f} (must: 1.001), worst {max(ratios):.4f}.",
                "Not the optimum, above one device or over 5 s: " + (", ".join(lost) or "none") + ".")
    table.close()


def larger(bench, name):
    known = load(bench.shared("bench", "dag", "list_schedulers.json"))
    sizes = bench.options.sizes or ["1k", "10k"]
    graphs = [graph for graph in known if graph.rsplit("_", 1)[1] in sizes
              and graph.rsplit("_", 1)[0] in bench.options.families]
    table = Table(bench, name, f"Makespan against list schedulers, hom4, --effort {bench.options.effort}",
                  ["graph", "ours us", "best list scheduler", "/ best list", "one device", "its bound", "our bound",
                   "/ better bound", "CPU s", "not worse than either"])
    over_bound, over_list, lost = [], [], []
    for graph in graphs:
        row = known[graph]
        value, bound, cpu = timed(bench, graph, "hom4")
        best, who = min((row[tool], tool) for tool in row if tool not in ("bound_us", "one_device_us"))
        better = max(row["bound_us"], bound or 0)
        # The figures there are rounded to whole us.
        holds = value <= best + 0.5 and value <= row["one_device_us"] + 0.5
        table.row([graph, value, f"{best} {who}", value / best, row["one_device_us"], row["bound_us"], bound,
                   value / better, cpu, verdict(holds)])
        over_bound.append(value / better)
        over_list.append(value / best)
        lost += [] if holds else [graph]
    table.notes(f"Mean over the better bound: {mean(over_bound):.4f} (must: 1.05, aim: 1.03), worst {max(over_bound):.4f}.",
                f"Over the best list scheduler: {geomean(over_list):.4f} on geometric mean.",
                "Worse than the best list scheduler or one device: " + (", ".join(lost) or "none") + ".")
    table.close()
