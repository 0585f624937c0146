"""Finding a data file on this disk, or fetching it: resumed, checked, and never left half-written."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import shutil
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ctsattn.datasets.card import Source

_COMPRESSED = ("", ".gz", ".bz2", ".xz", ".zst", ".zip")
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_CHUNK = 1 << 20
_PIECE = 1 << 16  # bytes that a broken transfer may lose
_LARGEST_UNPACKED = 4 << 30  # bytes; an archive that claims more is refused
_TIMEOUT = (10, 60)  # seconds to connect, and between two pieces


def cache_folder() -> Path:
    """Where downloads go: `CTSATTN_CACHE`, or the user's cache folder of the operating system."""
    import pooch

    return Path(os.environ.get("CTSATTN_CACHE") or pooch.os_cache("ctsattn"))


def locate(source: Source, folder: Path) -> Path | None:
    """Find a source anywhere below `folder`, plain or compressed, under any of its names.

    Names are tried in the order of `source.names`; of equal names the first in path order wins.
    """
    wanted = [name + ending for name in source.names for ending in _COMPRESSED]
    found: dict[str, Path] = {}
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files) + folders:
            if name in wanted:
                found.setdefault(name, Path(parent) / name)
    return next((found[name] for name in wanted if name in found), None)


def fetch(source: Source, cache: Path | None = None) -> Path:
    """Return a path to the content of a source, downloading it at need.

    A file below the folder in the environment variable `CTSATTN_DATA` is used in place of a download;
    so is one that an earlier call left in the cache. Archives are unpacked into the cache.

    Args:
        source: What to find.
        cache: Folder for downloads; `cache_folder()` when not given.

    Returns:
        A file, plain or compressed as a whole; a folder where `source.member` is "*".

    Raises:
        ValueError: The download does not match its checksum, or an archive holds a hostile path.
        ConnectionError: The address could not be reached.
    """
    cache = cache or cache_folder()
    own = os.environ.get("CTSATTN_DATA")
    path = locate(source, Path(own)) if own else None
    path = path or download(source, cache)
    if not source.member or path.is_dir() or not path.name.endswith(_ARCHIVES):
        return path
    return _member(unpack(path, cache / "unpacked"), source.member)


def _member(folder: Path, pattern: str) -> Path:
    """Pick the file that a pattern names from an unpacked archive, or the whole folder for "*"."""
    if pattern == "*":
        return folder
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    matching = [path for path in files if fnmatch.fnmatch(path.name, pattern)]
    if len(matching) != 1:
        names = ", ".join(path.name for path in files[:5])
        raise ValueError(
            f"Expected one file like `{pattern}` in {folder.name}, found {len(matching)} of: {names}."
        )
    return matching[0]


def download(source: Source, cache: Path) -> Path:
    """Fetch a source into `cache` unless it is there; the file appears under its name only when whole."""
    import pooch
    from filelock import FileLock

    target = cache / source.file
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f".{target.name}.lock"):
        if target.exists():  # another process was first
            return target
        known = source.checksum if source.checksum and not source.checksum.startswith("git-blob:") else None
        pooch.retrieve(source.url, known, fname=target.name, path=cache, downloader=_Resuming(source, target))
    if source.checksum is None:
        warnings.warn(
            f"No checksum is known for {target.name}, so the download could not be verified. "
            f"It has {checksum(target, 'sha256')}.",
            stacklevel=3,
        )
    return target


class _Resuming:
    """A downloader for pooch that goes on where an earlier one was cut off."""

    def __init__(self, source: Source, target: Path) -> None:
        self.source = source
        self.part = Path(str(target) + ".part")

    def __call__(self, url: str, output_file: str | IO[bytes], pooch: Any) -> None:
        """Bring `url` to the path `output_file`, by way of a `.part` file beside the target."""
        _transfer(url, self.part)
        try:
            verify(self.part, self.source.checksum)
        except ValueError:
            self.part.unlink()
            raise
        os.replace(self.part, str(output_file))


def _transfer(url: str, part: Path) -> None:
    """Append to `part` what it still lacks of `url`; start again where the server cannot resume."""
    import requests

    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as answer:
            if answer.status_code == requests.codes.requested_range_not_satisfiable:
                return  # nothing is left to fetch; the checksum decides whether that is right
            answer.raise_for_status()
            resumed = answer.status_code == requests.codes.partial_content
            with part.open("ab" if resumed else "wb", buffering=0) as out:
                for piece in answer.iter_content(_PIECE):
                    out.write(piece)
            expected = int(answer.headers.get("Content-Length", -1))
    except requests.RequestException as error:
        raise ConnectionError(
            f"Could not fetch {url}: {error}. Put the file into a folder and name that in CTSATTN_DATA "
            "instead."
        ) from error
    got = part.stat().st_size - (have if resumed else 0)
    if expected not in (-1, got):
        raise ConnectionError(f"{url} broke off after {got} of {expected} bytes. Call again to resume.")


def checksum(path: Path, algorithm: str) -> str:
    """Checksum of a file as `algorithm:hex`; `git-blob` is the id that git gives the content."""
    digest = hashlib.new("sha1" if algorithm == "git-blob" else algorithm)
    if algorithm == "git-blob":
        digest.update(f"blob {path.stat().st_size}\0".encode())
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return f"{algorithm}:{digest.hexdigest()}"


def verify(path: Path, expected: str | None) -> None:
    """Raise unless the file has the expected checksum; None expects nothing."""
    if expected is None:
        return
    found = checksum(path, expected.split(":")[0])
    if found != expected:
        raise ValueError(
            f"{path.name.removesuffix('.part')} has {found}, but {expected} was expected: the file is "
            "damaged or "
            "was changed by its publisher. It was removed; call again to fetch it anew."
        )


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a zip or tar archive into its own folder below `folder`, or find it already unpacked.

    Only plain files are written, each inside the folder; the folder appears only when complete.

    Raises:
        ValueError: A member has an absolute path, climbs out of the folder, or is a link or a device;
            or the archive would unpack to more than 4 GiB.
    """
    stat = archive.stat()
    target = folder / f"{archive.name}-{stat.st_size}-{int(stat.st_mtime)}"
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as scratch:
        content = Path(scratch) / "content"
        content.mkdir()
        total = 0
        for name, size, stream in _members(archive):
            total += size
            if total > _LARGEST_UNPACKED:
                raise ValueError(
                    f"{archive.name} unpacks to more than {_LARGEST_UNPACKED >> 30} GiB; refused."
                )
            place = content / _safe(name, archive)
            place.parent.mkdir(parents=True, exist_ok=True)
            with stream, place.open("wb") as out:
                _copy(stream, out, size, archive)
        try:
            content.rename(target)
        except OSError:
            if not target.is_dir():  # another process was first
                raise
    return target


def _copy(stream: IO[bytes], out: IO[bytes], size: int, archive: Path) -> None:
    """Copy a member; one longer than it said is refused."""
    shutil.copyfileobj(stream, out, _CHUNK)
    if out.tell() > size:
        raise ValueError(f"A file in {archive.name} is longer than the archive says; refused.")


def _safe(name: str, archive: Path) -> PurePosixPath:
    """Check that a member's name stays inside the folder it is unpacked to."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in (path.parts or ("",))[0]:
        raise ValueError(f"{archive.name} holds the hostile path `{name}`; nothing of it was unpacked.")
    return path


def _members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Name, size and stream of every file of an archive; anything else but a folder is refused."""
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as packed:
            for entry in packed.infolist():
                if (entry.external_attr >> 28) == 0xA:
                    raise ValueError(
                        f"{archive.name} holds the link `{entry.filename}`; nothing was unpacked."
                    )
                if not entry.is_dir():
                    yield entry.filename, entry.file_size, packed.open(entry)
        return
    with tarfile.open(archive) as packed:
        for entry in packed:
            stream = packed.extractfile(entry) if entry.isfile() else None
            if stream is not None:
                yield entry.name, entry.size, stream
            elif not entry.isdir():
                raise ValueError(
                    f"{archive.name} holds the link or device `{entry.name}`; nothing was unpacked."
                )
