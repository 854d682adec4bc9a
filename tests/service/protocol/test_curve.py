"""CURVE against RFC 26: every byte of a handshake, and every failure that the specification names."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
import struct
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nacl.bindings import crypto_box_open, randombytes
from zmq.utils import z85

from dyn_service.service.protocol import curve
from dyn_service.service.protocol.curve import CurveClient, CurveKeys, CurveServer
from dyn_service.service.protocol.keys import Keys, z85_decode, z85_encode
from dyn_service.service.protocol.zmtp import Connection, Null, PeerRefusedError, ProtocolError, State, refusal
from tests.service.protocol import rfc_peers as rfc
from tests.service.protocol.rfc_peers import command, read_frames

LIMIT = 1 << 20
GREETING_SIZE = rfc.GREETING_SIZE
LOW_ORDER = (
    bytes(32),
    b"\1" + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
)
"""Points of low order: libsodium derives no key from them."""


class Attack:
    """A server of the package, and an independent client that deviates where a test tells it to."""

    def __init__(self, admit: Callable[[bytes], None] = lambda public: None, keys: rfc.KeyPair | None = None) -> None:
        self.server_keys = rfc.new_keys() if keys is None else keys
        self.server = Connection(CurveServer(CurveKeys(*self.server_keys), admit), b"ROUTER", LIMIT)
        self.client = rfc.CurveClient(rfc.new_keys(), server_public=self.server_keys.public)
        assert self.server.take_output() == rfc.greeting(b"CURVE", as_server=True)
        self.server.feed(self.client.greeting())
        assert self.server.next() is None

    def send(self, data: bytes) -> bytes:
        """Returns what the server answers."""
        self.server.feed(data)
        while self.server.next() is not None:
            pass
        return self.server.take_output()

    def receive_cookie(self) -> bytes:
        """Sends HELLO; returns the cookie."""
        (welcome,) = read_frames(self.send(self.client.hello()))
        assert welcome.flags == rfc.COMMAND
        return self.client.read_welcome(welcome.body)[1]

    def become_ready(self) -> None:
        (ready,) = read_frames(self.send(self.client.initiate(self.receive_cookie())))
        self.client.read_ready(ready.body)
        assert self.server.ready

    def fails(self, data: bytes, cause: str) -> ProtocolError:
        """Checks that the data ends the connection without an answer; returns the error."""
        with pytest.raises(ProtocolError, match=cause) as error:
            self.send(data)
        assert (self.server.state, self.server.ready, self.server.take_output()) == (State.CLOSED, False, b"")
        return error.value


class Impostor:
    """A client of the package, and an independent server that deviates where a test tells it to."""

    def __init__(self) -> None:
        self.server = rfc.CurveServer(rfc.new_keys())
        self.client_keys = rfc.new_keys()
        self.client = Connection(CurveClient(CurveKeys(*self.client_keys), self.server.keys.public), b"DEALER", LIMIT)
        assert self.client.take_output() == rfc.greeting(b"CURVE")
        self.client.feed(self.server.greeting())
        assert self.client.next() is None
        (self.hello,) = read_frames(self.client.take_output())
        self.server.read_hello(self.hello.body)

    def send(self, data: bytes) -> bytes:
        """Returns what the client answers."""
        self.client.feed(data)
        while self.client.next() is not None:
            pass
        return self.client.take_output()

    def welcome(self) -> rfc.Frame:
        """Sends WELCOME; returns the INITIATE."""
        (initiate,) = read_frames(self.send(self.server.welcome()))
        self.server.read_initiate(initiate.body)
        return initiate

    def become_ready(self) -> None:
        self.welcome()
        assert self.send(self.server.ready()) == b""
        assert self.client.ready

    def fails(self, data: bytes, cause: str) -> None:
        with pytest.raises(ProtocolError, match=cause) as error:
            self.send(data)
        assert error.value.farewell == b""  # RFC 26: a client sends no ERROR
        assert (self.client.state, self.client.ready, self.client.take_output()) == (State.CLOSED, False, b"")


def flip(data: bytes, position: int) -> bytes:
    """The data with one bit changed."""
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


# every byte


@pytest.fixture
def fixed_random(monkeypatch: pytest.MonkeyPatch) -> Callable[[], rfc.KeyPair]:
    """Makes the package's transient keys and nonces the following ones of two sequences; returns that of the keys."""
    numbers = (hashlib.sha256(b"nonce %d" % k).digest() for k in itertools.count())
    seeds = (hashlib.sha256(b"key %d" % k).digest() for k in itertools.count())

    def keys() -> rfc.KeyPair:
        return rfc.new_keys(next(seeds))

    monkeypatch.setattr(curve, "randombytes", lambda size: next(numbers)[:size])
    monkeypatch.setattr(curve, "crypto_box_keypair", lambda: tuple(keys()))
    return keys


def test_each_byte_of_a_handshake_is_that_of_an_independent_implementation(
    fixed_random: Callable[[], rfc.KeyPair],
) -> None:
    """Both roles of the package, and both of `rfc_peers` with the same keys and nonces, send the same bytes.

    The digest is that of all bytes of a run of `rfc_peers`, which libzmq accepts (`test_libzmq.py`).
    """
    nonces = [hashlib.sha256(b"nonce %d" % k).digest() for k in range(4)]
    client_keys, server_keys = (rfc.new_keys(hashlib.sha256(name).digest()) for name in (b"client", b"server"))
    short_keys = [rfc.new_keys(hashlib.sha256(b"key %d" % k).digest()) for k in range(2)]
    client = Connection(CurveClient(CurveKeys(*client_keys), server_keys.public), b"DEALER", LIMIT)
    server = Connection(CurveServer(CurveKeys(*server_keys), lambda public: None), b"ROUTER", LIMIT)
    rfc_client = rfc.CurveClient(
        client_keys, short_keys[0], server_public=server_keys.public, vouch_nonce=nonces[3][:16]
    )
    rfc_server = rfc.CurveServer(
        server_keys,
        short_keys[1],
        cookie_key=nonces[0],
        cookie_nonce=nonces[1][:16],
        welcome_nonce=nonces[2][:16],
    )
    transcript = []

    def step(sender: Connection, receiver: Connection, expected: bytes) -> bytes:
        output = sender.take_output()
        assert output == expected
        transcript.append(output)
        receiver.feed(output)
        while receiver.next() is not None:
            pass
        return output

    step(client, server, rfc_client.greeting())
    step(server, client, rfc_server.greeting())
    (hello,) = read_frames(step(client, server, rfc_client.hello()))
    rfc_server.read_hello(hello.body)
    (welcome,) = read_frames(step(server, client, rfc_server.welcome()))
    _, cookie = rfc_client.read_welcome(welcome.body)
    (initiate,) = read_frames(step(client, server, rfc_client.initiate(cookie)))
    assert rfc_server.read_initiate(initiate.body) == {b"socket-type": b"DEALER", b"identity": b""}
    (ready,) = read_frames(step(server, client, rfc_server.ready()))
    assert rfc_client.read_ready(ready.body) == {b"socket-type": b"ROUTER", b"identity": b""}
    assert client.ready
    assert server.ready
    for payload, is_req in ((b"", False), (b"request", False), (b"request", True), (bytes(1000), True)):
        for sender, peer in ((client, rfc_client), (server, rfc_server)):
            output = b"".join(sender.encode(payload, is_req=is_req))
            parts = [(b"", rfc.MORE), (payload, 0)] if is_req else [(payload, 0)]
            assert output == b"".join(peer.message(*part) for part in parts)
            transcript.append(output)
    assert [len(frame.body) for frame in (hello, welcome, initiate, ready)] == [200, 168, 257 + 35, 30 + 35]
    assert hashlib.sha256(b"".join(transcript)).hexdigest() == TRANSCRIPT


TRANSCRIPT = "e83c619205d89fa77ce4cf33251091d0f668dd464c2ec49a3e02fbbd67b07fa2"


@pytest.mark.parametrize("size", [0, 1, 206, 222, 223, 1000])
def test_a_message_is_33_bytes_longer_than_its_content(size: int) -> None:
    attack = Attack()
    attack.become_ready()
    (sealed,) = read_frames(b"".join(attack.server.encode(bytes(size))))
    assert sealed.flags == 0
    assert len(sealed.body) == 33 + size
    assert sealed.body[:8] == b"\x07MESSAGE"
    assert struct.unpack(">Q", sealed.body[8:16]) == (2,)  # READY had the nonce 1
    assert attack.client.read_message(sealed.body) == (0, bytes(size))


def test_no_nonce_and_no_transient_key_is_used_twice() -> None:
    nonces, keys = list[bytes](), list[bytes]()
    for _ in range(20):
        impostor, attack = Impostor(), Attack()
        impostor.become_ready()
        keys.append(impostor.server.peer_short)
        (welcome,) = read_frames(attack.send(attack.client.hello()))
        transient, cookie = attack.client.read_welcome(welcome.body)
        keys.append(transient)
        nonces += [welcome.body[8:24], cookie[:16]]
        counters = [struct.unpack(">Q", impostor.hello.body[112:120])[0]]
        for _ in range(20):
            (sealed,) = read_frames(impostor.client.encode(b"x")[0])  # type: ignore[arg-type]
            counters.append(struct.unpack(">Q", sealed.body[8:16])[0])
        assert counters == [1, *range(3, 23)]  # INITIATE had the nonce 2
    assert len(set(keys)) == len(keys)
    assert len(set(nonces)) == len(nonces)


def test_the_vouch_has_a_new_nonce_in_each_connection() -> None:
    client_keys, server_keys, vouches = rfc.new_keys(), rfc.new_keys(), set[bytes]()
    for _ in range(20):
        client = Connection(CurveClient(CurveKeys(*client_keys), server_keys.public), b"DEALER", LIMIT)
        server = rfc.CurveServer(server_keys)
        client.feed(server.greeting())
        assert client.next() is None
        (hello,) = read_frames(client.take_output()[GREETING_SIZE:])
        server.read_hello(hello.body)
        client.feed(server.welcome())
        client.next()
        (initiate,) = read_frames(client.take_output())
        data = initiate.body[9:]
        box = crypto_box_open(data[104:], b"CurveZMQINITIATE" + data[96:104], server.peer_short, server.short.secret)
        assert box[:32] == client_keys.public
        vouches.add(box[32:48])
    assert len(vouches) == 20


# HELLO


def test_a_hello_of_another_length_is_refused() -> None:
    whole = Attack().client.hello()[2:]
    for size in (*range(6, 200, 7), 199, 201, 250):
        attack = Attack()
        attack.fails(rfc.frame((whole + bytes(60))[:size], rfc.COMMAND), f"a HELLO of {size - 6} bytes, expected 194")


@pytest.mark.parametrize("version", [b"\0\0", b"\1\1", b"\2\0", b"\0\1", b"\xff\xff"])
def test_a_hello_of_another_version_is_refused(version: bytes) -> None:
    attack = Attack()
    attack.fails(attack.client.hello(version=version), f"CURVE {version[0]}.{version[1]}, this end speaks 1.0")


@pytest.mark.parametrize("position", [0, 35, 71])
def test_a_hello_whose_padding_is_not_zero_is_refused(position: int) -> None:
    """RFC 26: the padding is all zero, and the server validates all fields."""
    attack = Attack()
    attack.fails(attack.client.hello(padding=flip(bytes(72), position)), "padding or signature is not zero")


def test_a_hello_whose_signature_does_not_contain_zeros_is_refused() -> None:
    attack = Attack()
    attack.fails(attack.client.hello(signed=flip(bytes(64), 63)), "padding or signature is not zero")


@pytest.mark.parametrize("position", [*range(80, 120, 5), 120, 136, 199])
def test_a_hello_with_a_changed_bit_is_refused(position: int) -> None:
    """In the transient key, the nonce or the box; 6 to 79 are version and padding."""
    attack = Attack()
    hello = attack.client.hello()
    attack.fails(flip(hello, 2 + position), "a HELLO that cannot be decrypted")


def test_a_hello_for_another_server_is_refused() -> None:
    """So a client that has another server's key gets no WELCOME."""
    attack = Attack()
    attack.client.server_public = rfc.new_keys().public
    attack.fails(attack.client.hello(), "a HELLO that cannot be decrypted")
    client = Connection(CurveClient(CurveKeys(*rfc.new_keys()), rfc.new_keys().public), b"DEALER", LIMIT)
    attack = Attack()
    client.feed(rfc.greeting(b"CURVE", as_server=True))
    client.next()
    attack.fails(client.take_output()[GREETING_SIZE:], "a HELLO that cannot be decrypted")


@pytest.mark.parametrize("public", LOW_ORDER)
def test_keys_of_low_order_are_refused(public: bytes) -> None:
    attack = Attack()
    hello = attack.client.hello()
    attack.fails(hello[:82] + public + hello[114:], "an invalid public key")
    attack = Attack()
    attack.client.sent_public = public
    attack.fails(attack.client.initiate(attack.receive_cookie()), "an invalid public key")
    with pytest.raises(ProtocolError, match="an invalid public key"):
        CurveClient(CurveKeys(*rfc.new_keys()), public)
    impostor = Impostor()
    impostor.server.short = rfc.KeyPair(public, impostor.server.short.secret)
    impostor.fails(impostor.server.welcome(), "an invalid public key")


def test_a_second_hello_is_refused() -> None:
    """So no cookie is older than the connection's only HELLO."""
    attack = Attack()
    attack.receive_cookie()
    attack.fails(attack.client.hello(), "the command b'HELLO', expected INITIATE")


def test_before_initiate_a_server_keeps_a_cookie_key_and_a_counter() -> None:
    mechanism = CurveServer(CurveKeys(*rfc.new_keys()), lambda public: None)
    fields = dict(vars(mechanism))
    server = Connection(mechanism, b"ROUTER", LIMIT)
    client = rfc.CurveClient(rfc.new_keys(), server_public=mechanism._keys.public)
    server.feed(client.greeting() + client.hello())
    while server.next() is not None:
        pass
    changed_fields = {name: value for name, value in vars(mechanism).items() if value != fields[name]}
    assert changed_fields.keys() == {"_cookie_key", "_received_nonce"}
    assert len(changed_fields["_cookie_key"]) == 32
    assert client.short.public not in repr(vars(server)).encode("latin-1")


def test_the_cookie_key_and_the_cookie_are_good_for_one_initiate() -> None:
    attack = Attack()
    attack.become_ready()
    assert vars(attack.server._mechanism)["_cookie_key"] == b""


# INITIATE


def test_a_short_initiate_is_refused() -> None:
    attack = Attack()
    whole = attack.client.initiate(attack.receive_cookie())[9:]  # behind the header of a long frame
    for size in (9, 10, 100, 200, 256):
        attack = Attack()
        attack.receive_cookie()
        attack.fails(rfc.frame(whole[:size], rfc.COMMAND), f"an INITIATE of {size - 9} bytes, expected at least 248")


@pytest.mark.parametrize("position", [*range(9, 105, 12), 105, 112, 113, 128, 129, 200, 256, 291])
def test_an_initiate_with_a_changed_bit_is_refused(position: int) -> None:
    """In the cookie's nonce, the cookie, the nonce, or the box."""
    attack = Attack()
    initiate = attack.client.initiate(attack.receive_cookie())
    cause = "a cookie of another connection" if position < 105 else "an INITIATE that cannot be decrypted"
    attack.fails(flip(initiate, 9 + position), cause)


@pytest.mark.parametrize("size", [1, 16, 34])
def test_a_cut_or_longer_initiate_is_refused(size: int) -> None:
    attack = Attack()
    initiate = attack.client.initiate(attack.receive_cookie())
    attack.fails(rfc.frame(initiate[9:-size], rfc.COMMAND), "an INITIATE that cannot be decrypted")
    attack = Attack()
    attack.fails(
        attack.client.initiate(attack.receive_cookie(), tail=bytes(size)), "an INITIATE that cannot be decrypted"
    )


def test_a_stolen_cookie_is_refused() -> None:
    """Even by the same server with the same keys: each connection has a cookie key of its own."""
    keys = rfc.new_keys()
    victim, thief = Attack(keys=keys), Attack(keys=keys)
    cookie = victim.receive_cookie()
    thief.receive_cookie()
    thief.fails(thief.client.initiate(cookie), "a cookie of another connection")


def test_an_initiate_that_is_replayed_on_another_connection_is_refused() -> None:
    keys = rfc.new_keys()
    victim = Attack(keys=keys)
    hello = victim.client.hello()
    (welcome,) = read_frames(victim.send(hello))
    initiate = victim.client.initiate(victim.client.read_welcome(welcome.body)[1])
    victim.send(initiate)
    assert victim.server.ready
    replay = Attack(keys=keys)
    replay.send(hello)  # a recorded HELLO gets a WELCOME, which only the owner of the transient key can read
    replay.fails(initiate, "a cookie of another connection")


@pytest.mark.parametrize("nonce", [0, 6, 7])
def test_an_initiate_without_a_larger_nonce_than_hello_is_refused(nonce: int) -> None:
    """RFC 26: the nonces of HELLO, INITIATE and MESSAGE increase."""
    attack = Attack()
    (welcome,) = read_frames(attack.send(attack.client.hello(nonce=7)))
    _, cookie = attack.client.read_welcome(welcome.body)
    attack.fails(attack.client.initiate(cookie, nonce=nonce), "the command is replayed")
    attack = Attack()
    (welcome,) = read_frames(attack.send(attack.client.hello(nonce=7)))
    _, cookie = attack.client.read_welcome(welcome.body)
    attack.send(attack.client.initiate(cookie, nonce=8))
    assert attack.server.ready


def test_a_vouch_for_another_server_is_refused() -> None:
    """Else a server could use the vouch that a client gave it to be that client elsewhere."""
    attack = Attack()
    attack.client.vouched_server = rfc.new_keys().public
    attack.fails(attack.client.initiate(attack.receive_cookie()), "a vouch for another connection or another server")


def test_a_vouch_for_another_transient_key_is_refused() -> None:
    attack = Attack()
    attack.client.vouched_transient = rfc.new_keys().public
    attack.fails(attack.client.initiate(attack.receive_cookie()), "a vouch for another connection or another server")


def test_a_vouch_with_another_secret_key_is_refused() -> None:
    """A client that knows another client's public key is not that client."""
    admitted: list[bytes] = []
    attack = Attack(admitted.append)
    attack.client.sent_public = rfc.new_keys().public
    attack.fails(attack.client.initiate(attack.receive_cookie()), "a vouch that cannot be decrypted")
    attack = Attack(admitted.append)
    attack.client.vouch_secret = rfc.new_keys().secret
    attack.fails(attack.client.initiate(attack.receive_cookie()), "a vouch that cannot be decrypted")
    assert admitted == []
    assert attack.server.peer_key == b""


def test_a_key_that_is_not_in_the_list_gets_an_error_400() -> None:
    def admit(public: bytes) -> None:
        raise refusal(f"a key that is not allowed, {z85_encode(public)}", "400")

    attack = Attack(admit)
    error = attack.fails(attack.client.initiate(attack.receive_cookie()), "not allowed")
    assert error.farewell == command(b"ERROR", b"\x03400")
    impostor = Impostor()
    impostor.welcome()
    with pytest.raises(PeerRefusedError) as refusal_info:
        impostor.send(error.farewell)
    assert refusal_info.value.reason == b"400"


@pytest.mark.parametrize("fault", [ProtocolError("the list cannot be read"), OSError(5, "Input/output error")])
def test_a_list_that_cannot_be_read_admits_nobody(fault: Exception) -> None:
    def admit(public: bytes) -> None:
        raise fault

    attack = Attack(admit)
    with pytest.raises(type(fault)) as error:
        attack.send(attack.client.initiate(attack.receive_cookie()))
    assert getattr(error.value, "farewell", b"") == b""
    assert not attack.server.ready
    assert attack.server.take_output() == b""
    attack.fails(attack.client.initiate(bytes(96)), "a cookie of another connection|the command b'INITIATE'|a message")


def test_a_key_that_is_revoked_between_welcome_and_initiate_is_refused() -> None:
    admitted_keys: set[bytes] = set()

    def admit(public: bytes) -> None:
        if public not in admitted_keys:
            raise refusal("not allowed", "400")

    attack = Attack(admit)
    admitted_keys.add(attack.client.keys.public)
    cookie = attack.receive_cookie()
    admitted_keys.clear()
    assert attack.fails(attack.client.initiate(cookie), "not allowed").farewell == command(b"ERROR", b"\x03400")


def test_a_client_is_admitted_once() -> None:
    admitted: list[bytes] = []
    attack = Attack(admitted.append)
    attack.become_ready()
    attack.send(attack.client.message(b"one"))
    assert admitted == [attack.client.keys.public]


# WELCOME and READY


def test_a_welcome_of_another_length_is_refused() -> None:
    for size in (*range(8, 168, 13), 167, 169):
        impostor = Impostor()
        whole = impostor.server.welcome()[2:]
        impostor.fails(rfc.frame((whole + b"x")[:size], rfc.COMMAND), f"a WELCOME of {size - 8} bytes, expected 160")


@pytest.mark.parametrize("position", [8, 23, 24, 40, 72, 167])
def test_a_welcome_with_a_changed_bit_is_refused(position: int) -> None:
    impostor = Impostor()
    impostor.fails(flip(impostor.server.welcome(), 2 + position), "a WELCOME that cannot be decrypted")


def test_a_welcome_of_another_server_is_refused() -> None:
    impostor = Impostor()
    impostor.server.keys = rfc.new_keys()
    impostor.fails(impostor.server.welcome(), "a WELCOME that cannot be decrypted")


def test_a_welcome_of_another_connection_is_refused() -> None:
    impostor, other = Impostor(), Impostor()
    impostor.server.peer_short = other.server.peer_short
    impostor.fails(impostor.server.welcome(), "a WELCOME that cannot be decrypted")


@pytest.mark.parametrize("position", [6, 13, 14, 30, 40])
def test_a_ready_with_a_changed_bit_is_refused(position: int) -> None:
    impostor = Impostor()
    impostor.welcome()
    impostor.fails(flip(impostor.server.ready(), 2 + position), "a READY that cannot be decrypted")


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 23, 24, 30])
def test_a_cut_ready_is_refused(size: int) -> None:
    impostor = Impostor()
    impostor.welcome()
    content = impostor.server.ready()[8:][:size]
    impostor.fails(command(b"READY", content), "a READY that cannot be decrypted")


def test_a_ready_of_mechanism_null_is_refused() -> None:
    impostor = Impostor()
    impostor.welcome()
    impostor.fails(rfc.null_ready(b"ROUTER"), "a READY that cannot be decrypted")


def test_an_error_in_place_of_welcome_or_ready_is_a_refusal() -> None:
    for impostor in (Impostor(), Impostor()):
        if impostor.client.state is State.WELCOME:
            impostor.welcome()
        with pytest.raises(PeerRefusedError):
            impostor.send(rfc.error(b"400"))


# MESSAGE


def both_ready() -> list[tuple[Connection, rfc.CurveEnd, Callable[[bytes], bytes]]]:
    attack, impostor = Attack(), Impostor()
    attack.become_ready()
    impostor.become_ready()
    return [(attack.server, attack.client, attack.send), (impostor.client, impostor.server, impostor.send)]


@pytest.mark.parametrize("end", [0, 1])
def test_a_replayed_nonce_is_refused(end: int) -> None:
    """The last message again, an older one, and a new one with an old nonce."""
    for kind in ("same", "older", "reused", "zero"):
        connection, peer, send = both_ready()[end]
        first, second = peer.message(b"1"), peer.message(b"2")
        send(first + second)
        replay = {
            "same": second,
            "older": first,
            "reused": peer.message(b"3", nonce=peer.nonce),
            "zero": peer.message(b"4", nonce=0),
        }[kind]
        with pytest.raises(ProtocolError, match="the command is replayed"):
            send(replay)
        assert connection.state is State.CLOSED


@pytest.mark.parametrize("end", [0, 1])
def test_a_long_message_is_opened_where_it_arrived(end: int) -> None:
    """So that none of its megabytes is copied; and a wrong one leaves what arrived as it was."""
    for content in (bytes(50_000), b"y" * 50_000):
        connection, peer, _ = both_ready()[end]
        frame = bytearray(peer.message(content))
        frame[-1] ^= content[0]
        connection.feed(bytes(frame[:100]))
        assert connection.next() is None
        buffer = connection.buffer
        assert buffer is not None
        buffer[:] = frame[100:]
        connection.wrote(len(buffer))
        if content[0]:
            with pytest.raises(ProtocolError, match="cannot be decrypted"):
                connection.next()
            assert buffer == frame[100:]
            continue
        message = connection.next()
        assert message is not None
        payload, parts, _ = message
        assert (payload, parts) == (content, 1)
        assert isinstance(payload, memoryview)
        assert payload.obj is buffer.obj


@pytest.mark.parametrize("end", [0, 1])
def test_nonces_may_leave_gaps(end: int) -> None:
    connection, peer, _ = both_ready()[end]
    for nonce in (10, 11, 1 << 40, (1 << 64) - 1):
        connection.feed(peer.message(b"x", nonce=nonce))
        assert connection.next() == (b"x", 1, False)


@pytest.mark.parametrize("end", [0, 1])
def test_a_message_with_a_changed_bit_is_refused(end: int) -> None:
    for position in (8, 15, 16, 31, 32, 33, 37):
        connection, peer, send = both_ready()[end]
        with pytest.raises(ProtocolError, match="a MESSAGE that cannot be decrypted"):
            send(flip(peer.message(b"hello"), 2 + position))
        assert connection.state is State.CLOSED


@pytest.mark.parametrize("end", [0, 1])
def test_a_message_of_another_connection_or_direction_is_refused(end: int) -> None:
    (_, stranger, _), (_, peer, send) = both_ready()[end], both_ready()[end]
    with pytest.raises(ProtocolError, match="a MESSAGE that cannot be decrypted"):
        send(stranger.message(b"x"))
    connection, peer, send = both_ready()[end]
    peer.nonce = 100
    reflected = b"".join(connection.encode(b"x"))
    with pytest.raises(ProtocolError, match="a MESSAGE that cannot be decrypted"):
        send(reflected)


@pytest.mark.parametrize("end", [0, 1])
def test_frames_that_are_no_message_of_curve_are_refused(end: int) -> None:
    _, peer, _ = both_ready()[end]
    sealed = peer.message(b"x")[2:]
    for body in (b"", b"x", b"\x07MESSAGE", sealed[:32], sealed[:16], b"\x07MESSAGF" + sealed[8:], b"\x04PING\0\0"):
        for flags in (0, rfc.COMMAND):
            connection, _, send = both_ready()[end]
            with pytest.raises(ProtocolError, match="a frame that is not a MESSAGE of CURVE"):
                send(rfc.frame(body, flags))
            assert connection.state is State.CLOSED


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("flags", [3, 4, 0x10, 0x80, 0xFF])
def test_reserved_flags_in_a_box_are_refused(end: int, flags: int) -> None:
    """RFC 26: the bits 7 to 1 are zero; libzmq uses bit 1 for commands."""
    _, peer, send = both_ready()[end]
    with pytest.raises(ProtocolError, match=f"a MESSAGE with flags {flags:#04x}"):
        send(peer.message(b"x", flags))


@pytest.mark.parametrize("end", [0, 1])
def test_a_message_may_stand_in_a_command_frame(end: int) -> None:
    """RFC 26 calls MESSAGE a command; libzmq sends it as a message."""
    connection, peer, _ = both_ready()[end]
    connection.feed(bytes([rfc.COMMAND]) + peer.message(b"y")[1:])
    assert connection.next() == (b"y", 1, False)


# secrets


def representations(secret: bytes) -> list[str]:
    """Texts in which a secret could be shown."""
    texts = [secret.hex(), repr(secret)[2:-1], base64.b64encode(secret).decode().rstrip("=")]
    return texts + ([z85.encode(secret).decode()] if len(secret) % 4 == 0 else [])


def texts_of(thing: object) -> list[str]:
    texts = [repr(thing), str(thing), f"{thing}", ascii(thing)]
    if isinstance(thing, BaseException):
        texts += [repr(thing.args), "".join(traceback.format_exception(thing))]
        texts += [repr(getattr(thing, "farewell", b"")), repr(getattr(thing, "reason", b""))]
    return texts


def secrets_of(mechanism: Any) -> set[bytes]:
    """The secret values of a mechanism now: keys that are not public."""
    values = {name: value for name, value in vars(mechanism).items() if isinstance(value, bytes) and len(value) == 32}
    return {value for name, value in values.items() if name not in ("_public", "_server", "peer_key")} | {
        mechanism._keys.secret
    }


def failures(attack: Attack) -> list[bytes]:
    """Streams that end a connection at some point of the handshake."""
    return [
        b"GET / HTTP",
        rfc.error(b"400"),
        command(b"HELLO", bytes(194)),
        command(b"INITIATE", bytes(300)),
        command(b"READY", bytes(100)),
        command(b"WELCOME", bytes(160)),
        rfc.frame(b"\x07MESSAGE" + bytes(100)),
        rfc.frame(bytes(100)),
        b"\xff\xff",
    ]


def test_no_secret_is_in_a_text_of_an_object_or_an_error() -> None:
    things: list[object] = []
    secrets: set[bytes] = set()
    for k in range(len(failures(Attack()))):
        for depth in range(3):
            attack, impostor = Attack(), Impostor()
            if depth == 1:
                attack.receive_cookie()
                impostor.welcome()
            elif depth == 2:
                attack.become_ready()
                impostor.become_ready()
            for connection in (attack.server, impostor.client):
                mechanism: Any = connection._mechanism
                secrets |= secrets_of(mechanism)
                things += [connection, mechanism, mechanism._keys, connection.next, type(mechanism)]
                connection.feed(failures(attack)[k])
                try:
                    while connection.next() is not None:
                        pass
                except ProtocolError as error:
                    things.append(error)
            with pytest.raises(ProtocolError) as invalid_key:
                CurveClient(mechanism._keys, bytes(32))
            things.append(invalid_key.value)
    assert len(secrets) > 50
    assert sum(isinstance(thing, ProtocolError) for thing in things) > 40
    texts = "\n".join(text for thing in things for text in texts_of(thing))
    assert [secret for secret in secrets for text in representations(secret) if text in texts] == []


def test_a_secret_would_be_recognized_in_a_text() -> None:
    """Else the test before shows nothing."""
    secret = rfc.new_keys().secret
    for text in (secret.hex(), repr(secret), z85_encode(secret), repr(CurveKeys(bytes(32), secret).__dict__)):
        assert any(form in text for form in representations(secret))


def test_errors_about_invalid_keys_do_not_show_them() -> None:
    keys = rfc.new_keys()
    secret = z85_encode(keys.secret)
    for spoilt in (secret[:-1], secret + "0", secret[:-1] + "~", secret[:-1] + "é", secret[:-1] + "\ud800", "#" * 40):
        try:
            client = CurveClient(Keys("a", z85_encode(keys.public), spoilt).pair, rfc.new_keys().public)
            impostor = rfc.CurveServer(rfc.new_keys())
            client.answer(b"WELCOME", impostor.welcome_nonce + bytes(144), b"")
        except (ValueError, ProtocolError) as error:
            texts = "\n".join(texts_of(error))
            assert secret[:20] not in texts
            assert not [text for text in representations(keys.secret) if text in texts]


# Z85


def test_keys_are_those_of_pyzmq() -> None:
    for _ in range(200):
        key = randombytes(32)
        assert z85_encode(key) == z85.encode(key).decode()
        assert z85_decode(z85_encode(key)) == key


@pytest.mark.parametrize("character", [*";_`|~ \"',\\\0\x7f", "é"])
def test_characters_that_z85_does_not_have_are_refused(character: str) -> None:
    text = z85_encode(bytes(range(32)))
    for position in (0, 20, 39):
        with pytest.raises(ValueError, match=r"."):
            z85_decode(text[:position] + character + text[position + 1 :])


def test_a_null_connection_has_no_peer_key() -> None:
    server = Connection(Null(), b"ROUTER", LIMIT)
    server.feed(rfc.greeting() + rfc.null_ready())
    while server.next() is not None:
        pass
    assert server.ready
    assert server.peer_key == b""


def test_the_names_of_nonces_are_those_of_rfc_26() -> None:
    """Each has 16 characters before a counter, or 8 before random bytes; none belongs to two commands or directions."""
    text = Path(curve.__file__).read_text()
    prefixes = set(re.findall(r'b"(CurveZMQ[A-Z-]+|[A-Z]+-+)"', text))
    assert prefixes == {
        *("CurveZMQHELLO---", "CurveZMQINITIATE", "CurveZMQREADY---", "CurveZMQMESSAGEC", "CurveZMQMESSAGES"),
        *("WELCOME-", "COOKIE--", "VOUCH---"),
    }
