"""A robot's driver from a Python file: the file's `connect` gives what `control/plant/hardware.py` asks of a robot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dyn_service.control.plant.driver import Driver
from dyn_service.control.plant.hardware import Hardware
from dyn_service.errors import DynError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.graph.nodes.plant.parameters import PlantParameters
from dyn_service.graph.nodes.registry import run_file
from dyn_service.model.configuration import Configuration, Limits

Connect = Callable[[Configuration, Limits, float, Mapping[str, Any]], Hardware]
"""(the model's joints, their limits, s of a cycle, settings) -> the robot, not opened yet."""

_MEMBERS = ("configuration", "simulated", "open", "write", "read", "close")
"""Of `Hardware`."""
_OF_SIMULATED = ("overlay", "sensors", "mjcf", "position_limits", "contacts", "initial_position")
"""Parameters that say what a simulated robot is; a real one is what it is."""


def make_hardware(at: Configuration, limits: Limits, p: PlantParameters) -> Hardware:
    """The robot behind the driver that the parameters name.

    Raises:
        NotFoundError: There is no such file.
        InvalidArgumentError: It has no `connect`, fails, or a parameter is one of simulated robots only.
        FailedPreconditionError: The driver's joints are not the model's.
        DynError: What the driver raises.
    """
    for name in _OF_SIMULATED:
        if getattr(p, name):
            raise InvalidArgumentError(f"{name}: of a simulated robot, expected none beside a driver", path=name)
    bare = p.actuators == type(p.actuators)() and p.drive == type(p.drive)()
    if p.clock != "real_time" or p.engine != "own" or not bare:
        raise InvalidArgumentError(
            "clock, engine, actuators, drive: of a simulated robot, expected their defaults beside a driver",
            path="driver",
        )
    path = Path(p.driver)
    if not path.is_file():
        raise NotFoundError(f"driver: there is no file {p.driver!r}", path="driver")
    robot = _connected(path, at, limits, p)
    missing = [name for name in _MEMBERS if not hasattr(robot, name)]
    if missing:
        raise InvalidArgumentError(
            f"driver {p.driver!r}: 'connect' gave {type(robot).__name__} without {', '.join(missing)}: expected a "
            "robot as control/plant/hardware.py has it",
            path="driver",
        )
    theirs = robot.configuration
    if (theirs.names, theirs.nq, theirs.nv) != (at.names, at.nq, at.nv):
        raise FailedPreconditionError(
            f"the driver's joints are {', '.join(theirs.names)}, the model's {', '.join(at.names)}"
        )
    return Driver(robot)


def _connected(path: Path, at: Configuration, limits: Limits, p: PlantParameters) -> Hardware:
    try:
        connect: Connect | None = getattr(run_file(path), "connect", None)
        if callable(connect):
            return connect(at, limits, 1.0 / p.rate_hz, p.driver_settings)
    except DynError:
        raise
    except Exception as error:
        raise InvalidArgumentError(
            f"driver {p.driver!r} cannot be used: {type(error).__name__}: {error}", path="driver"
        ) from error
    raise InvalidArgumentError(f"driver {p.driver!r} has no function 'connect'", path="driver")
