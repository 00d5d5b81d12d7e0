"""One self-contained HTML page: text, tables and figures, readable from file://."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence

from matplotlib.figure import Figure


def page(title: str, blocks: Iterable[str]) -> str:
    """A whole document from blocks of HTML."""
    body = "\n".join(blocks)
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_STYLE}</style></head>\n<body><h1>{html.escape(title)}</h1>\n{body}\n"
        "</body></html>\n"
    )


def heading(text: str) -> str:
    """A section heading."""
    return f"<h2>{html.escape(text)}</h2>"


def paragraph(text: str) -> str:
    """A paragraph of plain text."""
    return f"<p>{html.escape(text)}</p>"


def code(text: str) -> str:
    """Lines of code or of a terminal."""
    return f"<pre>{html.escape(text)}</pre>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts; all columns but the first are numbers."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"


def picture(figure: Figure, caption: str) -> str:
    """A figure embedded in the page as base64."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    data = base64.b64encode(buffer.getvalue()).decode()
    text = html.escape(caption)
    return (
        f'<figure><img alt="{text}" src="data:image/png;base64,{data}">'
        f"<figcaption>{text}</figcaption></figure>"
    )


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.25rem; margin-top: 2.2rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .9rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1.5rem 0; } img { max-width: 100%; } figcaption { color: #555; font-size: .9rem; }
pre { background: #f5f5f5; padding: .8rem 1rem; overflow-x: auto; }
"""
