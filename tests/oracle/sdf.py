"""Files of SDFormat and URDF against Drake, where it is installed: `python -m tests.oracle.sdf FILE ..`; prints the
worst relative errors, or why a file is not read. Joints with one way to move, and what hangs by them.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dyn_service.engine.robot import Robot
from dyn_service.errors import DynError
from dyn_service.parsing.files import read_file
from tests.oracle.test_pinocchio import TOLERANCE
from tests.terms.interpreting import interpreted_robot


def errors(path: Path, states: int = 4) -> dict[str, float]:
    """Of each query over random states, relative to its largest number, at least 1."""
    from pydrake.multibody.tree import MultibodyForces  # type: ignore[import-not-found]

    plant, velocities, positions = _plant(path)
    description = read_file(path)
    bare = tuple(replace(joint, friction=0.0, mimic=None) for joint in description.joints)
    robot = interpreted_robot(Robot(replace(description, joints=bare)))
    plant.mutable_gravity_field().set_gravity_vector(robot.gravity)  # Drake does not read it
    in_v, in_q = ([places[name] for name in robot.joint_names] for places in (velocities, positions))
    context, rng = plant.CreateDefaultContext(), np.random.default_rng(0)
    worst = dict.fromkeys(("inverse_dynamics", "mass_matrix", "gravity_forces"), 0.0)
    for _ in range(states):
        q, v, a = rng.normal(size=(3, robot.nv))
        state = np.array(plant.GetPositions(context))
        state[in_q] = q
        plant.SetPositions(context, state)
        rates = np.zeros((2, plant.num_velocities()))
        rates[:, in_v] = v, a
        plant.SetVelocities(context, rates[0])
        forces = MultibodyForces(plant)
        plant.CalcForceElementsContribution(context, forces)
        for name, answer, drake_answer in (
            (
                "inverse_dynamics",
                robot.inverse_dynamics(q, v, a),
                plant.CalcInverseDynamics(context, rates[1], forces)[in_v],
            ),
            ("mass_matrix", robot.mass_matrix(q), plant.CalcMassMatrix(context)[np.ix_(in_v, in_v)]),
            (
                "gravity_forces",
                robot.gravity_forces(q, passive=False),
                -plant.CalcGravityGeneralizedForces(context)[in_v],
            ),
        ):
            error = np.abs(answer - drake_answer).max(initial=0.0) / max(1.0, np.abs(drake_answer).max(initial=0.0))
            worst[name] = max(worst[name], float(error))
    return worst


def _plant(path: Path) -> tuple[Any, dict[str, int], dict[str, int]]:
    """Drake's plant, and where in its velocities and positions each of our joints stands."""
    from pydrake.multibody.parsing import Parser  # type: ignore[import-not-found]
    from pydrake.multibody.plant import MultibodyPlant  # type: ignore[import-not-found]

    plant = MultibodyPlant(0.0)
    Parser(plant).AddModels(str(path))
    plant.Finalize()
    joints = [plant.get_joint(index) for index in plant.GetJointIndices()]
    whole = [
        f"{plant.GetModelInstanceName(joint.model_instance())}::{joint.name()}".split("::")[1:] for joint in joints
    ]
    velocities: dict[str, int] = {}
    positions: dict[str, int] = {}
    # It assigns a joint to its child's model, which may be nested in the model of the joint.
    for missing in range(max(map(len, whole))):
        for joint, (*models, joint_name) in zip(joints, whole, strict=True):
            name = "::".join([*models[: max(len(models) - missing, 0)], joint_name])
            for k, axis in enumerate(("", "_axis2")[: joint.num_velocities()]):
                velocities.setdefault(name + axis, joint.velocity_start() + k)
                positions.setdefault(name + axis, joint.position_start() + k)
    return plant, velocities, positions


def main(paths: list[str]) -> int:
    deviating = 0
    for path in paths:
        try:
            worst_errors = errors(Path(path))
        except DynError as fault:
            print(fault)
            continue
        except RuntimeError as fault:
            print(f"{path}: Drake does not take it: {str(fault).splitlines()[0]}")
            continue
        worst = max(worst_errors.values())
        deviating += not worst <= TOLERANCE
        print(f"{path}: {worst:.1e}  {', '.join(f'{name} {error:.1e}' for name, error in worst_errors.items())}")
    return 1 if deviating else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
