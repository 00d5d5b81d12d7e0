"""Interatomic potentials that know when they are wrong."""

from __future__ import annotations

import importlib
import sys
from importlib.abc import MetaPathFinder
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayrace.deploy.ase import Calculator
    from bayrace.potential.potential import Potential
    from bayrace.workflow.adopt import adopt
    from bayrace.workflow.start import fit

__all__ = ["Calculator", "Potential", "__version__", "adopt", "calibrate", "fit", "train"]

try:
    __version__ = version("bayrace")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "0+unknown"

# Loaded on first use: torch takes seconds to import, `bayrace --help` should not.
_LAZY = {
    "Calculator": "bayrace.deploy.ase",
    "Potential": "bayrace.potential.potential",
    "adopt": "bayrace.workflow.adopt",
    "fit": "bayrace.workflow.start",
}

_VERBS = {"train": "bayrace.workflow.start", "calibrate": "bayrace.workflow.calibrate"}
"""Verbs that have the names of rooms: bayrace.train is the room, and bayrace.train(...) trains."""

_MOVED = {  # modules of the first drafts of 0.1, and where their contents are
    "active": "bayrace.simulate, bayrace.select and bayrace.label",
    "artifact": "bayrace.potential.artifact",
    "data.cache": "bayrace.data.dataset",
    "ensemble": "bayrace.workflow.ensemble",
    "fitting": "bayrace.workflow.fit",
    "loop": "bayrace.workflow.loop",
    "metrics": "bayrace.evaluate.metrics",
    "model": "bayrace.models and bayrace.posterior.gaussian",
    "moments": "bayrace.predict.moments",
    "report.comparison": "bayrace.evaluate.comparison",
    "report.evaluation": "bayrace.evaluate.evaluation",
    "report.judged": "bayrace.evaluate.judged",
    "run": "bayrace.workflow.train",
    "tuning": "bayrace.workflow.tune",
    "types": "bayrace.core",
    "units": "bayrace.core.units",
}


class _Moved(MetaPathFinder):
    """Asked last, for modules that nobody found: says where those that moved are."""

    def find_spec(self, fullname: str, *_: object) -> None:
        for old, new in _MOVED.items():
            if f"{fullname}.".startswith(f"{__name__}.{old}."):
                raise ModuleNotFoundError(f"{fullname} has moved: see {new}")


sys.meta_path.append(_Moved())


class _Verb(ModuleType):
    """A room that can be called."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        verb = self.__name__.rpartition(".")[2]
        return getattr(importlib.import_module(_VERBS[verb]), verb)(*arguments, **options)


class _Package(ModuleType):
    """This package: Python hands it every room that is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _VERBS and isinstance(value, ModuleType):
            value.__class__ = _Verb
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _VERBS:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'bayrace' has no attribute {name!r}; it has {__all__}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_VERBS})
