"""Compiled entry points, kept on disk between processes."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from numba import cfunc, njit, types

# numba's cache on disk sees a change in the file of an entry point, and in the variables that it closes over,
# but not in other files: so entry points close over this.
SOURCES = sha256(
    b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
).hexdigest()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled entry point, kept on disk where there is a folder that can be written to."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # numba found no such folder
        return njit(nogil=True)(function)


def compiled_for_threads(function: Callable[[int], None]) -> Any:
    """A C function that is told one address, which threads without the interpreter may call; kept on disk."""
    signature = types.void(types.voidptr)
    try:
        return cfunc(signature, cache=True)(function).ctypes
    except RuntimeError:  # numba found no folder to keep it in
        return cfunc(signature)(function).ctypes
