"""The cluster within this process: nobody else can reach it, and it says nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bayrace.system.cluster import cluster

pytest.importorskip("distributed")
psutil = pytest.importorskip("psutil")


def test_nothing_listens_to_the_network():
    own = psutil.Process()
    before = {each.laddr for each in own.net_connections() if each.status == "LISTEN"}
    with cluster(workers=2, scheduler=None) as client:
        assert client.submit(sum, [1, 2]).result() == 3
        now = {each.laddr for each in own.net_connections() if each.status == "LISTEN"}
    assert {address.ip for address in now - before} <= {"127.0.0.1", "::1"}


def test_it_is_quiet():
    """In a process of its own, with the logging of the commands; a failing task is told by us."""
    code = (
        "import logging; logging.basicConfig(level=logging.INFO)\n"
        "from bayrace.system.cluster import cluster\n"
        "with cluster(workers=2, scheduler=None) as client:\n"
        "    assert client.submit(sum, [1, 2]).result() == 3\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert done.stderr == ""
