"""Compiled kernels on disk, in a folder that only its owner can write.

Loaded object code is run, so a folder or file that another user owns or can write is refused. Its name is a digest of
everything the code depends on: the robot, the kernel, the compiler (see `provenance`) and the processor. A file
contains a digest of its name and the code, and the code; a truncated, altered or renamed one is compiled again.

The folder is `$DYN_SERVICE_CACHE` if set, else `dyn_service` in the user's cache folder; an empty value switches the
store off. Its size is limited to `$DYN_SERVICE_CACHE_BYTES`, by default `MAX_BYTES`; the least recently used kernels
are deleted first.

Without a store, with a full disk, or with a folder that cannot be written, each process compiles its kernels.

**Keys.** A kernel on disk is valid as long as the code that compiles it is the same: the module of its function under
`dynamics/`, `COMPILER`, and all that these import from the folders in `_SHAPING`, as bytecode without docstrings and
line numbers. So a change of a comment, a docstring, another query or another formulation invalidates no kernel. The row
of the table is in the kernel's signature, which is also part of the key.
"""

from __future__ import annotations

import contextlib
import dis
import hashlib
import inspect
import logging
import os
import re
import stat
import sys
import tempfile
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import version
from pathlib import Path
from types import CodeType

from dyn_service.errors import InvalidArgumentError, PermissionDeniedError

_LOG = logging.getLogger(__name__)

MAX_BYTES = 512 << 20
"""Default limit of the folder's disk space."""

_BLOCK = 4096
"""A file takes whole blocks of the disk."""

_ROOM = 16
"""The folder is scanned each time 1 / (4 `_ROOM`) of the limit was written. If files must be deleted, 1 / `_ROOM` of
the limit becomes free.
"""


def folder() -> Path | None:
    """Returns the folder of the store; None if the store is switched off."""
    path = os.environ.get("DYN_SERVICE_CACHE")
    if path is not None:
        return Path(path) if path else None
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dyn_service"


def limit() -> int:
    """Returns the limit of the folder's disk space in bytes.

    Raises:
        InvalidArgumentError: `DYN_SERVICE_CACHE_BYTES` is not a whole number.
    """
    size = os.environ.get("DYN_SERVICE_CACHE_BYTES")
    if size is None:
        return MAX_BYTES
    if not (size.isascii() and size.isdecimal()):
        raise InvalidArgumentError(
            f"DYN_SERVICE_CACHE_BYTES must be a whole number of bytes, found {size!r}", path="DYN_SERVICE_CACHE_BYTES"
        )
    return int(size)


def key(*parts: str) -> str:
    """Returns the file name of code that depends on these parts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:40]


def load(name: str) -> bytes | None:
    """Returns the code stored under this key; None if there is no such file, or it is damaged.

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
        # The open file is checked, not the path, which could be replaced between check and reading.
        _refuse_unsafe(path, status)
        content = file.read()
    digest, code = content[:32], content[32:]
    if _digest(name, code) != digest:
        _LOG.warning("kernel file %s is damaged or of another kernel; it is compiled again", path)
        return None
    with contextlib.suppress(OSError):
        # The least recently used files are deleted first, and access times are often off.
        os.utime(path)
    return code


def save(name: str, code: bytes) -> None:
    """Stores the code under this key; does nothing if it exceeds the limit, logs a warning if it cannot be written.

    Raises:
        PermissionDeniedError: The folder belongs to another user, or others can write it.
        InvalidArgumentError: `DYN_SERVICE_CACHE_BYTES` is not a whole number.
    """
    place, max_bytes = folder(), limit()
    size = _on_disk(len(code) + 32)
    if place is None or size > max_bytes:
        return
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_unsafe(place)
        handle, temporary = tempfile.mkstemp(dir=place, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_digest(name, code) + code)
            # A rename is atomic: another process reads the whole file or none.
            os.replace(temporary, place / name)
        except OSError:
            os.unlink(temporary)
            raise
        _make_room(place, max_bytes, size)
    except OSError as error:
        if isinstance(error, PermissionDeniedError):
            raise
        _LOG.warning("kernels are not kept: %s", error)


def _digest(name: str, code: bytes) -> bytes:
    """Returns the digest of a file, which covers its name: another kernel's code has other arguments."""
    return hashlib.sha256(name.encode() + b"\0" + code).digest()


_OURS = re.compile(r"[0-9a-f]{40}|\.new-.*")
"""Names of files that this store writes."""

_bytes_written: dict[Path, int] = {}
"""By folder, bytes that this process has written since it last scanned the folder for its size."""


def _make_room(place: Path, max_bytes: int, size: int) -> None:
    written_bytes = _bytes_written.get(place)
    if written_bytes is not None and written_bytes + size <= max_bytes // (4 * _ROOM):
        _bytes_written[place] = written_bytes + size
        return
    _bytes_written[place] = 0
    files = []
    for entry in os.scandir(place):
        if not _OURS.fullmatch(entry.name):  # the folder may contain other files of the user
            continue
        with contextlib.suppress(OSError):  # another process may be deleting files too
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                files.append((status.st_mtime, entry.path, _on_disk(status.st_size)))
    total = sum(size for _, _, size in files)
    if total <= max_bytes - max_bytes // (4 * _ROOM):  # all that may be written until the next scan still fits
        return
    for _, path, file_size in sorted(files):
        if total <= max_bytes - max_bytes // _ROOM:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
            total -= file_size


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


_PACKAGE = "dyn_service"
_ROOT = Path(__file__).parent.parent
_SHAPING = ("dynamics", "kernels", "model")
COMPILER = tuple(f"kernels.{name}" for name in ("budget", "certify", "graph", "jit", "lower"))
"""The modules that compile a traced function, compare it with the tree as given, or refuse it as too large."""

_LIBRARIES = ("llvmlite", "numpy")
_READS_CONSTANT = frozenset(dis.hasconst)
_STARS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_HAS_DOCSTRING = 0x4000000
"""CO_HAS_DOCSTRING, from Python 3.13 on; before 3.13 a function's first constant is its docstring or None."""


@cache
def provenance(*modules: str) -> str:
    """Returns a hexadecimal digest of modules of this package, such as `kernels.lower`, and of all that they import."""
    pending = [f"{_PACKAGE}.{module}" for module in modules]
    digests: dict[str, bytes] = {}
    while pending:
        name = pending.pop()
        if name not in digests:
            digests[name], imports = _module(name)
            pending += imports
    digest = hashlib.sha256(sys.implementation.cache_tag.encode())
    for library in _LIBRARIES:
        digest.update(f"{library} {version(library)}".encode())
    for name, code in sorted(digests.items()):
        digest.update(name.encode() + code)
    return digest.hexdigest()


@cache
def _module(name: str) -> tuple[bytes, tuple[str, ...]]:
    """Returns the digest of one module's code, and the modules that it imports from the folders in `_SHAPING`."""
    spec = PathFinder.find_spec(name, [str(_place(name).parent)])
    code = spec.loader.get_code(name) if spec is not None and spec.loader is not None else None  # type: ignore[attr-defined]
    if code is None:
        raise ImportError(f"there is no source of {name}")
    digest, names = digest_of(code)
    shaping = [module for module in names if module.startswith(f"{_PACKAGE}.") and module.split(".")[1] in _SHAPING]
    imports = [module for module in shaping if module.count(".") > 1]
    for package in (module for module in shaping if _place(module).is_dir()):
        # `from dyn_service.kernels import store`: a name is a module or a package if it has a file.
        imports += [f"{package}.{submodule}" for submodule in names & _modules(package)]
    return digest, tuple(imports)


def _place(name: str) -> Path:
    """Returns the folder of a package, or the path of a module without suffix."""
    return _ROOT.joinpath(*name.split(".")[1:])


@cache
def _modules(package: str) -> frozenset[str]:
    """Returns the names of the modules and packages in a package."""
    place = _place(package)
    return frozenset(
        {path.stem for path in place.glob("*.py")} | {path.parent.name for path in place.glob("*/__init__.py")}
    )


def digest_of(code: CodeType) -> tuple[bytes, set[str]]:
    """Returns the digest of a module's code without docstrings and line numbers, and the names that it uses."""
    digest = hashlib.sha256()
    names: set[str] = set()
    _add(digest, names, code)
    return digest.digest(), names


def _add(digest: hashlib._Hash, names: set[str], code: CodeType) -> None:
    """Adds a code object and the code objects in it to the digest, and the names that they use to `names`."""
    names.update(code.co_names)
    doc = _docstring(code)
    digest.update(code.co_code + code.co_exceptiontable)
    parameters = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _STARS)
    names_used = (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    digest.update(repr((*parameters, *names_used)).encode())
    for k, constant in enumerate(code.co_consts):
        if isinstance(constant, CodeType):
            _add(digest, names, constant)
        elif k != doc:
            digest.update(_text(constant).encode() + b"\0")


def _text(constant: object) -> str:
    """Returns a constant as text, with sets sorted."""
    if isinstance(constant, frozenset):
        # The order of a set of strings differs between processes.
        return "{" + ",".join(sorted(map(_text, constant))) + "}"
    return f"{type(constant).__name__} {constant!r}"


def _docstring(code: CodeType) -> int | None:
    """Returns the index of the constant that is only the docstring, or None: equal constants share an index."""
    if "__doc__" in code.co_names:  # the body of a module or class loads it, to store it
        loads = _constants_loaded(code)
        constant = None
        for step in dis.get_instructions(code):
            if step.opname == "STORE_NAME" and step.argval == "__doc__":
                return constant if loads.count(constant) == 1 else None
            constant = step.arg if step.opname == "LOAD_CONST" else None
    if code.co_name.startswith("<") or not code.co_consts or not isinstance(code.co_consts[0], str):
        return None
    has = code.co_flags & (_HAS_DOCSTRING if sys.version_info >= (3, 13) else inspect.CO_OPTIMIZED)
    return 0 if has and 0 not in _constants_loaded(code) else None


def _constants_loaded(code: CodeType) -> list[int | None]:
    """Returns the index of the constant read by each instruction that reads one."""
    indices: list[int | None] = []
    extended = 0
    for operation, argument in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        extended = extended << 8 | argument
        if operation in _READS_CONSTANT:
            indices.append(extended)
        if operation != dis.EXTENDED_ARG:
            extended = 0
    return indices
