"""What a plant takes commands of, and the servos that make efforts of them, as the parameters say."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.command import EFFORT_ONLY, INTERFACES, Interface, SetPoint
from dyn_service.control.gains import per_joint
from dyn_service.control.plant.drive import Drive
from dyn_service.control.plant.hardware import Hardware, TakesSetPoints
from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.nodes.plant.parameters import DriveParameters, PlantParameters
from dyn_service.model.configuration import Configuration

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot

USUAL_W = 60.0
"""rad/s, of drives of which nothing else is said."""
EFFORT_SHARE = 0.25
"""Of the limits of effort, for accelerations: the rest is for weights, and for arms that are stretched."""
RISE_S = 0.2
"""The least time to a limit of velocity."""
Servo = Callable[[SetPoint, Array, Array], Array]


def interfaces_of(p: PlantParameters, at: Configuration, robot: Hardware) -> tuple[Interface, ...]:
    """What the plant takes commands of, in the order of `INTERFACES`.

    Raises:
        InvalidArgumentError: The parameters ask for what the joints, or the driver, do not do.
    """
    asked = tuple(kind for kind in INTERFACES if kind in p.command_interfaces)
    several = next((name for name, joint in zip(at.names, at.joints, strict=True) if not joint.adds_up), None)
    if several is not None:
        can, why = EFFORT_ONLY, f"joint '{several}' has several ways to move"
    elif robot.simulated:
        can, why = INTERFACES, ""
    else:
        said = robot.interfaces if isinstance(robot, TakesSetPoints) else EFFORT_ONLY
        can, why = tuple(kind for kind in INTERFACES if kind in said), "the driver takes no others"
    beyond = [kind for kind in asked if kind not in can]
    if beyond:
        raise InvalidArgumentError(
            f"command_interfaces: {', '.join(beyond)} cannot be commanded, expected {', '.join(can)}: {why}",
            path="command_interfaces",
        )
    return asked or can


def make_servo(robot: Robot, p: PlantParameters) -> Servo:
    """The drives of a simulated robot. robot: the model, which is all that they know.

    Raises:
        InvalidArgumentError: A parameter is out of its range, or does not go with another.
    """
    said = p.drive
    gains = [value if isinstance(value, list) else [value] for value in (said.stiffness, said.damping)]
    if bool(gains[0]) != bool(gains[1]):
        raise InvalidArgumentError("drive: stiffness and damping are of one servo: expected both or none", path="drive")
    if gains[0]:
        bare = DriveParameters()
        if (said.natural_frequency, said.damping_ratio) != (bare.natural_frequency, bare.damping_ratio):
            raise InvalidArgumentError(
                "drive: natural_frequency and damping_ratio are of servos with a model, stiffness and damping of those "
                "without: expected one of the two",
                path="drive",
            )
        return Drive.of_gains(said.stiffness, said.damping, robot.nv).effort
    # plants of few steps a second have drives too, softer ones, with room to the bound that a drive has
    w = said.natural_frequency or min(USUAL_W, 0.2 * p.rate_hz / said.damping_ratio)

    def inverse_dynamics(q: Array, v: Array, a: Array) -> Array:
        efforts: Array = robot.inverse_dynamics(q, v, a)
        return efforts

    return Drive.of_model(inverse_dynamics, w, said.damping_ratio, robot.nv, 1.0 / p.rate_hz).effort


def approach(robot: Robot, p: PlantParameters) -> Array:
    """(nv,) rad/s^2 | m/s^2, with which commanded positions that are far are gone to. robot: the model.

    Left out, all joints may begin at once, in the middle of their limits, and take `EFFORT_SHARE` of their efforts.

    Raises:
        InvalidArgumentError: A number is not positive and finite, or there are too many or too few.
    """
    n, said, limits = robot.nv, p.drive.acceleration, robot.limits
    if said != []:
        return per_joint("drive.acceleration", said, n, positive=True)
    still, q = np.zeros(n), limits.middle(otherwise=robot.configuration.neutral)
    weight = robot.inverse_dynamics(q, still, still)
    inertia = robot.inverse_dynamics(np.tile(q, (n, 1)), np.zeros((n, n)), np.eye(n)) - weight
    with np.errstate(divide="ignore"):
        able = EFFORT_SHARE * limits.efforts / np.abs(inertia).sum(axis=0)
    return np.minimum(np.where(able > 0.0, able, np.inf), limits.speeds / RISE_S)


def prepare(robot: Robot, interfaces: tuple[Interface, ...], p: PlantParameters) -> None:
    """Makes now what the drives ask: who waits for a compiler in the loop misses its time."""
    if interfaces != EFFORT_ONLY and not p.driver:
        still = np.zeros(robot.nv)
        robot.inverse_dynamics(robot.configuration.neutral, still, still)
