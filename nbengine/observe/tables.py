"""Plain text and HTML tables for notebooks: no matplotlib, no styles beyond what a notebook brings."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def text_table(columns: Sequence[str], rows: Iterable[Sequence[object]], indent: str = "") -> str:
    """Columns under their heads, two spaces apart; the last column is not padded."""
    cells = [[str(cell) for cell in row] for row in rows]
    if not cells:
        return ""
    lines = [list(columns), *cells] if any(columns) else cells
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join(indent + "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def html_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """`caption` and cells are text, escaped here."""
    head = "".join(f"<th style='text-align:left'>{html.escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{html.escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    title = f"<caption style='text-align:left;font-weight:bold'>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<tr>{head}</tr>{body}</table>"


def numbers_text(ids: Sequence[int], most: int = 12) -> str:
    """`ids` as ranges: "3-6 9 12"; what is beyond `most` ranges is counted."""
    ranges: list[tuple[int, int]] = []
    for number in ids:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    parts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    return " ".join(parts) if len(parts) <= most else " ".join(parts[:most]) + f" … {len(parts) - most} more"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def counted(number: int, noun: str) -> str:
    """ "1 block", "3 blocks"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
