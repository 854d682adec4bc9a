"""Conversion of states to and from the conventions of MuJoCo and of ROS messages.

| | here and in Pinocchio | MuJoCo | ROS |
|---|---|---|---|
| quaternion | x, y, z, w | w, x, y, z | x, y, z, w |
| floating v | linear then angular, body axes | linear in world axes, angular in body axes | twist in the child's axes |
| planar | x, y, theta; body axes | two slides and a hinge, joint's axes | a transform, a twist in the child's axes |
| cylindrical | angle, distance | a hinge and a slide | a transform, a twist in the child's axes |
| order of joints | depth first, siblings by name | that of the file, by address | by name |

MuJoCo's generalised forces match its velocities: for a floating joint, force in world axes and torque in body axes. It
has no screw joints. Arrays to and from MuJoCo may have leading axes, which broadcast. Arguments that are left out are
None in the result. See docs/conventions.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dyn_service.api.arrays import broadcast, found, numbers, vectors
from dyn_service.errors import InvalidArgumentError
from dyn_service.model.configuration import UNIT, Configuration
from dyn_service.model.joints import Joint

Array = NDArray[np.float64]

__all__ = ["JointValues", "MujocoState", "from_mujoco", "from_ros", "to_mujoco", "to_ros"]


class MujocoState(NamedTuple):
    """A state in MuJoCo's conventions: qpos (..., nq), qvel, qacc, force (..., nv), in this package's order of joints.

    `jnt_qposadr` and `jnt_dofadr` give the index of each joint in MuJoCo's arrays; planar and cylindrical joints are
    several joints there, in this order. None for what was not given.
    """

    qpos: Array
    qvel: Array | None
    qacc: Array | None
    force: Array | None


class JointValues(NamedTuple):
    """q (..., nq), v, a, tau (..., nv). None for what was not given."""

    q: Array
    v: Array | None
    a: Array | None
    tau: Array | None


def to_mujoco(
    configuration: Configuration,
    q: ArrayLike,
    v: ArrayLike | None = None,
    a: ArrayLike | None = None,
    tau: ArrayLike | None = None,
) -> MujocoState:
    """Converts a state to MuJoCo's conventions.

    Args:
        configuration: `robot.configuration`.
        q: (..., nq) positions.
        v: (..., nv) velocities; accelerations need them.
        a: (..., nv) accelerations.
        tau: (..., nv) efforts.

    Raises:
        InvalidArgumentError: MuJoCo has no such joint type, or an argument has the wrong shape.
    """
    qpos, qvel, qacc, force = _broadcast_copies(configuration, {"q": q, "v": v, "a": a, "tau": tau})
    assert qpos is not None
    body_velocity = None if qvel is None else qvel.copy()
    for joint, base in _bases(configuration, qpos, 1):
        if qacc is not None:
            qacc[..., base.linear] = _times(
                base.rotation, qacc[..., base.linear] + base.omega_cross_v(joint, body_velocity, "v")
            )
        for x in (qvel, force):
            if x is not None:
                x[..., base.linear] = _times(base.rotation, x[..., base.linear])
    return MujocoState(qpos, qvel, qacc, force)


def from_mujoco(
    configuration: Configuration,
    qpos: ArrayLike,
    qvel: ArrayLike | None = None,
    qacc: ArrayLike | None = None,
    force: ArrayLike | None = None,
) -> JointValues:
    """The inverse of `to_mujoco`.

    Args:
        configuration: `robot.configuration`.
        qpos: (..., nq), joint after joint in our order.
        qvel: (..., nv); accelerations need them.
        qacc: (..., nv).
        force: (..., nv), such as `qfrc_inverse`.

    Raises:
        InvalidArgumentError: MuJoCo has no such joint type, or an argument has the wrong shape.
    """
    q, v, a, tau = _broadcast_copies(configuration, {"qpos": qpos, "qvel": qvel, "qacc": qacc, "force": force})
    assert q is not None
    for joint, base in _bases(configuration, q, -1):
        back = base.rotation.mT
        for x in (v, tau):
            if x is not None:
                x[..., base.linear] = _times(back, x[..., base.linear])
        if a is not None:
            a[..., base.linear] = _times(back, a[..., base.linear]) - base.omega_cross_v(joint, v, "qvel")
    return JointValues(q, v, a, tau)


def to_ros(configuration: Configuration, q: ArrayLike, v: ArrayLike, tau: ArrayLike | None = None) -> dict[str, Any]:
    """Converts one state to the fields of `sensor_msgs/JointState` and `sensor_msgs/MultiDOFJointState`.

    Joints with one degree of freedom are in `joint_state`, the others in `multi_dof_joint_state`: their pose in the
    joint frame, and their twist in the child's axes, as in `nav_msgs/Odometry`.

    Args:
        configuration: `robot.configuration`.
        q: (nq,) positions.
        v: (nv,) velocities.
        tau: (nv,) efforts of the joints with one degree of freedom; None leaves them out.

    Raises:
        InvalidArgumentError: An argument has the wrong shape.
    """
    q, v = _single_state("q", q, configuration.nq), _single_state("v", v, configuration.nv)
    efforts = None if tau is None else _single_state("tau", tau, configuration.nv)
    single: dict[str, list[Any]] = {"name": [], "position": [], "velocity": [], "effort": []}
    multi_dof: dict[str, list[Any]] = {"joint_names": [], "transforms": [], "twist": []}
    for name, joint, in_q, in_v in zip(
        configuration.names, configuration.joints, configuration.q_slices, configuration.v_slices, strict=True
    ):
        if joint.nv == 1:
            single["name"].append(name)
            single["position"].append(float(q[in_q.start]))
            single["velocity"].append(float(v[in_v.start]))
            if efforts is not None:
                single["effort"].append(float(efforts[in_v.start]))
            continue
        rotation, p = joint.to_pose(q[in_q].tolist())
        turning, shifting = np.split(joint.subspace @ v[in_v], 2)
        multi_dof["joint_names"].append(name)
        multi_dof["transforms"].append({"translation": _xyz(p), "rotation": _xyzw(rotation)})
        multi_dof["twist"].append({"linear": _xyz(shifting), "angular": _xyz(turning)})
    return {"joint_state": single, "multi_dof_joint_state": multi_dof}


def from_ros(
    configuration: Configuration, joint_state: Mapping[str, Any], multi_dof_joint_state: Mapping[str, Any] | None = None
) -> JointValues:
    """Inverse of `to_ros`: converts the two messages, given as maps of their fields, in any order of joints.

    Fields may be lists or arrays. As in ROS, an empty or absent field is not given, nor is an entry of NaN, which
    drivers write for joints without a sensor: v is None unless the messages contain the velocities of all joints, tau
    is None unless they contain efforts (of joints with one degree of freedom).

    Raises:
        InvalidArgumentError: A joint of the robot is missing, has no position or an invalid quaternion, a field does
            not have one entry per name, or a number is infinite. `path` names the field.
    """
    q, v, tau = np.zeros(configuration.nq), np.zeros(configuration.nv), np.zeros(configuration.nv)
    moves, forced = True, any(joint.nv == 1 for joint in configuration.joints)
    multi_dof_message = multi_dof_joint_state or {}
    single = list(joint_state.get("name", ()))
    values = {field: _field(joint_state, field, len(single)) for field in ("position", "velocity", "effort")}
    multi_dof_names = list(multi_dof_message.get("joint_names", ()))
    poses, twists = (_messages(multi_dof_message, field, len(multi_dof_names)) for field in ("transforms", "twist"))
    for name, joint, in_q, in_v in zip(
        configuration.names, configuration.joints, configuration.q_slices, configuration.v_slices, strict=True
    ):
        if joint.nv == 1 and name in single:
            k = single.index(name)
            position, velocity, effort = (_entry(field, array, k, name) for field, array in values.items())
            if position is None:
                raise InvalidArgumentError(f"the message has no position of joint '{name}'", path="position")
            q[in_q] = position
            moves = moves and velocity is not None
            v[in_v] = 0.0 if velocity is None else velocity
            forced = forced and effort is not None
            tau[in_v] = 0.0 if effort is None else effort
        elif joint.nv > 1 and name in multi_dof_names:
            k = multi_dof_names.index(name)
            if poses is None:
                raise InvalidArgumentError(f"the message has no transform of joint '{name}'", path="transforms")
            p = _parts(poses[k], "translation", "xyz", f"transforms[{k}]")
            _check_finite(p, name, f"transforms[{k}].translation")
            q[in_q] = joint.of_pose(_rotation_of(poses[k], name, f"transforms[{k}]").tolist(), p.tolist())
            moves = moves and twists is not None
            if twists is not None:
                motion = np.concatenate(
                    [_parts(twists[k], part, "xyz", f"twist[{k}]") for part in ("angular", "linear")]
                )
                moves = moves and not np.isnan(motion).any()
                if moves:
                    _check_finite(motion, name, f"twist[{k}]")
                    # The nearest motion that the joint allows: an estimated twist has parts outside its freedom.
                    v[in_v] = np.linalg.pinv(joint.subspace) @ motion
        else:
            raise InvalidArgumentError(f"the messages have no joint '{name}'", path="joint_names")
    return JointValues(q, v if moves else None, None, tau if forced else None)


def _broadcast_copies(
    configuration: Configuration, vectors_by_name: Mapping[str, ArrayLike | None]
) -> list[Array | None]:
    """Returns copies of positions and of arrays with the length of v, broadcast to common leading axes."""
    lengths = zip(
        vectors_by_name.items(), (configuration.nq, configuration.nv, configuration.nv, configuration.nv), strict=True
    )
    arrays = {name: vectors(name, value, length) for (name, value), length in lengths if value is not None}
    lead = broadcast({name: array.shape[:-1] for name, array in arrays.items()})
    copies = {name: np.array(np.broadcast_to(x, (*lead, x.shape[-1]))) for name, x in arrays.items()}
    return [copies.get(name) for name in vectors_by_name]


def _single_state(name: str, value: ArrayLike, length: int) -> Array:
    """Returns (length,) numbers: a message contains one state."""
    array = numbers(value)
    if array is None or array.shape != (length,):
        raise InvalidArgumentError(f"{name} must be ({length},) numbers, found {found(value)}", path=name)
    return array


def _field(message: Mapping[str, Any], field: str, count: int) -> Array | None:
    """Returns a field with one number per name; None if it is empty or absent."""
    value = message.get(field)
    if value is None or not len(value):
        return None
    array = numbers(value)
    if array is None or array.shape != (count,):
        text = f"{field} must be {count} numbers, one for each name, found {found(value)}"
        raise InvalidArgumentError(text, path=field)
    return array


def _entry(field: str, array: Array | None, k: int, name: str) -> float | None:
    """Returns an entry of a field; None if the field is not given or the entry is NaN."""
    if array is None or math.isnan(array[k]):
        return None
    _check_finite(array[k], name, field)
    return float(array[k])


def _check_finite(values: ArrayLike, name: str, path: str) -> None:
    if not np.isfinite(values).all():
        raise InvalidArgumentError(
            f"{path} of joint '{name}' must be finite, found {np.asarray(values).tolist()}", path=path
        )


def _messages(message: Mapping[str, Any], field: str, count: int) -> Sequence[Any] | None:
    """Returns a field with one message per name; None if it is empty or absent."""
    value: Sequence[Any] | None = message.get(field)
    if value is None or not len(value):
        return None
    if len(value) != count:
        text = f"{field} must have {count} entries, one for each of joint_names, found {len(value)}"
        raise InvalidArgumentError(text, path=field)
    return value


def _parts(message: Any, part: str, axes: str, path: str) -> Array:
    """Returns the numbers of a vector or a quaternion."""
    try:
        array = numbers([message[part][axis] for axis in axes])
    except (KeyError, TypeError, IndexError):
        array = None
    if array is None or array.shape != (len(axes),):
        raise InvalidArgumentError(
            f"{path}.{part} must have numbers {', '.join(axes)}, found {found(message)}", path=f"{path}.{part}"
        )
    return array


def _rotation_of(message: Any, name: str, path: str) -> Array:
    """Returns the unit quaternion of a transform."""
    quaternion = _parts(message, "rotation", "xyzw", path)
    length = float(np.linalg.norm(quaternion))
    if not abs(length - 1.0) <= UNIT:
        raise InvalidArgumentError(
            f"the rotation of joint '{name}' has a quaternion of length {length:g}, expected 1 within {UNIT:g}",
            path=f"{path}.rotation",
        )
    return quaternion


class _Base(NamedTuple):
    """A joint with `Joint.linear` velocities, which are in body axes here and in joint axes in MuJoCo.

    rotation: (..., n, n) from body to joint axes. linear, angular: their slices of v.
    """

    rotation: Array
    linear: slice
    angular: slice

    def omega_cross_v(self, joint: Joint, v: Array | None, name: str) -> Array:
        """Returns omega x v (..., n): the difference between the derivative of v and the acceleration of the point."""
        if v is None:
            raise InvalidArgumentError(f"accelerations of a {joint.type} joint need its velocities", path=name)
        linear, omega = v[..., self.linear], v[..., self.angular]
        if linear.shape[-1] == 3:
            return np.cross(omega, linear)
        return np.stack([-omega[..., 0] * linear[..., 1], omega[..., 0] * linear[..., 0]], axis=-1)


def _bases(configuration: Configuration, q: Array, shift: Literal[1, -1]) -> Iterator[tuple[Joint, _Base]]:
    """Yields the joints with velocities in other axes, and shifts the entries of all quaternions of q, in place: 1
    makes them MuJoCo's, -1 ours. Raises if MuJoCo lacks a type.
    """
    for name, joint in zip(configuration.names, configuration.joints, strict=True):
        if joint.mujoco is None:
            raise InvalidArgumentError(
                f"joint '{name}' is {joint.type}, a type that MuJoCo does not have", path="configuration"
            )
    for joint, in_q, in_v in zip(configuration.joints, configuration.q_slices, configuration.v_slices, strict=True):
        view, inner = q[..., in_q], joint.quaternion
        # A copy, because the next line overwrites our quaternion, from which the axes are computed.
        q_before = view.copy()
        view[..., inner] = np.roll(view[..., inner], shift, axis=-1)
        if joint.linear.stop:
            end = in_v.start + joint.linear.stop
            rotation = joint.axes(q_before if shift == 1 else view)
            yield joint, _Base(rotation, slice(in_v.start, end), slice(end, in_v.stop))


def _times(R: Array, x: Array) -> Array:
    return np.asarray((R @ x[..., None])[..., 0])


def _xyz(x: Iterable[float]) -> dict[str, float]:
    return dict(zip("xyz", map(float, x), strict=True))


def _xyzw(quaternion: Sequence[float]) -> dict[str, float]:
    """Returns the unit quaternion with non-negative real part."""
    length = math.copysign(math.hypot(*quaternion), quaternion[3])
    return dict(zip("xyzw", (x / length for x in quaternion), strict=True))
