"""A million nodes on eight devices at 3% balance."""
from .common import Table, verdict
from .km1 import MODES, planned

PARTS = 8


def run(bench, name):
    table = Table(bench, name, f"A million nodes, k = 8, --effort {bench.options.effort}",
                  ["graph", "ours GB", "imbalance", "graph mode GB", "hypergraph mode GB", "/ best", "CPU s", "MB",
                   "CPU s of graph mode", "of hypergraph mode", "15 CPU s", "900 MB", "at most 1.05"])
    for family in bench.options.families:
        arrays, costs = bench.graph(f"{family}_1m")
        ours = planned(bench, arrays, costs, PARTS, 0)
        peers = {mode: bench.peer(mode, arrays, PARTS, 0) if mode in bench.options.modes else {} for mode in MODES}
        km1, cpu = ([peers[mode].get(key) for mode in MODES] for key in ("km1", "cpu_s"))
        ratio = ours["km1"] / max(1, min(filter(None, km1)))
        megabytes = ours["peak_mb"] * 1.048576
        table.row([f"{family}_1m", ours["km1"] / 1e9, ours["imb"], *(value and value / 1e9 for value in km1), ratio,
                   ours["cpu_s"], round(megabytes), *cpu,
                   verdict(ours["cpu_s"] <= 15), verdict(megabytes <= 900), verdict(ratio <= 1.05)])
    table.notes("Our time is that of the whole process, theirs that of partitioning alone.")
    table.close()
