"""The catalogue of data sets as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from ctsattn.datasets import Dataset


def list_text(cards: Mapping[str, Dataset]) -> str:
    """One line a data set: its name, whether it needs files, its title."""
    width = max(len(name) for name in cards) + 2
    lines = [
        f"{name:<{width}}{'made  ' if card.synthetic else 'files '} {card.title}"
        for name, card in cards.items()
    ]
    return "\n".join([*lines, "", "`ctsattn datasets NAME` shows a card; `-o FILE` writes the rows."])


def card_text(card: Dataset) -> str:
    """The card of a data set, one fact a paragraph."""
    facts = {
        "title": card.title,
        "origin": card.origin,
        "licence": card.license,
        "cite": card.citation,
        "sampling": card.sampling,
        "size": " ".join(_size(card)),
        "measure": card.metric,
        "files": ", ".join(source.names[0] for source in card.sources) or "none: made by a formula",
        "notes": card.notes,
    }
    return "\n".join(
        textwrap.fill(value, 100, initial_indent=f"{name:<10}", subsequent_indent=" " * 10)
        for name, value in facts.items()
        if value
    )


def _size(card: Dataset) -> list[str]:
    parts = [(card.rows, "rows"), (card.series, "series"), (len(card.variables) or None, "variables")]
    return [f"{count:,} {name}" for count, name in parts if count is not None]
