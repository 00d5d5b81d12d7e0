"""Poolings: invariance, what replicas have, batches of different sizes, the linear last layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bayrace.core.outputs import Heads
from bayrace.core.target import POOLINGS, Target
from bayrace.data.batch import repeated
from bayrace.data.frame import Frame, bare_frame
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import NO_NOISE, NoiseSpec, energy_variance
from bayrace.models.race.network import Race
from bayrace.models.race.spec import RaceSpec
from bayrace.posterior.gaussian.last_layer import pooled_features, structure_features
from bayrace.testing import graph_of, random_frame, small_spec
from bayrace.testing.rotations import random_turns

ELEMENTS = (1, 6, 8)
NOISE = NoiseSpec("energy", "mean_log", "equivariant", stress=False)


def model_of(pooling: str, noise: NoiseSpec = NO_NOISE) -> Race:
    target = Target("thing", "D", pooling)  # type: ignore[arg-type]
    return Race(small_spec(ELEMENTS, noise=noise, target=target, shift=(0.3, -0.2, 0.1)))


def heads_of(model: Race, *frames: Frame, seed: int = 1) -> Heads:
    return model.energy(model.init(seed, dtype=torch.float64), graph_of(model, *frames))


def moved(frame: Frame, positions: np.ndarray) -> Frame:
    return replace(frame, positions=positions)


def dipole(model: Race, frame: Frame) -> np.ndarray:
    """The vector itself: an atom's share is its position from the centre along it."""
    heads = heads_of(model, frame)
    order = graph_of(model, frame).file_order
    assert heads.share is not None
    share = heads.share[order].detach().numpy()
    from_centre = frame.positions - frame.positions.mean(0)
    unit = np.linalg.lstsq(from_centre, share, rcond=None)[0]
    assert np.linalg.norm(unit) == pytest.approx(1.0, abs=1e-6)
    return np.asarray(unit * float(heads.energy[0].detach()))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_rotation_reflection_translation_and_permutation(pooling: str) -> None:
    """Charges do not add up to 0, so a translation would show."""
    model, frame = model_of(pooling), random_frame(ELEMENTS, 7, seed=2)
    expected = float(heads_of(model, frame).energy)
    assert abs(expected) > 1e-3
    shuffled = np.random.default_rng(0).permutation(7)
    others = [
        moved(frame, frame.positions @ m.T) for _, m in random_turns(np.random.default_rng(5))
    ]
    others.append(moved(frame, frame.positions + np.array([30.0, -7.0, 2.0])))
    others.append(
        replace(frame, positions=frame.positions[shuffled], numbers=frame.numbers[shuffled])
    )
    for other in others:
        assert float(heads_of(model, other).energy) == pytest.approx(expected, abs=1e-9)


def test_a_dipole_turns_with_its_molecule() -> None:
    model, frame = model_of("norm"), random_frame(ELEMENTS, 6, seed=3)
    here = dipole(model, frame)
    for name, turn in random_turns(np.random.default_rng(1)):
        there = dipole(model, moved(frame, frame.positions @ turn.T))
        assert there == pytest.approx(turn @ here, abs=1e-6), name


def test_a_molecule_with_an_inversion_centre_has_no_dipole() -> None:
    half = random_frame(ELEMENTS, 3, seed=4)
    positions = np.concatenate([half.positions + 1.0, -half.positions - 1.0])
    numbers = np.concatenate([half.numbers, half.numbers])
    frame = bare_frame(numbers, positions, half.cell, half.pbc, source="inverted")
    assert float(heads_of(model_of("norm"), frame).energy) < 1e-9
    assert float(heads_of(model_of("norm"), half).energy) > 1e-3


def test_of_two_far_copies_extensive_targets_double_and_means_stay() -> None:
    frame = random_frame(ELEMENTS, 5, seed=6)
    positions = np.concatenate([frame.positions, frame.positions + np.array([200.0, 0.0, 0.0])])
    numbers = np.concatenate([frame.numbers, frame.numbers])
    twice = bare_frame(numbers, positions, frame.cell, frame.pbc, source="twice")
    for pooling, factor in (("sum", 2.0), ("mean", 1.0), ("norm", 2.0)):
        model = model_of(pooling)
        once, both = (float(heads_of(model, each).energy) for each in (frame, twice))
        assert both == pytest.approx(factor * once, rel=1e-6), pooling
    model = model_of("mean", NOISE)
    noises = [
        energy_variance(head, graph_of(model, each), "mean_log")
        for each in (frame, twice)
        for head in [heads_of(model, each).energy_head]
        if head is not None
    ]
    torch.testing.assert_close(noises[0], noises[1])


@pytest.mark.parametrize("pooling", POOLINGS)
def test_molecules_of_different_sizes_in_one_batch(pooling: str) -> None:
    model = model_of(pooling)
    frames = [random_frame(ELEMENTS, size, seed=size) for size in (3, 8, 5)]
    together = heads_of(model, *frames).energy
    apart = torch.cat([heads_of(model, frame).energy for frame in frames])
    torch.testing.assert_close(together, apart)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_features_are_the_derivative_by_the_last_layer(pooling: str) -> None:
    model = model_of(pooling)
    params = model.init(3, dtype=torch.float64)
    batch = graph_of(model, random_frame(ELEMENTS, 4, seed=1), random_frame(ELEMENTS, 6, seed=2))
    features = structure_features(batch, pooled_features(evaluate(model, params, batch)))
    weights = model.last_layer(params)

    def property_of(last: torch.Tensor) -> torch.Tensor:
        return model.energy(model.with_last_layer(params, last), batch).energy

    expected = torch.func.jacrev(property_of)(weights)
    torch.testing.assert_close(features, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_members_side_by_side(pooling: str) -> None:
    target = Target("thing", "D", pooling)  # type: ignore[arg-type]
    model = Race(small_spec(ELEMENTS, noise=NO_NOISE, target=target, radial_knots=16))
    members = [model.fold(model.init(seed, dtype=torch.float64)) for seed in (1, 2)]
    stacked = {name: torch.stack([each[name] for each in members]) for name in members[0]}
    batch = graph_of(model, random_frame(ELEMENTS, 4, seed=1), random_frame(ELEMENTS, 6, seed=2))
    together = model.energy(stacked, repeated(batch, 2)).energy
    torch.testing.assert_close(
        together, torch.cat([model.energy(m, batch).energy for m in members])
    )


def test_contributions_of_atoms_add_up_and_there_are_no_forces() -> None:
    for pooling in POOLINGS:
        model = model_of(pooling)
        params = model.init(0, dtype=torch.float64)
        outputs = evaluate(model, params, graph_of(model, random_frame(ELEMENTS, 6, seed=9)))
        assert float(outputs.atomic_energy.sum()) == pytest.approx(float(outputs.energy), abs=1e-9)
        assert bool(outputs.forces.isnan().all())


def test_the_specification_keeps_its_target() -> None:
    spec = model_of("norm").spec
    assert RaceSpec.from_json(spec.to_json()) == spec
    old = {name: value for name, value in spec.to_json().items() if name != "target"}
    assert RaceSpec.from_json(old).target.is_energy
    with pytest.raises(ValueError, match="1o"):
        small_spec(ELEMENTS, hidden="4x0e", noise=NO_NOISE, target=spec.target)
    with pytest.raises(ValueError, match="mean_log"):
        replace(spec, noise=replace(NOISE, energy="extensive"))
