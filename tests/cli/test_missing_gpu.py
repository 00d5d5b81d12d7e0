"""A GPU that is not there is one line in every command, and in Python."""

from __future__ import annotations

import pytest
import torch

from bayrace import Calculator
from bayrace.potential.potential import PotentialError, resolve_device

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
MESSAGE = "device='cuda', but torch sees no GPU; use auto or cpu"


@pytest.mark.parametrize("command", ["predict", "evaluate", "md", "select", "report", "calibrate"])
def test_commands(bayrace, model, data, tmp_path, command):
    test = data / "test.xyz"
    arguments = {
        "predict": (model, test, "-o", tmp_path / "p.xyz"),
        "evaluate": (model, test),
        "md": (model, f"{test}@0", "--temperature", 300, "--steps", 1, "-o", tmp_path / "m.traj"),
        "select": (test, "-m", model, "-n", 1, "-o", tmp_path / "c.xyz"),
        "report": (model, "--test", test, "-o", tmp_path / "r.html"),
        "calibrate": (model, test),
    }
    result = bayrace(command, *arguments[command], "--device", "cuda")
    assert result.exit_code == 2, result.output
    assert MESSAGE in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_python(model):
    for make in (Calculator, lambda file, device: Calculator(file).potential.to(device=device)):
        with pytest.raises(PotentialError, match="torch sees no GPU"):
            make(model, device="cuda")
    for device in ("cuda:7", "meta", "mps", "gpu"):
        with pytest.raises(PotentialError, match="device="):
            resolve_device(device)
