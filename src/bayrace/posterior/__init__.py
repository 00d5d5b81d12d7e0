"""Distributions over weights, one algorithm per file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayrace.core.outputs import Params
from bayrace.core.protocols import Posterior
from bayrace.posterior.distance import Distance
from bayrace.posterior.ensemble import Ensemble
from bayrace.posterior.ivon import Ivon
from bayrace.posterior.laplace import Laplace
from bayrace.posterior.llpr import Llpr
from bayrace.posterior.point import Point
from bayrace.posterior.shallow import Shallow
from bayrace.posterior.swag import Swag

POSTERIORS: dict[str, type[Posterior]] = {
    kind.name: kind for kind in (Point, Ensemble, Swag, Ivon, Laplace, Llpr, Shallow, Distance)
}
"""By the name in files and configurations."""


def restore(name: str, tensors: Params, options: Mapping[str, Any]) -> Posterior:
    """The posterior that was stored under a name."""
    if name not in POSTERIORS:
        raise ValueError(f"posterior {name!r} is unknown; this bayrace has {sorted(POSTERIORS)}")
    return POSTERIORS[name].restore(tensors, options)
