"""Distributions over weights, one algorithm per file; see `bayrace.posterior.method`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bayrace.core.registry import Registry

if TYPE_CHECKING:  # which imports torch
    from bayrace.core.outputs import Params
    from bayrace.core.protocols import Posterior
    from bayrace.posterior.method import PosteriorMethod

POSTERIORS: Registry[type[PosteriorMethod]] = Registry(
    "posterior", package="bayrace.posterior", group="bayrace.posteriors"
)
"""By the name in files and configurations."""


def restore(name: str, tensors: Params, options: Mapping[str, Any]) -> Posterior:
    """The posterior that was stored under a name."""
    return POSTERIORS.find(name).restore(tensors, options)
