"""Who scripts/gpu_check measures beside this program: torch eager, torch.compile, JAX jit, and a copy by the driver."""
import ctypes
import gc
import importlib.util
import statistics
import sys
import time


def dtype_of(text):
    return text[: text.index("[")]


def sizes(text):
    return [int(size) for size in text[text.index("[") + 1 : -1].split(",")]


def warm(call, wait, seconds=0.2):
    """Keeps the GPU at work until its clocks are up."""
    wait()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        call()
        wait()


def without_tf32(torch):
    """f32 is multiplied as f32, as here: torch's convolutions would round operands to TF32."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


class Torch:
    """The functions of cases in torch, timed by events of the GPU around each call."""

    def __init__(self):
        import torch
        without_tf32(torch)
        self.torch, self.f = torch, torch.nn.functional
        self.relu, self.tanh = torch.relu, torch.tanh

    softmax = lambda self, x: self.torch.softmax(x, -1)
    mean = lambda self, x: x.mean(-1)
    gelu = lambda self, x: self.f.gelu(x, approximate="tanh")
    layer_norm = lambda self, x, s, b: self.f.layer_norm(x, (x.shape[-1],), s, b, 1e-5)
    rms_norm = lambda self, x, s: self.f.rms_norm(x, (x.shape[-1],), s, 1e-5)
    swap = lambda self, x: x.transpose(1, 2)
    concat = lambda self, x, axis: self.torch.cat(x, axis)
    conv = lambda self, x, w, b, stride: self.f.conv2d(x, w, b, stride, w.shape[-1] // 2)
    max_pool = lambda self, x: self.f.max_pool2d(x, 3, 2, 1)
    total = lambda self, x, axes: x.sum(axes)
    permuted = lambda self, x, perm: x.permute(perm).contiguous()
    rows = lambda self, table, at: self.f.embedding(at, table)
    added = lambda self, table, at, rows: self.torch.index_add(table, 0, at, rows)

    def batch_norm(self, x, s, b):
        return self.f.batch_norm(x, None, None, s.flatten(), b.flatten(), training=True, eps=1e-5)

    def attention(self, q, k, v, scale, causal):
        return self.f.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal)

    def cross_entropy(self, x, labels):
        return self.f.cross_entropy(x, labels, reduction="none")

    def arrays(self, listed):
        kinds = {"f32": self.torch.float32, "bf16": self.torch.bfloat16}

        def array(text):
            if dtype_of(text) == "i64":
                return self.torch.randint(0, 8, sizes(text), device="cuda")
            return self.torch.randn(sizes(text), device="cuda", dtype=kinds[dtype_of(text)]) * 0.1

        return [array(one["type"]) for one in listed]

    def time(self, case, compiled):
        if case.function is None:
            return None
        inputs = self.arrays(case.model["inputs"])
        params = [self.torch.nn.Parameter(one, requires_grad=False) for one in self.arrays(case.model["params"])]
        x = inputs if len(inputs) > 1 else inputs[0]
        call = lambda: case.function(self, x, params)
        with self.torch.inference_mode():
            if compiled:
                self.torch._dynamo.reset()
                call = self.torch.compile(call, mode="max-autotune")
            for _ in range(5):
                call()
            warm(call, self.torch.cuda.synchronize)
            times, walls = [], []
            for _ in range(case.steps):
                begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
                self.torch.cuda.synchronize()
                start = time.perf_counter()
                begin.record()
                call()
                end.record()
                self.torch.cuda.synchronize()
                walls.append((time.perf_counter() - start) * 1e3)
                times.append(begin.elapsed_time(end))
        return {"device": statistics.median(times), "wall": statistics.median(walls)}


class Jax:
    """The functions of cases in JAX, which has no events: timed over calls put in the queue and waited for once."""

    def __init__(self):
        import jax
        # As `without_tf32`.
        jax.config.update("jax_default_matmul_precision", "highest")
        self.jax, self.np = jax, jax.numpy
        self.relu, self.tanh = jax.nn.relu, jax.numpy.tanh

    softmax = lambda self, x: self.jax.nn.softmax(x, -1)
    log_softmax = lambda self, x: self.jax.nn.log_softmax(x, -1)
    mean = lambda self, x: x.mean(-1)
    gelu = lambda self, x: self.jax.nn.gelu(x, approximate=True)

    def layer_norm(self, x, s, b):
        rest = x - x.mean(-1, keepdims=True)
        return rest * self.jax.lax.rsqrt((rest * rest).mean(-1, keepdims=True) + 1e-5) * s + b

    rms_norm = lambda self, x, s: x * self.jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * s
    swap = lambda self, x: self.np.swapaxes(x, 1, 2)
    concat = lambda self, x, axis: self.np.concatenate(x, axis)

    def conv(self, x, w, b, stride):
        pad = [(w.shape[-1] // 2,) * 2] * 2
        return self.jax.lax.conv_general_dilated(x, w, (stride, stride), pad) + b[:, None, None]

    total = lambda self, x, axes: x.sum(axes)
    permuted = lambda self, x, perm: self.np.transpose(x, perm)
    rows = lambda self, table, at: table[at]
    added = lambda self, table, at, rows: table.at[at].add(rows)

    def batch_norm(self, x, s, b):
        rest = x - x.mean((0, 2, 3), keepdims=True)
        return rest * self.jax.lax.rsqrt((rest * rest).mean((0, 2, 3), keepdims=True) + 1e-5) * s + b

    def max_pool(self, x):
        pads = ((0, 0), (0, 0), (1, 1), (1, 1))
        return self.jax.lax.reduce_window(x, -self.np.inf, self.jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), pads)

    def attention(self, q, k, v, scale, causal):
        scores = q @ self.np.swapaxes(k, -1, -2) * scale
        if causal:
            scores = self.np.where(self.np.tri(q.shape[-2], dtype=bool), scores, -self.np.inf)
        return self.jax.nn.softmax(scores, -1) @ v

    def cross_entropy(self, x, labels):
        return -self.np.take_along_axis(self.log_softmax(x), labels[:, None], -1)[:, 0]

    def time(self, case):
        if case.function is None:
            return None
        kinds = {"f32": self.np.float32, "bf16": self.np.bfloat16, "i64": self.np.int32}
        key = self.jax.random.PRNGKey(1)

        def array(text):
            nonlocal key
            key, own = self.jax.random.split(key)
            if dtype_of(text) == "i64":
                return self.jax.random.randint(own, sizes(text), 0, 8)
            return self.jax.random.normal(own, sizes(text), kinds[dtype_of(text)]) * 0.1

        inputs, params = ([array(one["type"]) for one in case.model[listed]] for listed in ("inputs", "params"))
        x = inputs if len(inputs) > 1 else inputs[0]
        call = self.jax.jit(lambda x, p: case.function(self, x, p))
        warm(lambda: call(x, params).block_until_ready(), lambda: None)
        begin = time.perf_counter()
        call(x, params).block_until_ready()
        wall = (time.perf_counter() - begin) * 1e3
        begin = time.perf_counter()
        for _ in range(case.steps):
            last = call(x, params)
        last.block_until_ready()
        return {"device": (time.perf_counter() - begin) * 1e3 / case.steps, "wall": wall}


def emptied():
    """Gives back what torch keeps of a case's memory."""
    if "torch" in sys.modules:
        gc.collect()
        sys.modules["torch"].cuda.empty_cache()


def torch_trained(case):
    """As `trained`, in torch eager on the GPU."""
    import torch
    without_tf32(torch)
    names = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU, "sigmoid": torch.nn.Sigmoid, "linear": torch.nn.Identity}
    is_image = isinstance(case.inputs, list)
    # Of an image the channels come last here and first there.
    sizes = [case.inputs[2], *case.inputs[:2]] if is_image else [case.inputs]
    layers, inner = [], sizes[0]
    for kind, given in case.layers:
        if kind == "convolution":
            layers += [torch.nn.Conv2d(inner, given, 3, padding=1), torch.nn.ReLU()]
            inner = given
        elif kind == "batch norm":
            layers.append(torch.nn.BatchNorm2d(inner))
        elif kind == "layer norm":
            layers.append(torch.nn.LayerNorm(inner))
        elif kind == "mean":
            layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
        else:
            layers += [torch.nn.Linear(inner, kind), names[given]()]
            inner = kind
    net = torch.nn.Sequential(*layers).cuda()
    loss = torch.nn.L1Loss() if case.loss == "mae" else torch.nn.MSELoss()
    x, y = torch.rand(10 * case.batch, *sizes), torch.rand(10 * case.batch, inner)
    optimizer, times = torch.optim.SGD(net.parameters(), lr=case.rate), []
    for _ in range(4):
        begin = time.perf_counter()
        for at in range(0, len(x), case.batch):
            optimizer.zero_grad()
            found = loss(net(x[at : at + case.batch].cuda()), y[at : at + case.batch].cuda())
            found.backward()
            optimizer.step()
            found.item()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:]), found.item()


def peers(only=None):
    """Names and functions of what is installed and has a GPU; names of what is not. `only` one is loaded, where it is named."""
    found, absent = [], []
    wanted = lambda name: only is None or only.startswith(name)
    if not wanted("torch"):
        pass
    elif importlib.util.find_spec("torch"):
        torch = Torch()
        if torch.torch.cuda.is_available():
            found += [("torch", lambda case: torch.time(case, False)), ("torch.compile", lambda case: torch.time(case, True))]
        else:
            absent += ["torch (has no GPU)", "torch.compile (has no GPU)"]
    else:
        absent += ["torch", "torch.compile"]
    if not wanted("JAX"):
        pass
    elif importlib.util.find_spec("jax"):
        jax = Jax()
        if any(device.platform == "gpu" for device in jax.jax.devices()):
            found.append(("JAX jit", jax.time))
        else:
            absent.append("JAX jit (has no GPU)")
    else:
        absent.append("JAX jit")
    return found, absent


def copy_rate(size=1 << 30, rounds=9):
    """GB/s read and written by the driver's own copy within the first GPU, by its events; none with the reason."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return None, str(error)

    def call(name, *args):
        code = getattr(cuda, name)(*args)
        if code:
            raise RuntimeError(f"{name} gives {code}")

    device, context = ctypes.c_int(), ctypes.c_void_p()
    source, target, begin, end = (ctypes.c_void_p() for _ in range(4))
    passed, times = ctypes.c_float(), []
    try:
        call("cuInit", 0)
        call("cuDeviceGet", ctypes.byref(device), 0)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        call("cuCtxSetCurrent", context)
        for memory in (source, target):
            call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size))
        for event in (begin, end):
            call("cuEventCreate", ctypes.byref(event), 0)
        for _ in range(rounds):
            call("cuEventRecord", begin, None)
            call("cuMemcpyDtoDAsync_v2", target, source, ctypes.c_size_t(size), None)
            call("cuEventRecord", end, None)
            call("cuEventSynchronize", end)
            call("cuEventElapsedTime", ctypes.byref(passed), begin, end)
            times.append(passed.value)
        for memory in (source, target):
            call("cuMemFree_v2", memory)
        call("cuDevicePrimaryCtxRelease_v2", device)
    except (AttributeError, RuntimeError) as error:
        return None, str(error)
    return 2 * size / statistics.median(times[1:]) / 1e6, ""
