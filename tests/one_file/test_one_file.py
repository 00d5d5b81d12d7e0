"""A method of every kind is one file: those that CONTRIBUTING shows, followed to the letter.

Once they are a package of somebody else, which lies on the path with metadata as pip leaves them;
once they lie in the rooms of a copy of bayrace. In a process of its own they are then used by
configurations, the command line and the conformance suites.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KINDS = {  # file: (entry points, name, class, folder)
    "posterior": ("posteriors", "jitter", "JitterOptions", "posterior"),
    "acquisition": ("acquisitions", "tallest", "Tallest", "select/acquire"),
    "recalibration": ("recalibrations", "median", "Median", "calibrate"),
    "oracle": ("oracles", "springs", "Springs", "label/oracles"),
    "model": ("models", "springy", "SpringySpec", "models"),
}


def shown() -> dict[str, str]:
    """The files of CONTRIBUTING by the names in their first lines."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^```python\n# theirs/(\w+)\.py\n(.*?)^```", text, re.M | re.S))


def as_a_package(site: Path) -> Path:
    """Entry points lead to them; returns where bayrace is."""
    about = site / "theirs-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    entries = [
        f"[bayrace.{group}]\n{name} = theirs.{file}:{kind}\n"
        for file, (group, name, kind, _) in KINDS.items()
    ]
    (about / "entry_points.txt").write_text("\n".join(entries))
    (site / "theirs").mkdir()
    for file, text in shown().items():
        (site / "theirs" / f"{file}.py").write_text(text, "utf-8")
    return ROOT / "src"


def in_the_tree(site: Path) -> Path:
    """Each in its room, with METHODS at its end; `theirs` only says where they are."""
    source = site.parent / "src"
    shutil.copytree(
        ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    (site / "theirs").mkdir(parents=True)
    for file, text in shown().items():
        _, name, kind, folder = KINDS[file]
        whole = f"{text}\n\nMETHODS = ({kind},)\n"
        (source / "bayrace" / folder / f"{name}.py").write_text(whole, "utf-8")
        module = f"bayrace.{folder.replace('/', '.')}.{name}"
        (site / "theirs" / f"{file}.py").write_text(f"from {module} import *\n")
    return source


@pytest.mark.parametrize("install", [as_a_package, in_the_tree])
def test_one_file_of_each_kind(install, tmp_path: Path) -> None:
    assert set(shown()) == set(KINDS)
    source = install(tmp_path / "site")
    path = os.pathsep.join([str(tmp_path / "site"), str(source), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "error", str(Path(__file__).with_name("use_them.py"))],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert done.stdout.endswith(f"all five were used with {source}\n"), done.stdout[-2000:]
