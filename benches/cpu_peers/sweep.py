#!/usr/bin/env python3
"""Compares single operations of many shapes on one core with onnxruntime: a line for each, the worst first.

    python3 benches/cpu_peers/sweep.py --partition target/release/partition [--only REGEX] > sweep.md

Shapes are those of common networks and others beside them: odd numbers of channels, one image and several, small
planes and large ones, strides, dilation, groups. `run.py` makes and measures the networks; both runtimes take turns, and a
figure is the least of the rounds' medians. Some 320 cells take a minute and a half a round. The release build is to have
LTO among its own units, which is the default: without, closures are not compiled for the vectors of what calls them.
"""

import argparse
import os
import re
import sys
import tempfile

import numpy as np
from onnx import TensorProto, helper

import run

run.SECONDS, run.MOST = 0.15, 300
FLOAT, INT64, INT32, BYTE, BOOL = (
    getattr(TensorProto, name) for name in ("FLOAT", "INT64", "INT32", "UINT8", "BOOL"))
MICROSOFT = "com.microsoft"
weights, random = run.weights, np.random.default_rng(0)
CELLS = []


def ints(*values):
    return np.array(values, np.int64)


def cell(family, op, *inputs, result=FLOAT, more=(), domain="", label="", **attributes):
    """A network of one operation: a tuple is the shape of an input (its type first, where not f32), an array is known."""
    inputs = [i if i is None or isinstance(i, tuple) else np.array(i) for i in inputs]
    CELLS.append((family, op, inputs, [result, *more], domain, attributes, label))


def described(op, inputs, attributes, label):
    """What a cell is called: its shapes, and the attributes that are not the usual ones."""
    shapes = [list(i.shape) if isinstance(i, np.ndarray) else list(i) for i in inputs if i is not None]
    text = ", ".join("x".join(str(size) for size in shape if size is not None) for shape in shapes if shape)
    others = " ".join(f"{key}={value}" for key, value in attributes.items())
    return f"{op} {text} {others} {label}".replace("'", "").strip()


def make(path, op, inputs, results, domain, attributes):
    names, given, known = [], [], []
    for number, value in enumerate(inputs):
        names.append("" if value is None else f"i{number}")
        if isinstance(value, np.ndarray):
            known.append((names[-1], value))
        elif value is not None:
            kind, shape = value[0], value[1:]
            given.append((names[-1], list(shape), kind))
    outputs = [f"y{number}" for number in range(len(results))]
    node = helper.make_node(op, names, outputs, domain=domain, **attributes)
    run.save(path, [node], given, [(outputs[0], None, results[0])], known)


def f(*shape):
    return (FLOAT, *shape)


def pools():
    two = {"kernel_shape": [2, 2], "strides": [2, 2]}
    by_two = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
    beside = {"kernel_shape": [3, 3], "pads": [1] * 4}
    for op in ("MaxPool", "AveragePool"):
        for shape in ((1, 64, 112, 112), (1, 512, 14, 14), (4, 33, 27, 29)):
            cell("pool", op, f(*shape), **two)
        for shape in ((1, 64, 112, 112), (1, 64, 56, 56), (1, 480, 28, 28), (4, 33, 27, 29)):
            cell("pool", op, f(*shape), **by_two)
        for shape in ((1, 192, 28, 28), (1, 832, 7, 7), (4, 33, 27, 29)):
            cell("pool", op, f(*shape), **beside)
        cell("pool", op, f(1, 64, 56, 56), kernel_shape=[5, 5], pads=[2] * 4)
        cell("pool", op, f(4, 64, 500), kernel_shape=[3], strides=[2])
    cell("pool", "MaxPool", f(1, 32, 16, 56, 56), kernel_shape=[3] * 3, strides=[2] * 3, pads=[1] * 6)
    cell("pool", "MaxPool", f(1, 256, 20, 20), kernel_shape=[5, 5], pads=[2] * 4)
    for shape in ((1, 2048, 7, 7), (1, 256, 56, 56), (4, 33, 13, 13)):
        cell("pool", "GlobalAveragePool", f(*shape))


def convolutions():
    def conv(x, made, kernel, family="conv", **attributes):
        group = attributes.get("group", 1)
        cell(family, "Conv", f(*x), weights(made, x[1] // group, *kernel), weights(made), **attributes)

    one = {"pads": [1] * 4}
    conv((1, 3, 224, 224), 64, (7, 7), strides=[2, 2], pads=[3] * 4)
    conv((1, 3, 224, 224), 32, (3, 3), strides=[2, 2], **one)
    conv((1, 3, 224, 224), 768, (16, 16), strides=[16, 16])
    conv((4, 3, 32, 32), 16, (3, 3), **one)
    conv((1, 1, 28, 28), 32, (5, 5))
    for size, channels in ((56, 64), (28, 128), (14, 256), (7, 512)):
        conv((1, channels, size, size), channels, (3, 3), **one)
        conv((1, channels, size, size), 4 * channels, (1, 1))
    conv((4, 64, 14, 14), 64, (3, 3), **one)
    conv((1, 17, 31, 33), 29, (3, 3), **one)
    conv((1, 33, 27, 29), 65, (1, 1))
    conv((4, 24, 9, 11), 40, (1, 1))
    conv((1, 128, 56, 56), 128, (3, 3), strides=[2, 2], **one)
    conv((1, 256, 56, 56), 512, (1, 1), strides=[2, 2])
    conv((1, 1280, 1, 1), 320, (1, 1))
    conv((1, 960, 7, 7), 160, (1, 1))
    conv((1, 16, 112, 112), 96, (1, 1))
    conv((1, 64, 33, 33), 64, (3, 3), dilations=[2, 2], pads=[2] * 4)
    conv((1, 192, 17, 17), 192, (1, 7), pads=[0, 3, 0, 3])
    conv((1, 32, 28, 28), 64, (5, 5), pads=[2] * 4)
    conv((1, 128, 56, 56), 128, (3, 3), group=32, **one)
    conv((1, 240, 28, 28), 240, (1, 1), group=3)
    conv((1, 80, 1000), 384, (3,), pads=[1, 1])
    conv((1, 256, 200), 256, (5,), pads=[4, 4], dilations=[2])
    conv((1, 16, 8, 28, 28), 32, (3, 3, 3), pads=[1] * 6)

    def each(x, kernel, **attributes):
        conv(x, x[1], kernel, "depthwise", group=x[1], **attributes)

    for x in ((1, 32, 112, 112), (1, 192, 28, 28), (1, 384, 14, 14), (1, 960, 7, 7), (4, 37, 19, 23), (4, 960, 7, 7)):
        each(x, (3, 3), **one)
    each((1, 96, 112, 112), (3, 3), strides=[2, 2], **one)
    each((1, 576, 14, 14), (3, 3), strides=[2, 2], **one)
    each((1, 240, 28, 28), (5, 5), pads=[2] * 4)
    each((1, 672, 14, 14), (5, 5), strides=[2, 2], pads=[2] * 4)
    each((1, 1152, 7, 7), (5, 5), pads=[2] * 4)
    each((1, 96, 56, 56), (7, 7), pads=[3] * 4)
    each((1, 768, 7, 7), (7, 7), pads=[3] * 4)
    each((1, 256, 33, 33), (3, 3), dilations=[2, 2], pads=[2] * 4)
    each((1, 256, 200), (31,), pads=[15, 15])
    each((1, 1536, 128), (4,), pads=[3, 0])

    def transposed(x, made, kernel, **attributes):
        group = attributes.get("group", 1)
        cell("transposed", "ConvTranspose", f(*x), weights(x[1], made // group, *kernel), weights(made), **attributes)

    by_two = {"strides": [2, 2], "pads": [1] * 4}
    transposed((1, 100, 1, 1), 256, (4, 4))
    transposed((4, 100, 1, 1), 256, (4, 4))
    transposed((1, 256, 4, 4), 128, (4, 4), **by_two)
    transposed((1, 128, 8, 8), 64, (4, 4), **by_two)
    transposed((1, 64, 16, 16), 3, (4, 4), **by_two)
    transposed((4, 64, 16, 16), 32, (4, 4), **by_two)
    transposed((1, 128, 56, 56), 64, (2, 2), strides=[2, 2])
    transposed((1, 512, 14, 14), 256, (2, 2), strides=[2, 2])
    transposed((1, 33, 27, 29), 17, (3, 3), strides=[2, 2], pads=[1] * 4, output_padding=[1, 1])
    transposed((1, 64, 28, 28), 64, (3, 3), pads=[1] * 4)
    transposed((1, 21, 34, 34), 21, (16, 16), strides=[8, 8], pads=[4] * 4, group=21)
    transposed((1, 256, 100), 128, (16,), strides=[8], pads=[4] * 2)


def recurrent():
    def layer(op, steps, batch, features, hidden, **attributes):
        gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
        both = 2 if attributes.get("direction") == "bidirectional" else 1
        known = [np.concatenate([w] * both) for w in run.recurrent_weights(gates, features, hidden)]
        cell("recurrent", op, f(steps, batch, features), *known, hidden_size=hidden, **attributes)

    for steps, batch, features, hidden in ((100, 1, 64, 64), (50, 1, 128, 128), (30, 1, 256, 256), (20, 1, 300, 512),
                                           (50, 4, 128, 128), (50, 1, 40, 33), (50, 3, 40, 33), (32, 32, 256, 256)):
        layer("LSTM", steps, batch, features, hidden)
        layer("GRU", steps, batch, features, hidden)
    layer("LSTM", 50, 1, 128, 128, direction="bidirectional")
    layer("GRU", 16, 8, 512, 512, linear_before_reset=1)
    layer("RNN", 50, 1, 128, 128)


def reductions():
    for op in ("ReduceMean", "ReduceMax", "ReduceL2"):
        for rows, columns in ((20000, 3), (20000, 16), (5000, 33), (512, 1000)):
            cell("reduce", op, f(rows, columns), axes=[1])
    for op in ("ReduceMean", "ReduceMax"):
        cell("reduce", op, f(1000, 64), axes=[0])
        cell("reduce", op, f(32, 100, 65), axes=[1])
        cell("reduce", op, f(1, 64, 56, 56), axes=[1])
        cell("reduce", op, f(1, 256, 28, 28), axes=[2, 3])
    cell("reduce", "ReduceLogSumExp", f(512, 1000), axes=[1])
    cell("reduce", "ReduceProd", f(5000, 33), axes=[1])
    cell("reduce", "CumSum", f(512, 1000), ints(1))
    cell("reduce", "CumSum", f(1000, 64), ints(0))
    for shape, axis in (((1, 32000), 1), ((8400, 80), 1), ((1, 21, 128, 128), 1), ((64, 1000), 1), ((20000, 5), 1)):
        cell("choose", "ArgMax", f(*shape), axis=axis, result=INT64)
    for shape, k in (((1, 1000), 5), ((64, 1000), 5), ((1, 25200), 300), ((8400, 80), 1), ((1000, 64), 8), ((16, 32000), 50)):
        cell("choose", "TopK", f(*shape), ints(k), more=[INT64])


def products():
    for rows in (1, 2, 4, 8):
        for terms, columns in ((2048, 1000), (512, 512), (4096, 1024), (84, 10), (768, 3072)):
            cell("product", "Gemm", f(rows, terms), weights(columns, terms), weights(columns), transB=1)
    for shape, other in (((64, 8, 8), (64, 8, 8)), ((1000, 4, 4), (1000, 4, 4)), ((12, 64, 64), (12, 64, 64)),
                         ((96, 49, 32), (96, 32, 49)), ((1, 12, 1, 64), (1, 12, 64, 512)), ((12, 197, 197), (12, 197, 64)),
                         ((1, 512), (512, 512)), ((100, 33), (33, 17)), ((1000, 3), (3, 64)), ((5000, 64), (64, 1))):
        cell("product", "MatMul", f(*shape), f(*other))


def norms():
    for rows, columns in ((20000, 16), (5000, 64), (3136, 96), (1000, 192), (197, 768), (128, 1024), (5000, 33)):
        cell("norm", "LayerNormalization", f(rows, columns), weights(columns), weights(columns))
    for rows, columns in ((5000, 64), (128, 2048)):
        cell("norm", "SimplifiedLayerNormalization", f(rows, columns), weights(columns), axis=-1, epsilon=1e-5)
    for shape in ((1, 64, 128, 128), (1, 256, 32, 32), (4, 33, 19, 23), (1, 32, 40 * 100), (1, 512, 7, 7)):
        cell("norm", "InstanceNormalization", f(*shape), weights(shape[1]), weights(shape[1]))
    for shape in ((1, 64, 56, 56), (1, 512, 7, 7), (128, 512)):
        cell("norm", "BatchNormalization", f(*shape), *[np.abs(weights(shape[1])) + 0.1 for _ in range(4)])
    cell("norm", "LRN", f(1, 96, 27, 27), size=5)
    cell("norm", "LpNormalization", f(1000, 128), axis=-1)
    for rows, columns in ((50000, 2), (20000, 4), (20000, 8), (20000, 16), (5000, 33), (5000, 64), (2364, 197), (512, 1000), (8, 32000)):
        cell("softmax", "Softmax", f(rows, columns), axis=-1)
    cell("softmax", "Softmax", f(4, 16, 8400), axis=1)
    cell("softmax", "LogSoftmax", f(512, 1000), axis=-1)


def copies():
    for shapes, axis in ((((1, 64, 56, 56),) * 2, 1), (((1, 128, 20, 20), (1, 256, 20, 20)), 1), (((1000, 33), (1000, 31)), 1),
                         (((5000, 4), (5000, 1), (5000, 3)), 1), (((1, 197, 768), (1, 1, 768)), 1),
                         (((4, 3, 80, 80, 2), (4, 3, 80, 80, 2), (4, 3, 80, 80, 81)), 4)):
        cell("copy", "Concat", *[f(*shape) for shape in shapes], axis=axis)
    for shape, begin, end, axes, steps in (
            ((1, 64, 56, 56), (1, 1), (55, 55), (2, 3), (1, 1)), ((1, 3, 320, 320), (0, 1), (320, 320), (2, 3), (2, 2)),
            ((8400, 85), (5,), (85,), (1,), (1,)), ((8400, 85), (0,), (4,), (1,), (1,)), ((197, 2304), (768,), (1536,), (1,), (1,)),
            ((1, 64, 56, 56), (-1,), (-57,), (3,), (-1,))):
        cell("copy", "Slice", f(*shape), *[ints(*v) for v in (begin, end, axes, steps)])
    cell("copy", "Split", f(1, 64, 56, 56), axis=1, more=[FLOAT])
    cell("copy", "Split", f(8400, 84), ints(4, 80), axis=1, more=[FLOAT])
    cell("copy", "Pad", f(1, 64, 56, 56), ints(0, 0, 1, 1, 0, 0, 1, 1))
    cell("copy", "Pad", f(1, 512, 7, 7), ints(0, 0, 1, 1, 0, 0, 1, 1))
    cell("copy", "Pad", f(1, 64, 64, 64), ints(0, 0, 3, 3, 0, 0, 3, 3), mode="reflect")
    for shape, order in (((1, 197, 12, 64), (0, 2, 1, 3)), ((1, 64, 56, 56), (0, 2, 3, 1)), ((1, 56, 56, 64), (0, 3, 1, 2)),
                         ((1, 3, 224, 224), (0, 2, 3, 1)), ((1, 224, 224, 3), (0, 3, 1, 2)), ((12, 197, 64), (0, 2, 1)),
                         ((1, 3, 85, 20, 20), (0, 1, 3, 4, 2)), ((1, 2, 58, 28, 28), (0, 2, 1, 3, 4)),
                         ((1, 8, 7, 8, 7, 96), (0, 1, 3, 2, 4, 5)), ((1000, 1000), (1, 0)), ((8400, 84), (1, 0)), ((100, 7, 3), (2, 0, 1))):
        cell("copy", "Transpose", f(*shape), perm=order)
    cell("copy", "Expand", f(1, 64, 1, 1), ints(1, 64, 56, 56))
    cell("copy", "Expand", f(4, 8, 1, 128, 64), ints(4, 8, 4, 128, 64))
    cell("copy", "Tile", f(1, 32, 28, 28), ints(1, 2, 2, 2))
    cell("copy", "Gather", f(30522, 768), random.integers(0, 30522, (1, 128)))
    cell("copy", "Gather", f(49, 3), random.integers(0, 49, (2401,)))
    cell("copy", "Gather", f(1, 197, 768), np.int64(0), axis=1)
    cell("copy", "GatherND", f(64, 100, 32), random.integers(0, 64, (500, 2)))
    cell("copy", "ScatterND", f(1000, 64), random.permutation(1000)[:300].reshape(300, 1), f(300, 64))
    cell("copy", "DepthToSpace", f(1, 48, 64, 64), blocksize=4, mode="CRD")
    cell("copy", "DepthToSpace", f(1, 64, 56, 56), blocksize=2)
    cell("copy", "SpaceToDepth", f(1, 3, 320, 320), blocksize=2)
    cell("copy", "Where", random.random((1, 1, 197, 197)) < 0.5, f(12, 197, 197), f(1))
    none = np.zeros(0, np.float32)
    for mode, shape, scales, more in (
            ("nearest", (1, 256, 20, 20), (2, 2), {}), ("nearest", (1, 33, 27, 29), (2, 3), {}), ("nearest", (1, 64, 56, 56), (0.5, 0.5), {}),
            ("linear", (1, 256, 16, 16), (2, 2), {}), ("linear", (1, 19, 64, 64), (4, 4), {"coordinate_transformation_mode": "align_corners"}),
            ("linear", (1, 3, 512, 512), (0.4375, 0.4375), {}), ("linear", (1, 64, 56, 56), (0.5, 0.5), {}), ("linear", (4, 33, 13, 15), (1.5, 1.7), {}),
            ("linear", (1, 256, 1, 1), (28, 28), {}), ("cubic", (1, 3, 128, 128), (2, 2), {})):
        cell("resize", "Resize", f(*shape), none, np.array((1, 1) + scales, np.float32), mode=mode, **more)
    cell("resize", "GridSample", f(1, 32, 64, 64), f(1, 64, 64, 2))


def elementwise():
    plane = (1, 64, 56, 56)
    for op in ("Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Erf", "HardSwish", "LeakyRelu", "Elu", "Softplus", "Abs", "Floor", "Reciprocal", "Sin"):
        cell("elementwise", op, f(*plane))
    cell("elementwise", "Gelu", f(*plane), domain=MICROSOFT)
    cell("elementwise", "Add", f(*plane), f(*plane))
    cell("elementwise", "Add", f(*plane), f(64, 1, 1))
    cell("elementwise", "Mul", f(*plane), f(1, 64, 1, 1))
    cell("elementwise", "Mul", f(4, 33, 13, 13), f(4, 33, 1, 1))
    cell("elementwise", "Add", f(197, 768), f(768))
    cell("elementwise", "Add", f(20000, 3), f(3))
    cell("elementwise", "Div", f(20000, 9), f(20000, 1))
    cell("elementwise", "Pow", f(*plane), np.float32(2.5))
    cell("elementwise", "PRelu", f(*plane), weights(64, 1, 1))
    cell("elementwise", "Max", f(*plane), f(*plane))
    cell("elementwise", "Greater", f(*plane), f(*plane), result=BOOL)
    cell("elementwise", "Cast", f(*plane), to=INT64, result=INT64)
    cell("elementwise", "Cast", (BYTE, 1, 3, 224, 224), to=FLOAT)


def quantised():
    scale, zero = np.float32(0.02), np.uint8(120)

    def conv(x, made, kernel, **attributes):
        w = random.integers(-127, 128, (made, x[1] // attributes.get("group", 1), *kernel)).astype(np.int8)
        known = [scale, zero, w, np.full(made, 0.01, np.float32), np.zeros(made, np.int8), scale, zero]
        cell("bytes", "QLinearConv", (BYTE, *x), *known, result=BYTE, **attributes)

    one = {"pads": [1] * 4}
    conv((1, 3, 224, 224), 64, (7, 7), strides=[2, 2], pads=[3] * 4)
    conv((1, 3, 224, 224), 32, (3, 3), strides=[2, 2], **one)
    conv((1, 64, 56, 56), 64, (3, 3), **one)
    conv((1, 512, 7, 7), 512, (3, 3), **one)
    conv((1, 128, 28, 28), 128, (3, 3), strides=[2, 2], **one)
    conv((1, 256, 14, 14), 1024, (1, 1))
    conv((1, 16, 112, 112), 96, (1, 1))
    conv((1, 960, 7, 7), 160, (1, 1))
    conv((4, 33, 27, 29), 65, (1, 1))
    conv((1, 32, 112, 112), 32, (3, 3), group=32, **one)
    conv((1, 960, 7, 7), 960, (3, 3), group=960, **one)
    conv((1, 144, 56, 56), 144, (3, 3), group=144, strides=[2, 2], **one)
    cell("bytes", "QuantizeLinear", f(1, 64, 56, 56), scale, zero, result=BYTE)
    cell("bytes", "DequantizeLinear", (BYTE, 1, 64, 56, 56), scale, zero)
    cell("bytes", "DynamicQuantizeLinear", f(128, 768), result=BYTE, more=[FLOAT, BYTE])
    known = [scale, zero]
    cell("bytes", "QLinearAdd", (BYTE, 1, 64, 56, 56), *known, (BYTE, 1, 64, 56, 56), *known, *known, domain=MICROSOFT, result=BYTE)
    cell("bytes", "QLinearGlobalAveragePool", (BYTE, 1, 1280, 7, 7), *known, *known, domain=MICROSOFT, result=BYTE)
    cell("bytes", "MaxPool", (BYTE, 1, 64, 112, 112), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, result=BYTE)
    for m, k, n in ((1, 2048, 1000), (1, 768, 3072), (4, 768, 768), (16, 512, 512), (128, 768, 768), (100, 33, 65)):
        w = random.integers(-127, 128, (k, n)).astype(np.int8)
        cell("bytes", "MatMulInteger", (BYTE, m, k), w, zero, result=INT32)
        cell("bytes", "DynamicQuantizeMatMul", f(m, k), w, weights(n), np.zeros(n, np.int8), domain=MICROSOFT)


def made_cases(folder, only):
    """All cells whose description matches, as networks in a folder; and the trees."""
    for add in (pools, convolutions, recurrent, reductions, products, norms, copies, elementwise, quantised):
        add()
    found = []
    for number, (family, op, inputs, results, domain, attributes, label) in enumerate(CELLS):
        name = f"{family}: {described(op, [i[1:] if isinstance(i, tuple) else i for i in inputs], attributes, label)}"
        if re.search(only, name):
            path = os.path.join(folder, f"cell_{number}.onnx")
            make(path, op, inputs, results, domain, attributes)
            found.append(run.Case(name, path, {}, None, "operation"))
    for sizes in ((1, 100, 6), (16, 100, 6), (64, 100, 10), (256, 100, 10), (64, 200, 4), (1024, 500, 6)):
        name = "trees: %d rows, %d trees of depth %d" % sizes
        if re.search(only, name):
            path = os.path.join(folder, "trees_%d_%d_%d.onnx" % sizes)
            run.trees(path, *sizes)
            found.append(run.Case(name, path, {}, None, "operation"))
    return found


def least_of(measure, case, args):
    try:
        return measure(case, 1, args)
    except Exception as error:  # A runtime that has not the operation is told of, and the sweep goes on.
        print(f"{case.name}: {str(error).splitlines()[0]}", file=sys.stderr)
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partition", default="target/release/partition")
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    args.device, args.steps = "cpu", 9
    with tempfile.TemporaryDirectory() as folder:
        lines = []
        for case in made_cases(folder, args.only):
            turns = [[least_of(m, case, args) for m in (run.ours, run.onnxruntime_ms)] for _ in range(args.rounds)]
            own, other = (min((t for t in times if t), default=float("nan")) for times in zip(*turns))
            lines.append((other / own, f"| {case.name} | {own:.4f} | {other:.4f} | {other / own:.2f} |"))
            print(f"{other / own:.2f} {case.name}", file=sys.stderr, flush=True)
    print("| what | ours, ms | onnxruntime, ms | onnxruntime to ours |\n| --- | --- | --- | --- |")
    print("\n".join(line for _, line in sorted(lines)))


if __name__ == "__main__":
    main()
