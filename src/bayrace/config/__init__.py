"""The configuration: one frozen tree of settings, read from YAML and checked once."""

from __future__ import annotations

from bayrace.config.durations import format_duration, parse_duration
from bayrace.config.load import ConfigError, dump_config, load_config, make_config
from bayrace.config.schema import Config, DataConfig, LossConfig, ModelConfig, TrainConfig
from bayrace.config.template import json_schema, template

__all__ = [
    "Config",
    "ConfigError",
    "DataConfig",
    "LossConfig",
    "ModelConfig",
    "TrainConfig",
    "dump_config",
    "format_duration",
    "json_schema",
    "load_config",
    "make_config",
    "parse_duration",
    "template",
]
