#!/usr/bin/env python3
"""generate.py FILE [--seed N] [--models N]: small random models, and what onnxruntime makes of them.

Half of the models are of one operator and have special values among their data, the others of three to six.
Operands are inputs, initialisers, constants and other nodes' results. FILE holds records of length-prefixed
parts (u32, little endian): name, operators, model, dimensions ("name=size" lines); then the number of inputs and
for each its TensorProto; then the number of outputs and for each its TensorProto and, as f64, how far each element
may be off. tests/suite/differential.rs runs them.

How far an element may be off follows from the model: it is run again with inputs that are off by a few units in
the last place, and what that changes is the yardstick. Where everything is exact, nothing may differ.
"""
import argparse
import collections
import struct

import numpy as np
from onnx import helper

import exceptions
from builder import F16, F32, F64, Builder, Unrunnable, proto, run, session
import breadth  # noqa: F401 (adds to the table)
from operators import TABLE

# Operators that onnxruntime computes by approximations with an absolute error.
APPROXIMATE = {"Tanh", "Sigmoid", "Erf", "Gelu", "Softplus", "Mish", "Swish", "RNN", "GRU", "LSTM", "Elu", "Celu", "Selu",
               "Sin", "Cos", "Tan", "Atan", "LogSoftmax", "SoftmaxCrossEntropyLoss", "ReduceLogSumExp", "ReduceLogSum", "Log", "BiasGelu", "FastGelu", "QuickGelu",
               "HannWindow", "HammingWindow", "BlackmanWindow"}
# Sums of several inputs times sines of f32, or times weights at positions of f32: an error of so many units beside
# numbers of the size of the inputs.
TRANSFORMS = {"DFT": 128, "STFT": 128, "Resize": 32}
UNIT = {F16: 2.0**-10, F32: 2.0**-23, F64: 2.0**-52}


def composed(rng, index):
    single = index % 2 == 0
    opset = 21 if rng.random() < 0.5 else int(rng.integers(9, 25))
    builder = Builder(rng, opset, single)
    names = [name for name, (_, since, until) in TABLE.items() if since <= opset <= until]
    if single:
        name = list(TABLE)[index // 2 % len(TABLE)]
        if name not in names:
            _, since, until = TABLE[name]
            builder.opset = int(rng.integers(since, min(until, 24) + 1))
        TABLE[name][0](builder, name)
        return builder
    steps, tries = int(rng.integers(3, 7)), 0
    while steps and tries < 40:
        tries += 1
        name = names[int(rng.integers(len(names)))]
        before = len(builder.nodes), len(builder.leaves), len(builder.values), len(builder.results), len(builder.ops)
        read = set(builder.read)
        try:
            TABLE[name][0](builder, name)
            steps -= 1
        except Unrunnable:
            for items, count in zip((builder.nodes, builder.leaves, builder.values, builder.results, builder.ops), before):
                del items[count:]
            builder.read = read
    if not builder.nodes:
        raise Unrunnable("nothing fits")
    return builder


def unit(builder):
    """A unit in the last place of the least exact type of floats in the model."""
    dtypes = {leaf.array.dtype for leaf in builder.leaves} | {value.dtype for value in builder.results}
    return max([UNIT[dtype] for dtype in dtypes if dtype in UNIT], default=0.0)


def errors(builder):
    """How far results of operators with an absolute error may be off, by name."""
    least = unit(builder)
    found = {}
    for node in builder.nodes:
        units = TRANSFORMS.get(node.op_type, 4 if node.op_type in APPROXIMATE else 0)
        if units:
            found.update((name, units * least) for name in node.output if name)
    return found


def perturbed(builder, outputs, expected):
    """What changes where inputs, and what operators with an absolute error made, are off by a little."""
    changes = [np.zeros(array.shape) for array in expected]
    # All to one side and to the other, so that what compares a sum that is zero changes; and to either.
    for signs in ((1.0,), (-1.0,), (-1.0, 1.0)):
        model, _ = builder.model(outputs, roles=False, errors=errors(builder), signs=signs)
        twin = session(model)
        feeds = {}
        for leaf in builder.leaves:
            array = leaf.array
            if array.dtype in UNIT and not leaf.fixed:
                with np.errstate(all="ignore"):
                    noise = builder.rng.choice([-4.0, -2.0, 2.0, 4.0], array.shape) * UNIT[array.dtype]
                    array = np.asarray((array * (1 + noise)).astype(array.dtype))
            feeds[leaf.name] = array
        try:
            found = run(twin, feeds)
        except Unrunnable:
            return [np.full(array.shape, np.inf) for array in expected]
        if any(one.shape != other.shape for one, other in zip(expected, found)):
            raise Unrunnable("how many results there are follows from rounding")
        for change, one, other in zip(changes, expected, found):
            with np.errstate(all="ignore"):
                if one.dtype.kind == "f":
                    difference = np.abs(one.astype(float) - other.astype(float))
                    difference = np.where(np.isnan(one) & np.isnan(other) | (one == other), 0.0, difference)
                    difference = np.where(np.isnan(difference), np.inf, difference)
                else:
                    difference = np.where(one == other, 0.0, np.inf)
            np.maximum(change, difference, out=change)
    return changes


def tolerances(builder, outputs, expected):
    by_name = {value.name: value for value in outputs}
    exact = [by_name[value.name].exact for value in outputs]
    changes = [np.zeros(array.shape) for array in expected] if all(exact) else perturbed(builder, outputs, expected)
    least = unit(builder)
    absolute = 4 * least if APPROXIMATE & set(builder.ops) else 0.0
    absolute = max([absolute] + [TRANSFORMS[op] * least for op in set(builder.ops) & set(TRANSFORMS)])
    made = []
    for array, change, is_exact in zip(expected, changes, exact):
        if array.dtype.kind != "f":
            made.append(np.zeros(array.shape) if is_exact else change)
            continue
        own = UNIT[array.dtype]
        # Sums of the extremes may overflow in one order and not in another.
        relative = 2 * own if is_exact else 64 * least
        with np.errstate(all="ignore"):
            magnitude = np.nan_to_num(np.abs(array.astype(float)), nan=0.0, posinf=0.0)
        made.append((0 if is_exact else 8 * change) + relative * magnitude + absolute)
    return made


def bytes_of(array):
    return proto(array, "").SerializeToString()


def record(name, builder):
    outputs = builder.outputs()
    model, dims = builder.model(outputs)
    inputs = [leaf for leaf in builder.leaves if leaf.role == "input"]
    feeds = {leaf.name: leaf.array for leaf in inputs}
    expected = run(session(model), feeds)
    allowed = tolerances(builder, outputs, expected)
    parts = [name.encode(), " ".join(builder.ops).encode(), model, "\n".join(f"{k}={v}" for k, v in dims.items()).encode()]
    parts.append(struct.pack("<I", len(inputs)))
    parts += [proto(leaf.array, leaf.name).SerializeToString() for leaf in inputs]
    parts.append(struct.pack("<I", len(outputs)))
    for value, array, allowance in zip(outputs, expected, allowed):
        parts.append(proto(array, value.name).SerializeToString())
        parts.append(np.ascontiguousarray(allowance, "<f8").tobytes())
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("file")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--models", type=int, default=3000)
    arguments.add_argument("--verbose", action="store_true", help="why onnxruntime runs what it does not")
    given = arguments.parse_args()
    made, index = 0, 0
    operators = collections.Counter()
    refused, excepted = collections.Counter(), collections.Counter()
    with open(given.file, "wb") as file:
        while made < given.models and index < 4 * given.models:
            rng = np.random.default_rng([given.seed, index])
            index += 1
            try:
                builder = composed(rng, index - 1)
                reason = exceptions.reason(builder)
                if reason:
                    excepted[reason] += 1
                    continue
                file.write(record(f"seed{given.seed}_{index - 1}", builder))
                made += 1
                operators.update(builder.ops)
            except Unrunnable as error:
                single = list(TABLE)[(index - 1) // 2 % len(TABLE)] if index % 2 else "several"
                refused[single + ": " + str(error).splitlines()[0][-200:]] += 1
    print(f"seed {given.seed}: {made} models; {sum(refused.values())} that onnxruntime does not run, "
          f"{sum(excepted.values())} excepted")
    # Less than a third of an even share; ReshapeByShape is several operators.
    few = made / len(TABLE) / 3
    scarce = [f"{name} {operators[name]}" for name in sorted(TABLE) if name != "ReshapeByShape" and operators[name.split("-")[0]] < few]
    print("  operators that are rare:", ", ".join(scarce) or "none")
    if given.verbose:
        for reason, count in refused.most_common():
            print(f"  {count} not run: {reason}")
    for reason, count in excepted.most_common():
        print(f"  {count} excepted: {reason}")


if __name__ == "__main__":
    main()
