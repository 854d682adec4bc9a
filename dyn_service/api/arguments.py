"""The arguments of queries: wrenches, payloads, overlays, contacts, and each kind of array, declared once.

Annotations contain the core shape, unit and kind for the table; types are those that callers may pass.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import isfinite
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.arrays import GRAVITY_UNIT, finite, found, found_instead, is_deferred, numbers, vector
from dyn_service.api.results import Array
from dyn_service.api.spec import Local, OptionSpec, Spec
from dyn_service.errors import InvalidArgumentError

DEFAULT_GRAVITY = (0.0, 0.0, -9.81)
"""m/s^2, world axes: a robot's gravity unless its file gives another. `gravity=None` is the robot's own gravity."""


STOP_DAMPING = 10.0
"""s/rad | s/m, the default dissipation (Hunt and Crossley) of stops and contacts. The speed after an impact also
depends on the bound of dampers in `simulation/contact/supports.py`; docs/contacts.md has a table.
"""

DEFAULT_FRICTION = 0.8
"""Default Coulomb coefficient of contacts."""


NO_VECTOR = (0.0, 0.0, 0.0)
"""Default of the vectors of wrenches, recognised by identity."""


# A msgspec struct, because compiled code reads its fields, and one is made in 0.1 us at control rate.
class Wrench(msgspec.Struct, frozen=True, eq=False):
    """An external torque and force on a link.

    link: the link it acts on. torque: (..., 3) N m. force: (..., 3) N. point: (..., 3) m, where the force acts, in the
    link's frame. frame: the axes in which torque and force are given: `world`, or the name of any link.

    Raises:
        InvalidArgumentError: A field has another type or shape; `path` names it. NaN is not refused: it gives NaN.
    """

    link: str
    torque: ArrayLike = NO_VECTOR
    force: ArrayLike = NO_VECTOR
    point: ArrayLike = NO_VECTOR
    frame: str = "world"

    def __post_init__(self) -> None:
        for name, text in (("link", self.link), ("frame", self.frame)):
            if text.__class__ is not str:
                _check_name(name, text)
        vectors: Any = (("torque", self.torque), ("force", self.force), ("point", self.point))
        for name, value in vectors:
            # By identity: comparing numbers would take longer than the checks that this saves.
            if value is NO_VECTOR:
                continue
            # Usual values are checked without a call of a function: wrenches are made at control rate.
            if value.__class__ is np.ndarray and value.shape[-1:] == (3,) and value.dtype.kind in "fiu":
                continue
            if value.__class__ is tuple:
                try:
                    x, y, z = value
                except ValueError:
                    pass
                else:
                    if x.__class__ is y.__class__ is z.__class__ is float:
                        continue
            if not is_deferred(value):
                vector(value, name)


def _check_name(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name} must be a name, found {found(value)}", path=name)


class Immutable:
    """Base class of dataclasses that keep read-only copies of the arrays, lists and maps that they are made from."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (isinstance(value, list) and name in _NOT_LISTS):  # reported as it was given
                object.__setattr__(self, name, _read_only(value))

    def __reduce__(self) -> tuple[Any, ...]:
        values = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        # A mapping proxy cannot be pickled.
        return type(self), tuple(dict(x) if isinstance(x, MappingProxyType) else x for x in values)

    @cached_property
    def content(self) -> Hashable:
        """A key that is equal for equal contents, to the last bit and by type.

        Raises:
            TypeError: A value is of a type that may change.
        """
        return tuple(_key(getattr(self, field.name)) for field in fields(self))  # type: ignore[arg-type]


_NOT_LISTS = frozenset({"link", "links", "joints"})
"""Fields in which a list is an error."""


class _Numbers(Immutable):
    """Base class of dataclasses of finite numbers, and perhaps the name of a `link`.

    Raises:
        InvalidArgumentError: A field has another type or shape, or is not finite; `path` names it.
    """

    def __post_init__(self) -> None:
        for number in fields(self):  # type: ignore[arg-type]
            value = getattr(self, number.name)
            if number.name == "link":
                _check_name("link", value)
            elif value is not number.default:
                _check_numbers(number.name, value)
        super().__post_init__()


_CORES: Mapping[str, tuple[int, ...]] = {"com": (3,), "inertia": (3, 3), "gravity": (3,)}
"""Shapes of the fields of `_Numbers` and overlays without their leading axes; all others have ()."""


def _check_numbers(name: str, value: Any) -> None:
    # One float is the usual value, and needs no array to be checked.
    if is_deferred(value) or (value.__class__ is float and name not in _CORES and isfinite(value)):
        return
    array, core = numbers(value), _CORES.get(name, ())
    if array is None or array.shape[max(array.ndim - len(core), 0) :] != core:
        shape = f"numbers of shape (..., {', '.join(map(str, core))})" if core else "a number or an array of numbers"
        unit = GRAVITY_UNIT if name == "gravity" else ""
        raise InvalidArgumentError(f"{name} must be {shape}{unit}, found {found(value)}", path=name)
    finite(name, array)


def _read_only(value: Any) -> Any:
    """Returns a read-only copy of an array, list or map; other values are returned unchanged."""
    # A copy, because robots with an overlay are cached by it: a later change of the array must not reach them.
    if isinstance(value, np.ndarray):
        value = value.copy()
        value.flags.writeable = False
        return value
    if isinstance(value, list | tuple):
        return tuple(map(_read_only, value))
    return MappingProxyType(dict(value)) if isinstance(value, Mapping) else value


def _key(value: Any) -> Hashable:
    kind = value.__class__
    if kind is tuple:
        return tuple(map(_key, value))
    if kind is float:
        # -0.0 equals 0.0 and nan does not equal itself, but their bits decide the bits of an answer.
        return kind, value.hex()
    if kind is np.ndarray:
        return value.dtype.str, value.shape, value.tobytes()
    if kind is MappingProxyType:
        # In the order given: another order is at worst another entry of the cache.
        return tuple((name, _key(entry)) for name, entry in value.items())
    if isinstance(value, Immutable):
        return kind, value.content
    # With the class, because True equals 1 and 1 equals 1.0.
    if value is None or isinstance(value, str | int | np.number):
        return kind, value
    raise TypeError(f"{kind.__name__} has no key")


@dataclass(frozen=True, eq=False)
class Payload(_Numbers):
    """A body fixed to a link.

    link: the link's name. mass: (...,) kg, at least 0. com: (..., 3) m, its centre of mass in the link's frame.
    inertia: (..., 3, 3) kg m^2, about its centre of mass in the link's axes; zero for a point mass.
    """

    link: str
    mass: ArrayLike
    com: ArrayLike = (0.0, 0.0, 0.0)
    inertia: ArrayLike = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


@dataclass(frozen=True, eq=False)
class Inertial(_Numbers):
    """A replacement for the inertia of a link; fields that are None are unchanged.

    mass: (...,) kg, more than 0. com: (..., 3) m, its centre of mass in the link's frame. inertia: (..., 3, 3) kg m^2,
    about its centre of mass in the link's axes.
    """

    mass: ArrayLike | None = None
    com: ArrayLike | None = None
    inertia: ArrayLike | None = None


@dataclass(frozen=True, eq=False)
class JointNumbers(_Numbers):
    """Replacements for a joint's passive properties; fields that are None are unchanged. Each is (...,) and applies to
    all degrees of freedom of the joint.

    damping: N m s/rad | N s/m. friction: Coulomb friction, N m | N. friction_width: velocity over which it is
    smoothed, rad/s | m/s, more than 0. armature: kg m^2 | kg. stiffness: of a spring, N m/rad | N/m. rest: its position
    of rest, rad | m.
    """

    damping: ArrayLike | None = None
    friction: ArrayLike | None = None
    friction_width: ArrayLike | None = None
    armature: ArrayLike | None = None
    stiffness: ArrayLike | None = None
    rest: ArrayLike | None = None


@dataclass(frozen=True, eq=False)
class Overlay(Immutable):
    """Changed numbers of a robot. They need no compilation, and their leading axes broadcast like those of any input,
    so that one call can compute thousands of different robots.

    payloads: bodies fixed to links. links: inertias by link name. joints: passive properties by joint name. locked:
    names of joints that do not move; their followers do not move either. gravity: (..., 3) m/s^2, world axes.
    """

    payloads: Payload | Sequence[Payload] = ()
    links: Mapping[str, Inertial] = field(default_factory=dict)
    joints: Mapping[str, JointNumbers] = field(default_factory=dict)
    locked: Sequence[str] = ()
    gravity: ArrayLike | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        payloads = (self.payloads,) if isinstance(self.payloads, Payload) else self.payloads
        if not _is_sequence(payloads):
            description = found_instead("Payload", payloads)
            raise InvalidArgumentError(
                f"payloads must be a Payload or a list of them, found {description}", path="payloads"
            )
        if not _is_sequence(self.locked):
            description = found(self.locked)
            raise InvalidArgumentError(f"locked must be a list of joints' names, found {description}", path="locked")
        entries: list[tuple[str, Any, type]] = [(f"payloads[{k}]", entry, Payload) for k, entry in enumerate(payloads)]
        parts: tuple[tuple[str, type], ...] = (("links", Inertial), ("joints", JointNumbers))
        for part, kind in parts:
            numbers_by_name: Any = getattr(self, part)
            if not isinstance(numbers_by_name, Mapping):
                description = found(numbers_by_name)
                raise InvalidArgumentError(
                    f"{part} must be a map from names to {kind.__name__}, found {description}", path=part
                )
            entries += [(f"{part}.{name}", entry, kind) for name, entry in numbers_by_name.items()]
        for path, entry, kind in entries:
            if not isinstance(entry, kind):
                description = found_instead(kind.__name__, entry)
                raise InvalidArgumentError(f"{path} must be of type {kind.__name__}, found {description}", path=path)
        if self.gravity is not None:
            _check_numbers("gravity", self.gravity)


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def mapped(overlay: Overlay, convert: Callable[[ArrayLike, int, str], ArrayLike]) -> Overlay:
    """Returns the overlay with `convert(value, trailing axes, path)` instead of each array."""

    def entry(entry_numbers: Any, place: str) -> Any:
        arrays = {
            field.name: getattr(entry_numbers, field.name) for field in fields(entry_numbers) if field.name != "link"
        }
        converted = {
            key: convert(value, len(_CORES.get(key, ())), f"{place}.{key}")
            for key, value in arrays.items()
            if value is not None
        }
        return replace(entry_numbers, **converted)

    payloads = [overlay.payloads] if isinstance(overlay.payloads, Payload) else overlay.payloads
    return Overlay(
        [entry(payload, f"payloads[{k}]") for k, payload in enumerate(payloads)],
        {name: entry(entry_numbers, f"links.{name}") for name, entry_numbers in overlay.links.items()},
        {name: entry(entry_numbers, f"joints.{name}") for name, entry_numbers in overlay.joints.items()},
        overlay.locked,
        None if overlay.gravity is None else convert(overlay.gravity, 1, "gravity"),
    )


def with_vectors(wrenches: Wrench | Sequence[Wrench], convert: Callable[[Any], ArrayLike]) -> list[Wrench]:
    """Returns external wrenches with `convert(x)` instead of each torque, force and point."""
    sequence = [wrenches] if isinstance(wrenches, Wrench) else wrenches
    return [
        msgspec.structs.replace(w, torque=convert(w.torque), force=convert(w.force), point=convert(w.point))
        for w in sequence
    ]


@dataclass(frozen=True, eq=False)
class Contact:
    """A contact between a point of a link, or a sphere around it, and a fixed plane.

    link: the link's name. point: (3,) m, in the link's frame. radius: of the sphere, m; 0: a point. plane: (3,) m, any
    point of the plane, world axes. normal: (3,) the plane's normal on the robot's side, of any length. friction: the
    Coulomb coefficient; None: `DEFAULT_FRICTION`. stiffness: of plane and point together, N/m. damping: relative
    increase of the stiffness per approach velocity, s/m. width: velocity over which friction is smoothed, m/s, for
    integrators that smooth it. If one of these three is None, it is chosen for the step and the robot, see
    `dyn_service.simulation.contact.supports`. rigid: the point is held on its plane, if necessary by pulling, and does
    not slide; friction and the following fields are ignored.

    Simulations use all fields. `contact_dynamics` uses link, point, radius, plane and normal. `ground_reactions` uses
    link, point, radius, normal, friction and rigid: the ground pushes at point - radius normal / |normal|, wherever the
    plane is, within the friction cone, or in any direction at a rigid contact. Only there, point and normal may be
    (..., 3).
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


Integrator = Literal[
    "auto", "rk4", "semi_implicit_euler", "explicit_euler", "implicit_midpoint", "adaptive", "stick_slip"
]
"""Integrators of `simulate`, the first one its default."""

DEFAULT_STEP: Final = "rk4"
"""The integrator of one step by default: of `step`, its derivatives, and exported steps; of `simulate` where stable."""

Method = Literal["articulated", "mass_matrix"]
"""Solutions of the equation of motion: O(N), (19b), (P.5b), or through the mass matrix, (19a), (P.5a)."""

Position = Annotated[ArrayLike, Spec(("nq",), "rad | m", "joint positions", kind="position")]
Velocity = Annotated[ArrayLike, Spec(("nv",), "rad/s | m/s", "joint velocities", kind="velocity")]
Acceleration = Annotated[ArrayLike, Spec(("nv",), "rad/s^2 | m/s^2", "joint accelerations", kind="acceleration")]
Effort = Annotated[
    ArrayLike, Spec(("nv",), "N m | N", "joint efforts: torques, forces at prismatic joints", kind="effort")
]
Weights = Annotated[ArrayLike, Spec(("nv",), "1", "weight of each entry of the differentiated vector", kind="weight")]
Momentum = Annotated[ArrayLike, Spec(("nv",), "N m s | N s", "generalised momenta", kind="momentum")]
Step = Annotated[ArrayLike, Spec((1,), "s", "length of the step", scalar=True, kind="duration")]
Gravity = Annotated[
    ArrayLike | None,
    Spec(
        (3,),
        "m/s^2",
        "acceleration of gravity, world axes; default: the robot's own (`robot.gravity`), (0, 0, -9.81) unless its "
        "file says otherwise",
        kind="gravity",
    ),
]
Wrenches = Annotated[
    Wrench | Sequence[Wrench] | None,
    Spec(("nb", 6), "N m, N", "external wrenches on links, see `Wrench`", kind="wrenches"),
]
SensorPosition = Annotated[
    ArrayLike | None,
    Spec(
        (3,),
        "m",
        "position of the sensor in the frame of the row's joint or link, as `xyz` of URDF; default (0, 0, 0)",
        default=(0.0, 0.0, 0.0),
    ),
]
SensorRotation = Annotated[
    ArrayLike | None,
    Spec(
        (3,),
        "rad",
        "rotation of its axes from that frame: roll, pitch, yaw, as `rpy` of URDF; default (0, 0, 0)",
        default=(0.0, 0.0, 0.0),
    ),
]
PointLink = Annotated[
    str | Sequence[Any],
    Spec(("nl",), "", "name of the point's link, or nested lists of names with leading axes", kind="link"),
]
Point = Annotated[
    ArrayLike | None, Spec((3,), "m", "the point in the link's frame; default (0, 0, 0)", default=(0.0, 0.0, 0.0))
]
PointAxes = Annotated[
    Literal["world_aligned", "local", "world"],
    OptionSpec(
        "motion of the point in world axes or in link axes, or motion of the link's point at the world's origin in "
        "world axes"
    ),
]
Directions = Annotated[
    Sequence[str] | None,
    Spec(
        (6,),
        "",
        "some of rx, ry, rz (rotations of the link) and x, y, z (translations of the point) along the axes of `frame`; "
        "default: all",
        kind="directions",
        default=(1.0,) * 6,
    ),
]
Direction = Annotated[
    Literal["parent_on_child", "child_on_parent"],
    OptionSpec("the load that is measured; the other one is its negative"),
]
PositionGain = Annotated[
    ArrayLike, Spec(("nv",), "1/s^2", "position gain, a number or one per entry of v", scalar=True, kind="gain")
]
VelocityGain = Annotated[
    ArrayLike, Spec(("nv",), "1/s", "velocity gain, a number or one per entry of v", scalar=True, kind="gain")
]

PositionResult = Annotated[Array, Spec(("nq",), "rad | m", "joint positions", name="q", kind="position")]
EffortResult = Annotated[Array, Spec(("nv",), "N m | N", "joint efforts", name="tau", kind="effort")]
LoopErrorResult = Annotated[
    Array, Spec(("nk", 6), "rad, m", "[rotation vector; translation] of each joint that closes a loop", name="error")
]
ClosedPositionResult = Annotated[Array, Spec(("nq",), "rad | m", "closed joint positions", name="q", kind="position")]
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

FirstPosition = Annotated[ArrayLike, Spec(("nq",), "rad | m", "initial joint positions", name="q", kind="position")]
FirstVelocity = Annotated[
    ArrayLike, Spec(("nv",), "rad/s | m/s", "initial joint velocities", name="v", kind="velocity")
]
FirstMomentum = Annotated[
    ArrayLike | None,
    Spec(
        ("nv",),
        "N m s | N s",
        "initial momenta instead of those of `v`, for `implicit_midpoint`",
        name="p",
        kind="momentum",
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
OverlayInput = Annotated[
    Overlay | None, Spec((), "kg, m, ..", "changed numbers of the robot, see `Overlay`", kind="overlay")
]
PayloadInput = Annotated[Payload | None, Spec((), "kg, m", "a body fixed to a link during the motion", kind="payload")]
Contacts = Annotated[
    Contact | Sequence[Contact] | None,
    Spec((), "m, N/m, ..", "points of links against planes, see `Contact`", kind="contacts"),
]
ActiveContacts = Annotated[
    Contact | Sequence[Contact],
    Spec((), "m, 1", "points of links at which the ground pushes, see `Contact`", name="contacts", kind="contacts"),
]
FreePosition = Annotated[
    ArrayLike,
    Spec(("nf",), "rad | m", "initial positions of the free joints, in the robot's order", name="q", kind="position"),
]
FreeVelocity = Annotated[
    ArrayLike, Spec(("nf",), "rad/s | m/s", "initial velocities of the free joints", name="v", kind="velocity")
]
FreeEfforts = Annotated[
    ArrayLike | EffortFunction | Any | None,
    Spec(
        ("nf",),
        "N m | N",
        "efforts of the free joints, constant, (.., 1, nf) or (.., steps, nf), each held for one step; default: zero",
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
Axes = Annotated[Literal["body", "world"], OptionSpec("axes of the result", role="axes")]
JointAxes = Annotated[Literal["joint", "world"], OptionSpec("axes of the result", role="axes")]
Passive = Annotated[
    bool, OptionSpec("whether passive joint properties act: damping, friction, armature, springs", role="passive")
]
LinkRows = Annotated[Sequence[str] | None, OptionSpec("rows by name, in that order; default: all", role="rows")]
JointRows = Annotated[Sequence[str] | None, OptionSpec("rows by name, in that order; default: all", role="rows")]
PositionLimits = Annotated[bool, OptionSpec("whether joints have stops at their position limits")]
EffortLimits = Annotated[bool, OptionSpec("whether efforts are clipped to their limits")]
VelocityLimits = Annotated[bool, OptionSpec("whether joints are braked beyond their velocity limits")]
StopTime = Annotated[
    float,
    OptionSpec("time constant of stops, and of contacts without a stiffness, s; 0: five steps, or one of `stick_slip`"),
]
StopDamping = Annotated[
    float,
    OptionSpec("relative increase of the stiffness of stops and contacts per unit of approach velocity, s/rad or s/m"),
]
SettleTime = Annotated[
    float, OptionSpec("time constant of the correction of points that are off their planes or slide, s; 0: none")
]
Least = Annotated[
    Literal["forces", "efforts"], OptionSpec("what is minimised: contact forces, or efforts and then contact forces")
]
FixedJoints = Annotated[Sequence[str] | None, OptionSpec("joints that stand still, by name; default: none")]
IndependentJoints = Annotated[
    Sequence[str] | None,
    OptionSpec("joints whose velocities are independent, by name; default: driven ones first"),
]
Undriven = Annotated[
    Sequence[str] | None, OptionSpec("joints without a motor, by name; default: floating and planar ones")
]
StepLength = Annotated[float, OptionSpec("length of a step, s")]
SimulationSteps = Annotated[
    Integrator,
    OptionSpec(
        "`auto` is `rk4` in as many parts of a step as the robot needs, up to 64, else `stick_slip`; see `substeps`"
    ),
]
StepCount = Annotated[int, OptionSpec("number of steps")]
Every = Annotated[int, OptionSpec("interval of records, in steps")]
FirstStep = Annotated[int, OptionSpec("number of the first step, if this is part of a longer motion")]
FirstTime = Annotated[float, OptionSpec("time of step 0, s")]
Progress = Annotated[Callable[[float], None] | None, Local()]
"""Called repeatedly with the completed fraction; its exceptions end the computation, local or remote."""

_Result = TypeVar("_Result")
Out = Annotated[Array | Sequence[Array | None] | None, Local()]
Outs = Annotated[_Result | Sequence[Array | None] | None, Local()]
"""Where a result is written; see `api.outputs`. `Outs` is that of a result with several outputs."""

Workers = Annotated[int | None, Local()]
"""The largest number of threads that compute a large batch, 1 to 256. None: `Robot.workers`."""


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
GroundForce = Annotated[ArrayLike, Spec((3,), "N", "on the first segment, global basis; default: zero")]
GroundMoment = Annotated[ArrayLike, Spec((3,), "N m", "free moment on it, global basis; default: zero")]
ExternalForce = Annotated[ArrayLike, Spec(("n", 3), "N", "another load on each segment, global basis; default: zero")]
ExternalMoment = Annotated[ArrayLike, Spec(("n", 3), "N m", "its moment, global basis; default: zero")]
ExternalPoint = Annotated[
    ArrayLike, Spec(("n", 3), "m", "centre of mass to its point of action, global basis; default: 0")
]
SegmentGravity = Annotated[ArrayLike, Spec((3,), "m/s^2", "global basis; default (0, -9.81, 0)")]
