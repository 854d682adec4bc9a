"""The digest of the code that determines a kernel.

A kernel on disk is valid as long as the code that compiles it is the same: the module of its function under
`dynamics/`, `COMPILER`, and all that these import from the folders in `_SHAPING`, as bytecode without docstrings and
line numbers. So a change of a comment, a docstring, another query or another formulation invalidates no kernel. The row
of the table is in the kernel's signature, which is also part of the key.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import sys
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import version
from pathlib import Path
from types import CodeType

_PACKAGE = "dyn_service"
_ROOT = Path(__file__).parent.parent
_SHAPING = ("dynamics", "kernels", "model")
COMPILER = tuple(f"kernels.{name}" for name in ("budget", "certify", "graph", "jit", "lower"))
"""The modules that compile a traced function, compare it with the tree as given, or refuse it as too large."""

_LIBRARIES = ("casadi", "llvmlite", "numpy")
_READS_CONSTANT = frozenset(dis.hasconst)
_STARS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_HAS_DOCSTRING = 0x4000000
"""CO_HAS_DOCSTRING, from Python 3.13 on; before 3.13 a function's first constant is its docstring or None."""


@cache
def provenance(*modules: str) -> str:
    """Returns a hexadecimal digest of modules of this package, such as `kernels.lower`, and of all that they import."""
    pending = [f"{_PACKAGE}.{module}" for module in modules]
    known: dict[str, bytes] = {}
    while pending:
        name = pending.pop()
        if name not in known:
            known[name], imports = _module(name)
            pending += imports
    digest = hashlib.sha256(sys.implementation.cache_tag.encode())
    for library in _LIBRARIES:
        digest.update(f"{library} {version(library)}".encode())
    for name, code in sorted(known.items()):
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
    shaping = [found for found in names if found.startswith(f"{_PACKAGE}.") and found.split(".")[1] in _SHAPING]
    imports = [found for found in shaping if found.count(".") > 1]
    for package in (found for found in shaping if _place(found).is_dir()):
        # `from dyn_service.kernels import store`: a name is a module or a package if it has a file.
        modules = (f"{package}.{found}" for found in names if found.isidentifier())
        imports += [module for module in modules if _is_module(_place(module))]
    return digest, tuple(imports)


def _place(name: str) -> Path:
    """Returns the folder of a package, or the path of a module without suffix."""
    return _ROOT.joinpath(*name.split(".")[1:])


def _is_module(place: Path) -> bool:
    return place.with_name(f"{place.name}.py").is_file() or (place / "__init__.py").is_file()


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
    called = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _STARS)
    names_used = (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    digest.update(repr((*called, *names_used)).encode())
    for k, constant in enumerate(code.co_consts):
        if isinstance(constant, CodeType):
            _add(digest, names, constant)
        elif k != doc:
            digest.update(_text(constant).encode() + b"\0")


def _text(constant: object) -> str:
    """Returns a constant as text, with sets sorted."""
    if isinstance(constant, frozenset):
        return "{" + ",".join(sorted(map(_text, constant))) + "}"
    return f"{type(constant).__name__} {constant!r}"


def _docstring(code: CodeType) -> int | None:
    """Returns the index of the constant that is only the docstring, or None: equal constants share an index."""
    loads = _constants_loaded(code)
    if "__doc__" in code.co_names:  # the body of a module or class loads it, to store it
        before = None
        for step in dis.get_instructions(code):
            if step.opname == "STORE_NAME" and step.argval == "__doc__":
                return before if loads.count(before) == 1 else None
            before = step.arg if step.opname == "LOAD_CONST" else None
    if code.co_name.startswith("<") or not code.co_consts or not isinstance(code.co_consts[0], str):
        return None
    has = code.co_flags & (_HAS_DOCSTRING if sys.version_info >= (3, 13) else inspect.CO_OPTIMIZED)
    return 0 if has and 0 not in loads else None


def _constants_loaded(code: CodeType) -> list[int | None]:
    """Returns the index of the constant read by each instruction that reads one."""
    found: list[int | None] = []
    extended = 0
    for operation, argument in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        extended = extended << 8 | argument
        if operation in _READS_CONSTANT:
            found.append(extended)
        if operation != dis.EXTENDED_ARG:
            extended = 0
    return found
