#!/usr/bin/env python3
"""onnx_empty.py OUT DECODERS: a network whose open axes may have no elements, and what onnxruntime makes of it then.

OUT/operators.onnx has a branch for each small graph below, with inputs and outputs of its own. OUT/operators.NAMES.npz holds
inputs and outputs with the dimensions of these names at 0, the others at 2. OUT/NAME.npz does so for decoders in the folder
DECODERS whose caches are empty yet. tests/suite/empty.rs compares.
"""
import pathlib
import sys

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
SIZE, WORDS = 2, 39
rows, images = [("x", FLOAT, ["n", 4])], [("x", FLOAT, ["b", 3, 6, 6])]
batches = [("x", FLOAT, ["b", "n", 4])]
numbers = numpy.random.default_rng(3)


def node(operator, inputs, outputs="y", **attributes):
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


def weights(**shapes):
    return {name: numbers.standard_normal(shape).astype(numpy.float32) for name, shape in shapes.items()}


def integers(**values):
    return {name: numpy.array(value, dtype=numpy.int64) for name, value in values.items()}


def reductions():
    for operator in ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceSumSquare"]:
        for axis in [0, 1]:
            yield f"{operator}_{axis}", rows, [node(operator, "x axes", keepdims=axis)], integers(axes=[axis])


def graphs():
    """Name, inputs, nodes, arrays."""
    yield "add", rows, [node("Add", "x w", "t"), node("Sigmoid", "t")], weights(w=(4,))
    yield "gemm", rows, [node("Gemm", "x w c")], weights(w=(4, 3), c=(3,))
    yield "matmul", batches, [node("MatMul", "x w")], weights(w=(4, 3))
    inner = [("x", FLOAT, [3, "n"]), ("z", FLOAT, ["n", 5])]
    yield "inner", inner, [node("MatMul", "x z", "t"), node("Add", "t c")], weights(c=(5,))
    inner = [("x", FLOAT, ["b", 3, "n"]), ("z", FLOAT, ["b", "n", 5])]
    yield "batched", inner, [node("MatMul", "x z")], {}
    joined = rows + [("z", FLOAT, [2, 4]), ("u", FLOAT, ["p", 4])]
    yield "concat", joined, [node("Concat", "x z u", "t", axis=0), node("Relu", "t")], {}
    yield "reshape", batches, [node("Reshape", "x sizes")], integers(sizes=[0, 0, 2, 2])
    yield "transpose", batches, [node("Transpose", "x", perm=[1, 0, 2])], {}
    yield "slice", rows, [node("Slice", "x from to axes")], {**integers(to=[3], axes=[1]), "from": numpy.array([1])}
    yield "first", rows, [node("Slice", "x from to axes")], {**integers(to=[1], axes=[0]), "from": numpy.array([0])}
    yield "gather", [("x", FLOAT, [5, 4]), ("ids", INT, ["n"])], [node("Gather", "x ids", axis=0)], {}
    yield from reductions()
    yield "softmax", rows, [node("Softmax", "x", axis=1)], {}
    yield "layer_norm", batches, [node("LayerNormalization", "x g c")], weights(g=(4,), c=(4,))
    yield "argmax", rows, [node("ArgMax", "x", axis=1, keepdims=0)], {}
    yield "topk", rows, [node("TopK", "x k", "y places", axis=1)], integers(k=[2])
    yield "where", rows, [node("Greater", "x w", "t"), node("Where", "t x w")], weights(w=(1,))
    wide = [("x", FLOAT, [1, 4]), ("z", FLOAT, ["n", 4])]
    yield "expand", wide, [node("Shape", "z", "sizes"), node("Expand", "x sizes")], {}
    conv = [node("Conv", "x w", "t", pads=[1, 1, 1, 1]), node("Relu", "t", "u"), node("GlobalAveragePool", "u")]
    yield "conv", images, conv, weights(w=(5, 3, 3, 3))
    yield "pool", images, [node("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2])], {}
    yield "mean_pool", images, [node("AveragePool", "x", kernel_shape=[2, 2], strides=[2, 2])], {}
    yield "split", rows, [node("Split", "x sizes", "y z", axis=1)], integers(sizes=[1, 3])
    yield "pad", rows, [node("Pad", "x sides")], integers(sides=[1, 0, 1, 0])
    updated = [("x", FLOAT, [5, 4]), ("ids", INT, ["n", 1]), ("z", FLOAT, ["n", 4])]
    yield "scatter", updated, [node("ScatterND", "x ids z")], {}
    yield "flatten", batches, [node("Flatten", "x", axis=2)], {}
    summed = [("x", FLOAT, ["b", "n", 4]), ("z", FLOAT, ["b", "n", 3])]
    yield "einsum", summed, [node("Einsum", "x z", equation="bni,bnj->bij")], {}
    steps = [("x", FLOAT, ["n", 4])]
    count = [node("Shape", "x", "sizes"), node("Gather", "sizes zero", "t"), node("Range", "zero t one", "u"), node("Cast", "u", to=FLOAT)]
    yield "range", steps, count, integers(zero=0, one=1)
    mlp = [node("LayerNormalization", "x g c", "t"), node("MatMul", "t v", "u"), node("Relu", "u", "s"), node("MatMul", "s w", "r"), node("Add", "r x")]
    yield "mlp", batches, mlp, weights(g=(4,), c=(4,), v=(4, 8), w=(8, 4))
    pooled = [node("ReduceSum", "x axes", "t", keepdims=1), node("Add", "t c", "u"), node("MatMul", "u w")]
    yield "pooled", rows, pooled, {**integers(axes=[0]), **weights(c=(4,), w=(4, 3))}
    cached = [("q", FLOAT, ["b", 2, "n", 4]), ("k", FLOAT, ["b", 2, "p", 4]), ("own", FLOAT, ["b", 2, 1, 4])]
    attention = [node("Concat", "k own", "keys", axis=2), node("Transpose", "keys", "t", perm=[0, 1, 3, 2]), node("MatMul", "q t", "u"),
                 node("Softmax", "u", "s", axis=-1), node("MatMul", "s keys")]
    yield "attention", cached, attention, {}


def prefixed(graph, name):
    """The names of a branch of its own; `y` and what is read nowhere are outputs."""
    inputs, nodes, arrays = graph
    own = lambda value: f"{name}.{value}" if value else value
    read = {value for node in nodes for value in node.input}
    results = [own(value) for node in nodes for value in node.output if value not in read]
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    for node in nodes:
        node.input[:], node.output[:] = map(own, node.input), map(own, node.output)
    arrays = [numpy_helper.from_array(array, own(key)) for key, array in arrays.items()]
    return [(own(key), dtype, sizes) for key, dtype, sizes in inputs], nodes, results, arrays


def network():
    inputs, nodes, results, arrays = [], [], [], []
    for name, *graph in graphs():
        for whole, part in zip((inputs, nodes, results, arrays), prefixed(graph, name)):
            whole.extend(part)
    described = [helper.make_tensor_value_info(*one) for one in inputs]
    graph = helper.make_graph(nodes, "operators", described, [onnx.ValueInfoProto(name=name) for name in results], arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), inputs


def drawn(dtype, sizes):
    return numbers.integers(0, 2, sizes) if dtype == INT else numbers.standard_normal(sizes).astype(numpy.float32)


def store(path, model, feed):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options)
    names = [output.name for output in session.get_outputs()]
    found = {f"out_{name}": value for name, value in zip(names, session.run(names, feed))}
    numpy.savez_compressed(path, **{f"in_{name}": value for name, value in feed.items()}, **found)


def main(out, decoders):
    model, inputs = network()
    onnx.save(model, out / "operators.onnx")
    for empty in ["n", "b", "p", "bnp"]:
        feed = {name: drawn(dtype, [0 if size in list(empty) else SIZE if isinstance(size, str) else size for size in sizes]) for name, dtype, sizes in inputs}
        store(out / f"operators.{empty}.npz", model.SerializeToString(), feed)
    ids, cache = numbers.integers(0, WORDS, (2, 3)), numpy.zeros((2, 2, 0, 8), numpy.float32)
    caches = {"past_key_values.0.key": cache, "past_key_values.0.value": cache}
    alone, masked = {"input_ids": ids, **caches}, {"input_ids": ids, "attention_mask": numpy.ones((2, 3), numpy.int64), **caches}
    for name, feed in [("caches_alone", alone), ("caches_and_mask", masked)]:
        store(out / f"{name}.npz", (decoders / f"{name}.onnx").read_bytes(), feed)


main(*map(pathlib.Path, sys.argv[1:]))
