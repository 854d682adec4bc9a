"""What is asked with: wrenches, payloads, and every kind of array, each declared once.

An annotation carries the core shape, unit and kind that the table reads; the type is what a caller may give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

import msgspec
from numpy.typing import ArrayLike

from dyn_service.api.results import Array
from dyn_service.api.spec import Local, Means, Spec

DEFAULT_GRAVITY = (0.0, 0.0, -9.81)
"""m/s^2, world axes: what `gravity=None` means, here and on the wire."""


STOP_DAMPING = 10.0
"""s/rad | s/m, the dissipation of Hunt and Crossley of stops and contacts where nobody says another. What is left of a
speed also depends on the bound of dampers in `simulation/contact/supports.py`; docs/contacts.md has a table.
"""

DEFAULT_FRICTION = 0.8
"""Coulomb's coefficient of contacts where nobody says another."""


class Wrench(msgspec.Struct, frozen=True, eq=False):
    """A torque and a force on a link, from outside the robot.

    link: the link it acts on. torque: (..., 3) N m. force: (..., 3) N. point: (..., 3) m, where the force acts, in the
    link's frame. frame: the axes in which torque and force are given: `world`, or the name of any link.
    """

    link: str
    torque: ArrayLike = (0.0, 0.0, 0.0)
    force: ArrayLike = (0.0, 0.0, 0.0)
    point: ArrayLike = (0.0, 0.0, 0.0)
    frame: str = "world"


@dataclass(frozen=True, eq=False)
class Payload:
    """A body that a link carries, as if it were welded to it.

    link: the link's name. mass: (...,) kg, more than 0. com: (..., 3) m, its centre of mass in the link's frame.
    inertia: (..., 3, 3) kg m^2, about its centre of mass in the link's axes; zeros are a point mass.
    """

    link: str
    mass: ArrayLike
    com: ArrayLike = (0.0, 0.0, 0.0)
    inertia: ArrayLike = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


@dataclass(frozen=True, eq=False)
class Inertial:
    """The inertia of a link, in place of its own; what is None stays.

    mass: (...,) kg, more than 0. com: (..., 3) m, its centre of mass in the link's frame. inertia: (..., 3, 3) kg m^2,
    about its centre of mass in the link's axes.
    """

    mass: ArrayLike | None = None
    com: ArrayLike | None = None
    inertia: ArrayLike | None = None


@dataclass(frozen=True, eq=False)
class JointNumbers:
    """What a joint does by itself, in place of what it did; what is None stays. Each (...,), for all ways in which the
    joint can move.

    damping: N m s/rad | N s/m. friction: N m | N, Coulomb's. friction_width: rad/s | m/s, over which it is smoothed,
    more than 0. armature: kg m^2 | kg. stiffness: N m/rad | N/m, of a spring. rest: rad | m, where it pulls to.
    """

    damping: ArrayLike | None = None
    friction: ArrayLike | None = None
    friction_width: ArrayLike | None = None
    armature: ArrayLike | None = None
    stiffness: ArrayLike | None = None
    rest: ArrayLike | None = None


@dataclass(frozen=True, eq=False)
class Overlay:
    """Changed numbers of a robot. Nothing is compiled for them, and their leading axes
    broadcast like those of any input: one call may ask for thousands of different robots.

    payloads: bodies that links carry. links: by name, their inertia. joints: by name, what they do by themselves.
    locked: names of joints that stand still where they are, and with them all that follow. gravity: (..., 3) m/s^2,
    world axes.
    """

    payloads: Payload | Sequence[Payload] = ()
    links: Mapping[str, Inertial] = field(default_factory=dict)
    joints: Mapping[str, JointNumbers] = field(default_factory=dict)
    locked: Sequence[str] = ()
    gravity: ArrayLike | None = None


_OWN_AXES = {"com": 1, "inertia": 2, "gravity": 1}


def mapped(overlay: Overlay, of: Callable[[ArrayLike, int, str], ArrayLike]) -> Overlay:
    """An overlay with a function of each of its arrays: of what it is, how many axes are its own, and its place."""

    def entry(said: Any, place: str) -> Any:
        given = {each.name: getattr(said, each.name) for each in fields(said) if each.name != "link"}
        changed = {
            key: of(value, _OWN_AXES.get(key, 0), f"{place}.{key}") for key, value in given.items() if value is not None
        }
        return replace(said, **changed)

    payloads = [overlay.payloads] if isinstance(overlay.payloads, Payload) else overlay.payloads
    return Overlay(
        [entry(payload, f"payloads[{k}]") for k, payload in enumerate(payloads)],
        {name: entry(said, f"links.{name}") for name, said in overlay.links.items()},
        {name: entry(said, f"joints.{name}") for name, said in overlay.joints.items()},
        overlay.locked,
        None if overlay.gravity is None else of(overlay.gravity, 1, "gravity"),
    )


@dataclass(frozen=True, eq=False)
class Contact:
    """A point of a link that meets a plane which stands still, or a sphere around that point.

    link: the link's name. point: (3,) m, in the link's frame. radius: m, of the sphere; 0 is the point alone. plane:
    (3,) m, any point of the plane, world axes. normal: (3,) its normal on the robot's side, of any length. friction:
    Coulomb's coefficient; None is `DEFAULT_FRICTION`. stiffness: N/m, of plane and point together. damping: s/m, how
    much stiffer it is per m/s of approach. width: m/s, over which friction is smoothed where it has to be. What of
    these three is None is chosen for the step and the robot, see `dyn_service.simulation.contact.supports`. rigid: it
    is held on its
    plane, pulled there too, and does not slide, whatever friction and what follows it.

    In motions all of it counts. `contact_dynamics` holds the points whatever friction and what follows it: link, point,
    radius, plane and normal count. In `ground_reactions` link, point, radius, normal, friction and rigid do: the ground
    pushes at point - radius normal / |normal|, wherever a plane is, within the cone of its friction; at a rigid contact
    in any direction, pulling too. There alone point and normal may be (..., 3).
    """

    link: str
    point: ArrayLike = (0.0, 0.0, 0.0)
    radius: float = 0.0
    plane: ArrayLike = (0.0, 0.0, 0.0)
    normal: ArrayLike = (0.0, 0.0, 1.0)
    friction: float | None = None
    stiffness: float | None = None
    damping: float | None = None
    width: float | None = None
    rigid: bool = False


Integrator = Literal["rk4", "semi_implicit_euler", "explicit_euler", "implicit_midpoint", "adaptive", "stick_slip"]
"""How `simulate` steps."""

Method = Literal["articulated", "mass_matrix"]
"""Which solution of the equation of motion: O(N), (19b), (P.5b), or through the mass matrix, (19a), (P.5a)."""

Position = Annotated[ArrayLike, Spec(("nq",), "rad | m", "joint positions", kind="position")]
Velocity = Annotated[ArrayLike, Spec(("nv",), "rad/s | m/s", "joint velocities", kind="velocity")]
Acceleration = Annotated[ArrayLike, Spec(("nv",), "rad/s^2 | m/s^2", "joint accelerations", kind="acceleration")]
Effort = Annotated[
    ArrayLike, Spec(("nv",), "N m | N", "joint efforts: torques, forces at prismatic joints", kind="effort")
]
Momentum = Annotated[ArrayLike, Spec(("nv",), "N m s | N s", "generalised momenta", kind="momentum")]
Step = Annotated[ArrayLike, Spec((1,), "s", "length of the step", scalar=True, kind="duration")]
Gravity = Annotated[
    ArrayLike | None, Spec((3,), "m/s^2", "acceleration of gravity, world axes; None is (0, 0, -9.81)", kind="gravity")
]
Wrenches = Annotated[
    Wrench | Sequence[Wrench] | None,
    Spec(("nb", 6), "N m, N", "external wrenches on links, see `Wrench`", kind="wrenches"),
]
Offset = Annotated[
    ArrayLike | None,
    Spec(
        (3,),
        "m",
        "where the sensor is in the frame of the row's joint or link, as `xyz` of URDF; (0, 0, 0) if left out",
        default=(0.0, 0.0, 0.0),
    ),
]
Turn = Annotated[
    ArrayLike | None,
    Spec(
        (3,),
        "rad",
        "how its axes are turned against that frame: roll, pitch, yaw, as `rpy` of URDF; (0, 0, 0) if left out",
        default=(0.0, 0.0, 0.0),
    ),
]
PointLink = Annotated[
    str | Sequence[Any],
    Spec(
        ("nl",),
        "",
        "the link of the point, by name; or lists of names, whose lengths are leading axes like those of other inputs",
        kind="link",
    ),
]
Point = Annotated[
    ArrayLike | None,
    Spec((3,), "m", "the point, in the link's frame; (0, 0, 0) if left out", default=(0.0, 0.0, 0.0)),
]
PointAxes = Annotated[
    Literal["world_aligned", "local", "world"],
    Means(
        "whose motion, in which axes: the point's in those of the world, or in the link's; or that of the link's point "
        "that is passing the world's origin, in world axes"
    ),
]
Directions = Annotated[
    Sequence[str] | None,
    Spec(
        (6,),
        "",
        "which directions count: some of rx, ry, rz, in which the link turns, and x, y, z, in which the point moves, "
        "along the axes that `frame` says; all if left out",
        kind="directions",
        default=(1.0,) * 6,
    ),
]
Direction = Annotated[
    Literal["parent_on_child", "child_on_parent"],
    Means("whose load on whom is read; the other is its negative"),
]
PositionGain = Annotated[
    ArrayLike, Spec(("nv",), "1/s^2", "position gain, a number or one per entry of v", scalar=True, kind="gain")
]
VelocityGain = Annotated[
    ArrayLike, Spec(("nv",), "1/s", "velocity gain, a number or one per entry of v", scalar=True, kind="gain")
]

PositionResult = Annotated[Array, Spec(("nq",), "rad | m", "joint positions", name="q", kind="position")]
EffortResult = Annotated[Array, Spec(("nv",), "N m | N", "joint efforts", name="tau", kind="effort")]
AccelerationResult = Annotated[
    Array, Spec(("nv",), "rad/s^2 | m/s^2", "joint accelerations", name="a", kind="acceleration")
]
MassMatrixResult = Annotated[
    Array, Spec(("nv", "nv"), "kg m^2 | kg m | kg", "symmetric, positive definite", name="mass_matrix", kind="effort")
]
ForcesResult = Annotated[Array, Spec(("nv",), "N m | N", "generalised forces", name="forces", kind="effort")]
VelocityResult = Annotated[Array, Spec(("nv",), "rad/s | m/s", "joint velocities", name="v", kind="velocity")]
MomentumResult = Annotated[Array, Spec(("nv",), "N m s | N s", "generalised momenta", name="p", kind="momentum")]
MomentumRateResult = Annotated[
    Array, Spec(("nv",), "N m | N", "rates of the generalised momenta", name="p_dot", kind="effort")
]


ResidualsResult = Annotated[
    dict[str, Array],
    Spec((), "1", "relative residual of each formulation, by its name", name="residuals", kind="residuals"),
]

EffortFunction = Callable[[float, Array, Array], ArrayLike]
"""Efforts as a function of time and state: tau (..., nv) at t (s), q, v."""

WrenchFunction = Callable[[float, Array, Array], Wrench | Sequence[Wrench] | None]
"""External wrenches as a function of time and state: at t (s), q, v."""

Prescription = Callable[[float], tuple[float, float, float]]
"""t (s) -> position (rad | m), velocity, acceleration of one joint."""

GivenMotion = Mapping[str, ArrayLike | Prescription]
"""By joint: rows (..., 2 steps + 1, 3) on the half grid or (..., steps + 1, 3) on the grid, or a function of time."""

FirstPosition = Annotated[ArrayLike, Spec(("nq",), "rad | m", "first joint positions", name="q", kind="position")]
FirstVelocity = Annotated[ArrayLike, Spec(("nv",), "rad/s | m/s", "first joint velocities", name="v", kind="velocity")]
FirstMomentum = Annotated[
    ArrayLike | None,
    Spec(
        ("nv",),
        "N m s | N s",
        "first momenta in place of those of `v`; of `implicit_midpoint` alone",
        name="p",
        kind="momentum",
    ),
]
Efforts = Annotated[
    ArrayLike | EffortFunction | None,
    Spec(
        ("nv",),
        "N m | N",
        "efforts, constant or (.., steps, nv), each held for one step; none if left out",
        kind="effort",
    ),
]
ActingWrenches = Annotated[
    Wrench | Sequence[Wrench] | WrenchFunction | None,
    Spec(
        ("nb", 6),
        "N m, N",
        "external wrenches on links; torque, force and point are (3) or (.., steps, 3), each held for one step in the "
        "axes of `frame`",
        kind="wrenches",
    ),
]
Altered = Annotated[
    Overlay | None,
    Spec((), "kg, m, ..", "changed numbers of the robot, see `Overlay`", kind="overlay"),
]
Load = Annotated[Payload | None, Spec((), "kg, m", "a body that a link carries through the motion", kind="payload")]
Contacts = Annotated[
    Contact | Sequence[Contact] | None,
    Spec((), "m, N/m, ..", "points of links that meet planes, see `Contact`", kind="contacts"),
]
ActiveContacts = Annotated[
    Contact | Sequence[Contact],
    Spec((), "m, 1", "points of links at which the ground pushes, see `Contact`", name="contacts", kind="contacts"),
]
FreePosition = Annotated[
    ArrayLike,
    Spec(("nf",), "rad | m", "first positions of the free joints, in the robot's order", name="q", kind="position"),
]
FreeVelocity = Annotated[
    ArrayLike, Spec(("nf",), "rad/s | m/s", "first velocities of the free joints", name="v", kind="velocity")
]
FreeEfforts = Annotated[
    ArrayLike | EffortFunction | None,
    Spec(
        ("nf",),
        "N m | N",
        "efforts of the free joints, constant, (.., 1, nf) or (.., steps, nf), each held for one step; none if left "
        "out",
        kind="effort",
    ),
]
Motions = Annotated[
    GivenMotion,
    Spec(
        ("2 steps + 1", "np", 3),
        "rad | m, ..",
        "position, velocity, acceleration of the joints in `joints`, on the half grid, or (.., steps + 1, np, 3) on "
        "the grid",
        kind="motions",
    ),
]
Axes = Annotated[Literal["body", "world"], Means("axes of what comes back", role="axes")]
JointAxes = Annotated[Literal["joint", "world"], Means("axes of what comes back", role="axes")]
Passive = Annotated[
    bool,
    Means("whether what joints do by themselves acts: damping, friction, armature, springs", role="passive"),
]
LinkRows = Annotated[Sequence[str] | None, Means("rows by name, in that order; all where left out", role="rows")]
JointRows = Annotated[Sequence[str] | None, Means("rows by name, in that order; all where left out", role="rows")]
PositionLimits = Annotated[bool, Means("whether joints meet stops where their positions' limits are")]
EffortLimits = Annotated[bool, Means("whether efforts are cut at their limits")]
VelocityLimits = Annotated[bool, Means("whether joints are braked beyond their velocities' limits")]
StopTime = Annotated[
    float,
    Means("s, how quickly stops, and contacts without a stiffness, give way; 0 is five steps, or one of `stick_slip`"),
]
StopDamping = Annotated[
    float, Means("s/rad or s/m, how much stiffer stops, and contacts without a damping, are per unit of approach")
]
SettleTime = Annotated[
    float, Means("s, in which points that are off their planes, or slide, are brought back; 0 is never")
]
Least = Annotated[
    Literal["forces", "efforts"], Means("what is as small as can be: contact forces, or efforts and then the forces")
]
Undriven = Annotated[
    Sequence[str] | None, Means("joints that nothing drives, by name; floating and planar ones where left out")
]
StepLength = Annotated[float, Means("s, of a step")]
StepCount = Annotated[int, Means("how many")]
Every = Annotated[int, Means("record every so many steps")]
FirstStep = Annotated[
    int, Means("the number of the first step in the whole motion, of which this is a part: times go on from there")
]
FirstTime = Annotated[float, Means("s, the time of step 0")]
Progress = Annotated[Callable[[float], None] | None, Local()]
"""Called now and then with the share that is done; what it raises ends the computation, here and remote."""


SegmentMass = Annotated[ArrayLike, Spec(("n",), "kg", "of each segment, from the ground up")]
SegmentInertia = Annotated[ArrayLike, Spec(("n", 3, 3), "kg m^2", "about the centre of mass, in the segment's basis")]
SegmentRotation = Annotated[ArrayLike, Spec(("n", 3, 3), "1", "global components to the segment's")]
SegmentAcceleration = Annotated[ArrayLike, Spec(("n", 3), "m/s^2", "of the centres of mass, global basis")]
SegmentOmega = Annotated[ArrayLike, Spec(("n", 3), "rad/s", "angular velocity, segment's basis")]
SegmentOmegaDot = Annotated[ArrayLike, Spec(("n", 3), "rad/s^2", "angular acceleration, segment's basis")]
Proximal = Annotated[ArrayLike, Spec(("n", 3), "m", "centre of mass to upper joint, global basis")]
Distal = Annotated[
    ArrayLike, Spec(("n", 3), "m", "to the lower joint; of the first segment to the centre of pressure, global basis")
]
GroundForce = Annotated[ArrayLike, Spec((3,), "N", "on the first segment, global basis; none if left out")]
GroundMoment = Annotated[ArrayLike, Spec((3,), "N m", "free moment on it, global basis; none if left out")]
ExternalForce = Annotated[
    ArrayLike, Spec(("n", 3), "N", "another load on each segment, global basis; none if left out")
]
ExternalMoment = Annotated[ArrayLike, Spec(("n", 3), "N m", "with it, global basis; none if left out")]
ExternalPoint = Annotated[
    ArrayLike, Spec(("n", 3), "m", "centre of mass to where it acts, global basis; 0 if left out")
]
SegmentGravity = Annotated[ArrayLike, Spec((3,), "m/s^2", "global basis; (0, -9.81, 0) if left out")]
