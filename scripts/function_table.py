#!/usr/bin/env python3
"""Writes tests/functions/f64.txt: elementary functions at some hundred points, by mpmath with 60 digits and more.

A line is the function's name and the bits of x, of its value as an f64, and of what the f64 leaves of it. Needs mpmath.
"""
import random
import struct
from pathlib import Path

from mpmath import erf, erfc, exp, expm1, cosh, log1p, mp, mpf, pi, sinh, sqrt, tan, tanh

mp.dps = 400  # what cancels, as in 1 + tanh, leaves 60 digits
LINE = 2 * sqrt(2 / pi)
FUNCTIONS = {
    "exp": (exp, -746, 710),
    "expm1": (expm1, -40, 710),
    "tan": (tan, -30, 30),
    "sinh": (sinh, -711, 711),
    "cosh": (cosh, -711, 711),
    "tanh": (tanh, -25, 25),
    "sigmoid": (lambda x: 1 / (1 + exp(-x)), -746, 40),
    "erf": (erf, -6.5, 6.5),
    "gelu": (lambda x: x * erfc(-x / sqrt(mpf(2))) / 2, -39, 12),
    "gelu_tanh": (lambda x: x / (1 + exp(-LINE * (x + mpf("0.044715") * x**3))), -22, 12),
    "silu": (lambda x: x / (1 + exp(-x)), -752, 60),
    "softplus": (lambda x: log1p(exp(x)), -746, 60),
}


def bits(x):
    return struct.pack(">d", x).hex()


def points(low, high):
    """Over the whole range, near zero, at both ends."""
    random.seed(7)
    yield from (low + (high - low) * random.random() for _ in range(60))
    yield from (random.choice((-1, 1)) * 10 ** random.uniform(-12, 0.8) for _ in range(40))
    yield from (low + 3 * random.random() for _ in range(10))


def nearest(value):
    """The f64, subnormal ones rounded once."""
    grain = mpf(2) ** -1074
    if abs(value) < mpf(2) ** -1022:
        return float(int(mp.nint(value / grain))) * 5e-324
    return float(value)


def main():
    lines = []
    for name, (function, low, high) in FUNCTIONS.items():
        for x in points(low, high):
            if not low <= x <= high:
                continue
            value = function(mpf(x))
            if abs(value) > mpf(2) ** 1023:
                continue
            near = nearest(value)
            lines.append(f"{name} {bits(x)} {bits(near)} {bits(float(value - mpf(near)))}")
    path = Path(__file__).parent.parent / "tests/functions/f64.txt"
    path.write_text("\n".join(lines) + "\n")


main()
