"""What depth costs: networks of 8 and of 96 layers, equal and not quite, beside mt-KaHyPar in the same run."""
from .common import Table, mean
from .km1 import planned
from .repeated import KINDS, LAYERS

PARTS = 8
PEER = "mtkhg"


def run(bench, name):
    options = bench.options
    few, many = LAYERS
    table = Table(bench, name, f"Networks of {few} and {many} layers at 3% balance, k = {PARTS}, "
                  f"--effort {options.effort}, mean of {options.seeds} seeds",
                  ["layers", "ours MB", "hypergraph mode MB", "/ it", "CPU s", "of it reading, checking and writing",
                   "search", "search / shallow", "hypergraph mode", "MB"])
    shallow = None
    for kind in KINDS:
        for layers in LAYERS:
            row = compared(bench, f"{kind}_{layers}", range(options.seeds))
            shallow = row if layers == few else shallow
            table.row([f"{layers} {kind}", row["ours"] / 1e6, row["peer"] / 1e6, row["ours"] / row["peer"],
                       row["cpu"], row["beside"], row["search"], row["search"] / shallow["search"], row["peer_cpu"],
                       row["peak_mb"]])
    table.notes("About 1,050 nodes a layer; `scripts/planner_bench/repeated.py` says what they are made of.",
                "Reading, checking and writing: the same graph on one device, which leaves nothing to search.")
    table.close()


def compared(bench, graph, seeds):
    """Means over the seeds."""
    arrays, costs = bench.graph(graph)
    ours = [planned(bench, arrays, costs, PARTS, seed) for seed in seeds]
    peers = [bench.peer(PEER, arrays, PARTS, seed) for seed in seeds]
    _, alone = bench.plan(costs, "--devices", "1xa100-80g:memory=1PB", "--objective", "transfer")
    cpu = mean(run["cpu_s"] for run in ours)
    return dict(ours=mean(run["km1"] for run in ours), peer=mean(run["km1"] for run in peers), cpu=cpu,
                beside=alone.cpu, search=cpu - alone.cpu, peer_cpu=mean(run["cpu_s"] for run in peers),
                peak_mb=round(max(run["peak_mb"] for run in ours)))
