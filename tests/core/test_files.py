"""Files that are replaced as a whole, through links, and never in place of a device."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from ase import Atoms

from bayrace.core.files import remove_temporaries, whole_file
from bayrace.data.write import write_extxyz
from bayrace.train.checkpoint import write_atomically


@pytest.fixture
def link(tmp_path: Path) -> Path:
    """A link to a file in another folder."""
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "real.xyz").write_text("old")
    (tmp_path / "link.xyz").symlink_to(tmp_path / "far" / "real.xyz")
    return tmp_path / "link.xyz"


def test_links_stay_and_their_targets_are_replaced(link: Path) -> None:
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert (link.parent / "far" / "real.xyz").read_text() == "new"
    write_extxyz(link, [Atoms("H")])
    assert link.is_symlink()
    assert (link.parent / "far" / "real.xyz").read_text().startswith("1\n")
    assert len(list(link.parent.rglob("*"))) == 3


def test_what_failed_leaves_the_old_file_alone(link: Path) -> None:
    with pytest.raises(FileExistsError), whole_file(link) as part:
        part.touch() or part.touch(exist_ok=False)
    assert link.read_text() == "old"
    assert len(list(link.parent.rglob("*"))) == 3


def test_errors_name_the_file_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    target = tmp_path / "file" / "x.xyz"  # where nothing can be written, and nothing removed
    with pytest.raises(NotADirectoryError) as caught, whole_file(target) as part:
        part.write_text("new")
    assert caught.value.filename == str(target)


def test_leftovers_behind_a_link_are_found(link: Path) -> None:
    left = link.parent / "far" / ".real.xyz.1-2.tmp"
    left.write_text("half")
    remove_temporaries(link)
    assert not left.exists()


@pytest.mark.skipif(os.name != "posix", reason="POSIX pipes")
def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard: list[str] = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()))
    reader.start()
    write_atomically(pipe, b"hello")
    reader.join()
    assert heard == ["hello"]
    assert pipe.is_fifo()
