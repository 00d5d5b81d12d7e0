"""Units, signs and outliers that are planted in good data are found, and nothing in good data."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

from bayrace.core.units import BOHR, GPA, HARTREE, KCAL_PER_MOL
from bayrace.data.bonds import shortest_distances, stiffnesses
from bayrace.data.doubts import determined, doubts, reference_doubts, voice
from bayrace.data.embedded import EMBEDDED, embedded_frames
from bayrace.data.frame import DataError, split_isolated
from bayrace.data.succession import succession_doubts, tenth_apart
from bayrace.data.work import energy_and_work


@pytest.fixture(scope="module")
def ethanol():
    return embedded_frames("ethanol-train")[:60]


@pytest.fixture(scope="module")
def ammonia():
    return embedded_frames("ammonia-train")


def scaled(frames, *, energy=1.0, forces=1.0, lengths=1.0):
    return [
        replace(
            frame,
            energy=frame.energy * energy,
            forces=frame.forces * forces,
            positions=frame.positions * lengths,
            cell=frame.cell * lengths,
        )
        for frame in frames
    ]


def found(frames):
    return [str(doubt) for doubt in doubts({"train": frames})]


@pytest.mark.parametrize(
    "name", [name for name in EMBEDDED if not name.endswith("atoms") and "meth" not in name]
)
def test_good_data_are_not_doubted(name):
    assert found(split_isolated(embedded_frames(name))[0]) == []


@pytest.mark.parametrize("data", ["ethanol", "ammonia"])
@pytest.mark.parametrize(
    ("units", "message"),
    [
        ({"forces": -1.0}, "stretched bonds .* push and the energy rises .* change their sign"),
        ({"energy": 1 / HARTREE}, "energies in hartree; convert"),
        ({"energy": 1 / KCAL_PER_MOL}, "energies in kcal/mol; convert"),
        (
            {"energy": 1 / HARTREE, "forces": BOHR / HARTREE},
            "forces look like hartree/bohr or hartree/Å",
        ),
        (
            {"energy": 1 / KCAL_PER_MOL, "forces": 1 / KCAL_PER_MOL},
            "forces look like kcal/mol/Å; convert them to eV/Å",
        ),
        ({"lengths": 1 / BOHR}, "lengths look like bohr; convert them to Å"),
        ({"lengths": BOHR}, "lengths are too short"),
    ],
)
def test_planted_units_are_named(request, data, units, message):
    (only,) = found(scaled(request.getfixturevalue(data), **units))
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(only)


@pytest.mark.parametrize("unit", [GPA, GPA / 10])
def test_stress_in_another_unit_is_named(ammonia, unit):
    """1.2 to 2.2 GPa, read as eV/Å³."""
    (only,) = found([replace(frame, stress=frame.stress / unit) for frame in ammonia])
    assert "they look like GPa or kbar; convert them to eV/Å³" in only
    compressed = [replace(frame, stress=frame.stress - 50 * GPA) for frame in ammonia]
    assert found(compressed) == []


def test_total_energies_with_all_electrons_tell_their_unit(ethanol):
    atoms = {1: -0.5, 6: -37.84, 8: -75.07}
    hartree = sum(atoms[int(number)] for number in ethanol[0].numbers) - 1.2
    frames = [
        replace(frame, energy=hartree + 0.001 * place, forces=None)
        for place, frame in enumerate(ethanol)
    ]
    (only,) = found(frames)
    assert "energies look like hartree" in only
    assert found(scaled_energies(frames, HARTREE)) == []
    (only,) = found(scaled_energies(frames, HARTREE / KCAL_PER_MOL))
    assert "energies look like kcal/mol" in only


def scaled_energies(frames, factor):
    return [replace(frame, energy=frame.energy * factor) for frame in frames]


def test_outliers_and_copies_are_named_by_frame(ethanol):
    frames = [*ethanol, replace(ethanol[3], index=77)]
    frames[5] = replace(frames[5], energy=frames[5].energy + 500.0)
    energy, copy = found(frames)
    assert "frame 5: energy per atom" in energy
    assert "robust deviations from the median, by 55.5" in energy
    assert "frame 77: 1 geometries are repeated; the first is" in copy
    split = [str(doubt) for doubt in doubts({"train": frames[:60], "test": frames[60:]})]
    assert "are in two sets" in split[-1]


def test_single_atoms_should_be_marked(ethanol):
    (atom,) = [f for f in embedded_frames("ethanol-atoms") if f.numbers[0] == 1]
    (only,) = found([*ethanol, replace(atom, config_type="Default")])
    assert "mark them with config_type=IsolatedAtom" in only


def test_frames_without_labels_among_others_are_named(ethanol):
    bare = [replace(frame, energy=None, forces=None, source="bare.xyz") for frame in ethanol[:3]]
    (only,) = [text for text in found([*ethanol[3:], *bare]) if "neither energy" in text]
    assert only.startswith("bare.xyz, frames 0, 1, 2: ")
    assert not any("neither energy" in text for text in found(bare))  # to be predicted


def test_labels_that_never_change_are_doubted(ethanol):
    zero = [replace(frame, energy=0.0, forces=0.0 * frame.forces) for frame in ethanol]
    texts = found(zero)
    assert any("all forces are 0;" in text for text in texts)
    assert any("all energies are 0 eV;" in text for text in texts)
    assert not any("all forces" in text for text in found([ethanol[0], *zero[1:]]))


def test_energies_that_no_chemistry_has_are_doubted(ethanol):
    energies = np.linspace(1.0, 3.0, len(ethanol)) * 1e7
    wild = [replace(frame, energy=e) for frame, e in zip(ethanol, energies, strict=True)]
    (doubt,) = found(wild)
    assert "energies of the same atoms differ by 5.65e+05 eV per atom; check their unit" in doubt


def test_atoms_alone_in_their_cells_have_no_forces(make_frame):
    cells = [
        make_frame(
            numbers=np.array([29]),
            positions=np.full((1, 3), 0.01 * place),
            cell=(2.2 + 0.05 * place) * np.eye(3),
            pbc=np.ones(3, dtype=bool),
            energy=0.1 * place,
            forces=np.zeros((1, 3)),
            index=place,
        )
        for place in range(12)
    ]
    assert found(cells) == []


def test_references_must_be_of_the_same_kind(ethanol):
    atoms = split_isolated(embedded_frames("ethanol-atoms"))[1]
    assert reference_doubts(ethanol, atoms, given=True) == []
    (only,) = reference_doubts(
        ethanol, {z: energy / HARTREE for z, energy in atoms.items()}, given=True
    )
    assert "eV per atom beyond the reference energies" in str(only)


def test_fitted_references_are_doubted_only_where_they_mean_something(ethanol):
    odd = {1: -808.0, 6: -900.0, 8: -100.0}
    assert not determined(ethanol, (1, 6, 8))  # one molecule: only the sum counts
    assert reference_doubts(ethanol, odd, given=False) == []
    parts = [
        replace(frame, numbers=frame.numbers[:n], positions=frame.positions[:n])
        for frame in ethanol[:4]
        for n in (2, 3, 5, 9)
    ]
    assert determined(parts, (1, 6, 8))
    assert reference_doubts(parts, {1: -16.0, 6: -1030.0, 8: -2040.0}, given=False) == []
    assert "H has −13.6 eV" in str(reference_doubts(parts, odd, given=False)[0])


def test_strict_refuses_and_otherwise_warns(ethanol, caplog):
    doubtful = doubts({"train": scaled(ethanol, forces=-1.0)})
    with caplog.at_level(logging.WARNING):
        voice(doubtful, strict=False)
    assert "change their sign" in caplog.text
    with pytest.raises(DataError, match=r"(?s)look wrong in 1 way:.*without --strict"):
        voice(doubtful, strict=True)


def test_springs_have_the_stiffness_they_were_given(make_frame):
    random = np.random.default_rng(0)
    frames = []
    for _ in range(50):
        length = 1.0 + 0.05 * random.normal()
        force = -30.0 * (length - 1.0)
        frames.append(
            make_frame(
                numbers=np.array([1, 8]),
                positions=np.array([[0.0, 0, 0], [0, 0, length]]),
                forces=np.array([[0.0, 0, -force], [0, 0, force]]),
                energy=15.0 * (length - 1.0) ** 2,
            )
        )
    (spring,) = stiffnesses(frames)
    assert spring.value == pytest.approx(30.0)
    assert spring.correlation == pytest.approx(-1.0)
    work = energy_and_work(frames)
    assert work.ratio == pytest.approx(1.0)
    assert work.correlation == pytest.approx(1.0)


def test_turned_molecules_do_the_same_work(ethanol):
    random = np.random.default_rng(1)
    turned = []
    for frame in ethanol:
        matrix = np.linalg.qr(random.normal(size=(3, 3)))[0]
        matrix *= np.linalg.det(matrix)
        turned.append(
            replace(frame, positions=frame.positions @ matrix + 5.0, forces=frame.forces @ matrix)
        )
    assert energy_and_work(turned).ratio == pytest.approx(energy_and_work(ethanol).ratio, rel=1e-6)


def test_shortest_distances_of_pairs(make_frame):
    frame = make_frame(
        numbers=np.array([1, 8]),
        positions=np.array([[0.1, 0, 0], [2.9, 0, 0]]),
        cell=np.diag([3.5, 20, 20]),
        pbc=np.array([True, False, False]),
        forces=None,
    )
    assert shortest_distances([frame]) == pytest.approx({"H-H": 3.5, "H-O": 0.7, "O-O": 3.5})


def moving(frames, *, step):
    """A trajectory through the geometries of some frames, `step` from each to the next."""
    places = np.stack([frame.positions for frame in frames])
    times = np.arange(0, len(frames) - 1, step)
    part = (times % 1)[:, None, None]
    path = (1 - part) * places[times.astype(int)] + part * places[times.astype(int) + 1]
    return [replace(frames[0], positions=each, index=place) for place, each in enumerate(path)]


@pytest.mark.parametrize("data", ["ethanol", "ammonia"])
def test_validation_frames_that_follow_training_frames_are_doubted(data, request):
    frames = request.getfixturevalue(data)
    train, valid = tenth_apart(moving(frames, step=0.1))
    (doubt,) = succession_doubts(train, valid)
    assert "frames that follow each other differ by" in doubt.what
    assert doubt.where == frames[0].source
    assert any(
        "follow each other" in str(each) for each in doubts({"train": train, "valid": valid})
    )


@pytest.mark.parametrize("data", ["ethanol", "ammonia"])
def test_a_trajectory_of_its_own_or_rare_frames_are_not_doubted(data, request):
    frames = request.getfixturevalue(data)
    path = moving(frames, step=0.1)
    last = len(path) - len(path) // 10
    assert succession_doubts(path[:last], path[last:]) == []
    assert succession_doubts(*tenth_apart(frames)) == []
    others = [replace(frame, source="other.xyz") for frame in path[5::10]]
    assert succession_doubts(path, others) == []
