"""Clebsch–Gordan tables against e3nn, known values and rotations."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from itertools import product

import numpy as np
import pytest
import torch

from bayrace.nn.coupling import clebsch_gordan
from bayrace.nn.harmonics import spherical_harmonics

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # e3nn warns of torch's own deprecations while it is imported
    from e3nn import o3


def triples(highest: int) -> list[tuple[int, int, int]]:
    every = product(range(highest + 1), repeat=3)
    return [(a, b, c) for a, b, c in every if abs(a - b) <= c <= a + b]


def test_tables_equal_those_of_e3nn() -> None:
    for l1, l2, l3 in triples(5):
        expected = o3.wigner_3j(l1, l2, l3, dtype=torch.float64).numpy() * math.sqrt(2 * l3 + 1)
        np.testing.assert_allclose(clebsch_gordan(l1, l2, l3), expected, rtol=0, atol=1e-15)


def test_two_vectors_make_their_scalar_and_their_vector_product() -> None:
    scalar = clebsch_gordan(1, 1, 0)[:, :, 0]
    np.testing.assert_allclose(scalar, np.eye(3) / math.sqrt(3), atol=1e-15)
    a, b = np.array([0.3, -1.2, 0.5]), np.array([2.0, 0.7, -0.4])
    vector = np.einsum("ijk,i,j->k", clebsch_gordan(1, 1, 1), a, b)
    np.testing.assert_allclose(vector, np.cross(a, b) / math.sqrt(2), atol=1e-15)


def test_coupling_keeps_unit_variance() -> None:
    for l1, l2, l3 in triples(4):
        table = clebsch_gordan(l1, l2, l3)
        np.testing.assert_allclose(
            np.einsum("abm,abn->mn", table, table), np.eye(2 * l3 + 1), rtol=0, atol=1e-14
        )


def test_products_of_harmonics_are_harmonics() -> None:
    """Y1 ⊗ Y2 of one direction is a multiple of Y3, and nothing for odd l1 + l2 + l3."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    unit = torch.nn.functional.normalize(vectors, dim=-1)
    parts = [
        spherical_harmonics(unit, 3)[:, degree**2 : (degree + 1) ** 2].numpy()
        for degree in range(4)
    ]
    for l1, l2, l3 in triples(3):
        coupled = np.einsum("abm,na,nb->nm", clebsch_gordan(l1, l2, l3), parts[l1], parts[l2])
        ratio = (coupled * parts[l3]).sum(-1) / (2 * l3 + 1)
        np.testing.assert_allclose(coupled, ratio[:, None] * parts[l3], atol=1e-13)
        np.testing.assert_allclose(ratio, ratio[0], atol=1e-13)
        assert (abs(ratio[0]) < 1e-13) == bool((l1 + l2 + l3) % 2)


def test_degrees_that_do_not_couple_are_refused() -> None:
    with pytest.raises(ValueError, match="degrees 1, 1, 3"):
        clebsch_gordan(1, 1, 3)


def test_neither_e3nn_nor_dynamo_is_imported_for_a_prediction() -> None:
    code = (
        "import sys, torch; from bayrace.models.derivatives import evaluate;"
        "from bayrace.models.race.network import Race;"
        "from bayrace.testing import graph_of, random_frame, small_spec;"
        "model = Race(small_spec((1, 8))); frame = random_frame((1, 8), 5, seed=0);"
        "evaluate(model, model.init(0, dtype=torch.float64), graph_of(model, frame));"
        "print([name for name in ('e3nn', 'torch._dynamo') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
