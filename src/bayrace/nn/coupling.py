"""Real Clebsch–Gordan coefficients: how components of two irreps combine to those of a third.

Racah's formula in whole numbers gives those of complex components; unitary matrices take them to
the real ones of `bayrace.nn.harmonics`, with the phases of e3nn. Made when they are asked for: all
up to degree 3 take some 10 ms, where importing e3nn takes a second.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

_ROUNDING = 1e-14  # of sums whose exact value is zero


@cache
def clebsch_gordan(l1: int, l2: int, l3: int) -> NDArray[np.float64]:
    """Real coupling table (2l1+1, 2l2+1, 2l3+1) that maps unit-variance components to the same."""
    if not abs(l1 - l2) <= l3 <= l1 + l2:
        raise ValueError(f"degrees {l1}, {l2}, {l3}: the third must be |l1 - l2| to l1 + l2")
    first, second, third = (_complex_from_real(degree) for degree in (l1, l2, l3))
    half = np.einsum("ijk,kc->ijc", _complex_table(l1, l2, l3), third.conj())
    mixed = np.einsum("ia,ijc,jb->abc", first, half, second)
    table = np.where(np.abs(mixed.real) < _ROUNDING, 0.0, mixed.real)
    table.flags.writeable = False  # it is kept
    return table


def _complex_table(l1: int, l2: int, l3: int) -> NDArray[np.float64]:
    """⟨l1 m1 l2 m2 | l3 m3⟩ at the place (l1 + m1, l2 + m2, l3 + m3)."""
    table = np.zeros((2 * l1 + 1, 2 * l2 + 1, 2 * l3 + 1))
    for m1 in range(-l1, l1 + 1):
        for m2 in range(max(-l2, -l3 - m1), min(l2, l3 - m1) + 1):
            table[l1 + m1, l2 + m2, l3 + m1 + m2] = _racah(l1, m1, l2, m2, l3)
    return table


def _racah(l1: int, m1: int, l2: int, m2: int, l3: int) -> float:
    """⟨l1 m1 l2 m2 | l3 m1+m2⟩, exact up to the last division and root."""
    m3, f = m1 + m2, math.factorial
    common = f(l1 + l2 + l3 + 1)  # a multiple of every denominator below
    total = 0
    for k in range(l1 + l2 - l3 + 1):
        rest = (l1 + l2 - l3 - k, l1 - m1 - k, l2 + m2 - k, l3 - l2 + m1 + k, l3 - l1 - m2 + k)
        if min(rest) >= 0:
            total += (-1) ** k * (common // (f(k) * math.prod(map(f, rest))))
    sides = f(l3 + l1 - l2) * f(l3 - l1 + l2) * f(l1 + l2 - l3)
    orders = math.prod(f(l + m) * f(l - m) for l, m in ((l1, m1), (l2, m2), (l3, m3)))  # noqa: E741
    square = total**2 * (2 * l3 + 1) * sides * orders / common**3
    return math.copysign(math.sqrt(square), total)


def _complex_from_real(degree: int) -> NDArray[np.complex128]:
    """Unitary; rows are complex components m = -l..l, columns real ones.

    Real components are √2 times the imaginary part, for m < 0, and the real part of complex ones
    with the Condon–Shortley phase. The common factor makes every coupling table real.
    """
    matrix = np.zeros((2 * degree + 1, 2 * degree + 1), dtype=np.complex128)
    matrix[degree, degree] = 1.0
    for m in range(1, degree + 1):
        cosine, sine = degree + m, degree - m
        matrix[degree - m, [cosine, sine]] = math.sqrt(0.5), -1j * math.sqrt(0.5)
        matrix[degree + m, [cosine, sine]] = (-1) ** m * np.array([1, 1j]) * math.sqrt(0.5)
    return matrix * (-1j) ** degree
