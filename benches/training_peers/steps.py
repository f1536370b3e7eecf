#!/usr/bin/env python3
"""A training step of a 4-layer GPT-2, ResNet-50 and a small ViT: `partition train` against torch, eager and compiled.

    python3 benches/training_peers/steps.py --partition target/release/partition --torch VENV/bin/python \
        [--rounds 3] [--steps 8] [--threads 2] [--resnet resnet50.k3.json] [gpt2] [resnet50] [vit] > table.md

gpt2: width 768, 12 heads, 50257 tokens, batch 4 of 128; cross-entropy of random next tokens, embeddings tied.
resnet50: the Keras application (stride in the first convolution of a block, biases), batch norm as in training,
batch 8 of 224 x 224, 1000 classes. vit: width 384, 6 heads, 12 layers, patches of 16 x 16 in 224 x 224, a class
token, batch 8, 1000 classes. All in f32 with plain SGD. The networks of torch are written here from its layers.
Programs run in turns; each figure is the median over the rounds of the median step, the first two steps of a
program left out. Nothing else should run meanwhile.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

LR = {"gpt2": 0.01, "resnet50": 0.01, "vit": 0.01}
BATCH = {"gpt2": 4, "resnet50": 8, "vit": 8}
CLASSES, VOCABULARY, SEQUENCE = 1000, 50257, 128

TORCH = r'''
import json, sys, time
import torch
from torch import nn
from torch.nn import functional as F
what, side, batch, steps, threads, rate = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]), float(sys.argv[6])
torch.set_num_threads(threads)
torch.manual_seed(0)

class Block(nn.Module):
    def __init__(self, width, heads, causal, activation):
        super().__init__()
        self.heads, self.causal, self.activation = heads, causal, activation
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    def forward(self, x):
        b, s, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, w))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate=self.activation))

class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, 768), nn.Embedding(1024, 768)
        self.blocks = nn.Sequential(*[Block(768, 12, True, "tanh") for _ in range(4)])
        self.norm = nn.LayerNorm(768)
        for name, p in self.named_parameters():
            if p.dim() > 1: nn.init.normal_(p, 0, 0.02)
    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight[:ids.shape[1]]
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight).flatten(0, 1)

class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.head = nn.Conv2d(3, 384, 16, 16), nn.Linear(384, CLASSES)
        self.token, self.places = nn.Parameter(torch.zeros(1, 1, 384)), nn.Parameter(torch.empty(1, 197, 384).normal_(0, 0.02))
        self.blocks = nn.Sequential(*[Block(384, 6, False, "none") for _ in range(12)])
        self.norm = nn.LayerNorm(384)
        for name, p in self.named_parameters():
            if p.dim() == 2: nn.init.normal_(p, 0, 0.02)
    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])

class Residual(nn.Module):
    def __init__(self, inner, width, stride, first):
        super().__init__()
        norm = lambda c: nn.BatchNorm2d(c, 1.001e-5, 0.01)
        self.main = nn.Sequential(
            nn.Conv2d(inner, width, 1, stride), norm(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1), norm(width), nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1), norm(4 * width))
        self.side = nn.Sequential(nn.Conv2d(inner, 4 * width, 1, stride), norm(4 * width)) if first else nn.Identity()
    def forward(self, x):
        return F.relu(self.side(x) + self.main(x))

class ResNet50(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64, 1.001e-5, 0.01), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        inner = 64
        for width, blocks, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
            for at in range(blocks):
                layers.append(Residual(inner, width, stride if at == 0 else 1, at == 0))
                inner = 4 * width
        self.body, self.head = nn.Sequential(*layers), nn.Linear(2048, CLASSES)
    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))

if what == "gpt2":
    x, y = (torch.randint(0, VOCABULARY, (batch, SEQUENCE)) for _ in range(2))
    y = y.flatten()
else:
    x, y = torch.rand(batch, 3, 224, 224), torch.randint(0, CLASSES, (batch,))
model = {"gpt2": Gpt2, "vit": Vit, "resnet50": ResNet50}[what]()
optimizer = torch.optim.SGD(model.parameters(), rate)
loss_of = lambda x, y: F.cross_entropy(model(x), y)
if side == "compile":
    loss_of = torch.compile(loss_of)
def step():
    optimizer.zero_grad()
    loss = loss_of(x, y)
    loss.backward()
    optimizer.step()
    return float(loss.detach())
if side == "flops":
    from torch.utils.flop_counter import FlopCounterMode
    with FlopCounterMode(display=False) as counter: step()
    print("RESULT", json.dumps([counter.get_total_flops(), sum(p.numel() for p in model.parameters())]))
    sys.exit()
times, losses = [], []
for _ in range(steps):
    t = time.perf_counter()
    losses.append(step())
    times.append(time.perf_counter() - t)
print("RESULT", json.dumps([times, losses]))
'''


class Vit:
    """The ViT as model.json."""

    def __init__(self, width=384, heads=6, layers=12, patch=16, size=224):
        self.params, self.nodes = [], []
        patches = (size // patch) ** 2
        normal = {"kind": "normal", "deviation": 0.02}
        self.param("patch.weight", [width, 3, patch, patch], "lecun_uniform")
        self.param("patch.bias", [width], "zeros")
        self.param("token", [1, 1, width], "zeros")
        self.param("places", [1, patches + 1, width], normal)
        x = self.node("patch", "conv", ["x", "patch.weight", "patch.bias"], strides=[patch, patch])
        x = self.node("patches", "reshape", [x], shape=["batch", width, patches])
        x = self.node("lines", "transpose", [x], perm=[0, 2, 1])
        token = self.node("tokens", "broadcast", ["token"], shape=["batch", 1, width])
        x = self.node("all", "concat", [token, x], axis=1)
        x = self.node("placed", "add", [x, "places"])
        for layer in range(layers):
            x = self.block(f"h{layer}", x, width, heads, patches + 1)
        x = self.norm("norm", x, width)
        x = self.node("first", "slice", [x], starts=[0, 0, 0], sizes=["batch", 1, width])
        x = self.node("class", "reshape", [x], shape=["batch", width])
        self.output = self.linear("head", x, width, CLASSES)

    def param(self, name, dims, init):
        self.params.append({"name": name, "type": f"f32{dims}", "init": init})

    def node(self, node, op, inputs, **attributes):
        self.nodes.append({"name": node, "op": op, "inputs": inputs, **attributes})
        return node

    def linear(self, name, x, inner, outer, **more):
        self.param(f"{name}.weight", [inner, outer], {"kind": "normal", "deviation": 0.02})
        self.param(f"{name}.bias", [outer], "zeros")
        return self.node(name, "dense", [x, f"{name}.weight", f"{name}.bias"], **more)

    def norm(self, name, x, width):
        self.param(f"{name}.weight", [width], "ones")
        self.param(f"{name}.bias", [width], "zeros")
        return self.node(name, "layer_norm", [x, f"{name}.weight", f"{name}.bias"], epsilon=1e-5)

    def block(self, h, x, width, heads, length):
        y = self.linear(f"{h}.qkv", self.norm(f"{h}.norm1", x, width), width, 3 * width)
        parts = []
        for at, part in enumerate("qkv"):
            y_ = self.node(f"{h}.{part}", "slice", [y], starts=[0, 0, at * width], sizes=["batch", length, width])
            y_ = self.node(f"{h}.{part}s", "reshape", [y_], shape=["batch", length, heads, width // heads])
            parts.append(self.node(f"{h}.{part}t", "transpose", [y_], perm=[0, 2, 1, 3]))
        q, k, v = parts
        scale = {"name": f"{h}.scale", "type": "f32[]", "values": (width // heads) ** -0.5}
        self.constants = [*getattr(self, "constants", []), scale]
        y = self.node(f"{h}.products", "matmul", [q, k], transpose_right=True)
        y = self.node(f"{h}.scores", "mul", [y, f"{h}.scale"])
        y = self.node(f"{h}.weights", "softmax", [y], axis=-1)
        y = self.node(f"{h}.mixed", "matmul", [y, v])
        y = self.node(f"{h}.back", "transpose", [y], perm=[0, 2, 1, 3])
        y = self.node(f"{h}.merged", "reshape", [y], shape=["batch", length, width])
        x = self.node(f"{h}.attended", "add", [x, self.linear(f"{h}.out", y, width, width)])
        y = self.norm(f"{h}.norm2", x, width)
        y = self.linear(f"{h}.up", y, width, 4 * width, activation="gelu")
        return self.node(f"{h}.made", "add", [x, self.linear(f"{h}.down", y, 4 * width, width)])

    def document(self):
        return {"partition_model": 1, "name": "vit", "dims": ["batch"],
                "inputs": [{"name": "x", "type": "f32[batch, 3, 224, 224]"}], "params": self.params,
                "constants": self.constants, "nodes": self.nodes, "outputs": [self.output]}


GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": VOCABULARY, "n_positions": 1024,
        "n_embd": 768, "n_layer": 4, "n_head": 12}


def torch(python, what, side, args):
    constants = f"VOCABULARY, SEQUENCE, CLASSES = {VOCABULARY}, {SEQUENCE}, {CLASSES}\n"
    steps = args.steps + 2
    command = [python, "-c", constants + TORCH, what, side, *map(str, (BATCH[what], steps, args.threads, LR[what]))]
    done = subprocess.run(command, capture_output=True, text=True)
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT")), None)
    if line is None:
        sys.exit(f"{side} failed:\n{done.stderr[-2000:]}")
    return json.loads(line[7:])


def ours(what, args, folder):
    models = {"gpt2": GPT2, "vit": Vit().document()}
    model = args.resnet
    if what in models:
        model = os.path.join(folder, f"{what}.json")
        with open(model, "w") as file:
            json.dump(models[what], file)
    data = {"gpt2": f"below.input_ids={VOCABULARY},below.target={VOCABULARY}"}.get(what, f"below.target={CLASSES}")
    history = os.path.join(folder, "history.json")
    # The Keras model ends in a softmax; what follows it is the loss of probabilities.
    loss = "sparse" if what == "resnet50" else "sparse:logits"
    command = [args.partition, "train", model, "-d", f"cpu:cores={args.threads}", "--batch", str(BATCH[what]),
               "--data", f"random:records={BATCH[what]},seed=1,{data}", "--loss", loss, "--lr", str(LR[what]),
               "--epochs", str(args.steps + 2), "--in-order", "--history", history]
    command += ["--dim", f"sequence={SEQUENCE}"] if what == "gpt2" else []
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    with open(history) as file:
        epochs = json.load(file)
    epochs = epochs.get("epochs", epochs) if isinstance(epochs, dict) else epochs
    return [[float(epoch["seconds"]) for epoch in epochs], [float(epoch["loss"]) for epoch in epochs]]


def table(what, args, folder):
    rows = [("ours", lambda: ours(what, args, folder))]
    rows += [(f"torch {side}", lambda side=side: torch(args.torch, what, side, args)) for side in args.sides]
    results = {name: [] for name, _ in rows}
    for _ in range(args.rounds):
        for name, run in rows:
            results[name].append(run())
    seconds = {name: statistics.median(statistics.median(times[2:]) for times, _ in found) for name, found in results.items()}
    flops, params = torch(args.torch, what, "flops", args)
    print(f"\n{what}, batch {BATCH[what]}, {args.threads} threads, {flops / 1e9:.0f} GFLOP, {params:,} parameters\n")
    print("| | ms for a step | GFLOP/s | torch's time / ours | loss, first and last step |\n|---|---:|---:|---:|---|")
    for name, found in results.items():
        losses = found[0][1]
        ratio = "" if name == "ours" else f"{seconds[name] / seconds['ours']:.2f}"
        print(f"| {name} | {1e3 * seconds[name]:.0f} | {flops / seconds[name] / 1e9:.0f} | {ratio} "
              f"| {losses[0]:.3f}, {losses[-1]:.3f} |")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--partition", required=True)
    parser.add_argument("--torch", required=True)
    parser.add_argument("--resnet", default="../shared/corpus/keras/resnet50.k3.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sides", nargs="*", choices=["eager", "compile"], default=["eager", "compile"])
    parser.add_argument("what", nargs="*", default=["gpt2", "resnet50", "vit"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for what in args.what or ["gpt2", "resnet50", "vit"]:
            table(what, args, folder)


if __name__ == "__main__":
    main()
