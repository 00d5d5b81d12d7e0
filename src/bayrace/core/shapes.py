"""The shapes of a model's parameters, whether it knows them beforehand or not."""

from __future__ import annotations

from bayrace.core.protocols import Model, Shaped


def parameter_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """By the names of the parameters."""
    if isinstance(model, Shaped):
        return {name: tuple(shape) for name, shape in model.shapes.items()}
    return {name: tuple(value.shape) for name, value in model.init(0).items()}
