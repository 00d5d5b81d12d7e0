"""Methods by their names: those in a folder of ours, and those that other packages bring along.

A method is a class with a `name`. A file of the folder lists its methods in `METHODS`; nothing else
has to know of it. Another package names its class in an entry point:

    [project.entry-points."bayrace.posteriors"]
    mine = "my_package.mine:Mine"
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import logging
import pkgutil
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

M = TypeVar("M", bound=Any)

_log = logging.getLogger(__name__)


class Registry(Generic[M]):
    """Every method of one sort; files are imported when they are asked for."""

    def __init__(self, what: str, *, package: str, group: str) -> None:
        self.what, self.package, self.group = what, package, group
        self._known: dict[str, M] = {}  # ours
        self._registered: dict[str, M] = {}
        self._others: dict[str, M] = {}  # of entry points
        self._scanned = False

    def register(self, method: M) -> None:
        """Make a method known for this process; an entry point does so for all."""
        self._scan()
        known = {**self._registered, **self._known}.get(method.name, method)
        if known is not method:
            raise ValueError(
                f"a {self.what} {method.name!r} is known already; give yours another name"
            )
        self._registered[method.name] = method

    def find(self, name: str) -> M:
        """The method of this name; ValueError names the nearest one."""
        if name not in self._known:
            self._import(name)
        if name not in self._known:
            self._scan()
        if name in self._known or name in self._registered:
            return {**self._registered, **self._known}[name]
        if (found := self._entries().get(name)) is not None:
            return found
        near = difflib.get_close_matches(name, self.names(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(self.names())}."
        raise ValueError(
            f"{self.what} {name!r} is unknown; {hint} Others come with the package that registers "
            f"them as {self.group}"
        )

    def names(self) -> tuple[str, ...]:
        """Of all methods that are installed, sorted."""
        return tuple(sorted(self.all()))

    def all(self) -> dict[str, M]:
        """Every method by its name, sorted; ours come before others of the same name."""
        self._scan()
        return dict(sorted({**self._entries(), **self._registered, **self._known}.items()))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self.all()  # a file may say anything

    def _scan(self) -> None:
        if not self._scanned:
            self._scanned = True
            for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__):
                self._import(module.name)

    def _import(self, name: str) -> None:
        """Methods in the file of this name, if there is one."""
        path = f"{self.package}.{name}"
        if not name.isidentifier() or importlib.util.find_spec(path) is None:
            return
        for method in getattr(importlib.import_module(path), "METHODS", ()):
            self._known.setdefault(method.name, method)

    def _entries(self) -> dict[str, M]:
        """Methods of other packages; one that cannot be imported is told of and left out."""
        for entry in importlib.metadata.entry_points(group=self.group):
            if entry.name in self._others or entry.name in self._known:
                continue
            try:
                method: M = entry.load()
            except Exception as error:  # a package of somebody else
                _log.warning(
                    "%s %s cannot be used: %s does not load (%s: %s); reinstall its package",
                    self.what,
                    entry.name,
                    entry.value,
                    type(error).__name__,
                    error,
                )
                continue
            if method.name != entry.name:
                _log.warning(
                    "%s: the entry point %s names %r; give both the same name",
                    self.what,
                    entry.name,
                    method.name,
                )
                continue
            self._others[entry.name] = method
        return self._others


def summary(method: Any) -> str:
    """What a method is, in a line: the first of its docstring."""
    return str(method.__doc__ or method.name).strip().splitlines()[0]
