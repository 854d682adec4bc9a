"""Access control: roles of callers, the list of allowed keys, and the folder that contains keys.

    query  <public key>  panda-arm  2026-11-21
    load   <public key>  lab        2026-11-21  revoked=2026-11-22

The list is a text file with one key per line, written by `dyn keys`. It is read again four times a second, because
modification times cannot distinguish two quick changes, and at each handshake. If the list is invalid, unreadable or
writable by other users, no client is admitted.

    server.key          the server's key pair, readable by its owner only
    allowed             the list
    NAME.key            made by `dyn keys new NAME`; give it to the client and delete it here

The folder is `$DYN_SERVICE_KEYS` if set, else `dyn_service/keys` in the user's configuration folder. The list is
replaced atomically, by one process at a time.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from time import perf_counter_ns

from dyn_service.errors import (
    DynError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
)
from dyn_service.service.protocol.keys import (
    NAME,
    Keys,
    check_file_owner,
    check_public,
    make_keys,
    read_keys,
    read_protected,
    write_keys,
)
from dyn_service.service.protocol.messages import Role, required_role
from dyn_service.support.files import replacement
from dyn_service.support.suggestions import known_instead

_LOG = logging.getLogger(__name__)


_READ_EVERY_NS = 250_000_000
_HEAD = "# Allowed keys: role, public key, name, date. Written by `dyn keys`; servers apply changes at once.\n"
_REVOKED = "revoked="


@dataclass(frozen=True)
class Caller:
    """The client that sent a request.

    name: as in the audit log. may_load: whether this server lets such a caller load and unload robots.
    """

    name: str
    role: Role
    may_load: bool = True

    def check(self, query: str) -> None:
        """Raises `PermissionDeniedError` if the caller may not send this query."""
        required = required_role(query)
        if required > self.role:
            raise PermissionDeniedError(
                f"{query} needs the role '{required.name.lower()}', {self.name} has '{self.role.name.lower()}'",
                path="query",
            )
        if required is Role.LOAD and not self.may_load:
            raise PermissionDeniedError("this server does not let its clients load or unload robots", path="query")


def local_caller(name: str, *, allow_load: bool) -> Caller:
    """Returns the caller of a request without a key, received from this machine."""
    return Caller(name, Role.ADMIN, allow_load)


@dataclass(frozen=True)
class AllowedKey:
    """A line of the list. public: the public key. added_on, revoked: dates."""

    role: Role
    public: str
    name: str
    added_on: date
    revoked: date | None = None


def _read(file: Path) -> bytes:
    content = read_protected(file, stat.S_IWGRP | stat.S_IWOTH, "chmod go-w")
    folder = os.stat(file.parent)
    check_file_owner(file.parent, folder, "keys")
    if folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not folder.st_mode & stat.S_ISVTX:
        raise PermissionDeniedError(f"others can write {file.parent}: chmod go-w {file.parent}", path="keys")
    return content


def _parse(file: Path, content: bytes) -> dict[str, AllowedKey]:
    keys: dict[str, AllowedKey] = {}
    publics: set[str] = set()
    for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            key = _parse_line(line)
        except ValueError as fault:
            raise InvalidArgumentError(f"{file}:{number}: {fault}", path="keys") from None
        if key.name in keys or key.public in publics:
            raise InvalidArgumentError(f"{file}:{number}: duplicate name or key", path="keys")
        keys[key.name] = key
        publics.add(key.public)
    return keys


def _parse_line(line: str) -> AllowedKey:
    words = line.split()
    if len(words) not in (4, 5):
        raise ValueError(f"expected role, public key, name, date and perhaps {_REVOKED}DATE, found {len(words)} words")
    role, public, name, added_on = words[:4]
    if role not in ROLES:
        raise ValueError(f"the role must be one of {', '.join(ROLES)}, found '{role}'")
    if not NAME.fullmatch(name):
        raise ValueError(f"the name must be up to 64 letters, digits, '.', '_' and '-', found '{name}'")
    revoked = None
    if len(words) == 5:
        if not words[4].startswith(_REVOKED):
            raise ValueError(f"the last word must be {_REVOKED}DATE, found '{words[4]}'")
        revoked = date.fromisoformat(words[4].removeprefix(_REVOKED))
    return AllowedKey(ROLES[role], check_public(public, "the second word"), name, date.fromisoformat(added_on), revoked)


# the roles by their names in the list
ROLES: Mapping[str, Role] = {role.name.lower(): role for role in Role}


class AccessList:
    """The list used by a running server; a `DynError` if it is missing or invalid. All calls come from one thread.

    `server_public` is the server's own public key, which is also allowed, for `health` requests of the server's own
    process.
    """

    def __init__(self, file: Path, server_public: str) -> None:
        self._file = file
        self._server_public = server_public
        self._content = _read(file)
        self._keys_by_public: Mapping[str, AllowedKey] = {}
        """All keys of the last valid list, including revoked ones, by public key."""
        self._callers = self._take_over(_parse(file, self._content))
        self._next_ns = 0
        # called after each change, with `caller` by the new list
        self.changed: Callable[[], None] = lambda: None
        self.fault: str | None = None  # why the list admits no client, or None if it is valid

    @property
    def state(self) -> str:
        """The state as reported by `health`."""
        return "ok" if self.fault is None else f"no client is admitted: {self.fault}"

    def caller(self, public: str) -> Caller | None:
        """Returns the owner of this key, or None if the key is not allowed."""
        return self._callers.get(public)

    def name_of(self, public: str) -> str:
        """Returns the name of a key for the log: its name in the list if known."""
        allowed_key = self._keys_by_public.get(public)
        return f"key {allowed_key.name}" if allowed_key else f"key {public}"

    def refusal(self, public: str) -> str:
        """Returns why this key is not allowed."""
        if self.fault is not None:
            return f"the list {self._file} is invalid, so no key is allowed"
        allowed_key = self._keys_by_public.get(public)
        revoked = allowed_key.revoked if allowed_key else None
        return f"it was revoked on {revoked}" if revoked else "it is not on the list"

    def check(self, *, at_once: bool = False) -> None:
        """Reads the list again, at most four times a second unless `at_once`."""
        now = perf_counter_ns()
        if now < self._next_ns and not at_once:
            return
        self._next_ns = now + _READ_EVERY_NS
        try:
            content = _read(self._file)
            if content == self._content and self.fault is None:
                return
            callers = self._take_over(_parse(self._file, content))
        except (DynError, OSError) as fault:
            callers, content = self._callers_of(()), b""
            if self.fault != str(fault):
                _LOG.error("no client is admitted: %s", fault)
            self.fault = str(fault)
        else:
            _LOG.warning("the list of keys has changed: %d keys are allowed", len(callers) - 1)
            self.fault = None
        self._content, self._callers = content, callers
        self.changed()

    def _take_over(self, keys: Mapping[str, AllowedKey]) -> dict[str, Caller]:
        self._keys_by_public = {key.public: key for key in keys.values()}
        return self._callers_of(keys.values())

    def _callers_of(self, keys: Iterable[AllowedKey]) -> dict[str, Caller]:
        callers = {key.public: Caller(self.name_of(key.public), key.role) for key in keys if key.revoked is None}
        return {**callers, self._server_public: Caller("the server itself", Role.QUERY)}


def default_folder() -> Path:
    """Returns the folder of keys used by default."""
    folder = os.environ.get("DYN_SERVICE_KEYS")
    if folder:
        return Path(folder)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "dyn_service" / "keys"


class KeyFolder:
    """A folder of keys, which need not exist yet; empty is the default folder."""

    def __init__(self, folder: str | os.PathLike[str] = "") -> None:
        self.folder = Path(folder) if os.fspath(folder) else default_folder()
        self.server_file = self.folder / "server.key"
        self.list_file = self.folder / "allowed"

    # used by the server

    def server_keys(self) -> Keys:
        """Returns the server's key pair. These methods raise a `DynError` if a file is missing or invalid."""
        return read_keys(self.server_file)

    def own_keys(self) -> Keys:
        """Returns keys by which the server's own user can connect, with the role `query`, without being on the list."""
        keys = self.server_keys()
        return replace(keys, server=keys.public)

    def access_list(self) -> AccessList:
        """Returns the list that a server checks clients against."""
        return AccessList(self.list_file, self.server_keys().public)

    def for_server(self) -> tuple[Keys, AccessList]:
        """Returns the server's keys and its list of allowed keys.

        Raises:
            FailedPreconditionError: There are no keys yet.
            DynError: The keys or the list are invalid.
        """
        try:
            return self.server_keys(), self.access_list()
        except NotFoundError as fault:
            raise FailedPreconditionError(
                f"an endpoint needs keys, and {fault}: dyn keys new NAME makes the server's and a client's", path="keys"
            ) from None

    # used by `dyn keys`

    def entries(self) -> dict[str, AllowedKey]:
        """Returns the keys of the list by name, including revoked ones; empty if there is no list.

        Raises:
            PermissionDeniedError: Users other than its owner can write it or its folder.
            InvalidArgumentError: The file is not a valid list; the message names the line.
        """
        try:
            return _parse(self.list_file, _read(self.list_file))
        except NotFoundError:
            return {}

    def make_server(self) -> Keys:
        """Makes the server's key pair, which must not exist, and an empty list if there is no list."""
        with self._changing():
            return self._make_server()

    def make(self, name: str, role: Role, *, public: str = "", destination: Path | None = None) -> Path | None:
        """Allows a key, and makes its file unless a public key is given. Makes the server's key pair if missing.

        Args:
            name: A new name, or the name of a revoked key.
            role: The role of the key.
            public: The client's public key; empty: a key pair is made.
            destination: The file to write; None is `NAME.key` in this folder.

        Returns:
            The file written, which contains the client's secret key and the server's public key.

        Raises:
            FailedPreconditionError: The name, the key or the file exists already.
            InvalidArgumentError: The name or the public key is invalid.
        """
        with self._changing():
            server = self.server_keys() if self.server_file.exists() else self._make_server()
            entries = self.entries()
            keys = make_keys(name, server.public)
            if name in entries and entries[name].revoked is None:
                raise FailedPreconditionError(f"the name '{name}' is allowed already: revoke it first", path="name")
            file = None if public else destination or self.folder / f"{name}.key"
            public = check_public(public, "public") if public else keys.public
            if public == server.public or any(key.public == public for key in entries.values() if key.name != name):
                raise FailedPreconditionError("this public key has another name already", path="public")
            if file is not None and file.exists():
                revoked = " (it was revoked)" if name in entries else ""
                raise FailedPreconditionError(
                    f"{file} already exists; keys are never overwritten: delete it{revoked} or name another "
                    "file by --output",
                    path="keys",
                )
            if file is not None:
                write_keys(file, keys)
            try:
                self._write_list({**entries, name: AllowedKey(role, public, name, date.today())})
            except BaseException:
                if file is not None:
                    file.unlink(missing_ok=True)
                raise
            return file

    def revoke(self, name: str) -> AllowedKey:
        """Revokes a key, or raises `NotFoundError`. Running servers apply this within a second."""
        with self._changing():
            entries = self.entries()
            if name not in entries:
                hint = known_instead(name, entries, "the keys are")
                raise NotFoundError(f"there is no key '{name}'{hint}", path="name")
            entries[name] = replace(entries[name], revoked=entries[name].revoked or date.today())
            self._write_list(entries)
            return entries[name]

    def _make_server(self) -> Keys:
        keys = make_keys("server")
        write_keys(self.server_file, keys)
        if not self.list_file.exists():
            self._write_list({})
        return keys

    def _write_list(self, entries: dict[str, AllowedKey]) -> None:
        lines = [_HEAD]
        for key in entries.values():
            end = f"  {_REVOKED}{key.revoked}" if key.revoked else ""
            lines.append(f"{key.role.name.lower():<5}  {key.public}  {key.name}  {key.added_on}{end}\n")
        with replacement(self.list_file, 0o600) as writing:
            writing.write("".join(lines).encode("ascii"))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Locks the folder, so that one process at a time changes it."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.folder / ".lock", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            with suppress(ImportError):
                import fcntl

                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
