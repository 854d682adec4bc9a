"""CURVE, the encrypted mechanism of ZMTP 3: authentication by public keys, perfect forward secrecy.

    client                                                          server
    HELLO      C', Box[zeros](C'->S)                           ->
               <-  Box[S', cookie](S->C')                           WELCOME
    INITIATE   cookie, Box[C, vouch, properties](C'->S')       ->        vouch = Box[C', S](C->S')
               <-  Box[properties](S'->C')                          READY
    MESSAGE    Box[flags, content](C'->S')                     <->  Box[..](S'->C')

C, S are permanent keys, C', S' those of the connection; Box is libsodium's `crypto_box`, by PyNaCl. The cookie is the
server's whole state between HELLO and INITIATE, sealed with a key that only this connection has: what a stranger can
make a server store is 32 bytes, and a cookie of another connection, or a recorded INITIATE, is refused.

Nonces: a prefix that names command and direction, and either a counter of this connection (8 bytes, increasing, which
the receiver checks) or 16 random bytes. Source: https://rfc.zeromq.org/spec/26.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

# private, because the functions of `nacl.bindings` copy each message several times: 60 MiB took six times as long
from nacl._sodium import ffi, lib  # type: ignore[import-not-found]
from nacl.bindings import (
    crypto_box_beforenm,
    crypto_box_easy_afternm,
    crypto_box_keypair,
    crypto_box_open_easy_afternm,
    crypto_secretbox,
    crypto_secretbox_open,
    randombytes,
    sodium_memcmp,
)
from nacl.exceptions import CryptoError

from dyn_service.service.protocol.zmtp import (
    COMMAND,
    GREETING,
    MORE,
    Mechanism,
    ProtocolError,
    State,
    command,
    frame_header,
)

_VERSION = b"\1\0"
_KEY_BYTES, _NONCE_BYTES, _MAC_BYTES = 32, 24, 16
_COOKIE_BYTES = 96  # 16 of its nonce, 80 of Box[C', s']
_SEALED_FLAGS = {0: b"\0", MORE: b"\1", COMMAND: b"\2"}  # by flags of a frame: those inside a box, which differ
_FRAME_FLAGS = {sealed[0]: flags for flags, sealed in _SEALED_FLAGS.items()}
_MESSAGE_BOX = 16  # where the box of a MESSAGE begins, behind its name and nonce

_HELLO_BYTES = 194
_WELCOME_BYTES = 160
_MIN_INITIATE_BYTES = _COOKIE_BYTES + 8 + 16 + 128


@dataclass(frozen=True)
class CurveKeys:
    """A key pair, 32 bytes each."""

    public: bytes
    secret: bytes = field(repr=False)


def shared_key(public: bytes, secret: bytes) -> bytes:
    """Returns the key of boxes between the owner of `secret` and the owner of `public`; `ProtocolError` if invalid."""
    try:
        return crypto_box_beforenm(public, secret)
    except CryptoError:  # a point of low order
        raise ProtocolError("an invalid public key") from None


def _open(box: bytes, nonce: bytes, key: bytes, name: str) -> bytes:
    try:
        return crypto_box_open_easy_afternm(box, nonce, key)
    except CryptoError:
        raise ProtocolError(f"{name} that cannot be decrypted: wrong keys, or changed on its way") from None


def _seal_in_place(frame: bytearray, start: int, nonce: bytes, key: bytes) -> None:
    """Encrypts the content of a box: from `start`, 16 bytes for its authenticator, and the content to the end."""
    _check_box(frame, start, nonce, key)
    box = ffi.from_buffer("unsigned char[]", frame) + start
    lib.crypto_box_easy_afternm(box, box + _MAC_BYTES, len(frame) - start - _MAC_BYTES, nonce, key)


def _open_in_place(frame: memoryview, start: int, nonce: bytes, key: bytes) -> None:
    """Decrypts a box from `start` to the end; its content stays behind its authenticator."""
    _check_box(frame, start, nonce, key)
    box = ffi.from_buffer("unsigned char[]", frame) + start
    if lib.crypto_box_open_easy_afternm(box + _MAC_BYTES, box, len(frame) - start, nonce, key):
        raise ProtocolError("a MESSAGE that cannot be decrypted: wrong keys, or changed on its way")


def _check_box(frame: bytearray | memoryview, start: int, nonce: bytes, key: bytes) -> None:
    """Raises `ValueError` where libsodium would read or write beyond its arguments."""
    if len(key) != _KEY_BYTES or len(nonce) != _NONCE_BYTES or len(frame) < start + _MAC_BYTES:
        raise ValueError("a box needs a key of 32 bytes, a nonce of 24 and an authenticator of 16")


def _check_length(name: str, body: bytes, size: int) -> None:
    if len(body) != size:
        raise ProtocolError(f"{name} of {len(body)} bytes, expected {size}")


class _Curve(Mechanism):
    """The boxes of both roles.

    sent_prefix, received_prefix: nonce prefixes of MESSAGE in each direction.
    """

    name = b"CURVE"
    # `\7MESSAGE`, 8 bytes of nonce, 16 of the box's authenticator, 1 of flags
    overhead: ClassVar[int] = 33
    sent_prefix: ClassVar[bytes]
    received_prefix: ClassVar[bytes]

    def __init__(self) -> None:
        self._shared_key = b""  # of C' and S'
        self._sent_nonce = 0
        self._received_nonce = -1

    def opening(self, metadata: bytes) -> bytes:
        """Nothing: the client's first command follows the server's greeting."""
        return b""

    def _next_nonce(self) -> bytes:
        """Returns the next value of the counter, which no other box of this connection has."""
        self._sent_nonce += 1
        return self._sent_nonce.to_bytes(8, "big")

    def _check_nonce(self, nonce: bytes) -> bytes:
        """Returns the nonce of a received box; `ProtocolError` if it is not larger than that of the box before."""
        number = int.from_bytes(nonce, "big")
        if number <= self._received_nonce:
            raise ProtocolError("a nonce that was used before: the command is replayed")
        self._received_nonce = number
        return nonce

    def seal(self, flags: int, content: bytes | memoryview) -> bytearray:
        """Returns the frame of a MESSAGE. Like libzmq's it has no COMMAND flag; the flags are in the box."""
        nonce = self._next_nonce()
        header = frame_header(0, self.overhead + len(content))
        frame = bytearray().join((header, b"\7MESSAGE", nonce, bytes(_MAC_BYTES), _SEALED_FLAGS[flags], content))
        _seal_in_place(frame, len(header) + _MESSAGE_BOX, self.sent_prefix + nonce, self._shared_key)
        return frame

    def unseal(self, content: bytes | memoryview) -> tuple[int, memoryview]:
        """Returns the flags and the content of a MESSAGE; writable memory is decrypted in place."""
        if content[:8] != b"\7MESSAGE" or len(content) < self.overhead:
            raise ProtocolError("a frame that is not a MESSAGE of CURVE")
        frame = content if isinstance(content, memoryview) and not content.readonly else memoryview(bytearray(content))
        nonce = bytes(frame[8:16])
        _open_in_place(frame, _MESSAGE_BOX, self.received_prefix + nonce, self._shared_key)
        self._check_nonce(nonce)
        flags = _FRAME_FLAGS.get(frame[self.overhead - 1])
        if flags is None:
            raise ProtocolError(f"a MESSAGE with flags {frame[self.overhead - 1]:#04x}")
        return flags, frame[self.overhead :]


class CurveClient(_Curve):
    """The client's role. server: the server's permanent public key."""

    transitions: ClassVar[Mapping[State, Mapping[bytes, State]]] = {
        State.GREETING: {GREETING: State.WELCOME},
        State.WELCOME: {b"WELCOME": State.READY},
        State.READY: {b"READY": State.TRAFFIC},
    }
    sent_prefix, received_prefix = b"CurveZMQMESSAGEC", b"CurveZMQMESSAGES"

    def __init__(self, keys: CurveKeys, server: bytes) -> None:
        super().__init__()
        self._keys = keys
        self._server = server
        self._public, self._secret = crypto_box_keypair()  # C', c'
        self._hello_key = shared_key(server, self._secret)  # of C' and S

    def answer(self, event: bytes, body: bytes, metadata: bytes) -> tuple[bytes, bytes | None]:
        """See `Mechanism.answer`."""
        if event == GREETING:
            return self._hello(), None
        if event == b"WELCOME":
            return self._initiate(body, metadata), None
        return b"", self._read_ready(body)

    def _hello(self) -> bytes:
        nonce = self._next_nonce()
        box = crypto_box_easy_afternm(bytes(64), b"CurveZMQHELLO---" + nonce, self._hello_key)
        return command(b"HELLO", _VERSION + bytes(72) + self._public + nonce + box)

    def _initiate(self, welcome: bytes, metadata: bytes) -> bytes:
        _check_length("a WELCOME", welcome, _WELCOME_BYTES)
        plain = _open(welcome[16:], b"WELCOME-" + welcome[:16], self._hello_key, "a WELCOME")
        server_public, cookie = plain[:_KEY_BYTES], plain[_KEY_BYTES:]  # S'
        vouch_nonce = randombytes(16)
        vouch = crypto_box_easy_afternm(
            self._public + self._server, b"VOUCH---" + vouch_nonce, shared_key(server_public, self._keys.secret)
        )
        self._shared_key = shared_key(server_public, self._secret)
        # forward secrecy: what is not needed any more cannot be read from memory later
        self._secret = self._hello_key = b""
        nonce = self._next_nonce()
        content = self._keys.public + vouch_nonce + vouch + metadata
        box = crypto_box_easy_afternm(content, b"CurveZMQINITIATE" + nonce, self._shared_key)
        return command(b"INITIATE", cookie + nonce + box)

    def _read_ready(self, ready: bytes) -> bytes:
        nonce = ready[:8]
        metadata = _open(ready[8:], b"CurveZMQREADY---" + nonce.ljust(8, b"\0"), self._shared_key, "a READY")
        self._check_nonce(nonce)
        return metadata


class CurveServer(_Curve):
    """The server's role.

    Args:
        keys: The server's permanent keys.
        admit: Called with a client's permanent public key when the client has proved that it owns it; raises
            `ProtocolError` to refuse the client.
    """

    as_server = True
    transitions: ClassVar[Mapping[State, Mapping[bytes, State]]] = {
        State.GREETING: {GREETING: State.HELLO},
        State.HELLO: {b"HELLO": State.INITIATE},
        State.INITIATE: {b"INITIATE": State.TRAFFIC},
    }
    sent_prefix, received_prefix = b"CurveZMQMESSAGES", b"CurveZMQMESSAGEC"

    def __init__(self, keys: CurveKeys, admit: Callable[[bytes], None]) -> None:
        super().__init__()
        self._keys = keys
        self._admit = admit
        self._cookie_key = b""

    def answer(self, event: bytes, body: bytes, metadata: bytes) -> tuple[bytes, bytes | None]:
        """See `Mechanism.answer`."""
        if event == GREETING:
            return b"", None
        if event == b"HELLO":
            return self._welcome(body), None
        client_metadata = self._read_initiate(body)
        nonce = self._next_nonce()
        box = crypto_box_easy_afternm(metadata, b"CurveZMQREADY---" + nonce, self._shared_key)
        return command(b"READY", nonce + box), client_metadata

    def _welcome(self, hello: bytes) -> bytes:
        _check_length("a HELLO", hello, _HELLO_BYTES)
        if hello[:2] != _VERSION:
            raise ProtocolError(f"CURVE {hello[0]}.{hello[1]}, this end speaks 1.0")
        client_public, nonce, box = hello[74:106], hello[106:114], hello[114:]  # C'
        hello_key = shared_key(client_public, self._keys.secret)
        signed = _open(box, b"CurveZMQHELLO---" + nonce, hello_key, "a HELLO")
        if hello[2:74].strip(b"\0") or signed.strip(b"\0"):
            raise ProtocolError("a HELLO whose padding or signature is not zero")
        self._check_nonce(nonce)
        public, secret = crypto_box_keypair()  # S', s'; the only copy of s' is in the cookie
        # a key of this connection, so that cookies of others, also recorded ones, cannot be opened
        self._cookie_key = randombytes(_KEY_BYTES)
        cookie_nonce, welcome_nonce = randombytes(16), randombytes(16)
        cookie = cookie_nonce + crypto_secretbox(client_public + secret, b"COOKIE--" + cookie_nonce, self._cookie_key)
        box = crypto_box_easy_afternm(public + cookie, b"WELCOME-" + welcome_nonce, hello_key)
        return command(b"WELCOME", welcome_nonce + box)

    def _read_initiate(self, initiate: bytes) -> bytes:
        """Returns the client's properties."""
        if len(initiate) < _MIN_INITIATE_BYTES:
            raise ProtocolError(f"an INITIATE of {len(initiate)} bytes, expected at least {_MIN_INITIATE_BYTES}")
        cookie, nonce, box = initiate[:96], initiate[96:104], initiate[104:]
        try:
            opened_cookie = crypto_secretbox_open(cookie[16:], b"COOKIE--" + cookie[:16], self._cookie_key)
        except CryptoError:
            raise ProtocolError("an INITIATE with a cookie of another connection") from None
        self._cookie_key = b""
        transient_public, secret = opened_cookie[:_KEY_BYTES], opened_cookie[_KEY_BYTES:]  # C', s'
        self._shared_key = shared_key(transient_public, secret)
        content = _open(box, b"CurveZMQINITIATE" + nonce, self._shared_key, "an INITIATE")
        self._check_nonce(nonce)
        client_public, vouch_nonce, vouch = content[:32], content[32:48], content[48:128]  # C
        vouched = _open(vouch, b"VOUCH---" + vouch_nonce, shared_key(client_public, secret), "a vouch")
        # without this vouch a server could pass on the handshake of a client as its own
        if not sodium_memcmp(vouched, transient_public + self._keys.public):
            raise ProtocolError("a vouch for another connection or another server")
        self._admit(client_public)
        self.peer_key = client_public
        return content[128:]
