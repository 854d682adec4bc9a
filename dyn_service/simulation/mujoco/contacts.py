"""MuJoCo's contact forces as wrenches on the robot's links.

A contact at p exerts f (force and torque, in its frame) from its first body on the second:

    force on a link  sum +-R f_force        torque about its origin o  sum +-(R f_torque + (p - o) x R f_force)

A MuJoCo body that is not a link of the robot belongs to the link that its nearest inboard joint moves; bodies without
such a joint (the world, loose objects) are not part of the robot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dyn_service.api.queries import Array, Wrench
from dyn_service.model.steps import WEIGHTS


class MujocoContacts:
    """The contact forces of one robot, summed over a step.

    Args:
        mj: The package mujoco.
        model: Its model.
        links: The link that each joint moves.
    """

    def __init__(self, mj: Any, model: Any, links: Mapping[str, str]) -> None:
        self._mj, self._model = mj, model
        self._own = mj.MjData(model)
        self._of_body = [self._carrier(body, links) for body in range(model.nbody)]
        self._staged = int(model.opt.integrator) == int(mj.mjtIntegrator.mjINT_RK4)
        self._sums: dict[int, Array] = {}
        self._weight = 0.0

    def begin(self) -> None:
        """Resets the sums."""
        self._sums, self._weight = {}, 0.0

    def before(self, data: Any) -> None:
        """Starts a step. RK4 keeps the forces of its last stage only, so its stages are repeated on a copy, which
        leaves the motion unchanged to the bit.
        """
        if not self._staged:
            return
        mj, model, own = self._mj, self._model, self.copied(data)
        q, v = own.qpos.copy(), own.qvel.copy()
        mj.mj_forward(model, own)
        first, *weights = WEIGHTS["rk4"]
        self.keep(own, first)
        for share, weight in zip((0.5, 0.5, 1.0), weights, strict=True):
            dt, rate = share * model.opt.timestep, own.qvel.copy()
            own.qpos[:], own.qvel[:] = q, v + dt * own.qacc
            mj.mj_integratePos(model, own.qpos, rate, dt)
            mj.mj_forward(model, own)
            self.keep(own, weight)

    def after(self, data: Any) -> None:
        """Ends a step. The forces of an Euler step are those at its start, which act through the step."""
        if not self._staged:
            self.keep(data, 1.0)

    def copied(self, data: Any) -> Any:
        """Returns a copy of the state."""
        self._mj.mj_copyState(self._model, data, self._own, int(self._mj.mjtState.mjSTATE_INTEGRATION))
        return self._own

    def keep(self, data: Any, weight: float) -> None:
        """Adds the contact forces of a state."""
        self._weight += weight
        pushed = np.zeros(6)
        for k in range(data.ncon):
            contact = data.contact[k]
            self._mj.mj_contactForce(self._model, data, k, pushed)
            force, torque = pushed.reshape(2, 3) @ contact.frame.reshape(3, 3)
            for geom, sign in zip(contact.geom, (-1.0, 1.0), strict=True):
                body = int(self._model.geom_bodyid[geom]) if geom >= 0 else 0
                carrier = self._of_body[body]
                if carrier is not None:
                    arm = contact.pos - data.xpos[carrier[0]]
                    total = self._sums.setdefault(carrier[0], np.zeros(6))
                    total += sign * weight * np.concatenate([torque + np.cross(arm, force), force])

    def wrenches(self) -> Sequence[Wrench]:
        """Returns the mean wrenches."""
        found = []
        for body, total in self._sums.items():
            carrier = self._of_body[body]
            assert carrier is not None
            mean = total / self._weight
            found.append(Wrench(carrier[1], mean[:3], mean[3:]))
        return found

    def _carrier(self, body: int, links: Mapping[str, str]) -> tuple[int, str] | None:
        """Returns the body that represents the link of a body, and the link's name."""
        names = set(links.values())
        while body:
            this = self._model.body(body)
            if this.name in names:
                return body, this.name
            moved = [self._model.joint(this.jntadr[0] + k).name for k in range(this.jntnum[0])]
            if moved:
                # a planar joint has one MuJoCo joint per component, such as `base.theta`
                link = links.get(moved[-1]) or links.get(moved[-1].rpartition(".")[0])
                return None if link is None else (body, link)
            body = int(this.parentid[0])
        return None
