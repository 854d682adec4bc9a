"""The computed-torque law.

    tau = inverse_dynamics(q, v, a_ref + kd (v_ref - v) + kp (q_ref - q)),     kp = w^2, kd = 2 d w

so that the tracking error obeys e-ddot + kd e-dot + kp e = 0 if the model matches the plant. For joints with several
degrees of freedom q_ref - q is `Configuration.error`, and the velocities of reference and plant are each in their own
body axes: the error then obeys the same equation up to terms of order v e, which vanish with e.

Source: Newton-Euler (18) of the notes; Luh, Walker, Paul, IEEE Trans. Automatic Control 25 (1980).

**Gravity compensation** with damping: the robot floats, can be guided by hand, and comes to rest.

    tau = g(q) - c M(q) v

g contains the weight and joint springs. Kinetic energy K = v^T M v / 2 obeys K-dot = -2 c K + v^T tau_ext, because
M-dot - 2 C is skew: any motion decays as exp(-c t). M(q) a + g(q) is inverse dynamics at rest with a = -c v.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dyn_service.api.queries import Array, Overlay, Payload, RobotQueries
from dyn_service.control.independent_joints import commanded_count, of_all_joints
from dyn_service.control.law import EffortLaw, Law, RobotState, per_joint
from dyn_service.control.trajectory import Reference
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.messages.dyn_service_msgs import LinkPayload


class ComputedTorque(EffortLaw):
    """Inverse dynamics with linear error feedback. kp: (nv,) 1/s^2. kd: (nv,) 1/s. payload_error: kg, see
    `take_payload`; 0: payloads are ignored.
    """

    name = "computed_torque"
    closed_loops = True

    def __init__(self, model: RobotQueries, kp: Array, kd: Array, payload_error: float = 0.0) -> None:
        self.model, self.kp, self.kd, self.payload_error = model, kp, kd, payload_error
        # From the beginning, so that the kernel with payloads is compiled before the loop begins.
        self.overlay = Overlay(payloads=Payload(model.link_names[-1], 0.0)) if payload_error else None
        self._q: Array = model.configuration.neutral

    @classmethod
    def of_frequency(
        cls,
        model: RobotQueries,
        natural_frequency: float | Sequence[float],
        damping_ratio: float,
        payload_error: float = 0.0,
    ) -> ComputedTorque:
        """Makes the law with `gains`, one for each velocity; in closed loops for each of independent joints."""
        kp, kd = (
            of_all_joints(model, gain, 0.0) for gain in gains(natural_frequency, damping_ratio, commanded_count(model))
        )
        return cls(model, kp, kd, payload_error)

    def update(self, state: RobotState, reference: Reference, dt: float) -> Array:
        """The efforts. Query: `computed_torque`."""
        self._q = state.q
        return self.model.computed_torque(state.q, state.v, *reference, kp=self.kp, kd=self.kd, overlay=self.overlay)

    def exchanged(self, law: Law) -> Law:
        """Returns the law with its new parameters and this one's payload."""
        if isinstance(law, ComputedTorque) and law.payload_error and self.payload_error:
            law.overlay = self.overlay
        return law

    def take_payload(self, message: LinkPayload) -> None:
        """Uses an estimated payload from now on, if its mass has a standard error of at most `payload_error`.

        Raises:
            FailedPreconditionError: It was estimated for another model, or the payload in use is of another link.
            InvalidArgumentError: A number has the wrong shape or value.
            NotFoundError: The robot has no such link.
        """
        model = self.model.description.fingerprint
        if not self.payload_error:
            return
        if message.fingerprint != model:
            raise FailedPreconditionError(
                f"the payload was estimated for the model with fingerprint {message.fingerprint}, this controller has "
                f"{model}: give the payload estimator the controller's robot and joints"
            )
        if not (len(message.inertia) == 6 and len(message.errors) == 10):
            raise InvalidArgumentError(
                f"a payload must have 6 numbers of inertia and 10 errors, found {len(message.inertia)} and "
                f"{len(message.errors)}"
            )
        if not (np.array(message.errors) >= 0.0).all():  # negated, so that NaN is refused
            raise InvalidArgumentError(f"a payload's errors must be at least 0, found {message.errors}")
        if message.errors[0] > self.payload_error:
            return
        link, payload = message.header.frame_id, self._payload
        if payload is not None and payload.link != link and payload.mass:
            raise FailedPreconditionError(
                f"the payload in use is of link '{payload.link}', found one of '{link}': run one payload estimator, "
                "and start the controller again for another link"
            )
        xx, xy, xz, yy, yz, zz = message.inertia
        inertia = ((xx, xy, xz), (xy, yy, yz), (xz, yz, zz))
        overlay, rest = Overlay(Payload(link, message.mass, message.com, inertia)), np.zeros(self.model.nv)
        # Once here, because an impossible payload must not end the controller in its next update.
        self.model.computed_torque(self._q, rest, self._q, rest, rest, kp=self.kp, kd=self.kd, overlay=overlay)
        self.overlay = overlay

    def signals(self) -> Mapping[str, Array | float]:
        """payload_mass: of the payload in use, kg; only with `payload_error`."""
        payload = self._payload
        return {} if payload is None else {"payload_mass": float(np.asarray(payload.mass))}

    @property
    def _payload(self) -> Payload | None:
        if self.overlay is None:
            return None
        assert isinstance(self.overlay.payloads, Payload)
        return self.overlay.payloads


def gains(natural_frequency: float | Sequence[float], damping_ratio: float, n: int) -> tuple[Array, Array]:
    """Returns the gains kp (n,) 1/s^2 and kd (n,) 1/s of e-ddot + kd e-dot + kp e = 0.

    natural_frequency: rad/s, one number or n. damping_ratio: 1 is critical.

    Raises:
        InvalidArgumentError: The natural frequency or the damping ratio is not positive and finite, or there are
            neither one nor n natural frequencies.
    """
    omega = np.atleast_1d(np.array(natural_frequency, dtype=np.float64))
    positive = np.isfinite(omega).all() and (omega > 0.0).all() and 0.0 < damping_ratio < np.inf
    if omega.shape not in ((1,), (n,)) or not positive:
        raise InvalidArgumentError(f"natural_frequency must be positive, one number or {n}, and damping_ratio positive")
    omega = np.broadcast_to(omega, (n,)).copy()
    return omega * omega, 2.0 * damping_ratio * omega


class GravityCompensation(EffortLaw):
    """Compensates the weight, with damping c, 1/s.

    Raises:
        InvalidArgumentError: The damping is negative or not finite.
    """

    name = "gravity_compensation"
    closed_loops = True

    def __init__(self, model: RobotQueries, damping: float) -> None:
        self.model = model
        self.damping = float(per_joint("damping", damping, 1)[0])
        self._rest = np.zeros(model.configuration.nv)

    def update(self, state: RobotState, reference: Reference, dt: float) -> Array:
        """The efforts; the reference is not used. Query: `inverse_dynamics` at rest."""
        return self.model.inverse_dynamics(state.q, self._rest, -self.damping * state.v)
