"""Nodes and what connects them: middleware, the shipped nodes, launches, bags, reports.

    python -m dyn_service.graph.nodes.plant.node --ros-args --params-file config/panda_plant.yaml

middleware/  topics, services, timers and parameters of nodes
nodes/       the shipped nodes: server, plant, controllers, robot_state_publisher, ros2_bridge
launch/      launch files and their runs
bags/        recording, playing and repairing MCAP files
report/      charts and verdicts of a run's page
dds          ROS 2's middleware, for the bridge

A node has ROS 2's node arguments, communicates over topics, and reports to a launcher if there is one. Write your own
nodes with `Node` and declare them as a `NodeKind`: docs/nodes.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dyn_service.graph.middleware.node import Node
    from dyn_service.graph.middleware.node_kind import NodeKind
    from dyn_service.support.parameter_descriptions import settable

__all__ = ["MODULES", "Node", "NodeKind", "settable"]

MODULES = {
    "server": "dyn_service.graph.nodes.server",
    "plant": "dyn_service.graph.nodes.plant.node",
    "controller": "dyn_service.graph.nodes.controllers.computed_torque",
    "robot_state_publisher": "dyn_service.graph.nodes.robot_state_publisher",
    "ros2_bridge": "dyn_service.graph.nodes.ros2_bridge",
    "gravity_compensation": "dyn_service.graph.nodes.controllers.gravity_compensation",
    "joint_impedance": "dyn_service.graph.nodes.controllers.joint_impedance",
    "collision_stop": "dyn_service.graph.nodes.controllers.collision_stop",
    "cartesian_impedance": "dyn_service.graph.nodes.controllers.cartesian_impedance",
    "trajectory_following": "dyn_service.graph.nodes.controllers.trajectory_following",
    "admittance": "dyn_service.graph.nodes.controllers.admittance",
}
"""The nodes of this package, each declared as `NODE` in its module. They are also entry points in pyproject.toml."""

_HOMES = {
    "Node": "dyn_service.graph.middleware.node",
    "NodeKind": "dyn_service.graph.middleware.node_kind",
    "settable": "dyn_service.support.parameter_descriptions",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'dyn_service.graph' has no attribute '{name}'")
    return getattr(importlib.import_module(home), name)
