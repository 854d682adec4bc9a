"""Who may ask what: callers, their roles, and the list of keys that are let in.

    query  <public key>  panda-arm  2026-11-21
    load   <public key>  lab        2026-11-21  revoked=2026-11-22

A list is a text file, a key a line; `dyn keys` writes it. Whoever asks is looked up in it anew at each message, and the
file is read anew four times a second: times of change are too coarse to tell two changes apart. A list that is broken,
unreadable, or open to other users' pens lets nobody in, and says so.


----
The folder that holds a server's key pair and the list of those who may ask it.

    server.key          the server's key pair, which its owner alone may read
    allowed             the list, see `access`
    NAME.key            what `dyn keys new NAME` made: to be handed to whoever asks in this name, and deleted here

The folder is `$DYN_SERVICE_KEYS` if set, else `dyn_service/keys` under the user's configuration folder. The list is
replaced as a whole, by one change at a time: a server never reads half of one.
"""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
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
from dyn_service.service.protocol.administration import Role, required_role
from dyn_service.service.protocol.keys import (
    NAME,
    Keys,
    check_owner,
    check_public,
    make_keys,
    read_guarded,
    read_keys,
    write_keys,
)
from dyn_service.support.suggestions import did_you_mean

_LOG = logging.getLogger(__name__)


_READ_EVERY_NS = 250_000_000
_HEAD = "# Who may ask: role, public key, name, since when. Written by `dyn keys`; servers see changes at once.\n"
_REVOKED = "revoked="


@dataclass(frozen=True)
class Caller:
    """Whoever a request came from.

    name: as the log of changes has it. may_load: whether this server lets such a caller load and unload at all.
    """

    name: str
    role: Role
    may_load: bool = True

    def check(self, query: str) -> None:
        """Lets the caller ask this query.

        Raises:
            PermissionDeniedError: Not this one.
        """
        needed = required_role(query)
        if needed > self.role:
            raise PermissionDeniedError(
                f"{query} needs the role '{needed.name.lower()}', {self.name} has '{self.role.name.lower()}'",
                path="query",
            )
        if needed is Role.LOAD and not self.may_load:
            raise PermissionDeniedError("this server does not let its clients load or unload robots", path="query")


def local_caller(name: str, *, allow_load: bool) -> Caller:
    """A caller that came without a key, through an endpoint that only this machine can reach."""
    return Caller(name, Role.ADMIN, allow_load)


@dataclass(frozen=True)
class AllowedKey:
    """A line of the list. public: the key. since: when it was let in. revoked: when that ended."""

    role: Role
    public: str
    name: str
    since: date
    revoked: date | None = None


def read_list(file: Path) -> dict[str, AllowedKey]:
    """The keys of a list, by name, revoked ones too.

    Raises:
        NotFoundError: There is no such file.
        PermissionDeniedError: Others than its owner can write it, or its folder.
        InvalidArgumentError: It is no list of keys; the message names the line.
    """
    return _parse(file, _read(file))


def format_list(keys: Iterable[AllowedKey]) -> str:
    """The list of these keys, as text."""
    lines = [_HEAD]
    for key in keys:
        end = f"  {_REVOKED}{key.revoked}" if key.revoked else ""
        lines.append(f"{key.role.name.lower():<5}  {key.public}  {key.name}  {key.since}{end}\n")
    return "".join(lines)


def _read(file: Path) -> bytes:
    content = read_guarded(file, stat.S_IWGRP | stat.S_IWOTH, "chmod go-w")
    folder = os.stat(file.parent)
    check_owner(file.parent, folder, "keys")
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
            raise InvalidArgumentError(f"{file}:{number}: this name or key stands in the list twice", path="keys")
        keys[key.name] = key
        publics.add(key.public)
    return keys


def _parse_line(line: str) -> AllowedKey:
    words = line.split()
    if len(words) not in (4, 5):
        raise ValueError(f"expected role, public key, name, date and perhaps {_REVOKED}DATE, found {len(words)} words")
    role, public, name, since = words[:4]
    if role not in ROLES:
        raise ValueError(f"the role must be one of {', '.join(ROLES)}, found '{role}'")
    if not NAME.fullmatch(name):
        raise ValueError(f"the name must be up to 64 letters, digits, '.', '_' and '-', found '{name}'")
    revoked = None
    if len(words) == 5:
        if not words[4].startswith(_REVOKED):
            raise ValueError(f"the last word must be {_REVOKED}DATE, found '{words[4]}'")
        revoked = date.fromisoformat(words[4].removeprefix(_REVOKED))
    return AllowedKey(ROLES[role], check_public(public, "the second word"), name, date.fromisoformat(since), revoked)


ROLES: Mapping[str, Role] = {role.name.lower(): role for role in Role}
"""The roles, as they are written."""


class AccessList:
    """The list that a running server goes by. All calls come from one thread.

    Args:
        file: The list.
        own: The server's own public key, which is let in too: who has the secret is the server. Its own checks use it.

    Raises:
        DynError: There is no such list, or it is broken: a server does not start so.
    """

    def __init__(self, file: Path, own: str) -> None:
        self._file = file
        self._own = own
        self._content = _read(file)
        self._listed: Mapping[str, AllowedKey] = {}
        """By public key, revoked ones too, as the last sound list has them."""
        self._callers = self._take_over(_parse(file, self._content))
        self._next_ns = 0
        self.losses = 0
        """Counts the changes after which some key was no longer let in."""
        self.fault: str | None = None
        """Why the list lets nobody in; None: it is sound."""

    @property
    def state(self) -> str:
        """As `health` tells it."""
        return "ok" if self.fault is None else f"nobody is let in: {self.fault}"

    def caller(self, public: str) -> Caller | None:
        """Whom this key belongs to; None: it is not let in."""
        return self._callers.get(public)

    def called(self, public: str) -> str:
        """A key as the log has it: by its name where one is known."""
        listed = self._listed.get(public)
        return f"key {listed.name}" if listed else f"key {public}"

    def refusal(self, public: str) -> str:
        """Why this key, which has no caller, is not let in."""
        if self.fault is not None:
            return f"nobody is, the list {self._file} is not sound"
        listed = self._listed.get(public)
        return f"it was revoked on {listed.revoked}" if listed and listed.revoked else "it is not on the list"

    def check(self, *, at_once: bool = False) -> None:
        """Reads the list anew, at most four times a second unless it is to be `at_once`."""
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
                _LOG.error("nobody is let in: %s", fault)
            self.fault = str(fault)
        else:
            _LOG.warning("the list of keys has changed: %d are let in", len(callers) - 1)
            self.fault = None
        self.losses += not self._callers.keys() <= callers.keys()
        self._content, self._callers = content, callers

    def _take_over(self, keys: Mapping[str, AllowedKey]) -> dict[str, Caller]:
        self._listed = {key.public: key for key in keys.values()}
        return self._callers_of(keys.values())

    def _callers_of(self, keys: Iterable[AllowedKey]) -> dict[str, Caller]:
        callers = {key.public: Caller(self.called(key.public), key.role) for key in keys if key.revoked is None}
        return {**callers, self._own: Caller("the server itself", Role.QUERY)}


def default_folder() -> Path:
    """Where keys are kept unless something else is said."""
    chosen = os.environ.get("DYN_SERVICE_KEYS")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "dyn_service" / "keys"


class KeyFolder:
    """A folder of keys, which need not be there yet.

    Args:
        folder: Which; empty is the default.
    """

    def __init__(self, folder: str | os.PathLike[str] = "") -> None:
        self.folder = Path(folder) if os.fspath(folder) else default_folder()
        self.server_file = self.folder / "server.key"
        self.list_file = self.folder / "allowed"

    # what a server reads

    def server_keys(self) -> Keys:
        """The server's key pair.

        Raises:
            DynError: There is none, or its file is not sound.
        """
        return read_keys(self.server_file)

    def own_keys(self) -> Keys:
        """With these the server's own process asks it, as with a key of the role `query` that is on no list.

        Raises:
            DynError: There are none, or their file is not sound.
        """
        keys = self.server_keys()
        return replace(keys, server=keys.public)

    def access_list(self) -> AccessList:
        """The list that a server goes by.

        Raises:
            DynError: There is none, or it is not sound.
        """
        return AccessList(self.list_file, self.server_keys().public)

    # what `dyn keys` does

    def entries(self) -> dict[str, AllowedKey]:
        """The keys of the list, by name, revoked ones too; none where there is no list yet.

        Raises:
            DynError: The list is not sound.
        """
        try:
            return read_list(self.list_file)
        except NotFoundError:
            return {}

    def make_server(self) -> Keys:
        """Makes the server's key pair, and a list that lets nobody in if there is none.

        Raises:
            FailedPreconditionError: It is there already.
        """
        with self._changing():
            return self._make_server()

    def make(self, name: str, role: Role, *, public: str = "", to: Path | None = None) -> Path | None:
        """Lets one more in, and makes a key file for him unless he has a key. Makes the server's too if there is none.

        Args:
            name: A name that nobody has, unless his key was revoked.
            role: What he may do.
            public: His public key; empty: he has none yet.
            to: The file that is made; None is `NAME.key` in this folder.

        Returns:
            The file that was made, which holds his secret and the server's public key.

        Raises:
            FailedPreconditionError: The name, the key or the file is there already.
            InvalidArgumentError: The name cannot be one, or the public key is none.
        """
        with self._changing():
            server = self.server_keys() if self.server_file.exists() else self._make_server()
            entries = self.entries()
            keys = make_keys(name, server.public)
            if name in entries and entries[name].revoked is None:
                raise FailedPreconditionError(f"the name '{name}' is let in already: revoke it first", path="name")
            file = None if public else to or self.folder / f"{name}.key"
            public = check_public(public, "public") if public else keys.public
            if public == server.public or any(key.public == public for key in entries.values() if key.name != name):
                raise FailedPreconditionError("this public key has another name already", path="public")
            if file is not None and file.exists():
                of_no_use = ", for it was revoked," if name in entries else ""
                raise FailedPreconditionError(
                    f"{file} already exists, and a key is never overwritten: delete it{of_no_use} or name another "
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
        """Lets someone in no longer. Servers that run notice within a second.

        Raises:
            NotFoundError: Nobody has that name.
        """
        with self._changing():
            entries = self.entries()
            if name not in entries:
                known = ", ".join(entries) or "none"
                near = did_you_mean(name, entries)
                raise NotFoundError(f"there is no key '{name}'; the keys are {known}{near}", path="name")
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
        descriptor, temporary = tempfile.mkstemp(dir=self.folder, prefix=".allowed-")  # mode 0600
        try:
            with os.fdopen(descriptor, "w", encoding="ascii") as writing:
                writing.write(format_list(entries.values()))
                writing.flush()
                os.fsync(writing.fileno())
            os.replace(temporary, self.list_file)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One change at a time, of any process."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.folder / ".lock", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            with suppress(ImportError):
                import fcntl

                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
