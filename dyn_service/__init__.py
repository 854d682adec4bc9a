"""Robot dynamics, in this process (`Robot`) or over a ZeroMQ socket (`Client`), with the same questions and answers.

Names are loaded when they are first used, so that importing the package is quick and starts nothing.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.argv[:1] == ["-m"] and any(word.partition(".")[0] == __name__ for word in sys.orig_argv[1:]):
    import dyn_service.support.interrupts as _interrupts  # a program of ours is about to run, and to import for long

    _interrupts.end_at_once()

__version__ = "0.2.0"

_HOMES = {
    "Robot": "dyn_service.engine.robot",
    "Client": "dyn_service.service.client.sync",
    "RemoteRobot": "dyn_service.service.client.sync",
    "AsyncClient": "dyn_service.service.client.aio",
    "AsyncRemoteRobot": "dyn_service.service.client.aio",
    "Server": "dyn_service.service.server.app",
    "connect": "dyn_service.connect",
    "QUERIES": "dyn_service.api.queries",
    "RobotQueries": "dyn_service.api.queries",
    "Contact": "dyn_service.api.queries",
    "Inertial": "dyn_service.api.queries",
    "JointNumbers": "dyn_service.api.queries",
    "Overlay": "dyn_service.api.queries",
    "Payload": "dyn_service.api.queries",
    "Wrench": "dyn_service.api.queries",
    "ConstraintForces": "dyn_service.api.queries",
    "LinkPoses": "dyn_service.api.queries",
    "DynError": "dyn_service.errors",
    "InvalidArgumentError": "dyn_service.errors",
    "UrdfError": "dyn_service.errors",
    "NotFoundError": "dyn_service.errors",
    "UnimplementedError": "dyn_service.errors",
    "ResourceExhaustedError": "dyn_service.errors",
    "FailedPreconditionError": "dyn_service.errors",
    "DeadlineExceededError": "dyn_service.errors",
    "PermissionDeniedError": "dyn_service.errors",
    "UnavailableError": "dyn_service.errors",
    "InternalError": "dyn_service.errors",
}

if TYPE_CHECKING:
    from dyn_service.api.queries import (
        QUERIES,
        ConstraintForces,
        Contact,
        Inertial,
        JointNumbers,
        LinkPoses,
        Overlay,
        Payload,
        RobotQueries,
        Wrench,
    )
    from dyn_service.connect import connect
    from dyn_service.engine.robot import Robot
    from dyn_service.errors import (
        DeadlineExceededError,
        DynError,
        FailedPreconditionError,
        InternalError,
        InvalidArgumentError,
        NotFoundError,
        PermissionDeniedError,
        ResourceExhaustedError,
        UnavailableError,
        UnimplementedError,
        UrdfError,
    )
    from dyn_service.service.client.aio import AsyncClient, AsyncRemoteRobot
    from dyn_service.service.client.sync import Client, RemoteRobot
    from dyn_service.service.server.app import Server

__all__ = [
    "QUERIES",
    "AsyncClient",
    "AsyncRemoteRobot",
    "Client",
    "ConstraintForces",
    "Contact",
    "DeadlineExceededError",
    "DynError",
    "FailedPreconditionError",
    "Inertial",
    "InternalError",
    "InvalidArgumentError",
    "JointNumbers",
    "LinkPoses",
    "NotFoundError",
    "Overlay",
    "Payload",
    "PermissionDeniedError",
    "RemoteRobot",
    "ResourceExhaustedError",
    "Robot",
    "RobotQueries",
    "Server",
    "UnavailableError",
    "UnimplementedError",
    "UrdfError",
    "Wrench",
    "__version__",
    "connect",
]


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
