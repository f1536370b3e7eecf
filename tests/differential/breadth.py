"""Operators of the width of the standard: signals, samples, selections, bodies, classical models. As in `operators.py`,
each function adds one operator to a builder; what onnxruntime refuses is thrown away."""
import numpy as np
from onnx import TensorProto, helper

from builder import BOOL, F32, F64, FLOATS, I32, I64, NUMBERS, U8, Unrunnable, proto
from operators import any_axis, maybe, operator, some_axes

U32, U64 = np.dtype("uint32"), np.dtype("uint64")


@operator("Asinh")
@operator("Asin", "Acos", "Atanh", "Acosh")
def inverse(b, op):
    low, high = {"Acosh": (1, 9), "Asinh": (-4, 4)}.get(op, (-1, 1))
    b.node(op, [b.fresh(b.pick([F32, F32, F64]), b.shape(), low=low, high=high, special=op == "Asinh")], inexact=True)


@operator("Hardmax")
def hardmax(b, op):
    x = b.operand([F32, F64], low=1, nonzero=True, special=False)
    b.node(op, [x], axis=maybe(b, any_axis(b, x.rank)))


@operator("EyeLike")
def eye_like(b, op):
    x = b.operand([F32, I64, I32, F64], low=2, high=2)
    b.node(op, [x], k=maybe(b, b.int(-3, 3)), dtype=maybe(b, b.pick([1, 7, 11, 6])))


@operator("BitShift", since=11)
def shift(b, op):
    dtype = b.pick([U8, U32, U64])
    shape = b.shape()
    x = b.leaf(b.rng.integers(0, 200, shape).astype(dtype))
    by = b.leaf(b.rng.integers(0, 8, b.partner(list(shape))).astype(dtype))
    b.node(op, [x, by], direction=b.pick(["LEFT", "RIGHT"]))


@operator("BitwiseNot", since=18)
def complement(b, op):
    b.node(op, [b.operand([I32, I64, U8])])


@operator("Einsum", since=12)
def einsum(b, op):
    letters = "abcde"
    sizes = {letter: b.pick([1, 2, 3, 4]) for letter in letters}
    terms = []
    for _ in range(b.int(1, 3)):
        count = b.int(1, 3)
        terms.append("".join(str(x) for x in b.rng.choice(list(letters), count, replace=False)))
    there = sorted(set("".join(terms)))
    kept = [letter for letter in there if b.flag(0.6)]
    order = [kept[int(i)] for i in b.rng.permutation(len(kept))]
    equation = ",".join(terms) + ("->" + "".join(order) if b.flag(0.8) else "")
    operands = [b.fresh(F32, [sizes[letter] for letter in term], special=False) for term in terms]
    b.node(op, operands, inexact=True, equation=equation)


@operator("Compress")
def compress(b, op):
    x = b.operand(FLOATS + [I64], low=1, nonzero=True)
    axis = maybe(b, any_axis(b, x.rank), 0.7)
    size = x.array.size if axis is None else x.shape[axis]
    b.node(op, [x, b.fresh(BOOL, [b.int(1, size)])], axis=axis)


@operator("NonZero")
def non_zero(b, op):
    b.node(op, [b.operand([F32, I64, BOOL, I32], low=1, special=False)])


@operator("Unique", since=11)
def unique(b, op):
    x = b.leaf(b.rng.integers(0, 4, b.shape(1, 3, True)).astype(b.pick([F32, I64])))
    b.node(op, [x], outputs=4, sorted=maybe(b, 0), axis=maybe(b, any_axis(b, x.rank)))


@operator("NonMaxSuppression", since=11)
def suppression(b, op):
    images, boxes, classes = b.int(1, 2), b.int(1, 8), b.int(1, 3)
    low = b.rng.integers(0, 40, (images, boxes, 2)) / 8
    corners = np.concatenate([low, low + b.rng.integers(1, 30, (images, boxes, 2)) / 8], 2).astype(F32)
    # Scores that differ, as which of equal ones comes first is open.
    scores = (b.rng.permutation(images * classes * boxes).reshape(images, classes, boxes) / 64).astype(F32)
    operands = [b.leaf(corners), b.leaf(scores), b.parameter(np.array([b.int(1, 9)], I64)),
                maybe(b, b.leaf(np.array([b.pick([0.2, 0.5, 0.7])], F32)), 0.8)]
    if operands[3] is not None and b.flag():
        operands.append(b.leaf(np.array([0.1], F32)))
    b.node(op, operands, center_point_box=maybe(b, b.int(0, 1), 0.3))


@operator("GridSample", since=16)
def grid_sample(b, op):
    spatial = 2 if b.opset < 20 or b.flag(0.7) else 3
    x = b.fresh(F32, [b.int(1, 2), b.int(1, 3)] + [b.int(1, 5) for _ in range(spatial)], special=False)
    grid = b.rng.integers(-12, 13, [x.shape[0]] + [b.int(1, 4) for _ in range(spatial)] + [spatial]) / 8 + 0.01
    modes = ["bilinear", "nearest", "bicubic"] if b.opset < 20 else ["linear", "nearest", "cubic"]
    mode = b.pick(modes if spatial == 2 else modes[:2])
    b.node(op, [x, b.leaf(grid.astype(F32))], inexact=True, mode=maybe(b, mode, 0.8),
           padding_mode=maybe(b, b.pick(["zeros", "border", "reflection"]), 0.8), align_corners=maybe(b, b.int(0, 1)))


@operator("AffineGrid", since=20)
def affine_grid(b, op):
    spatial = b.int(2, 3)
    batch = b.int(1, 2)
    theta = b.fresh(F32, [batch, spatial, spatial + 1], special=False)
    size = np.array([batch, 2] + [b.int(1, 4) for _ in range(spatial)], I64)
    b.node(op, [theta, b.parameter(size)], inexact=True, align_corners=maybe(b, b.int(0, 1)))


def regions(b, count, images):
    corner = b.rng.integers(0, 32, (count, 2)) / 8
    return np.concatenate([corner, corner + b.rng.integers(1, 40, (count, 2)) / 8], 1).astype(F32)


@operator("RoiAlign", since=16)
def roi_align(b, op):
    x = b.fresh(F32, [b.int(1, 2), b.int(1, 2), b.int(2, 6), b.int(2, 6)], special=False)
    count = b.int(1, 3)
    rois = b.leaf(regions(b, count, x.shape[0]))
    of = b.leaf(b.rng.integers(0, x.shape[0], count).astype(I64))
    b.node(op, [x, rois, of], inexact=True, output_height=b.int(1, 3), output_width=b.int(1, 3),
           sampling_ratio=b.int(1, 3), spatial_scale=maybe(b, b.pick([1.0, 0.5])),
           coordinate_transformation_mode=maybe(b, b.pick(["half_pixel", "output_half_pixel"])))


@operator("MaxRoiPool")
def max_roi_pool(b, op):
    x = b.fresh(F32, [b.int(1, 2), b.int(1, 2), b.int(2, 6), b.int(2, 6)], special=False)
    count = b.int(1, 3)
    rois = np.concatenate([b.rng.integers(0, x.shape[0], (count, 1)), np.floor(regions(b, count, 1))], 1)
    b.node(op, [x, b.leaf(rois.astype(F32))], pooled_shape=[b.int(1, 3), b.int(1, 3)],
           spatial_scale=maybe(b, b.pick([1.0, 0.5])))


@operator("Det", since=11)
def det(b, op):
    rows = b.int(1, 5)
    b.node(op, [b.fresh(F32, b.shape(0, 2, True) + [rows, rows], special=False, large=False)], inexact=True)


@operator("DFT", since=20)
def dft(b, op):
    x = b.fresh(F32, b.shape(1, 2, True)[:2] + [b.int(1, 9), b.pick([1, 2])], special=False)
    axis = x.rank - 2 if b.flag() else b.int(0, x.rank - 2)
    length = maybe(b, b.int(1, 9), 0.4)
    inverse = int(b.flag(0.3))
    onesided = int(not inverse and x.shape[-1] == 1 and b.flag())
    operands = [x, b.parameter(np.array(length, I64)) if length else None, b.parameter(np.array(axis, I64))]
    b.node(op, operands, inexact=True, inverse=inverse or None, onesided=onesided or None)


@operator("STFT", since=17)
def stft(b, op):
    length = b.int(2, 8)
    x = b.fresh(F32, [b.int(1, 2), b.int(length, 30), 1], special=False)
    window = b.leaf(b.data(F32, [length], special=False))
    b.node(op, [x, b.parameter(np.array(b.int(1, 4), I64)), window, b.parameter(np.array(length, I64))], inexact=True,
           onesided=maybe(b, b.int(0, 1)))


@operator("HannWindow", "HammingWindow", "BlackmanWindow", since=17)
def window_function(b, op):
    b.node(op, [b.parameter(np.array(b.int(2, 20), I64))], inexact=True, periodic=maybe(b, b.int(0, 1)))


@operator("MelWeightMatrix", since=17)
def mel(b, op):
    numbers = [b.int(1, 8), b.pick([8, 16, 32]), b.pick([8000, 16000])]
    operands = [b.parameter(np.array(number, I64)) for number in numbers]
    operands += [b.parameter(np.array(0.0, F32)), b.parameter(np.array(numbers[2] / 2, F32))]
    b.node(op, operands, inexact=True)


@operator("MaxUnpool", since=11)
def max_unpool(b, op):
    x = b.fresh(F32, [b.int(1, 2), b.int(1, 2), b.int(2, 3), b.int(2, 3)], special=False)
    whole = x.shape[0] * x.shape[1] * x.shape[2] * 2 * x.shape[3] * 2
    places = b.rng.permutation(whole)[:x.array.size].reshape(x.shape).astype(I64)
    b.node(op, [x, b.leaf(places)], kernel_shape=[2, 2], strides=[2, 2])


@operator("Col2Im", since=18)
def col2im(b, op):
    block, image = [b.int(1, 2), b.int(1, 3)], [b.int(3, 6), b.int(3, 6)]
    strides, pads = [b.int(1, 2), b.int(1, 2)], [b.int(0, 1) for _ in range(4)]
    counts = [(image[i] + pads[i] + pads[i + 2] - block[i]) // strides[i] + 1 for i in range(2)]
    x = b.fresh(F32, [b.int(1, 2), b.int(1, 2) * block[0] * block[1], counts[0] * counts[1]], special=False)
    b.node(op, [x, b.parameter(np.array(image, I64)), b.parameter(np.array(block, I64))], inexact=True,
           strides=strides, pads=pads)


@operator("CenterCropPad", since=18)
def center(b, op):
    x = b.operand([F32, I64], low=1, nonzero=True)
    axes = some_axes(b, x.rank, 1) if b.flag() else None
    count = x.rank if axes is None else len(axes)
    b.node(op, [x, b.parameter(np.array([b.int(1, 7) for _ in range(count)], I64))], axes=axes)


@operator("LpPool", since=18)
def lp_pool(b, op):
    spatial = b.int(1, 2)
    x = b.fresh(F32, [b.int(1, 2), b.int(1, 3)] + [b.int(3, 7) for _ in range(spatial)], special=False)
    kernel = [b.int(1, 3) for _ in range(spatial)]
    b.node(op, [x], inexact=True, kernel_shape=kernel, p=maybe(b, b.int(1, 3)),
           strides=maybe(b, [b.int(1, 2) for _ in kernel]))


@operator("GlobalLpPool")
def global_lp_pool(b, op):
    b.node(op, [b.fresh(F32, b.shape(3, 5, True)[:5], special=False)], inexact=True, p=maybe(b, b.int(1, 3)))


@operator("ReverseSequence", since=10)
def reverse_sequence(b, op):
    x = b.fresh(b.pick([F32, I64]), b.shape(2, 4, True))
    batch, time = b.pick([(1, 0), (0, 1)])
    lengths = b.leaf(b.rng.integers(1, x.shape[time] + 1, x.shape[batch]).astype(I64))
    b.node(op, [x, lengths], batch_axis=batch, time_axis=time)


@operator("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", since=13)
def losses(b, op):
    shape = [b.int(1, 4), b.int(2, 5)] + [b.int(1, 3) for _ in range(b.int(0, 2))]
    x = b.fresh(F32, shape, special=False)
    target = b.leaf(b.rng.integers(0, shape[1], [shape[0]] + shape[2:]).astype(b.pick([I64, I32])))
    weight = maybe(b, b.fresh(F32, [shape[1]], special=False, low=1), 0.5)
    b.node(op, [x, target, weight], inexact=True, reduction=maybe(b, b.pick(["none", "sum", "mean"])),
           ignore_index=maybe(b, b.pick([0, 1]), 0.4))


def body(nodes, inputs, outputs):
    infos = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs]
    return helper.make_graph(nodes, "body", infos, [helper.make_tensor_value_info(*one) for one in outputs])


@operator("If", since=13)
def branch(b, op):
    condition = b.leaf(np.array(b.flag(), BOOL))
    x = b.operand([F32], nonzero=True)
    shape = list(x.shape)
    yes = body([helper.make_node("Neg", [x.name], ["yes"])], [], [("yes", TensorProto.FLOAT, shape)])
    no = body([helper.make_node("Mul", [x.name, x.name], ["no"])], [], [("no", TensorProto.FLOAT, shape)])
    b.node(op, [condition], captured=[x], then_branch=yes, else_branch=no)


@operator("Loop", since=13)
def loop(b, op):
    x = b.operand([F32], nonzero=True, special=False, high=3)
    shape = list(x.shape)
    half = helper.make_node("Constant", [], ["half"], value=proto(np.array(0.5, F32), "half"))
    nodes = [half, helper.make_node("Mul", ["state", "half"], ["next"]), helper.make_node("Identity", ["go"], ["still"]),
             helper.make_node("Add", ["next", "state"], ["row"])]
    inner = body(nodes, [("i", TensorProto.INT64, []), ("go", TensorProto.BOOL, []), ("state", TensorProto.FLOAT, shape)],
                 [("still", TensorProto.BOOL, []), ("next", TensorProto.FLOAT, shape), ("row", TensorProto.FLOAT, shape)])
    trips = b.parameter(np.array(b.int(1, 4), I64))
    b.node(op, [trips, b.parameter(np.array(True, BOOL)), x], outputs=2, inexact=True, body=inner)


@operator("Scan", since=11)
def scan(b, op):
    length, width = b.int(1, 4), b.int(1, 3)
    state, x = b.fresh(F32, [width], special=False), b.fresh(F32, [length, width], special=False)
    nodes = [helper.make_node("Add", ["state", "x"], ["sum"]), helper.make_node("Neg", ["sum"], ["row"])]
    inner = body(nodes, [("state", TensorProto.FLOAT, [width]), ("x", TensorProto.FLOAT, [width])],
                 [("sum", TensorProto.FLOAT, [width]), ("row", TensorProto.FLOAT, [width])])
    b.node(op, [state, x], outputs=2, body=inner, num_scan_inputs=1, scan_input_directions=maybe(b, [b.int(0, 1)]),
           scan_output_directions=maybe(b, [b.int(0, 1)]))


@operator("SplitToSequence", since=11)
def split_to_sequence(b, op):
    x = b.operand([F32, I64], low=1, nonzero=True)
    axis = b.int(0, x.rank - 1)
    whole = x.shape[axis]
    first = b.int(1, whole)
    sizes = b.parameter(np.array([first, whole - first] if first < whole else [whole], I64))
    b.sequence(op, [x, sizes], axis=axis, new_axis=0)


@operator("LSTM-peepholes", "GRU-lengths", "RNN-activations")
def cells(b, op):
    kind = op.split("-")[0]
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    time, batch, width, hidden = b.int(1, 4), b.int(1, 3), b.int(1, 4), b.int(1, 4)
    direction = b.pick(["forward", "reverse", "bidirectional"])
    ways = 2 if direction == "bidirectional" else 1

    def weight(*shape):
        return b.leaf((b.rng.integers(-8, 9, shape) / 8).astype(F32))

    operands = [weight(time, batch, width), weight(ways, gates * hidden, width), weight(ways, gates * hidden, hidden),
                maybe(b, weight(ways, 2 * gates * hidden)),
                maybe(b, b.leaf(b.rng.integers(1, time + 1, batch).astype(I32)), 0.6)]
    operands += [maybe(b, weight(ways, batch, hidden))]
    if kind == "LSTM":
        operands += [maybe(b, weight(ways, batch, hidden)), maybe(b, weight(ways, 3 * hidden), 0.6)]
    extra = {}
    if kind == "RNN":
        extra["activations"] = [b.pick(["Relu", "Tanh", "Sigmoid", "Softsign"]) for _ in range(ways)]
    if kind == "GRU":
        extra["linear_before_reset"] = b.int(0, 1)
    b.node(kind, operands, outputs=3 if kind == "LSTM" else 2, inexact=True, hidden_size=hidden, direction=direction,
           clip=maybe(b, 0.75, 0.3), **extra)


@operator("Resize-cubic", since=18)
def resize(b, op):
    x = b.fresh(F32, [1, b.int(1, 2), b.int(2, 6), b.int(2, 6)], special=False)
    sizes = np.array([b.int(1, 9), b.int(1, 9)], I64)
    mode = b.pick(["cubic", "linear"])
    extra = {"antialias": 1} if b.flag(0.5) else {}
    b.node("Resize", [x, None, None, b.parameter(sizes)], inexact=True, mode=mode, axes=[2, 3],
           cubic_coeff_a=maybe(b, -0.5) if mode == "cubic" else None,
           coordinate_transformation_mode=b.pick(["half_pixel", "align_corners", "asymmetric"]), **extra)


@operator("Pad-wrap", since=19)
def wrap(b, op):
    x = b.operand([F32, I64], low=1, nonzero=True)
    pads = [b.int(0, x.shape[i % x.rank]) for i in range(2 * x.rank)]
    b.node("Pad", [x, b.parameter(np.array(pads, I64))], mode="wrap")


@operator("MaxPool-indices", since=12)
def pool_indices(b, op):
    spatial = b.int(1, 2)
    x = b.fresh(F32, [b.int(1, 2), b.int(1, 3)] + [b.int(3, 6) for _ in range(spatial)], special=False)
    kernel = [b.int(1, 3) for _ in range(spatial)]
    b.node("MaxPool", [x], outputs=2, kernel_shape=kernel, strides=maybe(b, [b.int(1, 2) for _ in kernel]),
           storage_order=maybe(b, b.int(0, 1)), ceil_mode=maybe(b, b.int(0, 1)))


@operator("RotaryEmbedding", since=23)
def rotary(b, op):
    batch, heads, rows, half = b.int(1, 2), b.int(1, 3), b.int(1, 4), b.int(1, 3)
    x = b.fresh(F32, [batch, heads, rows, 2 * half], special=False)
    cos, sin = b.fresh(F32, [9, half], special=False), b.fresh(F32, [9, half], special=False)
    positions = b.leaf(b.rng.integers(0, 9, (batch, rows)).astype(I64))
    b.node(op, [x, cos, sin, positions], inexact=True, interleaved=maybe(b, b.int(0, 1)))


@operator("Attention", since=23)
def attention(b, op):
    batch, rows, keys, size = b.int(1, 2), b.int(1, 5), b.int(1, 6), b.int(1, 5)
    key_heads = b.int(1, 2)
    heads = key_heads * b.int(1, 2)
    q = b.fresh(F32, [batch, heads, rows, size], special=False)
    k, v = (b.fresh(F32, [batch, key_heads, keys, width], special=False) for width in (size, b.int(1, 5)))
    mask = None
    if b.flag():
        shape = b.pick([[rows, keys], [batch, 1, rows, keys], [heads, rows, keys]])
        mask = b.fresh(b.pick([F32, BOOL]), shape, special=False)
    b.node(op, [q, k, v, mask], inexact=True, scale=maybe(b, 0.5), is_causal=maybe(b, b.int(0, 1)),
           softcap=maybe(b, 2.0, 0.2))


@operator("TensorScatter", since=24)
def tensor_scatter(b, op):
    batch, heads, rows, size = b.int(1, 2), b.int(1, 2), b.int(2, 6), b.int(1, 3)
    count = b.int(1, rows)
    cache, update = b.fresh(F32, [batch, heads, rows, size]), b.fresh(F32, [batch, heads, count, size])
    start = b.leaf(b.rng.integers(0, rows - count + 1, batch).astype(I64))
    b.node(op, [cache, update, start], mode=maybe(b, b.pick(["linear", "circular"])))


# Classical models.

ML = {"domain": "ai.onnx.ml"}


@operator("Scaler")
def scaler(b, op):
    width = b.int(1, 4)
    x = b.fresh(b.pick([F32, I64]), [b.int(1, 4), width], special=False)
    b.node(op, [x], inexact=True, offset=[b.int(-2, 2) / 2 for _ in range(width)], scale=[0.5] * width, **ML)


@operator("Normalizer")
def normalizer(b, op):
    b.node(op, [b.fresh(F32, [b.int(1, 4), b.int(1, 4)], special=False)], inexact=True,
           norm=b.pick(["MAX", "L1", "L2"]), **ML)


@operator("Binarizer")
def binarizer(b, op):
    b.node(op, [b.fresh(F32, [b.int(1, 4), b.int(1, 4)], special=False)], threshold=maybe(b, 0.5), **ML)


@operator("ArrayFeatureExtractor")
def extractor(b, op):
    x = b.fresh(b.pick([F32, I64]), [b.int(1, 4), b.int(2, 5)])
    b.node(op, [x, b.leaf(b.rng.integers(0, x.shape[1], b.int(1, 3)).astype(I64))], **ML)


@operator("LabelEncoder")
def label_encoder(b, op):
    keys = [int(x) for x in b.rng.permutation(6)[:3]]
    x = b.leaf(b.rng.integers(0, 6, b.shape(1, 2, True)).astype(I64))
    b.node(op, [x], keys_int64s=keys, values_floats=[1.5, 2.5, -1.0], default_float=maybe(b, 9.0), **ML)


@operator("LinearRegressor")
def linear_regressor(b, op):
    width, targets = b.int(1, 4), b.int(1, 3)
    weights = [float(x) / 8 for x in b.rng.integers(-8, 9, width * targets)]
    b.node(op, [b.fresh(F32, [b.int(1, 4), width], special=False)], inexact=True, coefficients=weights,
           intercepts=maybe(b, [0.5] * targets), targets=targets, **ML)


@operator("LinearClassifier")
def linear_classifier(b, op):
    width, classes = b.int(1, 4), b.int(2, 4)
    weights = [float(x) / 8 for x in b.rng.integers(-8, 9, width * classes)]
    b.node(op, [b.fresh(F32, [b.int(1, 4), width], special=False)], outputs=2, inexact=True, coefficients=weights,
           intercepts=[float(x) / 16 for x in b.rng.permutation(classes)], classlabels_ints=list(range(10, 10 + classes)),
           post_transform=b.pick(["NONE", "SOFTMAX", "LOGISTIC"]), **ML)


def forest(b, width, trees, depth):
    """Whole trees of one depth, by levels."""
    columns = {name: [] for name in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")}
    leaves = []
    for tree in range(trees):
        for node in range(2 ** (depth + 1) - 1):
            leaf = node >= 2**depth - 1
            row = (tree, node, 0 if leaf else b.int(0, width - 1), 0.0 if leaf else b.int(-8, 8) / 4,
                   "LEAF" if leaf else "BRANCH_LEQ", 0 if leaf else 2 * node + 1, 0 if leaf else 2 * node + 2)
            for name, value in zip(columns, row):
                columns[name].append(value)
            if leaf:
                leaves.append((tree, node))
    return {"nodes_" + name: values for name, values in columns.items()}, leaves


@operator("TreeEnsembleRegressor")
def tree_regressor(b, op):
    width, targets = b.int(1, 4), b.int(1, 2)
    nodes, leaves = forest(b, width, b.int(1, 3), b.int(1, 3))
    b.node(op, [b.fresh(F32, [b.int(1, 5), width], special=False)], inexact=True, n_targets=targets,
           target_treeids=[tree for tree, _ in leaves], target_nodeids=[node for _, node in leaves],
           target_ids=[b.int(0, targets - 1) for _ in leaves], target_weights=[b.int(-8, 8) / 4 for _ in leaves],
           base_values=maybe(b, [0.5] * targets), **nodes, **ML)


@operator("TreeEnsembleClassifier")
def tree_classifier(b, op):
    width, classes = b.int(1, 4), b.int(2, 4)
    nodes, leaves = forest(b, width, b.int(1, 3), b.int(1, 3))
    one = classes == 2 and b.flag()
    positive = b.flag()
    weights = [b.int(0 if positive else -8, 8) / 32 + 1 / (64 + i) for i, _ in enumerate(leaves)]
    b.node(op, [b.fresh(F32, [b.int(1, 5), width], special=False)], outputs=2, inexact=True,
           classlabels_int64s=list(range(5, 5 + classes)), class_treeids=[tree for tree, _ in leaves],
           class_nodeids=[node for _, node in leaves],
           class_ids=[1 if one else b.int(0, classes - 1) for _ in leaves], class_weights=weights,
           post_transform=b.pick(["NONE", "LOGISTIC"]), **nodes, **ML)


@operator("SVMRegressor")
def svm_regressor(b, op):
    width, count = b.int(1, 3), b.int(1, 4)

    def some(n):
        return [float(x) / 8 for x in b.rng.integers(-8, 9, n)]

    b.node(op, [b.fresh(F32, [b.int(1, 4), width], special=False)], inexact=True, coefficients=some(count), rho=some(1),
           support_vectors=some(count * width), n_supports=count, kernel_params=[0.5, 0.25, 2.0],
           kernel_type=b.pick(["LINEAR", "RBF", "POLY", "SIGMOID"]), **ML)


@operator("Imputer")
def imputer(b, op):
    width = b.int(1, 3)
    x = b.data(F32, [b.int(1, 4), width], special=False)
    x[b.rng.random(x.shape) < 0.3] = np.nan
    b.node(op, [b.leaf(x)], replaced_value_float=float("nan"), imputed_value_floats=[1.5] * b.pick([1, width]), **ML)
