"""Reference energies: exact where given, minimum-norm where fitted."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from bayrace.data.frame import DataError
from bayrace.data.reference import fit_references, mean_energies, reference_energy

TRUE = {1: -13.5, 6: -1029.4, 8: -2041.9}


@pytest.fixture
def frames(make_frame):
    random = np.random.default_rng(0)
    sets = [np.array(random.choice([1, 6, 8], size=5)) for _ in range(30)]
    return [make_frame(numbers=n, energy=sum(TRUE[int(z)] for z in n)) for n in sets]


def test_least_squares_recovers_the_truth(frames):
    fitted = fit_references(frames, given=None)
    assert fitted == pytest.approx(TRUE, rel=1e-12)
    assert list(fitted) == [1, 6, 8]


def test_given_energies_are_used_when_complete(frames):
    given = {1: -1.0, 6: -2.0, 8: -3.0, 79: -4.0}
    assert fit_references(frames, given=given) == {1: -1.0, 6: -2.0, 8: -3.0}
    assert fit_references(frames, given={"H": -1.0, "C": -2.0, "O": -3.0}) == {
        1: -1.0,
        6: -2.0,
        8: -3.0,
    }


def test_incomplete_energies_are_replaced_by_a_fit(frames, caplog):
    with caplog.at_level(logging.WARNING):
        fitted = fit_references(frames, given={1: -1.0})
    assert fitted == pytest.approx(TRUE, rel=1e-12)
    assert "lack C, O" in caplog.text


def test_one_composition_gets_the_minimum_norm_solution(make_frame):
    fitted = fit_references([make_frame(energy=-10.0), make_frame(energy=-20.0)], given=None)
    # H2O: E = 2 h + o of least norm has h = 2 E / 5 and o = E / 5
    assert fitted == pytest.approx({1: -6.0, 8: -3.0}, rel=1e-12)


def test_frames_without_energies_give_zeros(make_frame):
    assert fit_references([make_frame(energy=None)], given=None) == {1: 0.0, 8: 0.0}


def test_reference_energy_sums_in_double_precision():
    numbers = np.array([1, 6, 8, 1])
    assert reference_energy(numbers, TRUE) == pytest.approx(-13.5 * 2 - 1029.4 - 2041.9, rel=1e-15)


def test_reference_energy_of_an_unknown_element():
    with pytest.raises(DataError, match="no reference energy of Si; known: H, C, O"):
        reference_energy(np.array([1, 14]), TRUE)


def test_unknown_symbol_is_refused(frames):
    with pytest.raises(DataError, match="reference energy of 'Xq': no such element"):
        fit_references(frames, given={"Xq": 1.0})


def test_mean_energies_beyond_the_references(frames):
    references = {1: -13.0, 6: -1029.0, 8: -2041.0}
    shift = mean_energies(frames, elements=(1, 6, 8), references=references)
    assert shift == pytest.approx((-0.5, -0.4, -0.9), abs=1e-9)
