"""What scripts/gpu_check does within a budget of seconds: jobs in the order of what they teach, each in processes of its own.

Each job ends as one line of JSON in DIR/results.jsonl, which is on the disk before the next one begins: {"job", "state",
"seconds", "said", "value", "clocks"}. States are good, wrong, failed, hung (no end within its own time), absent and left (the
budget ended before it). Called again with the same folder, what was good, wrong or absent is not done again. Nothing ends what
comes after it.
"""
import concurrent.futures
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

from gpu_machine import Watch, gpu

DONE = ("good", "wrong", "absent")
# Parts of the suite's operations: a part that the budget cuts off is all that is done again.
PARTS = 6
# What the packed folder of small cases has of the kernels of operations and models.
SMALL_PART = "0/8"
# Most seconds of one job.
LONGEST = 240
# Most jobs at the same time, of those that measure nothing.
BESIDE = max(2, min(12, (os.cpu_count() or 1) - 1))
# A job is not begun with less.
LEAST = 5


class Job:
    """`run(deadline)` gives a state, what is to be said, and a value for the table. Of what measures nothing, jobs that follow one
    another are done at the same time."""

    def __init__(self, name, run, longest=LONGEST, measures=True):
        self.name, self.run, self.longest, self.measures = name, run, longest, measures


class Failed(Exception):
    """A process that did not end well: a state and what is to be said."""

    def __init__(self, state, said):
        super().__init__(said)
        self.state, self.said = state, said


def output(command, deadline, environment=None):
    """The output of a process, which is ended with its children when the time is over."""
    try:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
                                 start_new_session=True)
    except OSError as error:
        raise Failed("absent", str(error)) from None
    try:
        out, errors = child.communicate(timeout=max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise Failed("hung", f"no end within its time; said last: {ended(child)[-300:]}") from None
    if child.returncode:
        lines = [line for text in (errors, out) for line in text.strip().splitlines() if line]
        raise Failed("failed", f"ended with {child.returncode}: " + " / ".join(lines[:4] + lines[4:][-4:])[:1000])
    return out


def kill(child):
    """Ends a process and its children, which have a session of their own."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has just ended by itself


def ended(child):
    """As `kill`; what it said last. One that waits in the driver does not end, and is left."""
    kill(child)
    try:
        out, errors = child.communicate(timeout=LEAST)
    except subprocess.TimeoutExpired:
        return "it does not end when it is killed"
    return (errors or out).strip()


class Journal:
    """The lines of results, of this call and of those before it."""

    def __init__(self, folder):
        os.makedirs(folder, exist_ok=True)
        self.path = os.path.join(folder, "results.jsonl")
        self.lines = {}
        if os.path.exists(self.path):
            with open(self.path) as file:
                for line in file:
                    # A line that was cut off when the machine went away is done again.
                    try:
                        found = json.loads(line)
                        self.lines[found["job"]] = found
                    except (ValueError, KeyError):
                        continue

    def is_done(self, job):
        return self.lines.get(job.name, {}).get("state") in DONE

    def write(self, line):
        self.lines[line["job"]] = line
        with open(self.path, "a+b") as file:
            # What was cut off in the middle of a line must not take this one with it.
            if file.tell() and self.ends_within(file):
                file.write(b"\n")
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    @staticmethod
    def ends_within(file):
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"

    def value(self, name):
        return self.lines.get(name, {}).get("value")


def work(jobs, journal, budget):
    """Does the jobs that are not done yet, until the budget is spent."""
    end = time.monotonic() + budget
    watch = Watch()
    # What failed or hung before is tried again when all others had their turn.
    was_bad = lambda job: journal.lines.get(job.name, {}).get("state") in ("failed", "hung")
    ordered = sorted(jobs, key=was_bad)
    left = [job for job in ordered if not journal.is_done(job)]
    try:
        with concurrent.futures.ThreadPoolExecutor(BESIDE) as threads:
            for measures, group in itertools.groupby(left, lambda job: job.measures):
                group = list(group)
                lines = threads.map(lambda job: done(job, end, watch), group) if not measures else (done(job, end, watch) for job in group)
                for job, line in zip(group, lines):
                    journal.write(line)
                    print(f"[{ordered.index(job) + 1}/{len(jobs)}] {line['state']:6} {line['seconds']:7.1f} s  {job.name}  "
                          f"{line['said']}"[:240], flush=True)
    finally:
        watch.end()


def done(job, end, watch):
    """A job's line, whatever becomes of it."""
    begin, before = time.monotonic(), watch.last
    if end - begin < LEAST:
        return {"job": job.name, "state": "left", "seconds": 0, "said": "no time was left", "value": None}
    deadline = min(end, begin + job.longest)
    try:
        state, said, value = job.run(deadline)
    except Failed as failed:
        state, said, value = failed.state, failed.said, None
        if state == "hung" and deadline == end:
            # It was not its own time that was over.
            state = "left"
    except Exception as error:  # whatever a job does, the others are done
        state, said, value = "failed", f"{type(error).__name__}: {error}", None
    seconds = round(time.monotonic() - begin, 2)
    return {"job": job.name, "state": state, "seconds": seconds, "said": said, "value": value, "clocks": [before, watch.last]}


# -- the jobs ----------------------------------------------------------------------------------------------------


class Peer:
    """A process of scripts/gpu_peer.py, which times one case after the other: what a peer loads takes longer than most cases. It is
    begun again after a case that failed."""

    def __init__(self, name, args):
        self.name, self.args, self.child = name, args, None
        # What it says beside its answers; in a file, since nobody reads it while it runs.
        self.errors = tempfile.TemporaryFile("w+", errors="replace")

    def asked(self, case, deadline):
        """The peer's answer for a case."""
        if self.child is None:
            command = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpu_peer.py"), self.name]
            command += ["--small"] if self.args.small else []
            # A peer takes no more memory than it uses.
            environment = dict(self.args.around, XLA_PYTHON_CLIENT_PREALLOCATE="false")
            self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
                                          env=environment, start_new_session=True)
        said = []
        asking = threading.Thread(target=lambda: said.append(self.answer(case)), daemon=True)
        asking.start()
        asking.join(max(1.0, deadline - time.monotonic()))
        if not said:
            self.end()
            raise Failed("hung", "no end within its time")
        if said[0] is None or "failed" in said[0]:
            why = said[0]["failed"] if said[0] else self.end()[-600:]
            self.end()
            raise Failed("failed", why)
        return said[0]

    def answer(self, case):
        """The line of a case; none where the process ends before it."""
        child = self.child
        try:
            child.stdin.write(case + "\n")
            child.stdin.flush()
            # What libraries print on the same way is no answer.
            for line in child.stdout:
                if line.startswith("{"):
                    return json.loads(line)
        except (OSError, ValueError):
            pass
        return None

    def end(self):
        """Ends the process; what it said last."""
        child, self.child = self.child, None
        if child is None:
            return ""
        kill(child)
        self.errors.seek(0)
        return self.errors.read().strip()


class Jobs:
    """All jobs of the check. `tools` has what scripts/gpu_check has: ours(case, folder, args, outputs), trained, digest."""

    def __init__(self, args, tools, cases, trainings, folder):
        self.args, self.tools, self.cases, self.trainings, self.folder = args, tools, cases, trainings, folder
        self.asked = Peer("", args)

    def listed(self):
        first = [Job("the GPU and its libraries", self.probe, 60), Job("one small model", self.own(self.first_of("softmax")), 120),
                 Job("one product of the library", self.library, 120), Job("peer: copy", self.peer("copy", ""), 60)]
        checks = [Job(f"suite every_operation, part {part + 1} of {PARTS}", self.suite("every_operation", part), 150, measures=False)
                  for part in range(PARTS)]
        checks += [Job("suite every_small_model", self.suite("every_small_model"), 150, measures=False)]
        ours = [Job(f"ours: {case.name}", self.own(case)) for case in self.by_worth()]
        trained = [Job(f"training: {case.name} on {case.devices}", self.training(case)) for case in self.trainings]
        peers = [Job(f"peer: {name}: {case.name}", self.peer(name, case.name), 180)
                 for name in ("torch", "torch.compile", "JAX jit") for case in self.by_worth() if case.function]
        peers += [Job(f"peer: torch trained: {case.name}", self.peer("torch trained", case.name), 120)
                  for case in self.trainings if case.devices == "cuda"]
        # Kernels are looked at in small cases, each once: a tool slows them down a hundred times.
        looked = [Job(f"compute-sanitizer {tool}: {case.name}", self.sanitizer(tool, case), 120, measures=False)
                  for tool in ("memcheck", "racecheck") for case in self.tools.cases(True)]
        looked += [Job(f"ncu: {case.name}", self.counters(case), 120) for case in self.by_worth() if case.bytes][:10]
        return first + checks + ours + trained + peers + looked

    def first_of(self, kind):
        """The small case of a kind."""
        return next(case for case in self.tools.cases(True) if case.name.startswith(kind))

    def by_worth(self):
        """One case of each kind before the second of any."""
        kinds, rounds = {}, []
        for case in self.cases:
            kind = re.split(r"[,\d]", case.name)[0].strip()
            kinds[kind] = kinds.get(kind, -1) + 1
            rounds.append((kinds[kind], len(rounds), case))
        return [case for *_, case in sorted(rounds, key=lambda one: one[:2])]

    def probe(self, deadline):
        found, why = gpu()
        if found is None:
            return "wrong", why, None
        seen = output([self.args.partition, "devices", "--probe"], deadline)
        return ("good" if "cuda" in seen else "wrong"), found[0], {"gpu": found[0], "devices": seen}

    def library(self, deadline):
        """A product that the library must compute: without it all would go on by kernels of our own, several times slower."""
        state, said, value = self.own(self.first_of("GEMM"))(deadline)
        told = value["library"] or "cuBLASLt is not found"
        return ("good" if value["library"] and not value["declined"] else "wrong"), f"{told}; {said}", value

    def suite(self, name, part=None):
        def run(deadline):
            if self.args.suite is None:
                return "absent", "the suite is not built", None
            environment = dict(os.environ, PARTITION_REQUIRE_SHARED="1")
            if self.args.corpus:
                environment["PARTITION_SHARED"] = os.path.abspath(self.args.corpus)
            if part is not None:
                environment["PARTITION_GPU_PART"] = f"{part}/{PARTS}"
            command = [self.args.suite, f"gpu::{name}", "--exact", "--ignored", "--nocapture", "--test-threads", "1"]
            try:
                out = output(command, deadline, environment)
            except Failed as failed:
                return ("wrong" if failed.state == "failed" else failed.state), failed.said, None
            wrong = [line for line in out.splitlines() if "WRONG" in line or "ABSENT" in line]
            good = "1 passed" in out and not wrong
            told = [line for line in out.splitlines() if line.startswith("gpu:")]
            return ("good" if good else "wrong"), "; ".join((wrong or told)[:20]), {"lines": told}

        return run

    def own(self, case):
        # The run that is timed also gives the output that slices and one device must have alike.
        alike = case.alike or any(other.alike == case.name for other in self.cases)

        def run(deadline):
            folder = tempfile.mkdtemp(dir=self.folder) if alike else self.folder
            path = os.path.join(folder, "outputs.npz") if alike else None
            found = json.loads(output(self.tools.command(case, folder, self.args, path), deadline))
            value = self.tools.times(found)
            if alike:
                value["output"] = self.tools.digest(path)
            return "good", f"{value['device']:.4f} ms by the GPU's clock, {value['wall']:.4f} by the wall", value

        return run

    def training(self, case):
        def run(deadline):
            out = output(self.tools.training_command(case, self.folder, self.args), deadline)
            found = self.tools.epochs(out)
            if not found:
                return "wrong", "no epoch is told", None
            return ("good" if abs(found[1]) < float("inf") else "wrong"), f"{found[0]:.4f} s an epoch, loss {found[1]:.4f}", found

        return run

    def peer(self, name, case):
        def run(deadline):
            if self.asked.name != name:
                # Two peers at once would share the GPU.
                self.asked.end()
                self.asked = Peer(name, self.args)
            found = self.asked.asked(case, deadline)
            if not case:
                # Nothing else is asked of it.
                self.asked.end()
            if found.get("absent"):
                return "absent", found["absent"], None
            return "good", json.dumps(found["value"])[:80], found["value"]

        return run

    def sanitizer(self, tool, case):
        def run(deadline):
            command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
            try:
                out = output(command + self.tools.command(case, tempfile.mkdtemp(dir=self.folder), self.args), deadline)
            except Failed as failed:
                # Its own exit code says that it found something.
                state = "wrong" if failed.said.startswith("ended with 9:") else failed.state
                return state, failed.said, None
            errors = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", out)
            return ("good" if errors and set(errors) == {"0"} else "wrong"), f"{errors[-1] if errors else 'no count of'} errors", None

        return run

    def counters(self, case):
        def run(deadline):
            metrics = "dram__throughput.avg.pct_of_peak_sustained_elapsed,sm__throughput.avg.pct_of_peak_sustained_elapsed"
            command = ["ncu", "--clock-control", "none", "--csv", "--metrics", metrics, "--launch-count", "8"]
            out = output(command + self.tools.command(case, self.folder, self.args), deadline)
            lines = [line for line in out.splitlines() if "pct_of_peak" in line]
            return ("good" if lines else "wrong"), f"{len(lines)} numbers", lines

        return run


def measured(jobs, journal):
    """What gpu_table makes a table of, from the lines of results."""
    names = ("torch", "torch.compile", "JAX jit")
    there = [name for name in names if any(journal.value(f"peer: {name}: {case.name}") for case in jobs.cases)]
    runs = {case.name: {} for case in jobs.cases}
    library = None
    for case in jobs.cases:
        for contender, job in [("ours", f"ours: {case.name}")] + [(name, f"peer: {name}: {case.name}") for name in there]:
            value = journal.value(job)
            if value:
                runs[case.name][contender] = [value]
                library = value.get("library") or library
    copy = journal.value("peer: copy")
    outputs = {case.name: (journal.value(f"ours: {case.name}") or {}).get("output") for case in jobs.cases}
    runs_of = lambda value: [value] if value else []
    training = [(runs_of(journal.value(f"training: {case.name} on {case.devices}")),
                 runs_of(journal.value(f"peer: torch trained: {case.name}"))) for case in jobs.trainings]
    return {"copy": copy, "contenders": there, "absent": [name for name in names if name not in there], "cases": runs,
            "outputs": {name: digest for name, digest in outputs.items() if digest}, "library": library, "training": training}


def summary(jobs, journal):
    """Every job that is not good, in words."""
    lines = []
    for job in jobs:
        line = journal.lines.get(job.name, {"state": "left", "said": "not begun"})
        if line["state"] != "good":
            lines.append(f"{line['state']}: {job.name}: {line['said']}")
    return lines
