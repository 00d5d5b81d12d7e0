"""Names of the methods, as configurations and the command line take them."""

from __future__ import annotations

from typing import Literal, get_args

Method = Literal["scale", "scale-rms", "scale-element", "power", "isotonic", "conformal"]
METHODS: tuple[Method, ...] = get_args(Method)
