"""Which link was touched, and with what wrench, from residuals of momenta.

Joint residuals. A wrench W on link l adds J_l^T W to the efforts: nothing at joints beyond l, since the momenta of
branches that it does not touch obey (P.1e), (P.1g) without it. The outermost joint with a residual therefore moves the
touched link, or one before it: a wrench that no joint feels, such as one through an axis, hides the links beyond. Of
all wrenches with this residual, `touch` has the least, W = (J_l^T)^+ r.

A force/torque sensor at a joint measures the load F that the parent exerts on the branch beyond it, so that all six
components of what touches the branch are known:

    K-dot = F + E - [eta-dot x P; 0] + W,    K = [H; P]                       Hamilton (P.1e), (P.1g)
    R = k (K - K_0 - integral of (F + E - [eta-dot x P; 0] + R) dt)

where E is the branch's weight; R is W about the joint's origin, in world axes, through a filter of time constant 1/k.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dyn_service.api.queries import Array, RobotQueries
from dyn_service.control.law import RobotState, per_joint
from dyn_service.errors import FailedPreconditionError, NotFoundError

_RANK = 1e-6
"""Relative singular value below which the joints do not feel a wrench."""


@dataclass(frozen=True, eq=False)
class Touch:
    """A touch. link: that which the outermost joint that feels it moves. same_joints: other links that its
    joints move, such as those fixed to it. wrench: (6,) N m, N, [torque; force] on the robot about the link's origin,
    world axes: the least one with this residual. rank: number of its six components that the
    joints feel; with 6 the wrench is known.
    """

    link: str
    same_joints: tuple[str, ...]
    wrench: Array
    rank: int

    def __str__(self) -> str:
        torque, force = (", ".join(f"{x:.3g}" for x in half) for half in (self.wrench[:3], self.wrench[3:]))
        remark = "" if self.rank == 6 else f", the least of those with the {self.rank} components that its joints feel"
        alternatives = f" (or {', '.join(self.same_joints)})" if self.same_joints else ""
        return f"link '{self.link}'{alternatives} was touched: force ({force}) N, torque ({torque}) N m{remark}"


class TouchFinder:
    """Finds the touched link of a robot from residuals.

    Raises:
        FailedPreconditionError: The robot has closed loops, through which joints beyond a link feel a touch, too.
    """

    def __init__(self, model: RobotQueries) -> None:
        _refuse_loops(model)
        self._model = model
        joints = {joint.child: joint for joint in model.description.joints}
        velocities: dict[str, list[int]] = {}
        for k, name in enumerate(model.configuration.velocity_joints):
            velocities.setdefault(name, []).append(k)
        self._beyond: dict[str, list[int]] = {}
        for link in model.link_names:
            # Entries of v of the joints from the root to the link: those that feel a wrench on it.
            entries: list[int] = []
            joint = joints.get(link)
            while joint is not None:
                name = joint.name if joint.mimic is None else joint.mimic.joint
                entries += velocities.get(name, [])
                joint = joints.get(joint.parent or "")
            self._beyond[link] = sorted(set(entries))
        # Once before the loop begins, in which no call may wait for a compiler.
        self.touch(model.configuration.neutral, np.ones(model.nv), np.zeros(model.nv))

    def touch(self, q: Array, residual: Array, threshold: Array) -> Touch | None:
        """Returns the touch with this residual, or None if no joint feels one, or several branches do.

        Args:
            q: (nq,) position, rad | m.
            residual: (nv,) N m | N.
            threshold: (nv,) N m | N, above which a joint feels it.
        """
        loaded = set(np.flatnonzero(np.abs(residual) > threshold).tolist())
        links = [link for link, entries in self._beyond.items() if loaded and loaded <= set(entries)]
        if not links or not np.isfinite(residual).all():
            return None
        # The link with the fewest joints of those that can explain it; of fixed ones the first.
        link = min(links, key=lambda name: len(self._beyond[name]))
        entries = self._beyond[link]
        J = self._model.point_motion(q, np.zeros(self._model.nv), link).jacobian[:, entries]
        wrench, _, rank, _ = np.linalg.lstsq(J.T, residual[entries], rcond=_RANK)
        same_joints = tuple(name for name in links if name != link and len(self._beyond[name]) == len(entries))
        return Touch(link, same_joints, np.asarray(wrench, dtype=np.float64), int(rank))


class BranchObserver:
    """Estimates the wrench of touches on the branch beyond a joint that has a force/torque sensor.

    Args:
        model: The robot's queries.
        joint: The joint with the sensor.
        gain: k, 1/s.

    Raises:
        NotFoundError: The robot has no such joint.
        InvalidArgumentError: The gain is not positive.
        FailedPreconditionError: The robot has closed loops.
    """

    def __init__(self, model: RobotQueries, joint: str, gain: float) -> None:
        _refuse_loops(model)
        children = {description.name: description.child for description in model.description.joints}
        if joint not in children:
            raise NotFoundError(f"robot '{model.name}' has no joint '{joint}': its joints are {', '.join(children)}")
        self.gain = float(per_joint("observer_gain", gain, 1, positive=True)[0])
        self._model, self._row = model, model.link_names.index(children[joint])
        self.wrench = np.zeros(6)
        self._balance = np.zeros(6)
        self._rate: Array | None = None

    def reset(self) -> None:
        """Begins with the next state, without a touch."""
        self.wrench, self._rate = np.zeros(6), None

    def update(self, state: RobotState, load: Array, dt: float) -> Array:
        """Returns R (6,) N m, N, [torque; force] about the joint's origin, world axes.

        Args:
            state: The measured state.
            load: (6,) N m, N, [torque; force] that the parent exerts on the child about the joint's origin, in the
                child link's axes, at this state: `constraint_forces`, or the reading of `force_torque` there.
            dt: s since the previous state.
        """
        model, q, v = self._model, state.q, state.v
        terms = model.system_momentum_rate(q, v, np.zeros_like(v), frame="world")
        R_WL = model.link_poses(q).rotation[self._row]
        momentum = model.system_momentum(q, v, frame="world").momentum[self._row]
        # (P.1g) has H about a point that moves: by the difference of the two rates no velocity is needed.
        moving = terms.rate[self._row] - terms.load[self._row] - terms.external[self._row]
        rate = np.concatenate([R_WL @ load[:3], R_WL @ load[3:]]) + terms.external[self._row] + moving
        if self._rate is None:
            self._balance = momentum
        else:
            self._balance = self._balance + 0.5 * dt * (self._rate + rate + self.wrench)
            # Solved for the residual at the end of the step, as in `MomentumObserver`.
            self.wrench = self.gain * (momentum - self._balance) / (1.0 + 0.5 * self.gain * dt)
            self._balance = self._balance + 0.5 * dt * self.wrench
        self._rate = rate
        return self.wrench


def _refuse_loops(model: RobotQueries) -> None:
    if model.description.loop_joints:
        raise FailedPreconditionError(
            f"robot '{model.name}' has closed loops: a touch on one link loads the joints of others, so that residuals "
            "do not say which was touched"
        )
