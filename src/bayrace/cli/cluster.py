"""Commands that may leave their predictions to several processes, or to a dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bayrace.potential.cluster import OnCluster
    from bayrace.potential.potential import Potential

Processes = Annotated[
    int, typer.Option("--workers", min=1, help="Processes that predict, on this machine.")
]
Scheduler = Annotated[
    str | None, typer.Option(help="Address of a dask scheduler; default: this machine.")
]


@contextmanager
def loaded(
    model: Path, *, device: str, workers: int, scheduler: str | None
) -> Iterator[tuple[Potential, OnCluster | None]]:
    """The potential of a file, and the same on a cluster if there is to be one.

    One worker is this process itself. A cluster has its own devices, so that the potential here
    stays on the CPU.
    """
    from bayrace.potential.cluster import OnCluster
    from bayrace.potential.potential import Potential
    from bayrace.system.cluster import cluster

    if scheduler is None and workers == 1:
        yield Potential.load(model, device=device), None
        return
    potential = Potential.load(model, device="cpu")
    with cluster(workers=workers, scheduler=scheduler, processes=True) as client:
        yield potential, OnCluster(potential, client, device)
