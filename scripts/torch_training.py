#!/usr/bin/env python3
"""torch_training.py FOLDER: modules whose training differs from that of their nodes alone, and what PyTorch makes of them.

Writes NAME.pt2 and NAME.npz: the batches x and y, and of each parameter and buffer what it is after three steps.
`trained` has a normalisation that is called twice and remembers by a momentum of its own, a table and a constant that are
no parameters, a parameter that is frozen, and a part through which no gradient flows. `moved` writes over its buffers:
means that follow, a centre that is used as it is then, numbers of calls; `moved.core` is the same after decompositions.
tests/suite/torch.rs compares.
"""
import sys

import numpy
import torch

from torch_export import save_plain

BATCH, STEPS = 4, 3


class Trained(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 5)
        self.norm = torch.nn.BatchNorm1d(5, momentum=0.3)
        self.scale = torch.nn.Parameter(torch.tensor([0.5, 1.5, 1.0, 2.0, 0.25]), requires_grad=False)
        self.register_buffer("table", torch.linspace(-1, 1, 5))
        self.constant = torch.tensor([1.0, 0.5, 2.0, 1.0, 1.5])
        self.last = torch.nn.Linear(5, 2)

    def forward(self, x):
        once = self.norm(self.first(x))
        twice = self.norm(self.first(x * 0.5 + 0.1))
        with torch.no_grad():
            seen = torch.sigmoid(self.first(x))
        return self.last((once + twice * self.scale) * self.table + seen * self.constant)


class Moved(torch.nn.Module):
    """Running statistics that are written by hand."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(3, 5), torch.nn.Linear(5, 2)
        self.register_buffer("mean", torch.linspace(-0.5, 0.5, 5))
        self.register_buffer("square", torch.ones(5))
        self.register_buffer("center", torch.zeros(2, 5))
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("share", torch.tensor(0.5))

    def forward(self, x):
        hidden = self.first(x)
        with torch.no_grad():
            self.calls.add_(1)
            self.share.mul_(0.75)
            self.mean.copy_(0.9 * self.mean + 0.1 * hidden.mean(0))
            self.square.lerp_(hidden.square().mean(0), 0.2)
            self.center[1] = self.center[0] * 0.5 + self.mean
            self.center[0].copy_(hidden[0])
        hidden = (hidden - self.mean) * torch.rsqrt(self.square + 1e-3)
        return self.last(torch.tanh(hidden) + self.center[1] * self.share / self.calls)


def main(folder):
    store(folder, "trained", Trained(), lambda program: program)
    store(folder, "moved", Moved(), lambda program: program)
    store(folder, "moved.core", Moved(), lambda program: program.run_decompositions())


def store(folder, name, module, form):
    torch.manual_seed(3)
    for layer in module.children():
        layer.reset_parameters()
    x, y = torch.randn(BATCH * STEPS, 3), torch.randn(BATCH * STEPS, 2)
    rows = torch.export.Dim("rows", min=2)
    program = form(torch.export.export(module.eval(), (x[:BATCH],), dynamic_shapes={"x": {0: rows}}))
    save_plain(program, f"{folder}/{name}.pt2")
    module.train()
    optimizer = torch.optim.SGD((one for one in module.parameters() if one.requires_grad), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(module(x[rows]), y[rows]).backward()
        optimizer.step()
    after = {f"after.{name}": value.numpy() for name, value in module.state_dict().items() if "num_batches" not in name}
    numpy.savez(f"{folder}/{name}.npz", x=x.numpy(), y=y.numpy(), **after)


main(sys.argv[1])
