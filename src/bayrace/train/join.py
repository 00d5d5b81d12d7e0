"""Joining the processes that torchrun, or something like it, has started for one training."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from bayrace.train.team import ALONE, LostProcess, Team

_PATIENCE = timedelta(hours=1)  # one process reads data or compiles while the others wait


def started_together() -> bool:
    """Whether this process was started as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


@contextmanager
def joined() -> Iterator[Team]:
    """The team of this process, connected: gloo on CPUs, NCCL between GPUs; `ALONE` by default.

    It is told by the environment (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT). The
    device "cuda" is the GPU of this process from then on.
    """
    if not started_together():
        yield ALONE
        return
    gpus = torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % gpus)
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise LostProcess(
            f"the processes of this training do not find each other: {error}; start them with "
            "`torchrun --nproc-per-node N -m bayrace train config.yaml`"
        ) from error
    try:
        yield Team(dist.get_rank(), dist.get_world_size())
    finally:
        leave()


def leave() -> None:
    """Let the others go; what follows is the work of one process. Harmless where there are none."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
