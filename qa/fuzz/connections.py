"""Fuzzing of ZMTP: any bytes into each end of a connection, and CURVE peers that forge what is inside their boxes.

No input may raise anything but `ProtocolError`, make an end store more than its bounds, or admit or deliver what the
peer has no key for.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256

from nacl.bindings import (
    crypto_box_beforenm,
    crypto_box_easy_afternm,
    crypto_box_open_easy_afternm,
    crypto_box_seed_keypair,
)
from nacl.exceptions import CryptoError

from dyn_service.service.protocol import zmtp
from dyn_service.service.protocol.curve import CurveClient, CurveKeys, CurveServer
from dyn_service.service.protocol.zmtp import (
    MAX_COMMAND_BYTES,
    MAX_PARTS,
    Connection,
    Mechanism,
    Null,
    ProtocolError,
    refusal,
)
from qa.fuzz.hangs import check_time
from tests.service.protocol import rfc_peers
from tests.service.protocol.rfc_peers import COMMAND, LONG, MORE, command, metadata

MAX_BYTES = 4500
"""Limit of a message, small so that inputs exceed it."""

OVERHEAD_BYTES = 33
"""What a box adds to a message of one part."""

HELD_BYTES = max(MAX_BYTES + OVERHEAD_BYTES, MAX_COMMAND_BYTES) + 9
"""Most that an end stores of an incomplete frame, with its header."""

MAX_PIECES = 200

COLLECTED_BYTES = (MAX_COMMAND_BYTES, zmtp._COLLECTED_BYTES)
"""Sizes above which a frame is collected in its own buffer: with the smaller one, short inputs reach that code too."""


def key_pair(name: str) -> CurveKeys:
    """Returns the same keys for the same name, so that a recorded input keeps its meaning."""
    return CurveKeys(*crypto_box_seed_keypair(sha256(name.encode()).digest()))


SERVER, CLIENT, TRANSIENT, STRANGER = map(key_pair, ("server", "client", "transient", "stranger"))


@dataclass
class Outcome:
    """What an end made of its input."""

    messages: list[tuple[bytes, int, bool]] = field(default_factory=list)
    error: str = ""
    output: bytes = b""


def read(connection: Connection, outcome: Outcome, data: bytes) -> None:
    """Feeds bytes as a transport does, and adds what the end returns to the outcome.

    Raises:
        AssertionError: The end broke a bound, or goes on after a protocol error.
    """
    while data and not outcome.error:
        buffer = connection.buffer
        if buffer is None:
            connection.feed(data)
            data = b""
        else:
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            connection.wrote(count)
            data = data[count:]
        try:
            while (message := connection.next()) is not None:
                payload, parts, is_req = message
                assert 0 <= parts <= MAX_PARTS
                assert len(payload) <= MAX_BYTES
                outcome.output += connection.take_output()
                if parts:
                    outcome.messages.append((bytes(payload), parts, is_req))
        except ProtocolError as error:
            outcome.error = str(error)
            outcome.output += connection.take_output() + error.farewell
            assert not connection.ready
            check_stays_closed(connection)
            return
        outcome.output += connection.take_output()
        assert connection.held <= HELD_BYTES, connection.held


def check_stays_closed(connection: Connection) -> None:
    """Raises `AssertionError` if a valid frame after a protocol error is handled."""
    connection.feed(b"\0\1x" * 3)
    try:
        message = connection.next()
    except ProtocolError:
        return
    assert message is None, "a message after a protocol error"


def allocate(size: int) -> bytearray:
    """Returns a buffer for a long frame."""
    assert size <= MAX_BYTES + OVERHEAD_BYTES, f"a buffer of {size} bytes"
    return bytearray(size)


class Streams:
    """Any bytes, into a server or a client, NULL or CURVE. The outcome must not depend on how the bytes arrive.

    Bytes of an input: which end, bits 0 and 1; size of the pieces in which the bytes arrive; the stream.
    """

    longest = 6000
    words = (
        "\\xff\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x01\\x7f\\x03\\x01NULL", "CURVE", "\\x05READY", "\\x05HELLO",
        "\\x07WELCOME", "\\x08INITIATE", "\\x07MESSAGE", "\\x05ERROR", "\\x04PING", "\\x04PONG", "\\x09SUBSCRIBE",
        "\\x0bSocket-Type", "\\x08Identity", "DEALER", "ROUTER", "REQ", "\\x04\\x26\\x05READY", "\\x01\\x00",
        "\\x02\\x00\\x00\\x00\\x00\\x00\\x00\\x11\\x94",
    )  # fmt: skip

    def seeds(self) -> Iterator[bytes]:
        messages = (
            [b""], [b"x"], [b"", b"x"], [b"x" * 300], [b"", b"y" * MAX_BYTES], [bytes(MAX_BYTES + 1)],
            [bytes(MAX_BYTES // 2)] * 3, [b"a"] * MAX_PARTS, [b"a"] * (MAX_PARTS + 1),
        )  # fmt: skip
        for kind, socket_type in ((0, b"DEALER"), (0, b"REQ"), (0, b"SUB"), (1, b"ROUTER")):
            peer = rfc_peers.greeting() + rfc_peers.null_ready(socket_type)
            for size, parts in enumerate(messages):
                yield bytes([kind, size]) + peer + rfc_peers.message(*parts) * 2
            large = bytes([COMMAND | LONG]) + (1 << 20).to_bytes(8, "big")
            for tail in (command(b"PING", b"\0\1context"), rfc_peers.error(b"400"), command(b"PING") * 40, large):
                yield bytes([kind, 7]) + peer + tail
        hello = ForgedPeer(server=False)
        yield b"\2\0" + b"".join(hello.act(step) for step in (GREETING_STEP, HELLO_STEP, INITIATE_STEP))
        welcome = ForgedPeer(server=True)
        yield b"\3\0" + b"".join(welcome.act(step) for step in (GREETING_STEP, WELCOME_STEP, READY_STEP))

    def try_one(self, data: bytes) -> None:
        kind, size, stream = (*data[:2].ljust(2, b"\0"), data[2:])
        # Byte by byte a stream of 6000 bytes would take longer than the limit of a hang.
        size = max(size, len(stream) // MAX_PIECES) or 1
        pieces = [stream[k : k + size] for k in range(0, len(stream), size)]
        outcomes: list[Outcome] = []
        # They also differ in the size above which a frame gets its own buffer: neither may show in the outcome.
        for parts, collected_bytes in zip(([stream], pieces), COLLECTED_BYTES[::-1], strict=True):
            check_time(lambda: outcomes.append(self._outcome(kind, parts, collected_bytes)))  # noqa: B023
        whole, split = outcomes[0], outcomes[-1]
        assert whole.messages == split.messages
        assert whole.error == split.error
        # A peer must not make an end send much more than it got: PONGs are as long as their PINGs.
        assert len(whole.output) <= 400 + 2 * len(stream)
        if not kind & 2:  # the output of CURVE is random
            assert whole.output == split.output

    @staticmethod
    def _outcome(kind: int, pieces: list[bytes], collected_bytes: int) -> Outcome:
        mechanism: Mechanism = Null()
        if kind & 2:
            mechanism = CurveClient(CLIENT, SERVER.public) if kind & 1 else CurveServer(SERVER, admit_nobody)
        zmtp._COLLECTED_BYTES = collected_bytes
        connection = Connection(mechanism, b"DEALER" if kind & 1 else b"ROUTER", MAX_BYTES, allocate)
        connection.take_output()
        outcome = Outcome()
        for piece in pieces:
            read(connection, outcome, piece)
        return outcome

    def mutated(self, data: bytes, seed: int) -> bytes | None:
        """The stream with a frame left out, twice, elsewhere, or with another header; None: change bytes."""
        choose = random.Random(seed)
        # Two bytes of the input's head and the greeting of 64: a damaged greeting ends all further work.
        frames = split_frames(data[66:])
        if choose.random() < 0.5 or not frames:
            return None
        first, second = choose.randrange(len(frames)), choose.randrange(len(frames))
        kind = choose.randrange(4)
        if kind == 0:
            del frames[first]
        elif kind == 1:
            frames.insert(first, frames[second])
        elif kind == 2:
            frames[first], frames[second] = frames[second], frames[first]
        else:
            frames[first] = bytes([choose.choice((0, MORE, LONG, COMMAND, COMMAND | LONG))]) + frames[first][1:]
        return data[:66] + b"".join(frames)


def admit_nobody(key: bytes) -> None:
    """Fails, because a stream without keys proved to own one."""
    raise AssertionError(f"admitted {key.hex()}")


def split_frames(stream: bytes) -> list[bytes]:
    """Returns the frames of a stream; the last one may be cut off."""
    frames, position = [], 0
    while position < len(stream):
        is_long = bool(stream[position] & LONG)
        header = 9 if is_long else 2
        stop = position + header + int.from_bytes(stream[position + 1 : position + header], "big")
        frames.append(stream[position:stop])
        position = stop
    return frames


# CURVE peers with keys of their own. An input is a program of steps of six bytes: what to send (`STEPS`), which part to
# change (`PLACES`), how (`change`), the position of the change (two bytes), and a number for it.

STEPS = ("greeting", "hello", "welcome", "initiate", "ready", "message", "command", "repeat", "error", "noise", "later")
PLACES = ("nothing", "content", "nonce", "box", "vouch", "header")
STEP_BYTES = 6
GREETING_STEP, HELLO_STEP, WELCOME_STEP, INITIATE_STEP, READY_STEP, MESSAGE_STEP, COMMAND_STEP, REPEAT_STEP = (
    bytes([number, 0, 0, 0, 0, 0]) for number in range(8)
)

VALUES = (
    bytes(32),
    b"\1" + bytes(31),  # points of low order
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
    b"\xff" * 32,
    SERVER.public,
    CLIENT.public,
    TRANSIENT.public,
    STRANGER.public,
    b"\xff" * 8,
    bytes(8),
    b"\7MESSAGE",
    b"\4PING\0\1" + bytes(16),
    metadata({b"Socket-Type": b"REQ"}),
)
"""What may be written over a part of a command."""

SIZES = (0, 1, 2, 16, 255, 256, 2000, MAX_BYTES, MAX_BYTES + 1, 20_000)
"""Sizes of messages."""


def change(content: bytes, step: bytes) -> bytes:
    """Returns the content changed as the step says."""
    kind, value = step[2] % 7, step[5]
    position = int.from_bytes(step[3:5], "big") % (len(content) + 1)
    head, tail = content[:position], content[position:]
    if kind == 0:
        return head
    if kind == 1:
        return head + tail[value:]
    if kind == 2:
        return head + bytes(value) + tail
    if kind == 3:
        return head + bytes([value]) + tail[1:]
    if kind == 4:
        return head + bytes([(tail or b"\0")[0] ^ 1 << value % 8]) + tail[1:]
    inserted = VALUES[value % len(VALUES)]
    return head + inserted + (tail[len(inserted) :] if kind == 5 else tail)


class ForgedPeer:
    """A peer of a `Connection` with CURVE, written against RFC 26, that changes what it sends as steps say.

    It owns the keys `CLIENT` as a client, and as a server `SERVER`, or those of a stranger.
    """

    def __init__(self, server: bool, keys: CurveKeys | None = None) -> None:
        self._is_server = server
        self._keys = keys or (SERVER if server else CLIENT)
        self._peer_public = STRANGER.public  # C' or S'
        self._cookie = bytes(96)
        self._count = 0
        self._former = b""
        self.sealed: list[bytes] = []
        """Contents of messages."""
        self.is_forged = False
        """Whether a vouch names another connection or another server."""

    def receive(self, data: bytes) -> None:
        """Takes what the other end sent: a client's C', or the S' and the cookie of a server."""
        for frame in split_frames(data[64:] if data[:1] == b"\xff" else data):
            name, body = frame[3 : 3 + frame[2]] if len(frame) > 2 else b"", frame[10:]
            if name == b"HELLO":
                self._peer_public = frame[8:][74:106]
            elif name == b"WELCOME":
                nonce, box = b"WELCOME-" + body[:16], body[16:]
                content = crypto_box_open_easy_afternm(box, nonce, self._shared(SERVER.public, TRANSIENT.secret))
                self._peer_public, self._cookie = content[:32], content[32:]

    def act(self, step: bytes) -> bytes:
        """Returns the bytes that a step sends; none for `later`: the other end reads first what it got."""
        name = STEPS[step[0] % len(STEPS)]
        if name != "repeat":
            content: bytes = getattr(self, f"_{name}")(step)
            self._former = self._changed("header", step, content)
        return self._former

    def _changed(self, place: str, step: bytes, content: bytes) -> bytes:
        return change(content, step) if PLACES[step[1] % len(PLACES)] == place else content

    @staticmethod
    def _shared(public: bytes, secret: bytes) -> bytes:
        try:
            return crypto_box_beforenm(public, secret)
        except CryptoError:  # the point is of low order
            return bytes(32)

    def _sealed(self, step: bytes, prefix: bytes, nonce: bytes, content: bytes, key: bytes) -> bytes:
        """Returns nonce and box, with the step's change."""
        # Of the same length: PyNaCl refuses another one, and the step would send nothing.
        nonce = self._changed("nonce", step, nonce)[: len(nonce)].ljust(len(nonce), b"\0")
        box = crypto_box_easy_afternm(self._changed("content", step, content), prefix + nonce, key)
        return nonce + self._changed("box", step, box)

    def _nonce(self) -> bytes:
        self._count += 1
        return self._count.to_bytes(8, "big")

    def _greeting(self, step: bytes) -> bytes:
        return rfc_peers.greeting(b"CURVE", as_server=self._is_server)

    def _hello(self, step: bytes) -> bytes:
        key = self._shared(SERVER.public, TRANSIENT.secret)
        box = self._sealed(step, b"CurveZMQHELLO---", self._nonce(), bytes(64), key)
        return command(b"HELLO", b"\1\0" + bytes(72) + TRANSIENT.public + box)

    def _welcome(self, step: bytes) -> bytes:
        content = TRANSIENT.public + bytes(96)
        key = self._shared(self._peer_public, self._keys.secret)
        return command(b"WELCOME", self._sealed(step, b"WELCOME-", b"w" * 16, content, key))

    def _initiate(self, step: bytes) -> bytes:
        vouched = self._changed("vouch", step, TRANSIENT.public + SERVER.public)
        self.is_forged = vouched != TRANSIENT.public + SERVER.public
        key = self._shared(self._peer_public, self._keys.secret)
        vouch = b"v" * 16 + crypto_box_easy_afternm(vouched, b"VOUCH---" + b"v" * 16, key)
        content = self._keys.public + vouch + metadata({b"Socket-Type": b"DEALER", b"Identity": b""})
        return command(b"INITIATE", self._cookie + self._box(step, b"CurveZMQINITIATE", content))

    def _ready(self, step: bytes) -> bytes:
        content = metadata({b"Socket-Type": b"ROUTER", b"Identity": b""})
        return command(b"READY", self._box(step, b"CurveZMQREADY---", content))

    def _box(self, step: bytes, prefix: bytes, content: bytes) -> bytes:
        """Returns nonce and box of C' and S'."""
        return self._sealed(step, prefix, self._nonce(), content, self._shared(self._peer_public, TRANSIENT.secret))

    def _message(self, step: bytes) -> bytes:
        return self._traffic(step, bytes([step[5] % 8 & 1]) + b"m" * SIZES[step[5] % len(SIZES)])

    def _command(self, step: bytes) -> bytes:
        name = (b"PING", b"PONG", b"ERROR", b"READY")[step[5] % 4]
        return self._traffic(step, b"\2" + bytes([len(name)]) + name + b"\0\1context")

    def _traffic(self, step: bytes, content: bytes) -> bytes:
        prefix = b"CurveZMQMESSAGES" if self._is_server else b"CurveZMQMESSAGEC"
        self.sealed.append(self._changed("content", step, content)[1:])
        body = b"\7MESSAGE" + self._box(step, prefix, content)
        return rfc_peers.frame(body)

    def _error(self, step: bytes) -> bytes:
        return rfc_peers.error(self._changed("content", step, b"400")[:255])  # its length is one byte

    def _noise(self, step: bytes) -> bytes:
        return VALUES[step[5] % len(VALUES)]

    def _later(self, step: bytes) -> bytes:
        return b""


class ForgedPeers:
    """Programs of a forged peer: the handshake and messages with changes inside and outside of the boxes.

    The first byte of an input: bit 0, whether the peer is the server; bit 1, whether its keys are wrong, or its key is
    not allowed; bit 2, whether each step is read by itself.
    """

    longest = 1 + 40 * STEP_BYTES
    words = tuple("".join(f"\\x{byte:02x}" for byte in (number, 0, 0, 0, 0, 0)) for number in range(len(STEPS)))

    def seeds(self) -> Iterator[bytes]:
        client = GREETING_STEP + HELLO_STEP + INITIATE_STEP
        server = GREETING_STEP + WELCOME_STEP + READY_STEP
        sizes = [bytes([5, 0, 0, 0, 0, size]) for size in range(len(SIZES))]
        commands = [bytes([6, 0, 0, 0, 0, kind]) for kind in range(4)]
        for bits in range(8):
            handshake = server if bits & 1 else client
            for steps in (sizes, commands, [MESSAGE_STEP, REPEAT_STEP], [b"\7\0\0\0\0\0"] * 3, [COMMAND_STEP] * 9):
                yield bytes([bits]) + handshake + b"".join(steps)
            for place in range(1, len(PLACES)):
                for kind in range(7):
                    variants = [bytes([handshake[k], place, kind, 0, 33, 2 + place]) for k in (0, 6, 12)]
                    whole = [handshake[k : k + STEP_BYTES] for k in (0, 6, 12)]
                    for number in range(3):
                        yield bytes([bits]) + b"".join([*whole[:number], variants[number], *whole[number + 1 :]])

    def try_one(self, data: bytes) -> None:
        check_time(lambda: self._run(data))

    @staticmethod
    def _run(data: bytes) -> None:
        bits = (data or b"\0")[0]
        is_server, is_wrong, is_split = bool(bits & 1), bool(bits & 2), bool(bits & 4)
        peer = ForgedPeer(is_server, STRANGER if is_server and is_wrong else None)
        admitted: list[bytes] = []

        def admit(key: bytes) -> None:
            admitted.append(key)
            if is_wrong:
                raise refusal("this key is not allowed", "400")

        # The end under test is the other one: the forged peer is the server if the tested end is a client.
        mechanism = CurveClient(CLIENT, SERVER.public) if is_server else CurveServer(SERVER, admit)
        zmtp._COLLECTED_BYTES = COLLECTED_BYTES[0]
        connection = Connection(mechanism, b"DEALER" if is_server else b"ROUTER", MAX_BYTES, allocate)
        outcome, pending = Outcome(), b""
        sealed_frames: set[bytes] = set()
        answers = connection.take_output()
        for start in range(1, len(data), STEP_BYTES):
            step = data[start : start + STEP_BYTES].ljust(STEP_BYTES, b"\0")
            peer.receive(answers)
            frame = peer.act(step)
            if STEPS[step[0] % len(STEPS)] in ("message", "command"):
                sealed_frames.add(frame)
            pending += frame
            was_ready = connection.ready
            # Steps of the handshake need the other end's answer, which only a read gives.
            if is_split or not was_ready or not frame:
                length = len(outcome.output)
                read(connection, outcome, pending)
                assert was_ready or not (connection.ready and peer.is_forged), "a vouch for something else"
                answers, pending = outcome.output[length:], b""
            if outcome.error:
                break
        if pending and not outcome.error:
            read(connection, outcome, pending)
        assert not (connection.ready and is_wrong), "a peer with wrong keys"
        assert all(sign_cleared(key) == CLIENT.public for key in admitted), "a key that the peer does not own"
        assert connection.peer_key in (b"", *admitted)
        assert sum(parts for _, parts, _ in outcome.messages) <= len(sealed_frames), "a message twice"
        assert all(not payload or payload in peer.sealed for payload, _, _ in outcome.messages)
        assert SERVER.secret not in outcome.output and CLIENT.secret not in outcome.output  # noqa: PT018

    def mutated(self, data: bytes, seed: int) -> bytes | None:
        """The program with a step left out, twice, elsewhere, or with another change; None: change bytes."""
        choose = random.Random(seed)
        steps = [data[k : k + STEP_BYTES] for k in range(1, len(data), STEP_BYTES)]
        if choose.random() < 0.3 or not steps:
            return None
        first, second = choose.randrange(len(steps)), choose.randrange(len(steps))
        kind = choose.randrange(5)
        if kind == 0 and len(steps) > 1:
            del steps[first]
        elif kind == 1:
            steps.insert(first, steps[second])
        elif kind == 2:
            steps[first], steps[second] = steps[second], steps[first]
        else:
            numbers = [choose.randrange(1, len(PLACES)), choose.randrange(7), 0, *choose.choices(range(256), k=2)]
            steps[first] = steps[first][:1] + bytes(numbers)
        return data[:1] + b"".join(steps)


def sign_cleared(key: bytes) -> bytes:
    """Returns the key without its highest bit, which X25519 ignores (RFC 7748, 5)."""
    return key[:-1] + bytes([key[-1] & 0x7F])
