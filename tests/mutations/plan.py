"""What is mutated, and which tests see a mutant of each module, the quickest and likeliest first.

The order decides only how long a mutant lives: each is tried against all its stages until a test turns red.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "dyn_service"

PARTS: dict[str, tuple[str, ...]] = {
    "dynamics": ("dynamics",),
    "model": ("model", "model/joints"),
    "sim": ("sim",),
    "frames": ("kernels/frames.py",),
    "urdf": ("urdf",),
    "reference": ("reference",),
    "overlays": ("engine/overlay.py", "engine/overlaid.py", "model/parameters.py", "kernels/symbols.py"),
    "rows": ("engine/importing.py", "engine/operands.py", "engine/rows.py", "engine/wrenches.py"),
    "ways": ("kernels/single.py", "kernels/outside.py", "kernels/pushes.py", "kernels/hyperbolic.py"),
    "formats": ("formats", "formats/mjcf", "formats/sdf", "formats/writing"),
    "messages": (
        "protocol/overlays.py",
        "protocol/wrenches.py",
        "protocol/contacts.py",
        "protocol/maps.py",
        "api/arguments.py",
    ),
    "sensors": ("sensors",),
    "plant": (
        "control/plant_core.py",
        "control/safety.py",
        "control/actuators.py",
        "control/encoders.py",
        "control/simulated.py",
        "control/closed_loop.py",
        "control/command.py",
        "control/command_values.py",
        "control/commander.py",
        "control/drive.py",
        "control/driver.py",
        "control/hardware.py",
        "control/joint_states.py",
        "control/joint_states_heard.py",
        "control/set_points.py",
        "control/taking_over.py",
        "sim/mujoco_engine.py",
    ),
    "hil": (
        "hil/measures.py",
        "hil/checks.py",
        "hil/signals.py",
        "hil/faults.py",
        "hil/value_faults.py",
        "hil/channel.py",
        "hil/lockstep.py",
        "hil/proxy.py",
        "hil/message_log.py",
    ),
    "topics": (
        "messages",
        "nodes/graph.py",
        "nodes/lifecycle.py",
        "nodes/pacing.py",
        "nodes/publisher.py",
        "nodes/services.py",
        "nodes/settables.py",
        "nodes/subscription.py",
        "nodes/timers.py",
    ),
    "bags": ("bags", "dds"),
    "laws": (
        "control/admittance.py",
        "control/cartesian_impedance.py",
        "control/collision_stop.py",
        "control/computed_torque.py",
        "control/following.py",
        "control/gains.py",
        "control/gravity_compensation.py",
        "control/goal_feedback.py",
        "control/goal_tolerances.py",
        "control/reference_command.py",
        "control/rehearsal.py",
        "control/trajectory.py",
        "control/joint_goals.py",
        "control/joint_impedance.py",
        "control/law.py",
        "control/momentum_observer.py",
        "control/trajectory_following.py",
    ),
}
"""The parts of the command line: folders and files of the package."""

SHAPING = (
    "dynamics/",
    "kernels/",
    "model/building.py",
    "model/composite.py",
    "model/inertia.py",
    "model/joints/",
    "model/steps.py",
    "model/tree.py",
    "model/welding.py",
)
"""Mutants of these make other kernels, of the same robots: each starts from an empty kernel cache of its own."""

_NUMBERS = "tests/oracle/test_in_numbers.py"
_OVERLAYS = ("tests/theory/test_overlays.py", "tests/oracle/test_overlays.py", "tests/service/test_overlays.py")
_LAWS = ("tests/nodes/test_laws_in_numbers.py", "tests/nodes/test_laws.py", "tests/nodes/test_panda_controllers.py")
_PLANT = ("tests/nodes/test_plant_core.py", "tests/nodes/test_plant_truth.py")
_NODE = ("tests/nodes/test_node.py", "tests/nodes/test_graph.py", "tests/nodes/test_publishing.py")
_BAG = ("tests/bags/test_bags.py", "tests/bags/test_live.py")
_REQUESTS = ("tests/bags/test_requests.py", "tests/bags/test_engines.py")
_READING = (
    "tests/unit/test_urdf_reading.py",
    "tests/unit/test_urdf_faults.py",
    "tests/unit/test_urdf_habits.py",
    "tests/unit/test_receipt.py",
)

_TREE = (
    "tests/unit/test_tree.py",
    _NUMBERS,
    *_READING,
    "tests/unit/test_urdf_doubts.py",
    "tests/unit/test_robot.py",
)

_MJCF = ("tests/oracle/test_mjcf.py", "tests/unit/test_mjcf_faults.py", "tests/unit/test_chains.py")
_SDF = ("tests/unit/test_sdf.py", "tests/unit/test_sdf_faults.py", "tests/unit/test_chains.py")

STAGES: dict[str, tuple[str, ...]] = {
    "dynamics/": (_NUMBERS, "tests/theory/test_newton_euler.py", "tests/unit/test_robot.py"),
    "dynamics/articulated.py": (
        _NUMBERS,
        "tests/theory/test_branch_inertias.py",
        "tests/unit/test_robot.py",
        "tests/theory/test_newton_euler.py",
    ),
    "dynamics/body_frame.py": (_NUMBERS, "tests/theory/test_body_frame.py"),
    "dynamics/configurations.py": ("tests/unit/test_joints.py", "tests/oracle/test_many_types.py"),
    "dynamics/constraint.py": (
        _NUMBERS,
        "tests/theory/test_branch_inertias.py",
        "tests/unit/test_robot.py",
        "tests/theory/test_newton_euler.py",
    ),
    "dynamics/hamilton.py": (_NUMBERS, "tests/theory/test_hamilton.py", "tests/theory/test_momentum_rates.py"),
    "reference/influence.py": (
        "tests/theory/test_verification.py",
        "tests/theory/test_newton_euler.py",
        "tests/theory/test_hamilton.py",
    ),
    "dynamics/integration.py": (_NUMBERS, "tests/nodes/test_integrators.py", "tests/theory/test_simulate.py"),
    "reference/bodies.py": ("tests/theory/test_bodies.py", "tests/theory/test_projected.py"),
    "reference/lagrangian.py": ("tests/theory/test_problems.py",),
    "dynamics/mass_matrix.py": (_NUMBERS, "tests/unit/test_robot.py", "tests/theory/test_newton_euler.py"),
    "reference/particles.py": ("tests/theory/test_particles.py",),
    "dynamics/passive.py": (
        _NUMBERS,
        "tests/unit/test_mimic.py",
        "tests/theory/test_passive.py",
        "tests/theory/test_mimic.py",
    ),
    "dynamics/projected.py": (_NUMBERS, "tests/theory/test_projected.py"),
    "dynamics/sensors.py": (_NUMBERS, "tests/unit/test_sensor_queries.py"),
    "dynamics/task_space.py": (
        _NUMBERS,
        "tests/unit/test_task_space.py",
        "tests/oracle/test_task_space.py",
        "tests/theory/test_mimic.py",
    ),
    "api/named.py": ("tests/unit/test_task_space.py", "tests/service/test_same_answers.py"),
    "dynamics/operators.py": (_NUMBERS, "tests/theory/test_operators.py"),
    "sensors/": (
        "tests/unit/test_sensor_devices.py",
        "tests/unit/test_sensor_files.py",
        "tests/oracle/test_sensors.py",
    ),
    "reference/segments.py": ("tests/theory/test_matrix_formalism.py",),
    "dynamics/symbolic.py": ("tests/theory/test_symbolic.py",),
    "dynamics/topology.py": ("tests/theory/test_operators.py",),
    "kernels/symbols.py": _OVERLAYS,
    "model/parameters.py": _OVERLAYS,
    "kernels/frames.py": (
        "tests/nasty/test_frames.py",
        "tests/unit/test_kernels.py",
        "tests/unit/test_robot.py",
        "tests/unit/test_certificates.py",
    ),
    "kernels/hyperbolic.py": ("tests/unit/test_hyperbolic.py",),
    "kernels/single.py": ("tests/unit/test_single.py", "tests/unit/test_pushes.py"),
    "kernels/outside.py": ("tests/unit/test_single.py", "tests/unit/test_pushes.py"),
    "kernels/pushes.py": ("tests/unit/test_pushes.py",),
    "api/arguments.py": (
        "tests/unit/test_table.py",
        "tests/service/test_protocol_page.py",
        "tests/service/test_contacts.py",
        "tests/theory/test_overlays.py",
    ),
    "formats/": (*_SDF, *_MJCF, "tests/unit/test_formats_beyond.py"),
    "formats/converting.py": ("tests/oracle/test_converting.py", "tests/service/test_files.py"),
    "formats/mjcf/": (*_MJCF, "tests/unit/test_formats_numbers.py", "tests/unit/test_mimic_in_files.py"),
    "formats/pose.py": ("tests/unit/test_poses.py", *_SDF, *_MJCF),
    "formats/reading.py": (*_SDF, *_MJCF, "tests/unit/test_xacro.py", "tests/service/test_files.py"),
    "formats/sdf/": (*_SDF, "tests/unit/test_formats_numbers.py", "tests/unit/test_mimic_in_files.py"),
    "formats/writing/": ("tests/oracle/test_converting.py",),
    "formats/xacro.py": ("tests/unit/test_xacro.py",),
    "protocol/contacts.py": ("tests/service/test_contacts.py",),
    "protocol/maps.py": ("tests/service/test_malformed_requests.py", "tests/service/test_overlays.py"),
    "protocol/overlays.py": ("tests/service/test_overlays.py",),
    "protocol/wrenches.py": ("tests/service/test_wrenches.py", "tests/unit/test_suggestions.py"),
    "engine/importing.py": ("tests/unit/test_receipt.py", "tests/unit/test_joint_files.py"),
    "engine/operands.py": ("tests/unit/test_robot.py", "tests/service/test_bad_inputs.py"),
    "engine/short_way.py": ("tests/unit/test_short_way.py",),
    "model/solvable.py": ("tests/theory/test_branch_inertias.py", "tests/unit/test_robot.py"),
    "engine/rows.py": ("tests/unit/test_robot.py", "tests/theory/test_operators.py"),
    "engine/wrenches.py": ("tests/unit/test_pushes.py", "tests/unit/test_robot.py"),
    "model/": (*_READING, "tests/unit/test_tree.py", "tests/unit/test_mimic.py"),
    "urdf/": _READING,
    "model/passive.py": ("tests/unit/test_tree.py", "tests/unit/test_joint_files.py", "tests/theory/test_passive.py"),
    "model/mimic.py": ("tests/unit/test_mimic.py",),
    "urdf/joint_files.py": ("tests/unit/test_joint_files.py",),
    "urdf/transmissions.py": ("tests/unit/test_joint_files.py", *_READING),
    "urdf/doubts.py": ("tests/unit/test_urdf_doubts.py", "tests/unit/test_urdf_units.py", *_READING),
    "model/inertia.py": (
        "tests/unit/test_inertia.py",
        "tests/unit/test_tree.py",
        "tests/unit/test_urdf_doubts.py",
        _NUMBERS,
    ),
    "urdf/loaded.py": ("tests/unit/test_loaded_objects.py",),
    "model/configuration.py": (
        "tests/unit/test_joints.py",
        "tests/unit/test_description.py",
        "tests/unit/test_short_way.py",
        "tests/unit/test_conventions.py",
        "tests/theory/test_rheonomic_samples.py",
        "tests/oracle/test_many_types.py",
    ),
    "model/joints/": (
        "tests/unit/test_joints.py",
        "tests/nasty/test_frames.py",
        "tests/unit/test_conventions.py",
        "tests/unit/test_tree.py",
    ),
    "model/order.py": ("tests/service/test_names.py",),
    "sim/contact.py": ("tests/theory/test_contact.py", "tests/theory/test_ground_reactions.py"),
    "sim/cones.py": ("tests/theory/test_cones.py", "tests/theory/test_contact.py"),
    "sim/rigid.py": ("tests/theory/test_contact.py", "tests/oracle/test_contact.py"),
    "sim/supports.py": ("tests/theory/test_contact.py", "tests/service/test_contacts.py"),
    "sim/supported_steps.py": ("tests/theory/test_contact.py", "tests/service/test_contacts.py"),
    "sim/ground_reactions.py": ("tests/theory/test_ground_reactions.py", "tests/service/test_bounds.py"),
    "sim/cone_program.py": ("tests/theory/test_ground_reactions.py",),
    "sim/stability.py": ("tests/unit/test_stability.py",),
    "sim/stepping.py": (
        "tests/unit/test_stability.py",
        "tests/nodes/test_plant_core.py",
        "tests/nodes/test_integrators.py",
        "tests/nodes/test_plant_truth.py",
        "tests/oracle/test_felt_contacts.py",
    ),
    "sim/stick_slip.py": ("tests/theory/test_stick_slip.py",),
    "model/steps.py": ("tests/nodes/test_integrators.py", _NUMBERS),
    "model/description.py": ("tests/unit/test_places.py", "tests/unit/test_joints.py", *_READING),
    "urdf/places.py": ("tests/unit/test_places.py", *_READING),
    "urdf/quantities.py": ("tests/unit/test_quantities.py", *_READING, "tests/unit/test_loaded_objects.py"),
    "urdf/receipt.py": ("tests/unit/test_receipt.py",),
    "model/building.py": _TREE,
    "model/composite.py": (
        "tests/unit/test_tree.py",
        "tests/unit/test_mimic.py",
        "tests/unit/test_receipt.py",
        "tests/unit/test_robot.py",
    ),
    "model/tree.py": _TREE,
    "model/welding.py": _TREE,
    "urdf/reader.py": (*_READING, "tests/unit/test_urdf_doubts.py", "tests/property/test_urdf_mutilated.py"),
    "control/plant_core.py": (*_PLANT, "tests/nodes/test_hardware.py"),
    "control/safety.py": ("tests/nodes/test_safety.py", *_PLANT, "tests/nodes/test_hardware.py"),
    "control/actuators.py": ("tests/nodes/test_plant_truth.py",),
    "control/closed_loop.py": ("tests/nodes/test_closed_loop.py",),
    "control/encoders.py": ("tests/nodes/test_plant_truth.py", "tests/oracle/test_sensors.py"),
    "control/simulated.py": (*_PLANT, "tests/nodes/test_plant_services.py", "tests/oracle/test_felt_contacts.py"),
    "control/command.py": ("tests/nodes/test_command_interfaces.py", "tests/nodes/test_taking_over.py"),
    "control/command_values.py": (
        "tests/nodes/test_safety.py",
        "tests/nodes/test_command_interfaces.py",
        "tests/nodes/test_taking_over.py",
    ),
    "control/commander.py": (
        "tests/nodes/test_set_while_running.py",
        "tests/nodes/test_goal_tolerances.py",
        "tests/nodes/test_panda_controllers.py",
        "tests/nodes/test_command_interfaces.py",
    ),
    "control/drive.py": ("tests/nodes/test_command_interfaces.py",),
    "control/driver.py": ("tests/nodes/test_driver.py", "tests/nodes/test_hardware.py"),
    "control/goal_feedback.py": ("tests/nodes/test_joint_goals.py", "tests/nodes/test_goal_tolerances.py"),
    "control/hardware.py": ("tests/nodes/test_driver.py", "tests/nodes/test_hardware.py"),
    "control/joint_states.py": ("tests/unit/test_joint_states.py", "tests/nodes/test_robot_state_publisher.py"),
    "control/joint_states_heard.py": ("tests/unit/test_joint_states.py",),
    "control/reference_command.py": ("tests/nodes/test_laws_in_numbers.py", "tests/nodes/test_taking_over.py"),
    "control/rehearsal.py": ("tests/nodes/test_law.py", "tests/nodes/test_laws.py"),
    "control/set_points.py": ("tests/nodes/test_command_interfaces.py",),
    "control/taking_over.py": ("tests/nodes/test_taking_over.py",),
    "control/trajectory.py": ("tests/nodes/test_trajectory.py", "tests/nodes/test_joint_goals.py"),
    "control/admittance.py": _LAWS,
    "control/cartesian_impedance.py": (
        "tests/nodes/test_laws_in_numbers.py",
        "tests/nodes/test_cartesian_impedance.py",
    ),
    "control/collision_stop.py": _LAWS,
    "control/computed_torque.py": (
        "tests/nodes/test_laws_in_numbers.py",
        "tests/nodes/test_computed_torque.py",
        "tests/nodes/test_law.py",
    ),
    "control/following.py": (
        "tests/nodes/test_law.py",
        "tests/nodes/test_computed_torque.py",
        "tests/nodes/test_joint_goals.py",
    ),
    "control/gains.py": _LAWS,
    "control/gravity_compensation.py": _LAWS,
    "control/goal_tolerances.py": ("tests/nodes/test_goal_tolerances.py",),
    "control/joint_goals.py": ("tests/nodes/test_joint_goals.py", "tests/nodes/test_timed_goals.py"),
    "control/joint_impedance.py": _LAWS,
    "control/law.py": ("tests/nodes/test_law.py",),
    "control/momentum_observer.py": _LAWS,
    "control/trajectory_following.py": ("tests/nodes/test_joint_goals.py", "tests/nodes/test_goal_tolerances.py"),
    "hil/": ("tests/hil/test_checks.py", "tests/hil/test_faults.py", "tests/hil/test_lockstep.py"),
    "hil/faults.py": ("tests/hil/test_faults.py", "tests/hil/test_lockstep.py"),
    "hil/value_faults.py": ("tests/hil/test_faults.py", "tests/hil/test_lockstep.py"),
    "hil/channel.py": ("tests/hil/test_faults.py", "tests/hil/test_lockstep.py"),
    "hil/lockstep.py": ("tests/hil/test_lockstep.py",),
    "hil/proxy.py": ("tests/hil/test_proxy.py",),
    "hil/message_log.py": ("tests/hil/test_message_log.py", "tests/hil/test_lockstep.py"),
    "hil/measures.py": ("tests/hil/test_measures.py", "tests/hil/test_checks.py"),
    "hil/checks.py": ("tests/hil/test_checks.py", "tests/hil/test_measures.py"),
    "hil/signals.py": ("tests/hil/test_checks.py", "tests/hil/test_lockstep.py"),
    "messages/": ("tests/unit/test_messages.py", "tests/bags/test_bags.py"),
    "nodes/graph.py": ("tests/nodes/test_graph.py", "tests/nodes/test_node.py"),
    "nodes/lifecycle.py": _NODE,
    "nodes/pacing.py": ("tests/nodes/test_pacing.py", "tests/nodes/test_realtime.py"),
    "nodes/publisher.py": _NODE,
    "nodes/services.py": _NODE,
    "nodes/settables.py": _NODE,
    "nodes/subscription.py": _NODE,
    "nodes/timers.py": _NODE,
    "bags/": _BAG,
    "bags/comparing.py": _REQUESTS,
    "bags/pinocchio_engine.py": ("tests/bags/test_engines.py",),
    "bags/requests.py": _REQUESTS,
    "bags/verify.py": _REQUESTS,
    "dds/": ("tests/oracle/test_dds.py", "tests/nodes/test_ros2_bridge.py"),
    "engine/overlay.py": _OVERLAYS,
    "engine/overlaid.py": _OVERLAYS,
    "urdf/structure.py": (*_READING, "tests/unit/test_loaded_objects.py"),
    "urdf/scales.py": ("tests/unit/test_urdf_units.py",),
    "urdf/unread.py": (
        "tests/unit/test_urdf_habits.py",
        "tests/unit/test_urdf_reading.py",
        "tests/unit/test_urdf_faults.py",
    ),
    "urdf/walking.py": ("tests/unit/test_urdf_habits.py",),
    "sim/": ("tests/theory/test_simulate.py", "tests/theory/test_simulate_loads.py", "tests/theory/test_midpoint.py"),
    "sim/adaptive.py": (
        "tests/unit/test_adaptive.py",
        "tests/unit/test_task.py",
        "tests/theory/test_simulate_loads.py",
        "tests/theory/test_simulate.py",
        "tests/service/test_remote_motion.py",
    ),
    "sim/divergence.py": (
        "tests/unit/test_divergence.py",
        "tests/theory/test_simulate.py",
        "tests/theory/test_simulate_loads.py",
        "tests/theory/test_midpoint.py",
    ),
    "sim/mujoco_engine.py": ("tests/oracle/test_mujoco_plant.py",),
    "sim/integrators.py": ("tests/nodes/test_integrators.py", "tests/nodes/test_plant_core.py"),
    "sim/task.py": (
        "tests/unit/test_task.py",
        "tests/theory/test_simulate.py",
        "tests/theory/test_simulate_loads.py",
        "tests/service/test_remote_motion.py",
        "tests/service/test_computations.py",
    ),
    "sim/midpoint.py": (
        "tests/unit/test_simulation.py",
        "tests/theory/test_midpoint.py",
        "tests/theory/test_simulate.py",
    ),
    "sim/rheonomic.py": (
        "tests/theory/test_rheonomic_loads.py",
        "tests/theory/test_rheonomic_samples.py",
        "tests/theory/test_particles.py",
    ),
    "sim/simulate.py": (
        "tests/unit/test_simulation.py",
        "tests/theory/test_simulate.py",
        "tests/theory/test_simulate_loads.py",
        "tests/theory/test_midpoint.py",
    ),
    "sim/parts.py": ("tests/unit/test_parts.py", "tests/service/test_remote_motion.py"),
    "sim/prescribed.py": ("tests/theory/test_rheonomic_samples.py", "tests/service/test_rheonomic.py"),
    "sim/rheonomic_task.py": ("tests/theory/test_rheonomic_samples.py", "tests/theory/test_rheonomic_loads.py"),
    "sim/rheonomic_parts.py": ("tests/service/test_rheonomic.py", "tests/theory/test_rheonomic_samples.py"),
    "sim/sampled.py": ("tests/theory/test_rheonomic_samples.py",),
    "reference/verification.py": ("tests/theory/test_verification.py",),
    "reference/cost.py": ("tests/service/test_bounds.py",),
    "sim/cost.py": ("tests/service/test_bounds.py",),
}
"""Test files by module; of a module that is not named, those of its folder."""


@dataclass(frozen=True)
class Plan:
    """module: relative to the package. stages: test files, in order. shaping: its mutants make other kernels."""

    module: str
    stages: tuple[str, ...]
    shaping: bool

    @property
    def path(self) -> Path:
        """The source."""
        return PACKAGE / self.module

    @property
    def name(self) -> str:
        """As it is imported."""
        return "dyn_service." + self.module.removesuffix(".py").replace("/", ".")


def plans(parts: list[str]) -> list[Plan]:
    """One per module with anything in it, of the named parts or modules; all parts where none is named.

    Raises:
        ValueError: There is no such part or module; names it.
    """
    found: list[Plan] = []
    for part in parts or list(PARTS):
        for place in PARTS.get(part, (part,)):
            path = PACKAGE / place
            if not path.exists():
                raise ValueError(f"there is no part or module '{part}'; the parts are {', '.join(PARTS)}")
            files = sorted(path.glob("*.py")) if path.is_dir() else [path]
            found += [_plan(str(file.relative_to(PACKAGE))) for file in files if file.name != "__init__.py"]
    return found


def _plan(module: str) -> Plan:
    folder = module.rpartition("/")[0] + "/"
    stages = STAGES.get(module) or STAGES.get(folder)
    if stages is None:
        raise ValueError(f"no tests are named for {module}: add them to STAGES in tests/mutations/plan.py")
    return Plan(module, stages, module.startswith(SHAPING))
