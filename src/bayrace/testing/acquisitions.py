"""What every acquisition must satisfy: it takes what is free, once, and the same again."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import is_dataclass
from itertools import islice

from bayrace.data.frame import Frame
from bayrace.potential.potential import Potential
from bayrace.select.acquire import Acquisition
from bayrace.select.acquire.interface import Pick, Pool
from bayrace.select.scan import Scanning, common_composition, scan


def check_acquisition(
    acquisition: Acquisition, potential: Potential, frames: Sequence[Frame], *, seed: int = 0
) -> None:
    """Check a way to choose among frames by a potential that has what it asks for.

    It numbers every structure of a pool, takes each that is free once and none that is not, also
    where others are taken in between, and does the same for the same seed.
    """
    assert is_dataclass(acquisition), "an acquisition is a dataclass; its fields are its options"
    assert pickle.loads(pickle.dumps(acquisition)) == acquisition, "it changes in another process"  # noqa: S301
    kind = common_composition(frames)
    found = scan(potential, frames, chooser=acquisition, seen=(), how=Scanning(), kind=kind)

    def pool() -> Pool:
        made = found.pool()
        made.free[0] = False
        return made

    for name, column in pool().columns.items():
        assert column.shape == (len(frames),), f"{name} has shape {column.shape}"
    picks = _taken(acquisition, pool(), seed)
    places = [pick.place for pick in picks]
    assert sorted(places) == list(range(1, len(frames))), f"takes {places}, and 0 is not free"
    assert picks == _taken(acquisition, pool(), seed), "the same seed chooses otherwise"
    few = pool()
    few.free[places[1]] = False
    first = [pick.place for pick in islice(acquisition.order(few, seed=seed), 1)]
    assert first == places[:1], "a structure that is not free changes the first choice"


def _taken(acquisition: Acquisition, pool: Pool, seed: int) -> list[Pick]:
    picks = []
    for pick in acquisition.order(pool, seed=seed):
        assert pool.free[pick.place], f"takes {pick.place}, which is not free"
        pool.free[pick.place] = False
        picks.append(pick)
        assert len(picks) <= len(pool), "goes on though nothing is free"
    return picks
