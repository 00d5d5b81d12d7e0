"""The configuration: one frozen tree of settings, read from YAML and checked once."""

from __future__ import annotations

from bayrace.config.data import DataConfig
from bayrace.config.durations import format_duration, parse_duration
from bayrace.config.load import (
    ConfigError,
    changed,
    dump_config,
    load_config,
    make_config,
    plain_values_of,
)
from bayrace.config.model import ModelConfig
from bayrace.config.schema import Config, LossConfig, TrainConfig
from bayrace.config.template import json_schema, template

__all__ = [
    "Config",
    "ConfigError",
    "DataConfig",
    "LossConfig",
    "ModelConfig",
    "TrainConfig",
    "changed",
    "dump_config",
    "format_duration",
    "json_schema",
    "load_config",
    "make_config",
    "parse_duration",
    "plain_values_of",
    "template",
]
