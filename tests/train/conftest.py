from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

RUNNER = Path(__file__).with_name("runner.py")


@pytest.fixture(scope="session")
def runner() -> ModuleType:
    """tests/train/runner.py as a module."""
    spec = importlib.util.spec_from_file_location("train_runner", RUNNER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
