#!/usr/bin/env python3
"""Compares `partition run` on CPU virtual devices with other runtimes, in one run.

    python3 benches/cpu_peers/run.py --partition target/release/partition --models DIR [--io DIR] > table.md

DIR holds NAME.onnx with its weights; IO holds NAME.io.npz with inputs (made up where absent).
Runs take turns (ours, onnxruntime, torch eager, torch.compile; then again), each figure is the
median over the rounds of the medians of each turn. Needs onnx, onnxruntime, torch, numpy; a
runtime that is not installed is left out; networks of torch need torchvision and transformers. Nothing else should run meanwhile. tract is a peer where its program is
given, which stands beside this script: `cargo build --release` in `tract`, then `--tract tract/target/release/partition-tract-peer`.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx
from onnx import TensorProto, helper

REAL = ["resnet50", "mobilenet_v3_large", "vit_b_16", "bert_base", "gpt2", "llama_small"]
# Dimensions of the exported inputs that are open: (exported shape), (batch 8, sequence 128).
SHAPES = {
    "resnet50": [{}, {"batch": 8}],
    "mobilenet_v3_large": [{}, {"batch": 8}],
    "vit_b_16": [{}],
    "bert_base": [{"batch": 2, "seq": 32}, {"batch": 8, "seq": 128}],
    "gpt2": [{"batch": 1, "seq": 64}, {"batch": 8, "seq": 128}],
    "llama_small": [{"batch": 2, "seq": 64}, {"batch": 8, "seq": 128}],
}
# How long, and how often at most, something is called.
SECONDS, MOST = 0.6, 200
ELEMENTS = 1 << 24  # 64 MB of f32
ROW = 1024
PRODUCTS = [(64, 64, 64), (256, 256, 256), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096),
            (127, 333, 511), (1000, 999, 1001)] + [(rows, 4096, 1024) for rows in (1, 2, 4, 8, 16)]
# Rows, columns and terms of products of bytes.
BYTES = [(rows, 2048, 2048) for rows in (1, 8, 64, 512)] + [(rows, 768, 3072) for rows in (1, 8, 64, 512)] + [
    (1, 4096, 4096), (8, 4096, 4096), (64, 4096, 1024), (7, 1000, 511), (100, 999, 1001)]


def weights(*shape):
    return (np.random.default_rng(0).random(shape, dtype=np.float32) - 0.5) / 4


def recurrent_weights(gates, features, hidden):
    return weights(1, gates * hidden, features), weights(1, gates * hidden, hidden), weights(1, 2 * gates * hidden)


# Networks of one operation: what they are called, the operation, the input's shape, attributes, other inputs.
OPERATIONS = [
    ("maximum of rows of 1024", "ReduceMax", (1024, 1024), {"axes": [1]}, ()),
    ("minimum of rows of 100", "ReduceMin", (10000, 100), {"axes": [1]}, ()),
    ("maximum of rows of 8", "ReduceMax", (65536, 8), {"axes": [1]}, ()),
    ("maximum of planes", "GlobalMaxPool", (1, 256, 56, 56), {}, ()),
    ("sums of rows of 8", "ReduceSum", (65536, 8), {}, (np.array([1]),)),
    ("positions along channels", "ArgMax", (1, 21, 256, 256), {"axis": 1}, ()),
    ("positions in rows of 1000", "ArgMax", (512, 1000), {"axis": 1}, ()),
    ("softmax of rows of 16", "Softmax", (20000, 16), {}, ()),
    ("softmax of rows of 49", "Softmax", (192, 49, 49), {}, ()),
    ("softmax of rows of 3", "Softmax", (50000, 3), {}, ()),
    ("softmax of rows of 197", "Softmax", (2364, 197), {}, ()),
    ("logarithms of softmax of rows of 21", "LogSoftmax", (20000, 21), {}, ()),
    ("softmax along channels", "Softmax", (1, 21, 256, 256), {"axis": 1}, ()),
    ("padding by images", "Pad", (1, 64, 64, 64), {"mode": "reflect"}, (np.array([0, 0, 3, 3, 0, 0, 3, 3]),)),
    ("padding by edges", "Pad", (1, 64, 65, 63), {"mode": "edge"}, (np.array([0, 0, 1, 2, 0, 0, 2, 1]),)),
    ("nearest, twice as large", "Resize", (1, 32, 64, 64), {"mode": "nearest"},
     (np.zeros(0, np.float32), np.array([1, 1, 2, 2], np.float32))),
    ("linear, twice as large", "Resize", (1, 32, 64, 64), {"mode": "linear"},
     (np.zeros(0, np.float32), np.array([1, 1, 2, 2], np.float32))),
    ("linear, eight times as large", "Resize", (1, 21, 32, 32), {"mode": "linear"},
     (np.zeros(0, np.float32), np.array([1, 1, 8, 8], np.float32))),
    ("linear, smaller", "Resize", (1, 3, 512, 512), {"mode": "linear"},
     (np.zeros(0, np.float32), np.array([1, 1, 0.4375, 0.4375], np.float32))),
    ("windows of 13 x 13", "MaxPool", (1, 128, 20, 20), {"kernel_shape": [13, 13], "pads": [6] * 4}, ()),
    ("windows of 3 x 3", "MaxPool", (1, 64, 112, 112), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}, ()),
    ("windows of 3 x 3, side by side", "MaxPool", (1, 64, 56, 56), {"kernel_shape": [3, 3], "pads": [1] * 4}, ()),
    ("windows of 3 x 3 x 3", "MaxPool", (1, 32, 16, 56, 56),
     {"kernel_shape": [3] * 3, "strides": [2] * 3, "pads": [1] * 6}, ()),
    ("means of windows of 3 x 3", "AveragePool", (1, 64, 56, 56), {"kernel_shape": [3, 3], "pads": [1] * 4}, ()),
    ("8 of 2048", "TopK", (128, 2048), {}, (np.array([8]),)),
    ("1000 of 300000", "TopK", (1, 300000), {}, (np.array([1000]),)),
    ("2000 rows of 300000", "Gather", (300000, 64), {}, (np.random.default_rng(0).integers(0, 300000, 2000),)),
    ("columns", "Gather", (4096, 256), {"axis": 1}, (np.random.default_rng(0).integers(0, 256, 64),)),
    ("one of 1000 a row", "GatherElements", (4096, 1000), {"axis": 1},
     (np.random.default_rng(0).integers(0, 1000, (4096, 1)),)),
    ("channels last", "Transpose", (1, 64, 112, 112), {"perm": [0, 2, 3, 1]}, ()),
    ("a matrix transposed", "Transpose", (2048, 1000), {"perm": [1, 0]}, ()),
    ("64 steps, batch 8, 128 wide", "LSTM", (64, 8, 128), {"hidden_size": 128}, recurrent_weights(4, 128, 128)),
    ("32 steps, batch 32, 256 wide", "LSTM", (32, 32, 256), {"hidden_size": 256}, recurrent_weights(4, 256, 256)),
    ("100 steps, batch 1, 64 wide", "LSTM", (100, 1, 64), {"hidden_size": 64}, recurrent_weights(4, 64, 64)),
    ("50 steps, batch 32, 128 wide", "GRU", (50, 32, 128), {"hidden_size": 128}, recurrent_weights(3, 128, 128)),
    ("16 steps, batch 8, 512 wide", "GRU", (16, 8, 512), {"hidden_size": 512}, recurrent_weights(3, 512, 512)),
    ("transposed, 1 x 1 to 4 x 4, 100 to 256 channels", "ConvTranspose", (1, 100, 1, 1), {}, (weights(100, 256, 4, 4),)),
    ("transposed, 4 x 4 by 2, 4 x 4, 256 to 128 channels", "ConvTranspose", (1, 256, 4, 4),
     {"strides": [2, 2], "pads": [1] * 4}, (weights(256, 128, 4, 4),)),
    ("transposed, 4 x 4 by 2, 8 x 8, 128 to 64 channels", "ConvTranspose", (1, 128, 8, 8),
     {"strides": [2, 2], "pads": [1] * 4}, (weights(128, 64, 4, 4),)),
    ("transposed, 2 x 2 by 2, 56 x 56, 128 to 64 channels", "ConvTranspose", (1, 128, 56, 56), {"strides": [2, 2]},
     (weights(128, 64, 2, 2),)),
    ("transposed, 3 x 3, 28 x 28, 64 channels", "ConvTranspose", (1, 64, 28, 28), {"pads": [1] * 4},
     (weights(64, 64, 3, 3),)),
    ("transposed, 4 x 4 by 2, 28 x 28, each of 64 channels", "ConvTranspose", (1, 64, 28, 28),
     {"strides": [2, 2], "pads": [1] * 4, "group": 64}, (weights(64, 1, 4, 4),)),
    ("transposed, 16 by 8, 100, 256 to 128 channels", "ConvTranspose", (1, 256, 100), {"strides": [8], "pads": [4] * 2},
     (weights(256, 128, 16),)),
    ("3 x 3 x 3, each of 64 channels", "Conv", (1, 64, 8, 28, 28), {"pads": [1] * 6, "group": 64},
     (weights(64, 1, 3, 3, 3),)),
    ("3 x 3 x 3 by 2, each of 64 channels", "Conv", (1, 64, 16, 28, 28),
     {"strides": [2] * 3, "pads": [1] * 6, "group": 64}, (weights(64, 1, 3, 3, 3),)),
    ("5 x 5 by 2, each of 672 channels", "Conv", (1, 672, 14, 14), {"strides": [2, 2], "pads": [2] * 4, "group": 672},
     (weights(672, 1, 5, 5),)),
    ("3 x 3, 7 x 7, each of 960 channels", "Conv", (1, 960, 7, 7), {"pads": [1] * 4, "group": 960},
     (weights(960, 1, 3, 3),)),
]
# Attention: batch, heads, rows, keys, size.
ATTENTION = [(64, 3, 49, 49, 32), (1, 12, 197, 197, 64), (4, 4, 302, 302, 24), (1, 12, 128, 128, 64), (8, 16, 64, 64, 80),
             (1, 8, 1024, 1024, 64), (1, 32, 1, 1024, 128)]
# Trees: rows, trees, depth.
TREES = [(1, 100, 10), (64, 100, 10), (1024, 100, 10), (64, 200, 4), (1024, 200, 4)]
FEATURES = 32


def trees(path, rows, count, depth):
    """Full trees that ask for random features, and go on by random thresholds."""
    random = np.random.default_rng(0)
    inner, nodes = 2 ** depth - 1, 2 ** (depth + 1) - 1
    number = np.tile(np.arange(nodes), count)
    tree = np.repeat(np.arange(count), nodes)
    is_leaf = number >= inner
    feature = np.where(is_leaf, 0, random.integers(0, FEATURES, len(number)))
    below = lambda side: np.where(is_leaf, 0, 2 * number + side).tolist()
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1,
        nodes_treeids=tree.tolist(), nodes_nodeids=number.tolist(), nodes_featureids=feature.tolist(),
        nodes_values=random.normal(size=len(number)).tolist(),
        nodes_modes=["LEAF" if leaf else "BRANCH_LEQ" for leaf in is_leaf],
        nodes_truenodeids=below(1), nodes_falsenodeids=below(2), target_treeids=tree[is_leaf].tolist(),
        target_nodeids=number[is_leaf].tolist(), target_ids=[0] * int(is_leaf.sum()),
        target_weights=random.normal(size=int(is_leaf.sum())).tolist())
    save(path, [node], [("x", (rows, FEATURES))], [("y", None)])


def operation(path, op, shape, attributes, others):
    known = [(f"i{number}", other) for number, other in enumerate(others)]
    results = ["y", "places"][:2 if op == "TopK" else 1]
    node = helper.make_node(op, ["x"] + [name for name, _ in known], results, **attributes)
    outputs = [("y", None, TensorProto.INT64 if op == "ArgMax" else TensorProto.FLOAT)]
    save(path, [node], [("x", shape)], outputs, known)


def attention(path, batch, heads, rows, keys, size):
    node = helper.make_node
    nodes = [node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]), node("MatMul", ["q", "t"], ["s"]),
             node("Mul", ["s", "c"], ["scaled"]), node("Softmax", ["scaled"], ["p"]), node("MatMul", ["p", "v"], ["y"])]
    inputs = [("q", [batch, heads, rows, size])] + [(name, [batch, heads, keys, size]) for name in "kv"]
    save(path, nodes, inputs, [("y", inputs[0][1])], [("c", np.float32(size ** -0.5))])


def save(path, nodes, inputs, outputs, initializers=()):
    """A model of opset 17 whose tensors are f32 where no type is said."""
    info = lambda name, dims, dtype=TensorProto.FLOAT: helper.make_tensor_value_info(name, dtype, dims)
    graph = helper.make_graph(nodes, "bench", [info(*i) for i in inputs], [info(*o) for o in outputs],
                              [onnx.numpy_helper.from_array(a, n) for n, a in initializers])
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1),
               helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=domains)
    model.ir_version = 9
    onnx.save(model, path)


def elementwise(path):
    node = helper.make_node
    scalars = [("a", np.float32(1.5)), ("b", np.float32(0.5)), ("c", np.float32(0.1))]
    nodes = [node("Mul", ["x", "a"], ["t0"]), node("Add", ["t0", "b"], ["t1"]), node("Tanh", ["t1"], ["t2"]),
             node("Mul", ["t2", "x"], ["t3"]), node("Sub", ["t3", "c"], ["t4"]), node("Relu", ["t4"], ["y"])]
    save(path, nodes, [("x", [ELEMENTS])], [("y", [ELEMENTS])], [(n, np.array(v)) for n, v in scalars])


def softmax(path):
    shape = [ELEMENTS // ROW, ROW]
    save(path, [helper.make_node("Softmax", ["x"], ["y"], axis=-1)], [("x", shape)], [("y", shape)])


def layer_norm(path):
    shape = [ELEMENTS // ROW, ROW]
    nodes = [helper.make_node("LayerNormalization", ["x", "s", "b"], ["y"], axis=-1, epsilon=1e-5)]
    ones = [("s", np.full(ROW, 1.1, np.float32)), ("b", np.full(ROW, 0.1, np.float32))]
    save(path, nodes, [("x", shape)], [("y", shape)], ones)


def product(path, m, n, k):
    w = np.random.default_rng(0).standard_normal((k, n)).astype(np.float32)
    save(path, [helper.make_node("MatMul", ["x", "w"], ["y"])], [("x", [m, k])], [("y", [m, n])], [("w", w)])


def product_of_bytes(path, kind, m, n, k):
    """Bytes with signed weights of one scale for each column, as onnxruntime's quantiser writes them."""
    random = np.random.default_rng(0)
    weights = [("w", random.integers(-127, 128, (k, n)).astype(np.int8))]
    scales = [("sw", random.random(n, dtype=np.float32)), ("zw", np.zeros(n, np.int8))]
    scale, zero = lambda name: (name, np.float32(0.02)), lambda name: (name, np.uint8(120))
    x, y, floats = ("x", [m, k], TensorProto.UINT8), ("y", [m, n], TensorProto.UINT8), ("y", [m, n])
    node = helper.make_node
    if kind == "MatMulInteger":
        nodes = [node(kind, ["x", "w", "zx"], ["y"])]
        return save(path, nodes, [x], [("y", [m, n], TensorProto.INT32)], weights + [zero("zx")])
    if kind == "QLinearMatMul":
        nodes = [node(kind, ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy"], ["y"])]
        return save(path, nodes, [x], [y], weights + scales + [scale("sx"), zero("zx"), scale("sy"), zero("zy")])
    if kind == "DynamicQuantizeMatMul":
        nodes = [node(kind, ["x", "w", "sw", "zw"], ["y"], domain="com.microsoft")]
        return save(path, nodes, [("x", [m, k])], [floats], weights + scales)
    nodes = [node("DequantizeLinear", ["x", "sx", "zx"], ["a"]),
             node("DequantizeLinear", ["w", "sw", "zw"], ["b"], axis=1), node("MatMul", ["a", "b"], ["c"]),
             node("QuantizeLinear", ["c", "sy", "zy"], ["y"])]
    save(path, nodes, [x], [y], weights + scales + [scale("sx"), zero("zx"), scale("sy"), zero("zy")])


def conv_of_bytes(path, channels, size, made, kernel):
    """QLinearConv of one image."""
    w = np.random.default_rng(0).integers(-127, 128, (made, channels, kernel, kernel)).astype(np.int8)
    known = [("w", w), ("sw", np.full(made, 0.01, np.float32)), ("zw", np.zeros(made, np.int8))]
    known += [(name, np.float32(0.02)) for name in ("sx", "sy")] + [(name, np.uint8(120)) for name in ("zx", "zy")]
    names = ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy"]
    nodes = [helper.make_node("QLinearConv", names, ["y"], pads=[kernel // 2] * 4)]
    save(path, nodes, [("x", [1, channels, size, size], TensorProto.UINT8)],
         [("y", [1, made, size, size], TensorProto.UINT8)], known)


def torch_function(kind, torch, sizes):
    """The same computation and its argument."""
    f = torch.nn.functional
    if kind == "elementwise":
        return lambda x: torch.relu(torch.tanh(x * 1.5 + 0.5) * x - 0.1), torch.rand(ELEMENTS)
    if kind == "softmax":
        return lambda x: torch.softmax(x, -1), torch.rand(ELEMENTS // ROW, ROW)
    if kind == "layer_norm":
        s, b = torch.full((ROW,), 1.1), torch.full((ROW,), 0.1)
        return lambda x: f.layer_norm(x, (ROW,), s, b, 1e-5), torch.rand(ELEMENTS // ROW, ROW)
    m, n, k = sizes
    w = torch.rand(k, n)
    return lambda x: x @ w, torch.rand(m, k)


def median_of(call, seconds=SECONDS, least=3, most=MOST):
    """Median milliseconds of a call, warm."""
    call()
    times, begin = [], time.perf_counter()
    while len(times) < least or (time.perf_counter() - begin < seconds and len(times) < most):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


class Case:
    def __init__(self, name, path, dims, io, kind=None, sizes=None):
        self.name, self.path, self.dims, self.io = name, path, dims, io
        self.kind, self.sizes = kind, sizes


def our_command(case, threads, args):
    """Slices share all cores: they are given none of their own."""
    device = args.device if "[" in args.device else f"{args.device}:cores={threads}"
    command = [args.partition, "run", case.path, "-d", device, "--init", "seed=1"]
    for name, size in case.dims.items():
        command += ["--dim", f"{name}={size}"]
    return command


def ours(case, threads, args, steps=None):
    """Median milliseconds of a step; short steps as often as `median_of` calls the peers."""
    command = our_command(case, threads, args) + ["--steps", str(steps or args.steps), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{case.name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    found = json.loads(done.stdout)["step_ns"] / 1e6
    more = min(MOST, int(1e3 * SECONDS / max(found, 1e-3)))
    return ours(case, threads, args, more) if steps is None and more > args.steps else found


def feeds(session, case):
    random, result = np.random.default_rng(0), {}
    for entry in session.get_inputs():
        shape = [d if isinstance(d, int) else case.dims.get(d, 1) for d in entry.shape]
        if entry.type == "tensor(uint8)":
            result[entry.name] = random.integers(0, 256, shape).astype(np.uint8)
        elif "int" in entry.type:
            high = 2 if "mask" in entry.name else 100
            result[entry.name] = random.integers(1, high, shape).astype(np.int64)
        else:
            result[entry.name] = random.random(shape, dtype=np.float32)
    return result


def onnxruntime_ms(case, threads, args):
    import onnxruntime as ort
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = ort.InferenceSession(case.path, options, providers=["CPUExecutionProvider"])
    given = feeds(session, case)
    return median_of(lambda: session.run(None, given))


ONCE = """
import sys
sys.path.insert(0, sys.argv[1])
import run, onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = int(sys.argv[3])
session = ort.InferenceSession(sys.argv[2], options, providers=["CPUExecutionProvider"])
session.run(None, run.feeds(session, run.Case("", sys.argv[2], eval(sys.argv[4]), None)))
"""


def whole(command):
    """Seconds and peak MB of a process."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    taken = time.perf_counter() - start
    return (taken, usage.ru_maxrss / 1e3) if status == 0 else (float("nan"), float("nan"))


def print_processes(every, args):
    """Load, plan, compile and one step, as a process: seconds, and peak memory above the weights."""
    threads, here = args.threads[0], os.path.dirname(os.path.abspath(__file__))
    print(f"\nWhole processes, one step, {threads} thread(s)\n")
    print("| what | ours, s | onnxruntime, s | weights, MB | ours above, MB | onnxruntime above, MB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for case in every:
        weights = os.path.getsize(case.path.removesuffix(".onnx") + ".weights.bin") / 1e6
        own = whole(our_command(case, threads, args))
        other = whole([sys.executable, "-c", ONCE, here, case.path, str(threads), repr(case.dims)])
        memory = " | ".join(f"{peak - weights:.0f}" for _, peak in (own, other))
        print(f"| {case.name} | {own[0]:.2f} | {other[0]:.2f} | {weights:.0f} | {memory} |", flush=True)


def torch_ms(case, threads, args, compiled):
    """None of a network whose library is not installed, which is told, and of what torch has not."""
    if case.kind in ("bytes", "operation"):
        return None
    import torch
    torch.set_num_threads(threads)
    with torch.inference_mode():
        if case.kind is None:
            try:
                import torch_models
                found = torch_models.model(torch, os.path.basename(case.path).removesuffix(".onnx"), case.dims)
            except ImportError as error:
                print(f"{case.name}: torch: {error}", file=sys.stderr)
                return None
            if found is None:
                return None
            function, arguments = found
        else:
            function, x = torch_function(case.kind, torch, case.sizes)
            arguments = (x,)
        if compiled:
            torch.compiler.reset()
            function = torch.compile(function)
        return median_of(lambda: function(*arguments))


def tract_ms(case, threads, args):
    """None where it does not take the model, which is told."""
    command = [args.tract, case.path, str(threads), str(SECONDS), str(MOST)]
    done = subprocess.run(command + [f"{k}={v}" for k, v in case.dims.items()], capture_output=True, text=True)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.strip().splitlines() if line.strip()]
        print(f"{case.name}: tract: {lines[-1] if lines else done.returncode}", file=sys.stderr)
        return None
    return float(done.stdout)


def copy_bandwidth(threads):
    """GB/s read and written by a copy of 64 MB."""
    import torch
    torch.set_num_threads(threads)
    x, y = torch.rand(ELEMENTS), torch.empty(ELEMENTS)
    return 2 * 4 * ELEMENTS / median_of(lambda: y.copy_(x)) / 1e6


def open_dimensions(path):
    """Names of the dimensions of a model's inputs that are open."""
    inputs = onnx.load(path, load_external_data=False).graph.input
    return {dim.dim_param for i in inputs for dim in i.type.tensor_type.shape.dim if dim.dim_param}


def cases(args, folder):
    found = []
    if "rows" in args.what:
        for kind, make in (("elementwise", elementwise), ("softmax", softmax), ("layer_norm", layer_norm)):
            path = os.path.join(folder, kind + ".onnx")
            make(path)
            found.append(Case(f"{kind} 64 MB", path, {}, None, kind))
    if "products" in args.what:
        for sizes in PRODUCTS:
            path = os.path.join(folder, "product_%d_%d_%d.onnx" % sizes)
            product(path, *sizes)
            found.append(Case("product %d x %d, %d terms" % sizes, path, {}, None, "product", sizes))
    if "bytes" in args.what:
        every = [("MatMulInteger", sizes) for sizes in BYTES]
        for kind in ("DynamicQuantizeMatMul", "QLinearMatMul", "QDQ"):
            every += [(kind, sizes) for sizes in BYTES if sizes[1] == 2048]
        for kind, sizes in every:
            path = os.path.join(folder, kind + "_%d_%d_%d.onnx" % sizes)
            product_of_bytes(path, kind, *sizes)
            found.append(Case(kind + " %d x %d, %d terms" % sizes, path, {}, None, "bytes"))
        for sizes in [(256, 14, 1024, 1), (64, 56, 64, 3)]:
            path = os.path.join(folder, "conv_%d_%d_%d_%d.onnx" % sizes)
            conv_of_bytes(path, *sizes)
            found.append(Case("QLinearConv %d channels of %d², %d filters of %d²" % sizes, path, {}, None, "bytes"))
    if "operations" in args.what:
        for number, (name, op, *rest) in enumerate(OPERATIONS):
            path = os.path.join(folder, f"operation_{number}.onnx")
            operation(path, op, *rest)
            found.append(Case(f"{op}: {name}", path, {}, None, "operation"))
        for sizes in TREES:
            path = os.path.join(folder, "trees_%d_%d_%d.onnx" % sizes)
            trees(path, *sizes)
            found.append(Case("trees: %d rows, %d trees of depth %d" % sizes, path, {}, None, "operation"))
        for sizes in ATTENTION:
            path = os.path.join(folder, "attention_%d_%d_%d_%d_%d.onnx" % sizes)
            attention(path, *sizes)
            label = "attention: %d x %d heads, %d rows, %d keys of %d" % sizes
            found.append(Case(label, path, {}, None, "operation"))
    if "models" in args.what:
        for name in args.only or REAL:
            path = os.path.join(args.models, name + ".onnx")
            known = open_dimensions(path)
            wanted = [{k: v for k, v in dims.items() if k in known} for dims in SHAPES.get(name, [{}])]
            wanted = [dims for i, dims in enumerate(wanted) if dims not in wanted[:i]]
            for dims in wanted[: None if args.large else 1]:
                label = name + "".join(f" {k}={v}" for k, v in dims.items())
                found.append(Case(label, path, dims, None))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partition", default="target/release/partition")
    parser.add_argument("--models", default=".")
    parser.add_argument("--what", nargs="+", default=["rows", "products", "models"],
                        help="of rows, products, bytes, operations, models")
    parser.add_argument("--only", nargs="*", help="names of models")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--device", default="cpu", help="a kind, or e.g. cpu[2x4GB]")
    parser.add_argument("--large", action="store_true", help="also batch 8 and sequence 128")
    parser.add_argument("--processes", action="store_true", help="start and memory of whole processes instead")
    parser.add_argument("--tract", help="the program in `tract`")
    parser.add_argument("--compile", action="store_true", help="also torch.compile")
    args = parser.parse_args()
    peers = [("ours", ours)]
    if importlib.util.find_spec("onnxruntime"):
        peers.append(("onnxruntime", onnxruntime_ms))
    if importlib.util.find_spec("torch"):
        peers.append(("torch", lambda *a: torch_ms(*a, compiled=False)))
        if args.compile:
            peers.append(("torch.compile", lambda *a: torch_ms(*a, compiled=True)))
    if args.tract:
        peers.append(("tract", tract_ms))
    with tempfile.TemporaryDirectory() as folder:
        every = cases(args, folder)
        if args.processes:
            return print_processes(every, args)
        for threads in args.threads:
            times = {(case.name, name): [] for case in every for name, _ in peers}
            for _ in range(args.rounds):
                for case in every:
                    for name, measure in peers:
                        found = measure(case, threads, args)
                        if found is not None:
                            times[case.name, name].append(found)
            print(f"\n{threads} thread{'s' if threads > 1 else ''}, ms", end="")
            print(f"; copy {copy_bandwidth(threads):.1f} GB/s\n" if "rows" in args.what else "\n")
            print("| what | " + " | ".join(name for name, _ in peers) + " | ours to the best peer |")
            print("| --- |" + " --- |" * (len(peers) + 1))
            for case in every:
                medians = [statistics.median(times[case.name, name] or [float("nan")]) for name, _ in peers]
                best = min([m for m in medians[1:] if m == m], default=float("nan"))
                row = " | ".join(f"{m:.3f}" if m == m else "-" for m in medians)
                print(f"| {case.name} | {row} | {best / medians[0]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
