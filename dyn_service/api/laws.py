"""Control laws given as data: as `tau` of `simulate`, they are computed with its steps in compiled code.

    PDLaw               tau = c + kp e + kd e-dot,  c: nothing, the weight, or inverse dynamics along the reference
    ComputedTorqueLaw   tau = inverse_dynamics(q, v, a_ref + kp e + kd e-dot)
    StateFeedbackLaw    tau = K [e; e-dot] = -K (x - x_ref)

with e = q_ref - q (`Configuration.error`) and e-dot = v_ref - v, plus a feed-forward, then clipped to a limit. Each
number is a constant or (..., steps, n) samples, one for each step, where steps may be 1; leading axes are those of the
members of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from numpy.typing import ArrayLike

from dyn_service.api.arguments import EffortFunction, Immutable
from dyn_service.api.arrays import finite, found, is_deferred, numbers
from dyn_service.api.spec import Spec
from dyn_service.errors import InvalidArgumentError
from dyn_service.support.upward import upward

if TYPE_CHECKING:
    from dyn_service.api.robot_properties import RobotProperties

Compensation = Literal["none", "gravity", "reference"]


@dataclass(frozen=True, eq=False, kw_only=True)
class SimulationLaw(Immutable):
    """A control law as data.

    q_ref: (nq,) rad | m. v_ref: (nv,) rad/s | m/s. feedforward: (nv,) N m | N, added. limit: (nv,) N m | N, at least 0,
    such as `robot.limits.efforts`; efforts are clipped to it, after the feed-forward was added. None: no limit. model:
    the robot that the law knows, in this process; None: the simulated one, with its gravity, overlay and payload. A law
    does not know external wrenches.

    Raises:
        InvalidArgumentError: A field is not a number or an array of finite numbers; `path` names it. The simulation
            checks shapes, which depend on the robot.
    """

    q_ref: ArrayLike
    v_ref: ArrayLike | None = None
    feedforward: ArrayLike | None = None
    limit: ArrayLike | None = None
    model: RobotProperties | None = None

    def __post_init__(self) -> None:
        # The base class has no gains: a simulation would silently apply the feed-forward alone.
        if type(self) is SimulationLaw:
            raise TypeError("SimulationLaw is a base class: use PDLaw, ComputedTorqueLaw or StateFeedbackLaw")
        super().__post_init__()
        for name, value in self.numbers.items():
            # Labelled and lazy arrays are checked when their numbers replace them.
            if is_deferred(value):
                continue
            array = numbers(value)
            if array is None:
                raise InvalidArgumentError(f"{name} must be numbers, found {found(value)}", path=name)
            # An infinite limit means no limit; every other number must be finite.
            if name != "limit":
                finite(name, array)

    def __reduce__(self) -> tuple[Any, ...]:
        # By keyword: these fields are keyword-only, which `Immutable.__reduce__` does not know.
        return partial(type(self), **{field.name: getattr(self, field.name) for field in fields(self)}), ()

    @property
    def numbers(self) -> dict[str, Any]:
        """The arrays that are given, by name."""
        arrays = ((field.name, getattr(self, field.name)) for field in fields(self) if field.name in SHAPES)
        return {name: value for name, value in arrays if value is not None}

    def function(self, robot: RobotProperties, dt: float, t0: float = 0.0) -> EffortFunction:
        """Returns the law as a function of (t, q, v), with the same bits as in `simulate`.

        Args:
            robot: The robot, in this process.
            dt: s between two samples.
            t0: s, the time of the first sample.

        Raises:
            InvalidArgumentError: A number has the wrong shape or value; `path` names it.
        """
        function: EffortFunction = upward("law_function")(self, robot, dt, t0)
        return function


@dataclass(frozen=True, eq=False, kw_only=True)
class PDLaw(SimulationLaw):
    """Springs and dampers at the joints.

    kp: (nv,) N m/rad | N/m. kd: (nv,) N m s/rad | N s/m. compensation: `gravity` adds the efforts that hold the robot
    at its position, `reference` those of `v_ref` and `a_ref` at its position. a_ref: (nv,) rad/s^2 | m/s^2, for
    `reference`.
    """

    kp: ArrayLike
    kd: ArrayLike
    compensation: Compensation = "none"
    a_ref: ArrayLike | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class ComputedTorqueLaw(SimulationLaw):
    """Inverse dynamics with linear error feedback: the query `computed_torque`.

    kp: (nv,) 1/s^2. kd: (nv,) 1/s. a_ref: (nv,) rad/s^2 | m/s^2.
    """

    kp: ArrayLike
    kd: ArrayLike
    a_ref: ArrayLike | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class StateFeedbackLaw(SimulationLaw):
    """Linear feedback of the state, such as that of a linear-quadratic regulator.

    gain: K (nv, 2 nv) of position errors, then velocity errors, all entries of v.
    """

    gain: ArrayLike


SHAPES: Mapping[str, tuple[str, ...]] = {
    "q_ref": ("nq",),
    "gain": ("nv", "2 nv"),
    **dict.fromkeys(("v_ref", "a_ref", "feedforward", "limit", "kp", "kd"), ("nv",)),
}
"""The core shapes of the numbers of laws."""

SCALARS = ("limit", "kp", "kd")
"""The numbers of laws for which one number means a vector of equal numbers."""

Efforts = Annotated[
    ArrayLike | EffortFunction | SimulationLaw | None,
    Spec(
        ("nv",), "N m | N", "efforts, constant or (.., steps, nv), each held for one step; default: zero", kind="effort"
    ),
]
