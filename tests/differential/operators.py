"""Every operator that the library reads, with operands and attributes at random. Each function adds one
operator to a builder; what onnxruntime refuses is thrown away."""
import numpy as np
from onnx import helper

from builder import BOOL, F16, F32, F64, FLOATS, I8, I16, I32, I64, INTS, MOST, NUMBERS, U8, Unrunnable, proto

TABLE = {}


def operator(*names, since=9, until=99):
    def add(function):
        for name in names:
            TABLE[name] = (function, since, until)
        return function
    return add


def maybe(b, value, odds=0.5):
    return value if b.flag(odds) else None


def any_axis(b, rank):
    return b.int(-rank, rank - 1)


def some_axes(b, rank, low=0):
    count = b.int(min(low, rank), rank)
    axes = [int(x) for x in b.rng.permutation(rank)[:count]]
    return [axis - rank if b.flag(0.3) else axis for axis in axes]


@operator("Relu", "Neg", "Abs", "Sign", "Ceil", "Floor")
def simple(b, op):
    dtypes = FLOATS if op in ("Ceil", "Floor") else NUMBERS
    b.node(op, [b.operand(dtypes, exact=True)])


@operator("Round", since=11)
def rounding(b, op):
    b.node(op, [b.operand(FLOATS, exact=True)])


@operator("Exp", "Tanh", "Sigmoid", "Erf", "Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Softplus", "Softsign", "Reciprocal")
def smooth(b, op):
    b.node(op, [b.operand(FLOATS)], inexact=True)


@operator("Log", "Sqrt")
def positive(b, op):
    b.node(op, [b.operand(FLOATS, low=0) if b.single else b.fresh(b.pick(FLOATS), b.shape(), low=1, high=6)], inexact=True)


@operator("Mish", since=18)
@operator("HardSwish", since=14)
def gates(b, op):
    b.node(op, [b.operand(FLOATS)], inexact=True)


@operator("Gelu", since=20)
def gelu(b, op):
    b.node(op, [b.operand(FLOATS)], inexact=True, approximate=maybe(b, b.pick(["none", "tanh"])))


@operator("LeakyRelu", "Elu", "ThresholdedRelu", "HardSigmoid", "Selu", since=10)
@operator("Celu", since=12)
def parametric(b, op):
    names = {"HardSigmoid": ["alpha", "beta"], "Selu": ["alpha", "gamma"]}.get(op, ["alpha"])
    b.node(op, [b.operand(FLOATS)], inexact=True, **{name: maybe(b, b.pick([0.25, 0.5, 1.0, 2.0, 0.1])) for name in names})


@operator("Swish", since=24)
def swish(b, op):
    b.node(op, [b.operand(FLOATS)], inexact=True, alpha=maybe(b, 0.5))


@operator("Shrink")
def shrink(b, op):
    b.node(op, [b.operand(NUMBERS, exact=True)], lambd=maybe(b, 1.5), bias=maybe(b, 0.5))


@operator("PRelu")
def prelu(b, op):
    x = b.operand(FLOATS + [I32, I64])
    shape = [1 if b.flag(0.3) else size for size in x.shape]
    slope = b.fresh(x.dtype, shape[b.int(0, len(shape)):] if b.flag() else shape)
    b.node(op, [x, slope])


@operator("IsNaN")
def is_nan(b, op):
    b.node(op, [b.operand(FLOATS)])


@operator("IsInf", since=10)
def is_inf(b, op):
    kinds = b.pick([(None, None), (0, 1), (1, 0), (1, 1)])
    b.node(op, [b.operand([F32, F32, F64])], detect_negative=kinds[0], detect_positive=kinds[1])


@operator("Not")
def negation(b, op):
    b.node(op, [b.operand([BOOL])])


@operator("Add", "Sub", "Mul")
def arithmetic(b, op):
    x = b.operand(NUMBERS)
    pair = [x, b.beside(x)]
    b.node(op, pair[::-1] if b.flag(0.3) else pair)


@operator("Div")
def division(b, op):
    x = b.operand(NUMBERS)
    # An integer divided by zero ends the process.
    y = b.beside(x) if b.single and x.dtype.kind == "f" else b.beside(x, low=1, high=5)
    b.node(op, [x, y], inexact=True)


@operator("Mod", since=10)
def modulo(b, op):
    x = b.operand([F32, F32, F64, I64, I32, I8, U8, I16], exact=True)
    y = b.fresh(x.dtype, b.partner(list(x.shape)), low=1, high=5)
    if x.dtype.kind == "i" and b.flag():
        y = b.leaf(-y.array)
    b.node(op, [x, y], fmod=1 if x.dtype.kind == "f" else maybe(b, b.int(0, 1)))


@operator("Pow")
def power(b, op):
    x = b.operand([F32, F32, F32, F64, I32, I64])
    kinds = [x.dtype] if b.opset < 12 else [x.dtype, F32, I32, I64, F64]
    y = b.data(b.pick(kinds), b.partner(list(x.shape)), low=0, high=3)
    if x.dtype.kind == "i" and y.dtype.kind == "f":
        # No root of a negative number, nor a NaN, is an integer.
        y = np.nan_to_num(np.abs(np.round(y)), nan=1, posinf=2).clip(0, 3).astype(y.dtype)
    b.node(op, [x, b.leaf(y)], inexact=True)


@operator("Max", "Min")
def extremes(b, op):
    dtypes = [F32, F32, F64] if b.opset < 12 else [F32, F32, F32, F64, F16, I32, I64, I8, U8]
    x = b.operand(dtypes)
    b.node(op, [x] + [b.beside(x) for _ in range(b.pick([0, 1, 1, 2, 3]))])


@operator("Sum", "Mean")
def several(b, op):
    x = b.operand([F32, F32, F64, F16], large=False)
    shapes = [x] + [b.beside(x, large=False) for _ in range(b.pick([0, 1, 1, 2, 3]))]
    b.node(op, shapes, inexact=True)


@operator("Equal", "Less", "Greater")
@operator("LessOrEqual", "GreaterOrEqual", since=12)
def comparison(b, op):
    x = b.operand(NUMBERS + ([BOOL] if op == "Equal" else []), exact=True)
    b.node(op, [x, b.beside(x)])


@operator("And", "Or", "Xor")
def logic(b, op):
    x = b.operand([BOOL])
    b.node(op, [x, b.beside(x)])


@operator("BitwiseAnd", "BitwiseOr", "BitwiseXor", since=18)
def bits(b, op):
    x = b.operand([I32, I64, I8, U8, I16])
    b.node(op, [x, b.beside(x)])


@operator("Where")
def where(b, op):
    x = b.operand(NUMBERS)
    y = b.beside(x)
    condition = b.fresh(BOOL, b.partner(list(np.broadcast_shapes(x.shape, y.shape))))
    b.node(op, [condition, x, y] if b.flag() else [condition, y, x])


@operator("Clip")
def clip(b, op):
    x = b.operand(FLOATS if b.opset < 12 else NUMBERS)
    low, high = b.pick([(-1, 2), (0, 6), (1, 3), (-2, -1), (2, 1)])
    if x.dtype == U8:
        low, high = 1, 3
    if b.opset < 11:
        return b.node(op, [x], min=maybe(b, float(low)), max=maybe(b, float(high)))
    bound = lambda number: b.leaf(np.array(number, x.dtype))
    b.node(op, [x, bound(low) if b.flag(0.7) else None, bound(high) if b.flag(0.7) else None])


@operator("Cast")
def cast(b, op):
    x = b.operand(NUMBERS + [BOOL, I16], exact=True, large=False, low=-3)
    to = b.pick([F32, F32, F64, F16, I64, I32, I8, U8, I16, BOOL])
    if x.dtype.kind == "f" and to.kind in "iu" and not np.isfinite(x.array).all():
        raise Unrunnable("the standard leaves it open")
    if to == U8 and x.array.size and (x.array < 0).any() and x.dtype.kind == "f":
        raise Unrunnable("the standard leaves it open")
    b.node(op, [x], to=helper.np_dtype_to_tensor_dtype(to))


@operator("CastLike", since=15)
def cast_like(b, op):
    x = b.operand([F32, I64, I32, BOOL], exact=True, special=False)
    b.node(op, [x, b.fresh(b.pick([F32, F64, I64, I32, BOOL]), b.shape())])


@operator("Identity")
def identity(b, op):
    b.node(op, [b.operand(NUMBERS + [BOOL])])


@operator("Dropout")
def dropout(b, op):
    x = b.operand([F32, F32, F64])
    outputs = b.pick([1, 2])
    if b.opset < 12:
        return b.node(op, [x], outputs, ratio=maybe(b, 0.3))
    ratio = b.parameter(np.array(0.3, F32)) if b.flag() else None
    training = b.parameter(np.array(False)) if b.flag() else None
    b.node(op, [x, ratio, training], outputs)


# Moves.

@operator("Reshape")
def reshape(b, op):
    x = b.operand(NUMBERS + [BOOL])
    count, sizes = x.array.size, []
    if x.array.size == 0:
        to = list(x.shape)[::-1]
        allow = 1 if b.opset >= 14 else None
        if allow is None:
            to = [0 if size == 0 else size for size in x.shape]
        return b.node(op, [x, b.parameter(np.array(to, I64))], allowzero=allow)
    while count > 1 and len(sizes) < 5 and b.flag(0.8):
        divisors = [d for d in range(1, min(count, 140) + 1) if count % d == 0]
        sizes.append(b.pick(divisors))
        count //= sizes[-1]
    sizes.append(count)
    if b.flag():
        sizes[b.int(0, len(sizes) - 1)] = -1
    for axis, size in enumerate(x.shape):
        if axis < len(sizes) and sizes[axis] == size and b.flag(0.3):
            sizes[axis] = 0
    b.node(op, [x, b.parameter(np.array(sizes, I64))])


@operator("Flatten")
def flatten(b, op):
    x = b.operand(NUMBERS if b.opset >= 9 else [F32])
    b.node(op, [x], axis=maybe(b, b.int(-x.rank if b.opset >= 11 else 0, x.rank)))


@operator("Squeeze")
def squeeze(b, op):
    x = b.operand(NUMBERS, where=lambda shape: 1 in shape) if b.flag(0.8) else b.operand(NUMBERS)
    ones = [axis - x.rank if b.flag(0.3) and b.opset >= 11 else axis for axis, size in enumerate(x.shape) if size == 1]
    axes = [axis for axis in ones if b.flag(0.7)]
    if not axes and b.flag(0.7) or b.flag(0.2):
        return b.node(op, [x])
    if b.opset < 13:
        return b.node(op, [x], axes=axes)
    b.node(op, [x, b.parameter(np.array(axes, I64))])


@operator("Unsqueeze")
def unsqueeze(b, op):
    x = b.operand(NUMBERS + [BOOL], high=4)
    count = b.int(1, 2)
    rank = x.rank + count
    axes = [int(a) for a in b.rng.permutation(rank)[:count]]
    axes = [axis - rank if b.flag(0.3) and b.opset >= 11 else axis for axis in axes]
    if b.opset < 13:
        return b.node(op, [x], axes=axes)
    b.node(op, [x, b.parameter(np.array(axes, I64))])


@operator("Transpose")
def transpose(b, op):
    x = b.operand(NUMBERS + [BOOL])
    b.node(op, [x], perm=maybe(b, [int(axis) for axis in b.rng.permutation(x.rank)], 0.85) if x.rank else None)


@operator("Expand")
def expand(b, op):
    x = b.operand(NUMBERS + [BOOL])
    sizes = [b.int(0 if b.flag(0.05) else 1, 4) if size == 1 else size for size in x.shape]
    if b.flag(0.3) and len(sizes) < 6:
        sizes = [b.int(1, 3)] + sizes
    elif b.flag(0.3):
        sizes = [1 if b.flag(0.3) else size for size in sizes][b.int(0, len(sizes)):]
    if np.prod(np.broadcast_shapes(x.shape, tuple(sizes)) if 0 not in sizes + list(x.shape) else [1]) > MOST:
        raise Unrunnable("too large")
    b.node(op, [x, b.parameter(np.array(sizes, I64))])


@operator("Tile")
def tile(b, op):
    x = b.operand([F32, F64, I64, I32, U8, I8, BOOL])
    if x.array.size > 200:
        raise Unrunnable("too large")
    b.node(op, [x, b.parameter(np.array([b.pick([0, 1, 1, 1, 2, 3]) if b.flag(0.9) else 2 for _ in x.shape], I64))])


@operator("Concat")
def concat(b, op):
    x = b.operand(NUMBERS + [BOOL], low=1)
    axis = any_axis(b, x.rank)
    parts = [x]
    for _ in range(b.pick([0, 1, 1, 2, 3])):
        shape = list(x.shape)
        shape[axis] = b.pick([shape[axis], 0, 1, 2, 3])
        parts.append(b.fresh(x.dtype, shape))
    b.node(op, [parts[i] for i in b.rng.permutation(len(parts))], axis=axis)


@operator("Slice")
def slicing(b, op):
    x = b.operand(NUMBERS + [BOOL], low=1)
    axes = some_axes(b, x.rank, 1)
    starts, ends, steps = [], [], []
    for axis in axes:
        size = x.shape[axis]
        starts.append(b.pick([b.int(-size - 2, size + 2), 0, size, -1]))
        ends.append(b.pick([b.int(-size - 2, size + 2), size, 2**31 - 1, 2**63 - 1, -(2**31), -(2**63), -1, 0]))
        steps.append(b.pick([1, 1, 1, 2, 3, -1, -1, -2, 5, -7]))
    if b.opset < 10:
        return b.node(op, [x], starts=starts, ends=ends, axes=[axis % x.rank for axis in axes])
    kind = b.pick([I64, I32])
    if kind == I32:
        starts, ends = (np.clip(bounds, -(2**31), 2**31 - 1) for bounds in (starts, ends))
    tensors = [b.parameter(np.array(starts, kind)), b.parameter(np.array(ends, kind))]
    leading = len(axes) == x.rank and b.flag()
    if leading:
        return b.node(op, tensors[:0] + [x] + tensors)
    tensors.append(b.parameter(np.array(axes, kind)))
    if b.flag(0.8):
        tensors.append(b.parameter(np.array(steps, kind)))
    b.node(op, [x] + tensors)


@operator("Split")
def split(b, op):
    x = b.operand([F32, F32, F64, I64, I32, U8, BOOL], low=1)
    axis = any_axis(b, x.rank)
    if b.opset < 11:
        axis %= x.rank
    size, parts = x.shape[axis], b.int(1, 4)
    shown = axis if axis % x.rank or b.flag() else None
    if b.flag():
        cuts = sorted(b.int(0, size) for _ in range(parts - 1))
        sizes = [int(s) for s in np.diff([0] + cuts + [size])]
        if b.opset < 13:
            return b.node(op, [x], parts, axis=shown, split=sizes)
        return b.node(op, [x, b.parameter(np.array(sizes, I64))], parts, axis=shown)
    if b.opset < 18 and size % parts:
        raise Unrunnable("no equal parts")
    b.node(op, [x], parts, axis=shown, num_outputs=parts if b.opset >= 18 else None)


@operator("Pad")
def pad(b, op):
    x = b.operand([F32, F32, F64, I64, I32, I8] if b.opset >= 11 else [F32, F64], high=4)
    mode = b.pick([None, "constant", "reflect", "edge"])
    low = -1 if b.flag(0.2) else 0
    axes = [b.int(0, x.rank - 1)] if b.opset >= 18 and x.rank and b.flag(0.3) else None
    ranks = range(x.rank) if axes is None else axes
    most = [min(3, x.shape[axis] - 1) if mode == "reflect" else 3 for axis in ranks]
    if mode in ("reflect", "edge") and x.array.size == 0 or any(size < 0 for size in most):
        raise Unrunnable("nothing to repeat")
    amounts = [b.int(max(low, -x.shape[axis] // 3), size) for axis, size in zip(ranks, most)]
    amounts += [b.int(max(low, -x.shape[axis] // 3), size) for axis, size in zip(ranks, most)]
    if b.opset < 11:
        return b.node(op, [x], pads=amounts, mode=mode, value=maybe(b, 1.5))
    value = b.parameter(np.array(b.pick([1, 0, 3]), x.dtype)) if b.flag() else None
    if axes is not None and b.flag(0.3):
        axes = [axes[0] - x.rank]
    b.node(op, [x, b.parameter(np.array(amounts, I64)), value,
                b.parameter(np.array(axes, I64)) if axes is not None else None], mode=mode)


@operator("DepthToSpace", "SpaceToDepth")
def blocks(b, op):
    n, c, h, w, block = b.int(1, 2), b.int(1, 3), b.int(1, 3), b.int(1, 4), b.int(1, 3)
    dtype = b.pick([F32, F32, F64])
    if op == "DepthToSpace":
        x = b.fresh(dtype, [n, c * block * block, h, w])
        return b.node(op, [x], blocksize=block, mode=maybe(b, b.pick(["DCR", "CRD"])) if b.opset >= 11 else None)
    b.node(op, [b.fresh(dtype, [n, c, h * block, w * block])], blocksize=block)


@operator("Trilu", since=14)
def trilu(b, op):
    x = b.operand([F32, F64, I64, I32, BOOL], low=2)
    k = b.parameter(np.array(b.pick([b.int(-3, 3), 100, -100]), I64)) if b.flag() else None
    b.node(op, [x, k], upper=maybe(b, b.int(0, 1)))


# Lookups.

def positions(b, shape, size, low=None):
    if size == 0:
        shape = [0 if i == 0 else s for i, s in enumerate(shape)]
        if not shape:
            raise Unrunnable("nothing to look up")
    low = -size if low is None else low
    array = b.rng.integers(low, max(size, low + 1), shape)
    return b.leaf(array.astype(b.pick([I64, I64, I32])))


@operator("Gather")
def gather(b, op):
    x = b.operand(NUMBERS + [BOOL], low=1, high=4)
    axis = any_axis(b, x.rank)
    b.node(op, [x, positions(b, b.shape(0, 2), x.shape[axis], None if b.opset >= 11 else 0)], axis=axis if axis or b.flag() else None)


@operator("GatherElements", since=11)
def gather_elements(b, op):
    x = b.operand(NUMBERS + [BOOL], low=1, high=4)
    axis = any_axis(b, x.rank)
    shape = [b.int(0 if b.flag(0.1) else min(size, 1), size) for size in x.shape]
    shape[axis] = b.int(1, 6)
    b.node(op, [x, positions(b, shape, x.shape[axis])], axis=axis)


@operator("GatherND", since=11)
def gather_nd(b, op):
    x = b.operand([F32, F32, I64, I32, BOOL], low=1, high=4, nonzero=True)
    batch = b.int(0, x.rank - 1) if b.opset >= 12 and b.flag(0.4) else 0
    depth = b.int(1, x.rank - batch)
    shape = list(x.shape[:batch]) + b.shape(0 if batch else 1, 2) + [depth]
    limit = np.array(x.shape[batch:batch + depth])
    array = b.rng.integers(-limit, limit, shape)
    b.node(op, [x, b.leaf(array.astype(I64))], batch_dims=batch if batch or b.flag(0.2) and b.opset >= 12 else None)


@operator("OneHot")
def one_hot(b, op):
    depth = b.int(1, 6)
    index = b.leaf(b.rng.integers(-depth - 1 if b.flag(0.2) else -depth if b.opset >= 11 else 0, depth, b.shape(0, 3)).astype(b.pick([I64, I64, I32, F32])))
    kind = b.pick([F32, I64, F32, I32])
    values = b.leaf(np.array([b.int(-3, 0), b.int(1, 4)], kind))
    depth = b.parameter(np.array(depth, b.pick([I64, I64, I32, F32])).reshape(b.pick([(), (1,)])))
    rank = index.rank + 1
    b.node(op, [index, depth, values], axis=maybe(b, any_axis(b, rank)))


def reduction(b, kinds):
    return b.pick([None, "none"] + [kind for kind, since in kinds.items() if b.opset >= since])


@operator("ScatterElements", since=11)
def scatter_elements(b, op):
    x = b.operand([F32, F32, F64, I64, I32], low=1, high=4, nonzero=True, large=False)
    axis = any_axis(b, x.rank)
    shape = [b.int(1, size) for size in x.shape]
    kind = reduction(b, {"add": 16, "mul": 16, "max": 18, "min": 18})
    size = x.shape[axis]
    if kind in (None, "none"):
        # Of several for one element the standard says not which remains.
        rows = b.rng.permuted(np.broadcast_to(np.arange(size).reshape([-1 if a == axis % x.rank else 1 for a in range(x.rank)]),
                              [size if a == axis % x.rank else s for a, s in enumerate(shape)]), axis=axis)
        array = np.take(rows, range(shape[axis]), axis=axis)
    else:
        array = b.rng.integers(-size, size, shape)
    b.node(op, [x, b.leaf(array.astype(b.pick([I64, I32]))), b.fresh(x.dtype, shape, large=False)], axis=axis, reduction=kind)


@operator("ScatterND", since=11)
def scatter_nd(b, op):
    x = b.operand([F32, F32, F64, I64, I32], low=1, high=4, nonzero=True, large=False)
    depth = b.int(1, x.rank)
    kind = reduction(b, {"add": 16, "mul": 16, "max": 18, "min": 18})
    cells = int(np.prod(x.shape[:depth]))
    count = b.int(1, min(cells, 5))
    flat = b.rng.permutation(cells)[:count] if kind in (None, "none") else b.rng.integers(0, cells, count)
    array = np.stack(np.unravel_index(flat, x.shape[:depth]), -1)
    if b.flag(0.3):
        array = np.where(b.rng.random(array.shape) < 0.5, array, array - np.array(x.shape[:depth]))
    shape = [count]
    if b.flag(0.3):
        shape = [1, count]
        array = array.reshape(shape + [depth])
    b.node(op, [x, b.leaf(array.astype(I64)), b.fresh(x.dtype, shape + list(x.shape[depth:]), large=False)], reduction=kind)


@operator("TopK")
def topk(b, op):
    x = b.operand([F32, F32, F64, I64, I32], low=1, high=4, exact=True, special=False)
    axis = any_axis(b, x.rank)
    k = b.int(0, x.shape[axis])
    attributes = {"largest": maybe(b, b.int(0, 1)), "sorted": maybe(b, 1)} if b.opset >= 11 else {}
    if b.opset < 10:
        return b.node(op, [x], 2, k=max(k, 1), axis=axis % x.rank)
    b.node(op, [x, b.parameter(np.array([k], I64))], 2, axis=axis if axis != -1 or b.flag() else None, **attributes)


# Reductions.

@operator("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
          "ReduceLogSumExp", "ReduceSumSquare")
def reduce(b, op):
    extreme = op in ("ReduceMax", "ReduceMin")
    dtypes = [F32, F32, F32, F64, I32, I64] + ([I8, U8] if extreme and b.opset >= 12 else [])
    dtypes += [BOOL] if extreme and b.opset >= 20 else []
    if op in ("ReduceLogSum", "ReduceLogSumExp", "ReduceL2", "ReduceMean"):
        dtypes = [F32, F32, F64]
    data = {"low": 1, "high": 2} if op in ("ReduceProd", "ReduceLogSum") else {}
    x = b.fresh(b.pick(dtypes), b.shape(), large=False, **data) if data else b.operand(dtypes, large=extreme)
    if op == "ReduceProd" and x.dtype.kind == "i" and x.array.size > 30:
        raise Unrunnable("overflows")
    axes = some_axes(b, x.rank)
    if b.opset < 11:
        axes = [axis % x.rank for axis in axes]
    keep = maybe(b, b.int(0, 1))
    inexact = not extreme
    late = b.opset >= 18 or b.opset >= 13 and op == "ReduceSum"
    if not axes or b.flag(0.15):
        noop = maybe(b, 1, 0.4) if late else None
        empty = b.parameter(np.array([], I64)) if late and b.flag(0.3) else None
        return b.node(op, [x, empty], inexact=inexact, keepdims=keep, noop_with_empty_axes=noop)
    if late:
        return b.node(op, [x, b.parameter(np.array(axes, I64))], inexact=inexact, keepdims=keep)
    b.node(op, [x], inexact=inexact, axes=axes, keepdims=keep)


@operator("ArgMax", "ArgMin")
def arg(b, op):
    x = b.operand([F32, F32, F64, I32, I8, U8] if b.opset >= 13 else [F32, I32], low=1, exact=True, nonzero=True, special=False)
    axis = any_axis(b, x.rank) if b.opset >= 11 else b.int(0, x.rank - 1)
    last = maybe(b, b.int(0, 1)) if b.opset >= 12 else None
    b.node(op, [x], axis=axis if axis or b.flag() else None, keepdims=maybe(b, b.int(0, 1)), select_last_index=last)


@operator("CumSum", since=11)
def cumulative(b, op):
    x = b.operand([F32, F32, F64, I32, I64], low=1, large=False)
    axis = b.parameter(np.array(any_axis(b, x.rank), b.pick([I64, I32])))
    b.node(op, [x, axis], exclusive=maybe(b, b.int(0, 1)), reverse=maybe(b, b.int(0, 1)), inexact=True)


@operator("Softmax", "LogSoftmax")
def softmax(b, op):
    x = b.operand([F32, F32, F32, F64, F16], low=1, large=False)
    default = 1 if b.opset < 13 else -1
    low = -x.rank if b.opset >= 11 else 0
    axis = b.int(low, x.rank - 1)
    b.node(op, [x], axis=None if b.flag(0.3) and x.rank > max(default, 0) else axis, inexact=True)


# Normalisations.

@operator("BatchNormalization")
def batch_norm(b, op):
    x = b.operand([F32, F32, F64], low=2, high=5, large=False)
    c = [x.shape[1]]
    parts = [b.fresh(x.dtype, c, large=False, special=False) for _ in range(3)]
    spread = b.leaf(np.abs(b.data(x.dtype, c, special=False)) + np.array(0.5, x.dtype))
    b.node(op, [x] + parts + [spread], epsilon=maybe(b, 0.01), momentum=maybe(b, 0.5), inexact=True)


@operator("InstanceNormalization")
def instance_norm(b, op):
    x = b.operand([F32], low=3, high=5, special=False, nonzero=True)
    scale = [b.fresh(x.dtype, [x.shape[1]], special=False) for _ in range(2)]
    b.node(op, [x] + scale, epsilon=b.pick([0.01, 0.1, None]), inexact=True)


@operator("GroupNormalization", since=21)
def group_norm(b, op):
    groups, inner = b.int(1, 3), b.int(1, 3)
    # Of f64 the standard has statistics in f32.
    x = b.fresh(F32, [b.int(1, 2), groups * inner] + [b.int(1, 5) for _ in range(b.int(1, 3))], special=False)
    scale = [b.fresh(x.dtype, [groups * inner], special=False) for _ in range(2)]
    b.node(op, [x] + scale, epsilon=b.pick([0.01, 0.1, None]), num_groups=groups, inexact=True)


@operator("LayerNormalization", since=17)
@operator("RMSNormalization", since=23)
def layer_norm(b, op):
    x = b.operand([F32, F32, F64], low=1, high=5, special=False, nonzero=True)
    axis = any_axis(b, x.rank)
    shape = list(x.shape[axis:])
    scale = b.fresh(x.dtype, shape, special=False)
    shift = b.fresh(x.dtype, shape, special=False) if op == "LayerNormalization" and b.flag() else None
    outputs = b.pick([1, 1, 3]) if op == "LayerNormalization" else 1
    b.node(op, [x, scale, shift], outputs, axis=axis if axis != -1 or b.flag() else None, epsilon=b.pick([0.01, 0.1, None]), inexact=True)


@operator("LRN")
def lrn(b, op):
    x = b.operand([F32], low=4, high=4, large=False)
    b.node(op, [x], size=b.pick([1, 3, 5, 7]), alpha=maybe(b, 0.3), beta=maybe(b, 0.5), bias=maybe(b, 2.0), inexact=True)


@operator("LpNormalization")
def lp_norm(b, op):
    x = b.operand([F32, F32, F64], low=1, large=False)
    b.node(op, [x], axis=maybe(b, any_axis(b, x.rank)), p=maybe(b, b.int(1, 2)), inexact=True)


@operator("MeanVarianceNormalization")
def mean_variance(b, op):
    x = b.operand([F32], low=4, high=4, special=False, nonzero=True)
    b.node(op, [x], axes=maybe(b, sorted(axis % 4 for axis in some_axes(b, 4, 1))), inexact=True)


# Products.

@operator("MatMul")
def matmul(b, op):
    x = b.operand([F32] * 5 + [F64, F16, I32, I64], low=1, high=5, large=False)
    k, columns = x.shape[-1], b.pick([1, 2, 3, 5, 8, 17, 64, 70])
    batch = b.partner(list(x.shape[:-2]))
    y = [k] if b.flag(0.1) else batch + [k, columns]
    if np.prod(np.broadcast_shapes(tuple(x.shape[:-2]), tuple(batch))) * columns * max(x.shape[-2:][0], 1) > 2 * MOST:
        raise Unrunnable("too large")
    if b.flag(0.3):
        # The operand that is there on the right.
        if x.rank < 2:
            return b.node(op, [b.fresh(x.dtype, [columns, k], large=False), x])
        rows = b.pick([1, 2, 4, 7, 16, 30])
        return b.node(op, [b.fresh(x.dtype, batch + [rows, x.shape[-2]], large=False), x])
    b.node(op, [x, b.fresh(x.dtype, y, large=False)])


@operator("Gemm")
def gemm(b, op):
    m, n, k = b.size(), b.size(), b.size()
    if m * n > MOST or m * k > MOST or n * k > MOST:
        raise Unrunnable("too large")
    dtype = b.pick([F32, F32, F32, F64])
    left, right = b.flag(), b.flag()
    x = b.fresh(dtype, [k, m] if left else [m, k], large=False)
    y = b.fresh(dtype, [n, k] if right else [k, n], large=False)
    shapes = [[m, n], [n], [1, n], [m, 1], [], [1], [1, 1]]
    c = b.fresh(dtype, b.pick(shapes), large=False) if b.flag(0.6) or b.opset < 11 else None
    b.node(op, [x, y, c], transA=int(left) if left or b.flag() else None, transB=int(right) if right or b.flag() else None,
           alpha=maybe(b, b.pick([0.5, 2.0])), beta=maybe(b, b.pick([0.0, 0.5, 1.0])), inexact=True)


# Windows.

def window(b, spatial, kernel, dilated=True):
    auto = b.pick(["NOTSET"] * 5 + ["VALID", "SAME_UPPER", "SAME_LOWER"])
    attributes = {"strides": maybe(b, [b.int(1, 3) for _ in kernel], 0.6)}
    if dilated and auto not in ("SAME_UPPER", "SAME_LOWER"):
        attributes["dilations"] = maybe(b, [b.int(1, 2) for _ in kernel], 0.3)
    if auto == "NOTSET":
        attributes["pads"] = maybe(b, [b.int(0, k - 1) for k in list(kernel) * 2], 0.6)
        auto = maybe(b, auto, 0.2)
    return dict(attributes, auto_pad=auto)


@operator("Conv")
def conv(b, op):
    rank = b.pick([1, 2, 2, 2, 3])
    groups, inner, outer = b.pick([1, 1, 1, 2, 3]), b.pick([1, 2, 3, 5]), b.pick([1, 2, 3, 16])
    if b.flag(0.15):
        groups, inner, outer = b.pick([4, 8]), 1, b.pick([1, 2])
    kernel = [b.pick([1, 2, 3, 3]) for _ in range(rank)]
    spatial = [b.pick([5, 6, 7, 9, 12]) for _ in range(rank)]
    dtype = b.pick([F32, F32, F32, F64])
    x = b.operand([dtype], low=rank + 2, high=rank + 2, nonzero=True,
                  where=lambda shape: shape[1] == groups * inner and min(shape[2:]) > 4) if not b.single and b.flag(0.2) \
        else b.fresh(dtype, [b.int(1, 2), groups * inner] + spatial, large=False)
    w = b.fresh(dtype, [groups * outer, inner] + kernel, large=False)
    bias = b.fresh(dtype, [groups * outer], large=False) if b.flag() else None
    b.node(op, [x, w, bias], group=groups if groups > 1 or b.flag(0.3) else None, kernel_shape=maybe(b, kernel),
           inexact=True, **window(b, spatial, kernel))


@operator("ConvTranspose")
def conv_transpose(b, op):
    rank = b.pick([1, 2, 2, 3])
    groups, inner, outer = b.pick([1, 1, 2]), b.int(1, 3), b.int(1, 3)
    kernel = [b.int(1, 3) for _ in range(rank)]
    x = b.fresh(F32, [b.int(1, 2), groups * inner] + [b.int(1, 5) for _ in range(rank)], large=False)
    w = b.fresh(F32, [groups * inner, outer] + kernel, large=False)
    bias = b.fresh(F32, [groups * outer], large=False) if b.flag() else None
    attributes = window(b, x.shape[2:], kernel)
    strides = attributes["strides"] or [1] * rank
    if b.flag(0.3):
        attributes["output_padding"] = [b.int(0, stride - 1) for stride in strides]
    elif b.flag(0.2):
        attributes["output_shape"] = [size * stride for size, stride in zip(x.shape[2:], strides)]
        attributes["pads"] = None
    b.node(op, [x, w, bias], group=groups if groups > 1 else None, kernel_shape=maybe(b, kernel), inexact=True, **attributes)


@operator("MaxPool", "AveragePool")
def pooling(b, op):
    rank = b.pick([1, 2, 2, 2, 3])
    kernel = [b.int(1, 3) for _ in range(rank)]
    shape = [b.int(1, 2), b.int(1, 3)] + [b.int(3, 8) for _ in range(rank)]
    x = b.fresh(b.pick([F32, F32, F64, I8, U8] if op == "MaxPool" and b.opset >= 12 else [F32]), shape, large=False)
    attributes = window(b, shape[2:], kernel, op == "MaxPool" and b.opset >= 10 or b.opset >= 19)
    if b.opset >= 10:
        attributes["ceil_mode"] = maybe(b, b.int(0, 1))
    pads, dilations = attributes.get("pads") or [0] * 2 * rank, attributes.get("dilations") or [1] * rank
    for axis in range(rank):
        if (kernel[axis] - 1) * dilations[axis] >= shape[axis + 2] + pads[axis] + pads[axis + rank]:
            raise Unrunnable("a window beyond its input")
    if op == "AveragePool":
        attributes["count_include_pad"] = maybe(b, b.int(0, 1))
    b.node(op, [x], kernel_shape=kernel, inexact=op == "AveragePool", **attributes)


@operator("GlobalAveragePool", "GlobalMaxPool")
def global_pool(b, op):
    b.node(op, [b.operand([F32, F32, F64], low=3, high=5, large=False, nonzero=True)], inexact=True)


@operator("Resize", since=11)
def resize(b, op):
    rank = b.pick([1, 2, 3, 4, 4])
    shape = [b.int(1, 6) for _ in range(rank)]
    mode = b.pick([None, "nearest", "linear"])
    if mode == "linear" and rank == 4:
        shape[:2] = [1, 2]
    ones = rank - 2 if rank > 2 else 0
    kind = b.pick([None, "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"])
    if kind == "half_pixel_symmetric" and b.opset < 19:
        kind = None
    x = b.fresh(b.pick([F32, F32, F32, F64, I32, U8] if mode != "linear" else [F32, F32, F64]), shape, special=False)
    nearest = b.pick([None, "round_prefer_floor", "floor", "ceil", "round_prefer_ceil"]) if mode != "linear" else None
    attributes = {"mode": mode, "coordinate_transformation_mode": kind, "nearest_mode": nearest}
    roi = b.parameter(np.array([], F32)) if b.opset < 13 else None
    if b.flag():
        scales = [1.0] * ones + [b.pick([0.5, 0.6, 0.75, 1.0, 1.25, 1.5, 2.0, 2.6, 3.0]) for _ in range(rank - ones)]
        return b.node(op, [x, roi, b.parameter(np.array(scales, F32))], inexact=True, **attributes)
    sizes = shape[:ones] + [b.int(1, 9) for _ in range(rank - ones)]
    empty = b.parameter(np.array([], F32)) if b.opset < 13 else None
    b.node(op, [x, roi, empty, b.parameter(np.array(sizes, I64))], inexact=True, **attributes)


@operator("Upsample", until=9)
def upsample(b, op):
    x = b.fresh(b.pick([F32, F32, I32]), [1, 2, b.int(1, 5), b.int(1, 5)], special=False)
    scales = b.parameter(np.array([1, 1, b.pick([1, 2, 3, 1.5]), b.pick([1, 2, 2.5])], F32))
    b.node(op, [x, scales], mode=maybe(b, b.pick(["nearest", "linear"]) if x.dtype == F32 else "nearest"), inexact=True)


# Recurrent layers.

@operator("RNN", "GRU", "LSTM")
def recurrent(b, op):
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    direction = b.pick([None, "forward", "reverse", "bidirectional"])
    directions = 2 if direction == "bidirectional" else 1
    time, batch, features, hidden = b.int(1, 4), b.int(1, 3), b.int(1, 4), b.int(1, 4)
    data = {"low": -1, "high": 1, "special": False}
    x = b.fresh(F32, [time, batch, features], **data)
    w = b.fresh(F32, [directions, gates * hidden, features], **data)
    r = b.fresh(F32, [directions, gates * hidden, hidden], **data)
    bias = b.fresh(F32, [directions, 2 * gates * hidden], **data) if b.flag(0.7) else None
    lengths = b.parameter(np.full(batch, time, I32)) if b.flag(0.2) else None
    states = [b.fresh(F32, [directions, batch, hidden], **data) if b.flag() else None for _ in range(2 if op == "LSTM" else 1)]
    attributes = {"linear_before_reset": maybe(b, b.int(0, 1))} if op == "GRU" else {}
    b.node(op, [x, w, r, bias, lengths] + states, b.int(1, 3 if op == "LSTM" else 2), inexact=True, hidden_size=hidden,
           direction=direction, **attributes)


# Shapes and constants.

@operator("Shape", "Size")
def shape_of(b, op):
    x = b.operand(NUMBERS)
    bounds = {}
    if op == "Shape" and b.opset >= 15 and b.flag():
        bounds = {"start": maybe(b, b.int(-x.rank - 1, x.rank + 1)), "end": maybe(b, b.int(-x.rank - 1, x.rank + 1))}
    b.node(op, [x], **bounds)


@operator("Range", since=11)
def number_range(b, op):
    kind = b.pick([I64, I64, I32, F32, F64])
    start, limit, step = b.int(-5, 5), b.int(-5, 12), b.pick([1, 2, 3, -1, -2])
    if kind.kind == "f" and b.flag():
        step /= 4
    b.node(op, [b.parameter(np.array(number, kind)) for number in (start, limit, step)])


@operator("ConstantOfShape")
def constant_of_shape(b, op):
    value = b.pick([None, np.array([2.5], F32), np.array([3], I64), np.array([True]), np.array([1.5], F64), np.array([7], I32)])
    b.node(op, [b.parameter(np.array(b.shape(), I64))], value=None if value is None else proto(value, "value"))


@operator("Constant", since=12)
def constant(b, op):
    kind = b.pick(["value", "value_float", "value_floats", "value_int", "value_ints"])
    content = {"value": lambda: proto(b.data(b.pick(NUMBERS), b.shape()), "value"), "value_float": lambda: 1.5,
               "value_floats": lambda: [1.5, -2.0, 0.25], "value_int": lambda: -3, "value_ints": lambda: [1, 2, 3]}[kind]()
    made = b.node(op, [], **{kind: content})[0]
    if made.dtype.kind == "f":
        b.node("Add", [made, b.beside(made)])


@operator("ReshapeByShape")
def reshape_by_shape(b, op):
    """Sizes that are computed, as exporters write them."""
    x = b.operand([F32], low=2, nonzero=True)
    sizes = b.node("Shape", [x])[0]
    first = b.node("Gather", [sizes, b.parameter(np.array(b.pick([[0], [-1], [1]]), I64))], axis=0)[0]
    rest = b.parameter(np.array([-1], I64))
    to = b.node("Concat", [first, rest] if b.flag() else [rest, first], axis=0)[0]
    if b.flag(0.3):
        half = b.node("Mul", [first, b.parameter(np.array([2], I64))])[0]
        half = b.node("Div", [half, b.parameter(np.array([2], I64))])[0]
        to = b.node("Concat", [half, rest], axis=0)[0]
    b.node("Reshape", [x, to])


# Quantised tensors: scales are powers of two, so that everything is exact.

MICROSOFT = "com.microsoft"


def scale(b, count=None):
    sizes = [] if count is None else [count]
    return b.leaf((2.0 ** b.rng.integers(-4, 2, sizes)).astype(F32))


def zero(b, dtype, count=None):
    sizes = [] if count is None else [count]
    low, high = (0, 6) if dtype == U8 else (-4, 4)
    return b.leaf(b.rng.integers(low, high + 1, sizes).astype(dtype))


def quantised(b, dtype, shape):
    return b.fresh(dtype, shape, low=-9, high=9)


def blocks(b, x):
    """Scales along nothing, an axis, or blocks of one: their shape, and the attributes."""
    if b.opset >= 21 and x.rank and x.array.size and b.flag(0.3):
        axis, size = b.int(0, x.rank - 1), b.int(1, 4)
        sizes = list(x.shape)
        sizes[axis] = -(-sizes[axis] // size)
        return sizes, {"axis": axis, "block_size": size}
    if b.opset >= 13 and x.rank and b.flag():
        axis = any_axis(b, x.rank)
        return [x.shape[axis]], {"axis": axis}
    return [], {}


@operator("QuantizeLinear", since=10)
def quantize_linear(b, op):
    x = b.operand([F32, F32, F32, I32] if b.single else [F32], exact=True, special=False, large=False)
    sizes, attributes = blocks(b, x)
    of = b.leaf((2.0 ** b.rng.integers(-4, 2, sizes)).astype(F32))
    dtype = b.pick([U8, I8])
    other = maybe(b, b.leaf(b.rng.integers(0, 5, sizes).astype(dtype)), 0.7)
    b.node(op, [x, of, other], **attributes)


@operator("DequantizeLinear", since=10)
def dequantize_linear(b, op):
    x = b.operand([U8, I8, I8, I32], exact=True)
    sizes, attributes = blocks(b, x)
    of = b.leaf((2.0 ** b.rng.integers(-4, 2, sizes)).astype(F32))
    other = None if x.dtype == I32 else maybe(b, b.leaf(b.rng.integers(0, 5, sizes).astype(x.dtype)), 0.7)
    b.node(op, [x, of, other], **attributes)


@operator("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(b, op):
    x = b.fresh(F32, b.shape(nonzero=True), special=False)
    # 255 steps of a power of two.
    array = np.concatenate([x.array.reshape(-1).clip(-4, 4), np.array([-2, 2 - 1 / 64], F32) * 4]).astype(F32)
    b.node(op, [b.leaf(array)], outputs=3, inexact=True)


def two_matrices(b):
    m, k, n = (max(b.size(), 1) for _ in range(3))
    outer = b.shape(0, 2, nonzero=True) if b.flag(0.4) else []
    return quantised(b, b.pick([U8, I8]), outer + [m, k]), quantised(b, b.pick([U8, I8]), [k, n])


@operator("MatMulInteger", since=10)
def matmul_integer(b, op):
    x, y = two_matrices(b)
    b.node(op, [x, y, maybe(b, zero(b, x.dtype)), maybe(b, zero(b, y.dtype, y.shape[-1] if b.flag(0.3) else None))])


@operator("QLinearMatMul", since=10)
def qlinear_matmul(b, op):
    x, y = two_matrices(b)
    dtype = x.dtype
    columns = y.shape[-1] if b.flag(0.3) else None
    b.node(op, [x, scale(b), zero(b, x.dtype), y, scale(b, columns), zero(b, y.dtype, columns), scale(b), zero(b, dtype)])


def convolved(b):
    groups, axes = b.pick([1, 1, 1, 2, 3]), b.pick([1, 2, 2])
    inner, out = groups * b.int(1, 3), groups * b.int(1, 3)
    kernel = [b.int(1, 3) for _ in range(axes)]
    x = quantised(b, U8, [b.int(1, 2), inner] + [b.int(3, 7) for _ in range(axes)])
    w = quantised(b, b.pick([U8, I8]), [out, inner // groups] + kernel)
    attributes = dict(group=groups, strides=[b.int(1, 2) for _ in range(axes)], pads=[b.int(0, 1) for _ in range(2 * axes)])
    return x, w, attributes


@operator("ConvInteger", since=10)
def conv_integer(b, op):
    x, w, attributes = convolved(b)
    b.node(op, [x, w, maybe(b, zero(b, x.dtype)), maybe(b, zero(b, w.dtype))], **attributes)


@operator("QLinearConv", since=10)
def qlinear_conv(b, op):
    x, w, attributes = convolved(b)
    channels = w.shape[0] if b.flag(0.4) else None
    bias = maybe(b, b.leaf(b.rng.integers(-9, 10, [w.shape[0]]).astype(I32)))
    # Zero points of single channels are all the same there.
    other = b.leaf(np.full([] if channels is None else [channels], b.int(0, 3), w.dtype))
    b.node(op, [x, scale(b), zero(b, U8), w, scale(b, channels), other, scale(b), zero(b, U8), bias], **attributes)


@operator("QLinearAdd", "QLinearMul", since=11)
def qlinear_binary(b, op):
    dtype = b.pick([U8, I8])
    x = quantised(b, dtype, b.shape(1, 4, nonzero=True))
    y = quantised(b, dtype, b.partner(list(x.shape)))
    b.node(op, [x, scale(b), zero(b, dtype), y, scale(b), zero(b, dtype), scale(b), zero(b, dtype)], domain=MICROSOFT)


@operator("MatMulNBits", since=11)
def matmul_nbits(b, op):
    bits, size = b.pick([4, 4, 8]), b.pick([16, 32, 64])
    m, n, k = b.int(1, 5), b.int(1, 9), b.int(1, 150)
    count = -(-k // size)
    x = b.fresh(F32, (b.shape(0, 1, nonzero=True) if b.flag(0.3) else []) + [m, k], special=False)
    packed = b.parameter(b.rng.integers(0, 256, [n, count, size * bits // 8]).astype(U8))
    scales = b.parameter((2.0 ** b.rng.integers(-6, 1, [n * count])).astype(F32))
    width = -(-count * bits // 8)
    kind = b.int(0, 2)
    zeros = [None, b.parameter(b.rng.integers(0, 256, [n * width]).astype(U8)),
             b.parameter(b.rng.integers(0, 16, [n * count]).astype(F32))][kind if bits == 4 else min(kind, 1)]
    bias = maybe(b, b.fresh(F32, [n], special=False))
    b.node(op, [x, packed, scales, zeros, None, bias], domain=MICROSOFT, inexact=True, K=k, N=n, bits=bits, block_size=size)


@operator("SkipLayerNormalization", since=11)
def skip_norm(b, op):
    x = b.fresh(F32, [b.int(1, 3), b.int(1, 4), b.int(2, 9)], special=False)
    width = x.shape[-1]
    skip = b.fresh(F32, x.shape, special=False)
    weights = [b.fresh(F32, [width], special=False) for _ in range(3)]
    b.node(op, [x, skip, weights[0], maybe(b, weights[1]), maybe(b, weights[2])], domain=MICROSOFT, inexact=True, epsilon=1e-5)


@operator("BiasGelu", "FastGelu", "QuickGelu", since=11)
def fused_gelu(b, op):
    x = b.fresh(F32, b.shape(1, 4, nonzero=True), special=False)
    bias = b.fresh(F32, [x.shape[-1]], special=False)
    operands = {"BiasGelu": [x, bias], "FastGelu": [x, maybe(b, bias)], "QuickGelu": [x]}[op]
    b.node(op, operands, domain=MICROSOFT, inexact=True)


@operator("FusedMatMul", since=11)
def fused_matmul(b, op):
    turned = [b.int(0, 1), b.int(0, 1)]
    m, k, n = b.int(1, 5), b.int(1, 5), b.int(1, 5)
    outer = [b.int(1, 3)] if b.flag() else []
    x = b.fresh(F32, outer + ([k, m] if turned[0] else [m, k]), special=False)
    y = b.fresh(F32, outer + ([n, k] if turned[1] else [k, n]), special=False)
    b.node(op, [x, y], domain=MICROSOFT, inexact=True, transA=turned[0], transB=turned[1], alpha=maybe(b, 0.5))


@operator("MultiHeadAttention", since=11)
def multi_head_attention(b, op):
    batch, rows, keys, heads, size = b.int(1, 3), b.int(1, 5), b.int(1, 5), b.int(1, 3), b.int(1, 5)
    width = heads * size
    q = b.fresh(F32, [batch, rows, width], special=False)
    k, v = (b.fresh(F32, [batch, keys, width], special=False) for _ in range(2))
    bias = maybe(b, b.fresh(F32, [3 * width], special=False))
    mask = maybe(b, b.leaf(b.rng.integers(0, 2, [batch, keys]).astype(I32)))
    added = maybe(b, b.fresh(F32, [b.pick([1, batch]), b.pick([1, heads]), rows, keys], special=False), 0.3)
    b.node(op, [q, k, v, bias, mask, added], domain=MICROSOFT, inexact=True, num_heads=heads)


@operator("GroupQueryAttention", since=11)
def group_query_attention(b, op):
    batch, rows, groups, group, size = b.int(1, 2), b.int(1, 5), b.int(1, 2), b.int(1, 3), 8 * b.int(1, 2)
    past = b.int(1, 4) if b.flag() else None
    rows = rows if past is None else 1
    heads, total = groups * group, rows + (past or 0)
    q = b.fresh(F32, [batch, rows, heads * size], special=False)
    k, v = (b.fresh(F32, [batch, rows, groups * size], special=False) for _ in range(2))
    kept = [b.fresh(F32, [batch, groups, past, size], special=False) for _ in range(2)] if past else [None, None]
    lengths = b.parameter(np.full([batch], total - 1, I32))
    whole = b.parameter(np.array([total], I32))
    tables = [b.fresh(F32, [16, size // 2], special=False, low=-1, high=1) for _ in range(2)] if b.flag() else [None, None]
    turned = dict(do_rotary=1, rotary_interleaved=b.int(0, 1)) if tables[0] else {}
    b.node(op, [q, k, v] + kept + [lengths, whole] + tables, outputs=3, domain=MICROSOFT, inexact=True,
           num_heads=heads, kv_num_heads=groups, **turned)
