"""Files found on this disk, and downloads from a server on this machine: resumed, checked, whole."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ctsattn.datasets.card import Source
from ctsattn.datasets.download import checksum, fetch, locate, unpack, verify

CONTENT = bytes(range(256)) * 4096  # one MiB


@dataclass
class Server:
    """What a test server serves, how it misbehaves, and what it was asked."""

    url: str = ""
    content: bytes = CONTENT
    stop_after: int | None = None  # bytes of an answer after which the connection breaks
    pause: float = 0.0  # seconds between pieces
    ranges: bool = True
    asked: list[str | None] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append(wanted)
            begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.ranges else 0
            if begin and begin >= len(state.content):
                self.send_response(416)
                self.end_headers()
                return
            body = state.content[begin:]
            self.send_response(206 if begin else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            for start in range(0, len(body), 1 << 16):
                if state.stop_after is not None and start >= state.stop_after:
                    return
                self.wfile.write(body[start : start + (1 << 16)])
                time.sleep(state.pause)

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{http.server_port}/data.bin"
    yield state
    http.shutdown()
    http.server_close()
    thread.join()


def _sha256(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


@pytest.fixture(autouse=True)
def _no_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CTSATTN_DATA", raising=False)


def test_a_download_is_kept_and_not_fetched_again(server, tmp_path):
    source = Source(server.url, ("data.bin",), _sha256(CONTENT))
    path = fetch(source, tmp_path)
    assert path.read_bytes() == CONTENT
    assert fetch(source, tmp_path) == path
    assert server.asked == [None]


def test_a_broken_download_resumes_where_it_stopped(server, tmp_path):
    source = Source(server.url, ("data.bin",), _sha256(CONTENT))
    server.stop_after = 1 << 18
    with pytest.raises(ConnectionError, match=r"Call again|Could not fetch"):
        fetch(source, tmp_path)
    assert not (tmp_path / "data.bin").exists()
    got = (tmp_path / "data.bin.part").stat().st_size
    assert 0 < got < len(CONTENT)
    server.stop_after = None
    assert fetch(source, tmp_path).read_bytes() == CONTENT
    assert server.asked[-1] == f"bytes={got}-"
    assert not (tmp_path / "data.bin.part").exists()


def test_a_server_that_cannot_resume_is_asked_for_the_whole(server, tmp_path):
    source = Source(server.url, ("data.bin",), _sha256(CONTENT))
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:1000])
    server.ranges = False
    assert fetch(source, tmp_path).read_bytes() == CONTENT


def test_a_part_that_was_already_whole_is_taken(server, tmp_path):
    source = Source(server.url, ("data.bin",), _sha256(CONTENT))
    (tmp_path / "data.bin.part").write_bytes(CONTENT)
    assert fetch(source, tmp_path).read_bytes() == CONTENT


def test_a_download_with_the_wrong_checksum_leaves_nothing(server, tmp_path):
    source = Source(server.url, ("data.bin",), _sha256(b"something else"))
    with pytest.raises(ValueError, match="was expected: the file is damaged"):
        fetch(source, tmp_path)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == []


def test_an_unknown_checksum_warns_and_tells_the_one_found(server, tmp_path):
    with pytest.warns(UserWarning, match=_sha256(CONTENT)):
        fetch(Source(server.url, ("data.bin",), None), tmp_path)


def test_an_address_that_does_not_answer_says_what_to_do(tmp_path):
    with pytest.raises(ConnectionError, match="CTSATTN_DATA"):
        fetch(Source("http://127.0.0.1:9/data.bin", ("data.bin",), None), tmp_path)


_FETCH = """
import sys
from pathlib import Path
from ctsattn.datasets.card import Source
from ctsattn.datasets.download import fetch
fetch(Source(sys.argv[1], ("data.bin",), sys.argv[2]), Path(sys.argv[3]))
"""


def test_a_process_killed_in_the_middle_leaves_no_file_under_the_name(server, tmp_path):
    server.pause = 0.05
    arguments = [server.url, _sha256(CONTENT), str(tmp_path)]
    process = subprocess.Popen([sys.executable, "-c", _FETCH, *arguments], stderr=subprocess.DEVNULL)
    part = tmp_path / "data.bin.part"
    deadline = time.monotonic() + 30
    while not (part.exists() and part.stat().st_size > 0) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert part.exists()
    assert not (tmp_path / "data.bin").exists()
    server.pause = 0.0
    assert fetch(Source(server.url, ("data.bin",), _sha256(CONTENT)), tmp_path).read_bytes() == CONTENT


def test_two_that_fetch_at_once_do_not_spoil_one_another(server, tmp_path):
    server.pause = 0.01
    source = Source(server.url, ("data.bin",), _sha256(CONTENT))
    threads = [threading.Thread(target=fetch, args=(source, tmp_path)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert len(server.asked) == 1


def test_a_file_below_the_own_folder_is_used_instead_of_a_download(server, tmp_path, monkeypatch):
    own = tmp_path / "own/deep/down"
    own.mkdir(parents=True)
    (own / "other_name.csv.gz").write_bytes(gzip.compress(b"a,b\n"))
    monkeypatch.setenv("CTSATTN_DATA", str(tmp_path / "own"))
    source = Source(server.url, ("data.csv", "other_name.csv"), None)
    assert fetch(source, tmp_path / "cache") == own / "other_name.csv.gz"
    assert server.asked == []


def test_names_of_a_source_are_tried_in_order(tmp_path):
    for name in ("b.csv", "a.csv.gz"):
        (tmp_path / name).touch()
    found = locate(Source("https://here/a.csv", ("a.csv", "b.csv"), None), tmp_path)
    assert found == tmp_path / "a.csv.gz"
    assert locate(Source("https://here/c.csv", ("c.csv",), None), tmp_path) is None


@pytest.mark.parametrize("algorithm", ["sha256", "md5", "git-blob"])
def test_checksums_of_every_kind_are_verified(algorithm, tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(b"hello\n")
    verify(path, checksum(path, algorithm))
    with pytest.raises(ValueError, match="was expected"):
        verify(path, f"{algorithm}:{'0' * 40}")


def test_a_git_blob_checksum_is_the_id_that_git_gives(tmp_path):
    path = tmp_path / "hello"
    path.write_bytes(b"hello\n")
    assert checksum(path, "git-blob") == "git-blob:ce013625030ba8dba906f756967f9e9ca394464a"


def _zip(path: Path, names: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in names.items():
            archive.writestr(name, content)
    return path


def test_an_archive_is_unpacked_once_into_a_folder_of_its_own(tmp_path):
    archive = _zip(tmp_path / "a.zip", {"one.tsf": b"1", "sub/two.txt": b"2"})
    folder = unpack(archive, tmp_path / "out")
    assert {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} == {
        "one.tsf",
        "sub/two.txt",
    }
    before = (folder / "one.tsf").stat().st_mtime_ns
    assert unpack(archive, tmp_path / "out") == folder
    assert (folder / "one.tsf").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "name", ["../outside.txt", "/etc/outside.txt", "sub/../../outside.txt", "C:/outside.txt"]
)
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_hostile_paths_are_refused_and_nothing_is_unpacked(kind, name, tmp_path):
    path = tmp_path / f"a.{kind}"
    if kind == "zip":
        _zip(path, {"good.txt": b"1", name: b"2"})
    else:
        with tarfile.open(path, "w") as archive:
            for member in ("good.txt", name):
                entry = tarfile.TarInfo(member)
                entry.size = 1
                archive.addfile(entry, io.BytesIO(b"1"))
    with pytest.raises(ValueError, match="hostile path"):
        unpack(path, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    assert not (tmp_path / "outside.txt").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_an_archive_are_refused(kind, tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo("link")
        entry.type, entry.linkname = kind, "/etc/passwd"
        archive.addfile(entry)
    with pytest.raises(ValueError, match="link or device"):
        unpack(path, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_link_in_a_zip_archive_is_refused(tmp_path):
    entry = zipfile.ZipInfo("link")
    entry.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(entry, "/etc/passwd")
    with pytest.raises(ValueError, match="holds the link"):
        unpack(tmp_path / "a.zip", tmp_path / "out")


def test_an_archive_that_would_fill_the_disk_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("ctsattn.datasets.download._LARGEST_UNPACKED", 1000)
    archive = _zip(tmp_path / "a.zip", {"big.txt": bytes(2000)})
    with pytest.raises(ValueError, match="unpacks to more"):
        unpack(archive, tmp_path / "out")


def test_the_wanted_file_of_an_archive_must_be_one(tmp_path, monkeypatch):
    _zip(tmp_path / "a.zip", {"one.tsf": b"1", "two.tsf": b"2"})
    monkeypatch.setenv("CTSATTN_DATA", str(tmp_path))
    source = Source("https://here/a.zip", ("a.zip",), None, member="*.tsf")
    with pytest.raises(ValueError, match="found 2 of"):
        fetch(source, tmp_path / "cache")


def test_the_cache_folder_can_be_chosen(tmp_path, monkeypatch):
    from ctsattn.datasets import cache_folder

    monkeypatch.setenv("CTSATTN_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("CTSATTN_CACHE")
    assert "ctsattn" in os.fspath(cache_folder())
