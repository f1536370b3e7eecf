#!/usr/bin/env python3
"""torch_state.py FOLDER: a module whose `state_dict` is not what its program reads, trained by PyTorch.

A table is tied to the head under another name, a parameter and a counter are read by nothing, one buffer is not persistent
and one array is a constant. Writes state.pt2 and state.npz: the records x and t, and as after.NAME the `state_dict` after four
steps. Writes waves.pt2 and waves.npz of a module with complex numbers in the same way. Writes fresh_traced.onnx, fresh_exported.onnx
and fresh.npz of a module whose parameters begin equal, which the exporters write once; the BatchNorm's statistics are among them. Writes shiftless.onnx of a layer whose shift begins with 0.
tests/suite/tied.rs trains the same and compares names and values.
"""
import copy
import pathlib
import sys

import numpy
import onnx
import torch

from torch_export import save_plain

BATCH, STEPS, WORDS, WIDTH = 6, 4, 11, 8
nn = torch.nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.middle, self.norm = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        self.head.weight = self.table.weight
        self.unread = nn.Parameter(torch.arange(3.0))
        self.register_buffer("kept", torch.full((WIDTH,), 0.5))
        self.register_buffer("fleeting", torch.full((WIDTH,), 1.5), persistent=False)

    def forward(self, x):
        hidden = self.middle(self.table(x)) * self.kept + self.fleeting
        return self.head(self.norm(torch.tanh(hidden)) * torch.linspace(0.5, 1, WIDTH).round(decimals=2))


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.randn(3, WIDTH // 2 + 1, dtype=torch.cfloat))
        self.unread = nn.Parameter(torch.randn(2, dtype=torch.cfloat))
        self.register_buffer("shift", torch.randn(WIDTH // 2 + 1, dtype=torch.cfloat))
        self.register_buffer("wide", torch.randn(2, 2, dtype=torch.cdouble))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x) * self.factor + self.shift, n=WIDTH)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.Norm, self.inner, self.scale = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(WIDTH))
        nn.init.constant_(self.inner.bias, 0.25)

    def forward(self, x):
        return x + self.scale * torch.tanh(self.inner(self.Norm(x)))


class Fresh(nn.Module):
    def __init__(self):
        super().__init__()
        one = Block()
        self.blocks = nn.Sequential(one, copy.deepcopy(one))
        self.tied = nn.Linear(WIDTH, WIDTH)
        self.again, self.norm, self.head = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 3)
        self.again.weight = self.tied.weight

    def forward(self, x):
        return self.head(self.norm(self.again(torch.relu(self.tied(self.blocks(x))))))


def export_fresh(folder, net, x):
    how = {"input_names": ["x"], "output_names": ["y"]}
    torch.onnx.export(net.eval(), (x,), folder / "fresh_traced.onnx", dynamo=False, **how)
    torch.onnx.export(net.eval(), (x,), folder / "fresh_exported.onnx", dynamo=True, external_data=False, **how)
    layer = nn.Sequential(nn.Linear(WIDTH, 3))
    nn.init.zeros_(layer[0].bias)
    torch.onnx.export(layer, (x,), folder / "shiftless.onnx", dynamo=True, external_data=False, **how)
    for file in folder.glob("*.onnx"):
        model = onnx.load(file)
        for node in model.graph.node:
            for entry in [entry for entry in node.metadata_props if entry.key.endswith("stack_trace")]:
                node.metadata_props.remove(entry)
        onnx.save(model, file)


def store(folder, name, net, records, loss):
    x, t = records
    save_plain(torch.export.export(net.eval(), (x[:BATCH],)), folder / f"{name}.pt2")
    train(folder / f"{name}.npz", net, records, loss)


def train(file, net, records, loss):
    x, t = records
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for one, other in zip(x.split(BATCH), t.split(BATCH)):
        optimizer.zero_grad()
        loss(net(one), other).backward()
        optimizer.step()
    after = {f"after.{name}": array.numpy() for name, array in net.state_dict().items()}
    numpy.savez(file, x=x.numpy(), t=t.numpy(), **after)


def main(folder):
    torch.manual_seed(7)
    net, words = Net(), [torch.randint(WORDS, (BATCH * STEPS,)) for _ in range(2)]
    store(folder, "state", net, words, nn.functional.cross_entropy)
    rows = [torch.randn(BATCH * STEPS, 3, WIDTH) for _ in range(2)]
    store(folder, "waves", Waves(), rows, nn.functional.mse_loss)
    net, records = Fresh(), [torch.randn(BATCH * STEPS, WIDTH), torch.randn(BATCH * STEPS, 3)]
    export_fresh(folder, net, records[0][:BATCH])
    train(folder / "fresh.npz", net, records, nn.functional.mse_loss)


main(pathlib.Path(sys.argv[1]))
