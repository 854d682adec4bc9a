"""Log lines of a process on standard error: plain text, or one JSON object a line.

    {"time": "2026-01-31T12:00:00.123Z", "level": "warning", "node": "/arm/plant", "message": "..", "request": 17}

`request` is the id of the request a line is about, where there is one: `_LOG.warning("..", extra={"request": 17})`.
`exception` is a traceback.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import unicodedata
from typing import Any, Literal, TextIO, get_args

Format = Literal["text", "json"]
FORMAT = "DYN_LOG_FORMAT"
"""Environment variable with the launcher's format."""
Level = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = get_args(Level)
LEVEL = "DYN_LOG_LEVEL"
"""Environment variable with the launcher's level."""


def printable(text: str) -> str:
    """Escapes control and invisible characters as JSON does; newlines, tabs and spaces stay."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" or unicodedata.category(char) == "Zs" else json.dumps(char)[1:-1]
        for char in text
    )


def set_up(node: str, form: Format | None = None, stream: TextIO | None = None, *, level: Level | None = None) -> None:
    """Sends all log lines of this process to `stream`, by default standard error.

    node: the name in the log lines. form, level: by default the launcher's, else text and info. stream: where the lines
    are written.
    """
    log_format = form or ("json" if os.environ.get(FORMAT) == "json" else "text")
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter(node) if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    # Replaced, not added: a library that called `basicConfig` would print each line twice.
    root.handlers[:] = [handler]
    inherited = os.environ.get(LEVEL, "")
    root.setLevel((level or (inherited if inherited in get_args(Level) else "info")).upper())
    # An unwritable log, as on a full disk, does not stop the process.
    logging.raiseExceptions = False


def json_line(node: str, level: str, message: str, time_s: float | None = None, **fields: Any) -> str:
    """Returns one log line as JSON. time_s: since 1970; None: now."""
    whole, part = divmod(int((time.time() if time_s is None else time_s) * 1000), 1000)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{part:03d}Z"
    content = {"time": stamp, "level": level, "node": node, "message": message, **fields}
    return printable(json.dumps(content, ensure_ascii=False, default=str))


class JsonFormatter(logging.Formatter):
    """Log records as JSON objects."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        fields: dict[str, Any] = {}
        if hasattr(record, "request"):
            fields["request"] = record.request
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json_line(self._node, record.levelname.lower(), record.getMessage(), record.created, **fields)


class TextFormatter(logging.Formatter):
    """Log records as text; warnings and errors start with the level."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text."""
        text = printable(super().format(record))
        return text if record.levelno <= logging.INFO else f"{record.levelname} {text}"
