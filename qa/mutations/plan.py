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
    "simulation": (
        "simulation",
        "simulation/contact",
        "simulation/integrators",
        "simulation/fmu.py",
        "simulation/mujoco.py",
    ),
    "frames": ("kernels/frames.py",),
    "rolled": ("dynamics/rolled_tree.py", "kernels/rolled.py"),
    "formulations": ("formulations",),
    "overlays": ("engine/altered_trees.py", "engine/overlaid_robot.py", "model/parameters.py", "kernels/graph.py"),
    "rows": ("engine/rows.py", "engine/wrenches.py"),
    "outputs": ("api/outputs.py", "support/buffers.py", "kernels/row_selection.py"),
    "lists": ("api/lists.py", "api/whole_body.py"),
    "direct_calls": ("kernels/direct.py", "kernels/python_api.py", "kernels/wrenches.py", "kernels/trig.py"),
    "parsing": ("parsing", "parsing/urdf", "parsing/mjcf", "parsing/sdf", "parsing/writing"),
    "messages": (
        "service/protocol/inputs.py",
        "api/arguments.py",
    ),
    "sensors": ("sensors",),
    "plant": (
        "control/plant/plant.py",
        "control/plant/safety.py",
        "control/plant/simulated.py",
        "control/dry_run.py",
        "control/command.py",
        "control/controller.py",
        "control/joint_states.py",
    ),
    "hil": (
        "hil/checks.py",
        "hil/signals.py",
        "hil/faults.py",
        "hil/lockstep.py",
        "hil/real_time.py",
    ),
    "topics": (
        "messages",
        "graph/middleware/graph.py",
        "graph/middleware/node.py",
        "graph/middleware/pacing.py",
        "graph/middleware/pubsub.py",
        "graph/middleware/services.py",
    ),
    "bags": ("graph/bags", "graph/dds.py"),
    "laws": (
        "control/laws/admittance.py",
        "control/laws/joint_impedance.py",
        "control/laws/collision_stop.py",
        "control/laws/computed_torque.py",
        "control/law.py",
        "control/joint_goals.py",
        "control/laws/trajectory_following.py",
        "control/trajectory.py",
        "control/laws/momentum_observer.py",
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
    "model/composite.py",
)
"""Mutants of these make other kernels, of the same robots: each starts from an empty kernel cache of its own."""

_NUMBERS = "tests/terms/test_in_numbers.py"
_OVERLAYS = ("tests/engine/test_overlays.py", "tests/oracle/test_overlays.py", "tests/service/answers/test_overlays.py")
_LAWS = (
    "tests/control/test_laws_in_numbers.py",
    "tests/control/test_laws.py",
    "tests/graph/launch/test_panda_controllers.py",
)
_PLANT = ("tests/control/test_plant_core.py", "tests/control/test_plant_truth.py")
_NODE = (
    "tests/graph/middleware/test_node.py",
    "tests/graph/middleware/test_graph.py",
    "tests/graph/middleware/test_publishing.py",
)
_BAG = ("tests/graph/bags/test_bags.py", "tests/graph/bags/test_live.py")
_REQUESTS = ("tests/graph/bags/test_requests.py", "tests/graph/bags/test_engines.py")
_READING = (
    "tests/parsing/urdf/test_reading.py",
    "tests/parsing/urdf/test_faults.py",
    "tests/parsing/urdf/test_habits.py",
    "tests/parsing/test_report.py",
)

_TREE = (
    "tests/model/test_tree.py",
    _NUMBERS,
    *_READING,
    "tests/parsing/urdf/test_warnings.py",
    "tests/engine/test_robot.py",
)

_MJCF = ("tests/parsing/test_mjcf.py", "tests/parsing/test_mjcf_faults.py", "tests/parsing/test_chains.py")
_SDF = ("tests/parsing/test_sdf.py", "tests/parsing/test_sdf_faults.py", "tests/parsing/test_chains.py")

STAGES: dict[str, tuple[str, ...]] = {
    "dynamics/": (_NUMBERS, "tests/theory/test_newton_euler.py", "tests/engine/test_robot.py"),
    "dynamics/articulated.py": (
        _NUMBERS,
        "tests/theory/test_branch_inertias.py",
        "tests/engine/test_robot.py",
        "tests/theory/test_newton_euler.py",
    ),
    "dynamics/body_frame.py": (_NUMBERS, "tests/theory/test_body_frame.py"),
    "dynamics/constraint.py": (
        _NUMBERS,
        "tests/theory/test_branch_inertias.py",
        "tests/engine/test_robot.py",
        "tests/theory/test_newton_euler.py",
    ),
    "dynamics/derivatives.py": ("tests/oracle/test_derivatives.py",),
    "dynamics/hessians.py": ("tests/oracle/test_derivatives.py",),
    "dynamics/midpoint.py": ("tests/terms/test_in_numbers.py", "tests/simulation/test_midpoint.py"),
    "dynamics/motion_derivatives.py": ("tests/terms/test_in_numbers.py", "tests/oracle/test_derivatives.py"),
    "dynamics/coriolis.py": ("tests/engine/test_regressors.py",),
    "dynamics/regressors.py": ("tests/engine/test_regressors.py",),
    "dynamics/expressions.py": ("tests/dynamics/test_expressions.py", _NUMBERS),
    "dynamics/hamilton.py": (_NUMBERS, "tests/theory/test_hamilton.py", "tests/theory/test_momentum_rates.py"),
    "formulations/base_parameters.py": ("tests/engine/test_regressors.py",),
    "formulations/verification.py": (
        "tests/theory/test_verification.py",
        "tests/theory/test_newton_euler.py",
        "tests/theory/test_hamilton.py",
    ),
    "dynamics/integration.py": (_NUMBERS, "tests/simulation/test_integrators.py", "tests/simulation/test_simulate.py"),
    "formulations/bodies.py": ("tests/theory/test_bodies.py", "tests/theory/test_projected.py"),
    "formulations/systems.py": ("tests/theory/test_problems.py", "tests/theory/test_particles.py"),
    "dynamics/mass_matrix.py": (_NUMBERS, "tests/engine/test_robot.py", "tests/theory/test_newton_euler.py"),
    "dynamics/newton_euler.py": (
        _NUMBERS,
        "tests/theory/test_newton_euler.py",
        "tests/engine/test_robot.py",
        "tests/simulation/test_laws.py",
    ),
    "dynamics/passive.py": (
        _NUMBERS,
        "tests/model/test_mimic.py",
        "tests/theory/test_passive.py",
        "tests/theory/test_mimic.py",
    ),
    "dynamics/projected.py": (_NUMBERS, "tests/theory/test_projected.py"),
    "dynamics/sensors.py": (_NUMBERS, "tests/sensors/test_sensor_queries.py"),
    "dynamics/task_space.py": (
        _NUMBERS,
        "tests/engine/test_task_space.py",
        "tests/oracle/test_task_space.py",
        "tests/theory/test_mimic.py",
    ),
    "api/named.py": ("tests/engine/test_task_space.py", "tests/service/answers/test_same_answers.py"),
    "dynamics/operators.py": (_NUMBERS, "tests/theory/test_operators.py"),
    "sensors/": (
        "tests/sensors/test_sensor_devices.py",
        "tests/sensors/test_sensor_files.py",
        "tests/oracle/test_sensors.py",
    ),
    "formulations/segments.py": ("tests/theory/test_matrix_formalism.py",),
    "dynamics/symbolic.py": ("tests/theory/test_symbolic.py",),
    "dynamics/structure.py": (
        "tests/theory/test_operators.py",
        "tests/model/test_joints.py",
        "tests/oracle/test_many_types.py",
    ),
    "kernels/graph.py": _OVERLAYS,
    "dynamics/rolled_tree.py": ("tests/kernels/test_rolled.py",),
    "kernels/rolled.py": ("tests/kernels/test_rolled.py",),
    "model/parameters.py": _OVERLAYS,
    "kernels/frames.py": (
        "tests/qa/test_nasty_frames.py",
        "tests/kernels/test_kernels.py",
        "tests/engine/test_robot.py",
        "tests/kernels/test_certificates.py",
    ),
    "simulation/inverse_kinematics.py": ("tests/simulation/test_inverse_kinematics.py",),
    "kernels/export.py": ("tests/kernels/test_export.py",),
    "engine/export.py": ("tests/kernels/test_export.py",),
    "engine/fmu.py": ("tests/engine/test_fmu.py",),
    "kernels/trig.py": ("tests/kernels/test_hyperbolic.py",),
    "kernels/direct.py": ("tests/kernels/test_direct.py", "tests/kernels/test_wrenches.py"),
    "api/outputs.py": ("tests/engine/test_outputs.py",),
    "api/lists.py": ("tests/engine/test_lists.py", "tests/service/answers/test_lists.py"),
    "api/whole_body.py": ("tests/engine/test_lists.py",),
    "support/buffers.py": ("tests/engine/test_outputs.py",),
    "kernels/row_selection.py": ("tests/engine/test_outputs.py",),
    "kernels/python_api.py": ("tests/kernels/test_direct.py", "tests/kernels/test_wrenches.py"),
    "kernels/wrenches.py": ("tests/kernels/test_wrenches.py",),
    "api/arguments.py": (
        "tests/api/test_table.py",
        "tests/service/protocol/test_protocol_page.py",
        "tests/service/answers/test_contacts.py",
        "tests/engine/test_overlays.py",
    ),
    "parsing/": (*_SDF, *_MJCF, "tests/parsing/test_formats_beyond.py"),
    "parsing/conversion.py": ("tests/parsing/test_converting.py", "tests/service/answers/test_files.py"),
    "parsing/mjcf/": (*_MJCF, "tests/parsing/test_formats_numbers.py", "tests/parsing/test_mimic_in_files.py"),
    "parsing/pose.py": ("tests/parsing/test_poses.py", *_SDF, *_MJCF),
    "parsing/files.py": (*_SDF, *_MJCF, "tests/parsing/test_xacro.py", "tests/service/answers/test_files.py"),
    "parsing/sdf/": (*_SDF, "tests/parsing/test_formats_numbers.py", "tests/parsing/test_mimic_in_files.py"),
    "parsing/writing/": ("tests/parsing/test_converting.py",),
    "parsing/xacro.py": ("tests/parsing/test_xacro.py",),
    "service/protocol/inputs.py": (
        "tests/service/protocol/test_malformed_requests.py",
        "tests/service/answers/test_contacts.py",
        "tests/service/answers/test_overlays.py",
        "tests/service/answers/test_wrenches.py",
        "tests/support/test_suggestions.py",
    ),
    "engine/rows.py": (
        "tests/parsing/test_report.py",
        "tests/parsing/test_joint_files.py",
        "tests/engine/test_robot.py",
        "tests/service/server/test_bad_inputs.py",
        "tests/theory/test_operators.py",
    ),
    "engine/calls.py": ("tests/engine/test_calls.py",),
    "model/composite.py": (
        "tests/theory/test_branch_inertias.py",
        "tests/engine/test_robot.py",
        "tests/model/test_tree.py",
        "tests/model/test_mimic.py",
        "tests/parsing/test_report.py",
        "tests/terms/test_in_numbers.py",
        "tests/parsing/urdf/test_reading.py",
        "tests/parsing/urdf/test_faults.py",
        "tests/parsing/urdf/test_habits.py",
        "tests/parsing/urdf/test_warnings.py",
    ),
    "engine/wrenches.py": ("tests/kernels/test_wrenches.py", "tests/engine/test_robot.py"),
    "model/": (*_READING, "tests/model/test_tree.py", "tests/model/test_mimic.py"),
    "parsing/urdf/": _READING,
    "model/passive.py": (
        "tests/model/test_tree.py",
        "tests/parsing/test_joint_files.py",
        "tests/theory/test_passive.py",
    ),
    "model/mimic.py": ("tests/model/test_mimic.py",),
    "parsing/joint_files.py": ("tests/parsing/test_joint_files.py",),
    "parsing/transmissions.py": ("tests/parsing/test_joint_files.py", *_READING),
    "parsing/structure.py": (
        "tests/parsing/urdf/test_warnings.py",
        "tests/parsing/urdf/test_units.py",
        "tests/parsing/urdf/test_reading.py",
        "tests/parsing/urdf/test_faults.py",
        "tests/parsing/urdf/test_habits.py",
        "tests/parsing/test_report.py",
        "tests/parsing/urdf/test_loaded_objects.py",
    ),
    "model/inertia.py": (
        "tests/model/test_inertia.py",
        "tests/model/test_tree.py",
        "tests/parsing/urdf/test_warnings.py",
        _NUMBERS,
    ),
    "parsing/urdf/loaded.py": ("tests/parsing/urdf/test_loaded_objects.py",),
    "model/configuration.py": (
        "tests/model/test_joints.py",
        "tests/api/test_description.py",
        "tests/engine/test_calls.py",
        "tests/model/test_conventions.py",
        "tests/simulation/test_rheonomic_samples.py",
        "tests/oracle/test_many_types.py",
    ),
    "model/joints/": (
        "tests/model/test_joints.py",
        "tests/qa/test_nasty_frames.py",
        "tests/model/test_conventions.py",
        "tests/model/test_tree.py",
    ),
    "model/order.py": ("tests/service/client/test_names.py",),
    "simulation/contact_points.py": ("tests/simulation/test_contact.py", "tests/simulation/test_ground_reactions.py"),
    "simulation/contact/steps.py": (
        "tests/simulation/test_cones.py",
        "tests/simulation/test_contact.py",
        "tests/service/answers/test_contacts.py",
    ),
    "simulation/contact/supports.py": (
        "tests/simulation/test_contact.py",
        "tests/oracle/test_contact.py",
        "tests/service/answers/test_contacts.py",
    ),
    "simulation/contact/ground_reactions.py": (
        "tests/simulation/test_ground_reactions.py",
        "tests/service/server/test_bounds.py",
    ),
    "simulation/engines.py": (
        "tests/simulation/test_stability.py",
        "tests/control/test_plant_core.py",
        "tests/simulation/test_integrators.py",
        "tests/control/test_plant_truth.py",
        "tests/oracle/test_contact_wrenches.py",
    ),
    "simulation/integrators/stick_slip.py": ("tests/simulation/test_stick_slip.py",),
    "model/steps.py": ("tests/simulation/test_integrators.py", _NUMBERS),
    "model/description.py": ("tests/parsing/test_places.py", "tests/model/test_joints.py", *_READING),
    "parsing/quantities.py": (
        "tests/parsing/test_places.py",
        "tests/parsing/urdf/test_reading.py",
        "tests/parsing/urdf/test_faults.py",
        "tests/parsing/urdf/test_habits.py",
        "tests/parsing/test_report.py",
        "tests/parsing/test_quantities.py",
        "tests/parsing/urdf/test_loaded_objects.py",
    ),
    "parsing/report.py": ("tests/parsing/test_report.py",),
    "model/building.py": _TREE,
    "model/tree.py": _TREE,
    "parsing/urdf/reader.py": (
        *_READING,
        "tests/parsing/urdf/test_warnings.py",
        "tests/parsing/urdf/test_mutilated.py",
    ),
    "control/plant/plant.py": (
        "tests/control/test_plant_core.py",
        "tests/control/test_plant_truth.py",
        "tests/graph/nodes/test_hardware.py",
        "tests/control/test_driver.py",
    ),
    "control/plant/safety.py": (
        "tests/control/test_safety.py",
        "tests/control/test_plant_core.py",
        "tests/control/test_plant_truth.py",
        "tests/graph/nodes/test_hardware.py",
        "tests/control/test_command_interfaces.py",
    ),
    "control/plant/simulated.py": (
        "tests/control/test_plant_truth.py",
        "tests/oracle/test_sensors.py",
        *_PLANT,
        "tests/graph/nodes/test_plant_services.py",
        "tests/oracle/test_contact_wrenches.py",
    ),
    "control/dry_run.py": (
        "tests/control/test_closed_loop.py",
        "tests/control/test_law.py",
        "tests/control/test_laws.py",
    ),
    "control/command.py": (
        "tests/control/test_command_interfaces.py",
        "tests/control/test_arming.py",
        "tests/control/test_safety.py",
    ),
    "control/controller.py": (
        "tests/graph/nodes/test_set_while_running.py",
        "tests/control/test_goal_tolerances.py",
        "tests/graph/launch/test_panda_controllers.py",
        "tests/control/test_command_interfaces.py",
        "tests/control/test_joint_goals.py",
        "tests/control/test_arming.py",
        "tests/control/test_law.py",
        "tests/control/test_computed_torque.py",
    ),
    "control/joint_states.py": (
        "tests/control/test_joint_states.py",
        "tests/graph/nodes/test_robot_state_publisher.py",
    ),
    "control/laws/trajectory_following.py": (
        "tests/control/test_laws_in_numbers.py",
        "tests/control/test_arming.py",
        "tests/control/test_joint_goals.py",
        "tests/control/test_goal_tolerances.py",
    ),
    "control/trajectory.py": ("tests/control/test_trajectory.py", "tests/control/test_joint_goals.py"),
    "control/laws/admittance.py": _LAWS,
    "control/laws/joint_impedance.py": (
        "tests/control/test_laws_in_numbers.py",
        "tests/control/test_cartesian_impedance.py",
        "tests/control/test_laws.py",
        "tests/graph/launch/test_panda_controllers.py",
    ),
    "control/laws/collision_stop.py": _LAWS,
    "control/laws/computed_torque.py": (
        "tests/control/test_laws_in_numbers.py",
        "tests/control/test_computed_torque.py",
        "tests/control/test_law.py",
        "tests/control/test_laws.py",
        "tests/graph/launch/test_panda_controllers.py",
    ),
    "control/law.py": (
        "tests/control/test_laws_in_numbers.py",
        "tests/control/test_laws.py",
        "tests/graph/launch/test_panda_controllers.py",
        "tests/control/test_law.py",
    ),
    "control/joint_goals.py": (
        "tests/control/test_goal_tolerances.py",
        "tests/control/test_joint_goals.py",
        "tests/control/test_timed_goals.py",
    ),
    "control/laws/momentum_observer.py": _LAWS,
    "hil/": ("tests/hil/test_checks.py", "tests/hil/test_faults.py", "tests/hil/test_lockstep.py"),
    "hil/faults.py": (
        "tests/hil/test_faults.py",
        "tests/hil/test_lockstep.py",
    ),
    "hil/lockstep.py": ("tests/hil/test_lockstep.py",),
    "hil/real_time.py": ("tests/hil/test_proxy.py",),
    "hil/checks.py": (
        "tests/hil/test_measures.py",
        "tests/hil/test_checks.py",
    ),
    "hil/signals.py": ("tests/hil/test_message_log.py", "tests/hil/test_checks.py", "tests/hil/test_lockstep.py"),
    "messages/": ("tests/messages/test_messages.py", "tests/graph/bags/test_bags.py"),
    "graph/middleware/graph.py": ("tests/graph/middleware/test_graph.py", "tests/graph/middleware/test_node.py"),
    "graph/middleware/node.py": _NODE,
    "graph/middleware/pacing.py": (
        "tests/graph/middleware/test_pacing.py",
        "tests/support/test_realtime.py",
        *_NODE,
    ),
    "graph/middleware/pubsub.py": (*_NODE,),
    "graph/middleware/services.py": _NODE,
    "graph/bags/": _BAG,
    "graph/bags/motions.py": (
        "tests/control/test_plant_truth.py",
        "tests/view/test_motions.py",
        "tests/studies/test_study.py",
    ),
    "graph/bags/requests.py": (
        "tests/graph/bags/test_requests.py",
        "tests/graph/bags/test_engines.py",
    ),
    "graph/dds.py": ("tests/graph/test_dds.py", "tests/graph/nodes/test_ros2_bridge.py"),
    "engine/altered_trees.py": _OVERLAYS,
    "engine/overlaid_robot.py": _OVERLAYS,
    "parsing/xml_elements.py": (
        *_SDF,
        *_MJCF,
        "tests/parsing/urdf/test_habits.py",
        "tests/parsing/urdf/test_reading.py",
        "tests/parsing/urdf/test_faults.py",
    ),
    "simulation/": (
        "tests/simulation/test_simulate.py",
        "tests/simulation/test_simulate_loads.py",
        "tests/simulation/test_midpoint.py",
    ),
    "simulation/integrators/adaptive.py": (
        "tests/simulation/test_adaptive.py",
        "tests/simulation/test_task.py",
        "tests/simulation/test_simulate_loads.py",
        "tests/simulation/test_simulate.py",
        "tests/service/answers/test_remote_motion.py",
    ),
    "simulation/divergence.py": (
        "tests/simulation/test_divergence.py",
        "tests/simulation/test_simulate.py",
        "tests/simulation/test_simulate_loads.py",
        "tests/simulation/test_midpoint.py",
    ),
    "simulation/fmu.py": ("tests/simulation/test_fmu_plant.py",),
    "simulation/mujoco.py": ("tests/oracle/test_mujoco_plant.py",),
    "simulation/laws.py": ("tests/simulation/test_laws.py",),
    "simulation/loads.py": ("tests/simulation/test_task.py", "tests/simulation/test_simulate_loads.py"),
    "simulation/task.py": (
        "tests/simulation/test_task.py",
        "tests/simulation/test_simulate.py",
        "tests/simulation/test_simulate_loads.py",
        "tests/service/answers/test_remote_motion.py",
        "tests/service/answers/test_computations.py",
    ),
    "simulation/integrators/implicit_midpoint.py": (
        "tests/simulation/test_simulation.py",
        "tests/simulation/test_midpoint.py",
        "tests/simulation/test_simulate.py",
    ),
    "simulation/rheonomic.py": (
        "tests/simulation/test_rheonomic_loads.py",
        "tests/simulation/test_rheonomic_samples.py",
        "tests/theory/test_particles.py",
        "tests/service/answers/test_rheonomic.py",
    ),
    "simulation/simulate.py": (
        "tests/simulation/test_simulation.py",
        "tests/simulation/test_simulate.py",
        "tests/simulation/test_simulate_loads.py",
        "tests/simulation/test_midpoint.py",
    ),
    "simulation/parts.py": (
        "tests/simulation/test_parts.py",
        "tests/service/answers/test_remote_motion.py",
        "tests/service/answers/test_rheonomic.py",
        "tests/simulation/test_rheonomic_samples.py",
    ),
    "formulations/cost.py": ("tests/service/server/test_bounds.py",),
    "simulation/cost.py": ("tests/service/server/test_bounds.py",),
}
"""Test files by module; of a module that is not named, those of the nearest folder above it."""


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
    names = (module, *(f"{folder}/" for folder in Path(module).parents))
    stages = next((STAGES[name] for name in names if name in STAGES), None)
    if stages is None:
        raise ValueError(f"no tests are named for {module}: add them to STAGES in qa/mutations/plan.py")
    return Plan(module, stages, module.startswith(SHAPING))
