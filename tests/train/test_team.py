"""Several processes give the loss, the gradient and the metrics of one."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from bayrace.train.team import ALONE, Team

SCRIPT = Path(__file__).with_name("team_script.py")


def test_every_loss_is_that_of_one_process() -> None:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT)]
    ended = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found = {(name, size): float(x) for name, size, x in map(str.split, ended.stdout.splitlines())}
    assert len(found) == 7 * 3
    assert max(found.values()) < 1e-12, found


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_a_batch_is_shared_whole_and_evenly(size: int) -> None:
    indices, work = [7, 3, 9, 1, 4], [10, 200, 30, 150, 20]
    shares = [Team(rank, size).share(indices, work) for rank in range(size)]
    assert sorted(itertools.chain.from_iterable(shares)) == sorted(indices)
    assert all(share == [index for index in indices if index in share] for share in shares)
    if size == 2:
        assert shares == [[7, 3], [9, 1, 4]]


def test_one_alone_hears_itself() -> None:
    assert ALONE.total([1.0, 2.0]) == [1.0, 2.0]
    assert ALONE.gather("mine") == ["mine"]
    assert ALONE.leads
