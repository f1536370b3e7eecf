#!/usr/bin/env python3
"""torch_axes.py FOLDER: networks whose classes are along axis 1, trained by PyTorch.

Writes NAME.pt2, NAME.onnx and NAME.npz: the records x and t, the accuracy before training, the mean loss over four steps,
and of each parameter what it is after them. "planes" ends with logits `[B,C,H,W]`, some of whose targets are ignored; "steps" with `log_softmax(dim=1)`
of `[B,C,T]`, and "moved"
with the same, turned to `[B,T,C]`; "shares" with `softmax(dim=1)` and targets that are shares of the classes, "divergence" likewise.
tests/suite/class_axis.rs trains the same networks and compares.
"""
import pathlib
import sys

import numpy
import onnx
import torch

from torch_export import save_plain

BATCH, STEPS, CLASSES, IGNORED = 6, 4, 4, -100
nn, functional = torch.nn, torch.nn.functional


class Net(nn.Module):
    def __init__(self, conv, end):
        super().__init__()
        self.first, self.last = conv(2, 5, 3, padding=1), conv(5, CLASSES, 1)
        self.end = end

    def forward(self, x):
        return self.end(self.last(torch.tanh(self.first(x))))


class Moved(nn.Module):
    def forward(self, x):
        return x.log_softmax(1).movedim(1, -1)


def class_numbers(sizes, share_ignored):
    drawn = torch.randint(CLASSES, sizes)
    return torch.where(torch.rand(sizes) < share_ignored, IGNORED, drawn)


def shares(sizes):
    return (torch.randn(sizes[0], CLASSES, *sizes[1:])).softmax(1)


def of_shares(y, t):
    return functional.cross_entropy(y.log(), t)


def divergence(y, t):
    """The mean over the places, not over the classes too."""
    return functional.kl_div(y, t, reduction="sum") / (t.numel() / CLASSES)


def ignoring(y, t):
    return functional.cross_entropy(y, t, ignore_index=IGNORED)


def save(net, x, path):
    rows = {0: torch.export.Dim("rows", min=2)}
    save_plain(torch.export.export(net.eval(), (x,), dynamic_shapes={"x": rows}), f"{path}.pt2")
    model = torch.onnx.export(net, (x,), dynamo=True, dynamic_shapes={"x": rows}, verbose=False).model_proto
    # Where the exporter's own files lie is in there.
    for part in [model.graph, *model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output]:
        part.ClearField("metadata_props")
    onnx.save(model, f"{path}.onnx")


def accuracy(y, t):
    """Of class numbers, before any training, with the classes along the axis that the targets lack."""
    if t.dtype != torch.int64:
        return torch.tensor(0.0)
    counts, axis = t != IGNORED, 1 if y.shape[-1] == t.shape[-1] else -1
    return (y.argmax(axis)[counts] == t[counts]).double().mean()


def store(path, net, x, t, loss_of):
    save(net, x[:BATCH], path)
    right = accuracy(net(x), t).numpy()
    optimizer = torch.optim.SGD(net.train().parameters(), lr=0.1, momentum=0.9)
    losses, weights = [], []
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        loss = loss_of(net(x[rows]), t[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        weights.append(float((t[rows] != IGNORED).sum()))
    after = {f"after.{name}": value.numpy() for name, value in net.state_dict().items()}
    loss = numpy.average(losses, weights=weights)
    numpy.savez(f"{path}.npz", x=x.numpy(), t=t.numpy(), loss=numpy.float64(loss), accuracy=right, **after)


def main(folder):
    torch.manual_seed(5)
    count = BATCH * STEPS
    planes, steps = (count, 3, 5), (count, 7)
    images, sequences = torch.randn(count, 2, 3, 5), torch.randn(count, 2, 7)
    store(folder / "planes", Net(nn.Conv2d, nn.Identity()), images, class_numbers(planes, 0.3), ignoring)
    store(folder / "steps", Net(nn.Conv1d, nn.LogSoftmax(1)), sequences, class_numbers(steps, 0), functional.nll_loss)
    numbers = class_numbers(steps, 0)
    store(folder / "moved", Net(nn.Conv1d, Moved()), sequences, numbers, lambda y, t: functional.nll_loss(y.movedim(-1, 1), t))
    store(folder / "shares", Net(nn.Conv1d, nn.Softmax(1)), sequences, shares(steps), of_shares)
    store(folder / "divergence", Net(nn.Conv2d, nn.LogSoftmax(1)), images, shares(planes), divergence)


main(pathlib.Path(sys.argv[1]))
