"""A method of every kind is one file: here a package of somebody else brings one of each.

The package lies on the path with metadata as pip leaves them. In a process of its own its methods
are used by configurations, the command line and the conformance suites.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ENTRIES = {
    "bayrace.posteriors": "jitter = theirs.posterior:JitterOptions",
    "bayrace.acquisitions": "tallest = theirs.acquisition:Tallest",
    "bayrace.recalibrations": "median = theirs.recalibration:Median",
    "bayrace.oracles": "springs = theirs.oracle:Springs",
    "bayrace.models": "springy = theirs.model:SpringySpec",
}


def test_one_file_of_each_kind_from_another_package(tmp_path: Path) -> None:
    package = tmp_path / "site" / "theirs"
    shutil.copytree(HERE / "theirs", package, ignore=shutil.ignore_patterns("__pycache__"))
    about = package.with_name("theirs-1.0.dist-info")
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    lines = [f"[{group}]\n{entry}\n" for group, entry in ENTRIES.items()]
    (about / "entry_points.txt").write_text("\n".join(lines))
    source = str(Path(__file__).resolve().parents[2] / "src")
    path = os.pathsep.join([str(package.parent), source, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "error", str(HERE / "use_them.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert done.stdout.endswith("all five were used\n"), done.stdout[-2000:]
