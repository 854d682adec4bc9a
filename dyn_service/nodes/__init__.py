"""Processes around a robot: the simulated plant, its controller, the server; each also runs by itself.

    python -m dyn_service.nodes.plant --ros-args --params-file config/panda_plant.yaml

A node takes ROS 2's node arguments, speaks over topics, and tells a launcher how it does, if there is one. Nodes of
one's own are made of `Node` and declared as a `NodeKind`: docs/nodes.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dyn_service.config.described import settable
    from dyn_service.nodes.kinds import NodeKind
    from dyn_service.nodes.node import Node

__all__ = ["MODULES", "Node", "NodeKind", "settable"]

MODULES = {
    "server": "dyn_service.nodes.server",
    "plant": "dyn_service.nodes.plant",
    "controller": "dyn_service.nodes.controller",
    "robot_state_publisher": "dyn_service.nodes.robot_state_publisher",
    "ros2_bridge": "dyn_service.nodes.ros2_bridge",
    "gravity_compensation": "dyn_service.nodes.gravity_compensation",
    "joint_impedance": "dyn_service.nodes.joint_impedance",
    "collision_stop": "dyn_service.nodes.collision_stop",
    "cartesian_impedance": "dyn_service.nodes.cartesian_impedance",
    "trajectory_following": "dyn_service.nodes.trajectory_following",
    "admittance": "dyn_service.nodes.admittance",
}
"""The nodes of this package; each module declares its node as `NODE`. Also entry points in pyproject.toml."""

_HOMES = {
    "Node": "dyn_service.nodes.node",
    "NodeKind": "dyn_service.nodes.kinds",
    "settable": "dyn_service.config.described",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'dyn_service.nodes' has no attribute '{name}'")
    return getattr(importlib.import_module(home), name)
