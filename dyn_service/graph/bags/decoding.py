"""What turns a channel's bytes into messages: ours where the definition is the same, else by the bag's own schema."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

from mcap.records import Channel, Schema
from mcap_ros2.decoder import DecoderFactory

from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.messages import by_type
from dyn_service.messages.cdr import from_cdr, same_definition

Decoder = Callable[[bytes], Any]


def decoder_for(channel: Channel, schema: Schema | None) -> Decoder:
    """The decoder of a channel of a bag.

    Raises:
        InvalidArgumentError: The channel is none of ROS 2's, or its definition cannot be read.
    """
    if schema is None or channel.message_encoding != "cdr" or schema.encoding != "ros2msg":
        found = "no schema" if schema is None else f"a schema of {schema.encoding!r}"
        raise InvalidArgumentError(
            f"topic {channel.topic!r} has {found} and encoding {channel.message_encoding!r}, expected 'ros2msg', 'cdr'"
        )
    try:
        ours = by_type(schema.name)
    except NotFoundError:
        return _theirs(channel, schema)
    if not same_definition(ours, schema.data.decode("utf-8", "replace")):
        return _theirs(channel, schema)  # of another version, or another ROS
    return lambda data: from_cdr(ours, data)


def _theirs(channel: Channel, schema: Schema) -> Decoder:
    def decode(data: bytes) -> Any:
        try:
            return by_schema(data)
        except Exception:  # noqa: BLE001 - what a decoder of a stranger's definition raises has no common base
            raise InvalidArgumentError(
                f"topic {channel.topic!r}: {len(data)} bytes are no message of {schema.name}"
            ) from None

    try:
        with contextlib.redirect_stderr(io.StringIO()):  # where the parser prints what it stumbles over
            made = DecoderFactory().decoder_for("cdr", schema)
    except Exception as error:  # noqa: BLE001 - the same holds for the parser
        raise InvalidArgumentError(
            f"topic {channel.topic!r}: the definition of {schema.name!r} cannot be read: {error}"
        ) from None
    assert made is not None  # its two encodings have been looked at
    by_schema = made
    return decode
