"""Pieces of a page: the document, sections, tables, legends. Text in, well-formed markup out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from edgespec.bench.style import STYLE


def document(title: str, parts: Iterable[str]) -> str:
    """A page that needs nothing else: no scripts, fonts or images. Well-formed as XML, too."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{escape(title)}</title>"
        f"<style>{STYLE}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def header(title: str, text: str, tiles: Iterable[tuple[str, str]]) -> str:
    """The name of the page, and the figures that a reader came for."""
    shown = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(what)}</span></div>'
        for value, what in tiles
    )
    return (
        f"<header><h1>{escape(title)}</h1><p>{escape(text)}</p>"
        f'<div class="tiles">{shown}</div></header>'
    )


def section(title: str, content: str, text: str = "") -> str:
    said = f"<p>{escape(text)}</p>" if text else ""
    return f"<section><h2>{escape(title)}</h2>{said}{content}</section>"


def legend(*entries: tuple[str, str]) -> str:
    items = "".join(
        f'<li><svg viewBox="0 0 12 12" class="swatch"><rect class="{kind}" width="12" height="12" '
        f'rx="2"/></svg>{escape(text)}</li>'
        for kind, text in entries
    )
    return f'<ul class="legend">{items}</ul>'


def table(head: Sequence[str], body: Iterable[Sequence[str]], words: int = 1) -> str:
    """The first `words` columns are text, the others figures."""

    def row(cells: Sequence[str], tag: str) -> str:
        kinds = ["" if i < words else ' class="n"' for i in range(len(cells))]
        return "".join(
            f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)
        )

    rows = "".join(f"<tr>{row(cells, 'td')}</tr>" for cells in body)
    return (
        f'<div class="scroll"><table><thead><tr>{row(head, "th")}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
