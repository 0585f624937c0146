"""The command line `ctsattn`: files in, files out, one line and exit code 2 when something is wrong."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

from ctsattn.cli import judging  # noqa: F401 - it adds its commands
from ctsattn.cli.app import app
from ctsattn.cli.wording import in_shell_words

# What a user's files and options can cause. A fault of the program itself keeps its traceback.
_USER_ERRORS = (ValueError, TypeError, OSError, ImportError, EOFError)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave with its exit code: 0 when done, 2 on bad data or usage.

    Args:
        arguments: Words after `ctsattn`; None takes those of the process. With `--traceback` before
            the command an error shows where it came from.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    traceback = words[:1] == ["--traceback"]
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            app(args=words[traceback:], prog_name="ctsattn")
        except _USER_ERRORS as error:
            if traceback:
                raise
            sys.stdout.flush()
            print(f"ctsattn: {in_shell_words(_one_line(error))}", file=sys.stderr)
            sys.exit(2)


def _one_line(error: BaseException) -> str:
    """An error's text on one line; its kind where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"ctsattn: note: {in_shell_words(' '.join(str(message).split()))}", file=sys.stderr)
