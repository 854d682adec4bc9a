"""A model as MuJoCo compiles it, compared with our import of the same file.

Put to rest in MuJoCo is what our receipt says does not act: contacts, limits, equalities, tendons, springs of balls,
forces of media, compensated gravity, and friction, which is Coulomb's there and smooth here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np

from dyn_service.engine.robot import Robot
from dyn_service.model.conventions import from_mujoco, to_mujoco
from dyn_service.model.description import Description, with_loops
from dyn_service.parsing.files import read_file, read_text
from tests.comparing import relative_errors
from tests.terms.interpreting import interpreted_robot

mujoco.set_mju_user_warning(lambda message: None)  # else it writes a log into the folder that it runs in

OFF = ("CONTACT", "LIMIT", "EQUALITY", "ACTUATION", "FRICTIONLOSS", "WARMSTART")


def frictionless(description: Description) -> Robot:
    """Ours, its joints without friction, none following another, its kernels interpreted."""
    joints = tuple(replace(joint, friction=0.0, mimic=None) for joint in description.joints)
    return interpreted_robot(Robot(replace(description, joints=joints)))


def at_rest(model: mujoco.MjModel) -> list[str]:
    """Disables what this package does not model, and returns its names."""
    was = []
    for flag in OFF:
        model.opt.disableflags |= int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}"))
    for flag in ("SPRING", "DAMPER"):
        model.opt.disableflags &= ~int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}"))
    for feature, array in {
        "wind": model.opt.wind,
        "<": model.tendon_stiffness,
        "</": model.tendon_damping,
        "<//": model.tendon_armature,
        "gravcomp": model.body_gravcomp,
    }.items():
        if np.asarray(array).any():
            was.append(feature.rstrip("/"))
        array[:] = 0.0
    for option in ("density", "viscosity"):
        if getattr(model.opt, option):
            was.append(option)
        setattr(model.opt, option, 0.0)
    for k, kind in enumerate(model.jnt_type):
        free = int(kind) == int(mujoco.mjtJoint.mjJNT_FREE)
        if (free or int(kind) == int(mujoco.mjtJoint.mjJNT_BALL)) and np.any(model.jnt_stiffness[k]):
            was.append("springs need")
            model.jnt_stiffness[k] = 0.0
        six = slice(model.jnt_dofadr[k], model.jnt_dofadr[k] + 6)
        if free and model.dof_armature[six].any():
            was.append("armature")
            model.dof_armature[six] = 0.0
            # Armature is part of constants that MuJoCo derives when it compiles.
            mujoco.mj_setConst(model, mujoco.MjData(model))
    for name in ("dof_dampingpoly", "jnt_stiffnesspoly"):
        if getattr(model, name).any():
            was.append("cubic")
            getattr(model, name)[:] = 0.0
    return was


def joint_name(model: mujoco.MjModel, k: int) -> str:
    """Ours, of its joint number k."""
    return model.joint(k).name or f"joint_{k}"


def errors(source: Path | str, model: mujoco.MjModel, states: int = 5, seed: int = 0) -> dict[str, float]:
    """The worst relative error of each query over random states, the model at rest where ours is."""
    description = with_loops(read_file(source) if isinstance(source, Path) else read_text(source), "cut")
    robot = frictionless(description)
    reported = [note.text for note in description.notes if note.kind == "reported"]
    for feature in at_rest(model):
        assert any(feature in text for text in reported), f"{feature} does not act, and the receipt does not say so"
    for note in description.notes:
        if note.text.startswith("springdamper"):  # made from the inertia by MuJoCo's compiler; reported, not read
            joint = model.joint(note.element.removeprefix("joint ").strip("'"))
            model.jnt_stiffness[joint.id], model.dof_damping[joint.dofadr] = 0.0, 0.0
    assert (robot.nq, robot.nv) == (model.nq, model.nv)
    min_effort = 1e-6 * float(
        model.body_mass.sum() * np.linalg.norm(model.opt.gravity)
    )  # below it an effort is rounding
    data, configuration = mujoco.MjData(model), robot.configuration
    numbers = {joint_name(model, k): k for k in range(model.njnt)}
    ids = [numbers[name] for name in configuration.names]
    in_q = np.concatenate(
        [model.jnt_qposadr[k] + np.arange(j.nq) for k, j in zip(ids, configuration.joints, strict=True)]
    )
    in_v = np.concatenate(
        [model.jnt_dofadr[k] + np.arange(j.nv) for k, j in zip(ids, configuration.joints, strict=True)]
    )
    rng = np.random.default_rng(seed)
    unbounded = np.full(robot.nq, np.inf)
    q = np.array([robot.configuration.random(rng, -unbounded, unbounded) for _ in range(states)])
    v, a = rng.normal(size=(2, states, robot.nv))
    tau, gravity_efforts, M = np.empty_like(v), np.empty_like(v), np.empty((states, robot.nv, robot.nv))
    places, turns, full = [], [], np.zeros((model.nv, model.nv))
    for k in range(states):
        state = to_mujoco(configuration, q[k], v[k], a[k])
        data.qpos[in_q], data.qvel[in_v], data.qacc[in_v] = state.qpos, state.qvel, state.qacc
        mujoco.mj_inverse(model, data)
        tau[k] = from_mujoco(configuration, state.qpos, force=data.qfrc_inverse[in_v]).tau
        # MuJoCo keeps M as a sparse factor; `full` is in its own order of joints.
        mujoco.mj_fullM(model, data, full)
        J = _turning(configuration, state.qpos)
        M[k] = J.T @ full[np.ix_(in_v, in_v)] @ J
        places.append(np.array(data.xpos[1:]))
        turns.append(np.array(data.xmat[1:]).reshape(-1, 3, 3))
        rest = to_mujoco(configuration, q[k], 0 * v[k], 0 * a[k])
        data.qvel[in_v], data.qacc[in_v] = rest.qvel, rest.qacc
        mujoco.mj_inverse(model, data)
        gravity_efforts[k] = from_mujoco(configuration, state.qpos, force=data.qfrc_inverse[in_v]).tau
    poses = robot.link_poses(q)
    link_indices = [poses.links.index(model.body(k).name or f"body_{k}") for k in range(1, model.nbody)]
    return {
        "inverse_dynamics": float(relative_errors(robot.inverse_dynamics(q, v, a), tau, min_effort).max()),
        "mass_matrix": float(relative_errors(robot.mass_matrix(q), M).max()),
        "gravity_forces": float(relative_errors(robot.gravity_forces(q), gravity_efforts, min_effort).max()),
        "link_poses": float(np.abs(poses.position[:, link_indices] - np.array(places)).max()),
        "link_turns": float(np.abs(poses.rotation[:, link_indices] - np.array(turns)).max()),
    }


def _turning(configuration: object, qpos: np.ndarray) -> np.ndarray:
    """MuJoCo's velocities are J times ours."""
    n = configuration.nv  # type: ignore[attr-defined]
    q = from_mujoco(configuration, qpos).q  # type: ignore[arg-type]
    return np.array([to_mujoco(configuration, q, column).qvel for column in np.eye(n)]).T  # type: ignore[arg-type]
