#!/usr/bin/env python3
"""torch_steps.py FOLDER: training steps in which the parts of a batch are not alike, made by PyTorch.

tests/suite/parts.rs trains the same networks and compares. "ignored": targets of class -100 are left out of the mean,
once with all targets of half a batch. "statistics": gradients of two microbatches are accumulated, through a batch norm.
"""
import json
import pathlib
import sys

import torch

from torch_export import save_plain

IGNORED = -100


def numbers(count, seed):
    """Fractions that the test makes in the same way."""
    return torch.tensor([((at * 37 + seed * 11) % 29 - 14) / 16 for at in range(count)], dtype=torch.float32)


def classes(count, seed):
    """Class numbers, every third of them ignored."""
    drawn = [(at * 7 + seed * 5) % 6 for at in range(count)]
    return torch.tensor([IGNORED if (at + seed) % 3 == 0 else drawn[at] for at in range(count)])


class Net(torch.nn.Module):
    def __init__(self, sizes, middle):
        super().__init__()
        self.first = torch.nn.Linear(sizes[0], sizes[1], bias=False)
        self.middle = middle
        self.second = torch.nn.Linear(sizes[1], sizes[2], bias=False)
        with torch.no_grad():
            for seed, layer in enumerate([self.first, self.second]):
                layer.weight.copy_(numbers(layer.weight.numel(), seed).reshape(layer.weight.shape))

    def forward(self, x):
        return self.second(self.middle(self.first(x)))


def saved(net, x, path):
    """The network before its training, with an open batch."""
    program = torch.export.export(net.eval(), (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    save_plain(program, path)
    return net.train()


def result(losses, net):
    arrays = {name: array.flatten().tolist() for name, array in net.state_dict().items() if "num_" not in name}
    return {"losses": losses, "arrays": arrays}


def ignored(folder):
    net = saved(Net((3, 5, 6), torch.nn.Tanh()), numbers(72, 0).reshape(6, 4, 3), folder / "ignored.pt2")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(4):
        x, t = numbers(72, step).reshape(6, 4, 3), classes(24, step)
        if step == 2:
            t[:12] = IGNORED
        loss = torch.nn.functional.cross_entropy(net(x).reshape(-1, 6), t, ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return result(losses, net)


def statistics(folder):
    norm = torch.nn.BatchNorm1d(4, eps=1e-3, momentum=0.25)
    net = saved(Net((3, 4, 2), norm), numbers(24, 0).reshape(8, 3), folder / "statistics.pt2")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        x, t = numbers(24, step).reshape(8, 3), numbers(16, step + 1).reshape(8, 2)
        optimizer.zero_grad()
        total = 0.0
        for part in (slice(0, 4), slice(4, 8)):
            loss = torch.nn.functional.mse_loss(net(x[part]), t[part]) / 2
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return result(losses, net)


def main(folder):
    made = {"ignored": ignored(folder), "statistics": statistics(folder)}
    (folder / "steps.json").write_text(json.dumps(made))


main(pathlib.Path(sys.argv[1]))
