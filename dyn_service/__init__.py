"""Robot dynamics, in this process (`Robot`) or over a ZeroMQ socket (`Client`), with the same queries and results.

Names are loaded when they are first used, so that importing the package is quick and starts nothing. Type checkers read
the imports.

api/           the table of queries, their arguments, results and laws
connect        `connect`: a robot from a file, or of a server
engine/        `Robot`: the queries in this process
kernels/       compiles the equations of a query on a robot
dynamics/      the equations of motion
model/         a robot as data: bodies, joints
parsing/       readers and writers of robot files
formulations/  explicit forms of the equations, and what checks the compiled ones
simulation/    simulation, with contacts
sensors/       models of real sensors
service/       protocol, server, clients
control/       control laws, references, plants
graph/         nodes, topics, launches, bags, reports
messages/      messages of topics, as in ROS 2
hil/           hardware-in-the-loop tests with pytest
view/          the viewer
identification/  parameters of robots from recorded motions, and motions that show them
studies/       labelled and lazy arrays, studies of many states
cli/           the command line: `dyn`
support/       YAML, parameters, logs and other helpers of programs
errors         all errors
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

if TYPE_CHECKING:
    from dyn_service.api.arrays import Array as Array
    from dyn_service.api.queries import QUERIES as QUERIES
    from dyn_service.api.queries import ComputedTorqueLaw as ComputedTorqueLaw
    from dyn_service.api.queries import ConstraintForces as ConstraintForces
    from dyn_service.api.queries import Contact as Contact
    from dyn_service.api.queries import Inertial as Inertial
    from dyn_service.api.queries import JointNumbers as JointNumbers
    from dyn_service.api.queries import LinkPoses as LinkPoses
    from dyn_service.api.queries import Overlay as Overlay
    from dyn_service.api.queries import Payload as Payload
    from dyn_service.api.queries import PDLaw as PDLaw
    from dyn_service.api.queries import RobotQueries as RobotQueries
    from dyn_service.api.queries import StateFeedbackLaw as StateFeedbackLaw
    from dyn_service.api.queries import Wrench as Wrench
    from dyn_service.connect import connect as connect
    from dyn_service.engine.robot import Robot as Robot
    from dyn_service.errors import DeadlineExceededError as DeadlineExceededError
    from dyn_service.errors import DynError as DynError
    from dyn_service.errors import FailedPreconditionError as FailedPreconditionError
    from dyn_service.errors import InternalError as InternalError
    from dyn_service.errors import InvalidArgumentError as InvalidArgumentError
    from dyn_service.errors import NotFoundError as NotFoundError
    from dyn_service.errors import PermissionDeniedError as PermissionDeniedError
    from dyn_service.errors import ResourceExhaustedError as ResourceExhaustedError
    from dyn_service.errors import UnavailableError as UnavailableError
    from dyn_service.errors import UnimplementedError as UnimplementedError
    from dyn_service.errors import UrdfError as UrdfError
    from dyn_service.model.configuration import Configuration as Configuration
    from dyn_service.model.configuration import Limits as Limits
    from dyn_service.service.client.aio import AsyncClient as AsyncClient
    from dyn_service.service.client.aio import AsyncRemoteRobot as AsyncRemoteRobot
    from dyn_service.service.client.sync import Client as Client
    from dyn_service.service.client.sync import RemoteRobot as RemoteRobot
    from dyn_service.service.server.app import Server as Server
    from dyn_service.support.shipped import find_robot as find_robot

_NAMES = {
    "api.arrays": "Array",
    "api.queries": "QUERIES ComputedTorqueLaw ConstraintForces Contact Inertial JointNumbers LinkPoses Overlay PDLaw "
    "Payload RobotQueries StateFeedbackLaw Wrench",
    "connect": "connect",
    "engine.robot": "Robot",
    "errors": "DeadlineExceededError DynError FailedPreconditionError InternalError InvalidArgumentError NotFoundError "
    "PermissionDeniedError ResourceExhaustedError UnavailableError UnimplementedError UrdfError",
    "model.configuration": "Configuration Limits",
    "service.client.aio": "AsyncClient AsyncRemoteRobot",
    "service.client.sync": "Client RemoteRobot",
    "service.server.app": "Server",
    "support.shipped": "find_robot",
}
_HOMES = {name: f"dyn_service.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'dyn_service' has no attribute '{name}'")
    try:
        value = getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as fault:
        if fault.name is None or fault.name.partition(".")[0] == "dyn_service":
            raise
        import dyn_service.support.optional

        raise ModuleNotFoundError(dyn_service.support.optional.missing(name, fault.name), name=fault.name) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
