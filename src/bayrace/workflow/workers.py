"""Members in processes side by side, each on its own cores.

One thread a member, each on a core of its own, is the fast way on a CPU: eight members of the
preset small take 0.5 to 0.6 times the time of eight trainings on two cores. One vmapped step of
eight takes 0.8 times the time of eight steps for ethanol and 1.8 times for 3BPA, where the
intermediates fall out of the cache (benchmarks/members.py).

Data are read and graphs built once, by the parent: see `bayrace.workflow.shared`.
"""

from __future__ import annotations

from pathlib import Path

from bayrace.config import Config, ConfigError, plain_values_of
from bayrace.config.build import train_settings
from bayrace.system.jobs import Job, Placement, place


def member_job(
    index: int,
    config: Config,
    *,
    resume: bool,
    data: Path | None = None,
    initial: Path | None = None,
) -> Job:
    """The training of a member, which reads its data itself where there are none to share.

    `initial` is the file of an ensemble whose member goes on.
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


def place_members(
    config: Config, *, members: int, workers: int | None, pin: bool = True
) -> Placement:
    """As many workers as there are cores for them; one on a GPU, where none is pinned."""
    given, device = config.train.threads, train_settings(config).device
    if device != "cpu":
        if workers not in (None, 1):
            raise ConfigError(
                f"workers={workers}: members on {device} are trained one after another; "
                "leave workers out, or use train.device=cpu"
            )
        return Placement(((),), given)
    return place(members, workers=workers, threads=given, pin=pin)
