"""Reading what MODEL names: a directory, a config file, or a hub id. No torch, no Transformers."""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpplan.config_text import DuplicateKeys, parse_json, position_of
from tpplan.diagnostics import Diagnostic, InputError, Place
from tpplan.units import one_line

CONFIG_NAME = "config.json"
WEIGHTS_NAME, INDEX_NAME = "model.safetensors", "model.safetensors.index.json"  # in the order of from_pretrained
# The dtypes of weights in which a model can be held, by the names of safetensors.
TORCH_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
MAX_CONFIG_BYTES = 16 * 2**20
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model as given by the user.

    name: what the user wrote. config: the parsed config.json. config_file: where it was read (None for a plan's own
    facts). directory: the model's directory, when there is one. checkpoint_keys: names of the tensors in the
    checkpoint, or None when no checkpoint is at hand. checkpoint_dtype: the dtype that from_pretrained takes from its
    weights, as torch names it, None where that is not known. called: what people call the place where `config` stands.
    text: of the config file, None for a plan's own facts.
    """

    name: str
    config: dict
    config_file: str | None = None
    directory: Path | None = None
    checkpoint_keys: frozenset[str] | None = None
    checkpoint_dtype: str | None = None
    called: str = CONFIG_NAME
    text: str | None = field(default=None, repr=False)

    def place_of(self, *keys: str | int) -> Place:
        """Line and column of the last of `keys` in the config file, or the file alone where they are not in it."""
        position = position_of(self.text, keys) if self.text and keys else None
        line, column = position or (None, None)
        return Place(file=self.config_file or self.name, line=line, column=column)

    def refused(self, *diagnostics: Diagnostic, **fields: Any) -> InputError:
        """The error for a model that cannot be read: of these diagnostics, or of one that has these fields."""
        return InputError(*(diagnostics or (Diagnostic(**fields),)), model=self.name)


def read_source(name: str) -> Source:
    """The config that `name` leads to, and the checkpoint's tensor names when `name` is a directory that has one.

    Raises InputError: TPP110 when there is no readable config, TPP902 when a hub id cannot be fetched.
    """
    file, directory = located(name)
    try:
        keys = _checkpoint_keys(directory) if directory else None
        weights = weights_of(name, file, directory)
        dtype = _checkpoint_dtype(weights) if weights else None
        return _source(name, file, directory=directory, checkpoint_keys=keys, checkpoint_dtype=dtype)
    except (OSError, ValueError) as error:  # no permission
        raise _not_opened(name, error) from error


def located(name: str) -> tuple[Path, Path | None]:
    """The config file that `name` leads to, and the model's directory when `name` is one. Raises as `read_source`."""
    path = Path(name)
    try:
        if path.is_dir():
            if not (path / CONFIG_NAME).exists():
                raise _unreadable(name, f"the directory has no {CONFIG_NAME}")
            return path / CONFIG_NAME, path
        if path.exists():
            return path, None
    except (OSError, ValueError) as error:  # a name too long for the file system, an embedded NUL, no permission
        raise _not_opened(name, error) from error
    looks_like_path = path.is_absolute() or name.startswith((".", "~")) or name.endswith((".json", "/"))
    if looks_like_path or not HUB_ID.fullmatch(name):
        raise _unreadable(name, "there is no such file or directory, and it is not a hub id")
    return _fetched(name), None


def weights_of(name: str, file: Path, directory: Path | None) -> Path | None:
    """Where weights may lie beside the config that `located` found: not beside a config file that the user named."""
    return directory or (None if Path(name).exists() else file.parent)


def read_config(path: Path) -> dict:
    """The JSON object in `path`. Raises InputError TPP110 with line and column where it does not parse."""
    return _parse(_read_text(path), str(path))


def _source(name: str, file: Path, **rest: Any) -> Source:
    text = _read_text(file)
    return Source(name=name, config=_parse(text, str(file)), config_file=str(file), text=text, **rest)


def _read_text(path: Path) -> str:
    file = str(path)
    if not path.is_file():
        raise _unreadable(file, "this is not a regular file")
    with path.open("rb") as stream:
        data = stream.read(MAX_CONFIG_BYTES + 1)
    if len(data) > MAX_CONFIG_BYTES:
        raise _unreadable(file, f"the file is larger than {MAX_CONFIG_BYTES // 2**20} MiB, which no config is")
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise _unreadable(file, "the file is UTF-16 text", fix="save it as UTF-8")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise _unreadable(file, "the file is not UTF-8 text", evidence=found) from error
    if text.startswith("\ufeff"):
        fact = "the file starts with a byte order mark, which JSON does not allow and Transformers refuses"
        raise _unreadable(file, fact, line=1, column=1, fix="save it as UTF-8 without a byte order mark (BOM)")
    if not text.strip():
        raise _unreadable(file, "the file is empty")
    return text


def _parse(text: str, file: str) -> dict:
    try:
        config = parse_json(text)
    except DuplicateKeys as error:
        raise _duplicates(file, error) from None
    except json.JSONDecodeError as error:
        line, column = error.lineno, error.colno
        raise _unreadable(
            file,
            "the file is not JSON",
            line=line,
            column=column,
            evidence=error.msg,
            fix=f"correct the file at line {line}, column {column}",
        ) from error
    except (RecursionError, ValueError) as error:
        raise _unreadable(file, "the file is not a config", evidence=str(error)) from error
    if not isinstance(config, dict):
        raise _unreadable(file, f"the file holds a JSON {type(config).__name__}, not the object that a config is")
    return config


def _duplicates(file: str, error: DuplicateKeys) -> InputError:
    """One diagnostic for each key that stands again."""
    diagnostics = [
        Diagnostic(
            code="TPP110",
            message=f"the key {'.'.join(map(str, keys))} stands twice, and readers silently keep the last, "
            "so nothing was checked",
            where=Place(file=file, line=line, column=column),
            evidence=f"first at line {first[0]}, column {first[1]}",
            fix="keep one of the two",
        )
        for keys, (line, column), first in error.found
    ]
    return InputError(*diagnostics, model=file)


def _fetched(name: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        # Without an answer huggingface_hub would retry for half a minute; the cache is asked at once instead.
        file = hf_hub_download(name, CONFIG_NAME, local_files_only=not _hub_answers())
    except HFValidationError as error:
        raise _unreadable(name, "MODEL is neither a path nor a hub id", evidence=_first_line(error)) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise InputError(
            Diagnostic(
                code="TPP902",
                message=f"the config of {name!r} could not be fetched from the hub, so nothing was checked",
                where=Place(file=name),
                evidence=f"{type(error).__name__}: {_first_line(error)}",
                fix=f"run `hf download {name} {CONFIG_NAME}` where there is network",
            ),
            model=name,
        ) from error
    return Path(file)


def _hub_answers(timeout: float = 5.0) -> bool:
    """Whether the hub's host takes a connection within `timeout` seconds. Behind a proxy only a request could tell."""
    import socket
    from urllib.parse import urlsplit
    from urllib.request import getproxies, proxy_bypass

    from huggingface_hub.constants import ENDPOINT, HF_HUB_OFFLINE

    url = urlsplit(ENDPOINT)
    if HF_HUB_OFFLINE:
        return False
    if getproxies().get(url.scheme) and not proxy_bypass(url.hostname or ""):
        return True
    try:
        port = url.port or {"http": 80, "https": 443}[url.scheme]
        socket.create_connection((url.hostname, port), timeout=timeout).close()
    except OSError:
        return False
    return True


def _checkpoint_keys(directory: Path) -> frozenset[str] | None:
    """Tensor names of a safetensors checkpoint, read from the header or from the index, never from the weights."""
    single, index = directory / WEIGHTS_NAME, directory / INDEX_NAME
    if single.is_file():
        return frozenset(_safetensors_dtypes(single))
    return frozenset(_weight_map(index)) if index.is_file() else None


def _checkpoint_dtype(directory: Path) -> str | None:
    """The dtype of the first weights of the first file, as modeling_utils._get_dtype finds it, from the header."""
    file, index = directory / WEIGHTS_NAME, directory / INDEX_NAME
    if not file.is_file() and index.is_file():
        file = directory / min(map(str, _weight_map(index).values()), default=WEIGHTS_NAME)
    if not file.is_file():
        return None
    return next((TORCH_DTYPES[name] for name in _safetensors_dtypes(file).values() if name in TORCH_DTYPES), None)


def _weight_map(index: Path) -> dict:
    weight_map = read_config(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise _unreadable(str(index), "the index has no weight_map")
    return weight_map


def _safetensors_dtypes(path: Path) -> dict[str, str]:
    """Name -> dtype of every tensor, as safetensors names it, in the order in which Transformers reads them."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as checkpoint:
            return {name: checkpoint.get_slice(name).get_dtype() for name in checkpoint.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise _unreadable(str(path), "this is not a safetensors file", evidence=_first_line(error)) from error


def _not_opened(name: str, error: Exception) -> InputError:
    return _unreadable(name, "MODEL cannot be opened", evidence=one_line(error))


def _unreadable(
    file: str, fact: str, *, line: int | None = None, column: int | None = None, evidence: str = "", fix: str = ""
) -> InputError:
    return InputError(
        Diagnostic(
            code="TPP110",
            message=f"{fact}, so nothing was checked",
            where=Place(file=file, line=line, column=column),
            evidence=evidence,
            fix=fix or f"give a directory with a {CONFIG_NAME}, a config file, or a hub id",
        ),
        model=file,
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]
