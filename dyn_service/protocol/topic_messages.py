"""What nodes say to each other: MessagePack maps in the names of ROS.

`joint_states` goes from the plant to all who listen (PUB to SUB), `joint_commands` from a controller to the plant (PUSH
to PULL). Both sides keep only the newest message that waits (ZMQ_CONFLATE): after a stall there is no burst.
Unknown keys are ignored.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from dyn_service.errors import InvalidArgumentError

SCHEMA = 2
"""Version of both messages; one of another version is none."""
MAX_BYTES = 1 << 20
"""Of a message: a state of a thousand joints has some fifty thousand."""


class JointState(msgspec.Struct, frozen=True, gc=False):
    """State of a plant at the simulated time `stamp` (s since it started).

    session: a number that no other run of the plant has. seq: counts integration steps. name: the movable joints; one
    with several ways to move has an entry for each, called `joint.part` as in `Configuration.velocity_names`. velocity
    (rad/s | m/s), effort (N m | N): one number per name; effort is what acts from `stamp` on. position (rad | m): nq
    numbers, joint after joint in the same order. mode, cause, epoch: see `control.safety`; only under `active` does the
    robot follow commands. since: the simulated time at which the mode began. armable: whether every joint is slow
    enough for it to be armed. command_seq: `seq` of the state that the last command taken answered, -1 for none.
    command_delay: s of simulated time from that state to when its command took effect. fingerprint: the robot's model.
    """

    session: int
    seq: int
    stamp: float
    name: tuple[str, ...]
    position: list[float]
    velocity: list[float]
    effort: list[float]
    mode: str
    cause: str
    since: float
    epoch: int
    armable: bool
    command_seq: int
    command_delay: float
    fingerprint: str
    v: int = SCHEMA


class JointCommand(msgspec.Struct, frozen=True, gc=False):
    """Efforts (N m | N) for the joints `name`, in any order, in answer to the state `state_seq` of that session.

    name: as in `JointState`. epoch, fingerprint: of the state that is answered. controller: a number that no other run
    of a controller has. arm: the controller has seen that the robot is stopped, and takes it over.
    release: the controller ends and hands the robot over: it brakes, whatever the efforts.
    """

    session: int
    state_seq: int
    epoch: int
    fingerprint: str
    controller: int
    name: tuple[str, ...]
    effort: list[float]
    arm: bool = False
    release: bool = False
    v: int = SCHEMA


M = TypeVar("M", JointState, JointCommand)

_ENCODER = msgspec.msgpack.Encoder()
_STATE = msgspec.msgpack.Decoder(JointState)
_COMMAND = msgspec.msgpack.Decoder(JointCommand)


def encode(message: JointState | JointCommand) -> bytes:
    """The message as one frame."""
    return _ENCODER.encode(message)


def decode_state(frame: bytes | memoryview) -> JointState:
    """The frame as a joint state.

    Raises:
        InvalidArgumentError: It is none.
    """
    return _decoded(_STATE, frame, "joint state")


def decode_command(frame: bytes | memoryview) -> JointCommand:
    """The frame as a joint command.

    Raises:
        InvalidArgumentError: It is none.
    """
    return _decoded(_COMMAND, frame, "joint command")


def _decoded(decoder: msgspec.msgpack.Decoder[M], frame: bytes | memoryview, what: str) -> M:
    if len(frame) > MAX_BYTES:
        raise InvalidArgumentError(f"not a {what}: it has {len(frame)} bytes, at most {MAX_BYTES} are read")
    try:
        message = decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"not a {what}: {error}") from None
    if message.v != SCHEMA:
        raise InvalidArgumentError(f"not a {what}: its version is {message.v}, expected {SCHEMA}")
    return message
