"""RACE: an equivariant message-passing network with predictive noise."""

from bayrace.models.race.spec import RaceSpec

METHODS = (RaceSpec,)
