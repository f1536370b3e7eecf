"""What scripts/gpu_check makes of what it measured: the table, and what is wrong with it. Nothing here measures.

Measured is {"copy": GB/s or None, "contenders": names, "absent": names, "cases": {case: {contender: [time, ...]}},
"outputs": {case: digest}, "library": name or None}; a time is {"device": ms or None, "wall": ms} of one round, that of
"ours" with "declined": products that the library was asked for and does not compute.
"""
import re
import statistics

# The clock of each contender's times.
CLOCKS = {
    "ours": "events of the GPU around the plan's graph",
    "torch": "events of the GPU around each call",
    "torch.compile": "events of the GPU around each call",
    "JAX jit": "wall clock over calls put in the queue one after the other and waited for once",
}


def suite_verdict(code, out, errors):
    """Whether the checks are good, and the lines that tell: a test that was skipped or found nothing to run is not good."""
    telling = ("panicked", "skipped", "absent from", "ABSENT")
    lines = [line for line in out.splitlines() if line.startswith(("test result", "gpu:")) or any(t in line for t in telling)]
    lines += [line for line in errors.splitlines() if any(t in line for t in telling)]
    passed = sum(int(count) for count in re.findall(r"^test result: ok\. (\d+) passed", out, re.MULTILINE))
    skipped = any("skipped" in line or "ABSENT" in line for line in lines)
    if passed < 2:
        lines.append(f"{passed} tests passed; every operation and every small model are two")
    return code == 0 and passed >= 2 and not skipped, "\n".join(lines)


def median(times, key):
    found = [time[key] for time in times if time.get(key) is not None]
    return statistics.median(found) if found else None


class Row:
    """A case with the medians of what was measured of it."""

    def __init__(self, case, measured, all_cases):
        runs = measured["cases"].get(case.name, {})
        self.case, self.measured = case, measured
        self.own, self.wall = (median(runs.get("ours", []), key) for key in ("device", "wall"))
        self.declined = max((time.get("declined") or 0 for time in runs.get("ours", [])), default=0)
        self.peers = {name: median(runs.get(name, []), "device") for name in measured["contenders"]}
        self.alone = None
        if case.alike:
            self.alone = median(measured["cases"].get(case.alike, {}).get("ours", []), "device")

    def same(self):
        """How the output is compared with that of the case it is to be alike."""
        if not self.case.alike:
            return "-"
        digests = [self.measured["outputs"].get(name) for name in (self.case.name, self.case.alike)]
        if None in digests:
            return "not there"
        return "the same" if digests[0] == digests[1] else "ANOTHER"

    def best(self):
        return min((time for time in self.peers.values() if time), default=None)

    def against(self):
        """What the case reached in terms of what it must; None with what is missing for that."""
        kind, case, copy = self.case.must.kind, self.case, self.measured["copy"]
        if kind == "copy":
            return (case.bytes / self.own / 1e6 / copy, "") if copy else (None, "no rate of a copy")
        if kind in ("library", "attention", "eager"):
            eager = self.peers.get("torch")
            return (eager / self.own, "") if eager else (None, "no torch")
        if kind == "peer":
            best = self.best()
            return (best / self.own, "") if best else (None, "no peer")
        if kind == "kernel":
            return self.own * 1e3 / case.kernels, ""
        return (self.own / self.alone, "") if self.alone else (None, "no time of one device")

    def faults(self):
        """What is wrong, in words."""
        if self.own is None:
            return ["ours did not run"]
        said = {"ANOTHER": "ANOTHER output than one device", "not there": "no output to compare with one device's"}
        found = [said[self.same()]] if self.same() in said else []
        if self.declined:
            found.append(f"{self.declined} products that the library was asked for and does not compute")
        reached, _ = self.against()
        if reached is not None and not self.case.must.is_met(reached):
            found.append(f"{reached:.2f}, and must be {self.case.must}")
        return found

    def unjudged(self):
        return self.against()[1] if self.own is not None else ""

    def line(self):
        case, own, ms = self.case, self.own, lambda time: f"{time:.4f}" if time else "-"
        reached = "-"
        if own and case.bytes:
            reached = f"{case.bytes / own / 1e6:.0f} GB/s"
        elif own and case.flops:
            reached = f"{case.flops / own / 1e9:.1f} TFLOP/s"
        elif own and case.kernels:
            reached = f"{own * 1e3 / case.kernels:.2f} us"
        value, missing = self.against() if own else (None, "")
        must = f"{value:.2f}" if value is not None else f"not judged: {missing}" if missing else "-"
        output = self.same() if own else "-"
        peer = f"{self.best() / own:.2f}" if own and self.best() else "-"
        cells = [case.name, ms(own), ms(self.wall), *map(ms, self.peers.values()), reached, str(case.must),
                 must, peer, output, "; ".join(self.faults()) or "good"]
        return f"| {' | '.join(cells)} |"


def table(cases, measured):
    """The table of the cases, and what is wrong with any of them."""
    rows = [Row(case, measured, cases) for case in cases]
    contenders = measured["contenders"]
    lines = [f"Times are medians in ms. Ours: {CLOCKS['ours']}; beside it the wall clock of a step, as its caller sees it."]
    lines += [f"{name}: {CLOCKS[name]}." for name in contenders]
    lines.append(f"The library of products: {measured['library'] or 'absent'}.")
    if measured["absent"]:
        lines.append(f"Absent: {', '.join(measured['absent'])}.")
    copy = measured["copy"]
    lines.append(f"A copy of 1 GB within the GPU's memory: {f'{copy:.0f} GB/s' if copy else 'not measured'}.")
    heads = ["what", "ours, GPU", "ours, wall", *contenders, "reached", "must", "is", "of best peer", "output", "verdict"]
    lines = ["\n\n".join(lines), "", f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(contenders) + 2) + "---|" * 6]
    lines += [row.line() for row in rows]
    faults = [f"{row.case.name}: {fault}" for row in rows for fault in row.faults()]
    if not measured["library"] and any(row.own and row.case.must.kind == "library" for row in rows):
        faults.append("cuBLASLt was not found, and the table has products that are its")
    unjudged = [f"{row.case.name}: {row.unjudged()}" for row in rows if row.unjudged()]
    lines += ["", f"{len(rows)} rows, {len(faults)} faults, {len(unjudged)} without what they are judged by."]
    return "\n".join(lines + [f"- {one}" for one in faults + unjudged]), faults


def training_table(trainings, measured):
    """Likewise of training; runs are [seconds of an epoch, last loss] of ours and of torch, by place in the list."""
    lines = ["Wall clock of whole epochs of ten steps, medians.", "",
             "| what | batch | devices | must | samples/s | torch, samples/s | last loss |", "|---|---:|---|---|---:|---:|---:|"]
    faults = []
    for case, (own, other) in zip(trainings, measured):
        rate = lambda runs: f"{10 * case.batch / statistics.median(run[0] for run in runs):.0f}" if runs else "-"
        loss = f"{own[-1][1]:.4f}" if own else "-"
        lines.append(f"| {case.name} | {case.batch} | {case.devices} | {case.must} | {rate(own)} | {rate(other)} | {loss} |")
        if not own:
            faults.append(f"{case.name} on {case.devices}: ours did not run")
        elif not all(abs(run[1]) < float("inf") for run in own):
            faults.append(f"{case.name} on {case.devices}: the loss is not finite")
    return "\n".join(lines + [""] + [f"- {fault}" for fault in faults]), faults
