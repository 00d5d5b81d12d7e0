"""What a loop needs only later, looked at before its first training: mistakes are found at once."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from bayrace.config.build import label_keys
from bayrace.config.load import ConfigError
from bayrace.config.loop import LoopConfig
from bayrace.config.oracle import make_oracle
from bayrace.data.check import check_frames, check_labelled
from bayrace.data.frame import elements_of
from bayrace.data.read import read_frames
from bayrace.label.oracles.ase import AseOracle, resolve
from bayrace.label.oracles.command import CommandOracle
from bayrace.potential.potential import Potential
from bayrace.workflow.loop.gather import all_starts
from bayrace.workflow.loop.workspace import Workspace

_PACKAGES = {"gfn1": "tblite", "gfn2": "tblite", "dft": "pyscf"}  # by kind of oracle


def check_ahead(workspace: Workspace) -> None:
    """Refuse test sets, starts and oracles that would end the loop when they are first used."""
    config = workspace.config
    sets = list(workspace.tests.values())
    for frames in sets:
        check_labelled(frames)
    if config.explore.starts is not None:
        sets.append(all_starts(workspace))
    if sets:
        elements = _elements(config)
        for frames in sets:
            check_frames(frames, need_forces=False, elements=elements)
    if config.label.scheduler is None:  # else the workers have what it needs, and we need not
        _check_oracle(config)


def _elements(config: LoopConfig) -> tuple[int, ...]:
    """Those that the first potential of the loop knows."""
    if config.potential is not None:
        return Potential.load(config.potential, device="cpu").elements
    assert config.data is not None  # the configuration has one or the other
    keys = label_keys(config.data)
    return elements_of(read_frames(list(config.data.train), keys=keys, config_weights={}))


def _check_oracle(config: LoopConfig) -> None:
    package = _PACKAGES.get(config.oracle.kind)
    if package is not None and importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"oracle {config.oracle.kind} needs {package}; pip install 'bayrace[oracles]'"
        )
    oracle = make_oracle(config.oracle)
    _ = oracle.method  # of a teacher, this reads its file
    if isinstance(oracle, AseOracle):
        resolve(oracle.calculator)
    if isinstance(oracle, CommandOracle):
        for name in oracle.files:
            if not Path(name).is_file():
                raise ConfigError(f"oracle.command.files: {name}: no such file; correct the path")
