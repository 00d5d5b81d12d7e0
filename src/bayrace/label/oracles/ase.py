"""Any ASE calculator, by its import path: "tblite.ase:TBLite" or "my/calculator.py:Calculator"."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import MinLen

from bayrace.data.frame import Frame
from bayrace.label.oracle import OracleError, label_with


@dataclass(frozen=True)
class AseOracle:
    """Any ASE calculator.

    A class or function, called with `arguments` for each structure.

    With `reuse` the calculator is made once per process, for those that are slow to make and keep
    nothing of one structure for the next.
    """

    name: ClassVar[str] = "ase"
    calculator: Annotated[str, MinLen(1)]
    """Import path: tblite.ase:TBLite, or path/to/file.py:Name."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of the calculator."""
    reuse: bool = False
    """Make the calculator once per process, not once per structure."""

    @property
    def method(self) -> str:
        """Import path and arguments."""
        given = ", ".join(f"{key}={value!r}" for key, value in sorted(self.arguments.items()))
        return f"{self.calculator}({given})"

    def label(self, frame: Frame) -> Frame:
        """Energy, forces, and stress where periodic and available."""
        calculator = self._reused() if self.reuse else self._make()
        try:
            return label_with(calculator, frame)
        except Exception as error:  # calculators raise anything
            raise OracleError(
                f"{frame.origin}: {self.calculator} failed ({type(error).__name__}: {error}); "
                "leave the structure out, or change the calculator's arguments"
            ) from error

    def _make(self) -> Any:
        factory = resolve(self.calculator)
        try:
            return factory(**self.arguments)
        except Exception as error:
            raise OracleError(
                f"{self.method}: cannot be made ({type(error).__name__}: {error}); correct the "
                "arguments"
            ) from error

    def _reused(self) -> Any:
        return _kept(self.calculator, json.dumps(dict(self.arguments), sort_keys=True, default=str))

    def __hash__(self) -> int:
        """By method."""
        return hash((self.method, self.reuse))


def resolve(path: str) -> Callable[..., Any]:
    """The object that an import path names."""
    module, separator, name = path.rpartition(":")
    if not separator or not module or not name:
        raise OracleError(
            f"{path!r}: not an import path; write package.module:Name, such as tblite.ase:TBLite, "
            "or file.py:Name"
        )
    found: Any = _module(module, path)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise OracleError(f"{path}: {module} has no {part}; correct the name") from None
    if not callable(found):
        raise OracleError(f"{path}: is a {type(found).__name__}; name a calculator class")
    return found  # type: ignore[no-any-return]


def _module(name: str, path: str) -> Any:
    if name.endswith(".py"):
        return _from_file(Path(name).resolve())
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise OracleError(
            f"{path}: cannot import {name} ({error}); install its package here and on every "
            "worker, or give a file: path/to/file.py:Name"
        ) from error


def _from_file(file: Path) -> Any:
    """A module from a file of any name, loaded once."""
    if not file.is_file():
        raise OracleError(f"{file}: no such file; correct the path of the calculator")
    name = f"bayrace_oracle_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


@lru_cache(maxsize=4)
def _kept(calculator: str, arguments: str) -> Any:
    return AseOracle(calculator, json.loads(arguments))._make()


METHODS = (AseOracle,)
