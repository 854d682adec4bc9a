"""Messages between a plant and its controller, with more fields than ROS's own messages.

The plant sends a `PlantState` to all subscribers, a controller a `JointCommand` to the plant. Both carry a version;
messages of another version are rejected. Unknown keys are ignored, so that a later version may add some.
"""

from typing import ClassVar

from dyn_service.messages.fields import Int32, Int64, Message, UInt8
from dyn_service.messages.std_msgs import Header

SCHEMA = 2
"""Version of both messages; messages of another version are rejected."""


class PlantState(Message, frozen=True, forbid_unknown_fields=False):
    """State of a plant at the simulated time `stamp` (s since it started).

    session: a number that no other run of the plant has. seq: counts integration steps. name: the movable joints; one
    with several degrees of freedom has an entry for each, `joint.part` as in `Configuration.velocity_names`. velocity
    (rad/s | m/s), effort (N m | N): one number per name; effort acted in the cycle that ended at `stamp`.
    position (rad | m): nq numbers, joint after joint in the same order. mode, cause, epoch: see `control.safety`; only
    under `active` does the robot follow commands. since: the simulated time at which the mode began. armable: whether
    every joint is slow enough for it to be armed. command_seq: `seq` of the state that the last command taken answered,
    -1 for none. command_delay: s of simulated time from that state to when its command took effect. fingerprint: the
    robot's model. interfaces: by what it is commanded, of `effort`, `position` and `velocity`. reason: the cause of a
    stop as text, with the joint and its limit. answer_timeout: s of wall time for which the plant's time stands still
    until this state is answered, in lockstep; inf: without end; 0: the plant does not wait.
    """

    VERSION: ClassVar[int | None] = SCHEMA

    session: Int64
    seq: Int64
    stamp: float
    name: tuple[str, ...]
    position: list[float]
    velocity: list[float]
    effort: list[float]
    mode: str
    cause: str
    since: float
    epoch: Int64
    armable: bool
    command_seq: Int64
    command_delay: float
    fingerprint: str
    interfaces: tuple[str, ...] = ("effort",)
    v: UInt8 = SCHEMA
    reason: str = ""
    answer_timeout: float = 0.0


class JointCommand(Message, frozen=True, forbid_unknown_fields=False):
    """Efforts, positions or velocities for the joints `name`, in any order, in answer to the state `state_seq` of that
    session.

    name: as in `PlantState`. epoch, fingerprint: of the state that is answered. controller: a number that no other run
    of a controller has. arm: the controller has seen that the robot is stopped, and takes it over.
    release: the controller ends and hands the robot over: it brakes, whatever the efforts.

    interface: what is commanded, one of `PlantState.interfaces`. effort (N m | N): one per name; for other interfaces
    in addition to the drive's own effort. position (rad | m): one per name where it is commanded, at the time
    the command takes effect.
    velocity (rad/s | m/s): one per name where it is commanded, or the rate of a commanded position, or empty.
    """

    VERSION: ClassVar[int | None] = SCHEMA

    session: Int64
    state_seq: Int64
    epoch: Int64
    fingerprint: str
    controller: Int64
    name: tuple[str, ...]
    effort: list[float]
    arm: bool = False
    release: bool = False
    interface: str = "effort"
    position: list[float] = []
    velocity: list[float] = []
    v: UInt8 = SCHEMA


class GoalStatus(Message, frozen=True):
    """Outcome of a goal of the trajectory controller, at the header's stamp, in the plant's time.

    number: of the goal since arming, from 1; 0 if the goal was refused. state: accepted,
    executing, succeeded, aborted, canceled or rejected. error_code: as in the result of ROS's
    `control_msgs/action/FollowJointTrajectory`. error_string: why.
    """

    SUCCESSFUL: ClassVar[Int32] = 0
    INVALID_GOAL: ClassVar[Int32] = -1
    INVALID_JOINTS: ClassVar[Int32] = -2
    PATH_TOLERANCE_VIOLATED: ClassVar[Int32] = -4
    GOAL_TOLERANCE_VIOLATED: ClassVar[Int32] = -5

    header: Header = Header()
    number: Int64 = 0
    state: str = ""
    error_code: Int32 = 0
    error_string: str = ""


class LinkPayload(Message, frozen=True):
    """The estimated payload of a link at the header's stamp, in the plant's time; its frame is the link.

    mass: kg. com: (3) m. inertia: (6) kg m^2 about the com, xx, xy, xz, yy, yz, zz in the axes of the link. errors:
    (10) standard errors of mass, com, inertia. unknown: sentences about what the motion has not shown. fingerprint: the
    model that has no payload.
    """

    header: Header = Header()
    mass: float = 0.0
    com: list[float] = []
    inertia: list[float] = []
    errors: list[float] = []
    unknown: list[str] = []
    fingerprint: str = ""


class ServerRequest(Message, frozen=True):
    """A request to a server as it was on the wire, see docs/protocol.md. client: number of the connection."""

    client: Int64 = 0
    frame: bytes = b""


class ServerReply(Message, frozen=True):
    """A reply, or a notice, as it was on the wire, to the client of that number."""

    client: Int64 = 0
    frame: bytes = b""
