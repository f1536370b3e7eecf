"""What our plans for real models are compared with: placements of a cost graph by other methods.

Each gives placements (node id -> device number) for a budget of parameter bytes on each device; budgets are tried in a
grid, and of those placements that the simulator finds to fit, the best counts: more than their users would get.
"""
import functools
import logging


class Graph:
    """A cost graph as the methods see it: compute nodes in topological order, their inputs and parameters."""

    def __init__(self, graph):
        self.kinds = graph["kinds"]
        nodes = {node["id"]: node for node in graph["nodes"]}
        self.nodes = nodes
        self.loaded = [name for name, node in nodes.items() if node["op"] in ("param", "input")]
        self.inputs = {name: [] for name in nodes}
        self.readers = {name: [] for name in nodes}
        for producer, output, consumer in graph["edges"]:
            self.inputs[consumer].append((producer, nodes[producer]["outputs"][output]))
            self.readers[producer].append(consumer)
        self.order = [name for name in self.topological() if nodes[name]["op"] not in ("param", "input")]

    def topological(self):
        rank = {name: i for i, name in enumerate(self.nodes)}
        missing = {name: len(inputs) for name, inputs in self.inputs.items()}
        ready = [name for name in self.nodes if missing[name] == 0]
        order = []
        while ready:
            name = ready.pop(0)
            order.append(name)
            for reader in sorted(self.readers[name], key=rank.get):
                missing[reader] -= 1
                if missing[reader] == 0:
                    ready.append(reader)
        return order

    def params(self, name):
        """(key, bytes) of what a compute node reads or owns; tied parameters share their key."""
        node = self.nodes[name]
        owned = [(name, node["param_bytes"])] if node["param_bytes"] else []
        read = [self.nodes[producer] for producer, _ in self.inputs[name] if self.nodes[producer]["op"] == "param"]
        return owned + [(param.get("params") or param["id"], param["param_bytes"]) for param in read]

    def total(self):
        return sum(dict(param for name in self.order for param in self.params(name)).values())

    def time(self, name, kind):
        return self.nodes[name]["time_ns"][self.kinds.index(kind)]

    def complete(self, placement):
        """Parameters and inputs go with their first reader."""
        whole = dict(placement)
        for name in self.loaded:
            readers = [reader for reader in self.readers[name] if reader in placement]
            whole[name] = placement[readers[0]] if readers else 0
        return whole

    def kept_together(self, placement):
        """Nodes that must go together go where the first of them is."""
        first = {}
        for name in self.order:
            mark = self.nodes[name].get("colocate")
            if mark:
                placement[name] = placement[first.setdefault(mark, name)]
        return placement


def distinct(placements):
    seen = {}
    for placement in placements:
        seen.setdefault(tuple(placement.items()), placement)
    return list(seen.values())


def first_fit(graph, devices, budgets):
    """Accelerate's own function, on modules that hold the same bytes in the same order. Where it fails on tied
    parameters (it looks for them among the modules that are still to be placed), each module has its own."""
    # It warns of each device that this machine lacks.
    logging.getLogger("accelerate.utils.modeling").setLevel(logging.ERROR)
    skeletons = [skeleton(graph, tied) for tied in (True, False)]
    return distinct(fitted for budget in budgets
                    if (fitted := first_fit_within(graph, skeletons, devices, budget)) is not None)


def first_fit_within(graph, skeletons, devices, budget):
    from accelerate import infer_auto_device_map
    memory = {device: int(budget) for device in range(devices)}
    (tied, names), (untied, _) = skeletons
    try:
        found = infer_auto_device_map(tied, max_memory=memory, clean_result=False)
    except IndexError:
        found = infer_auto_device_map(untied, max_memory=memory, clean_result=False)
    placement = {}
    for module, name in names.items():
        device = found.get(module)
        if not isinstance(device, int):
            return None
        placement[name] = device
    return graph.complete(graph.kept_together(placement))


def skeleton(graph, tied):
    """One module for each node, in order, with parameters of the same sizes on the meta device; and whose it is."""
    import torch
    made = {}

    def parameter(key, size):
        if key not in made or not tied:
            made[key] = torch.nn.Parameter(torch.empty(size, dtype=torch.int8, device="meta"), requires_grad=False)
        return made[key]

    model, names = torch.nn.Module(), {}
    for number, name in enumerate(graph.order):
        module = torch.nn.Module()
        for position, (key, size) in enumerate(graph.params(name)):
            module.register_parameter(f"p{position}", parameter(key, size))
        model.add_module(f"m{number}", module)
        names[f"m{number}"] = name
    return model, names


def equal_split(graph, devices, weights=("time", "bytes", "count")):
    """Runs of the topological order that have equal times, parameter bytes, or numbers of nodes."""
    splits = []
    for weight in weights:
        seen, sizes = set(), []
        for name in graph.order:
            new = [param for param in graph.params(name) if param[0] not in seen]
            seen.update(key for key, _ in new)
            sizes.append({"time": graph.time(name, graph.kinds[0]), "bytes": sum(size for _, size in new), "count": 1}[weight])
        total, before, placement = max(1, sum(sizes)), 0, {}
        for name, size in zip(graph.order, sizes):
            placement[name] = min(devices - 1, int(devices * (before + size / 2) / total))
            before += size
        splits.append(graph.complete(graph.kept_together(placement)))
    return distinct(splits)


def m_etf(graph, platform, budgets):
    """Memory-constrained earliest task first (Jeon et al., "Baechi", SoCC 2020, section 3): of all ready nodes and all
    devices with memory left, the pair that can start first."""
    return distinct(placed for budget in budgets if (placed := m_etf_within(graph, platform, budget)) is not None)


def m_etf_within(graph, platform, budget):
    devices = range(len(platform.kinds))
    free, used, held = [0.0] * len(devices), [0] * len(devices), [set() for _ in devices]
    end, placement, marks = {}, {}, {}
    rank = {name: i for i, name in enumerate(graph.order)}
    missing = {name: sum(producer in rank for producer, _ in graph.inputs[name]) for name in graph.order}
    ready = [name for name in graph.order if missing[name] == 0]
    needs = functools.cache(graph.params)

    def start(name, device):
        arrivals = (end[producer] + platform.copy(placement[producer], device, size)
                    for producer, size in graph.inputs[name] if producer in rank)
        return max(free[device], max(arrivals, default=0.0))

    def room(name, device):
        new = sum(size for key, size in needs(name) if key not in held[device])
        return used[device] + new <= budget

    def choices(name):
        mark = graph.nodes[name].get("colocate")
        return [marks[mark]] if mark in marks else devices

    while ready:
        pairs = ((start(name, device), rank[name], device, name) for name in ready for device in choices(name)
                 if room(name, device))
        best = min(pairs, default=None)
        if best is None:
            return None
        begin, _, device, name = best
        ready.remove(name)
        placement[name] = device
        if mark := graph.nodes[name].get("colocate"):
            marks.setdefault(mark, device)
        used[device] += sum(size for key, size in needs(name) if key not in held[device])
        held[device].update(key for key, _ in needs(name))
        end[name] = free[device] = begin + graph.time(name, platform.kinds[device])
        for reader in graph.readers[name]:
            missing[reader] -= 1
            if missing[reader] == 0:
                ready.append(reader)
    return graph.complete(placement)
