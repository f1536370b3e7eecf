#!/usr/bin/env python3
"""Derives the polynomials of src/run/cpu/elementwise/math.rs and kernels/elementary.cuh. Needs mpmath and numpy.

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


def normal(t):
    return t * mp.erfc(t / mp.sqrt(2)) * mp.exp(t * t / 2) / 2


def intervals():
    """Those of gelu: by the exponent of t + 1 and two bits of its fraction. Their centres are numbers where the function
    is almost an f32, so that the constant terms are not off."""
    for exponent in range(4):
        for quarter in range(4):
            low, high = (2.0**exponent * (1 + (quarter + more) / 4) - 1 for more in (0, 1))
            place = (((127 + exponent) << 2) | quarter) & 15
            centre, constant, start = 0.0, 0.0, 1e-4
            if low > 0:
                step = (1 if exponent < 2 else 2) / 8192
                tried = (round((low + high) * 256) / 512 + j * step for j in range(-60, 61))
                centre = min(tried, key=lambda c: abs(np.float32(float(normal(c))) / normal(c) - 1))
                constant, start = float(np.float32(float(normal(centre)))), low - 1e-6
            x = nodes(start, high + 1e-6, 600)
            target = values(normal, x)
            fit(f"gelu {place}, centre {centre}", x - centre, 6, target, 1 / np.abs(target), {0: constant})


def main():
    x = nodes(-0.3475, 0.3475)
    fit("expm1, of r^2", x, 4, values(lambda r: (mp.expm1(r) - r) / r**2, x), np.abs(x**2 / np.expm1(x)))
    fit("1 - e^-r, of r^2", x, 4, values(lambda r: (-mp.expm1(-r) - r) / r**2, x), np.abs(x**2 / np.expm1(x)))
    x = nodes(-0.1735, 0.1735)
    half = lambda r: (-mp.expm1(-2 * r) / 2 - r) / r**2
    fit("tanh, of r^2", x, 4, values(half, x), np.abs(2 * x**2 / np.expm1(2 * x)))
    x = nodes(-0.501, 0.501)
    fit("2^f - 1, of f", x, 5, values(lambda f: (mp.mpf(2) ** f - 1) / f, x), np.abs(x) / 2**x)
    x = nodes(1e-4, 4.0, 3000)
    high = float(np.float32(2 / np.sqrt(np.pi)))
    low = float(np.float32(2 / mp.sqrt(mp.pi) - high))
    weight = values(lambda t: t * mp.erfc(t) / mp.erf(t), x)
    fit("erf", x, 8, values(lambda t: (-mp.log(mp.erfc(t)) - high * t) / t, x), weight, {0: low})
    x = nodes(1e-3, 0.3475)
    fit("sinh, of r^3, in r^2", x * x, 2, values(lambda r: (mp.sinh(r) - r) / r**3, x), x**3 / np.sinh(x))
    fit("cosh - 1, of r^2, in r^2", x * x, 2, values(lambda r: (mp.cosh(r) - 1) / r**2, x), x**2 / np.cosh(x))
    x = nodes(1e-3, 2 / 3 + 1e-6)
    weight = x**3 / (2 * np.arctanh(x / 2))
    fit("softplus, of u^3, in u^2", x * x, 3, values(lambda u: (2 * mp.atanh(u / 2) - u) / u**3, x), weight)
    intervals()


main()
