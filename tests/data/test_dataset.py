"""Batches of a data set with their labels, and the order of epochs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bayrace.data.dataset import Dataset, edge_batches, epoch_batches, equal_batches
from bayrace.data.frame import DataError, elements_of, frame_from_atoms


@pytest.fixture
def frames(labelled_atoms, keys, make_frame):
    read = [frame_from_atoms(atoms, keys=keys) for atoms in labelled_atoms]
    return [*read, make_frame(energy=None, weight=2.0), make_frame(forces=None)]


@pytest.fixture
def dataset(frames):
    references = {z: -1000.0 * z for z in elements_of(frames)}
    return Dataset(frames, elements=elements_of(frames), cutoff=4.0, references=references)


def test_labels_follow_the_atoms_of_the_batch(dataset, frames):
    chosen = [3, 0, 4]
    batch, labels = dataset.batch(chosen, dtype=torch.float64)
    forces = np.concatenate([frames[index].forces for index in chosen])
    np.testing.assert_array_equal(labels.forces[batch.file_order].numpy(), forces)
    numbers = np.concatenate([frames[index].numbers for index in chosen])
    elements = torch.tensor(dataset.elements)
    np.testing.assert_array_equal(elements[batch.species][batch.file_order].numpy(), numbers)
    assert labels.weight.tolist() == [1.0, 1.0, 2.0]


def test_references_are_subtracted_before_the_cast(dataset, frames):
    _, labels = dataset.batch([0], dtype=torch.float32)
    expected = frames[0].energy + 1000.0 * frames[0].numbers.sum()
    assert labels.energy.dtype == torch.float32
    assert labels.energy.item() == np.float32(expected)


def test_missing_labels_are_nan(dataset, frames):
    batch, labels = dataset.batch([1, 4, 5], dtype=torch.float64)
    assert labels.energy.isnan().tolist() == [False, True, False]
    assert labels.stress.isnan().all(dim=1).tolist() == [False, True, True]
    np.testing.assert_array_equal(labels.stress[0].numpy(), frames[1].stress)
    missing = labels.forces.isnan().all(dim=1)
    assert torch.equal(missing, batch.structure_index == 2)


def test_statistics(dataset, frames):
    atoms = sum(len(frame.numbers) for frame in frames)
    assert len(dataset) == 6
    assert dataset.edges.tolist() == [graph.edges.shape[1] for graph in dataset.graphs]
    assert dataset.mean_neighbours() == pytest.approx(dataset.edges.sum() / atoms)
    forces = np.concatenate([frame.forces for frame in frames if frame.forces is not None])
    assert dataset.force_rms() == pytest.approx(np.sqrt((forces**2).mean()))


def test_shortest_distances_are_not_those_of_odd_frames(make_frame):
    lengths = (1.3, 0.2, 0.9, 1.0, 0.5, 1.2)
    frames = [
        replace(
            make_frame(),
            numbers=np.array([1, 8, 8]),
            positions=np.array([[0.0, 0, 0], [0, 0, length], [0, 0, length + 2.5]]),
            forces=np.zeros((3, 3)),
        )
        for length in lengths
    ]

    def shortest(count):
        some = frames[:count]
        found = Dataset(some, elements=(1, 8), cutoff=4.0, references={1: 0.0, 8: 0.0})
        return np.array(found.shortest_distances())

    np.testing.assert_allclose(shortest(6), [[0.0, 0.9], [0.9, 2.5]])
    assert not shortest(2).any()


def test_atomic_shift_is_in_the_order_of_the_elements(make_frame):
    numbers = [np.array(n) for n in ([1, 1, 8], [1, 8, 8], [8, 8, 8])]
    frames = [
        make_frame(numbers=n, energy=-1.0 * (n == 1).sum() - 5.0 * (n == 8).sum()) for n in numbers
    ]
    dataset = Dataset(frames, elements=(1, 6, 8), cutoff=3.0, references={1: 0.5, 8: 1.0})
    assert dataset.atomic_shift() == pytest.approx((-1.5, 0.0, -6.0), abs=1e-12)


def test_statistics_of_unlabelled_isolated_atoms(make_frame):
    atom = make_frame(numbers=np.array([1]), positions=np.zeros((1, 3)), energy=None, forces=None)
    dataset = Dataset([atom], elements=(1,), cutoff=3.0, references={1: 0.0})
    assert dataset.force_rms() == 1.0
    assert dataset.mean_neighbours() == 1.0
    assert dataset.atomic_shift() == (0.0,)
    batch, labels = dataset.batch([0, 0], dtype=torch.float32)
    assert batch.edges.shape == (2, 0)
    assert labels.forces.shape == (2, 3)


def test_zero_forces_have_unit_scale(make_frame):
    dataset = Dataset(
        [make_frame(forces=np.zeros((3, 3)))], elements=(1, 8), cutoff=3.0, references={1: 0, 8: 0}
    )
    assert dataset.force_rms() == 1.0


def test_missing_reference_is_refused(make_frame):
    with pytest.raises(DataError, match="no reference energy of O; known: H"):
        Dataset([make_frame()], elements=(1, 8), cutoff=3.0, references={1: 0.0})


def test_epochs_visit_every_frame_once():
    batches = epoch_batches(11, 4, seed=1, epoch=0, shuffle=True)
    assert [len(batch) for batch in batches] == [4, 4, 3]
    assert sorted(place for batch in batches for place in batch) == list(range(11))


def test_epochs_depend_on_seed_and_epoch_only():
    def order(seed, epoch):
        return epoch_batches(50, 5, seed=seed, epoch=epoch, shuffle=True)

    assert order(1, 3) == order(1, 3)
    assert order(1, 3) != order(1, 4)
    assert order(2, 3) != order(1, 3)
    assert epoch_batches(5, 2, seed=1, epoch=3, shuffle=False) == [[0, 1], [2, 3], [4]]


def test_batch_size_must_be_positive():
    with pytest.raises(DataError, match="batch_size=0"):
        epoch_batches(5, 0, seed=0, epoch=0, shuffle=False)


def test_equal_batches_share_the_edges():
    edges = np.random.default_rng(0).integers(0, 400, size=300)
    batches = equal_batches(edges, 20, seed=1, epoch=2)
    assert sorted(place for batch in batches for place in batch) == list(range(300))
    assert len(batches) == 20
    share = edges.sum() / 20
    assert all(abs(edges[batch].sum() - share) < 450 for batch in batches)
    assert batches == equal_batches(edges, 20, seed=1, epoch=2)
    assert batches != equal_batches(edges, 20, seed=1, epoch=3)


def test_equal_batches_with_a_giant_and_with_lonely_atoms():
    batches = equal_batches(np.array([10_000, 1, 1, 0]), 4, seed=0, epoch=0)
    assert sorted(place for batch in batches for place in batch) == [0, 1, 2, 3]
    assert all(batches)
    alone = equal_batches(np.array([0, 0, 0]), 3, seed=0, epoch=0)
    assert sorted(map(len, alone)) == [1, 1, 1]


def test_edge_batches_keep_the_order_and_the_budget(dataset):
    like = {"weight": torch.zeros(1)}
    largest = int(dataset.edges.max())
    alone = list(edge_batches(dataset, like=like, edges=0))
    assert len(alone) == len(dataset)
    for budget in (0, largest, 2 * largest, 10**9):
        batches = list(edge_batches(dataset, like=like, edges=budget))
        energies = torch.cat([labels.energy for _, labels in batches])
        expected = dataset.batch(range(len(dataset)), dtype=torch.float32)[1].energy
        torch.testing.assert_close(energies, expected, rtol=0, atol=0, equal_nan=True)
        assert all(graph.positions.dtype == torch.float32 for graph, _ in batches)
        for graph, _ in batches:
            assert graph.edges.shape[1] <= max(budget, largest)
    assert len(batches) == 1
