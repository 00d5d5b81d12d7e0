"""Data that were read, checked and turned into graphs once, for all members of an ensemble."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bayrace.config import Config
from bayrace.data import packed
from bayrace.data.dataset import Dataset
from bayrace.data.frame import Frame
from bayrace.potential.potential import Potential
from bayrace.workflow.fit import Prepared, Splits
from bayrace.workflow.folder import SHARED
from bayrace.workflow.prepare import with_network

_TEST = "test "  # before the names of test sets


@contextmanager
def shared_data(folder: Path, ready: Prepared) -> Iterator[Path | None]:
    """A file with the data of a run, which is gone afterwards; None where they stay on disk."""
    if ready.splits.disk is not None:  # each member has a sample, and readers of its own
        yield None
        return
    sets = {"train": ready.train, "valid": ready.valid}
    frames: dict[str, Sequence[Frame]] = {name: data.frames for name, data in sets.items()}
    frames |= {f"{_TEST}{name}": test for name, test in ready.splits.test.items()}
    content = {
        "references": list(ready.train.references.items()),
        "isolated": list(ready.splits.isolated.items()),
        "elements": list(ready.train.elements),
        "cutoff": ready.train.cutoff,
    }
    graphs = {name: data.graphs for name, data in sets.items()}
    packed.save(folder / SHARED, packed.Packed(frames, graphs, content))
    try:
        yield folder / SHARED
    finally:
        (folder / SHARED).unlink(missing_ok=True)


def prepared_from(path: Path, config: Config, *, initial: Potential | None = None) -> Prepared:
    """What `prepare` makes of a configuration, with the data of a file that `shared_data` wrote."""
    held = packed.load(path)

    def dataset(name: str) -> Dataset:
        return Dataset(
            held.frames[name],
            elements=tuple(held.content["elements"]),
            cutoff=held.content["cutoff"],
            references=dict(held.content["references"]),
            graphs=held.graphs[name],
        )

    splits = Splits(
        train=list(held.frames["train"]),
        valid=list(held.frames["valid"]),
        test={
            name.removeprefix(_TEST): list(frames)
            for name, frames in held.frames.items()
            if name.startswith(_TEST)
        },
        isolated=dict(held.content["isolated"]),
    )
    return with_network(config, splits, dataset("train"), dataset("valid"), initial=initial)
