"""Files that appear under their name only when whole, and errors of the disk that say what happened."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_NUMBER = re.compile(r"os error (\d+)")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a name beside `path` to write to; it becomes `path` when the block ends without an error.

    A process that is killed leaves the older file whole and at most a hidden `.part` beside it, which nothing
    reads.

    Raises:
        OSError: The disk is full, or the folder may not be written to; says so, and that nothing was lost.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        temporary.touch(exist_ok=False)
        rights = temporary.stat().st_mode
        yield temporary
        temporary.chmod(rights)  # whoever writes may make it private, which is not for them to say
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except (OSError, SafetensorError) as error:
        _discard(temporary)
        raise _told(error, path) from error
    except BaseException:
        _discard(temporary)
        raise


def _discard(temporary: Path) -> None:
    with suppress(OSError):  # it is hidden, and the first error is the one to tell
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make the new name last through a power cut, where the system lets folders be opened."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _told(error: OSError | SafetensorError, path: Path) -> Exception:
    """The same error in words that help, or itself where it needs none."""
    number = error.errno if isinstance(error, OSError) else _number_in(str(error))
    kept = "The file that stood there is as it was." if path.exists() else "No file was left there."
    if number in _FULL:
        return OSError(
            number,
            f"The disk (or a quota or size limit) is full, so {str(path)!r} was not written. {kept} Free "
            "some space, or write to another folder.",
        )
    if number in _FORBIDDEN:
        return OSError(
            number,
            f"The folder {str(path.parent)!r} may not be written to, so {path.name!r} was not written. "
            f"{kept} Give a folder that you may write to.",
        )
    return error if number is None else OSError(number, f"{str(path)!r} was not written: {error}. {kept}")


def _number_in(text: str) -> int | None:
    found = _NUMBER.search(text)
    return int(found[1]) if found else None
