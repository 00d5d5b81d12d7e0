"""Members in processes side by side, each on its own cores.

One thread a member, each on a core of its own, is the fast way on a CPU: eight members of the
preset small take 0.5 to 0.6 times the time of eight trainings on two cores. One vmapped step of
eight takes 0.8 times the time of eight steps for ethanol and 1.8 times for 3BPA, where the
intermediates fall out of the cache (benchmarks/members.py).

Every member reads the data and builds its graphs itself. That is 0.2 s for the 400 structures of
the embedded ethanol, beside 1.4 s for imports and minutes of training: sharing them would save
less than half a per cent, at the price of a cache that can go stale.
"""

from __future__ import annotations

from bayrace.config import Config, ConfigError, plain_values_of
from bayrace.config.build import train_settings
from bayrace.system.jobs import Job, Placement, place


def member_job(index: int, config: Config, *, resume: bool, initial: str | None = None) -> Job:
    """The training of a member; `initial` is the file of an ensemble whose member goes on."""
    return Job(
        name=f"member {index}",
        module="bayrace.workflow.member_process",
        task={
            "config": plain_values_of(config),
            "resume": resume,
            "initial": None if initial is None else [initial, index],
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
