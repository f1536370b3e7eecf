"""Where onnxruntime is wrong by the specification, or that leaves the result open. Models that meet one of
these are not compared; each entry says why."""
import numpy as np


class Node:
    """A node with what it reads."""

    def __init__(self, builder, node):
        arrays = {leaf.name: leaf.array for leaf in builder.leaves}
        arrays.update((value.name, value.array) for value in builder.values)
        self.op, self.opset = node.op_type, builder.opset
        self.operands = [arrays.get(name) for name in node.input]
        # What an operator of several nodes makes on its way has no array.
        self.results = [arrays[name] for name in node.output if name in arrays]
        self.attributes = {one.name: one for one in node.attribute}

    def text(self, name):
        return self.attributes[name].s.decode() if name in self.attributes else None

    def ints(self, name):
        return list(self.attributes[name].ints) if name in self.attributes else None

    def results_have_nan(self):
        return any(array.dtype.kind == "f" and np.isnan(array).any() for array in self.results)

    def has(self, number):
        return any(array is not None and array.dtype.kind == "f" and (array == number).any() for array in self.operands)

    def has_nan(self):
        return any(array is not None and array.dtype.kind == "f" and np.isnan(array).any() for array in self.operands)


def fractional(node):
    """Scales that do not give whole sizes."""
    scales = node.operands[2] if len(node.operands) > 2 else None
    if scales is None or not scales.size:
        return False
    lengths = np.array(node.operands[0].shape) * scales
    return bool((lengths != np.floor(lengths)).any())


def rounds_up(node):
    """Whether a size times its scale is a whole number only in f32."""
    scales = node.operands[2] if len(node.operands) > 2 else None
    if scales is None or scales.size != len(node.operands[0].shape):
        return scales is not None and scales.size > 0
    lengths = np.array(node.operands[0].shape)
    return bool((np.floor(lengths.astype(np.float32) * scales) != np.floor(lengths * scales.astype(np.float64))).any())


def hardly_varies(node):
    """Whether a deviation is so small that 1e-9 more is something."""
    x = node.operands[0].astype(np.float64)
    axes = tuple(node.ints("axes") or (0, 2, 3))
    return bool((np.std(x, axis=axes) < 1e-2).any())


def one_bound(node):
    """A Clip that lacks a bound."""
    given = [name for name in ("min", "max") if name in node.attributes]
    return len(given) + sum(operand is not None for operand in node.operands[1:]) < 2


def number(node, name, usual):
    return node.attributes[name].i if name in node.attributes else usual


def floats(node, name):
    return list(node.attributes[name].floats) if name in node.attributes else []


def one_point(node):
    """A grid that has one point along an axis."""
    return number(node, "align_corners", 0) == 1 and bool((node.operands[1][2:] == 1).any())


def named_apart(node):
    """Two classes whose leaves name either."""
    return len(node.ints("classlabels_int64s") or []) == 2 and len(set(node.ints("class_ids"))) > 1


def half_way(node):
    """Whether a quantised sum or product is half way between two integers, but for the rounding of f32."""
    x, x_scale, x_zero, y, y_scale, y_zero, scale, _ = [
        np.zeros(()) if operand is None else operand.astype(np.float64) for operand in node.operands + [None] * (8 - len(node.operands))]
    x, y = (x - x_zero) * x_scale, (y - y_zero) * y_scale
    exact = (x + y if node.op == "QLinearAdd" else x * y) / scale
    return bool((np.abs(np.abs(exact - np.floor(exact)) - 0.5) < 1e-4).any())


def same_and_stepping_over(node, kernel):
    """auto_pad SAME with strides that are larger than the window."""
    strides = node.ints("strides")
    return (node.text("auto_pad") or "").startswith("SAME") and strides is not None \
        and any(stride > size for stride, size in zip(strides, kernel))


TABLE = [
    ("ReduceMin and ReduceMax skip a NaN or not by where it stands",
     lambda node: node.op in ("ReduceMin", "ReduceMax") and node.has_nan()),
    ("MaxPool of minus infinities alone is the lowest number",
     lambda node: node.op in ("MaxPool", "GlobalMaxPool") and node.has(-np.inf)),
    ("MaxPool skips a NaN or not by where it stands",
     lambda node: node.op in ("MaxPool", "GlobalMaxPool") and node.has_nan()),
    ("Sign of NaN is 0 for other types than f32, for f32 NaN, as the reference has it for all",
     lambda node: node.op == "Sign" and node.has_nan() and node.operands[0].dtype != np.float32),
    ("LRN keeps a running sum, which an infinity or NaN leaves in pieces that do not contain it",
     lambda node: node.op == "LRN" and not np.isfinite(node.operands[0]).all()),
    ("Shrink of f64 is computed in f32", lambda node: node.op == "Shrink" and node.operands[0].dtype == np.float64),
    ("MeanVarianceNormalization divides by the deviation alone, the standard's function by 1e-9 more",
     lambda node: node.op == "MeanVarianceNormalization" and (node.results_have_nan() or hardly_varies(node))),
    ("align_corners takes the rounded size where the reference, and the stored node test, take the exact length",
     lambda node: node.op == "Resize" and node.text("coordinate_transformation_mode") == "align_corners" and fractional(node)),
    ("AveragePool and MaxPool with SAME and strides beyond the window crop at the start, where convolutions do not",
     lambda node: node.op in ("AveragePool", "MaxPool") and same_and_stepping_over(node, node.ints("kernel_shape"))),
    ("ConvTranspose with SAME and strides beyond the window has another size than strides times the input's",
     lambda node: node.op == "ConvTranspose" and same_and_stepping_over(node, node.operands[1].shape[2:])),
    ("ReduceMean of nothing is 0, NaN by the reference and by NumPy",
     lambda node: node.op == "ReduceMean" and node.operands[0].size == 0),
    ("ScatterND and ScatterElements take the smaller or larger of a NaN and a number by their order",
     lambda node: node.op.startswith("Scatter") and node.text("reduction") in ("min", "max") and node.has_nan()),
    ("LogSoftmax of f64 keeps what stands beside an infinity, by the reference all is NaN",
     lambda node: node.op == "LogSoftmax" and node.has(np.inf)),
    ("Resize that leaves every size as it is copies, whatever the scales; the reference takes them",
     lambda node: node.op == "Resize" and node.operands[0].shape == node.results[0].shape and fractional(node)),
    ("Resize multiplies sizes and scales in f32 (5 times 2.6 are 13), the reference and the standard's inference do not",
     lambda node: node.op == "Resize" and rounds_up(node)),
    ("Clip without a bound takes the largest number for it, the reference leaves infinities",
     lambda node: node.op == "Clip" and one_bound(node) and not np.isfinite(node.operands[0]).all()),
    ("Swish of f64 is off by 2e-8 far below zero",
     lambda node: node.op == "Swish" and node.operands[0].dtype == np.float64 and bool((node.operands[0] < -10).any())),
    ("ReduceLogSumExp of an infinity and NaN is infinite, NaN by the reference",
     lambda node: node.op == "ReduceLogSumExp" and node.has_nan() and node.has(np.inf)),
    ("Squeeze with no axes in its second input squeezes all, by the reference and the standard's inference none",
     lambda node: node.op == "Squeeze" and len(node.operands) > 1 and node.operands[1].size == 0),
    ("whether padding of zeros meets an infinite or NaN weight is up to how a convolution is computed",
     lambda node: node.op in ("Conv", "ConvTranspose") and not np.isfinite(node.operands[1]).all()),
    ("AffineGrid with aligned corners has an axis of one point at -1, torch, whose operator it is, at 0",
     lambda node: node.op == "AffineGrid" and one_point(node)),
    ("TreeEnsembleClassifier of two classes whose leaves name either gives 0 and 1 for labels",
     lambda node: node.op == "TreeEnsembleClassifier" and named_apart(node)),
    ("TreeEnsembleRegressor leaves out the base value of a target that no leaf of the row names",
     lambda node: node.op == "TreeEnsembleRegressor" and len(floats(node, "base_values")) > 1),
    ("QLinearAdd and QLinearMul round what is half way between two integers as f32 happens to have it",
     lambda node: node.op in ("QLinearAdd", "QLinearMul") and half_way(node)),
    ("Gelu of f64 by tanh has constants of f32 in it",
     lambda node: node.op == "Gelu" and node.text("approximate") == "tanh" and node.operands[0].dtype == np.float64),
    ("the standard says not what the mask of a Dropout is at inference before version 12",
     lambda node: node.op == "Dropout" and node.opset < 12 and len(node.results) > 1),
]


def reason(builder):
    """Why a model is not compared; none where it is."""
    for node in builder.nodes:
        shown = Node(builder, node)
        for text, applies in TABLE:
            if applies(shown):
                return text
    return None
