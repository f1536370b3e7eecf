#!/usr/bin/env python3
"""onnx_training.py FOLDER: networks that torch exported as they train, and what torch makes of them in four steps.

Writes norms.17.onnx (batch norms with training_mode and three outputs) and norms.13.onnx (five outputs, which say so), and
norms.npz: batches x and y; for `whole` batches, for two `replicas` that each have half of the batch and whose statistics
are averaged, and for two `microbatches` one after the other the losses, and of each parameter and buffer what it is
afterwards; of whole batches also the loss of the first in evaluation before (`frozen`) and of all in evaluation afterwards, and `run.13` and `run.17`,
what onnxruntime gives of the files and that batch. drops.onnx has a dropout in
training mode, and drops.npz what onnxruntime makes of it in inference. tests/suite/onnx_training.rs compares.
"""
import copy
import sys
import warnings

import numpy
import onnx
import onnxruntime
import torch

warnings.filterwarnings("ignore")
BATCH, STEPS = 8, 4


class Norms(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(2, 1, 3, padding=1)
        self.lone = torch.nn.BatchNorm2d(1, momentum=0.3)
        self.second = torch.nn.Conv2d(1, 4, 3, bias=False)
        self.norm = torch.nn.BatchNorm2d(4, eps=1e-3)
        self.kept = torch.nn.Dropout(0.0)
        self.last = torch.nn.Linear(16, 3)
        self.ends = torch.nn.BatchNorm1d(3, momentum=0.5)

    def forward(self, x):
        x = torch.relu(self.lone(self.first(x)))
        x = torch.tanh(self.norm(self.second(x)))
        return self.ends(self.last(self.kept(x.flatten(1))))


class Drops(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = torch.nn.Linear(6, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 2)

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.first(x))))


def export(module, x, path, opset):
    mode = torch.onnx.TrainingMode.TRAINING
    torch.onnx.export(
        module.train(), (x,), path, dynamo=False, opset_version=opset, training=mode, do_constant_folding=False,
        input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
    )


def statistics(module):
    return {name: value for name, value in module.state_dict().items() if "running" in name}


def losses_of(module, x, y, parts, are_replicas):
    """Gradients of a step; each part of a batch is normalised by its own means."""
    begun, ends, total = {name: value.clone() for name, value in statistics(module).items()}, [], 0.0
    for part, target in zip(x.chunk(parts), y.chunk(parts)):
        if are_replicas:
            module.load_state_dict(begun, strict=False)
        loss = torch.nn.functional.mse_loss(module(part), target) / parts
        loss.backward()
        total += loss.item()
        ends.append({name: value.clone() for name, value in statistics(module).items()})
    if are_replicas:
        module.load_state_dict({name: sum(end[name] for end in ends) / parts for name in begun}, strict=False)
    return total


def trained(folder, name, parts, are_replicas):
    torch.manual_seed(4)
    x, y = torch.randn(BATCH * STEPS, 2, 4, 4), torch.randn(BATCH * STEPS, 3)
    for opset in (13, 17) if parts == 1 else ():
        torch.manual_seed(5)
        export(Norms(), x[:BATCH], f"{folder}/norms.{opset}.onnx", opset)
    # Statistics followed the batch that the exporter ran.
    module = Norms().train()
    stored = onnx.load(f"{folder}/norms.17.onnx").graph.initializer
    stored = {array.name: torch.tensor(onnx.numpy_helper.to_array(array)) for array in stored}
    module.load_state_dict(stored, strict=False)
    frozen = torch.nn.functional.mse_loss(copy.deepcopy(module).eval()(x[:BATCH]), y[:BATCH])
    optimizer, losses = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), []
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        optimizer.zero_grad()
        losses.append(losses_of(module, x[rows], y[rows], parts, are_replicas))
        optimizer.step()
    state = {key: value.numpy() for key, value in module.state_dict().items() if "num_batches" not in key}
    arrays = {f"{name}.{key}": value for key, value in state.items()} | {f"{name}.losses": numpy.array(losses)}
    if parts == 1:
        loss = torch.nn.functional.mse_loss(module.eval()(x), y)
        arrays |= {"x": x.numpy(), "y": y.numpy(), "evaluated": loss.detach().numpy()}
        arrays |= {"frozen": frozen.detach().numpy()}
    return arrays


def ran(model, x):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options).run(["y"], {"x": x})[0]


def main(folder):
    arrays = trained(folder, "whole", 1, False)
    arrays |= {f"run.{opset}": ran(f"{folder}/norms.{opset}.onnx", arrays["x"][:BATCH]) for opset in (13, 17)}
    arrays |= trained(folder, "replicas", 2, True) | trained(folder, "microbatches", 2, False)
    numpy.savez(f"{folder}/norms.npz", **arrays)
    torch.manual_seed(6)
    module, x = Drops(), torch.randn(5, 6)
    export(module, x, f"{folder}/drops.onnx", 17)
    evaluated = onnx.load(f"{folder}/drops.onnx")
    drop = next(node for node in evaluated.graph.node if node.op_type == "Dropout")
    del drop.input[2:]
    numpy.savez(f"{folder}/drops.npz", x=x.numpy(), y=ran(evaluated.SerializeToString(), x.numpy()))


main(sys.argv[1])
