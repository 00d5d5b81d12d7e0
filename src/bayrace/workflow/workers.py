"""Members in processes side by side, each on its own cores.

One thread a member, each on a core of its own, is the fast way on a CPU: eight members of the
preset small take 0.5 to 0.6 times the time of eight trainings on two cores. One vmapped step of
eight takes 0.8 times the time of eight steps for ethanol and 1.8 times for 3BPA, where the
intermediates fall out of the cache (benchmarks/members.py).

Data are read and graphs built once, by the parent: see `bayrace.workflow.shared`. With the address
of a dask scheduler the processes are those of its workers, see `bayrace.system.cluster_jobs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bayrace.config import Config, ConfigError, plain_values_of
from bayrace.config.build import train_settings
from bayrace.system.cluster import cluster
from bayrace.system.cluster_jobs import run_on_cluster
from bayrace.system.jobs import Job, Placement, Standing, place, run_jobs
from bayrace.workflow.member import SideBySide


def member_job(
    index: int,
    config: Config,
    *,
    resume: bool | None,
    data: Path | None = None,
    initial: Path | None = None,
) -> Job:
    """The training of a member, which reads its data itself where there are none to share.

    `initial` is the file of an ensemble whose member goes on. `resume` None continues what its
    folder holds when it starts, for a member that is started again where its worker died.
    """
    return Job(
        name=f"member {index}",
        module="bayrace.workflow.member_process",
        task={
            "config": plain_values_of(config),
            "resume": resume,
            "data": None if data is None else str(data),
            "initial": None if initial is None else [str(initial), index],
        },
        remedy="--resume continues it from its last checkpoint",
    )


def place_members(config: Config, how: SideBySide, *, members: int) -> Placement:
    """As many workers as there are cores for them; one on a GPU, where none is pinned.

    On a cluster there are no slots: its workers decide, and each member has one thread unless
    train.threads says other.
    """
    given, workers = config.train.threads, how.workers
    if how.scheduler is not None:
        if workers is not None:
            raise ConfigError(
                f"workers={workers}: those of the cluster at {how.scheduler} train the members, as "
                "many at a time as they have threads; leave --workers out"
            )
        return Placement((), given or 1)
    device = train_settings(config).device
    if device != "cpu":
        if workers not in (None, 1):
            raise ConfigError(
                f"workers={workers}: members on {device} are trained one after another; "
                "leave workers out, or use train.device=cpu"
            )
        return Placement(((),), given)
    return place(members, workers=workers, threads=given, pin=how.pin)


def run_members(
    jobs: Sequence[Job],
    how: SideBySide,
    placement: Placement,
    watch: Callable[[Standing], None],
) -> Standing:
    """Do the jobs of members, on this machine or on a cluster."""
    if how.scheduler is None or not jobs:
        return run_jobs(jobs, placement=placement, watch=watch, stop=how.stop)
    with cluster(workers=1, scheduler=how.scheduler) as client:
        return run_on_cluster(
            client,
            jobs,
            folder=Path.cwd(),
            threads=placement.threads,
            watch=watch,
            stop=how.stop,
        )
