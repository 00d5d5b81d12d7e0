"""One training by several processes, as torchrun starts them.

    torchrun --nproc-per-node 4 -m bayrace train config.yaml

The first process does what bayrace.workflow.train does. The others only take their share of every
batch and of every validation; they write and print nothing, and end with the training. The noise
heads, the posterior, the calibration and the tests that follow are the first one's work.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from bayrace.config import Config, ConfigError
from bayrace.train.callbacks import Callbacks
from bayrace.train.team import Team
from bayrace.workflow.fit import fit_task, posterior_method
from bayrace.workflow.prepare import prepare
from bayrace.workflow.train import in_team, train_network


def check_team(config: Config, team: Team, *, members: int | None) -> None:
    """Refuse what several processes cannot train together."""
    if team.alone:
        return
    if members is not None:
        raise ConfigError(
            f"{members} members under torchrun: the members of an ensemble are processes of their "
            "own already; start `bayrace train --members` without torchrun, or train one member "
            "after another, each with `torchrun … -m bayrace train -s posterior=point -s seed=…`"
        )
    if config.train.device.startswith("cuda:"):
        raise ConfigError(
            f"train.device: {config.train.device} under torchrun: each process has a GPU of its "
            "own; use cuda, or auto"
        )


def follow(config: Config, team: Team, *, resume: bool, callbacks: Callbacks) -> str:
    """The part of every process but the first; why the training ended."""
    if config.train.threads is not None:
        torch.set_num_threads(config.train.threads)
    ready = prepare(config)
    task = fit_task(config, ready, None, folder=Path(config.output), calls=callbacks)
    task = in_team(replace(task, resume=resume), team)
    team.wait()  # the first has data and folder that can be used
    method = posterior_method(config)
    if method.trains == "itself":
        training = method.fit(task).training
        assert training is not None
        return training.reason
    return train_network(config, task, lambda *_: None).reason


def orphaned(stop: Callable[[], bool]) -> Callable[[], bool]:
    """`stop`, which also says so once the process that started this one is gone."""
    parent = os.getppid()
    return lambda: stop() or os.getppid() != parent
