"""`bayrace report`: one self-contained HTML page on a potential, for a browser or a supplement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayrace.cli.common import (
    Debug,
    Device,
    EdgeBudget,
    EnergyKey,
    ForcesKey,
    ModelFile,
    StressKey,
    console,
    counted,
    friendly,
)
from bayrace.system.process import tune_process

if TYPE_CHECKING:
    from bayrace.data.read import Frame
    from bayrace.evaluate.judged import Judged, Role
    from bayrace.potential.potential import Potential

    Source = tuple[str, list[str], Role]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(friendly(report))


def report(
    model: ModelFile,
    test: Annotated[
        list[str] | None,
        typer.Option(help="Labelled file, or name=file; repeatable. Default: those of the run."),
    ] = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(
            help="Labelled file, or name=file, of structures that it should not know; repeatable."
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML page to write.")] = Path(
        "report.html"
    ),
    title: Annotated[
        str | None, typer.Option(help="Title of the page; default: where MODEL is.")
    ] = None,
    edge_budget: EdgeBudget = 20_000,
    energy_key: EnergyKey = None,
    forces_key: ForcesKey = None,
    stress_key: StressKey = None,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Write a page with every figure and number on a potential; it can be read offline.

    \b
    Examples:
      bayrace report model.bayrace --test test.xyz --output report.html
      bayrace report model.bayrace --test 300K=cold.xyz --ood 1200K=hot.xyz
    """
    del debug
    from bayrace.cli.evaluate import label_keys, read_labelled
    from bayrace.potential.potential import Potential
    from bayrace.report.build import build_report
    from bayrace.report.page import render
    from bayrace.report.provenance import potential_facts, read_histories
    from bayrace.train.checkpoint import write_atomically

    tune_process()
    potential = Potential.load(model, device=device)
    keys = label_keys(potential, energy=energy_key, forces=forces_key, stress=stress_key)
    sources = named_sources(test or [], ood or [], potential)
    read = [(name, read_labelled(files, keys), role) for name, files, role in sources]
    sets = [judge_set(potential, *each, edge_budget=edge_budget) for each in read]
    page = build_report(
        sets,
        title=title or default_title(model),
        subtitle="Errors and uncertainties of an interatomic potential",
        facts=potential_facts(potential, model),
        histories=read_histories(model.parent),
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, render(page).encode())
    for finding in page.findings:
        console().print(f"{finding.headline} {finding.text}")
    console().print(f"report: {output.resolve()}")


def named_sources(test: Sequence[str], ood: Sequence[str], potential: Potential) -> list[Source]:
    """Name, files and role of every set; without any --test, the test files of the training run."""
    tests = [_named(text) for text in test] or _configured(potential)
    unknown = [_named(text) for text in ood]
    names = [name for name, _ in (*tests, *unknown)]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"two sets are called {name!r}; tell them apart: --test other=file.xyz"
            )
    if not tests:
        raise ValueError("no test data, and the run of this potential had none; give --test FILE")
    known: list[Source] = [(name, files, "test") for name, files in tests]
    return [*known, *((name, files, "ood") for name, files in unknown)]


def judge_set(
    potential: Potential, name: str, frames: list[Frame], role: Role, *, edge_budget: int
) -> Judged:
    """Evaluate one set with a progress bar, also without recalibration if there is one."""
    from bayrace.evaluate.judged import judge_frames

    with counted(name, len(frames)) as progress:
        return judge_frames(
            potential,
            frames,
            name=name,
            role=role,
            edge_budget=edge_budget,
            progress=progress,
        )


def default_title(model: Path) -> str:
    """The folder of a run, or the name of the file if that says more."""
    return model.resolve().parent.name if model.stem == "model" else model.stem


def _named(text: str) -> tuple[str, list[str]]:
    """Split name=file; a file without a name is called by its stem."""
    name, equals, file = text.partition("=")
    if equals and name and file and not Path(text).exists() and "/" not in name:
        return name, [file]
    return Path(text).name.split(".")[0], [text]


def _configured(potential: Potential) -> list[tuple[str, list[str]]]:
    """Test files that the configuration of the training run names."""
    test = potential.config.get("data", {}).get("test") or {}
    return [(str(name), [str(file) for file in files]) for name, files in test.items()]
