"""The cache of compiled kernels: what cannot be kept or trusted is done without, and said once."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bayrace.nn import compiler
from bayrace.nn.compiler import CompilerError, build, cache_folder
from bayrace.nn.kernels import kernel_status

SOURCE = "int answer(void) { return 42; }\n"

pytestmark = pytest.mark.skipif(kernel_status().startswith("plain"), reason="no C compiler")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BAYRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def library(cache: Path) -> Path:
    (found,) = cache.glob("*.so")
    return found


def test_a_truncated_library_is_built_anew(cache: Path) -> None:
    """Loading it would be SIGBUS."""
    code = f"from bayrace.nn.compiler import build; print(build({SOURCE!r}, {{}}).answer())"
    for _ in range(2):
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (ended.returncode, ended.stdout.strip()) == (0, "42"), ended.stderr
        path = library(cache)
        path.write_bytes(path.read_bytes()[:5000])


def test_several_compilers_at_once(cache: Path) -> None:
    """Each has the library, and one whole library stays, with nothing of the work beside it."""
    code = f"from bayrace.nn.compiler import build; print(build({SOURCE!r}, {{}}).answer())"
    command, pipes = [sys.executable, "-c", code], {"stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, **pipes) for _ in range(3)]
    assert [each.communicate()[0].strip() for each in started] == ["42"] * 3
    path = library(cache)
    expected = hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.with_suffix(".sha256").read_text().strip() == expected
    assert len(list(cache.iterdir())) == 2


def test_a_planted_library_is_not_loaded(cache: Path, tmp_path: Path) -> None:
    build(SOURCE, {})
    path = library(cache)
    content = path.read_bytes()
    planted = build(SOURCE.replace("42", "13"), {})
    assert planted.answer() == 13
    (other,) = (each for each in cache.glob("*.so") if each != path)
    path.unlink()
    path.write_bytes(other.read_bytes())
    assert build(SOURCE, {}).answer() == 42
    assert path.read_bytes() == content


def test_folders_that_others_may_write_are_refused(cache: Path) -> None:
    cache.mkdir()
    for mode in (0o777, 0o775, 0o1777):
        cache.chmod(mode)
        with pytest.raises(CompilerError, match="chmod go-w"):
            cache_folder()
    cache.chmod(0o755)
    assert cache_folder() == cache


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_folders_of_other_users_are_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir()
    os.chown(cache, 12345, 12345)
    with pytest.raises(CompilerError, match="another user"):
        cache_folder()


def test_no_home_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BAYRACE_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(compiler.Path, "home", homeless)
    with pytest.raises(CompilerError, match="set BAYRACE_CACHE"):
        build(SOURCE, {})


def test_a_cache_that_cannot_be_made_is_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BAYRACE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(CompilerError, match="set BAYRACE_CACHE"):
        build(SOURCE, {})


FALLBACK = """
import logging
logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
import torch
from bayrace.models.race.network import Race
from bayrace.testing import small_spec
from bayrace.models.noise import NO_NOISE
spec = small_spec((1, 8), cutoff=4.0, mean_neighbours=8.0, noise=NO_NOISE)
Race(spec).prepare(torch.float32)
print("predicts")
"""


@pytest.mark.parametrize("trouble", ["full disk", "writable by all"])
def test_programs_fall_back_with_one_warning(trouble: str, cache: Path) -> None:
    cache.mkdir(mode=0o700)
    code = FALLBACK
    if trouble == "full disk":  # of a file; the compiler itself hears of it as SIGXFSZ
        code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n" + code
    else:
        cache.chmod(0o777)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout.strip()) == (0, "predicts"), ended.stderr
    assert ended.stderr.count("WARNING compiled kernels are off") == 1
