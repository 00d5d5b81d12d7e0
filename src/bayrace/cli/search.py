"""`bayrace search`: hyper-parameters by the unified score, with optuna."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from bayrace.cli.common import INTERRUPTED, Debug, console, friendly, refuse_missing
from bayrace.cli.train import Override

if TYPE_CHECKING:
    from bayrace.workflow.search import Found, SearchResult

FIGURE = "search.png"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("search")(friendly(search))


def search(
    source: Annotated[Path, typer.Argument(help="A YAML file with a section search.")],
    override: Override = None,
    debug: Debug = False,
) -> None:
    """Find good hyper-parameters by trying many, on validation data alone.

    Less is better: 0.25·23.06·(energy + force RMSE in eV and eV/Å) + 0.125·(their calibration
    errors) + 0.25·(1 − AUROC), the last where search.unknown names structures that should be found
    strange. Test data are never read. The configuration as it is comes first, so what is found is
    never worse there. After an interruption, however brutal, the same command goes on and no trial
    is lost.

    \b
    Example, config.yaml: a training and
      search:
        space:
          train.lr: {low: 0.001, high: 0.05, log: true}
          train.batch_size: [2, 5, 10]
          loss.forces: {low: 1.0, high: 1000.0, log: true}
        trials: 20
        seeds: 2                     trainings of each point, averaged
        unknown: hot.xyz             optional

    \b
    Examples:
      bayrace search config.yaml
      bayrace search config.yaml -s search.sampler=random -s search.workers=2
      bayrace train runs/config/best.yaml
    """
    del debug
    from bayrace.config.search import load_search
    from bayrace.system.process import tune_process
    from bayrace.system.signals import stop_on_signals
    from bayrace.workflow import search as run

    refuse_missing(source, "search")
    tune_process()
    out = console()
    config, wanted, raw = load_search(source, override or [])
    out.print(f"search {len(wanted.space)} values, {wanted.trials} trials: {config.output}")
    with stop_on_signals() as stop:
        told = run.SearchObserver(lambda found: out.print(_line(found), markup=False), stop)
        result = run.search(config, wanted, raw, watch=told)
    conclude(result)
    if result.interrupted:
        out.print(f"stopped; continue with: bayrace search {source}")
        raise typer.Exit(INTERRUPTED)


def conclude(result: SearchResult) -> None:
    """Print the trials, draw them, and say where the best configuration is."""
    from bayrace.report.figures import save
    from bayrace.report.search import search_figure
    from bayrace.workflow.search import BEST

    out = console()
    if result.best is None:
        out.print("no trial is complete")
        return
    out.print(trials_table(result))
    drawn = [each for each in result.trials if each.in_space]
    if points := [(each.values, each.score) for each in drawn if each.score is not None]:
        place = save(search_figure(points, result.importance), result.folder / FIGURE)
        out.print(f"figure: {place}")
    out.print(f"best configuration: {result.folder / BEST}")


def trials_table(result: SearchResult) -> Table:
    """A row for each trial, the best first."""
    keys = list(result.trials[0].values)
    columns = ("trial", *keys, "score", "E RMSE", "F RMSE", "CE E", "CE F", "AUROC")
    shares = ", ".join(f"{key} {100 * share:.0f} %" for key, share in result.importance.items())
    caption = (
        "score: less is better; RMSE in eV and eV/Å, or the unit of the target; seeds averaged"
    )
    table = Table(
        *columns,
        title=f"{len(result.trials)} trials" + (f"; importance: {shares}" if shares else ""),
        title_justify="left",
        caption=caption,
    )
    ordered = sorted(result.trials, key=lambda each: (each.score is None, each.score or 0.0))
    for each in ordered:
        values = [Text(_shown(each.values.get(key))) for key in keys]
        table.add_row(str(each.number), *values, *map(Text, _scores(each)))
    return table


def _scores(found: Found) -> list[str]:
    if found.score is None:
        return [found.state, *["–"] * 5]
    names = ("energy_rmse", "forces_rmse", "energy_ce", "forces_ce", "auroc")
    means = []
    for name in names:
        values = [each[name] for each in found.seeds if each.get(name) is not None]
        means.append(f"{sum(values) / len(values):.4g}" if values else "–")
    return [f"{found.score:.4f}", *means]


def _line(found: Found) -> str:
    values = ", ".join(f"{key} {_shown(value)}" for key, value in found.values.items())
    score = found.state if found.score is None else f"score {found.score:.4f}"
    return f"trial {found.number}  {values}  {score}"


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
