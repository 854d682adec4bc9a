"""What nodes say to each other: MessagePack maps in the names of ROS.

`joint_states` goes from the plant to all who listen (PUB to SUB), `joint_commands` from a controller to the plant (PUSH
to PULL). Both sides keep only the newest message that waits (ZMQ_CONFLATE): after a stall there is no burst.
Unknown keys are ignored.
"""

from __future__ import annotations

import msgspec

from dyn_service.errors import InvalidArgumentError

SCHEMA = 1


class JointState(msgspec.Struct, frozen=True, gc=False):
    """State of a plant at the simulated time `stamp` (s since it started).

    session: a number that no other run of the plant has. seq: counts integration steps. name: the movable joints; one
    with several ways to move has an entry for each, called `joint.part` as in `Configuration.velocity_names`. velocity
    (rad/s | m/s), effort (N m | N): one number per name; effort is what acts from `stamp` on. position (rad | m): nq
    numbers, joint after joint in the same order. mode: `braked`, `active` or `stale`. command_seq: `seq` of the state
    that the command in force answered, -1 for none. command_delay: s of simulated time from that state to when its
    command took effect.
    """

    session: int
    seq: int
    stamp: float
    name: tuple[str, ...]
    position: list[float]
    velocity: list[float]
    effort: list[float]
    mode: str
    command_seq: int
    command_delay: float
    v: int = SCHEMA


class JointCommand(msgspec.Struct, frozen=True, gc=False):
    """Efforts (N m | N) for the joints `name`, in any order, in answer to the state `state_seq` of that session.

    name: as in `JointState`. stamp: of the state that is answered.
    release: the controller ends and hands the plant over: it brakes, whatever the efforts.
    """

    session: int
    state_seq: int
    stamp: float
    name: tuple[str, ...]
    effort: list[float]
    release: bool = False
    v: int = SCHEMA


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
    try:
        return _STATE.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"not a joint state: {error}") from None


def decode_command(frame: bytes | memoryview) -> JointCommand:
    """The frame as a joint command.

    Raises:
        InvalidArgumentError: It is none.
    """
    try:
        return _COMMAND.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"not a joint command: {error}") from None
