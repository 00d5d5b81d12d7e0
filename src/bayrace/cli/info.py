"""`bayrace info`: what is installed, and what a potential file holds."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from bayrace.cli.common import Debug, console, friendly

if TYPE_CHECKING:
    from bayrace.potential.potential import Potential

_PACKAGES = ("torch", "numpy", "scipy", "ase", "vesin", "pydantic", "safetensors")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("info")(friendly(info))


def info(
    model: Annotated[
        Path | None, typer.Argument(help="A potential; without it, the installation is shown.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Describe the installation, or a potential.

    \b
    Examples:
      bayrace info
      bayrace info model.bayrace
    """
    del debug
    if model is None:
        rows = list(installation())
    else:
        from bayrace.potential.potential import Potential

        rows = list(contents(Potential.load(model, device="cpu")))
    table = Table(show_header=False, box=None)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    console().print(table)


def installation() -> Iterator[tuple[str, str]]:
    """Versions, devices and kernels."""
    import torch

    import bayrace

    yield "bayrace", bayrace.__version__
    yield "python", platform.python_version()
    for package in _PACKAGES:
        yield package, importlib.metadata.version(package)
    yield "cpu threads", str(torch.get_num_threads())
    gpus = [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]
    yield "gpu", ", ".join(gpus) or "none"
    yield "kernel", kernel()


def kernel() -> str:
    """Which implementation of the convolution will run."""
    from bayrace.nn import convolution

    status = getattr(convolution, "kernel_status", None)
    return "plain" if status is None else str(status())


def contents(potential: Potential) -> Iterator[tuple[str, str]]:
    """What a potential is made of and where it came from."""
    from bayrace.data.frame import symbols_of

    posterior = potential.posterior
    samples = posterior.samples
    numbers = sum(value.numel() for value in posterior.draw(1, seed=0).values())
    yield "written by", f"bayrace {potential.version}"
    yield "model", potential.spec.name
    yield "predicts", f"{potential.target.name} ({potential.target.unit})"
    yield "elements", symbols_of(potential.elements)
    yield "posterior", f"{posterior.name}, {samples} weight sample{'s' if samples > 1 else ''}"
    for name, value in posterior.options().items():
        yield f"{posterior.name} {name}", _text(value)
    calibration = potential.calibration
    if calibration is not None:
        yield "calibration", f"{calibration.method}, fitted to {calibration.frames} frames"
    yield "parameters", f"{numbers} ({str(potential.dtype).removeprefix('torch.')})"
    yield "", ""
    for name, value in potential.spec.to_json().items():
        yield name, _text(value)
    yield "", ""
    for number, energy in sorted(potential.references.items()):
        yield f"reference of {symbols_of([number])}", f"{energy:.6f} {potential.target.unit}"
    for name, weight in vars(potential.lambdas).items():
        yield f"λ {name}", f"{weight:g}"
    yield "", ""
    for name, value in potential.statistics.items():
        yield name, _text(value)
    yield "data fingerprint", potential.fingerprint


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(inner)}" for key, inner in value.items())
    if value in ("", None):
        return "none"
    if isinstance(value, list | tuple):
        return ", ".join(_text(inner) for inner in value)
    return str(value)
