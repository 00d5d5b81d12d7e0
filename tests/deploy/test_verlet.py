"""Reused neighbour lists against lists searched anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule

from bayrace.core.graph import GraphBatch
from bayrace.data.batch import build_graph, collate
from bayrace.data.frame import frame_from_atoms
from bayrace.data.neighbours import edge_lengths, neighbour_list
from bayrace.deploy.verlet import Geometry, VerletList
from bayrace.nn import pairs as kernel
from bayrace.nn.pairs import Start, select_pairs

ELEMENTS = (1, 6, 8, 13)
CUTOFF = 3.5


def make_list(skin: float = 0.6) -> VerletList:
    return VerletList(elements=ELEMENTS, cutoff=CUTOFF, skin=skin, device=torch.device("cpu"))


def geometry(atoms: Atoms) -> Geometry:
    return Geometry(atoms.numbers, atoms.positions.copy(), atoms.cell.array.copy(), atoms.pbc)


def fresh(atoms: Atoms) -> GraphBatch:
    graph = build_graph(frame_from_atoms(atoms, keys=None), elements=ELEMENTS, cutoff=CUTOFF)
    return collate([graph], elements_count=len(ELEMENTS), dtype=torch.float64, device="cpu")


def vectors(batch: GraphBatch) -> torch.Tensor:
    receiver, sender = batch.edges
    offset = batch.shifts @ batch.cell[0]
    return batch.positions[sender] - batch.positions[receiver] + offset


def assert_same_graph(found: GraphBatch, atoms: Atoms) -> None:
    """The same edges as a fresh search, and every invariant of GraphBatch."""
    expected = fresh(atoms)

    def table(batch: GraphBatch) -> np.ndarray:
        rows = np.column_stack([batch.edges.T.numpy(), vectors(batch).numpy().round(8) + 0.0])
        return rows[np.lexsort(rows.T[::-1])]

    np.testing.assert_allclose(table(found), table(expected), atol=2e-8)
    assert torch.equal(found.first_edge, expected.first_edge)
    assert torch.equal(found.species, expected.species)
    assert torch.equal(found.file_order, expected.file_order)
    assert found.species_counts == expected.species_counts
    torch.testing.assert_close(found.volume, expected.volume, equal_nan=True)

    count = found.edges.shape[1]
    assert (found.edges[0].diff() >= 0).all()
    assert torch.equal(found.reverse[found.reverse], torch.arange(count))
    assert torch.equal(found.edges[:, found.reverse], found.edges.flip(0))
    assert torch.equal(found.shifts[found.reverse], -found.shifts)
    assert found.pair_edges.shape == (2, count // 2)
    pairs = torch.arange(count // 2)
    assert torch.equal(found.pair[found.pair_edges], pairs.expand(2, -1))
    assert torch.equal(found.reverse[found.pair_edges[0]], found.pair_edges[1])


def slab() -> Atoms:
    atoms = bulk("Al", cubic=True) * (2, 1, 2)
    atoms.symbols[::3] = "O"
    atoms.pbc = (True, False, True)
    return atoms


@pytest.mark.parametrize(
    "atoms",
    [molecule("CH3CH2OH"), bulk("C"), bulk("Al", cubic=True) * (2, 2, 1), slab()],
    ids=["molecule", "primitive cell", "supercell", "slab"],
)
def test_reuse_finds_what_a_search_finds(atoms: Atoms) -> None:
    generator = np.random.default_rng(0)
    atoms = atoms.copy()
    neighbours = make_list()
    for _ in range(60):
        atoms.positions += generator.normal(0, 0.03, atoms.positions.shape)
        assert_same_graph(neighbours.graph(geometry(atoms), dtype=torch.float64), atoms)
    assert 1 < neighbours.rebuilds < 30  # it is reused, and it is renewed


@pytest.mark.parametrize("periodic", [False, True])
def test_pairs_are_those_of_a_search_in_the_order_of_the_file(periodic: bool) -> None:
    atoms = bulk("Al", cubic=True).repeat(2) if periodic else molecule("CH3CH2OH")
    known, moving = make_list(), np.random.default_rng(3)
    for _ in range(3):
        atoms.positions += 0.05 * moving.normal(size=atoms.positions.shape)
        known.graph(geometry(atoms), dtype=torch.float64)
        ends, distances = known.pairs()
        frame = frame_from_atoms(atoms, keys=None)
        edges, shifts = neighbour_list(frame.positions, frame.cell, frame.pbc, CUTOFF)
        lengths = edge_lengths(frame.positions, frame.cell, frame.pbc, edges, shifts)
        found = sorted(
            (*sorted(pair), d) for pair, d in zip(ends.T.tolist(), distances, strict=True)
        )
        every = sorted(
            (*sorted(pair), d) for pair, d in zip(edges.T.tolist(), lengths, strict=True)
        )
        np.testing.assert_allclose(found, every[::2], atol=1e-12)
    with pytest.raises(ValueError, match="no geometry"):
        make_list().pairs()


def test_changing_cells() -> None:
    generator = np.random.default_rng(1)
    atoms = bulk("Al", cubic=True)
    neighbours = make_list()
    for _ in range(60):
        strain = 0.993 * np.eye(3) + generator.normal(0, 0.002, (3, 3))  # new shells come in
        atoms.set_cell(atoms.cell.array @ strain, scale_atoms=True)
        atoms.positions += generator.normal(0, 0.01, atoms.positions.shape)
        assert_same_graph(neighbours.graph(geometry(atoms), dtype=torch.float64), atoms)
    assert 1 < neighbours.rebuilds < 30


def test_slabs_with_changing_cells() -> None:
    atoms = slab()
    neighbours = make_list()
    for _ in range(5):
        atoms.set_cell(atoms.cell.array * 0.97, scale_atoms=True)
        assert_same_graph(neighbours.graph(geometry(atoms), dtype=torch.float64), atoms)


def test_a_rigid_drift_needs_no_search() -> None:
    atoms = molecule("CH3CH2OH")
    neighbours = make_list(skin=0.1)
    for _ in range(5):
        atoms.positions += 1000.0
        batch = neighbours.graph(geometry(atoms), dtype=torch.float32)
        assert batch.positions.abs().max() < 5.0  # float32 keeps its digits
    assert neighbours.rebuilds == 1


def test_wrapping_by_the_user_is_followed() -> None:
    atoms = bulk("Al", cubic=True) * (2, 2, 2)
    atoms.rattle(0.1, seed=0)
    neighbours = make_list()
    neighbours.graph(geometry(atoms), dtype=torch.float64)
    atoms.positions += (7 * atoms.cell[0] - 3 * atoms.cell[2]) * (np.arange(32) % 2)[:, None]
    assert_same_graph(neighbours.graph(geometry(atoms), dtype=torch.float64), atoms)
    atoms.wrap()
    assert_same_graph(neighbours.graph(geometry(atoms), dtype=torch.float64), atoms)


def test_another_structure_is_noticed() -> None:
    neighbours = make_list()
    for atoms in (
        molecule("CH4"),
        molecule("CH4")[::-1],
        molecule("CO"),
        Atoms("Al"),
        bulk("Al"),
        slab(),
        Atoms("Al", cell=bulk("Al").cell, pbc=[True, True, False]),
    ):
        assert_same_graph(neighbours.graph(geometry(atoms), dtype=torch.float64), atoms)


def test_without_a_skin_every_move_is_a_search() -> None:
    atoms = bulk("Al", cubic=True)
    neighbours = make_list(skin=0.0)
    for step in range(3):
        atoms.rattle(0.01, seed=step)
        assert_same_graph(neighbours.graph(geometry(atoms), dtype=torch.float64), atoms)
    assert neighbours.rebuilds == 3


def test_select_nothing_and_everything() -> None:
    batch = fresh(molecule("CH3CH2OH"))
    pairs = batch.pair_edges.shape[1]
    nothing = select_pairs(batch, torch.zeros(pairs, dtype=torch.bool))
    assert nothing.edges.shape == (2, 0)
    assert not nothing.first_edge.any()
    everything = select_pairs(batch, torch.ones(pairs, dtype=torch.bool))
    for name in ("edges", "shifts", "first_edge", "reverse", "pair", "pair_edges"):
        assert torch.equal(getattr(everything, name), getattr(batch, name))


def test_bad_geometries_are_refused() -> None:
    neighbours = make_list()
    atoms = molecule("CH4")
    atoms.positions[2, 1] = np.nan
    with pytest.raises(ValueError, match=r"atom 2 is at .*nan.*use a smaller time step"):
        neighbours.graph(geometry(atoms), dtype=torch.float64)
    with pytest.raises(ValueError, match="no atoms"):
        neighbours.graph(geometry(Atoms()), dtype=torch.float64)
    flat = Atoms("Al", cell=[3, 3, 0], pbc=True)
    with pytest.raises(ValueError, match=r"the periodic cell vectors .* span a volume of 0"):
        neighbours.graph(geometry(flat), dtype=torch.float64)
    overlapping = Atoms("CO", positions=np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"atoms 0 \(C\) and 1 \(O\) are 0 Å apart"):
        neighbours.graph(geometry(overlapping), dtype=torch.float64)
    with pytest.raises(ValueError, match=r"skin=-1\.0 Å: give a length of zero or more"):
        make_list(skin=-1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_selection_is_the_plain_one(dtype: torch.dtype) -> None:
    batch = fresh(bulk("Al", cubic=True).repeat(2)).to(dtype=dtype)
    pairs = batch.pair_edges.shape[1]
    keep = torch.rand(pairs, generator=torch.Generator().manual_seed(0)) < 0.6
    assert kernel._available(batch.shifts)
    found, expected = select_pairs(batch, keep), kernel._selected(batch, keep)
    for name in kernel._ARRAYS:
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


def test_compiled_distances_are_the_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = fresh(bulk("Al", cubic=True).repeat(2))
    ends, vector = batch.edges[:, batch.pair_edges[0]], batch.shifts[batch.pair_edges[0]]
    count, n = batch.pair_edges.shape[1], batch.n_atoms
    wrap, most = torch.zeros(n, 3, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    centred = batch.positions - batch.positions.mean(0)
    start = Start(
        *(torch.tensor([0, n]), wrap, centred, most, torch.arange(n), ends),
        offsets=vector @ batch.cell[0],
        cutoff=2.9,
    )
    now = (centred + 0.1 * torch.randn(n, 3, generator=torch.Generator().manual_seed(0))).numpy()

    def followed(start: Start, close: torch.Tensor) -> tuple[torch.Tensor, list[bool]]:
        """Squared distances, and whether pairs changed, at first and when asked again."""
        found = [start.follow(now, torch.float64, close) for _ in range(2)]
        return found[0].square, [each.changed for each in found]  # type: ignore[union-attr]

    close = torch.zeros(count, dtype=torch.bool)
    square, changes = followed(start, close)
    assert changes == [True, False]
    assert torch.equal(close, square < 2.9**2)
    assert close.any() and not close.all()  # noqa: PT018
    before = close.clone()
    assert followed(replace(start, cutoff=1.0), close)[1] == [True, False]
    assert not close.any()
    assert replace(start, most=most * 1e-4).follow(now, torch.float64, close) is None
    monkeypatch.setenv("BAYRACE_KERNEL", "plain")
    expected, changes = followed(start, close)
    torch.testing.assert_close(square, expected, rtol=1e-13, atol=0)
    assert torch.equal(before, close)
    assert changes == [True, False]
    assert replace(start, most=most * 1e-4).follow(now, torch.float64, close) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_structures_that_move_together(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several structures, compiled and plain: graphs of a search, and reused."""
    moving = np.random.default_rng(5)
    several = [molecule("CH3CH2OH"), bulk("Al", cubic=True) * (2, 2, 1), slab(), bulk("C")]
    fast, plain = make_list(), make_list()
    for _ in range(25):
        for atoms in several:
            atoms.positions += moving.normal(0, 0.03, atoms.positions.shape)
        given = [geometry(atoms) for atoms in several]
        monkeypatch.setenv("BAYRACE_KERNEL", "auto")
        found = fast.batch(given, dtype=dtype)
        pairs = fast.pairs()
        monkeypatch.setenv("BAYRACE_KERNEL", "plain")
        expected = plain.batch(given, dtype=dtype)
        graphs = [
            build_graph(frame_from_atoms(each, keys=None), elements=ELEMENTS, cutoff=CUTOFF)
            for each in several
        ]
        searched = collate(graphs, elements_count=len(ELEMENTS), dtype=dtype)
        for name in ("species", "structure_index", "file_order", "first_edge", "volume", "cell"):
            value = getattr(found, name)
            torch.testing.assert_close(value, getattr(expected, name), equal_nan=True)
            torch.testing.assert_close(value, getattr(searched, name), equal_nan=True)
        torch.testing.assert_close(found.positions, expected.positions)
        assert torch.equal(found.edges, expected.edges)
        for value, other in zip(pairs, plain.pairs(), strict=True):
            np.testing.assert_allclose(value, other, rtol=1e-12)
    assert fast.rebuilds == plain.rebuilds
    assert 1 < fast.rebuilds < 12
    far = [replace(each, positions=each.positions + 1.0 * (k == 2)) for k, each in enumerate(given)]
    fast.batch(far, dtype=dtype)  # one of them drifts as a whole
    assert fast.rebuilds == plain.rebuilds
    far[1].positions[3] += 0.5
    fast.batch(far, dtype=dtype)
    assert fast.rebuilds == plain.rebuilds + 1
    far[1].positions[3] = np.nan
    with pytest.raises(ValueError, match="atom 3 is at"):
        fast.batch(far, dtype=dtype)
