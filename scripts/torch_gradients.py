#!/usr/bin/env python3
"""torch_gradients.py CORPUS OUT: losses and gradients of small networks as PyTorch computes them.

CORPUS is the folder of the corpus' ONNX files, OUT the folder of the tests' data. A few lines of PyTorch
for each operation run the networks in f64; the loss is the cross-entropy of the last axis with class
(7 k + 3) mod classes for the k-th row, or for an autoencoder the mean squared distance from its input.
Of each gradient its length and a few elements are stored. One network, a residual one with batch
normalisation, is written here: OUT/residual_norm.onnx. tests/suite/torch_gradients.rs compares.
"""
import json
import sys

import numpy
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

F = torch.nn.functional
NETWORKS = ["s_resnet_hf", "s_gpt2", "s_vit", "s_lstm", "s_autoencoder_convt"]
SAMPLES = 6


def attributes(node):
    return {one.name: helper.get_attribute_value(one) for one in node.attribute}


def both(pads):
    """Paddings of both ends of each axis, which must be equal."""
    half = len(pads) // 2
    assert pads[:half] == pads[half:]
    return list(pads[:half])


def lstm(x, w, r, b, lengths, h, c, peepholes, hidden, direction):
    """Gates stand in the order input, output, forget, cell."""
    assert lengths is None and peepholes is None
    outputs, last_h, last_c = [], [], []
    for d in range(w.shape[0]):
        backward = direction == b"reverse" or d == 1
        state = h[d] if h is not None else torch.zeros(x.shape[1], hidden, dtype=x.dtype)
        cell = c[d] if c is not None else torch.zeros_like(state)
        steps = range(x.shape[0])
        made = {}
        for t in reversed(steps) if backward else steps:
            gates = x[t] @ w[d].T + state @ r[d].T
            if b is not None:
                gates = gates + b[d][: 4 * hidden] + b[d][4 * hidden :]
            i, o, f, g = gates.split(hidden, 1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            state = torch.sigmoid(o) * torch.tanh(cell)
            made[t] = state
        outputs.append(torch.stack([made[t] for t in steps]))
        last_h.append(state)
        last_c.append(cell)
    return torch.stack(outputs, 1), torch.stack(last_h), torch.stack(last_c)


def slices(x, starts, ends, axes, steps):
    for i, (start, end) in enumerate(zip(starts, ends)):
        axis = axes[i] if axes is not None else i
        step = steps[i] if steps is not None else 1
        assert step > 0
        at = range(x.shape[axis])[start:end:step]
        x = x.index_select(axis, torch.tensor(list(at), dtype=torch.long))
    return x


def reshaped(x, dims):
    return x.reshape([x.shape[i] if dim == 0 else dim for i, dim in enumerate(dims)])


def apply(node, args):
    """The results of one node."""
    a = attributes(node)
    numbers = lambda i: args[i].tolist() if len(args) > i and args[i] is not None else None
    arg = lambda i: args[i] if len(args) > i else None
    x = arg(0)
    match node.op_type:
        case "Add":
            return x + args[1]
        case "Mul":
            return x * args[1]
        case "Pow":
            return x ** args[1]
        case "MatMul":
            return x @ args[1]
        case "Relu":
            return torch.relu(x)
        case "Tanh":
            return torch.tanh(x)
        case "Sigmoid":
            return torch.sigmoid(x)
        case "PRelu":
            return torch.where(x > 0, x, x * args[1])
        case "Gelu":
            return F.gelu(x, approximate=a.get("approximate", b"none").decode())
        case "IsNaN":
            return torch.isnan(x)
        case "Where":
            return torch.where(x, args[1], args[2])
        case "Softmax":
            return torch.softmax(x, a.get("axis", -1))
        case "Reshape":
            return reshaped(x, numbers(1))
        case "Transpose":
            return x.permute(a["perm"])
        case "Unsqueeze":
            for axis in sorted(numbers(1)):
                x = x.unsqueeze(axis)
            return x
        case "Concat":
            return torch.cat(args, a["axis"])
        case "Gather":
            axis = a.get("axis", 0)
            dims = x.shape[:axis] + args[1].shape + x.shape[axis + 1 :]
            return x.index_select(axis, args[1].reshape(-1) % x.shape[axis]).reshape(dims)
        case "Slice":
            return slices(x, numbers(1), numbers(2), numbers(3), numbers(4))
        case "Split":
            sizes = numbers(1) or [x.shape[a.get("axis", 0)] // len(node.output)] * len(node.output)
            return x.split(sizes, a.get("axis", 0))
        case "ReduceMean":
            return x.mean(numbers(1) or a["axes"], keepdim=bool(a.get("keepdims", 1)))
        case "Gemm":
            left = x.T if a.get("transA") else x
            right = args[1].T if a.get("transB") else args[1]
            y = a.get("alpha", 1.0) * (left @ right)
            return y if arg(2) is None else y + a.get("beta", 1.0) * args[2]
        case "LayerNormalization":
            dims = x.shape[a.get("axis", -1) :]
            return F.layer_norm(x, dims, args[1], arg(2), a.get("epsilon", 1e-5))
        case "InstanceNormalization":
            return F.instance_norm(x, weight=args[1], bias=args[2], eps=a.get("epsilon", 1e-5))
        case "BatchNormalization":
            return F.batch_norm(x, None, None, args[1], args[2], training=True, eps=a.get("epsilon", 1e-5))
        case "Conv":
            pads = both(a.get("pads", [0, 0, 0, 0]))
            options = (a.get("strides", 1), pads, a.get("dilations", 1), a.get("group", 1))
            return F.conv2d(x, args[1], arg(2), *options)
        case "ConvTranspose":
            pads = both(a.get("pads", [0, 0, 0, 0]))
            more = a.get("output_padding", 0)
            options = (a.get("strides", 1), pads, more, a.get("group", 1), a.get("dilations", 1))
            return F.conv_transpose2d(x, args[1], arg(2), *options)
        case "MaxPool":
            assert not a.get("ceil_mode")
            return F.max_pool2d(x, a["kernel_shape"], a.get("strides"), both(a.get("pads", [0, 0, 0, 0])))
        case "GlobalAveragePool":
            return x.mean((2, 3), keepdim=True)
        case "LSTM":
            args = list(args) + [None] * (8 - len(args))
            return lstm(*args, a["hidden_size"], a.get("direction", b"forward"))
    raise NotImplementedError(node.op_type)


def tensor(array):
    found = torch.from_numpy(numpy.array(array))
    return found.double() if found.is_floating_point() else found


def is_trained(name, value, layers):
    """What has one element is a number of the computation, but for weights of layers; what hides is a mask."""
    is_mask = bool(((value == 0) | (value <= -100)).all() and (value <= -100).any())
    if not value.is_floating_point() or is_mask:
        return False
    return value.numel() > 1 or name in layers


def run(model, feeds):
    """Trained parameters, and the first output."""
    graph = model.graph
    with_weights = ("Conv", "ConvTranspose", "Gemm", "PRelu")
    layers = {name for node in graph.node if node.op_type in with_weights for name in node.input[1:3]}
    statistics = {name for node in graph.node if node.op_type == "BatchNormalization" for name in node.input[3:]}
    params, values = {}, {"": None}
    for one in graph.initializer:
        values[one.name] = tensor(numpy_helper.to_array(one))
        if one.name not in statistics and is_trained(one.name, values[one.name], layers):
            params[one.name] = values[one.name].requires_grad_()
    values.update({name: tensor(array) for name, array in feeds.items()})
    for node in graph.node:
        if node.op_type == "Constant":
            values[node.output[0]] = tensor(numpy_helper.to_array(attributes(node)["value"]))
            continue
        made = apply(node, [values[name] for name in node.input])
        made = made if isinstance(made, tuple) else (made,)
        values.update(zip(node.output, made))
    return params, values[graph.output[0].name]


def gradients(model, feeds, expected=None):
    params, y = run(model, feeds)
    if expected is not None:
        numpy.testing.assert_allclose(y.detach().numpy(), expected, rtol=1e-3, atol=1e-3)
    x = tensor(next(iter(feeds.values())))
    if y.shape == x.shape:
        loss = F.mse_loss(y, x)
    else:
        rows = y.reshape(-1, y.shape[-1])
        loss = F.cross_entropy(rows, (7 * torch.arange(len(rows)) + 3) % y.shape[-1])
    loss.backward()
    found = {}
    for name, param in params.items():
        if param.grad is None:
            continue
        flat = param.grad.reshape(-1)
        at = [(2 * i + 1) * len(flat) // (2 * SAMPLES) for i in range(SAMPLES)]
        found[name] = {"norm": flat.norm().item(), "elements": [[i, flat[i].item()] for i in sorted(set(at))]}
    return {"loss": loss.item(), "gradients": found}


def residual_norm():
    """Two blocks of a residual network, each with batch normalisation; a batch of 4 pictures of 8 x 8."""
    random = numpy.random.default_rng(5)
    tensors, nodes = [], []

    def param(name, *dims, low=-0.4, high=0.4):
        array = random.uniform(low, high, dims).astype(numpy.float32)
        tensors.append(numpy_helper.from_array(array, name))
        return name

    def add(op, inputs, name, **options):
        nodes.append(helper.make_node(op, inputs, [name], name=name, **options))
        return name

    def conv(x, name, before, after, size, stride=1):
        weight = param(f"{name}.weight", after, before, size, size)
        pads = [size // 2] * 4
        y = add("Conv", [x, weight], name, pads=pads, strides=[stride, stride], kernel_shape=[size, size])
        scale = param(f"{name}.norm.weight", after, low=0.5, high=1.5)
        rest = [param(f"{name}.norm.{one}", after) for one in ("bias", "mean")]
        rest.append(param(f"{name}.norm.variance", after, low=0.5, high=1.5))
        return add("BatchNormalization", [y, scale, *rest], f"{name}.norm", epsilon=1e-5)

    def block(x, name, before, after, stride):
        y = add("Relu", [conv(x, f"{name}.first", before, after, 3, stride)], f"{name}.relu")
        y = conv(y, f"{name}.second", after, after, 3)
        skip = conv(x, f"{name}.skip", before, after, 1, stride) if stride > 1 else x
        return add("Relu", [add("Add", [y, skip], f"{name}.add")], name)

    x = add("Relu", [conv("x", "stem", 3, 6, 3)], "stem.relu")
    x = block(x, "a", 6, 6, 1)
    x = block(x, "b", 6, 10, 2)
    x = add("GlobalAveragePool", [x], "pool")
    tensors.append(numpy_helper.from_array(numpy.array([0, -1]), "flat.dims"))
    x = add("Reshape", [x, "flat.dims"], "flat")
    add("Gemm", [x, param("head.weight", 5, 10), param("head.bias", 5)], "y", transB=1)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 5])]
    graph = helper.make_graph(nodes, "residual_norm", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    count = 4 * 3 * 8 * 8
    pictures = (((7 * numpy.arange(count)) % 23 - 11) / 8).astype(numpy.float32).reshape(4, 3, 8, 8)
    return model, {"x": pictures}


def main(corpus, out):
    torch.manual_seed(0)
    model, feeds = residual_norm()
    onnx.save(model, f"{out}/residual_norm.onnx")
    found = {"residual_norm": gradients(model, feeds)}
    for name in NETWORKS:
        arrays = numpy.load(f"{corpus}/{name}.io.npz")
        feeds = {key[3:]: arrays[key] for key in arrays.files if key.startswith("in_")}
        model = onnx.load(f"{corpus}/{name}.onnx")
        found[name] = gradients(model, feeds, arrays[f"out_{model.graph.output[0].name}"])
    with open(f"{out}/torch_gradients.json", "w") as file:
        lines = [f"{json.dumps(name)}: {json.dumps(one)}" for name, one in found.items()]
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


main(*sys.argv[1:])
