"""Loops of points and poses against Pinocchio's `constraintDynamics`, and MJCF equalities against MuJoCo."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pinocchio as pin

from dyn_service import Robot
from dyn_service.engine.loops.freedom import closed_positions
from dyn_service.errors import FailedPreconditionError
from dyn_service.model.conventions import to_mujoco
from dyn_service.model.description import Description
from dyn_service.parsing.files import read_file
from tests.loops import Array, Mechanism, _distance, closed
from tests.oracle.mujoco_models import at_rest, joint_name
from tests.random_robots import random_urdf
from tests.terms.interpreting import interpreted_robot

LOOPS = (("spherical",), ("fixed",), ("spherical", "spherical"), ("spherical", "fixed"))
MOVABLE = 10
PROXIMAL = (1e-14, 1e-10, 100)
"""Accuracy, regularisation and iterations of Pinocchio's proximal solver; its drift correction is off by default."""

IMPEDANCE, SOFTNESS = 0.9999, (1e-4, 1e-6)
"""MuJoCo's largest impedance d, and factors of the inverse weights. Equalities have the softness (1 - d) / d times
these weights, so that factors below 1 go on where the impedance ends."""

STIFF = 1e-5
"""Largest error: what is left of the smaller softness, 1e-8 of the inertia."""

TORQUE_SCALE = 10
"""Place of a weld's `torquescale` in `eq_data`: its square divides the softness."""

DEPENDENT_ROWS = 1e-9
"""Singular values of MuJoCo's rows below this share of the largest count as zero."""


def own_scale_error(x: Array, y: Array, M: Array) -> float:
    """The error of accelerations times sqrt(M_ii), relative to the largest such product."""
    d = np.sqrt(np.abs(np.diag(M)))
    return float(np.abs((x - y) * d).max() / (np.abs(y * d).max() or 1.0))


def pinocchio_errors(seed: int) -> tuple[str, dict[str, float]]:
    """Returns the loops of a random robot, every third of which floats, and the error of its accelerations."""
    text = random_urdf(seed, movable=MOVABLE, bushy=0.2)
    description = Robot.from_urdf(text).as_described
    joints = tuple(replace(joint, limit=None) for joint in description.joints)
    description = replace(description, joints=joints, root="floating" if seed % 3 == 0 else "fixed")
    tree = Robot(description)
    q, rng = tree.random_configuration(seed=seed), np.random.default_rng(seed)
    links, ends = [link.name for link in description.links], []
    for kind in LOOPS[seed % len(LOOPS)]:
        pairs = [rng.choice(links, 2, replace=False) for _ in range(12)]
        parent, child = max(pairs, key=lambda pair: _distance(description, *pair))
        ends.append((kind, str(parent), str(child)))
    m = Mechanism(interpreted_robot(Robot(closed(description, q, ends, seed))), q)
    v, tau = m.motion(seed)[0], rng.normal(size=m.robot.nv)
    tau[: 6 * (description.root == "floating")] = 0.0
    exact = _pinocchio_accelerations(text, m, v, tau)
    a = m.robot.forward_dynamics(q, v, tau)
    error = own_scale_error(a, exact, m.robot.mass_matrix(q))
    return f"{description.root} root, {', '.join(end[0] for end in ends)}", {"forward_dynamics": error}


def _pinocchio_accelerations(text: str, m: Mechanism, v: Array, tau: Array) -> Array:
    floats = m.description.root == "floating"
    model = pin.buildModelFromXML(text, pin.JointModelFreeFlyer()) if floats else pin.buildModelFromXML(text)
    data, q_there, order = model.createData(), pin.neutral(model), list(range(6 * floats))
    q_there[: 7 * floats] = m.q[: 7 * floats]
    configuration = m.robot.configuration
    for name, part in zip(m.robot.joint_names, configuration.q_slices, strict=True):
        if not model.existJointName(name):
            continue  # the root
        joint, value = model.joints[model.getJointId(name)], m.q[part][0]
        if part.stop - part.start == 1:
            q_there[joint.idx_q : joint.idx_q + joint.nq] = value if joint.nq == 1 else [np.cos(value), np.sin(value)]
            order.append(joint.idx_v)
    models, states = pin.StdVec_RigidConstraintModel(), pin.StdVec_RigidConstraintData()
    for joint in m.description.loop_joints:
        sides = []
        for link, R, p in (
            (joint.parent, joint.parent_rotation, joint.parent_xyz),
            (joint.child, joint.child_rotation, joint.child_xyz),
        ):
            frame = model.frames[model.getFrameId(link, pin.FrameType.BODY)]
            sides += [frame.parentJoint, frame.placement * pin.SE3(R, p)]
        kind = pin.ContactType.CONTACT_3D if joint.type == "spherical" else pin.ContactType.CONTACT_6D
        models.append(pin.RigidConstraintModel(kind, model, *sides, pin.ReferenceFrame.LOCAL))
        states.append(models[-1].createData())
    v_there, tau_there = np.zeros(model.nv), np.zeros(model.nv)
    v_there[order], tau_there[order] = v, tau
    pin.initConstraintDynamics(model, data, models, states)
    settings = pin.ProximalSettings(*PROXIMAL)
    a = pin.constraintDynamics(model, data, q_there, v_there, tau_there, models, states, settings)
    return np.asarray(a)[order]


def closed_position(robot: Robot) -> Array:
    """The closed position nearest to the neutral one, or to a random one.

    Raises:
        FailedPreconditionError: None is.
    """
    try:
        return robot.assemble(robot.neutral())
    except FailedPreconditionError:
        q, _ = closed_positions(robot.evaluator.closed_loops, 1)
        if not len(q):
            raise
        return q[0]


def stiff_errors(path: Path, description: Description) -> tuple[float, ...]:
    """Returns the errors of accelerations at rest against MuJoCo, for each softness, and for rigid constraints.

    Times sqrt(M_ii), relative to the largest such product or, where the loops hold most of it, that of the efforts.
    """
    robot = interpreted_robot(Robot(description))
    q = closed_position(robot)
    rest, M = np.zeros(robot.nv), robot.mass_matrix(q)
    drive_mask = robot.evaluator.closed_loops.driven
    tau = np.random.default_rng(0).normal(size=robot.nv) * np.sqrt(np.diag(M))
    tau *= 1.0 if drive_mask is None else drive_mask
    tau[: 6 * (description.root == "floating")] = 0.0
    model = mujoco.MjModel.from_xml_path(str(path))
    at_rest(model)
    model.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_EQUALITY)
    model.opt.solver, model.opt.iterations, model.opt.tolerance = mujoco.mjtSolver.mjSOL_NEWTON, 1000, 0.0
    configuration, data = robot.configuration, mujoco.MjData(model)
    ids = {joint_name(model, k): k for k in range(model.njnt)}
    state = to_mujoco(configuration, q, rest, robot.forward_dynamics(q, rest, tau), tau)
    columns: list[int] = []
    for name, part, columns_part in zip(
        configuration.names, configuration.q_slices, configuration.v_slices, strict=True
    ):
        k = ids[name]
        data.qpos[model.jnt_qposadr[k] : model.jnt_qposadr[k] + part.stop - part.start] = state.qpos[part]
        columns += range(model.jnt_dofadr[k], model.jnt_dofadr[k] + columns_part.stop - columns_part.start)
    followers = [joint for joint in description.joints if joint.mimic is not None]
    for _ in followers:  # chains
        for joint in followers:
            leader, row = joint.mimic, model.jnt_qposadr[ids[joint.name]]
            data.qpos[row] = leader.multiplier * data.qpos[model.jnt_qposadr[ids[leader.joint]]] + leader.offset
    data.qfrc_applied[columns] = state.force
    model.eq_solimp[:, :2] = IMPEDANCE
    welds = model.eq_type == mujoco.mjtEq.mjEQ_WELD
    model.eq_data[welds & (model.eq_data[:, TORQUE_SCALE] > 0.0), TORQUE_SCALE] = 1.0
    weights, dof_weights, d = model.body_invweight0.copy(), model.dof_invweight0.copy(), np.sqrt(np.diag(M))
    tree = interpreted_robot(Robot(replace(description, loop_joints=())))
    size = max(np.abs(state.qacc * d).max(), np.abs((tau - tree.gravity_forces(q)) / d).max())
    errors = []
    for factor in SOFTNESS:
        model.body_invweight0[:], model.dof_invweight0[:] = factor * weights, factor * dof_weights
        mujoco.mj_forward(model, data)
        errors.append(float(np.abs((data.qacc[columns] - state.qacc) * d).max() / size))
    return *errors, float(np.abs((rigid_accelerations(model, data)[columns] - state.qacc) * d).max() / size)


def rigid_accelerations(model: mujoco.MjModel, data: mujoco.MjData) -> Array:
    """The accelerations by MuJoCo's M, rows and efforts, with rigid constraints, by singular values.

    Its own solver does not converge where rows are dependent up to rounded axes: the rows of its accelerations then
    miss their references.
    """
    M, J = np.zeros((model.nv, model.nv)), np.zeros((data.nefc, model.nv))
    mujoco.mj_fullM(model, data, M)
    if mujoco.mj_isSparse(model):
        sparse = data.efc_J, data.efc_J_rownnz, data.efc_J_rowadr, data.efc_J_colind
        mujoco.mju_sparse2dense(J, *sparse)
    else:
        J[:] = data.efc_J.reshape(-1, model.nv)[: data.nefc]
    d = 1.0 / np.sqrt(np.diag(M))
    s, Vt = np.linalg.svd(J * d)[1:]
    rank = int((s > DEPENDENT_ROWS * s.max(initial=0.0)).sum())
    least_a = d * (np.linalg.pinv(J * d, rcond=DEPENDENT_ROWS) @ data.efc_aref)
    N = d[:, None] * Vt[rank:].T
    return np.asarray(least_a + N @ np.linalg.solve(N.T @ M @ N, N.T @ (data.qfrc_smooth - M @ least_a)))


def stiff_table(folder: Path) -> Iterator[str]:
    """Yields a row for each MJCF file with loops."""
    yield f"| file | softness {SOFTNESS[0]:g} | {SOFTNESS[1]:g} | rigid |"
    yield "|---|---|---|---|"
    for path in sorted(folder.rglob("*.xml")):
        try:
            description: Any = read_file(path)
        except Exception:  # `files` tells why
            continue
        if not description.loop_joints:
            continue
        name = path.relative_to(folder)
        try:
            errors = stiff_errors(path, description)
        except Exception as fault:
            yield f"| {name} | {type(fault).__name__}: {str(fault)[:120].splitlines()[0]} | | |"
            continue
        yield f"| {name} | {' | '.join(f'{error:.1e}' for error in errors)} |"
        if not min(errors[-2:]) <= STIFF:
            yield f"above {STIFF:g}: {name}"
