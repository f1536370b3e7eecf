#!/usr/bin/env python3
"""Derives the polynomials of src/run/cpu/elementwise and kernels/elementary.cuh. Needs mpmath and numpy.

Each is the minimax fit of a function by Lawson's iteration (reweighted least squares) on Chebyshev nodes, where
coefficients are rounded to f32 one by one, from the lowest, and those that are left are fitted anew. Prints how far
the fit is off, relative to the function that it is part of, and the coefficients, the highest power first.
"""
import mpmath as mp
import numpy as np

mp.mp.dps = 40


def nodes(low, high, count=1500):
    place = np.arange(count)
    return (low + high) / 2 - (high - low) / 2 * np.cos(np.pi * (place + 0.5) / count)


def values(function, x):
    return np.array([float(function(mp.mpf(float(v)))) for v in x])


def lawson(x, exponents, target, weight, rounds=400):
    """The coefficients for which the largest weighted error is about the smallest."""
    matrix = np.array([x**p for p in exponents]).T * weight[:, None]
    target = target * weight
    emphasis, best = np.ones(len(x)) / len(x), None
    for _ in range(rounds):
        root = np.sqrt(emphasis)
        found = np.linalg.lstsq(matrix * root[:, None], target * root, rcond=None)[0]
        error = np.abs(matrix @ found - target)
        if best is None or error.max() < best[0]:
            best = (error.max(), found)
        emphasis = emphasis * (error / error.max() + 1e-12)
        emphasis /= emphasis.sum()
    return best[1]


def fit(name, x, degree, target, weight, fixed=None):
    rounded = dict(fixed or {})
    while left := [p for p in range(degree + 1) if p not in rounded]:
        rest = target - sum(c * x**p for p, c in rounded.items())
        rounded[left[0]] = float(np.float32(lawson(x, left, rest, weight)[0]))
    error = np.abs((sum(c * x**p for p, c in rounded.items()) - target) * weight).max()
    print(f"{name}: 2^{np.log2(error):.1f}:", ", ".join(f"{rounded[p]:.9g}" for p in sorted(rounded, reverse=True)))


def gelu_tail(t):
    return t * mp.erfc(t / mp.sqrt(2)) / 2


def gelu_tanh_tail(t):
    return t / (1 + mp.exp(2 * mp.sqrt(2 / mp.pi) * (t + mp.mpf("0.044715") * t**3)))


def intervals(name, function, step, degree, edge, slope=0):
    """Sixteen, around multiples of a step. `slope` is left out of the first one's polynomial."""
    for interval in range(16):
        first = interval == 0
        low, high = (interval - 0.5) * step - 1e-6, min((interval + 0.5) * step, edge) + 1e-6
        x = nodes(1e-4 if first else low, high, 300)
        weight = 1 / values(function, x)
        apart = slope if first else 0
        target = values(lambda t: function(t) - apart * t, x)
        fit(f"{name} {interval}", x - interval * step, degree, target, weight, {0: 0.0} if first else None)


def main():
    x = nodes(-0.3475, 0.3475)
    fit("expm1, of r^2", x, 4, values(lambda r: (mp.expm1(r) - r) / r**2, x), np.abs(x**2 / np.expm1(x)))
    fit("1 - e^-r, of r^2", x, 4, values(lambda r: (-mp.expm1(-r) - r) / r**2, x), np.abs(x**2 / np.expm1(x)))
    x = nodes(-0.1735, 0.1735)
    half = lambda r: (-mp.expm1(-2 * r) / 2 - r) / r**2
    fit("tanh, of r^2", x, 4, values(half, x), np.abs(2 * x**2 / np.expm1(2 * x)))
    x = nodes(-0.501, 0.501)
    fit("2^f - 1, of f", x, 5, values(lambda f: (mp.mpf(2) ** f - 1) / f, x), np.abs(x) / 2**x)
    x = nodes(1e-3, 0.3475)
    fit("sinh, of r^3, in r^2", x * x, 2, values(lambda r: (mp.sinh(r) - r) / r**3, x), x**3 / np.sinh(x))
    fit("cosh - 1, of r^2, in r^2", x * x, 2, values(lambda r: (mp.cosh(r) - 1) / r**2, x), x**2 / np.cosh(x))
    x = nodes(1e-3, 2 / 3 + 1e-6)
    weight = x**3 / (2 * np.arctanh(x / 2))
    fit("softplus, of u^3, in u^2", x * x, 3, values(lambda u: (2 * mp.atanh(u / 2) - u) / u**3, x), weight)
    x = nodes(1 / 15**2, 1 / 5.1**2)
    far = values(lambda u: gelu_tail(1 / mp.sqrt(u)) * mp.exp(1 / (2 * u)), x)
    fit("gelu beyond its table, of 1 / t^2", x, 5, far, 1 / far)
    intervals("erf", mp.erf, 33 / 128, 5, 4.0, slope=1.125)
    intervals("gelu", gelu_tail, 43 / 128, 7, 5.3)
    intervals("gelu_tanh", gelu_tanh_tail, 43 / 128, 7, 5.1)


main()
