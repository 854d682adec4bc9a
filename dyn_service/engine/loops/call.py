"""One call of a query of a robot with closed loops: its state, and the solutions of the equations at it.

q, v, a and tau have entries for all joints of the tree. With the rows J_c of the loop joints (`joints`):

    J_c v = 0,   J_c a + J_c-dot v = 0,   M a + C = tau + J_c^T lambda         (18) with the loads lambda of loop joints

The singular values of J_c give its rank and an orthonormal basis N of the velocities that keep the loops closed. With
a_p = -J_c^+ J_c-dot v:

    forward dynamics     a = a_p + N z,   (N^T M N) z = N^T (tau - C - M a_p)
    inverse dynamics     N^T S^T tau_S = N^T (M a + C)               S selects the driven joints; least |tau_S|
    loads                J_c^T lambda = M a + C - tau                least squares of the loads of all joints

This is lambda = -(J_c M^-1 J_c^T)^-1 (J_c M^-1 (tau - C) + J_c-dot v) without M^-1, so it also holds where links have
no mass of their own, and the rank depends on the geometry alone. C + M a_p is one call of `inverse_dynamics`.

Independent velocities u = S_u v determine v = G u, G = N (S_u N)^-1; `bias_forces`, `computed_torque` and
`independent_motion` are about them.

Cost: O(N^3). Source: Newton-Euler document, (15), (18), (20); R. Featherstone, Rigid Body Dynamics Algorithms, 2008,
8.5 to 8.11. Checked by tests/engine/test_loops.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np

from dyn_service.api.queries import QUERIES, Array, Row, Wrench
from dyn_service.api.spec import Kind
from dyn_service.engine.loops.closed_loops import ClosedLoops
from dyn_service.engine.loops.joints import (
    TEARING,
    UNSUPPORTED,
    LoopState,
    Tangent,
    first_place,
    pseudo_inverse,
    state_text,
    times,
    with_common_lead,
)
from dyn_service.engine.loops.kernels import REGULAR, LoopKernels
from dyn_service.engine.rows import ask, operand
from dyn_service.errors import FailedPreconditionError


class Call:
    """One call of a query: its row, its arguments as arrays by name, and the state that they describe."""

    def __init__(self, loops: ClosedLoops, row: Row, arguments: dict[str, Any]) -> None:
        self.loops, self.row, self.arguments = loops, row, arguments
        model = loops.tree.model
        sizes, joints = model.rows.sizes, len(model.client_description.joint_names)
        for name, spec in row.inputs.items():
            if arguments.get(name) is not None and spec.kind not in _OBJECTS:
                arguments[name] = operand(name, spec, arguments[name], spec.dims(sizes), joints)

    def input(self, kind: Kind) -> Any:
        """Returns the first input of a kind, or None."""
        name = self.row.first(kind)
        return None if name is None else self.arguments.get(name)

    @cached_property
    def q(self) -> Array:
        """(..., nq)."""
        return cast("Array", self.input("position"))

    @cached_property
    def v(self) -> Array:
        """(..., nv); zero for queries without it."""
        v = self.input("velocity")
        return np.zeros(self.loops.nv) if v is None else v

    @cached_property
    def state(self) -> LoopState:
        """The loop joints."""
        return self.loops.joints.state(self.q, self.v)

    @cached_property
    def tangent(self) -> Tangent:
        """The motions that keep the loops closed."""
        return self.loops.tangent(self.state)

    @cached_property
    def bias_size(self) -> Array:
        """(..., nk), the size of what velocities add to the acceleration of each loop joint, with errors of v."""
        return np.asarray(self.state.bias_size + self.loops.moved(self.state, self.v, 2))

    @cached_property
    def least_acceleration(self) -> Array:
        """(..., nv): a_p, the least accelerations that keep the loops closed.

        Raises:
            FailedPreconditionError: No accelerations keep the loops closed, at a singular state.
        """
        a = -self.tangent.velocities(self.state.bias)
        remaining = np.abs(times(self.state.rows, a) + self.state.bias)
        place = first_place(remaining > TEARING * self.loops.of_rows(self.bias_size))
        if place is not None:
            joints = self.loops.joints
            name = joints.names[joints.joint_of_row[place[-1]]]
            raise FailedPreconditionError(
                f"the loop of joint '{name}' cannot stay closed at this velocity: J_c is singular at this position"
                f"{state_text(place[:-1])}"
            )
        return a

    def tree(self, query: str, *required: Any, wrenches: Sequence[Wrench] = (), **options: Any) -> Any:
        """Returns the tree's answer to a query, with this call's gravity, wrenches, overlay and `passive`."""
        row = QUERIES[query]
        arguments = {
            name: self.arguments.get(name, default)
            for name, default in (("gravity", None), ("overlay", None), ("passive", True))
            if name in row.optional_arguments
        }
        if "wrenches" in row.optional_arguments:
            arguments["wrenches"] = [*self.wrenches, *wrenches] or None
        return ask(self.loops.tree, query, *required, **arguments | options)

    @property
    def wrenches(self) -> list[Wrench]:
        """The external wrenches of the call."""
        wrenches = self.arguments.get("wrenches")
        if wrenches is None:
            return []
        return [wrenches] if isinstance(wrenches, Wrench) else list(wrenches)

    def forward(self, tau: Array) -> Array:
        """Returns the accelerations (..., nv) under efforts."""
        a_p = self.least_acceleration
        # In this order the weight and the bias cancel in `inverse_dynamics`, where they are exact to rounding.
        f = tau - self.tree("inverse_dynamics", self.q, self.v, a_p)
        return np.asarray(a_p + self.tangent.solve(self.tree("mass_matrix", self.q), f))

    def inverse(self, a: Array) -> tuple[Array, Array]:
        """Returns the efforts tau (..., nv), 0 at joints without a drive, and M a + C (..., nv).

        Raises:
            FailedPreconditionError: No joint is driven, or the drives cannot cause this motion.
        """
        loops = self.loops
        motors = loops.driven
        if motors is None or not motors.any():
            raise FailedPreconditionError(
                f"{self.row.name} has no answer for robot '{loops.name}': no joint of its file is driven: add "
                "'driven: true' to a joint in a joint file, a <transmission> with an <actuator> in URDF, or an "
                "actuator in MJCF"
            )
        h = self.tree("inverse_dynamics", self.q, self.v, a)
        N_T = np.swapaxes(self.tangent.basis, -1, -2)
        required, drives = times(N_T, h), self.tangent.drives(motors)
        tau = times(pseudo_inverse(drives), required) * motors
        missing = required - times(drives, tau)
        if (np.abs(missing) > UNSUPPORTED * times(np.abs(N_T), np.abs(h))).any():
            self._check_supported(a, h, N_T, missing, motors)
        return tau, h

    def _check_supported(self, a: Array, h: Array, N_T: Array, missing: Array, motors: Array) -> None:
        """Refuses a motion that the drives cannot cause. missing: (..., nv), what they lack along N."""
        # h may be rounding of larger terms: those of the acceleration and those of the velocity and the weight.
        static = self.tree("inverse_dynamics", self.q, self.v, np.zeros(self.loops.nv))
        inertial = times(np.abs(self.tree("mass_matrix", self.q)), np.abs(a))
        sizes = times(np.abs(N_T), np.abs(h) + np.abs(static) + inertial)
        lacking = np.abs(missing) > UNSUPPORTED * sizes.max(axis=-1, keepdims=True)
        place = first_place(lacking.any(axis=-1))
        if place is None:
            return
        motion = np.abs(times(np.swapaxes(N_T, -1, -2), missing)) / self.tangent.unit
        motion = np.broadcast_to(motion, (*lacking.shape[:-1], motion.shape[-1]))[place]
        joint = self.loops.configuration.velocity_joints[int(np.argmax(motion * (1.0 - motors)))]
        raise FailedPreconditionError(
            f"{self.row.name} has no answer{state_text(place)}: the drives cannot cause this motion of joint "
            f"'{joint}', which is passive; its acceleration must follow from forward_dynamics"
        )

    def independent_acceleration(self, rate: Array, rows: Array) -> Array:
        """Returns the accelerations (..., nv) in which the independent velocities have these rates (..., nu)."""
        a_p = self.least_acceleration
        G = self.loops.from_independent(self.tangent, rows)
        return np.asarray(a_p + times(G, rate - times(rows, a_p)))

    def loads(self, a: Array, forces: Array) -> tuple[Array, Array]:
        """Returns the loads of the loop joints (..., nk, 6) and of the links' inboard joints (..., nl, 6), from one
        solution lambda (..., m); of all solutions the one with the least squares of the loads of all joints.
        """
        joints, state, tangent = self.loops.joints, self.state, self.tangent
        loads = joints.wrenches(forces)
        inboard = self.tree("link_motion", self.q, self.v, a, wrenches=joints.on_links(state, loads)).load
        rank = int(tangent.rank.min(initial=0.0 if not tangent.rank.size else np.inf))
        dependent = np.arange(rank, tangent.U.shape[-1]) >= tangent.rank[..., None]
        redundant = np.swapaxes(tangent.U[..., :, rank:], -1, -2) * dependent[..., None]
        if redundant.shape[-2]:
            # Loads that balance each other, so that joints transmit them without motion, weight or effort.
            idle = joints.wrenches(redundant)
            at_idle = LoopState(*(x[..., None, *(slice(None),) * n] for x, n in zip(state, _STATE_AXES, strict=True)))
            no_motion = np.zeros(self.loops.nv)
            idle_inboard = ask(
                self.loops.kinematics,
                "link_motion",
                self.q[..., None, :],
                no_motion,
                no_motion,
                gravity=np.zeros(3),
                wrenches=joints.on_links(at_idle, idle),
            ).load
            all_idle = np.concatenate([idle, idle_inboard], axis=-2)
            entries = 6 * all_idle.shape[-2]
            columns = np.swapaxes(all_idle.reshape(*all_idle.shape[:-2], entries), -1, -2)
            now = np.concatenate(with_common_lead([loads, inboard], 2), axis=-2)
            share = -times(pseudo_inverse(columns), now.reshape(*now.shape[:-2], entries))
            loads = loads + np.einsum("...d,...dki->...ki", share, idle)
            inboard = inboard + np.einsum("...d,...dki->...ki", share, idle_inboard)
        return loads, inboard


_STATE_AXES = (2, 2, 1, 2, 1, 3, 2)
"""Axes of the fields of a `LoopState` for one state."""

_OBJECTS = ("wrenches", "overlay", "link", "directions")


def regular_accelerations(call: Call, kernels: LoopKernels, tau: Array) -> tuple[Array, Array]:
    """Returns the accelerations (..., nv) by efforts tau (..., nv) of all joints, and whether a state is regular."""
    G, a_p, shares = kernels.independent_motion(call.q, call.v)
    f = tau - call.tree("inverse_dynamics", call.q, call.v, a_p)
    a, quotient = kernels.accelerations(call.tree("mass_matrix", call.q), G, a_p, f)
    return a, (shares <= REGULAR).all(axis=-1) & (quotient[..., 0] <= REGULAR[-1])
