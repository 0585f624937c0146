"""The one line that `fit` writes."""

from __future__ import annotations

import sys


class ProgressLine:
    """Rewrites one line on a terminal; elsewhere writes only its last state. Goes to the standard error."""

    def __init__(self) -> None:
        self._width = 0

    def __call__(self, text: str, *, last: bool) -> None:
        """Show `text`; after the last call the line ends."""
        stream = sys.stderr
        terminal = stream is not None and stream.isatty()
        if stream is None or not (terminal or last):
            return
        padded = text.ljust(self._width)
        self._width = len(text)
        stream.write(f"\r{padded}" if terminal else padded.rstrip())
        stream.write("\n" if last else "")
        stream.flush()
