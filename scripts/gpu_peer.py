#!/usr/bin/env python3
"""Times one case with one peer, in a process of its own: gpu_peer.py NAME CASE [--small]; one line of JSON."""
import json
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from gpu_cases import cases, trainings
from gpu_peers import copy_rate, peers, torch_trained


def main():
    name, wanted = sys.argv[1:3]
    if name == "copy":
        rate, why = copy_rate()
        return {"absent": why} if rate is None else {"value": rate}
    found, absent = peers(only=name)
    small = "--small" in sys.argv[3:]
    times = dict(found)
    if name == "torch trained":
        case = next(case for case in trainings(small) if case.name == wanted)
        return {"value": torch_trained(case)} if "torch" in times else {"absent": (absent or [name])[0]}
    if name not in times:
        return {"absent": next((one for one in absent if one.startswith(name.split(".")[0])), name)}
    case = next(case for case in cases(small) if case.name == wanted)
    value = times[name](case)
    return {"absent": "has no form of it"} if value is None else {"value": value}


if __name__ == "__main__":
    print(json.dumps(main()))
