#!/usr/bin/env python3
"""Times cases with one peer: gpu_peer.py NAME [--small] reads names of cases from standard input, a line each, and answers each with
a line of JSON: {"value": ...}, {"absent": why} or {"failed": why}."""
import json
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from gpu_cases import cases, trainings
from gpu_peers import copy_rate, emptied, peers, torch_trained


class Asked:
    """One peer and its cases."""

    def __init__(self, name, small):
        self.name, self.small = name, small
        found, self.absent = ([], []) if name == "copy" else peers(only=name)
        self.times = dict(found)

    def answer(self, wanted):
        if self.name == "copy":
            rate, why = copy_rate()
            return {"absent": why} if rate is None else {"value": rate}
        if self.name == "torch trained":
            case = next(case for case in trainings(self.small) if case.name == wanted)
            return {"value": torch_trained(case)} if "torch" in self.times else {"absent": (self.absent or [self.name])[0]}
        if self.name not in self.times:
            return {"absent": next((one for one in self.absent if one.startswith(self.name.split(".")[0])), self.name)}
        case = next(case for case in cases(self.small) if case.name == wanted)
        value = self.times[self.name](case)
        return {"absent": "has no form of it"} if value is None else {"value": value}


def main():
    asked = Asked(sys.argv[1], "--small" in sys.argv[2:])
    for line in sys.stdin:
        try:
            answer = asked.answer(line.rstrip("\n"))
        except Exception as error:  # a peer may lack an operation or memory
            answer = {"failed": f"{type(error).__name__}: {error}"[:600]}
        print(json.dumps(answer), flush=True)
        emptied()


if __name__ == "__main__":
    main()
