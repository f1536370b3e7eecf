"""Bytes moved at 3% balance, against both modes of mt-KaHyPar in the same run."""
from .common import Table, geomean, mean, verdict

MODES = ["mtk", "mtkhg"]


def run(bench, name):
    options = bench.options
    name = "-".join([name, *(options.sizes or []), *(["same-nets"] if options.same_nets else [])])
    table = Table(bench, name, f"km1 at 3% balance, --effort {options.effort}, mean of {options.seeds} seeds"
                  + (", each output of a parameter one of its own" if options.same_nets else ""),
                  ["graph", "k", "ours GB", "imbalance", "graph mode GB", "hypergraph mode GB", "/ better",
                   "CPU s", "CPU s of both", "/ both", "/ hypergraph", "MB", "must"])
    cells, refused = [], []
    for size in options.sizes or ["1k", "10k", "100k"]:
        for family in options.families:
            for parts in options.parts:
                cell = compared(bench, f"{family}_{size}", parts, range(options.seeds))
                if cell["refused"]:
                    refused.append(f"{family}_{size} k={parts} ({cell['refused']}; the modes are out of balance by "
                                   f"{cell['peers_imbalance']:.2g})")
                    continue
                holds = cell["ratio"] <= 1.25 and cell["imbalance"] <= 0.03
                table.row([f"{family}_{size}", parts, cell["ours"] / 1e9, cell["imbalance"],
                           *(cell[mode] / 1e9 for mode in MODES), cell["ratio"], cell["cpu"], cell["peers_cpu"],
                           cell["cpu"] / cell["peers_cpu"], cell["cpu"] / cell["hyper_cpu"], cell["peak_mb"],
                           verdict(holds)])
                cells.append(dict(cell, name=f"{family}_{size} k={parts}", size=size, family=family, parts=parts,
                                  holds=holds))
    summary(table, cells, refused)
    table.close()


def compared(bench, graph, parts, seeds):
    """Means over the seeds of ours and of each mode; the ratio is to the better mode's mean."""
    arrays, costs = bench.graph(graph)
    ours, peers = [], {mode: [] for mode in MODES}
    for seed in seeds:
        ours.append(planned(bench, arrays, costs, parts, seed))
        for mode in MODES:
            peers[mode].append(bench.peer(mode, arrays, parts, seed))
    told = next((run["refused"] for run in ours if run["refused"]), None)
    cpu = {mode: mean(run["cpu_s"] for run in peers[mode]) for mode in MODES}
    km1 = {mode: mean(run["km1"] for run in peers[mode]) for mode in MODES}
    value = mean(run["km1"] for run in ours)
    worst = max(run["imb"] for mode in MODES for run in peers[mode])
    return dict(refused=told, peers_imbalance=worst, ours=value, ratio=value / max(1, min(km1.values())), imbalance=max(run["imb"] for run in ours),
                cpu=mean(run["cpu_s"] for run in ours), peak_mb=round(max(run["peak_mb"] for run in ours)),
                peers_cpu=sum(cpu.values()), hyper_cpu=cpu["mtkhg"], **km1)


def planned(bench, arrays, costs, parts, seed):
    """One plan of ours, scored by the peers' code; devices have room, so that balance alone constrains."""
    plan, ran = bench.plan(costs, "--devices", f"{parts}xa100-80g:memory=1PB", "--objective", "transfer",
                           "--balance", "0.03", "--use", "all", "--seed", str(seed), "--effort", bench.options.effort)
    if plan is None:
        told = ran.err.splitlines()[0].split(": ", 2)[-1]
        return dict(refused=told, km1=float("nan"), imb=float("nan"), cpu_s=ran.cpu, peak_mb=ran.peak_mb)
    return dict(refused=None, **bench.scored(arrays, plan), cpu_s=ran.cpu, peak_mb=ran.peak_mb)


def summary(table, cells, refused):
    table.section(["cells", "ratio, geometric mean", "worst", "where", "CPU / both modes, geometric mean",
                   "CPU / hypergraph mode"])
    groups = [("all", cells)]
    for key in ("size", "family", "parts"):
        values = list(dict.fromkeys(cell[key] for cell in cells))
        groups += [(f"{key} {value}", [cell for cell in cells if cell[key] == value]) for value in values]
    for label, group in groups:
        worst = max(group, key=lambda cell: cell["ratio"])
        table.row([label, geomean(cell["ratio"] for cell in group), worst["ratio"], worst["name"],
                   geomean(cell["cpu"] / cell["peers_cpu"] for cell in group),
                   geomean(cell["cpu"] / cell["hyper_cpu"] for cell in group)])
    missed = [cell["name"] for cell in cells if not cell["holds"]]
    slow = [cell["name"] for cell in cells if cell["cpu"] > 2 * cell["peers_cpu"]]
    table.notes("Refused, for no partition is within the balance: " + ("; ".join(refused) or "none") + ".",
                "Above 1.25, or out of balance: " + (", ".join(missed) or "none") + ".",
                "More than twice the processor time of both modes together: " + (", ".join(slow) or "none") + ".",
                "Our time is that of the whole process, theirs that of partitioning alone.")
