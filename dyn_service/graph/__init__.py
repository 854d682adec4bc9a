"""Nodes and what connects them: middleware, the shipped nodes, launches, bags, reports.

    python -m dyn_service.graph.nodes.plant.node --ros-args --params-file config/panda_plant.yaml

middleware/  topics, services, timers and parameters of nodes
nodes/       the shipped nodes: server, plant, controllers, robot_state_publisher, payload_estimator, ros2_bridge
launch/      launch files and their runs
bags/        recording, playing and repairing MCAP files
report/      charts and verdicts of a run's page
dds          ROS 2's middleware, for the bridge

A node has ROS 2's node arguments, communicates over topics, and reports to a launcher if there is one. Write your own
nodes with `Node` and declare them as a `NodeKind`: docs/nodes.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dyn_service.support.lazy_names import lazy_names

if TYPE_CHECKING:
    from dyn_service.graph.middleware.discovery import Discovery
    from dyn_service.graph.middleware.node import Node
    from dyn_service.graph.middleware.node_kind import NodeKind, Panel, Section
    from dyn_service.graph.middleware.telemetry import NodeTelemetry, Recorder, Rows, TelemetryStore
    from dyn_service.graph.nodes.controllers.controller_kind import commander, controller_kind
    from dyn_service.graph.nodes.controllers.parameters import MotionParameters, trajectory_maker
    from dyn_service.graph.nodes.plant.factory import PlantParameters, make_plant
    from dyn_service.graph.nodes.plant.node import PlantChanges
    from dyn_service.graph.nodes.plant.srvs import PlantTimeResponse, SetStateRequest
    from dyn_service.graph.nodes.registry import Registry
    from dyn_service.graph.report.charts import Card, Chart, Finding, Line, Mark, spans_of
    from dyn_service.support.parameter_descriptions import settable

__all__ = [
    "Card",
    "Chart",
    "Discovery",
    "Finding",
    "Line",
    "Mark",
    "MotionParameters",
    "Node",
    "NodeKind",
    "NodeTelemetry",
    "Panel",
    "PlantChanges",
    "PlantParameters",
    "PlantTimeResponse",
    "Recorder",
    "Registry",
    "Rows",
    "Section",
    "SetStateRequest",
    "TelemetryStore",
    "commander",
    "controller_kind",
    "make_plant",
    "settable",
    "spans_of",
    "trajectory_maker",
]

__getattr__ = lazy_names(
    __name__,
    {
        "dyn_service.graph.middleware.discovery": "Discovery",
        "dyn_service.graph.middleware.node": "Node",
        "dyn_service.graph.middleware.node_kind": "NodeKind Panel Section",
        "dyn_service.graph.middleware.telemetry": "NodeTelemetry Recorder Rows TelemetryStore",
        "dyn_service.graph.nodes.controllers.controller_kind": "commander controller_kind",
        "dyn_service.graph.nodes.controllers.parameters": "MotionParameters trajectory_maker",
        "dyn_service.graph.nodes.plant.factory": "PlantParameters make_plant",
        "dyn_service.graph.nodes.plant.node": "PlantChanges",
        "dyn_service.graph.nodes.plant.srvs": "PlantTimeResponse SetStateRequest",
        "dyn_service.graph.nodes.registry": "Registry",
        "dyn_service.graph.report.charts": "Card Chart Finding Line Mark spans_of",
        "dyn_service.support.parameter_descriptions": "settable",
    },
)
