"""Compiled kernels on disk, in a folder that only its owner can write.

Loaded object code is run, so a folder or file that another user owns or can write is refused. A file contains a digest
and the code; a truncated or altered one is compiled again. Its name is a digest of everything the code depends on: the
robot, the kernel, the compiler (see `provenance`) and the processor.

The folder is `$DYN_SERVICE_CACHE` if set, else `dyn_service` in the user's cache folder; an empty value switches the
store off. Its size is limited to `$DYN_SERVICE_CACHE_BYTES`, by default `MOST_BYTES`; the least recently used kernels
are deleted first.

Without a store, with a full disk, or with a folder that cannot be written, each process compiles its kernels.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import stat
import tempfile
from pathlib import Path

from dyn_service.errors import InvalidArgumentError, PermissionDeniedError

_LOG = logging.getLogger(__name__)

MOST_BYTES = 512 << 20
"""Default limit of the folder's disk space."""

_BLOCK = 4096
"""A file takes whole blocks of the disk."""

_ROOM = 16
"""The folder is scanned after 1 / (4 `_ROOM`) of the limit was written, and cleared down to 1 - 1 / `_ROOM` of it."""


def folder() -> Path | None:
    """Returns the folder of the store; None if the store is switched off."""
    chosen = os.environ.get("DYN_SERVICE_CACHE")
    if chosen is not None:
        return Path(chosen) if chosen else None
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dyn_service"


def limit() -> int:
    """Returns the limit of the folder's disk space in bytes.

    Raises:
        InvalidArgumentError: `DYN_SERVICE_CACHE_BYTES` is not a whole number.
    """
    chosen = os.environ.get("DYN_SERVICE_CACHE_BYTES")
    if chosen is None:
        return MOST_BYTES
    if not (chosen.isascii() and chosen.isdecimal()):
        raise InvalidArgumentError(
            f"DYN_SERVICE_CACHE_BYTES must be a whole number of bytes, found {chosen!r}", path="DYN_SERVICE_CACHE_BYTES"
        )
    return int(chosen)


def key(*parts: str) -> str:
    """Returns the file name of code that depends on these parts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:40]


def load(name: str) -> bytes | None:
    """Returns the code stored under this key, or None.

    Raises:
        PermissionDeniedError: The folder or file belongs to another user, or others can write it.
    """
    place = folder()
    if place is None or not place.is_dir():
        return None
    _refuse_unsafe(place)
    path = place / name
    try:
        # The store writes regular files only: links are not followed, and reading a pipe would block.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as file:
        _refuse_unsafe(path, status)
        content = file.read()
    digest, code = content[:32], content[32:]
    if hashlib.sha256(code).digest() != digest:
        _LOG.warning("kernel file %s is damaged; it is compiled again", path)
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return code


def save(name: str, code: bytes) -> None:
    """Stores the code under this key; does nothing if there is no room, and logs a warning if it cannot be written.

    Raises:
        PermissionDeniedError: The folder belongs to another user, or others can write it.
        InvalidArgumentError: `DYN_SERVICE_CACHE_BYTES` is not a whole number.
    """
    place, most = folder(), limit()
    size = _on_disk(len(code) + 32)
    if place is None or size > most:
        return
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_unsafe(place)
        handle, temporary = tempfile.mkstemp(dir=place, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(code).digest() + code)
            os.replace(temporary, place / name)
        except OSError:
            os.unlink(temporary)
            raise
        _make_room(place, most, size)
    except OSError as error:
        if isinstance(error, PermissionDeniedError):
            raise
        _LOG.warning("kernels are not kept: %s", error)


_OURS = re.compile(r"[0-9a-f]{40}|\.new-.*")
"""Names of files that this store writes."""

_written: dict[Path, int] = {}
"""By folder, bytes that this process has written since it last scanned the folder for its size."""


def _make_room(place: Path, most: int, size: int) -> None:
    since = _written.get(place)
    if since is not None and since + size <= most // (4 * _ROOM):
        _written[place] = since + size
        return
    _written[place] = 0
    files = []
    for entry in os.scandir(place):
        if not _OURS.fullmatch(entry.name):  # the folder may contain other files of the user
            continue
        with contextlib.suppress(OSError):  # another process may be deleting files too
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                files.append((status.st_mtime, entry.path, _on_disk(status.st_size)))
    taken = sum(each for _, _, each in files)
    if taken <= most - most // (4 * _ROOM):  # all that may be written until the next scan still fits
        return
    for _, path, each in sorted(files):
        if taken <= most - most // _ROOM:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
            taken -= each


def _on_disk(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _refuse_unsafe(path: Path, status: os.stat_result | None = None) -> None:
    if not hasattr(os, "geteuid"):
        return  # Windows: the user's profile folder is private by its access list
    status = status or os.stat(path)
    if status.st_uid != os.geteuid():
        raise PermissionDeniedError(
            f"kernel cache '{path}' belongs to user {status.st_uid}, not to user {os.geteuid()} who runs this; "
            "code from it is not run: choose another folder with DYN_SERVICE_CACHE"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionDeniedError(
            f"kernel cache '{path}' has mode {stat.S_IMODE(status.st_mode):04o}, so others can write it; "
            f"code from it is not run: chmod go-w '{path}', or choose another folder with DYN_SERVICE_CACHE"
        )
