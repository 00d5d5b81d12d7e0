"""Results of an earlier call outlive a disk that is full while new ones are written."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bayrace.report import figures


@contextmanager
def full_disk(most: int = 100) -> Iterator[None]:
    """No file can grow beyond so many bytes; Python turns the signal into an OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("command", ["report", "evaluate", "compare"])
def test_the_old_file_stays(bayrace, model, data, tmp_path, command):
    target = tmp_path / "result"
    target.write_text("of an earlier call")
    arguments = {
        "report": ("report", model, "--test", data / "test.xyz", "-o", target),
        "evaluate": ("evaluate", model, data / "test.xyz", "--json", target),
        "compare": (
            *("compare", model, "--id", data / "test.xyz", "--json", target),
            *("--rounds", 1, "--timed", 1),
        ),
    }
    with full_disk():
        result = bayrace(*arguments[command])
    assert result.exit_code == 2, result.output
    assert f"{target}: File too large" in result.stderr
    assert target.read_text() == "of an earlier call"
    assert list(tmp_path.iterdir()) == [target]


def test_an_old_figure_stays(tmp_path):
    target = tmp_path / "figure.png"
    target.write_text("of an earlier call")
    with full_disk(), pytest.raises(OSError, match="too large"):
        figures.save(figures.learning_curves([]), target)
    assert target.read_text() == "of an earlier call"
