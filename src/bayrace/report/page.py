"""A Report as one HTML file that needs nothing else: no server, no network, no framework."""

from __future__ import annotations

import html
import json
import math
import re
from functools import cache
from importlib import resources

from bayrace.report.document import Block, Cell, Code, Panel, Report, Section, Structures, Table

_SCRIPTS = ("scale.js", "chart.js", "viewer.js", "report.js")
_VERDICTS = {"good": "Good", "caution": "Caution", "bad": "Problem", "note": "Note"}


def render(report: Report) -> str:
    """The whole document."""
    shows = any(isinstance(block, Structures) and block.structures for block in report.blocks())
    scripts = ("3Dmol-min.js", *_SCRIPTS) if shows else _SCRIPTS
    code = "\n".join(f"<script>{_script(name)}</script>" for name in scripts)
    contents = "".join(
        f'<a href="#{each.key}">{html.escape(each.title)}</a>' for each in report.sections
    )
    sections = "\n".join(_section(each) for each in report.sections)
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{html.escape(report.title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<link rel="icon" href="data:,">\n'
        f"<style>{asset('report.css')}</style></head>\n<body>\n{_header(report)}\n"
        f'<nav aria-label="Sections">{contents}</nav>\n'
        f"<main>\n{_summary(report)}\n{sections}\n</main>\n"
        f'<script type="application/json" id="data">{_embedded(report)}</script>\n'
        f"{code}\n</body></html>\n"
    )


@cache
def asset(name: str) -> str:
    """A file that comes with the package."""
    return (resources.files("bayrace.report") / "assets" / name).read_text(encoding="utf-8")


def number(value: Cell) -> str:
    """A cell as a reader wants it: three significant digits, a dash for nothing."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, str | int):
        return str(value)
    if value == 0:
        return "0"
    if 0.99 < value < 1:  # digits of what is missing, as of a coefficient of determination
        return f"{value:.{min(6, 1 - math.floor(math.log10(1 - value)))}f}"
    size = math.floor(math.log10(abs(value)))
    if size >= 6 or size < -4:
        return f"{value:.2e}"
    return f"{value:.{max(0, 2 - size)}f}".replace("-", "−")


def _script(name: str) -> str:
    """Code that cannot end its own element early and asks for no source map."""
    code = re.sub(r"//# sourceMappingURL=\S+", "", asset(name))
    return code.replace("</script", "<\\/script")


def _embedded(report: Report) -> str:
    text = json.dumps(report.to_json(), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")  # so that no text ends the element


def _header(report: Report) -> str:
    facts = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd></div>"
        for name, text in report.facts.items()
    )
    return (
        f'<header><div class="bar"><p class="mark">bayrace report</p><div class="tools">'
        '<button type="button" id="download-json" title="All numbers of this page">↓ JSON</button>'
        '<button type="button" id="download-csv" title="A row for each structure">↓ CSV</button>'
        '<button type="button" id="theme" aria-label="Switch between light and dark">'
        '<span aria-hidden="true">◐</span></button></div></div>\n'
        f"<h1>{html.escape(report.title)}</h1>"
        f'<p class="subtitle">{html.escape(report.subtitle)}</p>\n<dl class="facts">{facts}</dl>'
        "</header>"
    )


def _summary(report: Report) -> str:
    tiles = "".join(
        f'<div class="tile"><span class="label">{html.escape(each.label)}</span>'
        f'<span class="value">{html.escape(each.value)}<small>{html.escape(each.unit)}</small>'
        f'</span><span class="detail">{html.escape(each.detail)}</span></div>'
        for each in report.figures
    )
    findings = "".join(
        f'<li class="{each.verdict}"><span class="verdict">{_VERDICTS[each.verdict]}</span>'
        f"<div><strong>{html.escape(each.headline)}</strong> {html.escape(each.text)}</div></li>"
        for each in report.findings
    )
    return (
        f'<section id="summary"><h2>What to conclude</h2>\n<div class="tiles">{tiles}</div>\n'
        f'<ul class="findings">{findings}</ul></section>'
    )


def _section(section: Section) -> str:
    text = f'<p class="lead">{html.escape(section.text)}</p>' if section.text else ""
    parts: list[str] = []
    group: list[str] = []
    for block in section.blocks:
        if isinstance(block, Panel):
            group.append(_panel(block))
            continue
        if isinstance(block, Table) and len(block.columns) < 5 and len(group) % 2:
            group.append(_block(block))  # beside the last figure
            continue
        parts += _grid(group)
        group = []
        parts.append(_block(block))
    parts += _grid(group)
    body = "\n".join(parts)
    return (
        f'<section id="{section.key}"><h2>{html.escape(section.title)}</h2>{text}\n{body}</section>'
    )


def _grid(figures: list[str]) -> list[str]:
    return [f'<div class="grid">{"".join(figures)}</div>'] if figures else []


def _block(block: Block) -> str:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Structures):
        return _viewer(block)
    if isinstance(block, Code):
        return f"<pre>{html.escape(block.text)}</pre>"
    return _panel(block)


def _panel(panel: Panel) -> str:
    key, title = html.escape(panel.key), html.escape(panel.title)
    wide = ' class="wide"' if panel.wide else ""
    caption = f"<figcaption>{html.escape(panel.caption)}</figcaption>" if panel.caption else ""
    return (
        f'<figure id="{key}"{wide}><div class="head"><h3>{title}</h3>'
        f'<div class="tools"><button type="button" data-csv="{key}" '
        f'aria-label="Numbers of this figure as CSV: {title}">CSV</button>'
        f'<button type="button" data-svg="{key}" aria-label="This figure as SVG: {title}">SVG'
        f'</button></div></div><div class="chart" data-panel="{key}"></div>{caption}</figure>'
    )


def _table(table: Table) -> str:
    texts = [isinstance(cell, str) for cell in table.rows[0]] if table.rows else []
    kinds = ["text" if text else "number" for text in texts]
    head = "".join(
        f'<th scope="col" class="{kind}">{html.escape(name)}</th>'
        for name, kind in zip(table.columns, kinds, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{kind}">{html.escape(number(cell))}</td>'
            for cell, kind in zip(row, kinds, strict=True)
        )
        + "</tr>\n"
        for row in table.rows
    )
    caption = f"<figcaption>{html.escape(table.caption)}</figcaption>" if table.caption else ""
    key, title = html.escape(table.key), html.escape(table.title)
    return (
        f'<figure id="{key}" class="table"><div class="head"><h3>{title}</h3><div class="tools">'
        f'<button type="button" data-csv="{key}" aria-label="Table as CSV: {title}">CSV</button>'
        f'</div></div><div class="scroll" tabindex="0" role="region" aria-label="{title}">'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
        f"{caption}</figure>"
    )


def _viewer(block: Structures) -> str:
    choices = "".join(
        f'<button type="button" role="tab" data-structure="{place}" '
        f'aria-selected="{"true" if place == 0 else "false"}">{html.escape(each.title)}</button>'
        for place, each in enumerate(block.structures)
    )
    return (
        f'<figure id="structures-viewer" class="viewer"><div class="choices" role="tablist" '
        f'aria-label="Structures">{choices}</div><p id="structure-detail"></p>'
        '<div class="stage"><div><div id="viewer-frame"><div id="viewer"></div></div>'
        '<div id="viewer-legend"></div><label class="switch"><input type="checkbox" id="arrows" '
        'checked> error arrows</label> <label class="switch"><input type="checkbox" id="labels" '
        'checked> labels</label> <label class="switch" id="local-switch" hidden>'
        '<input type="checkbox" id="local"> colour by σ of atomic energies</label></div>'
        '<div class="scroll" id="atoms" tabindex="0" role="region" '
        'aria-label="Atoms of the structure"></div></div>'
        f"<figcaption>{html.escape(block.caption)}</figcaption></figure>"
    )
