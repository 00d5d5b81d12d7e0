"""A section that names a method and holds the options of all methods of its sort.

`posterior: swag` is short for `posterior: {kind: swag}`; options of a method are under its name, as
in `posterior: {kind: swag, swag: {epochs: 20}}`. Which methods there are, registries know.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any, ClassVar, Literal, Self

from pydantic import Field as Key
from pydantic import create_model, model_validator

from bayrace.config.docstrings import described
from bayrace.config.section import Section
from bayrace.core.registry import Registry, summary

NONE = "none"
"""Of choices that may be left out."""


class Choice(Section):
    """A method by its name, and the options of all under theirs."""

    registry: ClassVar[Registry[Any]]
    kind: str = ""  # each sort has a default of its own

    @property
    def method(self) -> Any:
        """The method that was chosen, with its options; None for none."""
        return None if self.kind == NONE else self.options_of(self.kind)

    def options_of(self, kind: str) -> Any:
        """A method with its options, whether it is the chosen one or not."""
        return method_in(self, self.registry, kind)

    def choosing(self, kind: str, options: Any = None) -> Self:
        """The same with another method, and its options if given."""
        more = {} if options is None else {section_name(options): options}
        return self.model_copy(update={"kind": kind, **more})

    @model_validator(mode="before")
    @classmethod
    def _named(cls, raw: Any) -> Any:
        return {"kind": raw} if isinstance(raw, str) else raw

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind == NONE:
            return self
        method = self.registry.find(self.kind)
        section = section_name(method)
        needed = [field.name for field in fields(method) if _required(field)]
        if needed and getattr(self, section) is None:
            names = ", ".join(f"{section}.{name}" for name in needed)
            raise ValueError(f"kind {self.kind} needs {names}; give it")
        return self


def choice(
    name: str, registry: Registry[Any], *, default: str, optional: bool = False
) -> type[Choice]:
    """A section for the methods of a registry; `optional` ones may be none."""
    methods = registry.all()
    names = (*methods, *((NONE,) if optional else ()))
    about = " ".join(f"{each}: {_lower(summary(method))}" for each, method in methods.items())
    kind: Any = (Literal.__getitem__(names), Key(default=default, description=about))
    made = create_model(name, __base__=Choice, kind=kind, **method_sections(registry))
    made.registry = registry
    made.__doc__ = f"A {registry.what} by its name, and the options of each."
    return made


def method_sections(registry: Registry[Any]) -> dict[str, Any]:
    """A section for every method of a registry that has options, for pydantic's create_model."""
    methods: dict[str, list[Any]] = {}
    for method in registry.all().values():
        if fields(method):
            methods.setdefault(section_name(method), []).append(method)
    return {
        section: _section(
            described(shared[0]), f"Options of {' and '.join(each.name for each in shared)}."
        )
        for section, shared in methods.items()
    }


def method_in(section: Section, registry: Registry[Any], name: str) -> Any:
    """A method by its name, with the options that a section has for it."""
    method = registry.find(name)
    given = getattr(section, section_name(method), None)
    if given is None or type(given) is method:
        return method() if given is None else given
    return method(**{field.name: getattr(given, field.name) for field in fields(given)})


def names_of(registry: Registry[Any]) -> Any:
    """The type of a method's name."""
    return Literal.__getitem__(registry.names())


def section_name(method: Any) -> str:
    """The key of a method's options."""
    name: str = getattr(method, "section", method.name)
    return name.replace("-", "_")


def _section(method: Any, description: str) -> tuple[Any, Any]:
    if any(_required(field) for field in fields(method)):
        return method | None, Key(default=None, description=description)
    return method, Key(default_factory=method, description=description)


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _lower(text: str) -> str:
    """A sentence within another: its first word is small unless it is a name."""
    first, _, rest = text.partition(" ")
    small = first if len(first) > 1 and not first[1:].islower() else first.lower()
    return f"{small} {rest}" if rest else small
