"""One file per model: JSON beside arrays in the safetensors format, written atomically, no pickle.

Layout: safetensors tensors named `network/...` (weights) and `data/...` (the stored series), and in the
metadata of the file one JSON text under "ctsattn": schema version, parameters, task and frame schema. Under
"sha256" stands a digest of that text and of every array with its name, dtype and shape; files of schema
version 1 have none.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ctsattn.forecasting.files import whole_file

SCHEMA_VERSION = 2
READABLE = (1, 2)
_KEY, _DIGEST = "ctsattn", "sha256"
_SPAN = "timedelta"


class ModelFileNotFoundError(FileNotFoundError, ValueError):
    """There is no model file at the path."""


def write(path: str | os.PathLike[str], header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a model file so that at any moment either the old or the new one is whole.

    Args:
        path: File to write; its folder must exist.
        header: What JSON can hold.
        tensors: Arrays by name; moved to the CPU.

    Raises:
        ValueError: The folder does not exist, or `path` is a folder.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(
            f"{str(path)!r} is a folder, but a model is saved as one file. "
            f"Give a file name, for example {str(path / 'model.ctsattn')!r}."
        )
    if not path.parent.is_dir():
        raise ValueError(
            f"The folder {str(path.parent)!r} does not exist, so nothing was saved. Make it first."
        )
    text = json.dumps({"schema_version": SCHEMA_VERSION, **header}, allow_nan=False)
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {_KEY: text, _DIGEST: _digest(text, on_cpu)}
    with whole_file(path) as temporary:
        save_file(on_cpu, temporary, metadata=metadata)


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a header and arrays, whatever order they are given in."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        digest.update(as_bytes(tensor))
    return digest.hexdigest()


def as_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor of any dtype and device."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.numel() < 2:
        flat = torch.tensor(flat.tolist(), dtype=flat.dtype)  # its stride may be anything
    array: Any = flat.view(torch.uint8).numpy()
    return memoryview(array)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a model file.

    Returns:
        The header and the arrays, on the CPU.

    Raises:
        ModelFileNotFoundError: Nothing is there. Nothing is created.
        ValueError: It is no model file of this library, or of a schema this version cannot read, or damaged.
        OSError: It may not be read.
    """
    path = Path(path)
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "does not exist"
        raise ModelFileNotFoundError(
            f"No model at {str(path)!r}: it {found}. Models are single files made by `save`."
        )
    metadata, tensors = _content(path)
    if _KEY not in metadata:
        raise ValueError(
            f"{str(path)!r} holds arrays but no ctsattn model. Load files made by `Forecaster.save`."
        )
    text = metadata[_KEY]
    if _DIGEST in metadata and metadata[_DIGEST] != _digest(text, tensors):
        raise _damaged(path, "its content does not match its checksum")
    header = _header(path, text)
    if _DIGEST not in metadata and header["schema_version"] > 1:
        raise _damaged(path, "it has no checksum")
    return header, tensors


def _content(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and arrays of a safetensors file; nothing but text and numbers is read."""
    try:
        with path.open("rb"):
            pass  # an error of permission is told as such
        with safe_open(str(path), framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            return metadata, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except PermissionError as error:
        raise PermissionError(
            error.errno,
            f"{str(path)!r} may not be read by this user. Ask its owner for the right to read it.",
        ) from error
    except (SafetensorError, OSError, ValueError, RuntimeError, AttributeError) as error:
        raise ValueError(
            f"{str(path)!r} is not a model file of ctsattn, or it is damaged ({error})."
        ) from error


def _header(path: Path, text: str) -> dict[str, Any]:
    """The JSON of a file, if this version can read it."""
    try:
        header = json.loads(text)
        version = header["schema_version"]
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(path, f"its header cannot be read: {error}") from error
    if version not in READABLE:
        readable = " and ".join(map(str, READABLE))
        raise ValueError(
            f"{str(path)!r} has schema version {version}, and this ctsattn reads versions {readable}. "
            "Load it with the ctsattn that wrote it"
            + (f" ({header['ctsattn_version']})." if "ctsattn_version" in header else ".")
        )
    return header


def _damaged(path: Path, how: str) -> ValueError:
    return ValueError(
        f"{str(path)!r} is damaged: {how}. Nothing of it was used. Take a copy of the file, or save it again."
    )


def text_to_tensor(values: Any) -> Tensor:
    """JSON as an array of bytes, for lists too long for the header of the file."""
    return torch.frombuffer(bytearray(json.dumps(values).encode()), dtype=torch.uint8)


def tensor_to_text(tensor: Tensor) -> Any:
    """Inverse of `text_to_tensor`."""
    return json.loads(bytes(tensor.numpy()).decode())


def encode_config(config: Any, table: Mapping[str, type]) -> dict[str, Any]:
    """A frozen config as its name in `table` and its fields.

    Raises:
        ValueError: Its class is not in the table, so that `load` could not find it again.
    """
    for name, kind in table.items():
        if type(config) is kind:
            return {"name": name, "fields": {field: _python(v) for field, v in asdict(config).items()}}
    raise ValueError(
        f"A {type(config).__name__} cannot be saved because no name leads back to its class. "
        f"Register it first: MODELS[{type(config).__name__.lower()!r}] = {type(config).__name__}."
    )


def decode_config(encoded: Mapping[str, Any], table: Mapping[str, type]) -> Any:
    """Inverse of `encode_config`.

    Raises:
        ValueError: The name is not in the table.
    """
    kind = table.get(encoded["name"])
    if kind is None or not is_dataclass(kind):
        raise ValueError(
            f"The file needs the model {encoded['name']!r}, but MODELS has {', '.join(map(repr, table))}. "
            "Register it in MODELS before loading."
        )
    known = {f.name for f in fields(kind)}
    unknown = set(encoded["fields"]) - known
    if unknown:
        raise ValueError(
            f"The file's {encoded['name']!r} has options unknown here: {', '.join(sorted(unknown))}."
        )
    return kind(**{name: _tuples(value) for name, value in encoded["fields"].items()})


def _tuples(value: Any) -> Any:
    """JSON knows only lists; configs hold tuples so that they stay hashable."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def encode_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of an estimator as JSON: configs by their fields, spans and times as text.

    What JSON cannot hold (callbacks, loggers, generators) is left out with a warning.
    """
    encoded: dict[str, Any] = {}
    for name, value in params.items():
        if name == "model":
            encoded[name] = value is not None
        elif is_dataclass(value) and not isinstance(value, type):
            encoded[name] = {
                f.name: _plain(f"{name}__{f.name}", getattr(value, f.name)) for f in fields(value)
            }
        else:
            encoded[name] = _plain(name, value)
    return encoded


def _python(value: Any) -> Any:
    """A number of NumPy's as one of Python's."""
    return value.item() if isinstance(value, np.generic) else value


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, (pd.Timedelta, np.timedelta64, timedelta)):
        return {_SPAN: str(pd.Timedelta(value))}
    value = _python(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(f"{name}[{k!r}]", v) for k, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(name, v) for v in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    warnings.warn(
        f"Parameter {name} is a {type(value).__name__}, which a model file cannot hold; it is left out.",
        UserWarning,
        stacklevel=6,
    )
    return None


def decode_params(encoded: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of `encode_params`; configs stay dictionaries of their fields."""
    return {name: _thick(value) for name, value in encoded.items()}


def _thick(value: Any) -> Any:
    if isinstance(value, Mapping):
        if set(value) == {_SPAN}:
            return pd.Timedelta(value[_SPAN])
        return {k: _thick(v) for k, v in value.items()}
    return _tuples(value)
