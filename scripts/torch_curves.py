#!/usr/bin/env python3
"""torch_curves.py OUT.json: loss curves of two small networks over 100 steps, trained by PyTorch.

tests/suite/curves.rs trains the same networks with the same numbers and compares. All numbers come from
one linear congruential generator, in the order in which they are used here and there.
"""
import json
import sys

import torch

torch.set_default_dtype(torch.float32)
MASK = (1 << 64) - 1


class Stream:
    def __init__(self, seed):
        self.state = seed

    def draw(self, *dims, scale=1.0):
        count = 1
        for dim in dims:
            count *= dim
        values = []
        for _ in range(count):
            self.state = (self.state * 6364136223846793005 + 1442695040888963407) & MASK
            values.append(((self.state >> 40) / (1 << 24) - 0.5) * scale)
        return torch.tensor(values, dtype=torch.float64).float().reshape(dims)

    def integers(self, below, *dims):
        return ((self.draw(*dims) + 0.5) * below).long()


def weights(stream, shapes):
    return [stream.draw(*shape, scale=0.5).requires_grad_() for shape in shapes]


def digits(stream):
    """A perceptron on pictures of 8 x 8, as digits are learned."""
    params = weights(stream, [(64, 32), (32,), (32, 10), (10,)])

    def loss(step):
        x, t = stream.draw(16, 64, scale=2.0), stream.integers(10, 16)
        h = torch.relu(x @ params[0] + params[1])
        return torch.nn.functional.cross_entropy(h @ params[2] + params[3], t)

    return params, loss, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)


def transformer(stream):
    """One block: tokens embedded, attention, a residual, a layer norm, logits of the tokens."""
    d, vocabulary = 8, 12
    params = weights(stream, [(vocabulary, d), (d, d), (d, d), (d, d), (d,), (d,), (d, vocabulary)])

    def loss(step):
        x = stream.integers(vocabulary, 4, 6)
        t = stream.integers(vocabulary, 4, 6)
        e = params[0][x]
        q, k, v = e @ params[1], e @ params[2], e @ params[3]
        a = torch.softmax(q @ k.transpose(1, 2) * d ** -0.5, -1) @ v
        h = torch.nn.functional.layer_norm(e + a, (d,), params[4], params[5], 1e-5)
        y = h @ params[6]
        return torch.nn.functional.cross_entropy(y.reshape(-1, vocabulary), t.reshape(-1))

    return params, loss, lambda p: torch.optim.Adam(p, lr=0.01)


def main(path):
    curves = {}
    for name, make in [("digits", digits), ("transformer", transformer)]:
        params, loss, optimizer = make(Stream(7))
        optimizer = optimizer(params)
        curve = []
        for step in range(100):
            optimizer.zero_grad()
            value = loss(step)
            value.backward()
            optimizer.step()
            curve.append(value.item())
        curves[name] = curve
    with open(path, "w") as out:
        json.dump(curves, out)
        out.write("\n")


main(sys.argv[1])
