"""A million nodes on eight devices at 3% balance."""
from .common import Table, mean, verdict
from .km1 import MODES, planned

PARTS = 8


def run(bench, name):
    seeds = range(bench.options.seeds)
    table = Table(bench, name, f"A million nodes, k = 8, --effort {bench.options.effort}, mean of {len(seeds)} seeds",
                  ["graph", "ours GB", "imbalance", "graph mode GB", "hypergraph mode GB", "/ best", "CPU s", "MB",
                   "CPU s of graph mode", "of hypergraph mode", "15 CPU s", "900 MB", "at most 1.05"])
    for family in bench.options.families:
        arrays, costs = bench.graph(f"{family}_1m")
        ours = [planned(bench, arrays, costs, PARTS, seed) for seed in seeds]
        peers = {mode: [bench.peer(mode, arrays, PARTS, seed) for seed in seeds] if mode in bench.options.modes else []
                 for mode in MODES}
        km1, cpu = ([of(peers[mode], key) for mode in MODES] for key in ("km1", "cpu_s"))
        megabytes = max(run["peak_mb"] for run in ours) * 1.048576
        ratio = of(ours, "km1") / max(1, min(filter(None, km1)))
        table.row([f"{family}_1m", of(ours, "km1") / 1e9, max(run["imb"] for run in ours),
                   *(value and value / 1e9 for value in km1), ratio, of(ours, "cpu_s"), round(megabytes), *cpu,
                   verdict(of(ours, "cpu_s") <= 15), verdict(megabytes <= 900), verdict(ratio <= 1.05)])
    table.notes("Bytes and times are means, the imbalance and memory are the largest.",
                "Our time is that of the whole process, theirs that of partitioning alone.")
    table.close()


def of(runs, key):
    """The mean of what some runs came to; none of none."""
    return mean([run[key] for run in runs]) if runs else None
