"""Models made node by node: each node is run by onnxruntime as it is added, so that the next one can
be chosen to fit its results."""
import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

F32, F64, F16 = np.dtype("float32"), np.dtype("float64"), np.dtype("float16")
I8, I16, I32, I64, U8 = (np.dtype(name) for name in ("int8", "int16", "int32", "int64", "uint8"))
BOOL = np.dtype("bool")
FLOATS = [F32] * 7 + [F64, F16]
INTS = [I64, I64, I32, I32, I8, U8, I16]
NUMBERS = FLOATS + [I64, I32, I32, I8, U8]
MOST = 3000
# Every kind of what a float can be, and where functions of elements change their methods.
SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-45, 1.2e-38, 0.5, 1.5, 2.5, -0.5, -2.5, 1.0, -1.0]
LARGE = [3.4e38, -3.4e38, 1e30, 88.0, 88.8, -88.0, -104.0, 20.0, -20.0, 5.0, -5.0, 2.0**31, 2.0**24 + 1, 1e-20]


class Unrunnable(Exception):
    """onnxruntime does not run it."""


def options():
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return options


OPTIONS = options()


def session(model):
    try:
        return ort.InferenceSession(model, OPTIONS, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise Unrunnable(str(error)) from None


def run(session, feeds):
    try:
        return session.run(None, feeds)
    except Exception as error:
        raise Unrunnable(str(error)) from None


class Value:
    def __init__(self, name, array, exact):
        self.name, self.array, self.exact = name, array, exact

    @property
    def dtype(self):
        return self.array.dtype

    @property
    def shape(self):
        return self.array.shape

    @property
    def rank(self):
        return self.array.ndim


class Leaf:
    """A tensor that nothing computes."""

    def __init__(self, name, array, role):
        self.name, self.array, self.role = name, array, role
        # Sizes, axes, scales.
        self.fixed = False


class Builder:
    def __init__(self, rng, opset, single):
        self.rng, self.opset, self.single = rng, opset, single
        self.nodes, self.leaves, self.values, self.results = [], [], [], []
        self.read, self.ops = set(), []
        self.special = single and rng.random() < 0.35

    # Random choices.

    def pick(self, options):
        return options[int(self.rng.integers(len(options)))]

    def flag(self, odds=0.5):
        return self.rng.random() < odds

    def int(self, low, high):
        """One of low..high, both included."""
        return int(self.rng.integers(low, high + 1))

    def size(self):
        roll = self.rng.random()
        if roll < 0.04:
            return 0
        if roll < 0.25:
            return 1
        if roll < 0.93:
            return self.pick([2, 3, 3, 4, 5, 6, 7, 9])
        return self.pick([11, 13, 16, 17, 31, 64, 65, 130])

    def shape(self, low=0, high=6, nonzero=False):
        rank = min(high, max(low, self.pick([0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6])))
        shape = [self.size() for _ in range(rank)]
        if nonzero:
            shape = [max(size, 1) for size in shape]
        while np.prod(shape) > MOST:
            at = int(np.argmax(shape))
            shape[at] = self.int(1, max(1, shape[at] // 2))
        return shape

    def partner(self, shape):
        """A shape that broadcasts with this one."""
        shape = [1 if self.flag(0.25) else size for size in shape]
        if self.flag(0.35):
            return shape[self.int(0, len(shape)):]
        return [self.int(1, 3)] + shape if self.flag(0.1) and len(shape) < 6 else shape

    def data(self, dtype, shape, low=-4, high=4, large=True, special=True):
        if dtype == BOOL:
            return self.rng.integers(0, 2, shape).astype(BOOL)
        if dtype.kind in "iu":
            low, high = (0 if dtype == U8 else low), max(high, 1)
            return self.rng.integers(int(low), int(high) + 1, shape).astype(dtype)
        # Multiples of an eighth: sums and few products of them are exact.
        array = (self.rng.integers(int(low * 8), int(high * 8) + 1, shape) / 8).astype(dtype)
        if special and self.special and array.size:
            among = SPECIAL + (LARGE if large else [])
            flat = array.reshape(-1)
            for at in self.rng.integers(0, flat.size, max(1, flat.size // 3)):
                with np.errstate(all="ignore"):
                    flat[at] = np.array(self.pick(among)).astype(dtype)
        return array

    # Leaves and values.

    def name(self, prefix):
        return f"{prefix}{len(self.leaves) + len(self.nodes) + len(self.results)}"

    def leaf(self, array, role=None):
        """A value of an array: an input, an initialiser, a constant, or another node's result."""
        array = np.asarray(array, order="C")
        role = role or self.pick(["input", "input", "initializer", "initializer", "constant", "made"])
        if role == "made":
            return self.made(array)
        leaf = Leaf(self.name({"input": "x", "initializer": "w", "constant": "c"}[role]), array, role)
        self.leaves.append(leaf)
        value = Value(leaf.name, array, True)
        self.values.append(value)
        return value

    def parameter(self, array):
        """What operators know while the model is read: sizes, axes, scales."""
        value = self.leaf(array, self.pick(["initializer", "initializer", "constant"]))
        self.leaves[-1].fixed = True
        self.values.remove(value)
        return value

    def made(self, array):
        kind = self.int(0, 4)
        role = self.pick(["input", "input", "initializer"])
        if kind == 0 and array.dtype in (F32, F64, I64, I32):
            return self.node("Neg", [self.leaf(-array, role)])[0]
        if kind == 1 and array.ndim:
            order = list(self.rng.permutation(array.ndim))
            back = [int(x) for x in np.argsort(order)]
            return self.node("Transpose", [self.leaf(array.transpose(order).copy(), role)], perm=back)[0]
        if kind == 2 and array.dtype == BOOL:
            return self.node("Not", [self.leaf(~array, role)])[0]
        if kind == 3 and array.size:
            flat = self.leaf(array.reshape(-1), role)
            return self.node("Reshape", [flat, self.parameter(np.array(array.shape, I64))])[0]
        if kind == 4 and array.ndim and array.shape[0] > 1:
            cut = self.int(1, array.shape[0] - 1)
            return self.node("Concat", [self.leaf(array[:cut], role), self.leaf(array[cut:], role)], axis=0)[0]
        return self.node("Identity", [self.leaf(array, role)])[0]

    def operand(self, dtypes=None, low=0, high=6, nonzero=False, exact=False, where=None, **data):
        """A value: of those that are there, or a new one."""
        dtypes = dtypes or FLOATS

        def fits(value):
            return (value.dtype in dtypes and low <= value.rank <= high and (value.exact or not exact)
                    and (not nonzero or value.array.size) and (where is None or where(value.shape)))

        found = [value for value in self.values if fits(value)]
        if found and not self.single and self.flag(0.85):
            unread = [value for value in found if value.name not in self.read]
            return self.pick(unread if unread and self.flag(0.7) else found)
        dtype = self.pick(dtypes)
        shape = self.shape(low, high, nonzero)
        for _ in range(30):
            if where is None or where(tuple(shape)):
                break
            shape = self.shape(low, high, nonzero)
        else:
            raise Unrunnable("no shape fits")
        return self.fresh(dtype, shape, **data)

    def fresh(self, dtype, shape, **data):
        """A value of this type and shape: of those that are there, sometimes, or a new one."""
        found = [value for value in self.values if value.dtype == dtype and list(value.shape) == list(shape)]
        if found and not data and self.flag(0.3):
            return self.pick(found)
        return self.leaf(self.data(dtype, list(shape), **data))

    def beside(self, value, **data):
        """A value that broadcasts with another."""
        found = [other for other in self.values if other.dtype == value.dtype and broadcasts(value, other)]
        if found and not self.single and not data and self.flag(0.5):
            return self.pick(found)
        return self.fresh(value.dtype, self.partner(list(value.shape)), **data)

    # Nodes.

    def node(self, op, operands, outputs=1, inexact=False, captured=(), **attributes):
        """One node; `captured` are values that bodies in its attributes read."""
        attributes = {key: value for key, value in attributes.items() if value is not None and value != []}
        while operands and operands[-1] is None:
            operands = operands[:-1]
        given = [operand for operand in operands if operand is not None]
        names = [self.name("y") + (f"_{i}" if i else "") for i in range(outputs)]
        node = helper.make_node(op, [operand.name if operand else "" for operand in operands], names, **attributes)
        return self.add([node], given + list(captured), names, inexact)

    def sequence(self, op, operands, **attributes):
        """A node that makes a sequence, and one that joins it again."""
        axis, new_axis = attributes.pop("axis"), attributes.pop("new_axis")
        parts, name = self.name("s"), self.name("y")
        nodes = [helper.make_node(op, [operand.name for operand in operands], [parts], axis=axis, **attributes),
                 helper.make_node("ConcatFromSequence", [parts], [name], axis=axis, new_axis=new_axis)]
        return self.add(nodes, operands, [name], False)

    def add(self, nodes, given, names, inexact):
        unique = {operand.name: operand for operand in given}
        inits = [proto(operand.array, name) for name, operand in unique.items()]
        graph = helper.make_graph(nodes, "g", [], [helper.make_empty_tensor_value_info(name) for name in names], inits)
        arrays = run(session(serialized(graph, self.opset)), {})
        if any(array.size > 4 * MOST for array in arrays):
            raise Unrunnable("too large")
        if not self.single and any(unfit(array) for array in arrays):
            raise Unrunnable("not finite")
        self.nodes.extend(nodes)
        self.ops.extend(node.op_type for node in nodes)
        self.read.update(operand.name for operand in given)
        exact = not inexact and all(operand.exact for operand in given)
        made = [Value(name, array, exact) for name, array in zip(names, arrays)]
        self.values.extend(made)
        self.results.extend(made)
        return made

    # The model.

    def outputs(self):
        last = self.nodes[-1].output
        return [value for value in self.results if value.name in last or value.name not in self.read
                or not self.single and self.rng.random() < 0.15]

    def disturbed(self, errors, signs):
        """The nodes, where those that read a result with an error read it off by that much, to one of these sides."""
        dtypes = {value.name: value.array for value in self.results}
        nodes, renamed = [], {}
        for node in self.nodes:
            own = helper.make_node(node.op_type, [renamed.get(name, name) for name in node.input], list(node.output), domain=node.domain)
            own.attribute.extend(node.attribute)
            nodes.append(own)
            for name in node.output:
                array = dtypes.get(name)
                if name not in errors or array is None or array.dtype not in FLOATS:
                    continue
                noise = self.rng.choice(signs, array.shape) * errors[name]
                nodes.append(helper.make_node("Constant", [], [name + "_noise"], value=proto(np.asarray(noise, array.dtype), "")))
                nodes.append(helper.make_node("Add", [name, name + "_noise"], [name + "_off"]))
                renamed[name] = name + "_off"
        return nodes

    def model(self, outputs, roles=True, errors=None, signs=(-1.0, 1.0)):
        """The model as bytes; without roles every leaf is an input."""
        inputs, inits, nodes, dims = [], [], [], {}
        symbolic = roles and self.flag(0.15)
        for leaf in self.leaves:
            if not roles or leaf.role == "input":
                shape = list(leaf.array.shape)
                for axis, size in enumerate(shape):
                    if symbolic and size > 0 and self.flag(0.4):
                        shape[axis] = f"d{len(dims)}"
                        dims[shape[axis]] = size
                kind = helper.np_dtype_to_tensor_dtype(leaf.array.dtype)
                inputs.append(helper.make_tensor_value_info(leaf.name, kind, shape))
            elif leaf.role == "initializer":
                inits.append(proto(leaf.array, leaf.name))
            else:
                nodes.append(helper.make_node("Constant", [], [leaf.name], value=proto(leaf.array, leaf.name)))
        infos = [helper.make_tensor_value_info(
            value.name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape) for value in outputs]
        own = self.disturbed(errors, signs) if errors else self.nodes
        graph = helper.make_graph(nodes + own, "g", inputs, infos, inits)
        return serialized(graph, self.opset), dims


def unfit(array):
    """What would make the rest of a model meaningless."""
    if array.dtype.kind != "f" or not array.size:
        return False
    return not np.isfinite(array).all() or float(np.abs(array).max()) > 1e4


def broadcasts(one, other):
    try:
        return np.prod(np.broadcast_shapes(one.shape, other.shape)) <= MOST
    except ValueError:
        return False


def proto(array, name):
    return numpy_helper.from_array(np.asarray(array), name)


def serialized(graph, opset):
    # The oldest version that initialisers need not be inputs in.
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8 if opset < 20 else 10)
    return model.SerializeToString()
