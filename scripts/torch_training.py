#!/usr/bin/env python3
"""torch_training.py FOLDER: a module whose training differs from that of its nodes alone, and what PyTorch makes of it.

Writes trained.pt2 and trained.npz: the batches x and y, and of each parameter and buffer what it is after three steps. The
module has a normalisation that is called twice and remembers by a momentum of its own, a table and a constant that are
no parameters, a parameter that is frozen, and a part through which no gradient flows. tests/suite/torch.rs compares.
"""
import sys

import numpy
import torch

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


def main(folder):
    torch.manual_seed(3)
    module = Trained()
    x, y = torch.randn(BATCH * STEPS, 3), torch.randn(BATCH * STEPS, 2)
    program = torch.export.export(module.eval(), (x[:BATCH],))
    torch.export.save(program, f"{folder}/trained.pt2")
    module.train()
    optimizer = torch.optim.SGD((one for one in module.parameters() if one.requires_grad), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(module(x[rows]), y[rows]).backward()
        optimizer.step()
    after = {f"after.{name}": value.numpy() for name, value in module.state_dict().items() if value.is_floating_point()}
    numpy.savez(f"{folder}/trained.npz", x=x.numpy(), y=y.numpy(), **after)


main(sys.argv[1])
