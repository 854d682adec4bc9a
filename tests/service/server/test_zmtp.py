"""The server's side of ZMTP: messages however they are split, and any other bytes."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dyn_service.service.server.transport.zmtp import (
    GREETING,
    MAX_PARTS,
    READY,
    Decoder,
    Message,
    ProtocolError,
    head,
)

LIMIT = 1 << 20


def command(name: bytes, body: bytes = b"") -> bytes:
    content = bytes([len(name)]) + name + body
    return bytes([4, len(content)]) + content


def ready(kind: bytes = b"DEALER", *others: tuple[bytes, bytes]) -> bytes:
    properties = ((b"Socket-Type", kind), *others)
    return command(
        b"READY", b"".join(bytes([len(n)]) + n + struct.pack(">I", len(value)) + value for n, value in properties)
    )


HELLO = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def frame(content: bytes, *, more: bool = False, long: bool | None = None) -> bytes:
    long = len(content) > 255 if long is None else long
    length = len(content).to_bytes(8, "big") if long else bytes([len(content)])
    return bytes([int(more) | 2 * long]) + length + content


def message(parts: list[bytes]) -> bytes:
    return b"".join(frame(part, more=k < len(parts) - 1) for k, part in enumerate(parts))


def expected(parts: list[bytes]) -> Message:
    is_req = len(parts) > 1 and not parts[0]
    return Message(parts[-1] if len(parts) == 1 + is_req else b"", len(parts), is_req)


def talk(stream: bytes, cuts: list[int], limit: int = LIMIT) -> tuple[list[Message], Decoder]:
    """Returns what a decoder yields for a stream split into these lengths in turn."""
    decoder, found, at, k = Decoder(limit), [], 0, 0
    while at < len(stream):
        decoder.feed(stream[at : at + cuts[k % len(cuts)]])
        at, k = at + cuts[k % len(cuts)], k + 1
        while (each := decoder.next()) is not None:
            if each.parts:
                found.append(each)
    return found, decoder


SIZES = st.sampled_from([0, 1, 2, 255, 256, 257, 4000, 32767, 32768, 32769, 70_000])
PARTS = st.lists(SIZES, min_size=1, max_size=MAX_PARTS).map(lambda sizes: [bytes([s % 251]) * s for s in sizes])
MESSAGES = st.lists(
    st.one_of(PARTS, SIZES.map(lambda s: [b"x" * s]), SIZES.map(lambda s: [b"", b"y" * s])), min_size=1, max_size=6
)


@settings(max_examples=200, deadline=None)
@given(messages=MESSAGES, cuts=st.lists(st.sampled_from([1, 2, 9, 64, 1000, 40_000, 65_536]), min_size=1, max_size=5))
@example(messages=[[b""], [b"", b""], [b"a"]], cuts=[1])
def test_messages_arrive_however_they_are_split(messages: list[list[bytes]], cuts: list[int]) -> None:
    stream = HELLO + ready() + b"".join(map(message, messages))
    if min(cuts) < 64 and len(stream) > 20_000:
        cuts = [max(cut, 1000) for cut in cuts]
    found, decoder = talk(stream, cuts)
    assert [(bytes(each.payload), *each[1:]) for each in found] == [tuple(expected(parts)) for parts in messages]
    assert decoder.held == 0


def refusal(stream: bytes, limit: int = LIMIT) -> str:
    with pytest.raises(ProtocolError) as found:
        talk(stream, [65_536], limit)
    return str(found.value)


@pytest.mark.parametrize(
    ("stream", "cause"),
    [
        (b"GET / HTTP/1.1\r\n", "no greeting of ZMTP 3"),
        (b"\xff" + bytes(8) + b"\x00", "no greeting of ZMTP 3"),
        (b"\xff" + bytes(8) + b"\x7f\x01", "ZMTP 1, this server speaks ZMTP 3"),
        (HELLO.replace(b"NULL", b"CURVE"[:4]), "the mechanism b'CURV', this endpoint speaks NULL"),
        (HELLO.replace(b"NULL\0", b"PLAIN"), "the mechanism b'PLAIN', this endpoint speaks NULL"),
        (HELLO + frame(b"hello"), "a message before READY"),
        (HELLO + command(b"HELLO"), "the command b'HELLO', expected READY"),
        (HELLO + command(b"READY", b"\x0bSocket-Type\0\0\0\x09REQ"), "a READY whose properties are cut off"),
        (HELLO + command(b"READY", b"\x0b"), "a READY whose properties are cut off"),
        (HELLO + command(b"READY"), "a socket of type b'', expected DEALER or REQ"),
        (HELLO + ready(b"SUB"), "a socket of type b'SUB', expected DEALER or REQ"),
        (HELLO + ready(b"ROUTER"), "a socket of type b'ROUTER', expected DEALER or REQ"),
        (HELLO + ready() + b"\x08\x00", "a frame with flags 0x08"),
        (HELLO + ready() + b"\x05\x00", "a frame with flags 0x05"),
        (HELLO + ready() + b"\x06" + struct.pack(">Q", 1 << 40), f"a command of {1 << 40} bytes"),
        (HELLO + ready() + b"\x02" + struct.pack(">Q", 1 << 63), f"a message of {1 << 63} bytes or more"),
        (HELLO + ready() + frame(bytes(LIMIT + 1)), f"a message of {LIMIT + 1} bytes or more, the limit is {LIMIT}"),
        (HELLO + ready() + 3 * frame(bytes(400_000), more=True), "a message of 1200000 bytes or more"),
        (HELLO + ready() + frame(b"", more=True) * (MAX_PARTS + 1), f"a message of more than {MAX_PARTS} parts"),
        (HELLO + ready() + command(b"ERROR", b"\x03bad"), "the peer ends with an error of its own"),
    ],
)
def test_what_ends_a_connection(stream: bytes, cause: str) -> None:
    assert refusal(stream).startswith(cause)
    with pytest.raises(ProtocolError):
        talk(stream, [1] if len(stream) < 10_000 else [9000])


def test_a_socket_of_another_type_gets_an_error() -> None:
    with pytest.raises(ProtocolError) as found:
        talk(HELLO + ready(b"PUB"), [9])
    assert found.value.farewell == command(b"ERROR", b"\x20connect a DEALER or a REQ socket")


def test_a_part_that_is_not_kept_takes_no_memory() -> None:
    """Parts of messages that are not requests are counted and dropped."""
    decoder = Decoder(64 << 20)
    decoder.feed(HELLO + ready())
    assert decoder.next() == Message(b"", 0, False)
    assert decoder.next() is None
    decoder.feed(frame(b"a", more=True) + b"\x02" + struct.pack(">Q", 60 << 20))
    for _ in range(50):
        assert decoder.next() is None
        assert decoder.held <= 1 << 16
        decoder.feed(bytes(1 << 16))


def test_heartbeats_are_answered_and_other_commands_are_let_pass() -> None:
    stream = HELLO + ready() + command(b"PING", b"\0\x0adeep") + command(b"SUBSCRIBE", b"x") + command(b"PONG")
    found, decoder = talk(stream + frame(b"q"), [7])
    assert found == [Message(b"q", 1, False)]
    assert decoder.take_answers() == command(b"PONG", b"deep")
    assert decoder.take_answers() == b""


def test_a_pong_echoes_at_most_16_bytes() -> None:
    """16 bytes: a longer answer would let a peer make the server echo data."""
    _, decoder = talk(HELLO + ready() + command(b"PING", b"\0\x0a" + bytes(range(40))), [1000])
    assert decoder.take_answers() == command(b"PONG", bytes(range(16)))


def test_names_of_properties_have_no_case_and_others_are_ignored() -> None:
    stream = HELLO + command(b"READY", b"\x0bsocket-TYPE\0\0\0\x03REQ" + b"\x01X\0\0\0\x02ab")
    _, decoder = talk(stream, [5])
    assert decoder.ready
    assert decoder.minor == 0


@pytest.mark.parametrize("size", [0, 1, 255, 256, 70_000])
@pytest.mark.parametrize("is_req", [False, True])
def test_replies_are_read_by_the_same_rules(size: int, is_req: bool) -> None:
    reply = bytes(size)
    found, _ = talk(GREETING + READY.replace(b"\x06ROUTER", b"\x06DEALER") + head(size, is_req=is_req) + reply, [11])
    assert [(bytes(each.payload), each.parts, each.is_req) for each in found] == [(reply, 1 + is_req, is_req)]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_bytes_end_in_messages_or_in_an_error(data: Any) -> None:
    """After a valid greeting: no other exception, and no more bytes stored than received."""
    begin = data.draw(st.sampled_from([b"", HELLO, HELLO + ready(), HELLO + ready() + frame(b"", more=True)]))
    stream = begin + data.draw(st.binary(max_size=400))
    try:
        _, decoder = talk(stream, [data.draw(st.integers(1, 50))])
    except ProtocolError:
        return
    assert decoder.held <= len(stream)
