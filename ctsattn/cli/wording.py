"""Advice of the library, written for Python, in the words of a shell."""

from __future__ import annotations

import re

# What a message says in Python, and the option that does it here; the first that fits counts.
_WORDS = (
    (r"df\[('[^']*')\] = pd\.to_datetime\(df\[\1\], format=('[^']*')\)", r"--time-format \2"),
    (r"\b(id|time|target)_col=(?=['\w])", r"--\1-col "),
    (r"\b(static|past|future)_cols=\[?(?=['\w])", r"--\1-col "),
    (r"\b(id|time|target)_col\b(=(\.\.\.)?)?", r"--\1-col"),
    (r"\b(static|past|future)_cols\b(=(\.\.\.)?)?", r"--\1-col"),
    (r"\b(duplicates|horizon|level)=", r"--\1 "),
)


def in_shell_words(text: str) -> str:
    """Replace arguments of Python by options of the command line."""
    for pattern, words in _WORDS:
        text = re.sub(pattern, words, text)
    return text
