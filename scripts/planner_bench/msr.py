"""Throughput on the placement workloads of bench/msr, scored by its independent evaluator."""
import glob
import json
import os
import subprocess
import sys

from .common import Table, geomean, load, verdict

UNIT = 1e6  # a unit of the workloads' time is 1 ms


def run(bench, name):
    reference = load(bench.shared("bench", "msr", "reference.json"))
    workloads = [path for path in sorted(glob.glob(bench.shared("bench", "msr") + "/*.json"))
                 if os.path.basename(path).removesuffix(".json") in reference]
    for effort in bench.options.efforts:
        table = Table(bench, f"{name}-{effort}", f"Throughput on bench/msr, --effort {effort}",
                      ["workload", "ours", "/ contiguous", "/ best known", "/ bound", "our bound", "/ lower bound",
                       "gap", "CPU s", "at most contiguous in 1 s of 2 cores", "at most 1.005 best", "bound as high"])
        ratios, lost = [], []
        for path in workloads:
            workload = os.path.basename(path).removesuffix(".json")
            known = reference[workload]
            plan, ran = bench.plan(path, "--objective", "throughput", "--effort", effort)
            value = evaluated(bench, path, plan)
            bound = load(plan).get("bound")
            bound = bound["value"] / UNIT if bound else None
            musts = [value <= known["contiguous_optimum"] * 1.00005 and ran.cpu <= 2.0,
                     value <= 1.005 * known["best_known"], bound is not None and bound >= known["lower_bound"] * 0.9999]
            table.row([workload, value, value / known["contiguous_optimum"], value / known["best_known"],
                       value / known["lower_bound"], bound, bound / known["lower_bound"] if bound else None,
                       1 - bound / value if bound else None, ran.cpu, *map(verdict, musts)])
            ratios.append(value / known["best_known"])
            lost += [workload] if not all(musts[:2]) else []
        table.notes(f"Over the best known: {geomean(ratios):.4f} on geometric mean, {max(ratios):.4f} at worst.",
                    "Misses a must: " + (", ".join(lost) or "none") + ".")
        table.close()


def evaluated(bench, workload, plan):
    command = [sys.executable, bench.shared("bench", "msr", "evaluate.py"), workload, plan]
    told = subprocess.run(command, stdout=subprocess.PIPE)
    report = json.loads(told.stdout)
    if told.returncode != 0:
        sys.exit(f"{workload}: the plan violates {report['violations']}")
    return report["max_load"]
