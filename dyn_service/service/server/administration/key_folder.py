"""The folder that holds a server's key pair and the list of those who may ask it.

    server.key          the server's key pair, which its owner alone may read
    allowed             the list, see `access`
    NAME.key            what `dyn keys new NAME` made: to be handed to whoever asks in this name, and deleted here

The folder is `$DYN_SERVICE_KEYS` if set, else `dyn_service/keys` under the user's configuration folder. The list is
replaced as a whole, by one change at a time: a server never reads half of one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import date
from pathlib import Path

from dyn_service.errors import FailedPreconditionError, NotFoundError
from dyn_service.service.protocol.administration import Role
from dyn_service.service.protocol.keys import Keys, check_public, make_keys, read_keys, write_keys
from dyn_service.service.server.administration.access import AccessList, AllowedKey, format_list, read_list
from dyn_service.support.suggestions import did_you_mean


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
