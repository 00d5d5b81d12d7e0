"""The pieces of surface hopping against closed forms and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import expm

from bayrace.simulate.hopping import baeck_an, models
from bayrace.simulate.hopping.electronic import Interval, decohered, propagate, turned
from bayrace.simulate.hopping.initial import finite_difference_hessian, wigner
from bayrace.simulate.hopping.landau_zener import probabilities
from bayrace.simulate.hopping.rescale import kinetic_energy, rescaled
from bayrace.simulate.hopping.surfaces import Array, antisymmetric, same_sign, two_states

ALL = (
    models.simple_crossing,
    models.dual_crossing,
    models.extended_coupling,
    models.double_arch,
)


def eigenvectors(diabats: models.Diabats, x: float, like: np.ndarray | None = None) -> np.ndarray:
    a, b, c = diabats(np.array([x]))[0][:, 0]
    _, vectors = np.linalg.eigh(np.array([[a, c], [c, b]]))
    if like is not None:
        vectors = vectors * np.sign(np.sum(vectors * like, axis=0))
    return vectors


@pytest.mark.parametrize("diabats", ALL)
@pytest.mark.parametrize("x", [-5.2, -2.3, -0.7, 0.4, 1.9, 4.6])
def test_slopes_and_coupling_are_finite_differences(diabats: models.Diabats, x: float) -> None:
    model, step = models.Model(diabats), 1e-4
    ends = [model(np.array([[x + s * step]]), np.array([0])).energies[0] for s in (-1, 1)]
    slopes = (ends[1] - ends[0]) / (2 * step)
    middle = eigenvectors(diabats, x)
    ahead, behind = (eigenvectors(diabats, x + s * step, middle) for s in (1, -1))
    coupling = middle[:, 0] @ (ahead[:, 1] - behind[:, 1]) / (2 * step)
    for state in (0, 1):
        point = model(np.array([[x]]), np.array([state]))
        assert point.gradient[0, 0] == pytest.approx(slopes[state], abs=1e-8)
    assert point.couplings is not None
    assert abs(point.couplings[0, 0, 1, 0]) == pytest.approx(abs(coupling), abs=1e-6)


def test_coupling_vector_of_a_two_state_molecule() -> None:
    """Twelve coordinates, random quadratic diabats: the vector, not only its length."""
    random = np.random.default_rng(3)
    stiff, slope = random.normal(size=(3, 12, 12)), random.normal(size=(3, 12))
    stiff = stiff + stiff.transpose(0, 2, 1)

    def diabats(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return 0.5 * np.einsum("kij,i,j->k", stiff, x, x) + slope @ x, stiff @ x + slope

    def states(x: np.ndarray) -> np.ndarray:
        a, b, c = diabats(x)[0]
        vectors = np.linalg.eigh(np.array([[a, c], [c, b]]))[1]
        return vectors * np.sign(vectors[0])

    x, step = random.normal(size=12), 1e-5
    values, slopes = diabats(x)
    pieces = tuple(s[None] for s in slopes)
    energies, gradients, vector = two_states(values[:1], values[1:2], values[2:], pieces)
    expected = np.zeros(12)
    for k in range(12):
        shift = step * np.eye(12)[k]
        ahead, behind, here = states(x + shift), states(x - shift), states(x)
        expected[k] = here[:, 0] @ (ahead[:, 1] - behind[:, 1]) / (2 * step)
    sign = np.sign(expected @ vector[0])
    np.testing.assert_allclose(sign * vector[0], expected, atol=1e-6)
    low, high = np.linalg.eigvalsh(np.array([[values[0], values[2]], [values[2], values[1]]]))
    np.testing.assert_allclose(energies[0], [low, high], rtol=1e-12)
    assert gradients.shape == (1, 2, 12)


def test_amplitudes_turn_by_the_exponential() -> None:
    random = np.random.default_rng(0)
    for states in (2, 3):
        energies, mixing = random.normal(size=(1, states)), random.normal(size=(1, states, states))
        mixing = mixing - mixing.transpose(0, 2, 1)
        start = random.normal(size=(1, states)) + 1j * random.normal(size=(1, states))
        exact = expm(-(1j * np.diag(energies[0]) / 0.7 + mixing[0]) * 0.3) @ start[0]
        found = turned(start, energies, mixing, 0.3, 0.7)
        np.testing.assert_allclose(found[0], exact, atol=1e-12)


def test_rabi_oscillation_and_its_hops() -> None:
    """Degenerate states with a constant mixing: |c_1|² = sin²(σt), all of it by hops upward."""
    mixing = antisymmetric(np.array([[1.0]]))[..., 0]
    zero = np.zeros((1, 2))
    start = np.array([[1.0 + 0j, 0.0]])
    interval = Interval((zero, zero), (mixing, mixing), 0.5)
    for active in (0, 1):
        end, hop = propagate(start, np.array([active]), interval, substeps=400, hbar=1.0)
        assert abs(end[0, 1]) ** 2 == pytest.approx(np.sin(0.5) ** 2, abs=1e-10)
        if active == 0:
            assert hop[0, 1] == pytest.approx(np.sin(0.5) ** 2, abs=1e-3)
            assert hop[0, 0] == 0.0


def test_decoherence_time() -> None:
    start = np.full((1, 2), np.sqrt(0.5) + 0j)
    end = decohered(
        start, np.array([0]), np.array([[0.0, 2.0]]), np.array([4.0]),
        duration=0.1, hbar=1.0, constant=1.0,
    )  # fmt: skip
    assert abs(end[0, 1]) ** 2 == pytest.approx(0.5 * np.exp(-2 * 0.1 * 2 / (1 + 1 / 4)))
    assert (np.abs(end) ** 2).sum() == pytest.approx(1.0)


def test_rescaling_keeps_the_energy_and_the_smaller_change() -> None:
    random = np.random.default_rng(1)
    velocities, direction = random.normal(size=(2, 50, 6))
    masses, change = random.uniform(1, 3, 6), random.normal(size=50)
    after, possible = rescaled(velocities, masses, change, direction)
    lost = kinetic_energy(velocities, masses) - kinetic_energy(after, masses)
    np.testing.assert_allclose(lost[possible], change[possible], atol=1e-12)
    assert 0 < possible.sum() < 50
    np.testing.assert_array_equal(after[~possible], velocities[~possible])
    none, _ = rescaled(velocities, masses, np.zeros(50), direction)
    np.testing.assert_allclose(none, velocities, atol=1e-12)
    turned_round, _ = rescaled(velocities, masses, change, direction, frustrated="reverse")
    along = (turned_round * direction).sum(1)
    np.testing.assert_allclose(along[~possible], -(velocities * direction).sum(1)[~possible])


def test_landau_zener_of_a_linear_crossing() -> None:
    """Diabats ±αt with coupling c: P = exp(−2πc²/(ħ·2α)) is Landau's and Zener's own."""
    slope, coupling, step = 0.8, 0.3, 1e-3
    times = np.array([-step, 0.0, step]) + 0.2 * step
    gap = 2 * np.sqrt((slope * times) ** 2 + coupling**2)
    energies = tuple(np.array([[-g / 2, g / 2]]) for g in gap)
    found = probabilities(energies, np.array([1]), duration=step, hbar=1.0)
    exact = np.exp(-np.pi * coupling**2 / slope)
    assert found[0].tolist() == pytest.approx([exact, 0.0], rel=1e-4)
    rising = tuple(np.array([[0.0, g]]) for g in (1.0, 2.0, 3.0))
    assert not probabilities(rising, np.array([1]), duration=step, hbar=1.0).any()


def crossing(times: Array, slope: float, coupling: float) -> Array:
    """Adiabats of the diabats ±αt with coupling c, (n, 2)."""
    half = np.sqrt((slope * times) ** 2 + coupling**2)
    return np.stack([-half, half], axis=1)


def test_gaps_tell_the_coupling_of_a_linear_crossing() -> None:
    """Diabats ±αt with coupling c: σ = αc / (2(α²t² + c²)), and so are its gaps' ½√(Z̈/Z)."""
    slope, coupling, step = 0.8, 0.3, 1e-3
    for time in (-0.7, -0.1, 0.0, 0.4):
        energies = crossing(time - step * np.arange(4), slope, coupling)[:, None]
        found = baeck_an.mixing(tuple(energies), duration=step)[0]
        exact = slope * coupling / (2 * ((slope * time) ** 2 + coupling**2))
        np.testing.assert_allclose(found, [[0, exact], [-exact, 0]], rtol=1e-4)
    downwards = [np.array([[0.0, gap]]) for gap in (1.0, 2.0, 2.5, 2.7)]
    assert not baeck_an.mixing(tuple(downwards), duration=step).any()


def test_populations_after_a_linear_crossing_by_gaps_alone() -> None:
    """Landau's and Zener's own share stays on the diabat, P = exp(−πc²/(ħα))."""
    slope, coupling, step = 0.8, 0.25, 0.01
    times = np.arange(-40.0, 40.0, step)
    energies = crossing(times, slope, coupling)[:, None]
    amplitudes, active = np.array([[0.0, 1.0 + 0j]]), np.array([1])
    mixing = [
        baeck_an.mixing(tuple(energies[i - k] for k in range(4)), duration=step)
        for i in range(3, len(times))
    ]
    for place in range(len(mixing) - 1):
        interval = Interval(
            (energies[place + 3], energies[place + 4]), (mixing[place], mixing[place + 1]), step
        )
        amplitudes, _ = propagate(amplitudes, active, interval, substeps=1, hbar=1.0)
    exact = np.exp(-np.pi * coupling**2 / slope)
    assert abs(amplitudes[0, 0]) ** 2 == pytest.approx(exact, abs=0.01)


def test_signs_follow_the_step_before() -> None:
    couplings = antisymmetric(np.random.default_rng(0).normal(size=(4, 9)))
    flipped = couplings * np.array([1, -1, 1, -1])[:, None, None, None]
    np.testing.assert_array_equal(same_sign(flipped, couplings), couplings)


def test_wigner_moments_of_an_oscillator() -> None:
    """⟨½kx²⟩ = ⟨½mv²⟩ = ħω/4 · coth(ħω/2kT) of each mode."""
    stiffness, mass, hbar = np.diag([2.0, 5.0]), np.array([3.0, 3.0]), 0.5
    for thermal in (0.0, 1.0):
        x, v = wigner(np.zeros(2), stiffness, mass, hbar=hbar, count=20000, seed=1, thermal=thermal)
        frequency = np.sqrt(np.array([2.0, 5.0]) / 3.0)
        mean = hbar * frequency / 4
        mean = mean if thermal == 0 else mean / np.tanh(hbar * frequency / (2 * thermal))
        np.testing.assert_allclose((x**2).mean(0) * [1.0, 2.5], mean, rtol=0.03)
        np.testing.assert_allclose((v**2).mean(0) * 1.5, mean, rtol=0.03)


def test_hessian_of_a_quadratic_form() -> None:
    matrix = np.array([[2.0, 0.5], [0.5, 1.0]])
    found = finite_difference_hessian(lambda x: matrix @ x, np.array([0.3, -0.2]))
    np.testing.assert_allclose(found, matrix, atol=1e-12)
