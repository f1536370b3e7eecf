#!/usr/bin/env python3
"""torch_state.py FOLDER: a module whose `state_dict` is not what its program reads, trained by PyTorch.

A table is tied to the head under another name, a parameter and a counter are read by nothing, one buffer is not persistent
and one array is a constant. Writes state.pt2 and state.npz: the records x and t, and as after.NAME the `state_dict` after four
steps. tests/suite/tied.rs trains the same and compares names and values.
"""
import pathlib
import sys

import numpy
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


def main(folder):
    torch.manual_seed(7)
    net = Net()
    words, targets = torch.randint(WORDS, (BATCH * STEPS,)), torch.randint(WORDS, (BATCH * STEPS,))
    save_plain(torch.export.export(net.eval(), (words[:BATCH],)), folder / "state.pt2")
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, t in zip(words.split(BATCH), targets.split(BATCH)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), t).backward()
        optimizer.step()
    after = {f"after.{name}": array.numpy() for name, array in net.state_dict().items()}
    numpy.savez(folder / "state.npz", x=words.numpy(), t=targets.numpy(), **after)


main(pathlib.Path(sys.argv[1]))
