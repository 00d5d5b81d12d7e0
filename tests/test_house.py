"""Rules of the house: files and functions are short, arguments few, contracts know every room."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "src" / "bayrace").rglob("*.py"))
LONGEST_FILE, LONGEST_FUNCTION, MOST_PARAMETERS = 350, 60, 8
ALLOWED = {  # rooms that may import a package
    "ase": {"data", "deploy", "simulate", "label"},
    "matplotlib": {"report"},
    "pydantic": {"config"},
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def place(path: Path) -> str:
    return path.relative_to(ROOT / "src" / "bayrace").as_posix()


def functions() -> Iterator[tuple[Path, Function]]:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Function):
                yield path, node


def lines_of(path: Path, function: Function) -> int:
    """Of a command of the command line those of its body: its signature and help are its page."""
    assert function.end_lineno is not None
    if path.parent.name != "cli":
        return function.end_lineno - function.lineno + 1
    documented = ast.get_docstring(function) is not None and len(function.body) > 1
    first = function.body[1 if documented else 0]
    return function.end_lineno - first.lineno + 1


def parameters_of(function: Function) -> int:
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    own = bool(named) and named[0].arg in ("self", "cls")
    return len(named) - own + (given.vararg is not None) + (given.kwarg is not None)


def test_files_are_short() -> None:
    lengths = {place(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: n for name, n in lengths.items() if n > LONGEST_FILE} == {}


def test_functions_are_short() -> None:
    lengths = {f"{place(path)} {each.name}": lines_of(path, each) for path, each in functions()}
    assert {name: n for name, n in lengths.items() if n > LONGEST_FUNCTION} == {}


def test_functions_have_few_parameters() -> None:
    found = {
        f"{place(path)} {each.name}"
        for path, each in functions()
        if path.parent.name != "cli" and parameters_of(each) > MOST_PARAMETERS
    }
    assert found == set()


@pytest.mark.parametrize("package", ALLOWED)
def test_contracts_know_every_room(package: str) -> None:
    """`exhaustive` exists for layers only; a new room must not slip past what is forbidden."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (each for each in settings["contracts"] if each["type"] == "layers")
    (forbidden,) = (
        each for each in settings["contracts"] if package in each.get("forbidden_modules", ())
    )
    listed = {module.removeprefix("bayrace.") for module in forbidden["source_modules"]}
    assert listed == set(layers["layers"]) - ALLOWED[package]


IMPORTED = {"mace-torch": "mace", "torch-sim-atomistic": "torch_sim", "mpich": "libmpi"}


def test_every_extra_has_code() -> None:
    """What can be installed beside bayrace is imported in src, or by code that docs show."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    whole = "\n".join(path.read_text() for path in (*SOURCES, *ROOT.glob("docs/*.md")))
    packages = {
        re.split(r"[<>=;\[ ]", each)[0]
        for name, needed in extras.items()
        if name not in ("docs", "dev")
        for each in needed
    }
    unused = {
        each
        for each in packages
        if not re.search(rf"\b{IMPORTED.get(each, each.replace('-', '[._]'))}\b", whole)
    }
    assert packages
    assert unused == set()


FIRST_CALL = """
import sys, time
from bayrace import Calculator
from bayrace.data.frame import frame_to_atoms
from bayrace.testing import random_frame
atoms = frame_to_atoms(random_frame((1, 8), 6, seed=0))
begin = time.process_time()
atoms.calc = Calculator(sys.argv[1])
atoms.get_forces()
print(time.process_time() - begin)
"""


def test_the_first_call_of_the_calculator_is_quick() -> None:
    """With the kernels of an earlier process, by the time of the processor."""
    model = ROOT / "tests" / "potential" / "old" / "distance.bayrace"
    command = [sys.executable, "-W", "ignore", "-c", FIRST_CALL, str(model)]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.5
