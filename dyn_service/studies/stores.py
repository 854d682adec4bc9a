"""Files of a study's store: chunks with checksums (CRC32C), metadata that a second run restores, the lock of a run."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dyn_service.api.arrays import Array
from dyn_service.errors import FailedPreconditionError
from dyn_service.support.optional import load

ANOTHER = "choose a new folder with --store DIR, in Python with run(DIR)"


def codecs() -> list[Any]:
    """Returns the codecs of all arrays: compressed, then with a checksum that readers of Zarr verify."""
    codec = load("a study", "zarr.codecs")
    return [codec.ZstdCodec(level=0), codec.Crc32cCodec()]


def unusable(store: Any, text: str) -> FailedPreconditionError:
    """Returns the error for a store that a run cannot use."""
    return FailedPreconditionError(f"the store '{store}' {text}", path="store")


def memory_root(content: dict[str, Any]) -> Any:
    """Returns the root group of a store in memory, whose files are in `content`."""
    zarr = load("a study", "zarr")
    return zarr.open_group(zarr.storage.MemoryStore(content), mode="a")


def open_root(store: Any, mode: str) -> Any:
    """Returns the root group of a store; its attributes are {} if it is new."""
    zarr = load("a study", "zarr")
    try:
        group = zarr.open_group(str(Path(store)), mode=mode)
        attributes = dict(group.attrs)
        if not attributes and any(part.is_dir() for part in Path(store).iterdir()):
            raise _unknown(store)
    except (ValueError, TypeError, LookupError) as error:
        raise _unknown(store) from error
    if attributes and attributes.pop("digest", None) != _digest(attributes):
        raise _unknown(store)
    return group


def seal(group: Any, attributes: Mapping[str, Any]) -> None:
    """Writes the attributes of the root with their digest."""
    group.attrs.put({**attributes, "digest": _digest(attributes)})


def restore(store: Any, content: Mapping[str, Any]) -> None:
    """Writes the metadata of groups and arrays where the files are missing or have other bytes than `content`."""
    for key, buffer in content.items():
        file, right = Path(store, key), buffer.to_bytes()
        if key != "zarr.json" and not (file.is_file() and file.read_bytes() == right):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(right)


def chunk_file(array: Any, store: Any, index: Sequence[int]) -> Path:
    """Returns the file of the chunk that has an entry; missing indices are 0."""
    padded = (*index, *(0,) * (array.ndim - len(index)))
    place = tuple(i // n for i, n in zip(padded, array.chunks, strict=True))
    return Path(store, array.path, array.metadata.encode_chunk_key(place))


def is_readable(array: Any, index: Any = ...) -> bool:
    """Returns whether entries have the checksums with which they were written."""
    try:
        array[index]
    except Exception:  # noqa: BLE001  codecs raise errors of many classes for damaged bytes
        return False
    return True


class StoredStates:
    """An array of a store as dask reads it. Raises an error with the file name for a damaged chunk."""

    def __init__(self, array: Any, store: Any) -> None:
        self.array, self.store = array, store
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim

    def __getitem__(self, index: tuple[Any, ...]) -> Array:
        try:
            values: Array = self.array[index]
        except Exception as error:
            sizes = zip(self.shape, self.array.chunks, index, strict=False)
            firsts = product(*(np.unique(np.arange(size)[part] // n) * n for size, n, part in sizes))
            damaged = [first for first in firsts if not is_readable(self.array, first)]
            if not damaged:
                raise
            file = chunk_file(self.array, self.store, damaged[0])
            text = f"has a damaged file, {file}: remove this file and run the study again, which computes it"
            raise unusable(self.store, text) from error
        return values


def _digest(attributes: Mapping[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(attributes, order="sorted")).hexdigest()[:16]


def _unknown(store: Any) -> FailedPreconditionError:
    text = "is no store of a study, or its file zarr.json is missing, damaged or of another version"
    return unusable(store, f"{text}: {ANOTHER}")


@contextmanager
def writing(store: Any) -> Iterator[None]:
    """Raises errors of the operating system as `FailedPreconditionError` of the store."""
    try:
        yield
    except OSError as error:
        text = f"cannot be written ({error.strerror or error}): remove the cause and run again, or {ANOTHER}"
        raise unusable(store, text) from None


@contextmanager
def locked(store: Any) -> Iterator[None]:
    """Holds the lock of a store."""
    if store is None:
        yield
        return
    with writing(store):
        Path(store).mkdir(parents=True, exist_ok=True)
        descriptor = os.open(store, os.O_RDONLY)
    try:
        try:
            # A lock of the system, which releases it when the process ends in any way.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise unusable(store, "is written by another run: wait until it ends, or name another one") from None
        yield
    finally:
        os.close(descriptor)
