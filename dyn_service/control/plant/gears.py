"""Elastic gears of a simulated robot: each rotor has a state of its own, behind a spring with play.

    J dw/dt = tau_m - tau,    M(q) a + .. = tau,    d delta/dt = w - v,    delta = theta - q

    tau = K p + D dp/dt on the flank in contact, p = |delta| - b / 2;    tau = 0 in the gap, |delta| < b / 2

theta, w: of the rotor, in the joint's coordinates; J: its inertia there, the joint's armature, which the links' M then
lacks; tau_m: of the motor; b: the backlash. Flanks push and do not pull: damping acts in contact only, and at most
cancels the spring there. A gear without backlash is preloaded, so its damping is not limited. Damping, friction and
springs of the joint act at its link.

Time. A part of a step, h, holds the effort that the gear has in the mean over its way, primes at the end of the part:

    tau = K / 2 (p'^2 - p^2) / (delta' - delta) + D (p' - p) / h

The links' engine and the rotor move under the same held effort, so what one loses the other or the spring has:
momentum is exact, and energy never grows, for any h, gap and stiffness. For a linear gear this is the trapezoidal rule,
whose frequencies are too low by the share (w h)^2 / 12. `PHASE` bounds w h, so that share is below 1e-3. Engines of
first order, semi-implicit Euler and stick_slip, add damping, a ratio of at most w h / 4. The equation for tau is
implicit: two to four steps of the engine solve it.

Brakes hold rotors; links behind them swing on their gears.

Source: O. Gonzalez, Time integration and discrete Hamiltonian systems, J. Nonlinear Sci. 6 (1996), 449 (the mean
effort); M. Spong, Modeling and control of elastic joint robots, ASME J. Dyn. Syst. 109 (1987), 310 (the rotor).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from dyn_service.api.queries import Array, RobotQueries, Wrench
from dyn_service.errors import FailedPreconditionError
from dyn_service.model.configuration import Configuration
from dyn_service.simulation.engines import Engine
from dyn_service.simulation.stability import mobility_of

PHASE = 0.1
"""rad, most of the fastest oscillation in a part of a step."""
MAX_PARTS = 100
"""Most parts of a step: more take too long for any robot, and gears that need them are rigid for all purposes."""
_CONVERGED, _ROUNDING = 1e-10, 1e-14
"""Changes of an effort, relative, and of a deflection, rad | m, below which iterations end."""
_MAX_ITERATIONS = 60

EncoderSide = Literal["motor", "link"]


@dataclass
class Gears:
    """The elastic gears of one robot, (g,) each.

    entries: indices in v. rotor_inertia: J, kg m^2 | kg at the joint. stiffness: K, N m/rad | N/m. damping: D, N m
    s/rad | N s/m. backlash: b, rad | m. links: the robot without these rotors. parts: of a step. encoder_side: what
    encoders, and so controllers, are shown. records_contacts: whether `contact_wrenches` is needed.

    deflection: delta, rad | m. speed: w, rad/s | m/s. effort: tau, N m | N, mean over the last step.
    """

    entries: NDArray[np.intp]
    rotor_inertia: Array
    stiffness: Array
    damping: Array
    backlash: Array
    links: RobotQueries
    parts: int
    encoder_side: EncoderSide = "motor"
    records_contacts: bool = False

    def __post_init__(self) -> None:
        self.configuration: Configuration = self.links.configuration
        link = np.diagonal(mobility_of(self.links, self.configuration.neutral))[self.entries]
        self._mobility = link + 1.0 / self.rotor_inertia
        self._contact_wrenches: list[Wrench] = []

    def reset(self, q: Array, v: Array) -> None:
        """Sets the rotors to the speeds of the links' state q, v, and the gears to the load of the links at rest: those
        without load to the middle of their gaps. Contacts and a base that can fall carry nothing here.
        """
        zeros = np.zeros_like(v)
        self.effort = self.links.inverse_dynamics(q, zeros, zeros)[self.entries]
        self.deflection = self.effort / self.stiffness + np.sign(self.effort) * self.backlash / 2.0
        self.speed = v[self.entries]

    @property
    def state(self) -> tuple[Array, Array, Array]:
        """Deflection, speed and effort, to go back to."""
        return self.deflection, self.speed, self.effort

    @state.setter
    def state(self, state: tuple[Array, Array, Array]) -> None:
        self.deflection, self.speed, self.effort = state

    def rotor_velocity(self, v: Array) -> Array:
        """Returns the links' velocity (nv,) with the rotors' where a joint has a gear."""
        velocity = v.copy()
        velocity[self.entries] = self.speed
        return velocity

    def encoder_motion(self, q: Array, v: Array) -> tuple[Array, Array]:
        """Returns position (nq,) and velocity (nv,) at the encoders, for the links' state q, v."""
        if self.encoder_side == "link":
            return q, v
        turn = np.zeros_like(v)
        turn[self.entries] = self.deflection
        return self.configuration.integrate(q, turn, 1.0), self.rotor_velocity(v)

    def step(
        self, engine: Engine, q: Array, v: Array, effort: Array, dt_s: float, braked: Array | None = None
    ) -> tuple[Array, Array]:
        """Returns the links' state after dt_s, and moves the rotors.

        engine: of the links. effort: (nv,) of the motors. braked: as of `Engine.step`, with the rotors' velocities
        where a joint has a gear.

        Raises:
            FailedPreconditionError: The effort of a gear did not converge.
        """
        h, effort, sum_of_efforts = dt_s / self.parts, effort.copy(), np.zeros_like(self.effort)
        motor, speed_at_begin, v_at_begin = effort[self.entries], self.speed, v
        rotors_braked = None if braked is None else braked[self.entries]
        links_braked = None if braked is None else self._links_braked(braked)
        self._contact_wrenches = []
        for k in range(self.parts):
            share = (k + 1) / self.parts
            speed_braked = None if rotors_braked is None else speed_at_begin + share * (rotors_braked - speed_at_begin)
            v_braked = None if links_braked is None else v_at_begin + share * (links_braked - v_at_begin)
            q, v = self._part(engine, q, v, effort, motor, h, speed_braked, v_braked)
            sum_of_efforts += self.effort
            if self.records_contacts:
                self._contact_wrenches += engine.contact_wrenches()
        self.effort = sum_of_efforts / self.parts
        return q, v

    def contact_wrenches(self) -> list[Wrench]:
        """Returns the contact wrenches on the links, averaged over the last step."""
        scale = 1.0 / self.parts
        return [
            msgspec.structs.replace(w, torque=scale * np.asarray(w.torque), force=scale * np.asarray(w.force))
            for w in self._contact_wrenches
        ]

    def rates(self, mobility: Array) -> tuple[Array, Array]:
        """Returns the fastest oscillation, rad/s, and the fastest decay by damping, 1/s, of all gears together.

        mobility: (..., nv, nv), of the links, the inverse of their M.
        """
        inverse = mobility[..., self.entries, :][..., :, self.entries] + np.diag(1.0 / self.rotor_inertia)

        def largest(slopes: Array) -> Array:
            root = np.sqrt(slopes)
            return np.asarray(np.linalg.eigvalsh(root[:, None] * inverse * root)[..., -1])

        return np.sqrt(largest(self.stiffness)), largest(self.damping)

    def frequencies_hz(self, mobility: Array) -> tuple[Array, Array]:
        """Returns the natural frequencies (g,) Hz of each gear alone, with its rotor free and with its rotor held.

        mobility: (nv, nv), of the links.
        """
        link = np.diagonal(mobility)[self.entries]
        free, locked = (np.sqrt(self.stiffness * x) for x in (link + 1.0 / self.rotor_inertia, link))
        return free / (2.0 * np.pi), locked / (2.0 * np.pi)

    def _links_braked(self, braked: Array) -> Array | None:
        """Returns the velocities (nv,) to which brakes bring links, NaN where a rotor is braked instead; None if no
        brake acts on a link.
        """
        links_braked = braked.copy()
        links_braked[self.entries] = np.nan
        return None if np.isnan(links_braked).all() else links_braked

    def _part(
        self,
        engine: Engine,
        q: Array,
        v: Array,
        effort: Array,
        motor: Array,
        h: float,
        speed_braked: Array | None,
        v_braked: Array | None,
    ) -> tuple[Array, Array]:
        """Returns the links' state after a part of h, s, and moves the rotors.

        effort: (nv,), whose entries of gears are replaced. motor: (g,), efforts of the motors. speed_braked (g,),
        v_braked (nv,): of rotors and links at the end, if brakes act on them.
        """
        rounding = self.stiffness * _ROUNDING * (1.0 + np.abs(q).max())
        # the share of a Newton step, with the mobility of links at neutral; another mobility costs iterations only
        newton = 1.0 / (1.0 + (self.stiffness * h / 2.0 + self.damping) * h / 2.0 * self._mobility)
        tau = self._mean_effort(self.deflection + h * (self.speed - v[self.entries]), h)
        for _ in range(_MAX_ITERATIONS):
            effort[self.entries] = tau
            q_end, v_end = engine.step(q, v, effort, h, v_braked)
            speed_end = self.speed + h / self.rotor_inertia * (motor - tau) if speed_braked is None else speed_braked
            turn = h / 2.0 * (self.speed + speed_end)
            deflection = self.deflection + turn - self.configuration.difference(q, q_end)[self.entries]
            change = self._mean_effort(deflection, h) - tau
            is_changed = np.abs(change) > _CONVERGED * np.abs(tau) + rounding
            # numbers that are not finite end here too: the plant reports them
            if not is_changed.any():
                self.state = deflection, speed_end, tau
                return q_end, v_end
            tau = tau + newton * change
        joint = self.configuration.velocity_joints[self.entries[np.argmax(is_changed)]]
        raise FailedPreconditionError(
            f"the effort of the gear of joint '{joint}' did not converge in {_MAX_ITERATIONS} iterations in a part of "
            f"{h:g} s of a step: raise rate_hz"
        )

    def _pressed(self, deflection: Array) -> Array:
        """Returns the deflection (g,) of the flanks, signed; 0 in the gap."""
        gap = self.backlash / 2.0
        return np.asarray(deflection - np.minimum(np.maximum(deflection, -gap), gap))

    def _mean_effort(self, deflection: Array, h: float) -> Array:
        """Returns the gears' mean efforts (g,) on the way to this deflection in h."""
        way, p, p_end = deflection - self.deflection, self._pressed(self.deflection), self._pressed(deflection)
        # dp/ddelta in the mean; small ways have no rounding, because both differences are exact
        share = np.divide(p_end - p, way, out=np.ones_like(way), where=way != 0.0)
        effort = self.stiffness / 2.0 * (p + p_end) * share + self.damping / h * (p_end - p)
        # flanks do not pull, and a gear without a gap presses on both
        pulls = (effort * (p + p_end) < 0.0) & (self.backlash > 0.0)
        return np.where(pulls, 0.0, effort)
