"""Every error this package raises on purpose, one class per kind, the same on both sides of a socket.

    DynError                        code
    |-- InvalidArgumentError        INVALID_ARGUMENT     also a ValueError
    |   `-- UrdfError               INVALID_ARGUMENT     a fault in a robot description: file, line, element
    |-- NotFoundError               NOT_FOUND            also a LookupError
    |-- UnimplementedError          UNIMPLEMENTED        also a NotImplementedError
    |-- ResourceExhaustedError      RESOURCE_EXHAUSTED
    |-- FailedPreconditionError     FAILED_PRECONDITION
    |-- DeadlineExceededError       DEADLINE_EXCEEDED    also a TimeoutError
    |-- PermissionDeniedError       PERMISSION_DENIED    also a PermissionError
    |-- UnavailableError            UNAVAILABLE          also a ConnectionError
    `-- InternalError               INTERNAL

The codes are gRPC's names. A message is one sentence that names the input, what was found and what was expected.
`path` says where in the request or file the fault lies (`inputs.q`, `options.method`). On the wire an error is the map
that `to_wire` returns; `from_wire` gives back the same class with the same fields.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable, Mapping
from itertools import dropwhile
from types import FrameType
from typing import Any, ClassVar

_PACKAGE = os.path.join(os.path.dirname(__file__), "")


class DynError(Exception):
    """Base of all errors of this package.

    Args:
        message: One sentence: the input's name, what was found, what was expected.
        path: Where the fault lies, in dots from the request's root, or None.
    """

    code: ClassVar[str] = "INTERNAL"
    details: ClassVar[tuple[str, ...]] = ()
    """Names of the further attributes that travel with the error."""

    def __init__(self, message: str, *, path: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.path = path

    def __str__(self) -> str:
        return self.message

    def to_wire(self) -> dict[str, Any]:
        """The error as the map that stands under `error` in a reply."""
        wire: dict[str, Any] = {"code": self.code, "type": type(self).__name__, "message": self.message}
        if self.path is not None:
            wire["path"] = self.path
        wire.update({name: value for name in self.details if (value := getattr(self, name)) is not None})
        return wire


class InvalidArgumentError(DynError, ValueError):
    """An input has the wrong type, shape, range or name."""

    code = "INVALID_ARGUMENT"


class UrdfError(InvalidArgumentError):
    """A robot description is malformed or contradicts itself. `str()` is `file:line: element: cause`."""

    details = ("file", "line", "element")

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        file: str | None = None,
        line: int | None = None,
        element: str | None = None,
    ) -> None:
        super().__init__(message, path=path)
        self.file = file
        self.line = line
        self.element = element

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        return ": ".join(part for part in (place, self.element, self.message) if part)


class NotFoundError(DynError, LookupError):
    """A robot, link, joint or file of that name does not exist."""

    code = "NOT_FOUND"


class UnimplementedError(DynError, NotImplementedError):
    """The request is understood but this version does not do it."""

    code = "UNIMPLEMENTED"


class ResourceExhaustedError(DynError):
    """A limit on size, count or memory was reached."""

    code = "RESOURCE_EXHAUSTED"


class FailedPreconditionError(DynError):
    """The question has no answer in the present state: a massless moving leaf, a fingerprint that changed."""

    code = "FAILED_PRECONDITION"


class DeadlineExceededError(DynError, TimeoutError):
    """No answer came, or none could be begun, before the deadline."""

    code = "DEADLINE_EXCEEDED"


class PermissionDeniedError(DynError, PermissionError):
    """The caller may not do this, or a file's owner or mode is not safe."""

    code = "PERMISSION_DENIED"


class UnavailableError(DynError, ConnectionError):
    """No server is reachable at the endpoint, or it is shutting down."""

    code = "UNAVAILABLE"


class InternalError(DynError):
    """A defect of this package."""

    code = "INTERNAL"


_BY_CODE: dict[str, type[DynError]] = {
    kind.code: kind
    for kind in (
        InvalidArgumentError,
        NotFoundError,
        UnimplementedError,
        ResourceExhaustedError,
        FailedPreconditionError,
        DeadlineExceededError,
        PermissionDeniedError,
        UnavailableError,
        InternalError,
    )
}
_BY_NAME: dict[str, type[DynError]] = {kind.__name__: kind for kind in (*_BY_CODE.values(), UrdfError)}


def from_wire(wire: Mapping[str, Any]) -> DynError:
    """The error that `to_wire` wrote; a type or code that is not known here becomes the nearest that is."""
    kind = _BY_NAME.get(str(wire.get("type")))
    code = str(wire.get("code"))
    if kind is None or kind.code != code:
        kind = _BY_CODE.get(code, InternalError)
    details = {name: wire[name] for name in kind.details if name in wire}
    return kind(str(wire.get("message", code)), path=wire.get("path"), **details)


def failure(error: BaseException) -> str:
    """What went wrong in code that is not ours: `ZeroDivisionError: division by zero (my_law.py, line 12)`."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    last = f"{os.path.basename(frames[-1].filename)}, line {frames[-1].lineno}"
    return f"{text} ({foreign_line(traceback.walk_tb(error.__traceback__)) or last})"


def foreign_line(frames: Iterable[tuple[FrameType, int]]) -> str:
    """Returns the line of code outside of this package, `my_law.py, line 12`, or an empty string if there is only code
    of this package. If that code called a library, it is the line of the call.

    frames: From the caller to the called, with their lines; those before the first of this package do not count.
    """
    files = [(frame.f_code.co_filename, line) for frame, line in frames]
    inner = dropwhile(lambda entry: not entry[0].startswith(_PACKAGE), files)
    foreign = [(file, line) for file, line in inner if not file.startswith(_PACKAGE)]
    folder = os.path.dirname(foreign[0][0]) if foreign else ""
    last = next(((file, line) for file, line in reversed(foreign) if os.path.dirname(file) == folder), None)
    return f"{os.path.basename(last[0])}, line {last[1]}" if last else ""
