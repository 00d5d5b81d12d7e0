"""RACE: symmetries, derivatives, continuity and pruning, for every preset."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bayrace.core.outputs import Outputs
from bayrace.models.derivatives import evaluate
from bayrace.models.noise import NoiseSpec
from bayrace.models.race.network import Race
from bayrace.models.race.presets import PRESETS
from bayrace.models.race.spec import RaceSpec
from bayrace.testing import (
    check_cutoff,
    check_derivatives,
    check_symmetries,
    graph_of,
    random_frame,
)

ELEMENTS = (1, 6, 8)
NOT_SPEC = ("normalise", "dtype", "short_range", "start")  # of a preset
JOINT = NoiseSpec("joint", "extensive", "equivariant", stress=True)
SMALL_CELL = np.array([[3.1, 0, 0], [0.6, 2.9, 0], [0.2, -0.5, 3.3]])  # shorter than the cutoff


def spec_of(preset: str, **changes: object) -> RaceSpec:
    values = {k: v for k, v in PRESETS[preset]["model"].items() if k not in NOT_SPEC}
    values |= {"mean_neighbours": 10.0, "radial_hidden": tuple(values["radial_hidden"])}
    values |= {"elements": ELEMENTS, "noise": JOINT, "scale": 0.7, "shift": (0.1, -0.2, 0.3)}
    return RaceSpec(**(values | changes))


def same(one: Outputs, other: Outputs, tolerance: float) -> None:
    for name in ("energy", "forces", "energy_head", "forces_head", "stress_head"):
        found, expected = getattr(one, name), getattr(other, name)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture(params=list(PRESETS))
def preset_model(request: pytest.FixtureRequest) -> Race:
    """The paper's sizes by the plain kernel: compiling theirs takes longer than these tests."""
    ours = request.param in ("tiny", "small", "medium")
    return Race(spec_of(request.param), kernel="auto" if ours else "plain")


def test_symmetries_of_a_molecule(preset_model: Race) -> None:
    params = preset_model.init(1, dtype=torch.float64)
    check_symmetries(preset_model, params, random_frame(ELEMENTS, 6, seed=2))


def test_symmetries_of_a_small_cell(preset_model: Race) -> None:
    params = preset_model.init(1, dtype=torch.float64)
    frame = random_frame(ELEMENTS, 2, seed=3, cell=SMALL_CELL)
    check_symmetries(preset_model, params, frame)


def test_derivatives(preset_model: Race) -> None:
    params = preset_model.init(1, dtype=torch.float64)
    check_derivatives(preset_model, params, random_frame(ELEMENTS, 6, seed=4))
    check_derivatives(preset_model, params, random_frame(ELEMENTS, 2, seed=5, cell=SMALL_CELL))


def test_continuity_at_the_cutoff(preset_model: Race) -> None:
    check_cutoff(preset_model, preset_model.init(1, dtype=torch.float64))


@pytest.mark.parametrize(
    "options",
    [
        {"gate": True},
        {"self_contraction": False},
        {"pair_radial": True},
        {"pair_radial": True, "radial_knots": 0},
        {"hidden": "16x0e+8x1o+4x2e", "pair_radial": True},
    ],
    ids=str,
)
def test_options_keep_symmetries_and_derivatives(options: dict[str, object]) -> None:
    model = Race(spec_of("tiny", **options))
    params = model.init(2, dtype=torch.float64)
    for frame in (
        random_frame(ELEMENTS, 6, seed=6),
        random_frame(ELEMENTS, 3, seed=7, cell=SMALL_CELL * 1.2),
    ):
        check_symmetries(model, params, frame)
        check_derivatives(model, params, frame)
    check_cutoff(model, params)


@pytest.mark.parametrize(
    "options",
    [{}, {"pair_radial": True}, {"radial_knots": 0}, {"hidden": "16x0e+8x1o+4x2e", "gate": True}],
    ids=str,
)
def test_folded_weights_are_the_same_network(options: dict[str, object]) -> None:
    model = Race(spec_of("tiny", **options))
    params = model.init(2, dtype=torch.float64)
    batch = graph_of(model, random_frame(ELEMENTS, 6, seed=6))
    folded = model.fold(params)
    assert not any(".down." in name or ".product." in name for name in folded)
    same(evaluate(model, folded, batch), evaluate(model, params, batch), 1e-11)


def test_forces_by_tape_equal_those_by_transform() -> None:
    """Alone they come from torch.autograd, inside vmap from torch.func; gradients of both agree."""
    model = Race(spec_of("tiny"))
    params = {k: v.requires_grad_() for k, v in model.init(2, dtype=torch.float64).items()}
    stacked = {k: v.detach().unsqueeze(0).requires_grad_() for k, v in params.items()}
    batch = graph_of(model, random_frame(ELEMENTS, 3, seed=6, cell=SMALL_CELL * 1.2))

    def values(weights: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        outputs = evaluate(model, weights, batch, stress=True)
        assert outputs.stress is not None
        return outputs.energy, outputs.forces, outputs.stress

    tape = values(params)
    transform = [value[0] for value in torch.func.vmap(values)(stacked)]
    slopes = []
    for found, weights in ((tape, params), (transform, stacked)):
        loss = sum((value**2).sum() for value in found)
        slopes.append(torch.autograd.grad(loss, list(weights.values()), materialize_grads=True))
    torch.testing.assert_close(list(tape), transform, rtol=1e-11, atol=1e-11)
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other[0], rtol=1e-9, atol=1e-10)


def test_predictions_hold_no_graph() -> None:
    model = Race(spec_of("tiny"))
    params = model.init(0)
    outputs = evaluate(
        model, params, graph_of(model, random_frame(ELEMENTS, 4, seed=1)).to(dtype=torch.float32)
    )
    assert not outputs.forces.requires_grad
    assert not outputs.energy.requires_grad


def test_splines_approach_the_network() -> None:
    """More knots, closer to the radial network at every pair."""
    batch = graph_of(Race(spec_of("tiny")), random_frame(ELEMENTS, 6, seed=6))
    params = Race(spec_of("tiny")).init(2, dtype=torch.float64)
    exact = evaluate(Race(spec_of("tiny", radial_knots=0)), params, batch).forces
    errors = [
        (evaluate(Race(spec_of("tiny", radial_knots=n)), params, batch).forces - exact).abs().max()
        for n in (32, 128, 512)
    ]
    assert errors[1] < errors[0] / 10
    assert errors[2] < errors[1] / 10
    assert errors[2] < 1e-4 * exact.abs().max()


def test_specifications_from_before_the_splines_have_none() -> None:
    values = spec_of("tiny").to_json()
    del values["radial_knots"]
    assert RaceSpec.from_json(values).radial_knots == 0
    with pytest.raises(ValueError, match="radial_knots=3: give 16 or more"):
        spec_of("tiny", radial_knots=3)


def test_mixed_periodicity_keeps_symmetries() -> None:
    model = Race(spec_of("tiny"))
    frame = random_frame(ELEMENTS, 3, seed=8, cell=SMALL_CELL * 1.3, pbc=(True, True, False))
    check_symmetries(model, model.init(0, dtype=torch.float64), frame)


def test_cholesky_covariance_does_not_turn() -> None:
    """The paper's form reads invariants: its Σ stays where it was, as the docs say."""
    model = Race(spec_of("tiny", noise=replace(JOINT, covariance="cholesky", stress=False)))
    params = model.init(0, dtype=torch.float64)
    batch = graph_of(model, random_frame(ELEMENTS, 5, seed=9))
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    turned = replace(batch, positions=batch.positions @ turn.T)
    before = evaluate(model, params, batch).forces_head
    after = evaluate(model, params, turned).forces_head
    assert before is not None
    assert after is not None
    torch.testing.assert_close(before, after, rtol=1e-9, atol=1e-12)


def test_structures_of_a_batch_do_not_see_each_other() -> None:
    model = Race(spec_of("tiny"))
    params = model.init(0, dtype=torch.float64)
    frames = [random_frame(ELEMENTS, n, seed=n) for n in (1, 4, 7)]
    together = evaluate(model, params, graph_of(model, *frames))
    alone = [evaluate(model, params, graph_of(model, frame)).energy for frame in frames]
    torch.testing.assert_close(together.energy, torch.cat(alone), rtol=1e-12, atol=1e-12)


def test_relu_energies_are_not_negative() -> None:
    model = Race(spec_of("tiny", activation="relu", shift=(0.0, 0.0, 0.0)))
    params = model.init(0, dtype=torch.float64)
    batch = graph_of(model, *[random_frame(ELEMENTS, 5, seed=k) for k in range(5)])
    atomic = model.energy(params, batch).atomic_energy
    assert atomic.min() >= 0
    assert atomic.max() > 0


def test_float32_follows_float64() -> None:
    model = Race(spec_of("small"))
    batch = graph_of(model, random_frame(ELEMENTS, 8, seed=1))
    fine = evaluate(model, model.init(0, dtype=torch.float64), batch)
    coarse = evaluate(model, model.init(0), batch.to(dtype=torch.float32))
    assert coarse.energy.dtype == torch.float64  # sums are kept in double precision
    torch.testing.assert_close(coarse.forces.double(), fine.forces, rtol=1e-3, atol=1e-4)


def test_pruning_keeps_only_what_is_reachable_and_used() -> None:
    layers = Race(spec_of("qm9", noise=NoiseSpec("none", "extensive", "equivariant", False))).layout
    assert {str(i) for i in layers[0].outputs} == {"0e", "1o", "2e"}  # parity (-1)^l
    assert {str(i) for i in layers[-1].outputs} == {"0e"}
    assert {str(i) for i in layers[-2].outputs} == {"0e", "1o", "2e"}  # what 0e can come from
    assert {str(i) for i in layers[1].outputs} == {"0e", "1e", "1o", "2e", "2o"}


def test_pruned_network_equals_unpruned_readout() -> None:
    """Heads that are not trained do not change the energy: 2e kept for noise leaves it alone."""
    noisy, plain = Race(spec_of("tiny")), Race(spec_of("tiny", noise=replace(JOINT, kind="none")))
    drawn = noisy.init(0, dtype=torch.float64)
    shared = {}
    for name, shape in plain.shapes.items():
        value = drawn[name]
        if name.endswith("readout.scalars"):
            value = value[:, :1]
        if name.endswith("radial.2"):  # paths that end in 2e are gone from the last layer
            value = value[:, : shape[1]]
        shared[name] = value
    batch = graph_of(noisy, random_frame(ELEMENTS, 6, seed=3))
    torch.testing.assert_close(
        evaluate(noisy, drawn, batch).forces,
        evaluate(plain, shared, batch).forces,
        rtol=1e-10,
        atol=1e-12,
    )


def test_members_under_vmap_equal_a_loop() -> None:
    model = Race(spec_of("tiny"))
    members = [model.init(seed, dtype=torch.float64) for seed in range(3)]
    stacked = {name: torch.stack([m[name] for m in members]) for name in members[0]}
    batch = graph_of(model, random_frame(ELEMENTS, 6, seed=1))
    together = torch.func.vmap(lambda params: evaluate(model, params, batch).forces)(stacked)
    for index, params in enumerate(members):
        alone = evaluate(model, params, batch)
        torch.testing.assert_close(together[index], alone.forces, rtol=1e-10, atol=1e-12)


def test_initial_weights_follow_the_seed_only() -> None:
    model = Race(spec_of("tiny"))
    once, again, other = model.init(3), model.init(3), model.init(4)
    assert all(torch.equal(once[name], again[name]) for name in once)
    assert not torch.equal(once["embedding"], other["embedding"])


def test_specification_round_trips_through_json() -> None:
    spec = spec_of("small")
    assert RaceSpec.from_json(spec.to_json()) == spec
    with pytest.raises(ValueError, match="unexpected or missing keys"):
        RaceSpec.from_json({"cutoff": 5.0})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": "8x1o"}, "add e.g. '32x0e'"),
        ({"hidden": "8x0e+8x1o"}, "read from 2e"),
        ({"hidden": "8y0e"}, "cannot read '8y0e'"),
        ({"l_max": 4}, "l_max=4"),
        ({"cutoff": -1.0}, "cutoff=-1.0"),
        ({"elements": (8, 1)}, "ascending"),
        ({"shift": (0.0,)}, "one value for each"),
        ({"layers": 0}, "layers=0"),
        ({"scale": 0.0}, "scale=0.0: not a number from"),
    ],
)
def test_bad_specifications_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spec_of("tiny", **change)
