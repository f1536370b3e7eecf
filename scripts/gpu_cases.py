"""What scripts/gpu_check times: models in this program's own format, and the same as functions of torch or JAX.

A function takes the peer (its operations by one name for both), the inputs and the parameters in the order of the model.
"""


class Must:
    """What a case must reach: a figure of a kind, the least, or the most where less is better."""

    KINDS = {"copy": "of a copy", "library": "of cuBLASLt through torch", "attention": "of torch's flash attention",
             "eager": "of torch eager", "peer": "of the best peer", "kernel": "us a kernel", "alone": "of one device's time"}

    def __init__(self, kind, figure):
        self.kind, self.figure = kind, figure

    def is_met(self, reached):
        return reached <= self.figure if self.kind in ("kernel", "alone") else reached >= self.figure

    def __str__(self):
        return f"{self.figure:.2f} {self.KINDS[self.kind]}"


class Case:
    """`bytes` and `flops`: the work of one step; `kernels`: launches that must be; `alike`: the case whose output is the same."""

    def __init__(self, name, model, function, must, bytes=0, flops=0, kernels=0, devices="cuda", dtype="f32", alike=None):
        self.name, self.model, self.function, self.must = name, model, function, must
        self.bytes, self.flops, self.kernels = bytes, flops, kernels
        self.devices, self.dtype, self.alike = devices, dtype, alike
        # What is fed takes longer than the step.
        self.steps = 5 if bytes >= 1 << 30 else 21


class Training:
    """A training run: layers over `inputs` elements, or over an image of these sizes, `loss`, and on which devices. A layer is
    its units and its activation, or the name of a kind that `network` knows with its numbers."""

    def __init__(self, name, inputs, layers, loss, batch, devices, extra, must, rate=0.01):
        self.name, self.inputs, self.layers, self.loss = name, inputs, layers, loss
        self.batch, self.devices, self.must, self.rate = batch, devices, must, rate
        self.extra = extra + ["--lr", str(rate)]
        self.model = network(inputs, layers)


def model(inputs, params, nodes, outputs, constants=()):
    """A model; nodes are (name, operation, inputs, attributes)."""
    listed = [{"name": n, "op": o, "inputs": list(i), **a} for n, o, i, a in nodes]
    given = [{"name": n, "type": t} for n, t in inputs]
    held = [{"name": n, "type": t, "init": {"kind": "normal", "deviation": 0.02}} for n, t in params]
    fixed = [{"name": n, "type": t, "values": v} for n, t, v in constants]
    return {"partition_model": 1, "name": "gpu_check", "inputs": given, "params": held, "constants": fixed, "nodes": listed,
            "outputs": outputs}


SIZES = {"f32": 4, "bf16": 2}


def rows_case(kind, rows, width, dtype):
    size = f"{dtype}[{rows}, {width}]"
    vector = f"{dtype}[{width}]"
    inputs, params = [("x", size)], []
    if kind == "elementwise chain":
        nodes = [("a", "mul", ["x", "x"], {}), ("b", "add", ["a", "x"], {}), ("c", "tanh", ["b"], {}),
                 ("d", "mul", ["c", "x"], {}), ("y", "relu", ["d"], {})]
        function = lambda f, x, p: f.relu(f.tanh(x * x + x) * x)
    elif kind == "softmax":
        nodes = [("y", "softmax", ["x"], {"axis": -1})]
        function = lambda f, x, p: f.softmax(x)
    elif kind == "layer norm":
        params = [("s", vector), ("b", vector)]
        nodes = [("y", "layer_norm", ["x", "s", "b"], {})]
        function = lambda f, x, p: f.layer_norm(x, p[0], p[1])
    elif kind == "RMS norm":
        params = [("s", vector)]
        nodes = [("y", "rms_norm", ["x", "s"], {})]
        function = lambda f, x, p: f.rms_norm(x, p[0])
    else:
        inputs.append(("labels", f"i64[{rows}]"))
        nodes = [("y", "cross_entropy", ["x", "labels"], {})]
        function = lambda f, x, p: f.cross_entropy(x[0], x[1])
    moved = rows * width * SIZES[dtype] * (1 if kind == "cross-entropy" else 2)
    return Case(f"{kind}, {rows} x {width} {dtype}", model(inputs, params, nodes, ["y"]), function,
                Must("copy", 0.92), bytes=moved, dtype=dtype)


def elements(dims):
    count = 1
    for size in dims:
        count *= size
    return count


def shape(dtype, dims):
    return f"{dtype}[{', '.join(map(str, dims))}]"


def reduction_case(dims, axes, dtype):
    """A sum along `axes`: of rows, of columns, of channels, of all."""
    made = model([("x", shape(dtype, dims))], [], [("y", "reduce", ["x"], {"kind": "sum", "axes": list(axes)})], ["y"])
    name = f"sum over {list(axes)} of {' x '.join(map(str, dims))} {dtype}"
    return Case(f"reduction, {name}", made, lambda f, x, p: f.total(x, axes), Must("copy", 0.90),
                bytes=elements(dims) * SIZES[dtype], dtype=dtype)


def transpose_case(dims, perm, dtype):
    made = model([("x", shape(dtype, dims))], [], [("y", "transpose", ["x"], {"perm": list(perm)})], ["y"])
    return Case(f"transpose, {' x '.join(map(str, dims))} by {list(perm)} {dtype}", made, lambda f, x, p: f.permuted(x, perm),
                Must("copy", 0.85), bytes=2 * elements(dims) * SIZES[dtype], dtype=dtype)


def gather_case(table, width, count, dtype):
    """Rows of a table, as an embedding takes them."""
    made = model([("i", f"i64[{count}]")], [("t", f"{dtype}[{table}, {width}]")], [("y", "gather", ["t", "i"], {"axis": 0})], ["y"])
    return Case(f"gather, {count} of {table} rows of {width} {dtype}", made, lambda f, x, p: f.rows(p[0], x), Must("eager", 1.0),
                bytes=2 * count * width * SIZES[dtype], dtype=dtype)


def scatter_case(table, width, count, dtype):
    """Rows added to those of a table, as an embedding's gradient is."""
    inputs = [("i", f"i64[{count}]"), ("u", f"{dtype}[{count}, {width}]")]
    nodes = [("at", "reshape", ["i"], {"shape": [count, 1]}), ("y", "scatter_nd", ["t", "at", "u"], {"kind": "add"})]
    made = model(inputs, [("t", f"{dtype}[{table}, {width}]")], nodes, ["y"])
    return Case(f"scatter, {count} rows added to {table} of {width} {dtype}", made,
                lambda f, x, p: f.added(p[0], x[0], x[1]), Must("eager", 1.0),
                bytes=(2 * table + count) * width * SIZES[dtype], dtype=dtype)


def batch_norm_case(batch, channels, side, dtype):
    """As in training: by the moments of the batch. What is normalised is read for them, and again."""
    dims = (batch, channels, side, side)
    vector = f"{dtype}[{channels}, 1, 1]"
    nodes = [("n", "normalize", ["x"], {"axes": [0, 2, 3]}), ("m", "mul", ["n", "s"], {}), ("y", "add", ["m", "b"], {})]
    made = model([("x", shape(dtype, dims))], [("s", vector), ("b", vector)], nodes, ["y"])
    return Case(f"batch norm, {' x '.join(map(str, dims))} {dtype}", made, lambda f, x, p: f.batch_norm(x, p[0], p[1]),
                Must("copy", 0.80), bytes=3 * elements(dims) * SIZES[dtype], dtype=dtype)


def conv_case(batch, inner, outer, side, kernel, dtype):
    pads = [kernel // 2] * 2
    nodes = [("y", "conv", ["x", "w", "b"], {"strides": [1, 1], "pads_before": pads, "pads_after": pads})]
    params = [("w", shape(dtype, (outer, inner, kernel, kernel))), ("b", f"{dtype}[{outer}]")]
    made = model([("x", shape(dtype, (batch, inner, side, side)))], params, nodes, ["y"])
    name = f"convolution, {kernel} x {kernel}, {inner} to {outer} channels, {batch} images of {side} {dtype}"
    return Case(name, made, lambda f, x, p: f.conv(x, p[0], p[1], 1), Must("eager", 1.0),
                flops=2 * batch * side * side * inner * outer * kernel * kernel, dtype=dtype)


def product_case(m, n, k, dtype):
    nodes = [("y", "dense", ["x", "w", "b"], {"activation": "gelu_tanh"})]
    made = model([("x", f"{dtype}[{m}, {k}]")], [("w", f"{dtype}[{k}, {n}]"), ("b", f"{dtype}[{n}]")], nodes, ["y"])
    # Of few rows the library is not asked.
    must = Must("library" if m >= 9 else "peer", 1.00)
    return Case(f"GEMM + bias + GELU, {m} x {n} x {k} {dtype}", made, lambda f, x, p: f.gelu(x @ p[0] + p[1]), must,
                flops=2 * m * n * k, dtype=dtype)


def attention_case(length, depth, heads, dtype):
    size = f"{dtype}[1, {heads}, {length}, {depth}]"
    nodes = [("s", "matmul", ["q", "k"], {"transpose_right": True}), ("p", "softmax", ["s"], {"axis": -1}),
             ("y", "matmul", ["p", "v"], {})]
    made = model([("q", size), ("k", size), ("v", size)], [], nodes, ["y"])
    function = lambda f, x, p: f.attention(x[0], x[1], x[2], 1.0, False)
    return Case(f"attention, {heads} heads of {depth}, {length} long, {dtype}", made, function, Must("attention", 1.00),
                flops=4 * heads * length * length * depth, dtype=dtype)


def tiny_case(count):
    # Each reduction reads what the one before made, so that none fuse.
    nodes, last = [], "x"
    for number in range(count):
        nodes.append((f"n{number}", "softmax", [last], {"axis": -1 if number % 2 else 0}))
        last = f"n{number}"
    return Case(f"{count} tiny kernels", model([("x", "f32[32, 32]")], [], nodes, [last]), None, Must("kernel", 3.0),
                kernels=count)


def mlp(devices, layers=12, width=4096, rows=512):
    params, nodes, last = [], [], "x"
    for layer in range(layers):
        params += [(f"w{layer}", f"f32[{width}, {width}]"), (f"b{layer}", f"f32[{width}]")]
        nodes.append((f"h{layer}", "dense", [last, f"w{layer}", f"b{layer}"], {"activation": "relu"}))
        last = f"h{layer}"

    def function(f, x, p):
        for layer in range(layers):
            x = f.relu(x @ p[2 * layer] + p[2 * layer + 1])
        return x

    name = f"MLP of {layers} layers of {width}, {rows} rows"
    alone = devices == "cuda"
    return Case(f"{name}, {devices}", model([("x", f"f32[{rows}, {width}]")], params, nodes, [last]), function,
                Must("eager", 1.0) if alone else Must("alone", 1.03), flops=layers * 2 * rows * width ** 2, devices=devices,
                alike=None if alone else f"{name}, cuda")


def block(nodes, params, name, x, cache, heads, width, dtype, batch, length):
    """A block of GPT-2 on `length` rows after `cache` keys; the name of its result."""
    depth = width // heads

    def dense(to, of, rows, columns, **more):
        params.extend([(f"{name}{to}_w", f"{dtype}[{rows}, {columns}]"), (f"{name}{to}_b", f"{dtype}[{columns}]")])
        nodes.append((f"{name}{to}", "dense", [of, f"{name}{to}_w", f"{name}{to}_b"], more))
        return f"{name}{to}"

    def norm(to, of):
        params.extend([(f"{name}{to}_s", f"{dtype}[{width}]"), (f"{name}{to}_h", f"{dtype}[{width}]")])
        nodes.append((f"{name}{to}", "layer_norm", [of, f"{name}{to}_s", f"{name}{to}_h"], {}))
        return f"{name}{to}"

    def split(to, of):
        nodes.append((f"{name}{to}_r", "reshape", [of], {"shape": [batch, length, heads, depth]}))
        nodes.append((f"{name}{to}_t", "transpose", [f"{name}{to}_r"], {"perm": [0, 2, 1, 3]}))
        return f"{name}{to}_t"

    first = norm("ln1", x)
    q, k, v = (split(to, dense(to, first, width, width)) for to in "qkv")
    if cache:
        for to, new in (("k", k), ("v", v)):
            nodes.append((f"{name}{to}_all", "concat", [f"{name}{to}_cache", new], {"axis": 2}))
        k, v = f"{name}k_all", f"{name}v_all"
    nodes.append((f"{name}dots", "matmul", [q, k], {"transpose_right": True}))
    nodes.append((f"{name}scaled", "mul", [f"{name}dots", "scale"], {}))
    scores = f"{name}scaled"
    if length > 1:
        nodes.append((f"{name}seen", "select", ["causal", scores, "hidden"], {}))
        scores = f"{name}seen"
    nodes.append((f"{name}p", "softmax", [scores], {"axis": -1}))
    nodes.append((f"{name}a", "matmul", [f"{name}p", v], {}))
    nodes.append((f"{name}at", "transpose", [f"{name}a"], {"perm": [0, 2, 1, 3]}))
    nodes.append((f"{name}ar", "reshape", [f"{name}at"], {"shape": [batch, length, width]}))
    nodes.append((f"{name}x1", "add", [x, dense("o", f"{name}ar", width, width)], {}))
    wide = dense("up", norm("ln2", f"{name}x1"), width, 4 * width, activation="gelu_tanh")
    nodes.append((f"{name}x2", "add", [f"{name}x1", dense("down", wide, 4 * width, width)], {}))
    return f"{name}x2"


# Of a block's parameters: scale and shift of the first norm; weights and biases of q, k, v, o; of the second norm; up, down.
OF_BLOCK = 16


def blocked(f, x, p, cache, heads):
    """As `block`; `p` are its parameters."""
    batch, length, width = x.shape
    split = lambda y: f.swap(y.reshape(batch, length, heads, width // heads))
    first = f.layer_norm(x, p[0], p[1])
    q, k, v = (split(first @ p[2 + 2 * i] + p[3 + 2 * i]) for i in range(3))
    if cache:
        k, v = f.concat([cache[0], k], 2), f.concat([cache[1], v], 2)
    a = f.attention(q, k, v, (width // heads) ** -0.5, length > 1)
    x = x + (f.swap(a).reshape(batch, length, width) @ p[8] + p[9])
    wide = f.gelu(f.layer_norm(x, p[10], p[11]) @ p[12] + p[13])
    return x + (wide @ p[14] + p[15])


def gpt2_case(batch, length, heads, width, dtype):
    nodes, params = [], []
    if length > 1:
        nodes = [("rows", "iota", [], {"type": f"i64[{length}, {length}]", "axis": 0}),
                 ("columns", "iota", [], {"type": f"i64[{length}, {length}]", "axis": 1}),
                 ("causal", "ge", ["rows", "columns"], {})]
    last = block(nodes, params, "", "x", False, heads, width, dtype, batch, length)
    constants = [("scale", dtype, (width // heads) ** -0.5), ("hidden", dtype, -1e9)]
    made = model([("x", f"{dtype}[{batch}, {length}, {width}]")], params, nodes, [last], constants)
    rows = batch * length
    flops = 2 * rows * 12 * width * width + 4 * batch * length * length * width
    return Case(f"GPT-2 block, {batch} x {length}, {heads} heads, {width} wide, {dtype}", made,
                lambda f, x, p: blocked(f, x, p, None, heads), Must("eager", 1.0), flops=flops, dtype=dtype)


def decode_case(layers, known, heads, width, dtype):
    nodes, params, last = [], [], "x"
    inputs = [("x", f"{dtype}[1, 1, {width}]")]
    for layer in range(layers):
        name = f"b{layer}_"
        inputs += [(f"{name}{to}_cache", f"{dtype}[1, {heads}, {known}, {width // heads}]") for to in "kv"]
        last = block(nodes, params, name, last, True, heads, width, dtype, 1, 1)
    made = model(inputs, params, nodes, [last], [("scale", dtype, (width // heads) ** -0.5)])

    def function(f, x, p):
        y = x[0]
        for layer in range(layers):
            cache = x[1 + 2 * layer : 3 + 2 * layer]
            y = blocked(f, y, p[OF_BLOCK * layer : OF_BLOCK * (layer + 1)], cache, heads)
        return y

    size = 2 if dtype != "f32" else 4
    moved = size * layers * (12 * width * width + 2 * known * width)
    return Case(f"decode, batch 1, {layers} blocks {width} wide after {known} tokens, {dtype}", made, function, Must("eager", 1.0),
                bytes=moved, dtype=dtype)


def resnet50_case(batch, side, dtype, stages=(3, 4, 6, 3)):
    """ResNet-50 with its normalisations folded into the convolutions, channels first."""
    nodes, params, plan, flops = [], [], [], 0

    def conv(name, x, inner, outer, kernel, stride, size):
        nonlocal flops
        params.extend([(f"{name}_w", f"{dtype}[{outer}, {inner}, {kernel}, {kernel}]"), (f"{name}_b", f"{dtype}[{outer}]")])
        pad = kernel // 2
        nodes.append((name, "conv", [x, f"{name}_w", f"{name}_b"],
                      {"strides": [stride] * 2, "pads_before": [pad] * 2, "pads_after": [pad] * 2}))
        flops += 2 * batch * (size // stride) ** 2 * inner * outer * kernel * kernel
        return name

    def relu(name, x):
        nodes.append((name, "relu", [x], {}))
        return name

    x, size, inner = relu("r0", conv("stem", "x", 3, 64, 7, 2, side)), side // 2, 64
    nodes.append(("pool", "pool", [x], {"kind": "max", "kernel": [3, 3], "strides": [2, 2], "pads_before": [1, 1],
                                        "pads_after": [1, 1]}))
    x, size = "pool", size // 2
    for stage, count in enumerate(stages):
        for unit in range(count):
            name, wide, stride = f"s{stage}u{unit}", 64 << stage, 2 if unit == 0 and stage > 0 else 1
            a = relu(f"{name}ar", conv(f"{name}a", x, inner, wide, 1, 1, size))
            b = relu(f"{name}br", conv(f"{name}b", a, wide, wide, 3, stride, size))
            c = conv(f"{name}c", b, wide, 4 * wide, 1, 1, size // stride)
            if unit == 0:
                x = conv(f"{name}d", x, inner, 4 * wide, 1, stride, size)
            nodes.append((f"{name}sum", "add", [c, x], {}))
            x, inner, size = relu(f"{name}out", f"{name}sum"), 4 * wide, size // stride
            plan.append((unit == 0, stride))
    params.extend([("head_w", f"{dtype}[{inner}, 1000]"), ("head_b", f"{dtype}[1000]")])
    nodes.append(("mean", "reduce", [x], {"kind": "mean", "axes": [2, 3]}))
    nodes.append(("y", "dense", ["mean", "head_w", "head_b"], {}))
    made = model([("x", f"{dtype}[{batch}, 3, {side}, {side}]")], params, nodes, ["y"])

    def function(f, x, p):
        p = iter(p)
        conv = lambda x, stride: f.conv(x, next(p), next(p), stride)
        x = f.max_pool(f.relu(conv(x, 2)))
        for first, stride in plan:
            y = f.relu(conv(x, 1))
            y = conv(f.relu(conv(y, stride)), 1)
            x = f.relu(y + (conv(x, stride) if first else x))
        return f.mean(f.mean(x)) @ next(p) + next(p)

    return Case(f"ResNet-50, {batch} images of {side}, {dtype}", made, function, Must("eager", 1.0), flops=flops,
                dtype=dtype)


def keras_layer(number, kind, given):
    """A layer in Keras' JSON."""
    name = {"name": f"{kind}_{number}".replace(" ", "_")}
    if kind == "convolution":
        config = {"filters": given, "kernel_size": [3, 3], "strides": [1, 1], "padding": "same", "activation": "relu",
                  "use_bias": True, "data_format": "channels_last", "dilation_rate": [1, 1], "groups": 1}
        return {"class_name": "Conv2D", "config": name | config}
    if kind == "batch norm":
        config = {"axis": [3], "momentum": 0.9, "epsilon": 1e-3, "center": True, "scale": True}
        return {"class_name": "BatchNormalization", "config": name | config}
    if kind == "layer norm":
        return {"class_name": "LayerNormalization", "config": name | {"axis": [1], "epsilon": 1e-3, "center": True, "scale": True}}
    if kind == "mean":
        return {"class_name": "GlobalAveragePooling2D", "config": name | {"data_format": "channels_last"}}
    return {"class_name": "Dense", "config": {"name": f"dense_{number}", "units": kind, "activation": given, "use_bias": True}}


def network(inputs, layers):
    """Layers in Keras' JSON."""
    sizes = inputs if isinstance(inputs, list) else [inputs]
    first = {"class_name": "InputLayer", "config": {"name": "x", "batch_input_shape": [None] + sizes, "dtype": "float32"}}
    others = [keras_layer(number, kind, given) for number, (kind, given) in enumerate(layers)]
    return {"class_name": "Sequential", "config": {"name": "net", "layers": [first] + others}}


def trainings(small):
    stack = [(1000, "linear")] * 11 + [(100, "linear")]
    pyramid = [(4000, "tanh"), (2000, "relu"), (500, "relu"), (300, "relu"), (1, "sigmoid")]
    found = [Training("seed_stack", 100, stack, "mae", 10, devices, extra, must)
             for devices, extra, must in (("cuda", [], "torch"), ("cuda[12x1000MB]", ["--use", "all"], "a layer on each"))]
    found += [Training("pyramid_8000", 8000, pyramid, "mse", 1024, devices, extra, must)
              for devices, extra, must in (("cuda", [], "torch"), ("cuda[4x4GB]", ["--replicas", "4"], "one device"))]
    # Backward passes of convolutions and batch norms, and of layer norms.
    wide = [("convolution", 64), ("batch norm", None)] * 4 + [("mean", None), (10, "linear")]
    norms = [(4096, "relu"), ("layer norm", None)] * 4 + [(10, "linear")]
    found += [Training("conv_stack", [32, 32, 64], wide, "mse", 128, "cuda", [], "torch"),
              # 4096 normalised numbers go into each result: larger steps end in numbers that are none.
              Training("norm_stack", 4096, norms, "mse", 4096, "cuda", [], "torch", 0.0001)]
    if small:
        tiny = [("convolution", 4), ("batch norm", None), ("mean", None), (8, "relu"), ("layer norm", None), (2, "linear")]
        return found[:1] + [Training("conv_stack", [6, 6, 3], tiny, "mse", 4, "cuda", [], "torch")]
    return found


ROWS = ("elementwise chain", "softmax", "layer norm", "RMS norm", "cross-entropy")


def cases(small):
    if small:
        rows = [rows_case(kind, 64, 256, "f32") for kind in ROWS]
        moved = [reduction_case((64, 512), (0,), "bf16"), transpose_case((128, 128), (1, 0), "bf16"), gather_case(20, 16, 30, "bf16"),
                 scatter_case(20, 16, 30, "f32"), batch_norm_case(2, 4, 28, "f32"), conv_case(1, 8, 8, 6, 3, "bf16")]
        return rows + moved + [product_case(64, 48, 40, "f32"), attention_case(32, 8, 2, "bf16"), tiny_case(8),
                       gpt2_case(1, 16, 2, 32, "bf16"), decode_case(1, 16, 2, 32, "bf16"),
                       resnet50_case(1, 32, "bf16", (1, 1, 1, 1)), mlp("cuda", 2, 64, 8), mlp("cuda[2x1MB]", 2, 64, 8)]
    found = [rows_case(kind, (gigabytes << 28) // 4096, 4096, "f32") for kind in ROWS for gigabytes in (1, 4)]
    found += [rows_case(kind, (1 << 29) // 4096, 4096, "bf16") for kind in ROWS]
    for dtype in ("f32", "bf16"):
        found += [reduction_case(*of, dtype) for of in (((65536, 4096), (0,)), ((65536, 4096), (1,)), ((65536, 4096), (0, 1)),
                                                         ((64, 64, 224, 224), (0, 2, 3)))]
        found += [transpose_case((16384, 16384), (1, 0), dtype), transpose_case((32, 1024, 16, 64), (0, 2, 1, 3), dtype)]
        found += [batch_norm_case(64, 64, 112, dtype)]
    found += [gather_case(50257, 768, 65536, "bf16"), scatter_case(50257, 768, 65536, "f32")]
    found += [conv_case(32, 256, 256, 28, 3, "bf16"), conv_case(32, 256, 256, 28, 1, "bf16"), conv_case(32, 64, 64, 56, 3, "f32")]
    found += [product_case(s, s, s, "bf16") for s in (1024, 2048, 4096, 8192)]
    found += [product_case(1000, 3001, 777, "bf16"), product_case(1, 4096, 4096, "bf16"), product_case(8, 4096, 4096, "bf16")]
    found += [attention_case(length, depth, 16, "bf16") for depth in (64, 128) for length in (1024, 4096, 16384)]
    found += [gpt2_case(8, 1024, 12, 768, "bf16"), decode_case(12, 1023, 12, 768, "bf16"), resnet50_case(32, 224, "bf16")]
    found += [tiny_case(1000)]
    return found + [mlp(devices) for devices in ("cuda", "cuda[2x4GB]", "cuda[4x2GB]", "cuda[12x1GB]")]
