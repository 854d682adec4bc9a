"""States in the conventions of MuJoCo and of ROS's messages, to and from ours.

| | ours, Pinocchio's | MuJoCo's | ROS's |
|---|---|---|---|
| quaternion | x, y, z, w | w, x, y, z | x, y, z, w |
| floating v | linear then angular, body axes | linear in world axes, angular in body axes | twist in the child's axes |
| planar | x, y, theta; body axes | no such joint | a transform, a twist in the child's axes |
| order of joints | depth first, siblings by name | that of the file, by address | by name |

MuJoCo's forces belong to its velocities: of a floating joint, the force in world axes, the torque in body axes. Arrays
may carry leading axes; what is left out stays out. docs/conventions.md tells more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dyn_service.errors import InvalidArgumentError
from dyn_service.model.configuration import Configuration
from dyn_service.model.joints import Joint

Array = NDArray[np.float64]


class MujocoState(NamedTuple):
    """qpos (..., nq), qvel, qacc, force (..., nv), joint after joint in our order: its `jnt_qposadr` and `jnt_dofadr`
    say where each stands in MuJoCo's own arrays. None where it was not given.
    """

    qpos: Array
    qvel: Array | None
    qacc: Array | None
    force: Array | None


class JointValues(NamedTuple):
    """q (..., nq), v, a, tau (..., nv). None where it was not given."""

    q: Array
    v: Array | None
    a: Array | None
    tau: Array | None


def to_mujoco(
    at: Configuration,
    q: ArrayLike,
    v: ArrayLike | None = None,
    a: ArrayLike | None = None,
    tau: ArrayLike | None = None,
) -> MujocoState:
    """A state of ours as MuJoCo writes it.

    Args:
        at: `robot.configuration`.
        q: (..., nq) positions.
        v: (..., nv) velocities; accelerations need them.
        a: (..., nv) accelerations.
        tau: (..., nv) efforts.

    Raises:
        InvalidArgumentError: A joint is of a type that MuJoCo has not.
    """
    given = [None if x is None else np.array(x, dtype=np.float64) for x in (q, v, a, tau)]
    qpos, qvel, qacc, force = given
    assert qpos is not None
    for joint, in_q, in_v in _joints(at):
        inner = joint.quaternion
        if not inner.stop:
            continue
        quaternion = slice(in_q.start + inner.start, in_q.start + inner.stop)
        R = _rotation(joint, qpos[..., in_q])
        qpos[..., quaternion] = np.roll(qpos[..., quaternion], 1, axis=-1)
        if inner.start:  # it shifts too
            linear, angular = slice(in_v.start, in_v.start + 3), slice(in_v.start + 3, in_v.stop)
            if qacc is not None:
                if qvel is None:
                    raise InvalidArgumentError("accelerations of a floating joint need its velocities", path="v")
                own = np.asarray(v, dtype=np.float64)
                turned = np.cross(own[..., angular], own[..., linear])
                qacc[..., linear] = _times(R, qacc[..., linear] + turned)
            for x in (qvel, force):
                if x is not None:
                    x[..., linear] = _times(R, x[..., linear])
    return MujocoState(qpos, qvel, qacc, force)


def from_mujoco(
    at: Configuration,
    qpos: ArrayLike,
    qvel: ArrayLike | None = None,
    qacc: ArrayLike | None = None,
    force: ArrayLike | None = None,
) -> JointValues:
    """The inverse of `to_mujoco`.

    Args:
        at: `robot.configuration`.
        qpos: (..., nq), joint after joint in our order.
        qvel: (..., nv); accelerations need them.
        qacc: (..., nv).
        force: (..., nv), such as `qfrc_inverse`.

    Raises:
        InvalidArgumentError: A joint is of a type that MuJoCo has not.
    """
    given = [None if x is None else np.array(x, dtype=np.float64) for x in (qpos, qvel, qacc, force)]
    q, v, a, tau = given
    assert q is not None
    for joint, in_q, in_v in _joints(at):
        inner = joint.quaternion
        if not inner.stop:
            continue
        quaternion = slice(in_q.start + inner.start, in_q.start + inner.stop)
        q[..., quaternion] = np.roll(q[..., quaternion], -1, axis=-1)
        if inner.start:
            back = _rotation(joint, q[..., in_q]).mT
            linear, angular = slice(in_v.start, in_v.start + 3), slice(in_v.start + 3, in_v.stop)
            for x in (v, tau):
                if x is not None:
                    x[..., linear] = _times(back, x[..., linear])
            if a is not None:
                if v is None:
                    raise InvalidArgumentError("accelerations of a floating joint need its velocities", path="qvel")
                turned = np.cross(v[..., angular], v[..., linear])
                a[..., linear] = _times(back, a[..., linear]) - turned
    return JointValues(q, v, a, tau)


def to_ros(at: Configuration, q: ArrayLike, v: ArrayLike, tau: ArrayLike | None = None) -> dict[str, Any]:
    """One state as `sensor_msgs/JointState` and `sensor_msgs/MultiDOFJointState`, with their fields' names.

    Joints with one way to move stand in `joint_state`, the others in `multi_dof_joint_state`: their pose in the joint's
    frame, and their twist in the child's axes, as `nav_msgs/Odometry` has it.

    Args:
        at: `robot.configuration`.
        q: (nq,) positions.
        v: (nv,) velocities.
        tau: (nv,) efforts of the joints with one way to move; None leaves them out.
    """
    q, v = np.asarray(q, dtype=np.float64), np.asarray(v, dtype=np.float64)
    efforts = None if tau is None else np.asarray(tau, dtype=np.float64)
    single: dict[str, list[Any]] = {"name": [], "position": [], "velocity": [], "effort": []}
    several: dict[str, list[Any]] = {"joint_names": [], "transforms": [], "twist": []}
    for name, joint, in_q, in_v in zip(at.names, at.joints, at.q_slices, at.v_slices, strict=True):
        if joint.nv == 1:
            single["name"].append(name)
            single["position"].append(float(q[in_q.start]))
            single["velocity"].append(float(v[in_v.start]))
            if efforts is not None:
                single["effort"].append(float(efforts[in_v.start]))
            continue
        R, p = joint.pose(q[in_q])
        turning, shifting = np.split(joint.subspace @ v[in_v], 2)
        several["joint_names"].append(name)
        several["transforms"].append({"translation": _xyz(p), "rotation": _xyzw(R)})
        several["twist"].append({"linear": _xyz(shifting), "angular": _xyz(turning)})
    return {"joint_state": single, "multi_dof_joint_state": several}


def from_ros(
    at: Configuration, joint_state: Mapping[str, Any], multi_dof: Mapping[str, Any] | None = None
) -> JointValues:
    """The inverse of `to_ros`, from the two messages as maps of their fields; joints stand in any order.

    Raises:
        InvalidArgumentError: A joint of the robot is in neither.
    """
    q, v, tau = np.zeros(at.nq), np.zeros(at.nv), np.zeros(at.nv)
    single: Sequence[str] = joint_state.get("name", ())
    several: Sequence[str] = (multi_dof or {}).get("joint_names", ())
    for name, joint, in_q, in_v in zip(at.names, at.joints, at.q_slices, at.v_slices, strict=True):
        if joint.nv == 1 and name in single:
            k = single.index(name)
            for field, into, part in (("position", q, in_q), ("velocity", v, in_v), ("effort", tau, in_v)):
                values = joint_state.get(field) or ()
                if len(values):
                    into[part] = values[k]
        elif joint.nv > 1 and multi_dof is not None and name in several:
            k = several.index(name)
            transform, twist = multi_dof["transforms"][k], multi_dof["twist"][k]
            p = [transform["translation"][axis] for axis in "xyz"]
            q[in_q] = joint.of_pose([transform["rotation"][axis] for axis in "xyzw"], p)
            motion = [twist[part][axis] for part in ("angular", "linear") for axis in "xyz"]
            v[in_v] = np.linalg.pinv(joint.subspace) @ motion
        else:
            raise InvalidArgumentError(f"the messages have no joint '{name}'", path="joint_names")
    return JointValues(q, v, None, tau)


def _joints(at: Configuration) -> list[tuple[Joint, slice, slice]]:
    """The joints with their entries, if MuJoCo has them all."""
    for name, joint in zip(at.names, at.joints, strict=True):
        if joint.nv > 1 and not joint.quaternion.stop:
            raise InvalidArgumentError(
                f"joint '{name}' is {joint.type}, which MuJoCo has not: write it as joints of one way each", path="at"
            )
    return list(zip(at.joints, at.q_slices, at.v_slices, strict=True))


def _rotation(joint: Joint, q: Array) -> Array:
    return joint.pose(q)[0]


def _times(R: Array, x: Array) -> Array:
    return np.asarray((R @ x[..., None])[..., 0])


def _xyz(x: Array) -> dict[str, float]:
    return dict(zip("xyz", map(float, x), strict=True))


def _xyzw(R: Array) -> dict[str, float]:
    """The unit quaternion of a rotation, its real part not negative."""
    # Of the four ways to read it off, the one whose root is largest.
    K = np.array(
        [
            [R[0, 0] - R[1, 1] - R[2, 2], 0, 0, 0],
            [R[1, 0] + R[0, 1], R[1, 1] - R[0, 0] - R[2, 2], 0, 0],
            [R[2, 0] + R[0, 2], R[2, 1] + R[1, 2], R[2, 2] - R[0, 0] - R[1, 1], 0],
            [R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1], R[0, 0] + R[1, 1] + R[2, 2]],
        ]
    )
    values, vectors = np.linalg.eigh(K)  # of the lower triangle
    q = vectors[:, np.argmax(values)]
    return dict(zip("xyzw", map(float, q if q[3] >= 0 else -q), strict=True))
