"""Electronic amplitudes along a step of the nuclei, and the fluxes that decide about hops.

    ċ_i = −(i/ħ) E_i c_i − Σ_j σ_ij c_j + r_i c_i,      σ_ij = v·⟨i|∇j⟩

Energies and σ are interpolated linearly over the step, which is cut into substeps; each is the
exponential at its middle, so that the norm is kept exactly. The rates r_i are those of a
decoherence by the exact factorisation (see `factorisation`); Σ |c_i|² r_i = 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bayrace.simulate.hopping.surfaces import Array, Complex, Whole

Rates = Callable[[Array], Array]
"""From populations (T, S) to the rates r (T, S)."""


@dataclass(frozen=True, eq=False)
class Interval:
    """What the amplitudes see during one step."""

    energies: tuple[Array, Array]  # (T, S), at its beginning and its end
    mixing: tuple[Array, Array]  # σ (T, S, S), at its beginning and its end
    length: float  # of time


def propagate(
    amplitudes: Complex,
    active: Whole,
    interval: Interval,
    *,
    substeps: int,
    hbar: float,
    rates: Rates | None = None,
) -> tuple[Complex, Array]:
    """Amplitudes (T, S) at the end, and the probability of a hop to each state, (T, S).

    Fewest switches (Tully 1990): the population that leaves the active state a for j,
    2 Re(c_a* c_j σ_aj), over |c_a|². Over substeps the probabilities of not having hopped multiply.
    """
    rows = np.arange(len(amplitudes))
    duration = interval.length / substeps
    stay = np.ones(len(amplitudes))
    hop = np.zeros(amplitudes.shape)
    for substep in range(substeps):
        fraction = (substep + 0.5) / substeps
        energies = (1 - fraction) * interval.energies[0] + fraction * interval.energies[1]
        mixing = (1 - fraction) * interval.mixing[0] + fraction * interval.mixing[1]
        before = amplitudes
        amplitudes = turned(amplitudes, energies, mixing, duration, hbar)
        middle = (before + amplitudes) / 2
        flux = 2 * (middle[rows, active].conj()[:, None] * middle * mixing[rows, active]).real
        present = np.maximum(np.abs(middle[rows, active]) ** 2, 1e-12)
        share = np.clip(flux, 0.0, None) * duration / present[:, None]
        share[rows, active] = 0.0
        share /= np.maximum(share.sum(1), 1.0)[:, None]
        hop += stay[:, None] * share
        stay = stay * (1 - share.sum(1))
        if rates is not None:
            amplitudes = amplitudes * np.exp(rates(np.abs(amplitudes) ** 2) * duration)
            amplitudes /= np.linalg.norm(amplitudes, axis=1, keepdims=True)
    return amplitudes, hop


def turned(
    amplitudes: Complex, energies: Array, mixing: Array, duration: float, hbar: float
) -> Complex:
    """exp(−(iE/ħ + σ) t) c, exactly: in closed form for two states, by eigenvectors for more."""
    if energies.shape[1] == 2:
        half = (energies[:, 0] - energies[:, 1]) / (2 * hbar)
        strength = mixing[:, 0, 1]
        frequency = np.sqrt(half**2 + strength**2)
        cosine = np.cos(frequency * duration)
        sine = duration * np.sinc(frequency * duration / np.pi)  # sin(ωt)/ω
        first, second = amplitudes.T
        phase = np.exp(-1j * energies.mean(1) * duration / hbar)
        return np.stack(
            [
                phase * ((cosine - 1j * half * sine) * first - strength * sine * second),
                phase * (strength * sine * first + (cosine + 1j * half * sine) * second),
            ],
            axis=1,
        )
    hermitian = -1j * hbar * mixing
    diagonal = np.arange(energies.shape[1])
    hermitian[:, diagonal, diagonal] = energies
    values, vectors = np.linalg.eigh(hermitian)
    inside = np.einsum("tji,tj->ti", vectors.conj(), amplitudes)
    inside *= np.exp(-1j * values * duration / hbar)
    result: Complex = np.einsum("tij,tj->ti", vectors, inside)
    return result


def mixing_matrix(couplings: Array, velocities: Array) -> Array:
    """σ_ij = v·⟨i|∇j⟩, (T, S, S)."""
    result: Array = np.einsum("tijd,td->tij", couplings, velocities)
    return result


def decohered(
    amplitudes: Complex,
    active: Whole,
    energies: Array,
    kinetic: Array,
    *,
    duration: float,
    hbar: float,
    constant: float,
) -> Complex:
    """Energy-based decoherence (Granucci and Persico 2007): the other amplitudes die out.

    τ_j = ħ/|E_j − E_a| · (1 + C/E_kin), c_j → c_j exp(−t/τ_j), and the active state takes the rest.
    """
    rows = np.arange(len(amplitudes))
    gap = np.abs(energies - energies[rows, active][:, None])
    slowness = 1 + constant / np.maximum(kinetic, 1e-12 * constant)[:, None]
    result = amplitudes * np.exp(-duration * gap / (hbar * slowness))
    others = (np.abs(result) ** 2).sum(1) - np.abs(result[rows, active]) ** 2
    own = amplitudes[rows, active]
    size = np.maximum(np.abs(own), 1e-300)
    result[rows, active] = own / size * np.sqrt(np.maximum(1 - others, 0.0))
    return result
