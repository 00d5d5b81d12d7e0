"""The invariants of a batch, checked edge by edge against its graphs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule

from bayrace.data.batch import batch_order, build_graph, collate, separate
from bayrace.data.frame import DataError, frame_from_atoms

ELEMENTS = (1, 6, 8, 14)


def structures():
    slab = Atoms("OH", positions=[[0, 0, 0], [0.7, 0.7, 0]], cell=[3, 2.5, 0], pbc=[1, 1, 0])
    return [molecule("CH3CH2OH"), bulk("Si"), Atoms("C"), slab, molecule("H2O")]


def graph_of(atoms, cutoff=4.0):
    return build_graph(frame_from_atoms(atoms, keys=None), elements=ELEMENTS, cutoff=cutoff)


@pytest.fixture(scope="module")
def graphs():
    return [graph_of(atoms) for atoms in structures()]


@pytest.fixture(scope="module")
def batch(graphs):
    return collate(graphs, elements_count=len(ELEMENTS), dtype=torch.float64)


def test_atoms_are_sorted_by_species_stably_and_can_be_restored(graphs, batch):
    species = torch.cat([graph.species for graph in graphs])
    assert torch.equal(batch.species, species.sort().values)
    assert torch.equal(batch.species[batch.file_order], species)
    positions = torch.cat([graph.positions for graph in graphs])
    assert torch.equal(batch.positions[batch.file_order], positions)
    assert torch.equal(positions[batch_order(batch)], batch.positions)
    counts = [len(graph.species) for graph in graphs]
    assert torch.equal(
        batch.structure_index[batch.file_order],
        torch.arange(5).repeat_interleave(torch.tensor(counts)),
    )
    assert batch.atom_counts().tolist() == counts
    for kind in range(len(ELEMENTS)):
        assert (batch.structure_index[batch.species == kind].diff() >= 0).all()
    assert batch.species_counts == tuple((species == kind).sum().item() for kind in range(4))


def test_edges_are_sorted_by_receiver_and_first_edge_delimits_them(batch):
    assert (batch.edges[0].diff() >= 0).all()
    starts = batch.first_edge
    assert starts[0] == 0
    assert starts[-1] == batch.edges.shape[1]
    for atom in range(batch.n_atoms):
        assert (batch.edges[0][starts[atom] : starts[atom + 1]] == atom).all()


def test_edges_are_those_of_the_graphs(graphs, batch):
    start = 0
    expected = set()
    for graph in graphs:
        places = batch.file_order[start : start + len(graph.species)]
        start += len(graph.species)
        for (i, j), shift in zip(graph.edges.T.tolist(), graph.shifts.tolist(), strict=True):
            expected.add((places[i].item(), places[j].item(), *shift))
    found = {
        (i, j, *map(int, shift))
        for (i, j), shift in zip(batch.edges.T.tolist(), batch.shifts.tolist(), strict=True)
    }
    assert found == expected
    assert len(found) == batch.edges.shape[1]


def test_reverse_edges_and_pairs(batch):
    edges = torch.arange(batch.edges.shape[1])
    assert torch.equal(batch.edges[:, batch.reverse], batch.edges.flip(0))
    assert torch.equal(batch.shifts[batch.reverse], -batch.shifts)
    assert torch.equal(batch.reverse[batch.reverse], edges)
    assert (batch.reverse != edges).all()
    pairs = batch.pair_edges.shape[1]
    assert 2 * pairs == len(edges)
    assert torch.equal(batch.pair[batch.pair_edges], torch.arange(pairs).expand(2, -1))
    assert torch.equal(batch.reverse[batch.pair_edges[0]], batch.pair_edges[1])
    assert (batch.pair_edges[0] < batch.pair_edges[1]).all()
    assert torch.equal(batch.pair_edges.flatten().sort().values, edges)


def test_edge_vectors_are_within_the_cutoff(batch):
    receivers, senders = batch.edges
    images = torch.einsum("ea,eab->eb", batch.shifts, batch.cell[batch.structure_index[receivers]])
    distances = (batch.positions[senders] - batch.positions[receivers] + images).norm(dim=1)
    assert distances.max() < 4.0
    assert distances.min() > 0.5
    assert torch.allclose(distances[batch.reverse], distances, atol=1e-14)


def test_volume_and_cell_of_partly_periodic_structures(batch):
    volume = batch.volume
    assert volume.isnan().tolist() == [True, False, True, True, True]
    assert volume[1].item() == pytest.approx(bulk("Si").get_volume(), rel=1e-12)
    assert torch.equal(batch.cell[0], torch.zeros(3, 3, dtype=torch.float64))
    assert batch.cell[3, 2].tolist() == [0, 0, 0]
    assert batch.cell[3, 0].tolist() == [3, 0, 0]


def test_types_of_the_tensors(graphs):
    batch = collate(graphs, elements_count=4, dtype=torch.float32)
    for name in ("positions", "cell", "volume", "shifts"):
        assert getattr(batch, name).dtype == torch.float32
    whole = (
        "species",
        "edges",
        "structure_index",
        "first_edge",
        "reverse",
        "pair",
        "pair_edges",
        "file_order",
    )
    for name in whole:
        assert getattr(batch, name).dtype == torch.int64


def test_batch_of_isolated_atoms_has_no_edges():
    batch = collate(
        [graph_of(Atoms("O")), graph_of(Atoms("C"))], elements_count=4, dtype=torch.float64
    )
    assert batch.edges.shape == (2, 0)
    assert batch.shifts.shape == (0, 3)
    assert batch.pair_edges.shape == (2, 0)
    assert batch.first_edge.tolist() == [0, 0, 0]
    assert batch.species.tolist() == [1, 2]
    assert batch.structure_index.tolist() == [1, 0]
    assert batch.species_counts == (0, 1, 1, 0)


def test_graph_does_not_share_memory_with_a_moving_calculator():
    atoms = molecule("H2O")
    graph = graph_of(atoms)
    before = graph.positions.clone()
    atoms.positions += 1.0
    assert torch.equal(graph.positions, before)


def test_unknown_element_is_refused_with_the_known_ones():
    frame = frame_from_atoms(molecule("CH3Cl"), keys=None, source="new.xyz", index=4)
    with pytest.raises(
        DataError,
        match=r"new.xyz, frame 4: atom 1 is Cl, which the training data did not have; "
        r"known elements: H, C, O, Si; remove the frame or train",
    ):
        build_graph(frame, elements=ELEMENTS, cutoff=4.0)


def test_element_above_all_known_ones_is_refused():
    with pytest.raises(DataError, match="is Au"):
        graph_of(Atoms("Au"))


def test_empty_batch_is_refused():
    with pytest.raises(DataError, match="0 structures"):
        collate([], elements_count=1, dtype=torch.float64)


def test_collate_is_deterministic(graphs):
    first, second = (collate(graphs, elements_count=4, dtype=torch.float64) for _ in range(2))
    assert torch.equal(first.edges, second.edges)
    assert np.array_equal(first.pair.numpy(), second.pair.numpy())


def test_separate_structures_are_what_they_were(graphs, batch):
    parts = list(separate(batch))
    assert len(parts) == len(graphs)
    for graph, (single, atoms) in zip(graphs, parts, strict=True):
        alone = collate([graph], elements_count=len(ELEMENTS), dtype=torch.float64)
        for name, value in vars(alone).items():
            found = getattr(single, name)
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(found, value, rtol=0, atol=0, equal_nan=True)
            else:
                assert found == value
        assert torch.equal(batch.positions[atoms], single.positions)
