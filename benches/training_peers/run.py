#!/usr/bin/env python3
"""Trains the seed examples with `partition train`, TensorFlow (Keras) and torch, in turns on one machine.

    python3 benches/training_peers/run.py --partition target/release/partition \
        --tensorflow VENV/bin/python --torch VENV/bin/python [--rounds 3] [stack] [pyramid] > table.md

stack: Dense 100 -> 1000, ten of 1000, 100; 100 samples of ones, batch 10, SGD, mean absolute error; on
twelve virtual devices, every layer on one of its own (asserted), and on one. TensorFlow has twelve logical
CPU devices, layers pinned by hand. pyramid: 8000 -> 4000 -> 2000 -> 500 -> 300 -> 1, data parallel over two
and four virtual devices, against MirroredStrategy over as many logical CPUs, and against one device each.
Each figure is the median over the rounds of the median epoch, the first epoch left out. Nothing else should
run meanwhile.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys

PEERS = r'''
import json, os, sys, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
what, devices, batch, records, epochs, side = sys.argv[1], *map(int, sys.argv[2:6]), sys.argv[6]
import numpy as np
sizes = {"stack": [100] + [1000] * 11 + [100], "pyramid": [8000, 4000, 2000, 500, 300, 1]}[what]
acts = {"stack": ["relu"] * 11 + [None], "pyramid": ["tanh"] + ["relu"] * 3 + ["sigmoid"]}[what]
if what == "stack":
    x, y = np.ones((records, sizes[0]), np.float32), np.ones((records, sizes[-1]), np.float32)
else:
    rng = np.random.default_rng(0)
    x = rng.random((records, sizes[0]), np.float32)
    y = rng.integers(0, 2, (records, 1)).astype(np.float32)
times, losses = [], []

def tensorflow():
    import tensorflow as tf
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
    keras = tf.keras

    class Stack(keras.Model):
        def __init__(self):
            super().__init__()
            self.parts = []
            for i, (units, act) in enumerate(zip(sizes[1:], acts)):
                with tf.device(f"CPU:{min(i, devices - 1)}"):
                    layer = keras.layers.Dense(units, activation=act)
                    layer.build((None, sizes[i]))
                    self.parts.append(layer)
        def call(self, h):
            for i, layer in enumerate(self.parts):
                with tf.device(f"CPU:{min(i, devices - 1)}"):
                    h = layer(h)
            return h

    class Clock(keras.callbacks.Callback):
        def on_epoch_begin(self, *_): self.t = time.perf_counter()
        def on_epoch_end(self, _, logs):
            times.append(time.perf_counter() - self.t); losses.append(float(logs["loss"]))

    if what == "stack":
        model = Stack()
        model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mae")
    else:
        strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(devices)]) if devices > 1 else tf.distribute.get_strategy()
        with strategy.scope():
            model = keras.Sequential([keras.layers.Input((sizes[0],))] + [keras.layers.Dense(u, activation=a) for u, a in zip(sizes[1:], acts)])
            model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
    model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0, shuffle=False, callbacks=[Clock()])

def torch_side():
    import torch
    act = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh, "sigmoid": torch.nn.Sigmoid}
    layers = []
    for a, b, f in zip(sizes, sizes[1:], acts):
        layers += [torch.nn.Linear(a, b)] + ([act[f]()] if f else [])
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loss_of = torch.nn.L1Loss() if what == "stack" else torch.nn.MSELoss()
    def step(a, b):
        optimizer.zero_grad(); loss = loss_of(model(a), b); loss.backward(); optimizer.step(); return loss
    if side == "compile":
        inner = torch.compile(lambda a, b: loss_of(model(a), b))
        def step(a, b):
            optimizer.zero_grad(); loss = inner(a, b); loss.backward(); optimizer.step(); return loss
    xt, yt = torch.from_numpy(x), torch.from_numpy(y)
    for _ in range(epochs):
        t, total = time.perf_counter(), 0.0
        for at in range(0, records, batch):
            total += float(step(xt[at:at + batch], yt[at:at + batch]))
        times.append(time.perf_counter() - t); losses.append(total / (records // batch))

tensorflow() if side == "tensorflow" else torch_side()
print("RESULT", json.dumps([sorted(times[1:])[len(times[1:]) // 2], losses[0], losses[-1]]))
'''

PYRAMID = {"class_name": "Sequential", "keras_version": "2.15.0", "backend": "tensorflow", "config": {
    "name": "pyramid", "layers": [
        {"class_name": "InputLayer", "config": {"name": "x", "batch_input_shape": [None, 8000], "dtype": "float32"}}
    ] + [
        {"class_name": "Dense", "config": {"name": f"dense_{i}", "units": units, "activation": act, "use_bias": True}}
        for i, (units, act) in enumerate([(4000, "tanh"), (2000, "relu"), (500, "relu"), (300, "relu"), (1, "sigmoid")])
    ]}}


def median(values):
    return statistics.median(values)


def peer(python, what, devices, batch, records, epochs, side):
    args = [python, "-c", PEERS, what, *map(str, (devices, batch, records, epochs)), side]
    done = subprocess.run(args, capture_output=True, text=True)
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT")), None)
    if line is None:
        sys.exit(f"{side} failed:\n{done.stderr[-2000:]}")
    return json.loads(line[7:])


def ours(partition, model, spec, batch, epochs, loss, data, extra=(), apart=0):
    args = [partition, "train", model, "-d", spec, "--data", data, "--loss", loss, "--batch", str(batch),
            "--epochs", str(epochs), "--in-order", *extra]
    done = subprocess.run(args, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    layers = re.findall(r"^\S+ \(Dense\) +\S+ +[\d,]+ +(\S+)$", done.stdout, re.M)
    if apart and len(set(layers)) != apart:
        sys.exit(f"{apart} devices are to hold a layer each: {layers}")
    found = re.findall(r"loss ([\d.]+).*?(\d+) ms", done.stdout)
    times = sorted(float(ms) / 1e3 for _, ms in found[1:])
    return [times[len(times) // 2], float(found[0][0]), float(found[-1][0])]


def table(title, rows, rounds):
    results = {name: [] for name, _ in rows}
    for _ in range(rounds):
        for name, run in rows:
            results[name].append(run())
    print(f"\n{title}\n\n| | ms for an epoch | loss, first to last epoch |\n|---|---:|---|")
    for name, found in results.items():
        print(f"| {name} | {1e3 * median([one[0] for one in found]):.0f} | {found[0][1]:.4f} to {found[0][2]:.4f} |")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--partition", required=True)
    parser.add_argument("--tensorflow")
    parser.add_argument("--torch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("what", nargs="*", default=["stack", "pyramid"])
    args = parser.parse_args()
    if "stack" in args.what:
        stack = lambda spec, **more: lambda: ours(args.partition, "examples/seed_stack.json", spec, 10, 10, "mae",
                                                  "ones:records=100", **more)
        rows = [("ours, twelve devices", stack("cpu[12x1000MB]", extra=("--use", "all"), apart=12)),
                ("ours, one device", stack("cpu"))]
        if args.tensorflow:
            rows += [(f"TensorFlow, {n} devices", lambda n=n: peer(args.tensorflow, "stack", n, 10, 100, 10, "tensorflow"))
                     for n in (12, 1)]
        if args.torch:
            rows.append(("torch", lambda: peer(args.torch, "stack", 1, 10, 100, 10, "eager")))
        table("seed_stack, 100 samples, batch 10", rows, args.rounds)
    if "pyramid" in args.what:
        with open("/tmp/pyramid.json", "w") as file:
            json.dump(PYRAMID, file)
        rows = []
        for n in (1, 2, 4):
            batch = 256 * n
            extra = ("--replicas", str(n)) if n > 1 else ()
            data = f"random:records={2 * batch},seed=1"
            rows.append((f"ours, {n} x 256", lambda n=n, b=batch, e=extra, d=data:
                         ours(args.partition, "/tmp/pyramid.json", f"cpu[{n}x4GB]" if n > 1 else "cpu", b, 3, "mse", d, e)))
            if args.tensorflow:
                rows.append((f"Keras, {n} x 256", lambda n=n, b=batch:
                             peer(args.tensorflow, "pyramid", n, b, 2 * b, 3, "tensorflow")))
        table("pyramid_8000, two batches of 256 for each device in an epoch", rows, args.rounds)


if __name__ == "__main__":
    main()
