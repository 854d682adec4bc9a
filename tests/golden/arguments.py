"""Arguments of robots, overlays, simulations, sensors, laws and plants that are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dyn_service import Robot
from dyn_service.control.joint_goals import plan
from dyn_service.control.law import checked_command, per_joint
from dyn_service.control.laws.collision_stop import thresholds
from dyn_service.control.plant.simulated import Actuators
from dyn_service.graph.nodes.plant.factory import ActuatorParameters, PlantParameters, make_plant
from dyn_service.hil.faults import check_faults
from dyn_service.model.conventions import from_ros, to_ros
from dyn_service.sensors import Sensors
from dyn_service.service.protocol.inputs import pack_wrenches
from tests.api import test_values
from tests.conftest import URDF
from tests.control import (
    test_driver,
    test_joint_goals,
    test_law,
    test_laws,
    test_plant_core,
    test_plant_truth,
    test_safety,
)
from tests.engine import test_overlays, test_robot
from tests.golden.collecting import Case, raised, rows
from tests.hil import test_faults
from tests.model import test_conventions
from tests.sensors import test_sensor_devices, test_sensor_files
from tests.service.protocol import test_arrays
from tests.simulation import test_rheonomic_samples, test_simulate, test_simulate_loads, test_task


def cases(folder: Path) -> Iterator[Case]:
    yield from of_robots()
    yield from of_simulations()
    yield from of_sensors(folder)
    yield from of_laws()
    yield from of_plants()


def of_robots() -> Iterator[Case]:
    arm, panda = (Robot.from_urdf(URDF / f"{name}.urdf") for name in ("double_pendulum", "panda"))
    for name, ask, *_ in test_robot.ERRORS:
        yield raised(f"a robot: {name}", ask, arm)
    for place, overlay, _ in test_overlays.FAULTS:
        yield raised(f"an overlay{place}: {overlay}", panda.overlaid, overlay)
    for make, path, _ in test_values.WRONG:
        yield raised(f"a value's {path}", make)
    for value, *_ in rows(test_arrays.test_values_that_are_not_wrenches_are_refused):
        yield raised(f"wrenches: {value}", pack_wrenches, value, "inputs.wrenches")
    for field, value, *_ in test_conventions.MISSING:
        yield raised(f"messages of ROS: {field} {value}", joint_states, field, value)


def joint_states(field: str, value: Any) -> Any:
    messages = to_ros(test_conventions.AT, *test_conventions.state(7)[:2])
    of = messages["joint_state" if field in messages["joint_state"] else "multi_dof_joint_state"]
    of[field] = value
    return from_ros(test_conventions.AT, messages["joint_state"], messages["multi_dof_joint_state"])


def of_simulations() -> Iterator[Case]:
    scara, cart = (Robot.from_urdf(URDF / f"{name}.urdf") for name in ("scara", "cart_pendulum"))
    for _, changes, _ in test_task.REFUSED:
        yield raised(f"a task: {short(changes)}", test_task.task, **changes)
    for path, ask, _ in test_simulate.FAULTS:
        yield raised(f"simulate: {path}", ask, scara)
    still: dict[str, Any] = {"q0": np.zeros(4), "v0": np.zeros(4), "dt": 1e-3, "steps": 6}
    for _, changes, _ in test_simulate_loads.FAULTS:
        yield raised(f"simulate: {short(changes)}", scara.simulate, **(still | changes))
    prescribed = {"prescribed": {"cart_slide": lambda t: (t, 0.0, 0.0)}, "q0": [0.0], "v0": [0.0]}
    for changes, *_ in rows(test_rheonomic_samples.TestRefusals.test_arguments):
        given = {**prescribed, "dt": 0.1, "steps": 4, **changes}
        yield raised(f"simulate_rheonomic: {short(changes)}", cart.simulate_rheonomic, **given)


def short(changes: Mapping[str, Any]) -> str:
    """Returns arguments without addresses of functions."""
    return ", ".join(f"{name} {'a function' if callable(value) else value}" for name, value in changes.items())


def of_sensors(folder: Path) -> Iterator[Case]:
    for make, _ in test_sensor_devices.WRONG:
        yield raised("settings of a sensor", make)
    ur5e = Robot.from_urdf(URDF / "ur5e.urdf")
    for text in test_sensor_files.FAULTS:
        path = folder / "sensors.yaml"
        path.write_text(text)
        yield raised(f"a file of sensors: {text}", Sensors.from_file, ur5e, path)


def of_laws() -> Iterator[Case]:
    arm = Robot.from_urdf(URDF / "double_pendulum.urdf")
    for answer, _ in rows(test_law.test_what_is_no_command_is_refused_by_name):
        given = (test_law.Scripted(answer), test_law.STATE, test_law.REFERENCE, 0.002, test_law.NAMES)
        yield raised(f"a law's answer: {answer}", checked_command, *given)
    for numbers, _ in rows(test_laws.test_numbers_of_a_law_that_are_none):
        yield raised(f"stiffness: {numbers}", per_joint, "stiffness", numbers, 2)
    for numbers, efforts, _ in rows(test_laws.test_thresholds_that_are_none):
        yield raised(f"thresholds: {numbers}, {efforts}", thresholds, numbers, 0.1, np.array(efforts), ("a", "b"))
    goal: dict[str, Any] = {
        "names": arm.joint_names,
        "positions": test_joint_goals.POSITIONS,
        "times": test_joint_goals.TIMES,
    }
    for changes, _ in rows(test_joint_goals.test_goals_that_are_refused):
        asked = test_joint_goals.goal(**(goal | changes))
        given = (asked, test_joint_goals.START, arm.configuration, test_joint_goals.LIMITS)
        yield raised(f"a goal: {short(changes)}", plan, *given, near=0.05)


def of_plants() -> Iterator[Case]:
    pendulum, arm = (Robot.from_urdf(URDF / f"{name}.urdf") for name in ("pendulum", "double_pendulum"))
    for changes, _ in rows(test_plant_core.test_parameters_out_of_their_range):
        parameters = PlantParameters(robot="-", **changes)
        yield raised(f"a plant: {short(changes)}", make_plant, pendulum, parameters, session=1)
    for overlay, *_ in rows(test_plant_truth.test_overlays_that_are_none_are_refused):
        yield raised(f"a plant's overlay: {overlay}", test_plant_truth.made, arm, overlay=overlay)
    for said, _ in rows(test_plant_truth.test_motors_that_there_cannot_be):
        yield raised(f"motors: {said}", test_plant_truth.made, arm, actuators=ActuatorParameters(**said))
    good = {"dt_s": 0.001, "effort_limit": np.full(2, 3.0), "delay_steps": 1, "lag_s": np.zeros(2)}
    for said, _ in rows(test_plant_truth.test_motors_made_in_python_are_held_to_the_same):
        yield raised(f"motors: {said}", Actuators, **(good | said))
    for changes, _ in rows(test_safety.test_settings_out_of_their_range):
        yield raised(f"a plant's safety: {changes}", test_safety.Rig, **changes)
    for script, _ in rows(test_driver.test_what_is_no_reading_ends_the_loop_in_one_sentence):
        yield raised("a driver's reading", test_driver.under_command, test_driver.Scripted(script))
    for reason in test_safety.SAYS:
        rig, changes = test_safety.wrong(reason, beyond_limits="stop" if reason == "beyond_limits" else "clip")
        rig.offer(**changes)
        yield Case(f"a command: {reason}", "refusal", rig.of.refusal.reason, rig.of.refusal.sentence)
    for make, _ in rows(test_faults.test_what_does_not_fit_is_said):
        yield raised("a fault of a test", make)
    for faults, seconds, _ in rows(test_faults.test_a_run_in_which_a_fault_does_nothing_shows_nothing):
        yield raised(f"faults of a test: {faults}, {seconds} s", check_faults, faults, seconds)
