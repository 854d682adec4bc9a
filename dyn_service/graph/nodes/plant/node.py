"""The plant node: a simulated or real robot under commands, in wall time, in a multiple of it, or in lockstep."""

from __future__ import annotations

import secrets

import msgspec

from dyn_service.control.joint_states import JointStates
from dyn_service.graph.middleware.node import Node
from dyn_service.graph.middleware.node_kind import NodeKind
from dyn_service.graph.nodes.plant import report as plant_report
from dyn_service.graph.nodes.plant.factory import PlantParameters, differences, integrator_of, make_plant, prepare
from dyn_service.graph.nodes.plant.loop import PlantChanges, PlantLoop, PlantTopics, create_services
from dyn_service.support.optional import require
from dyn_service.support.shipped import find_robot


def main(node: Node[PlantParameters]) -> None:
    """Runs the plant until it is asked to stop."""
    # imported late: a launcher reads only the declaration below and needs no engine
    from dyn_service.engine.robot import Robot

    p = node.parameters
    with node.stop.at_once():
        robot = Robot.from_file(find_robot(p.robot), root=p.root, joints=p.joints or None, mimic=p.mimic)
        plant = make_plant(robot, p, session=secrets.randbits(53))
        changes = None if p.driver else PlantChanges(plant, robot, p)
        if changes is not None:
            changes.prepare()
            prepare(robot, plant.safety.interfaces, p)
        messages = JointStates.of(robot)
    topics = PlantTopics(node, p, messages, plant)
    node.telemetry.facts(
        {
            "role": "plant",
            "robot": robot.name,
            "fingerprint": robot.fingerprint,
            "joints": list(robot.joint_names),
            "configuration": robot.configuration.to_wire(),
            "effort_limit": plant.safety.settings.effort_limit.tolist(),
            "effort_rate": plant.safety.settings.effort_rate.tolist(),
            "velocity_limit": plant.safety.settings.velocity_limit.tolist(),
            "lower": plant.limits.lower.tolist(),
            "upper": plant.limits.upper.tolist(),
            "session": plant.safety.session,
            "integrator": integrator_of(p),
            "substeps": p.substeps,
            "rate_hz": p.rate_hz,
            "clock": p.clock,
            "speed": p.speed if p.clock == "faster" else 1.0,
            "driver": p.driver,
            "safe_stop": p.safe_stop,
            "hold_s": plant.safety.settings.hold_s,
            "command_interfaces": list(plant.safety.interfaces),
            "bounds": msgspec.to_builtins(p.bounds),
            **differences(p),
        }
    )
    loop = PlantLoop(node, plant, topics)
    if changes is not None:
        create_services(node, loop, changes)
    loop.run()


def check(p: PlantParameters) -> None:
    """Checks that the engine is installed."""
    if p.engine != "own":
        require(f"engine '{p.engine}'", {"mujoco": "mujoco", "fmu": "fmpy"}[p.engine])


NODE = NodeKind(
    "plant",
    PlantParameters,
    main,
    panels=plant_report.PANELS,
    columns=plant_report.COLUMNS,
    at_end=plant_report.at_end,
    check=check,
    about="A simulated robot in wall time, by default at 1 kHz: accepts efforts and publishes its state.",
)

if __name__ == "__main__":
    raise SystemExit(NODE.run())
