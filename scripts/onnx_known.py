#!/usr/bin/env python3
"""onnx_known.py FOLDER: small files in which what operators make of constants decides sizes.

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
    yield "operators", *operators()
    yield "never", *never()


def operators():
    """Sizes made by operators that shape arithmetic seldom has: each fills a tensor, and is itself there, too."""
    node = helper.make_node
    nodes = [node("Reshape", ["x", "six"], ["r"]), node("Shape", ["r"], ["s"]), node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
             node("Unsqueeze", ["s", "zero"], ["row"])]
    constants = [ints("six", 1, 2, 3), ints("zero", 0), ints("flat", -1)]
    parts = []

    def sizes(*made, **initial):
        """Nodes that make o, and the arrays that they read."""
        mark = str(len(parts))
        own = {output for each in made for output in each.output} | initial.keys()
        for each in made:
            each.input[:] = [name + mark if name in own else name for name in each.input]
            each.output[:] = [name + mark for name in each.output]
        constants.extend(numpy_helper.from_array(numpy.array(value), name + mark) for name, value in initial.items())
        fill = helper.make_tensor("fill", TensorProto.FLOAT, [1], [1.5])
        nodes.extend([*made, node("ConstantOfShape", ["o" + mark], ["filled" + mark], value=fill),
                      node("Reshape", ["filled" + mark, "flat"], ["line" + mark]),
                      node("Cast", ["o" + mark], ["sizes" + mark], to=TensorProto.FLOAT)])
        parts.extend(["line" + mark, "sizes" + mark])

    long = numpy.int64
    sizes(node("CastLike", ["f", "s"], ["o"]))
    sizes(node("Clip", ["s", "low", "high"], ["o"]), low=long(2), high=long(2))
    sizes(node("Mean", ["f", "f"], ["m"]), node("CastLike", ["m", "s"], ["o"]))
    sizes(node("GatherND", ["s", "i"], ["o"]), i=[[2], [-2]])
    sizes(node("GatherElements", ["s", "i"], ["o"]), i=[1, -1])
    sizes(node("Pad", ["s", "p", "v"], ["o"]), p=[1, 0], v=long(4))
    sizes(node("ReduceL1", ["s"], ["o"]))
    sizes(node("ReduceSumSquare", ["s"], ["o"]))
    sizes(node("BitwiseAnd", ["s", "a"], ["o"]), a=[3, 2, 2])
    sizes(node("BitwiseNot", ["s"], ["b"]), node("Neg", ["b"], ["o"]))
    sizes(node("Pow", ["s", "k"], ["o"]), k=long(2))
    sizes(node("Trilu", ["row"], ["t"], upper=0), node("Reshape", ["t", "flat"], ["q"]), node("Max", ["q", "a"], ["o"]), a=[2, 2, 1])
    sizes(node("EyeLike", ["row"], ["e"]), node("Add", ["e", "s"], ["t"]), node("Reshape", ["t", "flat"], ["o"]))
    sizes(node("Compress", ["s", "c"], ["o"]), c=[True, False, True])
    sizes(node("ReverseSequence", ["row", "l"], ["t"], batch_axis=0, time_axis=1), node("Reshape", ["t", "flat"], ["o"]), l=[3])
    sizes(node("SplitToSequence", ["s"], ["q"], axis=0), node("SequenceAt", ["q", "i"], ["o"]), i=long(2))
    sizes(node("IsNaN", ["f"], ["b"]), node("Where", ["b", "a", "s"], ["o"]), a=[1, 1, 1])
    sizes(node("Cast", ["s"], ["q"], to=TensorProto.INT32), node("DequantizeLinear", ["q", "k"], ["d"]), node("CastLike", ["d", "s"], ["o"]),
          k=numpy.float32(0.5))
    return [*nodes, node("Concat", parts, ["y"], axis=0)], constants


def never():
    """Loops of no iterations: what they carry is as it was, and what they stack has no elements."""
    node, value = helper.make_node, helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Identity", ["c"], ["cn"]), node("Neg", ["v"], ["vn"]), node("Unsqueeze", ["vn", "zero"], ["row"])], "body",
        [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, []), value("v", TensorProto.FLOAT, [6])],
        [value("cn", TensorProto.BOOL, []), value("vn", TensorProto.FLOAT, [6]), value("row", TensorProto.FLOAT, [1, 6])])
    loops = [node("Loop", ["none", "", "x"], ["a", "rows"], body=body), node("Loop", ["five", "no", "a"], ["b", "more"], body=body)]
    return [*loops, node("Concat", ["rows", "more", "square"], ["all"], axis=0), node("Reshape", ["all", "flat"], ["l"]),
            node("Concat", ["l", "b"], ["y"], axis=0)], [
        ints("zero", 0), ints("flat", -1), numpy_helper.from_array(numpy.int64(0), "none"), numpy_helper.from_array(numpy.int64(5), "five"),
        numpy_helper.from_array(numpy.bool_(False), "no"), numpy_helper.from_array(numpy.full((1, 1, 6), 2.5, numpy.float32), "square")]


def main(folder):
    x = numpy.linspace(-1, 2, 6, dtype=numpy.float32)
    for name, nodes, constants in networks():
        graph = helper.make_graph(nodes, name, [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        y, = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
        onnx.save(model, folder / f"{name}.onnx")
        numpy.savez_compressed(folder / f"{name}.npz", x=x, y=y)


main(pathlib.Path(sys.argv[1]))
