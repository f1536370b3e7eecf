#!/usr/bin/env python3
"""onnx_known.py FOLDER: small files in which what is sorted, counted or replaced of constants decides sizes.

Writes NAME.onnx, and as NAME.npz the input x and onnxruntime's output y. tests/suite/onnx.rs runs them.
"""
import pathlib
import sys

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper


def ints(name, *values):
    return numpy_helper.from_array(numpy.array(values, numpy.int64), name)


def bools(name, *values):
    return numpy_helper.from_array(numpy.array(values, bool), name)


def networks():
    node = helper.make_node
    vector, one = ints("v", 3, 1, 3, 2, 1, 3), ints("one", 1)
    yield "largest", [node("TopK", ["v", "k"], ["values", "places"]), node("Reshape", ["x", "values"], ["y"])], \
        [ints("v", 1, 2, 3, 2), ints("k", 2)]
    yield "smallest", [node("TopK", ["v", "k"], ["values", "places"], largest=0), node("Add", ["places", "one"], ["sizes"]),
                       node("Reshape", ["x", "sizes"], ["y"])], [ints("v", 9, 0, 0, 7), ints("k", 2), one]
    for kept in (0, 1):
        for result in ("values", "first", "group", "often"):
            yield f"{result}{kept}", [
                node("Unique", ["v"], ["values", "first", "group", "often"], sorted=kept), node("Add", [result, "one"], ["sizes"]),
                node("Reshape", ["x", "six"], ["r"]), node("Gather", ["r", result], ["g"]), node("Shape", ["g"], ["count"]),
                node("Concat", ["count", "often"], ["all"], axis=0), node("ReduceMax", ["all"], ["most"], keepdims=1),
                node("ConstantOfShape", ["most"], ["zeros"], value=helper.make_tensor("z", TensorProto.FLOAT, [1], [2.5])),
                node("Concat", ["g", "zeros"], ["y"], axis=0)], [vector, one, ints("six", 6)]
    yield "replaced", [
        node("ScatterElements", ["all", "at", "none"], ["m"]), node("Compress", ["x", "m"], ["f"], axis=0),
        node("ScatterElements", ["four", "second", "no"], ["n"]), node("Compress", ["f", "n"], ["y"], axis=0)], [
        bools("all", *[True] * 6), ints("at", 0, -1), bools("none", False, False), bools("four", *[True] * 4), ints("second", 2),
        bools("no", False)]


def main(folder):
    x = numpy.linspace(-1, 2, 6, dtype=numpy.float32)
    for name, nodes, constants in networks():
        graph = helper.make_graph(nodes, name, [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        y, = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
        onnx.save(model, folder / f"{name}.onnx")
        numpy.savez_compressed(folder / f"{name}.npz", x=x, y=y)


main(pathlib.Path(sys.argv[1]))
