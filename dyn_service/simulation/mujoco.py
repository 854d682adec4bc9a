"""MuJoCo as the engine of a simulated plant, independent of this package's equations.

The model is the robot's description, written as MJCF by `parsing/writing/mjcf.py`, or an MJCF file with the same
joints. States, efforts and wrenches are converted by `model/conventions.py`, by joint name. Contacts of the file act;
joint limits act if requested; actuators do not act, because the plant supplies limited efforts. Mimic joints are
MuJoCo's soft equality constraints; q contains their leaders only.

MuJoCo is imported only here, when an engine is made.

**Contact forces** as wrenches on the robot's links.

A contact at p exerts f (force and torque, in its frame) from its first body on the second:

    force on a link  sum +-R f_force        torque about its origin o  sum +-(R f_torque + (p - o) x R f_force)

A MuJoCo body that is not a link of the robot belongs to the link that its nearest inboard joint moves; bodies without
such a joint (the world, loose objects) are not part of the robot.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dyn_service.api.queries import Array, Wrench
from dyn_service.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from dyn_service.model.configuration import Configuration
from dyn_service.model.conventions import MujocoState, from_mujoco, to_mujoco
from dyn_service.model.description import Description, Mimic
from dyn_service.model.steps import WEIGHTS
from dyn_service.parsing.conversion import written
from dyn_service.simulation.contact.supports import BRAKES
from dyn_service.simulation.engines import Engine
from dyn_service.support.optional import MissingLibraryError, load, missing
from dyn_service.support.suggestions import did_you_mean

_LOG = logging.getLogger(__name__)
_INTEGRATORS = {"rk4": "mjINT_RK4", "semi_implicit_euler": "mjINT_EULER"}


class MujocoEngine(Engine):
    """A robot in MuJoCo. model, data: MuJoCo's. notes: what MJCF cannot express.

    source: the description, or the path of an MJCF file. configuration: the joints, in the robot's order.
    followers: mimic joints by name: leader, ratio and offset. dt_s, integrator: those of the plant. substeps: MuJoCo
    steps per plant step. gravity: (3,) m/s^2; None is the file's. limits: whether position limits act. links: the
    link that each joint moves, to assign contact forces.

    Raises:
        FailedPreconditionError: MuJoCo is not installed.
        NotFoundError: The file does not exist.
        InvalidArgumentError: MuJoCo rejects the file, or its joints differ.
        UnimplementedError: MuJoCo lacks a joint type of the robot, or the integrator.
    """

    def __init__(
        self,
        source: Description | Path,
        configuration: Configuration,
        followers: dict[str, Mimic],
        *,
        dt_s: float,
        substeps: int = 1,
        integrator: str = "rk4",
        gravity: Array | None = None,
        limits: bool = False,
        links: Mapping[str, str] | None = None,
    ) -> None:
        self._mj = mj = _mujoco()
        if integrator not in _INTEGRATORS:
            raise UnimplementedError(f"MuJoCo has no step '{integrator}', expected one of {', '.join(_INTEGRATORS)}")
        self.substeps = substeps
        self.model, self.notes = _compile(mj, source)
        self._configuration, self._followers = configuration, followers
        option = self.model.opt
        option.timestep = dt_s / substeps
        option.integrator = getattr(mj.mjtIntegrator, _INTEGRATORS[integrator])
        # MuJoCo's Euler step treats damping implicitly by default; this package's does not.
        disabled = ["ACTUATION", "AUTORESET", "EULERDAMP", *([] if limits else ["LIMIT"])]
        for flag in disabled:
            option.disableflags |= int(getattr(mj.mjtDisableBit, f"mjDSBL_{flag}"))
        if gravity is not None:
            option.gravity[:] = gravity
        self.data = mj.MjData(self.model)
        self._in_q, self._in_v = self._places(source)
        self._mimics = self._leaders()
        self._last: tuple[Array, Array] | None = None
        self._wrenches: tuple[Wrench, ...] = ()
        self._links = dict(links or {})
        self._contacts: MujocoContacts | None = None

    def step(self, q: Array, v: Array, tau: Array, dt_s: float, braked: Array | None = None) -> tuple[Array, Array]:
        if braked is None:
            return self._advance(q, v, tau)
        # Brakes are dominating armatures, since MuJoCo has none.
        armature = self.model.dof_armature
        own_armature = armature.copy()
        brake_armature = np.where(np.isnan(braked), 0.0, BRAKES * self.model.dof_M0[self._in_v])
        armature[self._in_v] += brake_armature
        try:
            q, v = self._advance(q, v, tau + brake_armature * np.nan_to_num(braked - v) / dt_s)
        finally:
            # even if the step fails: the model is used for all steps
            armature[:] = own_armature
        return q, np.where(np.isnan(braked), v, braked)

    def _advance(self, q: Array, v: Array, tau: Array) -> tuple[Array, Array]:
        self._write_step(q, v, tau)
        contacts = self._contacts
        if contacts is not None:
            contacts.begin()
        for _ in range(self.substeps):
            if contacts is None:
                self._mj.mj_step(self.model, self.data)
            else:
                contacts.step(self.data)
        state = from_mujoco(self._configuration, self.data.qpos[self._in_q], self.data.qvel[self._in_v])
        assert state.v is not None
        self._last = state.q, state.v
        return self._last

    def acceleration(self, q: Array, v: Array, tau: Array) -> Array:
        self._write_step(q, v, tau)
        self._mj.mj_forward(self.model, self.data)
        data = self.data
        state = from_mujoco(self._configuration, data.qpos[self._in_q], data.qvel[self._in_v], data.qacc[self._in_v])
        assert state.a is not None
        return state.a

    def push(self, wrenches: Sequence[Wrench]) -> None:
        """As `Engine.push`; a wrench keeps its direction and its arm of the start of a step through that step."""
        for wrench in wrenches:
            self._body(wrench.link)
            if wrench.frame != "world":
                self._body(wrench.frame)
        self._wrenches = tuple(wrenches)
        self.data.xfrc_applied[:] = 0.0

    def record_contacts(self) -> None:
        self._contacts = MujocoContacts(self._mj, self.model, self._links)

    def contact_wrenches(self) -> Sequence[Wrench]:
        return () if self._contacts is None else self._contacts.wrenches()

    def contact_wrenches_at(self, q: Array, v: Array, a: Array) -> Sequence[Wrench]:
        if self._contacts is None:
            return ()
        state = to_mujoco(self._configuration, q, v, a)
        data = self._contacts.copy_of(self.data)
        self._write_state(data, state)
        data.qacc[:] = 0.0
        data.qacc[self._in_v] = state.qacc
        for _, n, _, leader, mimic in self._mimics:
            data.qacc[n] = mimic.multiplier * data.qacc[leader]
        self._mj.mj_inverse(self.model, data)
        self._contacts.begin()
        self._contacts.add_state(data, 1.0)
        return self._contacts.wrenches()

    def _write_step(self, q: Array, v: Array, tau: Array) -> None:
        """Writes a state and its loads to MuJoCo; the state of the last step is already there."""
        data = self.data
        state = to_mujoco(self._configuration, q, v, tau=tau)
        last = self._last
        if last is None or q is not last[0] or v is not last[1]:
            self._write_state(data, state)
        data.qfrc_applied[self._in_v] = state.force
        if self._wrenches:
            self._wrench()

    def _write_state(self, data: Any, state: MujocoState) -> None:
        """Writes positions and velocities, mimic joints included."""
        data.qpos[self._in_q], data.qvel[self._in_v] = state.qpos, state.qvel
        for k, n, leader_q, leader_v, mimic in self._mimics:
            data.qpos[k] = mimic.multiplier * data.qpos[leader_q] + mimic.offset
            data.qvel[n] = mimic.multiplier * data.qvel[leader_v]

    def _wrench(self) -> None:
        data = self.data
        # After a step MuJoCo's poses are still those of its start.
        self._mj.mj_kinematics(self.model, data)
        data.xfrc_applied[:] = 0.0
        for wrench in self._wrenches:
            body = self._body(wrench.link)
            axes = np.eye(3) if wrench.frame == "world" else data.xmat[self._body(wrench.frame)].reshape(3, 3)
            force, torque = axes @ np.asarray(wrench.force), axes @ np.asarray(wrench.torque)
            point = data.xpos[body] + data.xmat[body].reshape(3, 3) @ np.asarray(wrench.point)
            data.xfrc_applied[body, :3] += force
            data.xfrc_applied[body, 3:] += torque + np.cross(point - data.xipos[body], force)

    def _body(self, link: str) -> int:
        body = int(self._mj.mj_name2id(self.model, self._mj.mjtObj.mjOBJ_BODY, link))
        if body < 0:
            names = [self.model.body(k).name for k in range(self.model.nbody)]
            raise NotFoundError(f"MuJoCo's model has no body '{link}'{did_you_mean(link, names)}")
        return body

    def _places(self, source: Description | Path) -> tuple[Array, Array]:
        """Returns the indices of q and v in MuJoCo's qpos and qvel."""
        model, in_q, in_v = self.model, list[int](), list[int]()
        file = source.source if isinstance(source, Description) else str(source)
        model_joints = [model.joint(k).name for k in range(model.njnt)]
        for name, joint in zip(self._configuration.names, self._configuration.joints, strict=True):
            mujoco_names = joint.mujoco_names(name)
            for part in mujoco_names:
                if part not in model_joints:
                    text = f"has no joint '{part}' of the robot; its joints are {', '.join(model_joints)}"
                    raise InvalidArgumentError(f"{file}: MuJoCo's model {text}", path="mjcf")
                q, v = self._place(part)
                nq, nv = {0: (7, 6), 1: (4, 3)}.get(int(model.joint(part).type[0]), (1, 1))
                expected = (joint.nq, joint.nv) if len(mujoco_names) == 1 else (1, 1)
                if (nq, nv) != expected:
                    text = f"has {nv} degrees of freedom in MuJoCo's model, and {expected[1]} in the robot"
                    raise InvalidArgumentError(f"{file}: joint '{part}' {text}", path="mjcf")
                in_q += range(q, q + nq)
                in_v += range(v, v + nv)
        return np.array(in_q, dtype=np.intp), np.array(in_v, dtype=np.intp)

    def _leaders(self) -> list[tuple[int, int, int, int, Mimic]]:
        model = self.model
        names = {model.joint(k).name for k in range(model.njnt)}
        mimics: list[tuple[int, int, int, int, Mimic]] = []
        for name, mimic in self._followers.items():
            if {name, mimic.joint} <= names:
                mimics.append((*self._place(name), *self._place(mimic.joint), mimic))
        return mimics

    def _place(self, joint: str) -> tuple[int, int]:
        """Returns the first index of a joint in qpos and in qvel."""
        model_joint = self.model.joint(joint)
        return int(model_joint.qposadr[0]), int(model_joint.dofadr[0])


def _mujoco() -> Any:
    mujoco = load("engine 'mujoco'", "mujoco")
    # The package mujoco-studio without mujoco-core, or any folder of that name, imports as well.
    if not hasattr(mujoco, "MjModel"):
        raise MissingLibraryError(missing("engine 'mujoco'", "mujoco"))
    # otherwise MuJoCo writes MUJOCO_LOG.TXT to the working directory
    mujoco.set_mju_user_warning(lambda message: _LOG.warning("MuJoCo: %s", message))
    return mujoco


def _compile(mj: Any, source: Description | Path) -> tuple[Any, list[str]]:
    """Returns MuJoCo's model, and notes on what it cannot express."""
    try:
        if isinstance(source, Path):
            if not source.is_file():
                raise NotFoundError(f"there is no file {str(source)!r}", path="mjcf")
            return mj.MjModel.from_xml_path(str(source)), []
        text, notes = written(_without_speed_limits(source), "mjcf")
        return mj.MjModel.from_xml_string(text), [f"{note.element}: {note.text}" for note in notes]
    except ValueError as error:
        file = source.source if isinstance(source, Description) else source
        first = str(error).strip().splitlines()[0]
        raise InvalidArgumentError(f"{file}: MuJoCo rejects it: {first}", path="mjcf") from None


def _without_speed_limits(robot: Description) -> Description:
    """Removes velocity limits: MJCF has none, and the plant's safety checks enforce them."""
    joints = (replace(j, limit=replace(j.limit, velocity=None)) if j.limit else j for j in robot.joints)
    return replace(robot, joints=tuple(joints))


class MujocoContacts:
    """The contact forces of one robot, summed over a step. links: the link that each joint moves."""

    def __init__(self, mj: Any, model: Any, links: Mapping[str, str]) -> None:
        self._mj, self._model = mj, model
        self._copy = mj.MjData(model)
        self._carriers = [self._carrier(body, links) for body in range(model.nbody)]
        self._staged = int(model.opt.integrator) == int(mj.mjtIntegrator.mjINT_RK4)
        self._sums: dict[tuple[int, str], Array] = {}
        self._weight = 0.0

    def begin(self) -> None:
        """Resets the sums."""
        self._sums, self._weight = {}, 0.0

    def step(self, data: Any) -> None:
        """Makes a step, and adds its contact forces."""
        if self._staged:
            self._add_stages(data)
        self._mj.mj_step(self._model, data)
        # The forces of an Euler step are those at its start, which act through the step.
        if not self._staged:
            self.add_state(data, 1.0)

    def _add_stages(self, data: Any) -> None:
        """Adds the forces of RK4's stages, which keeps those of its last stage only: the stages are repeated on a copy,
        which leaves the motion unchanged to the bit.
        """
        mj, model, copy = self._mj, self._model, self.copy_of(data)
        q, v = copy.qpos.copy(), copy.qvel.copy()
        mj.mj_forward(model, copy)
        first, *weights = WEIGHTS["rk4"]
        self.add_state(copy, first)
        for share, weight in zip((0.5, 0.5, 1.0), weights, strict=True):
            dt, rate = share * model.opt.timestep, copy.qvel.copy()
            copy.qpos[:], copy.qvel[:] = q, v + dt * copy.qacc
            mj.mj_integratePos(model, copy.qpos, rate, dt)
            mj.mj_forward(model, copy)
            self.add_state(copy, weight)

    def copy_of(self, data: Any) -> Any:
        """Returns a copy of the state."""
        self._mj.mj_copyState(self._model, data, self._copy, int(self._mj.mjtState.mjSTATE_INTEGRATION))
        return self._copy

    def add_state(self, data: Any, weight: float) -> None:
        """Adds the contact forces of a state."""
        self._weight += weight
        contact_wrench = np.zeros(6)
        for k in range(data.ncon):
            contact = data.contact[k]
            self._mj.mj_contactForce(self._model, data, k, contact_wrench)
            force, torque = contact_wrench.reshape(2, 3) @ contact.frame.reshape(3, 3)
            for geom, sign in zip(contact.geom, (-1.0, 1.0), strict=True):
                body = int(self._model.geom_bodyid[geom]) if geom >= 0 else 0
                carrier = self._carriers[body]
                if carrier is not None:
                    arm = contact.pos - data.xpos[carrier[0]]
                    total = self._sums.setdefault(carrier, np.zeros(6))
                    total += sign * weight * np.concatenate([torque + np.cross(arm, force), force])

    def wrenches(self) -> Sequence[Wrench]:
        """Returns the mean wrenches."""
        means = {link: total / self._weight for (_, link), total in self._sums.items()}
        return [Wrench(link, mean[:3], mean[3:]) for link, mean in means.items()]

    def _carrier(self, body: int, links: Mapping[str, str]) -> tuple[int, str] | None:
        """Returns the body that represents the link of a body, and the link's name."""
        names = set(links.values())
        while body:
            model_body = self._model.body(body)
            if model_body.name in names:
                return body, model_body.name
            joints = [self._model.joint(model_body.jntadr[0] + k).name for k in range(model_body.jntnum[0])]
            if joints:
                # a planar joint has one MuJoCo joint per component, such as `base.theta`
                link = links.get(joints[-1]) or links.get(joints[-1].rpartition(".")[0])
                return None if link is None else (body, link)
            body = int(model_body.parentid[0])
        return None
