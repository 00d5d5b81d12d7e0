"""Acquisitions against Monte Carlo, brute force and the symmetries of space."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from bayrace.calibrate.calibration import Calibration, Recalibration
from bayrace.core.prediction import Prediction, Uncertain
from bayrace.models.noise import NO_NOISE, NoiseSpec
from bayrace.posterior.ensemble import Ensemble
from bayrace.predict.moments import with_label_noise
from bayrace.select.acquire import ACQUISITIONS, AcquisitionError, acquisition
from bayrace.select.acquire.bald import energy_information, force_information
from bayrace.select.acquire.descriptors import nearest, sorted_distances
from bayrace.select.acquire.diverse import greedy
from bayrace.select.acquire.interface import Pool, reduce_over_atoms
from bayrace.testing import random_frame

SAMPLES = 200_000


def mixture(members, *, spread, seed=0):
    """Energies and forces of one atom: means and noises of `members` Gaussians."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    root = normal(members, 3, 3) * 0.1 + torch.eye(3) * torch.tensor([0.5, 1.0, 2.0])
    return (
        spread * normal(members),
        torch.exp(0.2 * normal(members)),
        spread * normal(members, 3) @ normal(3, 3),
        root @ root.mT,
    )


def moments(energies, variances, forces, covariances):
    """The prediction that such members make together."""
    deviation = forces - forces.mean(0)
    return Prediction(
        energy=Uncertain(
            energies.mean()[None],
            variances.mean()[None],
            energies.var(correction=0)[None],
            mean_log=variances.log().mean()[None],
        ),
        forces=Uncertain(
            forces.mean(0)[None],
            covariances.mean(0)[None],
            (deviation.T @ deviation / len(forces))[None],
            mean_log=torch.logdet(covariances).mean()[None],
        ),
        stress=None,
        atomic_energy=energies.mean()[None],
        structure_index=torch.zeros(1, dtype=torch.int64),
    )


def sampled_information(means, covariances, *, matched, samples=SAMPLES, seed=1):
    """Monte Carlo estimate of the mutual information of label and member, nats.

    `matched`: the entropy of the mixture is that of the Gaussian with its moments.
    """
    generator = torch.Generator().manual_seed(seed)
    members = torch.distributions.MultivariateNormal(means, covariances)
    which = torch.randint(len(means), (samples,), generator=generator)
    white = torch.randn(samples, means.shape[1], generator=generator, dtype=torch.float64)
    labels = means[which] + torch.einsum("sij,sj->si", members.scale_tril[which], white)
    own = torch.distributions.MultivariateNormal(means[which], covariances[which])
    conditional = own.log_prob(labels)
    if matched:
        deviation = means - means.mean(0)
        total = covariances.mean(0) + deviation.T @ deviation / len(means)
        whole = torch.distributions.MultivariateNormal(means.mean(0), total).log_prob(labels)
    else:
        parts = [
            torch.logsumexp(members.log_prob(block[:, None]), -1) - np.log(len(means))
            for block in labels.split(2000)
        ]
        whole = torch.cat(parts)
    return float((conditional - whole).mean())


@pytest.mark.parametrize("members", [2, 5])
@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_bald_is_the_information_of_matched_moments(members, spread):
    energies, variances, forces, covariances = mixture(members, spread=spread)
    prediction = moments(energies, variances, forces, covariances)
    expected = sampled_information(energies[:, None], variances[:, None, None], matched=True)
    assert float(energy_information(prediction)) == pytest.approx(expected, rel=0.02)
    expected = sampled_information(forces, covariances, matched=True)
    assert float(force_information(prediction)) == pytest.approx(expected, rel=0.02)


def test_bald_is_the_information_of_many_members_themselves():
    """Where members are many and Gaussian, so is their mixture, and nothing is approximated."""
    generator = torch.Generator().manual_seed(3)
    means = torch.randn(400, 3, generator=generator, dtype=torch.float64)
    covariances = torch.diag(torch.tensor([0.6, 1.0, 1.4])).double().expand(400, 3, 3)
    prediction = moments(means[:, 0], covariances[:, 0, 0], means, covariances)
    few = {"matched": False, "samples": 40_000}
    exact = sampled_information(means[:, :1], covariances[:, :1, :1], **few)
    assert float(energy_information(prediction)) == pytest.approx(exact, rel=0.02)
    exact = sampled_information(means, covariances, **few)
    assert float(force_information(prediction)) == pytest.approx(exact, rel=0.02)


def test_bald_bounds_the_information_of_few_members():
    """No distribution of these moments has more entropy than the Gaussian; log M is the most."""
    energies, variances, forces, covariances = mixture(3, spread=3.0, seed=4)
    exact = sampled_information(forces, covariances, matched=False)
    found = float(force_information(moments(energies, variances, forces, covariances)))
    assert exact < np.log(3) + 0.01
    assert found > exact + 0.1


def test_bald_of_a_potential_by_hand(make_potential):
    potential = make_potential(seeds=(0, 1, 2))
    frames = [random_frame((1, 6, 8), 7, seed=s) for s in range(3)]
    whole = potential.predict(frames)
    singles = [
        replace(potential, posterior=Ensemble({k: v[m : m + 1] for k, v in weights.items()}))
        for weights in [potential.members]
        for m in range(3)
    ]
    each = [single.predict(frames) for single in singles]
    noise = torch.stack([p.energy.aleatoric.log() for p in each]).mean(0)
    expected = 0.5 * (whole.energy.total.log() - noise)
    torch.testing.assert_close(energy_information(whole), expected)
    noise = torch.stack([torch.logdet(p.forces.aleatoric) for p in each]).mean(0)
    atoms = 0.5 * (torch.logdet(whole.forces.total) - noise).reshape(3, 7)
    for over, expected in (("mean", atoms.mean(1)), ("max", atoms.amax(1)), ("sum", atoms.sum(1))):
        torch.testing.assert_close(force_information(whole, over_atoms=over), expected)
    assert (energy_information(whole) > 0).all()


def test_one_member_tells_nothing(make_potential):
    prediction = make_potential(seeds=(0,)).predict(random_frame((1, 6), 6, seed=0))
    assert energy_information(prediction).abs().max() < 1e-12
    assert force_information(prediction).abs().max() < 1e-12


def test_noise_that_only_the_posterior_knows(make_potential):
    """Laplace finds one noise for all labels: BALD is then ½ log(1 + epistemic / noise)."""
    silent = make_potential(seeds=(0, 1, 2), noise=NO_NOISE).predict(
        random_frame((1, 6), 6, seed=0)
    )
    noisy = with_label_noise(silent, {"energy": 0.3, "forces": 0.2})
    expected = 0.5 * (1 + silent.energy.epistemic / 0.09).log()
    torch.testing.assert_close(energy_information(noisy), expected)
    ratio = torch.eye(3, dtype=torch.float64) + silent.forces.epistemic / 0.04
    torch.testing.assert_close(force_information(noisy)[0], 0.5 * torch.logdet(ratio).mean())


def test_a_calibration_changes_no_information(make_potential):
    potential = make_potential(seeds=(0, 1))
    frame = random_frame((1, 6, 8), 9, seed=2)
    raw = potential.predict(frame)
    factors = Recalibration(3.0, 9, by_element={1: 0.5, 6: 2.0})
    scaled = Calibration("scale", Recalibration(0.2, 9), factors, None, 9, "x")
    calibrated = replace(potential, calibration=scaled).predict(frame)
    assert not torch.allclose(raw.forces.total, calibrated.forces.total)
    torch.testing.assert_close(energy_information(calibrated), energy_information(raw))
    torch.testing.assert_close(force_information(calibrated), force_information(raw))


@pytest.mark.parametrize("by", ["bald-energy", "bald-force", "bald-ef", "bald-diverse"])
def test_without_noise_bald_names_the_remedy(make_potential, by):
    prediction = make_potential(seeds=(0, 1), noise=NO_NOISE).predict(random_frame((1,), 4, seed=0))
    with pytest.raises(AcquisitionError, match=r"choose by variance.*nll_jef"):
        acquisition(by).measure(prediction, over_atoms="mean")


def test_energy_noise_alone_is_enough_for_bald_energy(make_potential):
    noise = NoiseSpec("energy", "extensive", "equivariant", stress=False)
    prediction = make_potential(seeds=(0, 1), noise=noise).predict(random_frame((1,), 4, seed=0))
    assert acquisition("bald-energy").measure(prediction, over_atoms="mean")["bald-energy"] > 0
    with pytest.raises(AcquisitionError, match="no noise"):
        acquisition("bald-force").measure(prediction, over_atoms="mean")


PREDICTING = [by for by, each in ACQUISITIONS.all().items() if each.needs.prediction != "none"]


@pytest.mark.parametrize("by", PREDICTING)
def test_scores_do_not_depend_on_the_frame_of_reference(make_potential, by):
    potential = make_potential(seeds=(0, 1, 2))
    frame = random_frame((1, 6, 8), 9, seed=5)
    random = np.random.default_rng(0)
    turn, order = np.linalg.qr(random.normal(size=(3, 3)))[0], random.permutation(9)
    moved = replace(
        frame, positions=(frame.positions @ turn.T + 3.0)[order], numbers=frame.numbers[order]
    )
    for over in ("mean", "max", "sum"):
        before, after = (
            acquisition(by).measure(potential.predict(each), over_atoms=over)
            for each in (frame, moved)
        )
        for name, value in before.items():
            torch.testing.assert_close(after[name], value, rtol=1e-8, atol=1e-10)


def test_descriptors_do_not_depend_on_the_frame_of_reference():
    frame = random_frame((1, 6, 8), 9, seed=5)
    random = np.random.default_rng(0)
    turn, order = np.linalg.qr(random.normal(size=(3, 3)))[0], random.permutation(9)
    moved = replace(
        frame, positions=(frame.positions @ turn.T + 3.0)[order], numbers=frame.numbers[order]
    )
    np.testing.assert_allclose(sorted_distances(moved), sorted_distances(frame), atol=1e-12)
    swapped = replace(frame, numbers=np.roll(frame.numbers, 1))
    assert np.abs(sorted_distances(swapped) - sorted_distances(frame)).max() > 0.01


def test_sorted_distances_of_water_by_hand():
    water = replace(
        random_frame((1, 8), 3, seed=0),
        numbers=np.array([1, 8, 1]),
        positions=np.array([[3.0, 0, 0], [0, 0, 0], [0, 4.0, 0]]),
    )
    expected = np.array([5.0, 3.0, 4.0]) / np.sqrt(3)  # H-H, then H-O
    np.testing.assert_allclose(sorted_distances(water), expected)


def pool(free=10, **content):
    content.setdefault("columns", {})
    return Pool(free=np.ones(free, dtype=bool), **content)


def taken(by, pool, count, *, seed=0):
    """What an acquisition takes from a pool whose structures are all different."""
    picks = []
    for pick in islice(acquisition(by).order(pool, seed=seed), count):
        pool.free[pick.place] = False
        picks.append(pick)
    return picks


def test_half_by_energy_half_by_force_without_duplicates():
    rising = np.arange(10.0)
    columns = {"bald-energy": rising, "bald-force": rising[::-1] + (np.arange(10) == 9) * 20}
    picks = taken("bald-ef", pool(columns=columns), 6)
    assert [pick.by for pick in picks] == ["bald-force", "bald-energy"] * 3
    assert [pick.place for pick in picks] == [9, 8, 0, 7, 1, 6]  # 9 is the best of both
    assert len(taken("bald-ef", pool(columns=columns), 99)) == 10


def test_farthest_points_of_a_line():
    line = np.arange(11.0)[:, None]
    seeded = pool(11, descriptors=line, known_descriptors=np.zeros((1, 1)))
    picks = taken("farthest", seeded, 4)
    assert [pick.place for pick in picks[:2]] == [10, 5]
    assert [pick.score for pick in picks] == [10.0, 5.0, 2.0, 2.0]
    alone = taken("farthest", pool(11, descriptors=line), 3)
    assert {pick.place for pick in alone} == {0, 5, 10}


def test_diverse_is_the_greedy_determinant():
    random = np.random.default_rng(0)
    features, known = random.normal(size=(30, 4)), random.normal(size=(12, 4))
    picks = taken("diverse", pool(30, features=features, known_features=known), 6)
    gram = known.T @ known
    gram += 1e-6 * np.trace(gram) / 4 * np.eye(4)
    left = set(range(30))
    for pick in picks:  # brute force
        size = {i: np.linalg.slogdet(gram + np.outer(features[i], features[i]))[1] for i in left}
        assert pick.place == max(size, key=size.__getitem__)
        assert pick.score == pytest.approx((size[pick.place] - np.linalg.slogdet(gram)[1]) / 2)
        gram += np.outer(features[pick.place], features[pick.place])
        left.remove(pick.place)


def test_greedy_variances_are_those_of_a_gaussian_process():
    points = np.random.default_rng(1).normal(size=(8, 3))
    everything = pool(8)
    found = []
    for index, variance in islice(greedy(points, everything, noise=0.5), 3):
        kernel = points @ points.T
        inside = kernel[np.ix_(found, found)] + 0.5 * np.eye(len(found))
        across = kernel[index, found]
        expected = kernel[index, index] - across @ np.linalg.solve(inside, across)
        assert variance == pytest.approx(expected)
        everything.free[index] = False
        found.append(index)


def test_bald_times_diversity_prefers_news_to_repetition():
    random = np.random.default_rng(2)
    features = random.normal(size=(20, 6))
    features[1] = features[0] + 1e-3  # like the best, and nearly as informative
    information = np.linspace(0.2, 0.1, 20)
    information[:2] = 1.0, 0.99
    columns = {"bald-energy": information, "bald-force": 3 * information}
    picks = taken("bald-diverse", pool(20, columns=columns, features=features), 5)
    assert picks[0].place == 0
    assert 1 not in [pick.place for pick in picks]
    by_bald = taken("bald-ef", pool(20, columns=columns), 2)
    assert [pick.place for pick in by_bald] == [0, 1]


def test_random_is_uniform_and_seeded():
    counts = np.zeros(5)
    for seed in range(400):
        counts[[pick.place for pick in taken("random", pool(5), 2, seed=seed)]] += 1
    assert np.abs(counts / 400 - 0.4).max() < 0.1  # four standard errors
    first = [pick.place for pick in taken("random", pool(), 5, seed=3)]
    assert first == [pick.place for pick in taken("random", pool(), 5, seed=3)]


def test_variance_takes_energies_and_forces_in_turn():
    columns = {"variance-energy": np.arange(10.0), "variance-force": -np.arange(10.0) + 20}
    assert [pick.place for pick in taken("variance", pool(columns=columns), 4)] == [0, 9, 1, 8]
    zero = {name: np.zeros(10) for name in columns}
    with pytest.raises(AcquisitionError, match="no uncertainty to choose by"):
        taken("variance", pool(columns=zero), 1)


def test_variance_of_a_structure(make_potential):
    prediction = make_potential(seeds=(0, 1)).predict(random_frame((1, 6), 6, seed=1))
    found = acquisition("variance").measure(prediction, over_atoms="max")
    assert float(found["variance-energy"]) == pytest.approx(float(prediction.energy.total) / 6)
    traces = prediction.forces.total.diagonal(dim1=1, dim2=2).sum(-1) / 3
    assert float(found["variance-force"]) == pytest.approx(float(traces.max()))


def test_nearest_by_products_and_by_differences_agree():
    random = np.random.default_rng(0)
    points, others = random.normal(size=(50, 7)), random.normal(size=(40, 7))
    expected = np.linalg.norm(points[:, None] - others, axis=-1)
    np.testing.assert_allclose(nearest(points, others), expected.min(1), atol=1e-7)
    np.testing.assert_allclose(nearest(points, others[:3]), expected[:, :3].min(1))
    assert np.isinf(nearest(points, others[:0])).all()


def test_over_atoms_of_structures_of_different_sizes():
    values, owner = torch.tensor([1.0, 2.0, -6.0]), torch.tensor([0, 1, 1])
    assert reduce_over_atoms(values, owner, 2, over_atoms="mean").tolist() == [1.0, -2.0]
    assert reduce_over_atoms(values, owner, 2, over_atoms="max").tolist() == [1.0, 2.0]
    assert reduce_over_atoms(values, owner, 2, over_atoms="sum").tolist() == [1.0, -4.0]


def test_a_wrong_name_is_told_the_right_one():
    with pytest.raises(AcquisitionError, match="did you mean bald-ef"):
        acquisition("bald_ef")
