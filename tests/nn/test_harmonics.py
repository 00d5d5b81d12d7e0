"""Harmonics against e3nn, irreps and self-products."""

from __future__ import annotations

import warnings

import pytest
import torch

from bayrace.nn.contraction import SelfProduct, square_plain
from bayrace.nn.coupling import clebsch_gordan
from bayrace.nn.harmonics import spherical_harmonics
from bayrace.nn.irreps import Irrep, parse_irreps

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # e3nn warns of torch's own deprecations while it is imported
    from e3nn import o3


def unit_vectors(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    return vectors / vectors.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize("l_max", [0, 1, 2, 3])
def test_harmonics_equal_those_of_e3nn(l_max: int) -> None:
    unit = unit_vectors(20)
    expected = o3.spherical_harmonics(
        list(range(l_max + 1)), unit, normalize=False, normalization="component"
    )
    torch.testing.assert_close(spherical_harmonics(unit, l_max), expected, rtol=1e-12, atol=1e-12)


def test_harmonics_are_component_normalised() -> None:
    values = spherical_harmonics(unit_vectors(5), 3)
    for degree in range(4):
        norm = values[:, degree**2 : (degree + 1) ** 2].square().sum(-1)
        torch.testing.assert_close(norm, torch.full_like(norm, 2 * degree + 1))


def test_too_high_a_degree_is_refused() -> None:
    with pytest.raises(ValueError, match="l_max=4"):
        spherical_harmonics(unit_vectors(1), 4)


def test_irreps_are_read() -> None:
    assert parse_irreps("4x1o+2x0e + 3x(2)") == {
        Irrep(0, 1): 2,
        Irrep(1, -1): 4,
        Irrep(2, 1): 3,
        Irrep(2, -1): 3,
    }
    with pytest.raises(ValueError, match="cannot read '4z'"):
        parse_irreps("4z")


def test_self_product_equals_a_slow_loop() -> None:
    irreps = (Irrep(0, 1), Irrep(1, -1), Irrep(2, 1), Irrep(2, -1))
    product = SelfProduct(irreps, irreps)
    x = torch.randn(3, 14, 5, dtype=torch.float64)
    starts = {irreps[0]: 0, irreps[1]: 1, irreps[2]: 4, irreps[3]: 9}
    result = product.split(square_plain(product, x))
    for target in irreps:
        slow = []
        for first, second in product.couplings(target):
            table = torch.tensor(clebsch_gordan(first.l, second.l, target.l))
            a = x[:, starts[first] : starts[first] + first.dim]
            b = x[:, starts[second] : starts[second] + second.dim]
            slow.append(torch.einsum("nac,nbc,abm->nmc", a, b, table))
        torch.testing.assert_close(result[target], torch.cat(slow, -1), rtol=1e-12, atol=1e-12)
