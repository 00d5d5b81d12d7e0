"""`bayrace label` as users run it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ase.io
import numpy as np
import pytest
from click.testing import Result

pytest.importorskip("distributed")

Command = Callable[..., Result]


def test_labels_by_name(bayrace: Command, data: Path, tmp_path: Path) -> None:
    output = tmp_path / "labelled.xyz"
    result = bayrace("label", data / "test.xyz", "--oracle", "gfn2", "-o", output, "--workers", 2)
    assert result.exit_code == 0, result.output
    assert "4 labelled structures" in result.output
    before, after = (ase.io.read(path, index=":") for path in (data / "test.xyz", output))
    for old, new in zip(before, after, strict=True):  # the embedded labels are GFN2-xTB
        assert new.get_potential_energy() == pytest.approx(old.get_potential_energy(), abs=1e-6)
        np.testing.assert_allclose(new.get_forces(), old.get_forces(), atol=2e-6)
    again = bayrace("label", data / "test.xyz", "--oracle", "gfn2", "-o", output)
    assert again.exit_code == 2
    assert "--resume" in again.output
    resumed = bayrace("label", data / "test.xyz", "--oracle", "gfn2", "-o", output, "--resume")
    assert resumed.exit_code == 0, resumed.output


def test_one_is_one(bayrace: Command, data: Path, tmp_path: Path) -> None:
    output = tmp_path / "labelled.xyz"
    result = bayrace("label", data / "test.xyz@0", "--oracle", "gfn2", "-o", output)
    assert result.output.startswith("1 structure, GFN2-xTB")
    assert "1 labelled structure: " in result.output


def test_failures_are_reported(bayrace: Command, data: Path, tmp_path: Path) -> None:
    output = tmp_path / "labelled.xyz"
    common = ("label", data / "hot.xyz@:2", "-o", output, "--retries", 0)
    result = bayrace(*common, "--oracle", "tblite.ase:TBLite", "-a", "max_iterations=1")
    assert result.exit_code == 1, result.output
    assert "0 labelled structures" in result.output
    assert "frame 1: tblite.ase:TBLite failed" in result.output
    assert "no label for 2 structures" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--oracle", "gfn3"), "gfn1, gfn2"),
        (("--oracle", "gfn2", "-a", "chrage=1"), "did you mean xtb.charge"),
        (("--oracle", "gfn2", "-a", "charge"), "write key=value"),
        (("--oracle", "command"), "needs command.command"),
        (("--oracle", "nowhere.yaml"), "no such file"),
        (("--oracle", "nowhere.bayrace"), "no such file"),
        (("--oracle", "gfn2", "--timeout", "soon"), "not a duration"),
    ],
)
def test_mistakes(
    options: tuple[str, ...], message: str, bayrace: Command, data: Path, tmp_path: Path
) -> None:
    result = bayrace("label", data / "test.xyz", "-o", tmp_path / "labelled.xyz", *options)
    assert result.exit_code == 2
    assert message in result.output


def test_a_program_in_a_file(bayrace: Command, data: Path, tmp_path: Path) -> None:
    config = tmp_path / "oracle.yaml"
    config.write_text(
        "oracle:\n  kind: command\n  command:\n    command: cp {input} {output}\n"
        "    input: in.xyz\n    output: out.xyz\n",
        encoding="utf-8",
    )
    output = tmp_path / "labelled.xyz"
    result = bayrace("label", data / "test.xyz@0", "--oracle", config, "-o", output)
    assert result.exit_code == 1
    assert "out.xyz has no energy or no forces" in result.output
