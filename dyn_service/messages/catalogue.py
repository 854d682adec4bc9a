"""Message types by their names in ROS. Other packages declare theirs in the entry points `dyn_service.messages`:

    [project.entry-points."dyn_service.messages"]
    my_robot_msgs = "my_robot.my_robot_msgs"

The module is named like the ROS package and holds its messages, each a `Message`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import entry_points
from types import ModuleType

from dyn_service.errors import NotFoundError
from dyn_service.messages.fields import Message, ros_type
from dyn_service.support.suggestions import did_you_mean

GROUP = "dyn_service.messages"
OURS = (
    "builtin_interfaces",
    "std_msgs",
    "geometry_msgs",
    "sensor_msgs",
    "nav_msgs",
    "trajectory_msgs",
    "control_msgs",
    "tf2_msgs",
    "rosgraph_msgs",
    "diagnostic_msgs",
    "rcl_interfaces",
    "dyn_service_msgs",
)
"""ROS packages of which this one has messages."""


@lru_cache(maxsize=256)
def by_type(name: str) -> type[Message]:
    """The message type called `name`, `sensor_msgs/msg/JointState` or `sensor_msgs/JointState`.

    Raises:
        NotFoundError: There is no such type, here or among those that installed packages declare.
    """
    package, _, rest = name.partition("/")
    kind = rest.removeprefix("msg/")
    if package in OURS:
        for found in _messages(importlib.import_module(f"dyn_service.messages.{package}")):
            if found.__name__ == kind:
                return found
    for entry in entry_points(group=GROUP, name=package):
        for found in _messages(_declared(entry.name, entry.load())):
            if found.__name__ == kind:
                return found
    known = [ros_type(each) for each in all_types()]
    near = did_you_mean(f"{package}/msg/{kind}", known)
    raise NotFoundError(f"there is no message type {name!r}{near}")


def all_types() -> Iterator[type[Message]]:
    """Every message type, those of other packages too."""
    for package in OURS:
        yield from _messages(importlib.import_module(f"dyn_service.messages.{package}"))
    for entry in entry_points(group=GROUP):
        yield from _messages(_declared(entry.name, entry.load()))


def _declared(name: str, module: object) -> ModuleType:
    if not isinstance(module, ModuleType) or module.__name__.rpartition(".")[2] != name:
        raise NotFoundError(
            f"entry point {name!r} of {GROUP} must name a module that is called {name}, as the ROS package is"
        )
    return module


def _messages(module: ModuleType) -> Iterator[type[Message]]:
    """The public ones of the module itself, in its order."""
    for name, found in vars(module).items():
        ours = isinstance(found, type) and issubclass(found, Message) and found.__module__ == module.__name__
        if ours and not name.startswith("_"):
            yield found
