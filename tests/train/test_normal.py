from __future__ import annotations

import pytest
import torch

from bayrace.train.normal import generator, normal_like

PARAMS = {"b": torch.zeros(3, 2, dtype=torch.float64), "a": torch.zeros((), dtype=torch.float64)}


def test_numbers_belong_to_names_and_keys() -> None:
    first = normal_like(PARAMS, generator(3, 1))
    turned = normal_like(dict(reversed(PARAMS.items())), generator(3, 1))
    assert all(torch.equal(first[name], turned[name]) for name in PARAMS)
    for key in ((3, 2), (1, 3), (3,), (3, 1, 0)):
        assert not torch.equal(first["b"], normal_like(PARAMS, generator(*key))["b"])


def test_every_precision_sees_the_same_numbers() -> None:
    single = {name: value.float() for name, value in PARAMS.items()}
    first, second = (normal_like(params, generator(0)) for params in (PARAMS, single))
    assert second["b"].dtype == torch.float32
    assert torch.equal(first["b"], second["b"].double())


def test_moments_within_five_standard_errors() -> None:
    count = 100_000
    values = normal_like({"x": torch.zeros(count)}, generator(7))["x"].double()
    assert abs(float(values.mean())) < 5 / count**0.5
    assert abs(float(values.var()) - 1) < 5 * (2 / count) ** 0.5


def test_negative_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"seed=\(0, -1\): random streams are numbered from 0"):
        generator(0, -1)
