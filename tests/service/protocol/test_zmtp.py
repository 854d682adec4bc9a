"""ZMTP without sockets: two ends of the package against each other, any bytes, and what neither end may accept."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dyn_service.service.protocol.curve import CurveClient, CurveKeys, CurveServer
from dyn_service.service.protocol.zmtp import (
    MAX_COMMAND_BYTES,
    MAX_PARTS,
    Connection,
    Mechanism,
    Message,
    Null,
    PeerRefusedError,
    ProtocolError,
    State,
    refusal,
)
from tests.service.protocol import rfc_peers as rfc
from tests.service.protocol.rfc_peers import command, frame, message, null_ready

LIMIT = 1 << 20
MECHANISMS = ("NULL", "CURVE")
READY_DEALER = rfc.greeting() + null_ready()
"""All that a client with NULL sends before its messages."""


def curve_keys() -> CurveKeys:
    return CurveKeys(*rfc.new_keys())


def two_ends(mechanism: str, max_bytes: int = LIMIT) -> tuple[Connection, Connection]:
    """Returns a client and a server that have exchanged nothing yet."""
    if mechanism == "NULL":
        mechanisms: tuple[Mechanism, Mechanism] = Null(), Null()
    else:
        keys = curve_keys()
        mechanisms = CurveClient(curve_keys(), keys.public), CurveServer(keys, lambda public: None)
    return Connection(mechanisms[0], b"DEALER", max_bytes), Connection(mechanisms[1], b"ROUTER", max_bytes)


def deliver(connection: Connection, stream: bytes, cuts: list[int] | None = None) -> list[Message]:
    """Gives the bytes to a connection as a transport does, in pieces of these lengths in turn; None: in one.

    Returns its messages, without commands.
    """
    messages, position, k = [], 0, 0
    while position < len(stream):
        size = len(stream) if cuts is None else cuts[k % len(cuts)]
        buffer = connection.buffer
        if buffer is None:
            connection.feed(stream[position : position + size])
        else:
            size = min(size, len(buffer), len(stream) - position)
            buffer[:size] = stream[position : position + size]
            connection.wrote(size)
        position, k = position + size, k + 1
        while (message := connection.next()) is not None:
            _, parts, _ = message
            if parts:
                messages.append(message)
    return messages


def shake_hands(client: Connection, server: Connection, cuts: list[int] | None = None) -> None:
    """Exchanges handshakes until both ends are ready or silent."""
    while (to_server := client.take_output()) + (to_client := server.take_output()):
        assert deliver(server, to_server, cuts) == []
        assert deliver(client, to_client, cuts) == []


def joined(pieces: tuple[bytes | memoryview, ...]) -> bytes:
    return b"".join(pieces)


def plain(messages: list[Message]) -> list[tuple[bytes, int, bool]]:
    """Comparable, whatever holds the payloads."""
    return [(bytes(payload), parts, is_req) for payload, parts, is_req in messages]


def expected(parts: list[bytes]) -> tuple[bytes, int, bool]:
    is_req = len(parts) > 1 and not parts[0]
    return parts[-1] if len(parts) == 1 + is_req else b"", len(parts), is_req


# handshakes of two ends of the package


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("cuts", [None, [1], [63, 2], [64], [65], [7, 100]])
def test_two_ends_become_ready(mechanism: str, cuts: list[int] | None) -> None:
    client, server = two_ends(mechanism)
    assert not client.ready
    assert not server.ready
    shake_hands(client, server, cuts)
    assert client.ready
    assert server.ready
    assert (client.state, server.state) == (State.TRAFFIC, State.TRAFFIC)
    assert (client.held, server.held) == (0, 0)


def test_a_server_learns_the_key_of_its_client_once_it_is_ready() -> None:
    client_keys, server_keys, admitted = curve_keys(), curve_keys(), list[bytes]()
    client = Connection(CurveClient(client_keys, server_keys.public), b"DEALER", LIMIT)
    server = Connection(CurveServer(server_keys, admitted.append), b"ROUTER", LIMIT)
    for _ in range(2):  # greetings; HELLO and WELCOME
        deliver(server, client.take_output())
        assert (server.peer_key, admitted) == (b"", [])
        deliver(client, server.take_output())
    deliver(server, client.take_output())
    assert server.ready
    assert server.peer_key == client_keys.public
    assert admitted == [client_keys.public]
    assert client.peer_key == b""


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("major", "minor"), [(3, 0), (3, 1), (3, 7), (4, 0), (255, 255)])
def test_versions_from_3_on_are_accepted(mechanism: str, major: int, minor: int) -> None:
    """RFC 37: a peer must accept higher versions."""
    for connection in two_ends(mechanism):
        first = connection.take_output()
        assert first[10:12] == b"\3\1"
        as_server = mechanism == "CURVE" and connection.state is State.GREETING
        connection.feed(rfc.greeting(mechanism.encode(), as_server=as_server, major=major, minor=minor))
        assert connection.next() is None
        assert connection.state is not State.GREETING


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_greeting_has_the_fields_of_rfc_37(mechanism: str) -> None:
    client, server = two_ends(mechanism)
    name = mechanism.encode()
    assert client.take_output()[:64] == rfc.greeting(name)
    assert server.take_output()[:64] == rfc.greeting(name, as_server=mechanism == "CURVE")


def test_the_padding_of_a_greeting_has_no_meaning() -> None:
    """RFC 37: a peer must not validate it; libzmq writes a size of ZMTP 1 there."""
    _, server = two_ends("NULL")
    deliver(server, b"\xff" + bytes(range(1, 9)) + READY_DEALER[9:])
    assert server.ready


# the state table

C, S = "C", "S"
COMMANDS = (
    *(b"HELLO", b"WELCOME", b"INITIATE", b"READY", b"MESSAGE", b"PING", b"PONG", b"SUBSCRIBE", b"CANCEL", b"JOIN"),
    *(b"LEAVE", b"", b"hello", b"HELLO\0", b"READYREADY", b"GREETING", b"TRAFFIC"),
)
HANDSHAKES: dict[str, list[tuple[State, bytes, State]]] = {
    "NULL": [(State.GREETING, b"GREETING", State.READY), (State.READY, b"READY", State.TRAFFIC)],
    "CURVE, client": [
        (State.GREETING, b"GREETING", State.WELCOME),
        (State.WELCOME, b"WELCOME", State.READY),
        (State.READY, b"READY", State.TRAFFIC),
    ],
    "CURVE, server": [
        (State.GREETING, b"GREETING", State.HELLO),
        (State.HELLO, b"HELLO", State.INITIATE),
        (State.INITIATE, b"INITIATE", State.TRAFFIC),
    ],
}
"""The handshakes of RFC 37 and RFC 26: state, event, next state."""


class Handshake:
    """One end of the package, and an independent peer that leads it from state to state."""

    def __init__(self, role: str, max_bytes: int = LIMIT) -> None:
        server_keys = rfc.new_keys()
        self.peer: Any = None
        if role == "NULL":
            self.connection = Connection(Null(), b"ROUTER", max_bytes)
            self.legal = [rfc.greeting(), null_ready()]
        elif role == "CURVE, client":
            self.peer = rfc.CurveServer(server_keys)
            self.connection = Connection(CurveClient(curve_keys(), server_keys.public), b"DEALER", max_bytes)
        else:
            self.peer = rfc.CurveClient(rfc.new_keys(), server_public=server_keys.public)
            self.connection = Connection(
                CurveServer(CurveKeys(*server_keys), lambda public: None), b"ROUTER", max_bytes
            )

    def event(self, state: State) -> bytes:
        """Returns the bytes that the state awaits."""
        frames = rfc.read_frames(output) if (output := self.connection.take_output()[self._skipped :]) else []
        if self.peer is None:
            return self.legal[state is State.READY]
        if state is State.GREETING:
            return bytes(self.peer.greeting())
        if state is State.WELCOME:
            self.peer.read_hello(frames[0].body)
            return bytes(self.peer.welcome())
        if state is State.READY:
            self.peer.read_initiate(frames[0].body)
            return bytes(self.peer.ready())
        if state is State.HELLO:
            return bytes(self.peer.hello())
        assert state is State.INITIATE
        _, cookie = self.peer.read_welcome(frames[0].body)
        return bytes(self.peer.initiate(cookie))

    @property
    def _skipped(self) -> int:
        return rfc.GREETING_SIZE if self.connection.state is State.GREETING or self.peer is None else 0

    def lead_to(self, target: State) -> Connection:
        while self.connection.state is not target:
            deliver(self.connection, self.event(self.connection.state))
        return self.connection

    def lead_to_traffic(self) -> Connection:
        """Also takes the output, so that the peer is ready too."""
        output = self.lead_to(State.TRAFFIC).take_output()
        if isinstance(self.peer, rfc.CurveClient):
            self.peer.read_ready(rfc.read_frames(output)[0].body)
        return self.connection


@pytest.mark.parametrize("role", HANDSHAKES)
def test_the_table_is_that_of_the_specification(role: str) -> None:
    mechanisms: dict[str, type[Mechanism]] = {
        "NULL": Null,
        "CURVE, client": CurveClient,
        "CURVE, server": CurveServer,
    }
    edges = [
        (state, event, target)
        for state, events in mechanisms[role].transitions.items()
        for event, target in events.items()
    ]
    assert sorted(edges, key=str) == sorted(HANDSHAKES[role], key=str)


@pytest.mark.parametrize("role", HANDSHAKES)
def test_each_legal_event_leads_to_the_next_state(role: str) -> None:
    handshake = Handshake(role)
    for state, _, target in HANDSHAKES[role]:
        assert handshake.connection.state is state
        deliver(handshake.connection, handshake.event(state))
        assert handshake.connection.state is target
    assert handshake.connection.ready


ILLEGAL = [
    (role, state, name)
    for role, edges in HANDSHAKES.items()
    for state, event, _ in edges[1:]
    for name in COMMANDS
    if name != event
]


@pytest.mark.parametrize(("role", "state", "name"), ILLEGAL)
def test_each_other_command_of_a_handshake_is_an_error(role: str, state: State, name: bytes) -> None:
    connection = Handshake(role).lead_to(state)
    connection.take_output()
    with pytest.raises(ProtocolError, match=r"the command .*, expected ") as error:
        deliver(connection, command(name, bytes(30)))
    assert type(error.value) is ProtocolError
    assert (connection.state, connection.ready, connection.take_output()) == (State.CLOSED, False, b"")


@pytest.mark.parametrize("role", HANDSHAKES)
def test_a_message_before_the_end_of_the_handshake_is_an_error(role: str) -> None:
    for state, _, _ in HANDSHAKES[role][1:]:
        for data in (message(b"early"), message(b"", b"early"), frame(b"\x07MESSAGE" + bytes(40))):
            connection = Handshake(role).lead_to(state)
            with pytest.raises(ProtocolError, match="a message before the end of the handshake"):
                deliver(connection, data)
            assert connection.state is State.CLOSED


@pytest.mark.parametrize("role", HANDSHAKES)
def test_an_error_command_ends_each_state(role: str) -> None:
    for state, _, _ in HANDSHAKES[role][1:]:
        connection = Handshake(role).lead_to(state)
        with pytest.raises(PeerRefusedError) as error:
            deliver(connection, rfc.error(b"400"))
        assert error.value.reason == b"400"
        assert error.value.farewell == b""
        assert connection.state is State.CLOSED


@pytest.mark.parametrize(("body", "reason"), [(b"", b""), (b"\0", b""), (b"\x09abc", b"abc"), (b"\x02abc", b"ab")])
def test_damaged_reasons_of_an_error_are_read_as_far_as_they_go(body: bytes, reason: bytes) -> None:
    connection = Handshake("NULL").lead_to(State.READY)
    with pytest.raises(PeerRefusedError) as error:
        deliver(connection, command(b"ERROR", body))
    assert error.value.reason == reason


@pytest.mark.parametrize("role", HANDSHAKES)
def test_nothing_is_accepted_after_a_protocol_error(role: str) -> None:
    handshake = Handshake(role)
    connection = handshake.lead_to(HANDSHAKES[role][1][0])
    following = handshake.event(connection.state)
    with pytest.raises(ProtocolError):
        deliver(connection, command(b"NONSENSE"))
    for data in (following, message(b"x"), command(b"PING", bytes(2))):
        with pytest.raises(ProtocolError):
            deliver(connection, data)
    assert connection.take_output() == b""


# messages

SIZES = (0, 1, 254, 255, 256, 257, 16383, 16384, 16385, 32767, 32768, 32769, 65535, 65536, 1_000_000)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("is_req", [False, True])
@pytest.mark.parametrize("cuts", [None, [1000, 17], [65_536]])
def test_messages_of_any_size_arrive_in_both_directions(mechanism: str, is_req: bool, cuts: list[int] | None) -> None:
    client, server = two_ends(mechanism)
    shake_hands(client, server)
    payloads = [bytes([size % 251]) * size for size in SIZES]
    for sender, receiver in ((client, server), (server, client)):
        stream = b"".join(joined(sender.encode(payload, is_req=is_req)) for payload in payloads)
        assert plain(deliver(receiver, stream, cuts)) == [(payload, 1 + is_req, is_req) for payload in payloads]
        assert receiver.held == 0
        assert (sender.take_output(), receiver.take_output()) == (b"", b"")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_memoryview_is_encoded_as_its_bytes(mechanism: str) -> None:
    client, server = two_ends(mechanism)
    shake_hands(client, server)
    for size in (0, 5, 300, 100_000):
        payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
        assert plain(deliver(server, joined(client.encode(memoryview(payload))))) == [(payload, 1, False)]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_100_mb_arrive(mechanism: str) -> None:
    client, server = two_ends(mechanism, 100_000_000)
    shake_hands(client, server)
    payload = bytes(1_000) * 99_999 + b"z" * 1_000
    ((received, parts, _),) = deliver(server, joined(client.encode(payload)), [1 << 20])
    assert parts == 1
    assert received == payload


def test_large_payloads_are_not_copied_by_a_sender_without_encryption() -> None:
    client, server = two_ends("NULL")
    shake_hands(client, server)
    payload = bytes(200_000)
    header, content = server.encode(payload)
    assert content is payload
    assert header == b"\2" + struct.pack(">Q", 200_000)


PART_SIZES = st.sampled_from([0, 1, 2, 255, 256, 257, 4000, 32767, 32768, 32769, 70_000])
PARTS = st.lists(PART_SIZES, min_size=1, max_size=MAX_PARTS).map(lambda sizes: [bytes([s % 251]) * s for s in sizes])
MESSAGES = st.lists(
    st.one_of(PARTS, PART_SIZES.map(lambda s: [b"x" * s]), PART_SIZES.map(lambda s: [b"", b"y" * s])),
    min_size=1,
    max_size=6,
)


@settings(max_examples=100, deadline=None)
@given(messages=MESSAGES, cuts=st.lists(st.sampled_from([1, 2, 9, 64, 1000, 40_000, 65_536]), min_size=1, max_size=5))
@example(messages=[[b""], [b"", b""], [b"a"]], cuts=[1])
@example(messages=[[b"x" * 70_000, b"y"], [b"", b"x" * 70_000], [b"z"]], cuts=[1000])
@example(messages=[[b"", b"x" * 70_000, b"y" * 70_000], [b"z"]], cuts=[1000])
def test_messages_arrive_however_they_are_split(messages: list[list[bytes]], cuts: list[int]) -> None:
    stream = b"".join(message(*parts) for parts in messages)
    if min(cuts) < 64 and len(stream) > 20_000:
        cuts = [max(size, 1000) for size in cuts]
    _, server = two_ends("NULL", 2 << 20)
    assert plain(deliver(server, READY_DEALER + stream, cuts)) == [expected(parts) for parts in messages]
    assert server.held == 0


@settings(max_examples=40, deadline=None)
@given(messages=MESSAGES, cuts=st.lists(st.sampled_from([1, 2, 9, 64, 1000, 40_000, 65_536]), min_size=1, max_size=5))
@example(messages=[[b"x" * 70_000, b"y"], [b"", b"x" * 70_000], [b"z"]], cuts=[1000])
def test_encrypted_messages_arrive_however_they_are_split(messages: list[list[bytes]], cuts: list[int]) -> None:
    handshake = Handshake("CURVE, server", 2 << 20)
    server = handshake.lead_to_traffic()
    stream = b"".join(
        handshake.peer.message(part, rfc.MORE * (k < len(parts) - 1))
        for parts in messages
        for k, part in enumerate(parts)
    )
    if min(cuts) < 64 and len(stream) > 20_000:
        cuts = [max(size, 1000) for size in cuts]
    assert plain(deliver(server, stream, cuts)) == [expected(parts) for parts in messages]
    assert server.held == 0


@pytest.mark.parametrize("count", range(1, MAX_PARTS + 2))
@pytest.mark.parametrize("first", [b"", b"a"])
def test_parts_are_counted_to_their_limit(count: int, first: bytes) -> None:
    parts = [first, *(b"%d" % k for k in range(1, count))]
    handshake = Handshake("CURVE, server")
    sealed_server = handshake.lead_to_traffic()
    sealed = b"".join(handshake.peer.message(part, rfc.MORE * (k < count - 1)) for k, part in enumerate(parts))
    _, server = two_ends("NULL")
    for connection, stream in ((server, READY_DEALER + message(*parts)), (sealed_server, sealed)):
        if count <= MAX_PARTS:
            assert plain(deliver(connection, stream)) == [expected(parts)]
        else:
            with pytest.raises(ProtocolError, match=f"a message of more than {MAX_PARTS} parts"):
                deliver(connection, stream)


def test_frames_in_the_long_form_may_be_short() -> None:
    _, server = two_ends("NULL")
    ready = rfc.metadata([(b"Socket-Type", b"REQ")])
    stream = rfc.greeting() + frame(b"\x05READY" + ready, rfc.COMMAND, long=True)
    stream += frame(b"", rfc.MORE, long=True) + frame(b"hi", long=True)
    assert plain(deliver(server, stream)) == [(b"hi", 2, True)]


# bounds


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("cuts", [None, [5000]])
def test_a_message_may_have_max_bytes_and_no_more(mechanism: str, cuts: list[int] | None) -> None:
    for size in (100, 40_000):  # frames of both kinds: kept with others, and collected
        client, server = two_ends(mechanism, size)
        shake_hands(client, server)
        assert len(deliver(server, joined(client.encode(bytes(size))), cuts)) == 1
        with pytest.raises(ProtocolError, match=f"a message of {size + 1} bytes or more, the limit is {size}"):
            deliver(server, joined(client.encode(bytes(size + 1))), cuts)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("cuts", [None, [1000]])
def test_max_bytes_counts_all_parts_also_those_that_are_not_kept(mechanism: str, cuts: list[int] | None) -> None:
    parts = [bytes(40_000), bytes(40_000), bytes(20_001)]
    if mechanism == "NULL":
        server = Connection(Null(), b"ROUTER", 100_000)
        stream = READY_DEALER + message(*parts)
    else:
        handshake = Handshake("CURVE, server", 100_000)
        server = handshake.lead_to_traffic()
        stream = b"".join(handshake.peer.message(part, rfc.MORE * (k < 2)) for k, part in enumerate(parts))
    with pytest.raises(ProtocolError, match="a message of 100001 bytes or more, the limit is 100000"):
        deliver(server, stream, cuts)


def test_a_size_over_the_limit_is_refused_before_memory_is_allocated() -> None:
    allocated: list[int] = []

    def allocate(size: int) -> bytearray:
        allocated.append(size)
        return bytearray(size)

    server = Connection(Null(), b"ROUTER", LIMIT, allocate)
    deliver(server, READY_DEALER + b"\2" + struct.pack(">Q", LIMIT)[:5])
    assert allocated == []
    deliver(server, struct.pack(">Q", LIMIT)[5:])
    assert allocated == [LIMIT]
    for size in (LIMIT + 1, 1 << 40, 1 << 63, (1 << 64) - 1):
        server = Connection(Null(), b"ROUTER", LIMIT, allocate)
        with pytest.raises(ProtocolError, match=f"a message of {size} bytes or more, the limit is {LIMIT}"):
            deliver(server, READY_DEALER + b"\2" + struct.pack(">Q", size))
    assert allocated == [LIMIT]


@pytest.mark.parametrize("role", HANDSHAKES)
def test_a_stranger_can_announce_no_long_frame(role: str) -> None:
    """Before the end of the handshake, whatever the frame's flags."""
    for state, _, _ in HANDSHAKES[role][1:]:
        for flags in (rfc.LONG, rfc.LONG | rfc.MORE, rfc.LONG | rfc.COMMAND):
            for size in (MAX_COMMAND_BYTES + 1, 1 << 20, 1 << 63):
                connection = Handshake(role).lead_to(state)
                with pytest.raises(ProtocolError, match=f"a command of {size} bytes"):
                    deliver(connection, bytes([flags]) + struct.pack(">Q", size))
                assert connection.held <= 9


def test_a_command_after_the_handshake_has_the_same_limit() -> None:
    _, server = two_ends("NULL")
    deliver(server, READY_DEALER + command(b"NEWS", bytes(MAX_COMMAND_BYTES - 5)))
    with pytest.raises(ProtocolError, match=f"a command of {MAX_COMMAND_BYTES + 1} bytes"):
        deliver(server, command(b"NEWS", bytes(MAX_COMMAND_BYTES - 4)))
    handshake = Handshake("CURVE, server")
    server = handshake.lead_to_traffic()
    deliver(server, handshake.peer.message(b"\4NEWS" + bytes(MAX_COMMAND_BYTES - 5), 2))
    with pytest.raises(ProtocolError, match=f"a command of {MAX_COMMAND_BYTES + 1} bytes"):
        deliver(server, handshake.peer.message(b"\4NEWS" + bytes(MAX_COMMAND_BYTES - 4), 2))


def test_a_part_that_is_not_kept_takes_no_memory() -> None:
    _, server = two_ends("NULL", 64 << 20)
    deliver(server, READY_DEALER)
    deliver(server, frame(b"a", rfc.MORE) + b"\x02" + struct.pack(">Q", 60 << 20))
    for _ in range(50):
        assert server.next() is None
        assert server.held <= 1 << 16
        assert server.buffer is None
        server.feed(bytes(1 << 16))


def test_held_counts_what_is_not_returned_yet() -> None:
    _, server = two_ends("NULL")
    deliver(server, READY_DEALER)
    payload = bytes(range(250)) * 400
    stream = message(payload)
    for position in range(0, len(stream) - 1000, 1000):
        deliver(server, stream[position : position + 1000])
        assert server.held == position + 1000 - 9 * (position + 1000 > 9)
    server.feed(stream[server.held + 9 :] + b"\0\3a")
    assert server.held == len(payload) + 3
    assert server.next() == (payload, 1, False)
    assert server.held == 3


# commands


@pytest.mark.parametrize("context", [b"", b"x", b"deep", bytes(range(16))])
@pytest.mark.parametrize("cuts", [None, [1]])
def test_a_ping_is_answered_with_its_context(context: bytes, cuts: list[int] | None) -> None:
    _, server = two_ends("NULL")
    deliver(server, READY_DEALER)
    server.take_output()
    stream = command(b"PING", b"\0\x0a" + context) + command(b"PONG") + frame(b"q")
    assert plain(deliver(server, stream, cuts)) == [(b"q", 1, False)]
    assert server.take_output() == command(b"PONG", context)
    assert server.take_output() == b""


def test_a_pong_echoes_at_most_16_bytes() -> None:
    """A longer answer would let a peer make the server echo data."""
    _, server = two_ends("NULL")
    deliver(server, READY_DEALER)
    server.take_output()
    deliver(server, command(b"PING", b"\0\x0a" + bytes(range(40))))
    assert server.take_output() == command(b"PONG", bytes(range(16)))


@pytest.mark.parametrize("role", ["CURVE, client", "CURVE, server"])
def test_an_encrypted_ping_is_answered_encrypted(role: str) -> None:
    handshake = Handshake(role)
    connection = handshake.lead_to_traffic()
    deliver(connection, handshake.peer.message(b"\x04PING\0\0context", 2))
    (pong,) = rfc.read_frames(connection.take_output())
    assert pong.flags == 0
    assert handshake.peer.read_message(pong.body) == (2, b"\x04PONGcontext")


def test_nonces_increase_in_the_order_in_which_bytes_are_taken() -> None:
    """A message that is encoded before the PONG is taken may be sent before it; libzmq refuses nonces out of order."""
    handshake = Handshake("CURVE, server")
    server = handshake.lead_to_traffic()
    deliver(server, handshake.peer.message(b"\x04PING\0\0", 2))
    output = joined(server.encode(b"first")) + server.take_output() + joined(server.encode(b"last"))
    texts = [handshake.peer.read_message(sealed.body) for sealed in rfc.read_frames(output)]
    assert texts == [(0, b"first"), (2, b"\x04PONG"), (0, b"last")]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_other_commands_are_ignored_in_traffic(mechanism: str) -> None:
    names = (b"SUBSCRIBE", b"CANCEL", b"JOIN", b"LEAVE", b"PONG", b"NEWS", b"")
    handshake = Handshake("NULL" if mechanism == "NULL" else "CURVE, server")
    server = handshake.lead_to_traffic()
    for name in names:
        content = bytes([len(name)]) + name + b"x"
        stream = frame(content, rfc.COMMAND) if mechanism == "NULL" else handshake.peer.message(content, 2)
        server.feed(stream)
        assert server.next() == (b"", 0, False)
        assert (server.next(), server.take_output(), server.ready) == (None, b"", True)


def test_a_command_between_the_parts_of_a_message_does_not_join_it() -> None:
    _, server = two_ends("NULL")
    deliver(server, READY_DEALER)
    server.take_output()
    stream = frame(b"", rfc.MORE) + command(b"PING", bytes(2)) + frame(b"x")
    assert plain(deliver(server, stream)) == [(b"x", 2, True)]
    assert server.take_output() == command(b"PONG")


# properties


def test_names_of_properties_have_no_case_and_others_are_ignored() -> None:
    _, server = two_ends("NULL")
    properties = [(b"X-Other", b""), (b"socket-TYPE", b"REQ"), (b"Identity", bytes(255)), (b"x", b"ab")]
    deliver(server, rfc.greeting() + command(b"READY", rfc.metadata(properties)), [5])
    assert server.ready


@pytest.mark.parametrize(
    ("metadata", "cause"),
    [
        (b"\x0bSocket-Type\0\0\0\x09REQ", "cut off"),
        (b"\x0bSocket-Type\0\0\0", "cut off"),
        (b"\x0bSocket-Type", "cut off"),
        (b"\x0bSock", "cut off"),
        (b"\x0b", "cut off"),
        (b"\x0bSocket-Type\xff\xff\xff\xffREQ", "cut off"),
        (b"\x0bSocket-Type\0\0\0\x03REQ\x01", "cut off"),
        (b"\x0bSocket-Type\0\0\0\x03REQ\0\0\0\0\0", "a property without a name"),
        (b"", "a socket of type b'', expected DEALER or REQ"),
        (b"\x04Type\0\0\0\x03REQ", "a socket of type b'', expected DEALER or REQ"),
        (b"\x0bSocket-Type\0\0\0\x03req", "a socket of type b'req', expected DEALER or REQ"),
    ],
)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_damaged_properties_end_the_handshake(mechanism: str, metadata: bytes, cause: str) -> None:
    if mechanism == "NULL":
        _, server = two_ends("NULL")
        stream = rfc.greeting() + command(b"READY", metadata)
    else:
        handshake = Handshake("CURVE, server")
        handshake.peer.properties = metadata
        server = handshake.lead_to(State.INITIATE)
        stream = handshake.event(State.INITIATE)
    with pytest.raises(ProtocolError, match=cause):
        deliver(server, stream)
    assert not server.ready


FITTING = {b"ROUTER": (b"DEALER", b"REQ"), b"DEALER": (b"ROUTER",)}
OTHER_TYPES = (b"REP", b"PUB", b"XPUB", b"SUB", b"XSUB", b"PUSH", b"PULL", b"PAIR", b"SERVER", b"CLIENT", b"PEER", b"")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("socket_type", [b"ROUTER", b"DEALER", b"REQ", *OTHER_TYPES])
@pytest.mark.parametrize("end", FITTING)
def test_the_socket_type_of_the_peer_fits(mechanism: str, socket_type: bytes, end: bytes) -> None:
    if mechanism == "NULL":
        connection = Connection(Null(), end, LIMIT)
        stream = rfc.greeting() + null_ready(socket_type)
    else:
        handshake = Handshake("CURVE, server" if end == b"ROUTER" else "CURVE, client")
        handshake.peer.socket_type = socket_type
        state = State.INITIATE if end == b"ROUTER" else State.READY
        connection = handshake.lead_to(state)
        stream = handshake.event(state)
    if socket_type in FITTING[end]:
        deliver(connection, stream)
        assert connection.ready
        return
    with pytest.raises(ProtocolError, match="a socket of type") as error:
        deliver(connection, stream)
    assert not connection.ready
    # RFC 37: an ERROR first. RFC 26: a client sends none.
    assert error.value.farewell == (rfc.error(b"connect a socket of DEALER or REQ") if end == b"ROUTER" else b"")


def test_a_refusal_is_an_error_command() -> None:
    error = refusal("the key 'a' is not allowed", "400")
    assert (str(error), error.farewell) == ("the key 'a' is not allowed", rfc.error(b"400"))


# any bytes


@pytest.mark.parametrize(
    ("stream", "cause"),
    [
        (b"GET / HTTP/1.1\r\n", "no greeting of ZMTP 3"),
        (b"\xff" + bytes(8) + b"\x00", "no greeting of ZMTP 3"),
        (b"\x01\x00", "no greeting of ZMTP 3"),
        (b"\xff" + bytes(8) + b"\x7f\x01", "ZMTP 1, this end speaks ZMTP 3"),
        (b"\xff" + bytes(8) + b"\x7f\x02\x05", "ZMTP 2, this end speaks ZMTP 3"),
        (rfc.greeting(b"CURV"), "the mechanism b'CURV', this end speaks NULL"),
        (rfc.greeting(b"NULL\0X"), "the mechanism b'NULL"),
        (rfc.greeting(b"null"), "the mechanism b'null', this end speaks NULL"),
        (rfc.greeting(b"PLAIN"), "the mechanism b'PLAIN', this end speaks NULL"),
        (rfc.greeting(b""), "the mechanism b'', this end speaks NULL"),
        (READY_DEALER + b"\x08\x00", "a frame with flags 0x08"),
        (READY_DEALER + b"\x05\x00", "a frame with flags 0x05"),
        (READY_DEALER + b"\x07\x00", "a frame with flags 0x07"),
        (READY_DEALER + b"\x80\x00", "a frame with flags 0x80"),
        (rfc.greeting() + b"\x08\x00", "a frame with flags 0x08"),
        (rfc.greeting() + b"\x05\x00", "a frame with flags 0x05"),
        (READY_DEALER + rfc.error(b"bad"), "the peer ends the connection with the error b'bad'"),
    ],
)
def test_what_ends_a_connection(stream: bytes, cause: str) -> None:
    for cuts in (None, [1], [64]):
        _, server = two_ends("NULL")
        with pytest.raises(ProtocolError) as error:
            deliver(server, stream, cuts)
        assert str(error.value).startswith(cause)
        assert error.value.farewell == b""


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_no_end_talks_to_the_other_mechanism(mechanism: str) -> None:
    other = MECHANISMS[mechanism == "NULL"]
    for connection, stranger in zip(two_ends(mechanism), reversed(two_ends(other)), strict=True):
        expected_text = f"the mechanism b'{other}', this end speaks {mechanism}"
        with pytest.raises(ProtocolError, match=expected_text) as error:
            deliver(connection, stranger.take_output())
        assert error.value.farewell == b""
        with pytest.raises(ProtocolError):
            deliver(stranger, connection.take_output())


@pytest.mark.parametrize("end", ["client", "server"])
def test_two_clients_or_two_servers_of_curve_do_not_become_ready(end: str) -> None:
    first, second = (two_ends("CURVE")[end == "server"] for _ in range(2))
    if end == "client":  # each sends a HELLO, each awaits a WELCOME
        with pytest.raises(ProtocolError, match="the command b'HELLO', expected WELCOME"):
            shake_hands(first, second)
    else:  # each awaits a HELLO
        shake_hands(first, second)
    assert not first.ready
    assert not second.ready


def starts() -> dict[str, Callable[[], Connection]]:
    """Connections in each state, by name."""
    return {
        f"{role}, {state.name}": lambda role=role, state=state: Handshake(role).lead_to(state)  # type: ignore[misc]
        for role, edges in HANDSHAKES.items()
        for state in (*(edge[0] for edge in edges), State.TRAFFIC)
    }


PIECES = st.one_of(
    st.binary(max_size=300),
    st.sampled_from([*COMMANDS, b"ERROR"]).flatmap(
        lambda name: st.binary(max_size=250).map(lambda b: command(name, b))
    ),
    st.binary(max_size=300).map(frame),
    st.binary(max_size=300).map(lambda content: frame(content, rfc.MORE)),
    st.binary(max_size=300).map(lambda content: frame(b"\x07MESSAGE" + content)),
    st.binary(max_size=300).map(lambda content: rfc.greeting(content[:20])),
)


@settings(max_examples=150, deadline=None)
@given(start=st.sampled_from(list(starts())), pieces=st.lists(PIECES, max_size=6), piece_size=st.integers(8, 99))
def test_any_bytes_end_in_messages_or_in_a_protocol_error(start: str, pieces: list[bytes], piece_size: int) -> None:
    """No other exception, and no more bytes stored than received."""
    connection = starts()[start]()
    stream = b"".join(pieces)
    try:
        deliver(connection, stream, [piece_size])
    except ProtocolError:
        assert connection.state is State.CLOSED
        assert not connection.ready
    assert connection.held <= len(stream)
