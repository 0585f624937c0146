"""Pieces of messages: examples, counts, and where something was found."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any


def examples(values: Iterable[Any], limit: int = 3) -> str:
    """Name the first few values, and say when there are more."""
    shown = list(islice(iter(values), limit + 1))
    text = ", ".join(_plain(value) for value in shown[:limit])
    return f"{text}, ..." if len(shown) > limit else text


def _plain(value: Any) -> str:
    item = value.item() if hasattr(value, "item") and not hasattr(value, "isoformat") else value
    return str(item) if hasattr(item, "isoformat") or not isinstance(item, str) else repr(item)
