"""Replaces files as a whole."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacement(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """Yields a file for the new content of `path`, which replaces the old content when the block ends.

    A reader finds the old content or the new one. If the block raises, the old content stays, and no other file is
    left behind.

    Args:
        path: The file, in an existing folder.
        mode: The permissions of the file; None: those of any new file.

    Raises:
        OSError: The file cannot be written, or what is there is no file.
    """
    if (
        not path.is_symlink() and path.exists() and not path.is_file()
    ):  # a rename would remove a device, as root even /dev/null
        raise OSError(errno.EINVAL, "it is a folder, device, socket or pipe, which no file can replace", str(path))
    # The name differs in each call, because two processes may replace the same file. It does not contain the file's
    # name, with which it could be longer than a name may be.
    temporary = path.with_name(f".{secrets.token_hex(8)}.part")

    def create(name: str, flags: int) -> int:
        # With a mode, nobody else may open the file before it has its permissions.
        return os.open(name, flags, 0o666 if mode is None else 0o600)

    try:
        with open(temporary, "xb", opener=create) as file:
            if mode is not None:
                os.chmod(temporary, mode)  # the umask may have removed bits
            yield file
            file.flush()
            os.fsync(file.fileno())  # a full disk may be reported only now
        os.replace(temporary, path)
    except BaseException:  # KeyboardInterrupt, too
        with suppress(OSError):
            temporary.unlink()
        raise
