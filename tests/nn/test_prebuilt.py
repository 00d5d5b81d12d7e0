"""Kernels of a wheel are found without a compiler, and only by the right processor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bayrace.nn import prebuilt
from bayrace.nn.compiler import CompilerError, build, build_for, find_compiler, vector_bytes
from bayrace.nn.kernels import kernel_status

SOURCE = "int answer(void) { return VALUE; }\n"


@pytest.fixture
def level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The kind of this processor, with a folder of kernels for it."""
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
    prebuilt.processor.cache_clear()
    found = prebuilt.processor()
    if found is None:
        pytest.skip("no wheel has kernels for this machine")
    yield found
    prebuilt.processor.cache_clear()


def test_found_without_a_compiler(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_for(level, SOURCE, {"VALUE": "42"}, tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".so"]
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CompilerError):
        find_compiler()
    assert build(SOURCE, {"VALUE": "42"}).answer() == 42
    assert vector_bytes() in (32, 64)
    assert "brought along" in kernel_status()
    with pytest.raises(CompilerError):
        build(SOURCE, {"VALUE": "43"})


def test_not_for_another_processor(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = next(name for name in prebuilt.LEVELS if name != level)
    where = prebuilt.place(tmp_path, SOURCE, {"VALUE": "42"}, other)
    where.write_bytes(b"never loaded")
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CompilerError):
        build(SOURCE, {"VALUE": "42"})


def test_damaged_library_is_built_anew(level: str, tmp_path: Path) -> None:
    prebuilt.place(tmp_path, SOURCE, {"VALUE": "44"}, level).write_bytes(b"half of a library")
    assert build(SOURCE, {"VALUE": "44"}).answer() == 44
