"""What the tables share: the program under test, measured processes, graphs, peers, Markdown."""
import datetime
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHARED = os.environ.get("PARTITION_SHARED") or os.path.join(os.path.dirname(ROOT), "shared")


@dataclass
class Ran:
    """A process that ended: exit code, processor seconds, seconds on the clock, peak MB, its output."""

    code: int
    cpu: float
    wall: float
    peak_mb: float
    out: str
    err: str


def measured(args, cwd=None):
    """Runs a command, and measures it alone."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        process = subprocess.Popen(args, stdout=out, stderr=err, cwd=cwd)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        return Ran(process.returncode, usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024,
                   out.read().decode(), err.read().decode())


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else float("nan")


def geomean(values):
    values = list(values)
    return math.exp(mean(math.log(value) for value in values)) if values else float("nan")


def load(path):
    with open(path) as file:
        return json.load(file)


def separate_outputs(graph):
    """Makes a parameter with several outputs several parameters; the last output stays the node's own."""
    parameter = {}
    for node in [node for node in graph["nodes"] if node["op"] == "param" and len(node["outputs"]) > 1]:
        *others, own = node["outputs"]
        parameter[node["id"], len(others)] = node["id"]
        node.update(outputs=[own], param_bytes=own)
        for output, size in enumerate(others):
            name = f"{node['id']}.{output}"
            parameter[node["id"], output] = name
            graph["nodes"].append(dict(node, id=name, outputs=[size], param_bytes=size))
    for edge in graph["edges"]:
        producer = parameter.get((edge[0], edge[1]))
        if producer:
            edge[:2] = [producer, 0]


class Bench:
    """One run of the benchmark: its options, its program, its graphs."""

    def __init__(self, options, argv):
        self.options = options
        self.command = shlex.join(["scripts/bench_planner", *argv])
        self.cache = os.path.abspath(options.cache)
        self.binary = os.path.abspath(options.binary) if options.binary else self.built()
        os.makedirs(options.output, exist_ok=True)

    def built(self):
        """The release build of the command line: it plans, and reads every kind of model."""
        build = ["cargo", "build", "--release", "--quiet", "--locked", "--no-default-features",
                 "--features", "cli,onnx,keras"]
        subprocess.run(build, cwd=ROOT, check=True)
        return os.path.join(ROOT, "target", "release", "partition")

    def path(self, *parts):
        """A path in the cache, whose folder exists."""
        path = os.path.join(self.cache, *parts)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def shared(self, *parts):
        path = os.path.join(SHARED, *parts)
        if not os.path.exists(path):
            sys.exit(f"no {path}: these tables need the shared folder (PARTITION_SHARED)")
        return path

    def plan(self, model, *args):
        """Plans; the plan's path, and what the process took. The path is None where there is no plan."""
        path = self.path("plans", f"{os.getpid()}.json")
        if os.path.exists(path):
            os.remove(path)
        ran = measured([self.binary, model, "-o", path, "--quiet", *args])
        if ran.code not in (0, 3):
            sys.exit(f"{self.binary} {model} {shlex.join(args)}: exit code {ran.code}\n{ran.err}")
        return (path if ran.code == 0 else None), ran

    def graph(self, name):
        """A generated graph: its arrays (npz), and the same as a cost graph (json)."""
        arrays, costs = self.path("inst", name + ".npz"), self.path("json", name + ".json")
        if not os.path.exists(arrays):
            script = os.path.join(ROOT, "scripts", "planner_bench", "generate.py")
            subprocess.run([sys.executable, script, self.shared("bench", "dag"), name, arrays], check=True)
        if not os.path.exists(costs):
            with open(costs + ".part", "w") as out:
                subprocess.run([sys.executable, self.shared("bench", "dag", "costgraph.py"), arrays],
                               stdout=out, check=True)
            os.rename(costs + ".part", costs)
        return arrays, self.separated(costs) if self.options.same_nets else costs

    def separated(self, costs):
        """The same cost graph, in which each output of a parameter is a parameter of its own: a net for each, as peers have it."""
        apart = costs.replace(".json", ".same-nets.json")
        if not os.path.exists(apart):
            graph = load(costs)
            separate_outputs(graph)
            with open(apart + ".part", "w") as out:
                json.dump(graph, out)
            os.rename(apart + ".part", apart)
        return apart

    def peer(self, tool, arrays, parts, seed):
        """What a peer partitioner reaches within 3% of balance."""
        command = [sys.executable, self.shared("bench", "dag", "peers.py"), "run", tool, arrays, str(parts), "0.03",
                   str(seed)]
        ran = measured(command)
        if ran.code != 0:
            sys.exit(f"{shlex.join(command)}: exit code {ran.code}\n{ran.err}")
        return json.loads(ran.out)

    def scored(self, arrays, plan):
        """A plan of ours, scored by the peers' code."""
        command = [sys.executable, self.shared("bench", "dag", "peers.py"), "score", arrays, plan]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


class Table:
    """A Markdown table, printed row by row and written when it is done."""

    def __init__(self, bench, name, title, columns):
        self.bench, self.name = bench, name
        self.lines = []
        self.say(f"# {title}")
        self.say("")
        self.say(f"{datetime.date.today()}; {processor()}; commit {commit()}.")
        self.say("")
        self.say(f"    {bench.command}")
        self.section(columns)

    def section(self, columns):
        """Begins another table in the same file."""
        self.say("")
        self.row(columns)
        self.row(["---"] * len(columns))

    def say(self, line):
        print(line, flush=True)
        self.lines.append(line)

    def row(self, cells):
        self.say("| " + " | ".join(shown(cell) for cell in cells) + " |")

    def notes(self, *lines):
        self.say("")
        for line in lines:
            self.say(f"- {line}")

    def close(self):
        path = os.path.join(self.bench.options.output, f"planner-{self.name}.md")
        with open(path, "w") as file:
            file.write("\n".join(self.lines) + "\n")


def shown(cell):
    if isinstance(cell, float):
        return "-" if math.isnan(cell) else f"{cell:.4g}" if abs(cell) < 10 else f"{cell:.6g}"
    return "-" if cell is None else str(cell)


def verdict(holds):
    return "yes" if holds else "**no**"


def commit():
    told = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return told.stdout.strip() or "unknown"


def processor():
    names = []
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{names[0] if names else 'unknown processor'}, {os.cpu_count()} cores{load}"
