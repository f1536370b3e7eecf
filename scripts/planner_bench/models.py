"""Real models on 2, 4 and 8 devices, equal and unequal, under tight caps: our plan against Accelerate's first fit, m-ETF
and layer-wise equal split, all scored by the same simulator."""
import json
import os
from dataclasses import dataclass

from . import baselines
from .common import Table, geomean, load, measured, verdict

MODELS = {"resnet50": [], "bert_base": ["--dim", "seq=128"], "gpt2": [], "llama_small": [], "mixtral_small": [],
          "sd_unet_small": [], "vit_b_16": [], "vgg16": []}
# Objective -> (what it is called in a plan, in a summary).
OBJECTIVES = {"transfer": ("transfer_bytes", "transfer_bytes"), "latency": ("latency_ns", "latency"),
              "throughput": ("max_load_ns", "max_load")}
A100, L4 = "a100-80g", "l4-24g"
ROOMY = 10**15


@dataclass
class Platform:
    """Devices: their kinds, a specification for a cap, and what a copy takes (ns), for m-ETF."""

    name: str
    kinds: list
    joined: callable

    def copy(self, source, target, size):
        if source == target:
            return 0.0
        # Through the host a copy is there once it has crossed both links, one after the other.
        gigabytes, latency = (300, 3_000) if self.joined(source, target) else (12.5, 10_000)
        return latency + size / gigabytes

    def spec(self, bench, cap):
        """`equal`: a100s with direct links; `mixed`: half of them l4s, which are joined through the host; `paired`:
        a100s of which each two are joined directly, all else through the host."""
        count = len(self.kinds)
        if self.name == "equal":
            return f"{count}x{A100}:memory={cap}B"
        if self.name == "mixed":
            return f"{count // 2}x{A100}:memory={cap}B+{count // 2}x{L4}:memory={cap}B"
        path = bench.path("specs", f"{os.getpid()}.toml")
        with open(path, "w") as file:
            file.write(f'[[device]]\nkind = "{A100}"\ncount = {count}\nmemory = "{cap}B"\nlink = "none"\n')
            for first in range(0, count, 2):
                file.write(f'[[link]]\nbetween = ["cuda{first}", "cuda{first + 1}"]\nbandwidth = "300GB/s"\n')
        return path


def platforms(counts, names):
    for count in counts:
        for name in names:
            if name == "equal":
                yield Platform(name, [A100] * count, lambda i, j: True)
            elif name == "mixed":
                half = count // 2
                yield Platform(name, [A100] * half + [L4] * half, lambda i, j, half=half: max(i, j) < half)
            elif count > 2:
                yield Platform(name, [A100] * count, lambda i, j: i // 2 == j // 2)


def run(bench, name):
    options = bench.options
    table = Table(bench, name, f"Real models under tight caps, --effort {options.effort}",
                  ["model", "devices", "cap MB", "objective", "ours", "bound", "proof", "first fit", "m-ETF", "equal split",
                   "closed", "CPU s", "must"])
    cells = []
    for model in options.models or MODELS:
        costs = cost_graph(bench, model)
        graph = baselines.Graph(load(costs))
        for platform in platforms(options.devices, options.platforms or ["equal", "mixed", "paired"]):
            cells += compared(bench, table, model, costs, graph, platform)
    summary(table, cells)
    table.close()


def cost_graph(bench, model):
    """The model's cost graph for both kinds of device."""
    path = bench.path("models", f"{model}.json")
    source = bench.shared("corpus", "onnx", f"{model}.onnx")
    devices = f"1x{A100}:memory={ROOMY}B+1x{L4}:memory={ROOMY}B"
    command = [bench.binary, source, "--devices", devices, "--emit", "costgraph", "-o", path + ".txt", "--quiet",
               *MODELS.get(model, [])]
    ran = measured(command)
    if ran.code != 0:
        raise SystemExit(f"{model}: {ran.err}")
    os.rename(path + ".txt", path)
    return path


def compared(bench, table, model, costs, graph, platform):
    """One row for each objective."""
    count = len(platform.kinds)
    least = graph.total() / count
    budgets = [least * (1.05 * count) ** (step / 23) for step in range(24)]
    methods = {
        "first fit": baselines.first_fit(graph, count, budgets),
        "m-ETF": baselines.m_etf(graph, platform, budgets),
        "equal split": baselines.equal_split(graph, count),
    }
    cap = round(1.1 * smallest_cap(bench, costs, platform, methods, least))
    results = {name: [scored(bench, costs, platform, cap, placement) for placement in placements]
               for name, placements in methods.items()}
    cells = []
    for objective, (measure, shown) in OBJECTIVES.items():
        plan, ran = bench.plan(costs, "--devices", platform.spec(bench, cap), "--objective", objective, "--effort",
                               bench.options.effort)
        found = load(plan) if plan else None
        ours = found["cost"][measure] if found else None
        bound = found and found.get("bound")
        others = {name: best(scores, shown) for name, scores in results.items()}
        cell = dict(model=model, platform=platform.name, count=count, objective=objective, ours=ours,
                    certified=bound is not None or ours == 0, closed=closed(ours, bound, others["first fit"]),
                    fits=others["first fit"][0], holds=ours is not None
                    and all(ours <= value for fits, value in others.values() if fits and value is not None))
        table.row([model, f"{count} {platform.name}", cap / 1e6, objective, scaled(ours, objective),
                   scaled(bound["value"], objective) if bound else None, bound["proof"] if bound else None,
                   *(told(other, objective) for other in others.values()), cell["closed"], ran.cpu,
                   verdict(cell["holds"] and cell["certified"])])
        cells.append(cell)
    return cells


def smallest_cap(bench, costs, platform, methods, least):
    """The smallest cap at which any method fits, within a percent: by the arenas of the others' placements, and by
    halving for our own planner at fast effort."""
    low, high = least, None
    for placements in methods.values():
        for placement in placements:
            arena = scored(bench, costs, platform, ROOMY, placement)["arena"]
            high = arena if high is None else min(high, arena)
    while high > 1.01 * low:
        middle = (low + high) / 2
        plan, _ = bench.plan(costs, "--devices", platform.spec(bench, round(middle)), "--effort", "fast")
        low, high = (low, middle) if plan else (middle, high)
    return high


def scored(bench, costs, platform, cap, placement):
    """What the simulator says of a placement: whether it fits, its costs, its largest arena."""
    path = bench.path("plans", f"{os.getpid()}.placement.json")
    with open(path, "w") as file:
        json.dump({name: f"cuda{device}" for name, device in placement.items()}, file)
    ran = measured([bench.binary, costs, "--devices", platform.spec(bench, cap), "--score", path, "--emit",
                    "summary-json", "--quiet"])
    if not ran.out.startswith("{"):
        raise SystemExit(f"{costs}: {ran.err}")
    summary = json.loads(ran.out)
    return dict(summary, fits=ran.code == 0, arena=max(device["arena"] for device in summary["devices"]))


def best(scores, measure):
    """(fits, value): the best of the placements that fit, else the best of those that do not."""
    if not scores:
        return False, None
    over, value = min((not score["fits"], score[measure]) for score in scores)
    return not over, value


def closed(ours, bound, first_fit):
    """The share of first fit's distance to the bound that our plan closes; none where first fit breaks the caps, or is
    as good as the bound."""
    fits, other = first_fit
    if ours is None or other is None or not fits:
        return None
    least = bound["value"] if bound else 0
    return (other - ours) / (other - least) if other > least else None


def scaled(value, objective):
    """MB, or us."""
    return None if value is None else value / (1e6 if objective == "transfer" else 1e3)


def told(other, objective):
    fits, value = other
    if value is None:
        return "none"
    return f"{scaled(value, objective):.6g}" + ("" if fits else " over")


def summary(table, cells):
    table.section(["cells", "of the distance closed, geometric mean", "not above any other", "with certificate",
                   "first fit fits"])
    groups = [("all", cells)]
    for key in ("objective", "platform", "count", "model"):
        values = list(dict.fromkeys(cell[key] for cell in cells))
        groups += [(f"{value}" if key != "count" else f"{value} devices", [cell for cell in cells if cell[key] == value])
                   for value in values]
    for label, group in groups:
        shares = [max(0.001, cell["closed"]) for cell in group if cell["closed"] is not None]
        table.row([label, geomean(shares), f"{sum(cell['holds'] for cell in group)} of {len(group)}",
                   f"{sum(cell['certified'] for cell in group)} of {len(group)}",
                   f"{sum(cell['fits'] for cell in group)} of {len(group)}"])
    missed = [f"{cell['model']} {cell['count']} {cell['platform']} {cell['objective']}" for cell in cells
              if not cell["holds"]]
    table.notes("transfer in MB, latency and throughput in us; \"over\": the method's best placement breaks the caps.",
                "Of each other method the best of up to 24 budgets that fits is taken.",
                "\"closed\": the share of first fit's distance to our bound that our plan closes; \"-\" where first fit "
                "breaks the caps or meets the bound.",
                "Worse than another method: " + (", ".join(missed) or "none") + ".")
