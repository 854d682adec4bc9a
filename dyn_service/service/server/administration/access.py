"""Who may ask what: callers, their roles, and the list of keys that are let in.

    query  <public key>  panda-arm  2026-11-21
    load   <public key>  lab        2026-11-21  revoked=2026-11-22

A list is a text file, a key a line; `dyn keys` writes it. Whoever asks is looked up in it anew at each message, and the
file is read anew four times a second: times of change are too coarse to tell two changes apart. A list that is broken,
unreadable, or open to other users' pens lets nobody in, and says so.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from time import perf_counter_ns

from dyn_service.errors import DynError, InvalidArgumentError, PermissionDeniedError
from dyn_service.service.protocol.administration import Role, required_role
from dyn_service.service.protocol.keys import NAME, check_owner, check_public, read_guarded

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

    def look(self, *, at_once: bool = False) -> None:
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
