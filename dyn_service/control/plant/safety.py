"""Safety supervisor between commands and motors: watchdog, limits, latched safe stops. No sockets, no clock, no model.

             arm, at low speed            effort reached
    braked ────────────────────► arming ────────────────► active
      ▲                          ▲  │ │                    │  │
      │                          │  │ │                    │  │
      └───────── release ────────┼──│─┴────────────────────┘  │
               arm, at low speed │  ▼                         │
                               stopped ◄──────────────────────┘
                                    missed cycles, a joint too fast, `stop`,
                                    a command beyond limits where that is a fault

- The plant calls `cycle` once per period and applies the result; it passes commands to `offer` as they arrive and
  reports published states with `published`.
- The last effort acts for `hold_s` at most, then a stop is latched. Every stop and release begins a new epoch. Only a
  command of this epoch with `arm`, which answers a state published since, ends the stop, and only while no joint is
  faster than `rearm_velocity`. From then on the robot obeys only the controller that armed it.
- A command is accepted only if it answers a published state that is newer than the last answered one and no older than
  `hold_s`. A refused command is counted by its reason and has no other effect: it does not feed the watchdog.
- The effort never exceeds its limit or rate, also in stops and while arming. The brakes open when the effort has
  reached the command; until then the mode is `arming`.
- Commanded positions or velocities move a set point within limits (`Drive`). Servos turn it into efforts, to which
  all of this applies, or a driver with its own drives receives it.
- A joint that would exceed its velocity limit within the next cycle stops the robot and shuts the brakes in any mode.

Servos turn the set points of commanded positions and velocities into efforts, once per cycle of the plant:

    u = K e + D (b v_d - v),    e = q_d - q,    K = w^2, D = 2 d w

    tau = M(q) u + C(q, v) v + g(q) + tau_ff          with a model: K 1/s^2, D 1/s
    tau = u + tau_ff                                  without a model: K N m/rad, D N m s/rad, as given

q_d is the set point, v_d its velocity. b = 1 for commanded positions. For commanded velocities q_d is their integral
and b = 1/2: for d = 1 the velocity then follows as w / (s + w), without overshoot and without steady-state error. It
lags by e = v_d / w; at a limit of the set point the joint approaches as e exp(-w t) and never passes it.

A model decouples the errors of all joints in any posture. An external torque tau_x displaces the joints by
M^-1 tau_x / w^2, a reference acceleration a by a / w^2. Without a model the error is K^-1 times the missing efforts,
including the weight. Efforts are held for a cycle T: stable while D T < 2 - w^2 T^2 / 2, damped as specified while w T
is small.

Set points. A set point begins at the robot's position when the plant is armed, and never jumps. It moves with the
velocity given with a position, or with the commanded velocity, and stops at the position limits.

A commanded position is far if a joint cannot reach it, at `SHARE` of its velocity limit, in the time since the previous
command. The set point then approaches it with a limited acceleration, and without a velocity for the drive: a drive
with two real poles then neither exceeds the set point's speed nor overshoots its end. Streamed positions are never far.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.command import (
    EFFORT_ONLY,
    WITH_ARTICLE,
    Interface,
    SetPoint,
    interface_values,
    joint_order,
    not_finite,
    size_summary,
    sizes_fit,
)
from dyn_service.control.law import per_joint
from dyn_service.errors import InvalidArgumentError
from dyn_service.messages.dyn_service_msgs import JointCommand

BRAKED, ACTIVE, STOPPED, ARMING = "braked", "active", "stopped", "arming"
MODES = (BRAKED, ACTIVE, STOPPED, ARMING)
"""In the order of their numbers in recordings."""
RUNNING = (ARMING, ACTIVE)

REFUSALS = {
    "fingerprint": "for another model", "session": "for another run of the plant",
    "interface": "by an interface that the robot does not accept or was not armed by", "names": "for other joints",
    "not_finite": "with NaN or infinity", "ahead": "for a state not yet published",
    "epoch": "for a state before the last stop", "controller": "from a controller that did not arm the robot",
    "stale": "for a state too old or never published", "repeated": "for a state answered before",
    "old": "for a state older than the last answered one", "not_armed": "without arming a stopped robot",
    "moving": "arming a robot with a joint too fast", "beyond_limits": "beyond a limit",
}  # fmt: skip
"""Reasons for refusing a command, and their descriptions; the last one with the policy `stop`."""
CAUSES = ("start", "released", "missed", "velocity", "beyond_limits", "driver")
"""Why the robot is not under command."""

StopPolicy = Literal["brake", "damping", "zero"]
LimitPolicy = Literal["clip", "stop"]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Damping = Callable[[], Array]
"""Returns D (nv, nv) N m s/rad at the present position; in a stop the efforts are -D v."""
Servo = Callable[[SetPoint, Array, Array], Array]
"""(set point, q, v) -> efforts (nv,), before limits."""

MAX_MISSED_CYCLES = 20
"""Largest number of control cycles without a command before the robot is stopped."""
MAX_CONTROL_S = 1.0
"""Longest control cycle; an effort acts for at most `MAX_MISSED_CYCLES` of it without a new command."""

_LOGGED_STOPS = 10
"""A controller that arms the robot after each stop would fill the log; all stops are counted."""
_LOG = logging.getLogger(__name__)
_ROUNDING_S = 1e-9
"""Times are products of a step and a count: their rounding must not make a punctual command late."""
_TRIP = 0.98
"""Share of a velocity limit at which the robot is stopped; the rest is for the acceleration within a cycle."""


@dataclass(frozen=True, eq=False)
class SafetySettings:
    """Settings of a safety supervisor.

    cycle_s: the drive's period. hold_s: how long the last effort may act, at most `MAX_MISSED_CYCLES` times
    `control_s`. effort_limit, effort_rate, velocity_limit, rearm_velocity: (nv,), infinite if unlimited. stop: `brake`
    shuts the brakes, `damping` applies efforts -D v, `zero` no efforts. beyond_limits: `clip` clips a command beyond
    the limits of effort or its rate, `stop` refuses it and stops the robot. control_s: the controller's period; 0 is
    the drive's. lower, upper: (nv,) rad | m of commanded positions; None is unlimited. undriven: (nv,) entries without
    a motor, such as those of a base, where commands are ignored; None if all have motors. See `without_motors`.
    """

    cycle_s: float
    hold_s: float
    effort_limit: Array
    effort_rate: Array
    velocity_limit: Array
    rearm_velocity: Array
    stop: StopPolicy
    beyond_limits: LimitPolicy
    control_s: float = 0.0
    lower: Array | None = None
    upper: Array | None = None
    undriven: Flags | None = None

    def __post_init__(self) -> None:
        if not (0.0 < self.cycle_s <= self.hold_s < np.inf):
            raise InvalidArgumentError(f"hold_s is {self.hold_s:g}: expected at least one cycle of {self.cycle_s:g} s")
        if not self.control_s <= MAX_CONTROL_S or not self.cycle_s <= MAX_CONTROL_S:
            raise InvalidArgumentError(
                f"a control cycle is {max(self.control_s, self.cycle_s):g} s: expected at most {MAX_CONTROL_S:g} s, "
                "because the last effort acts through missed cycles"
            )
        most_s = MAX_MISSED_CYCLES * (self.control_s or self.cycle_s)
        if not self.hold_s <= most_s + _ROUNDING_S:
            raise InvalidArgumentError(
                f"hold_s is {self.hold_s:g}: expected at most {MAX_MISSED_CYCLES} cycles of control, {most_s:g} s"
            )
        for name in ("effort_limit", "effort_rate", "velocity_limit", "rearm_velocity"):
            value = getattr(self, name)
            if value.shape != self.effort_limit.shape or not (value >= 0.0).all():
                raise InvalidArgumentError(f"{name} is {value}: expected numbers that are not negative, one per joint")

    def without_motors(self, undriven: Flags) -> SafetySettings:
        """Returns the settings with these entries (nv,) without motors and brakes: their effort limit is zero, and
        their speed neither stops the robot nor prevents arming, because nothing could slow them.
        """
        if not undriven.any():
            return self
        return replace(
            self,
            effort_limit=np.where(undriven, 0.0, self.effort_limit),
            velocity_limit=np.where(undriven, np.inf, self.velocity_limit),
            rearm_velocity=np.where(undriven, np.inf, self.rearm_velocity),
            undriven=undriven,
        )

    def set_points(self) -> SetPoints:
        """Returns set points within these limits."""
        none = np.full(self.velocity_limit.shape, np.inf)
        lower, upper = -none if self.lower is None else self.lower, none if self.upper is None else self.upper
        return SetPoints(self.cycle_s, lower, upper, self.velocity_limit)


@dataclass
class SafetyCounters:
    """Counts since the start. active_steps: cycles under command. clipped: commands clipped to the effort limits.
    slowed: active cycles in which the effort's rate was limited. refused: by reason. stops: by cause.
    """

    commands: int = 0
    active_steps: int = 0
    clipped: int = 0
    slowed: int = 0
    armed: int = 0
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REFUSALS, 0))
    stops: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES[2:], 0))


class Refusal(NamedTuple):
    """Why a command was refused: one of `REFUSALS`, and a message."""

    reason: str
    sentence: str


class Actuation(NamedTuple):
    """Efforts (nv,) of the coming cycle, and whether the brakes are shut."""

    effort: Array
    brakes: bool


@dataclass
class SafetySupervisor:
    """Checks commands and limits efforts.

    names: of the entries of v, in the drive's order. session, fingerprint: those of published states. damping: called
    at each stop with the policy `damping`. interfaces: those that commands may use. servo: turns set points into
    efforts; without it the hardware receives the set points, and efforts are those added to its drives'. turns: whether
    each joint is an angle; by default all are.

    reason: the cause of a stop as text, with the joint and its limit. interface: of the present commands. value: (nv,)
    of the last command, unclipped. set_point: of the coming cycle, for commanded positions or velocities. saturated,
    held_back: (nv,) active cycles in which an effort was beyond its limit, or limited by its rate. beyond, too_far:
    (nv,) active cycles in which the last command was beyond the limit of position or velocity, or a commanded position
    was far.
    """

    settings: SafetySettings
    names: tuple[str, ...]
    session: int
    fingerprint: str
    damping: Damping | None = None
    counters: SafetyCounters = field(default_factory=SafetyCounters)
    interfaces: tuple[Interface, ...] = EFFORT_ONLY
    servo: Servo | None = None
    turns: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        if self.settings.stop == "damping" and self.damping is None:
            raise InvalidArgumentError("a stop by damping needs the damping")
        self.turns = self.turns or (True,) * len(self.names)
        self.mode, self.cause, self.reason, self.epoch = BRAKED, "start", "", 0
        self.since_s = 0.0
        self.effort: Array = np.zeros(len(self.names))
        self.brakes = True
        self.command_seq = -1
        self.command_delay_s = 0.0
        self.refusal: Refusal | None = None
        self.last_stop = ""
        self.saturated, self.held_back, self.beyond, self.too_far = (
            np.zeros(len(self.names), np.int64) for _ in range(4)
        )
        self.interface: Interface = "effort"
        self.value: Array = self.effort
        self.set_point: SetPoint | None = None
        self.points = self.settings.set_points()
        self._target = self.effort
        self._cut: Flags = np.zeros(len(self.names), dtype=np.bool_)
        self._beyond = self._cut
        self._controller = 0
        self._accepted_s = self._now_s = 0.0
        self._published: dict[int, float] = {}
        self._newest = -1
        self._matrix: Array | None = None
        self._before: Array | None = None

    def published(self, seq: int, now_s: float) -> None:
        """Records that the state `seq` is published now; numbers increase."""
        self._published[seq] = now_s
        self._newest = seq
        while now_s - self._published[first := next(iter(self._published))] > self.settings.hold_s + _ROUNDING_S:
            del self._published[first]

    def armable(self, v: Array) -> bool:
        """Whether every joint is slow enough for a command to arm the robot."""
        return bool((np.abs(v) <= self.settings.rearm_velocity).all())

    def offer(self, command: JointCommand, now_s: float, v: Array, q: Array | None = None) -> bool:
        """Accepts the command for the next cycle, or sets `refusal`; returns whether it was accepted.

        v, q: (nv,) as measured; q is not needed if only efforts are commanded.
        """
        self._now_s = now_s
        order = joint_order(tuple(command.name), self.names)
        refusal = self._refusal(command, order, now_s, v)
        if refusal is None and command.release:
            if self.mode in RUNNING:  # a release does not end a stop
                self._latch("released", BRAKED, "")
            self.counters.commands += 1
            return True
        if refusal is None:
            asked = self._driven_only(interface_values(command)[order])
            cut = self._within(command, asked)
            beyond = cut != asked
            clipped = bool(beyond.any())
            if self.settings.beyond_limits == "stop":
                refusal = self._beyond_limits(command, asked, cut, now_s)
        if refusal is not None:
            reason, sentence = refusal
            self.refusal = Refusal(reason, f"a command was refused: {sentence}")
            self.counters.refused[reason] += 1
            return False
        if self.mode not in RUNNING:
            self._arm(command, v if q is None else q)
        self.value, effort = asked, self._driven_only(np.array(command.effort)[order])
        if self.interface == "effort":
            self._target, self._cut = cut, beyond
        else:
            goes_on = np.array(command.velocity)[order] if command.velocity else np.zeros_like(effort)
            self.points.take(self.interface, cut, goes_on, effort)
            self._beyond = beyond
        self._accepted_s = now_s
        self.command_delay_s = now_s - self._published[command.state_seq]
        self.command_seq = command.state_seq
        self.counters.commands += 1
        self.counters.clipped += clipped
        return True

    def cycle(self, now_s: float, v: Array, q: Array | None = None) -> Actuation:
        """Returns the actuation of the cycle that begins now, for v, q (nv,) measured now; q as in `offer`."""
        settings, self._now_s = self.settings, now_s
        before = v if self._before is None else self._before
        self._before = v
        # ages are whole cycles: the half cycle makes the comparison independent of rounding
        if self.mode in RUNNING and now_s - self._accepted_s + 0.5 * settings.cycle_s > settings.hold_s:
            self.stop("missed", f"no command was accepted for {settings.hold_s:g} s")
        with np.errstate(invalid="ignore", over="ignore"):
            self.trip(v + (v - before), _TRIP)
        self.set_point = None
        if self.mode in RUNNING:
            wanted = self._target if self.interface == "effort" else self._driven(v, v if q is None else q)
        else:
            wanted = self._stopping(v)
        step = settings.effort_rate * settings.cycle_s
        self.effort = np.minimum(np.maximum(wanted, self.effort - step), self.effort + step)
        behind = self.effort != wanted
        reached = not behind.any()
        if self.mode == ARMING and reached:
            self._enter(ACTIVE, "")
            self.brakes = False
        if self.mode == ACTIVE:
            self.counters.active_steps += 1
            self.counters.slowed += not reached
            self.saturated += self._cut
            self.held_back += behind
            if self.set_point is not None:
                self.beyond += self._beyond
                self.too_far += self.points.held_back
        return Actuation(self.effort, self.brakes)

    def trip(self, v: Array, share: float = 1.0) -> bool:
        """Stops the robot and shuts the brakes if a joint is at this share of its velocity limit; returns whether one
        is.
        """
        # negated, so that NaN is too fast as well
        too_fast = not (np.abs(v) < share * self.settings.velocity_limit).all()
        if too_fast:
            self.shut("velocity", too_fast_words(self.names, self.turns, v, self.settings.velocity_limit, share))
        return too_fast

    def shut(self, cause: str, reason: str = "") -> None:
        """Stops the robot and shuts the brakes, in any mode and with any policy."""
        if self.mode in RUNNING:
            self.stop(cause, reason)
        self.brakes = True

    def stop(self, cause: str = "driver", reason: str = "") -> None:
        """Latches a stop; drivers call it for their own faults. cause: one of `CAUSES`. reason: the cause as text."""
        self._latch(cause, STOPPED, reason)
        self.counters.stops[cause] += 1
        self.last_stop = f"{cause} at {self._now_s:.4g} s: {reason}" if reason else f"{cause} at {self._now_s:.4g} s"
        if sum(self.counters.stops.values()) <= _LOGGED_STOPS:
            _LOG.warning("the robot is stopped: %s", self.last_stop)

    def _latch(self, cause: str, mode: str, reason: str) -> None:
        self._enter(mode, cause, reason)
        self.epoch += 1
        self.brakes |= mode == BRAKED or self.settings.stop == "brake"
        if self.settings.stop == "damping" and self.damping is not None:
            self._matrix = self.damping()
            self.brakes |= not bool(np.isfinite(self._matrix).all())

    def _enter(self, mode: str, cause: str, reason: str = "") -> None:
        self.mode, self.cause, self.reason, self.since_s = mode, cause, reason, self._now_s

    def _arm(self, command: JointCommand, q: Array) -> None:
        self._enter(ARMING, "")
        self._controller = command.controller
        self.counters.armed += 1
        self.interface = next(known for known in self.interfaces if known == command.interface)
        self._cut = self._beyond = np.zeros(len(self.names), dtype=np.bool_)
        self.points.begin(q)

    def _within(self, command: JointCommand, asked: Array) -> Array:
        if command.interface == "effort":
            return self._possible(asked)
        return self.points.within("velocity" if command.interface == "velocity" else "position", asked)

    def _possible(self, effort: Array) -> Array:
        limit = self.settings.effort_limit
        return np.minimum(np.maximum(effort, -limit), limit)

    def _driven_only(self, asked: Array) -> Array:
        undriven = self.settings.undriven
        return asked if undriven is None else np.where(undriven, 0.0, asked)

    def _driven(self, v: Array, q: Array) -> Array:
        to = self.set_point = self.points.advance(q, self._cut, moves=not self.brakes)
        asked = self._driven_only(to.effort if self.servo is None else self.servo(to, q, v))
        cut = self._possible(np.where(np.isnan(asked), 0.0, asked))
        self._cut = cut != asked
        return cut

    def _stopping(self, v: Array) -> Array:
        """Returns the efforts of a stop: -D v, scaled together to the limits, so that they only dissipate energy."""
        limit = self.settings.effort_limit
        if self._matrix is None or not (np.isfinite(self._matrix).all() and np.isfinite(v).all()):
            return np.zeros_like(self.effort)
        effort = -(self._matrix @ v)
        driven = limit > 0.0
        share = float((np.abs(effort[driven]) / limit[driven]).max(initial=1.0))
        return np.where(driven, effort / share, 0.0)

    def _refusal(
        self, command: JointCommand, order: list[int] | None, now_s: float, v: Array
    ) -> tuple[str, str] | None:
        seq = command.state_seq
        if command.fingerprint != self.fingerprint:
            model = command.fingerprint[:64]  # the sender is not trusted
            return ("fingerprint", f"it is for the model {model!r}, this is {self.fingerprint!r}")
        if command.session != self.session:
            return ("session", f"it is for the run {command.session}, this is {self.session}")
        kind = command.interface
        if kind not in self.interfaces:
            by = ", ".join(self.interfaces)
            return ("interface", f"it commands by {kind[:64]!r}, the robot is commanded by {by}")
        if self.mode in RUNNING and kind != self.interface:
            return ("interface", f"it commands by {kind!r}, the robot was armed by {self.interface!r}")
        if order is None or not sizes_fit(command, len(order)):
            return ("names", f"{size_summary(command)} for other joints than {', '.join(self.names)}")
        if none := not_finite(command):
            return ("not_finite", f"{WITH_ARTICLE[none]} is not a finite number")
        if not 0 <= seq <= self._newest:
            return ("ahead", f"it answers state {seq}, the newest is {self._newest}")
        if command.epoch != self.epoch:
            return ("epoch", f"it answers a state before the last stop: of epoch {command.epoch}, this is {self.epoch}")
        if self.mode in RUNNING and command.controller != self._controller:
            return ("controller", "another controller has armed the robot")
        if command.release:
            return None
        sent_s = self._published.get(seq)
        if sent_s is None or now_s - sent_s > self.settings.hold_s + _ROUNDING_S:
            return ("stale", f"it answers state {seq}, older than {self.settings.hold_s:g} s or never published")
        if seq <= self.command_seq:
            reason = "repeated" if seq == self.command_seq else "old"
            return (reason, f"it answers state {seq}, but state {self.command_seq} was answered before")
        if self.mode in RUNNING:
            return None
        if not command.arm:
            return ("not_armed", f"the robot is {self.mode} ({self.cause}), and the command does not arm it")
        if not self.armable(v):
            return ("moving", "it arms the robot while a joint is faster than rearm_velocity")
        return None

    def _beyond_limits(
        self, command: JointCommand, value: Array, possible: Array, now_s: float
    ) -> tuple[str, str] | None:
        """Returns the refusal of a command beyond the limits, and latches a stop; or None."""
        elapsed = max(now_s - self._accepted_s, self.settings.cycle_s) + _ROUNDING_S
        is_outside, limit = possible != value, "limit"
        if not is_outside.any() and self.mode == ACTIVE and command.interface != "velocity":
            limit = "rate"
            if command.interface == "effort":
                is_outside = np.abs(possible - self.effort) > self.settings.effort_rate * elapsed
            else:
                is_outside = self.points.too_far(possible, elapsed)
        if not is_outside.any():
            return None
        k = int(np.argmax(is_outside))
        sentence = f"{WITH_ARTICLE[command.interface]} is beyond its {limit}: {value[k]:.4g} for {self.names[k]}"
        if self.mode in RUNNING:
            self.stop("beyond_limits", sentence)
        return ("beyond_limits", sentence)


def too_fast_words(names: Sequence[str], turns: Any, v: Array, limit: Array, share: float = 1.0) -> str:
    """Names the joint that is nearest to its velocity limit, or farthest beyond it. turns: whether each is an angle.
    share: of the limit that v, predicted for the next cycle if it is below 1, must not reach.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        k = int(np.argmax(np.abs(v) / limit))  # NaN counts as largest
    unit = "rad/s" if turns[k] else "m/s"
    speed, maximum = f"{abs(v[k]):.4g} {unit}", f"its limit, {limit[k]:.4g} {unit}"
    if share < 1.0:
        return f"{names[k]} would reach {speed} in the next cycle; the stop is at {100.0 * share:.4g} % of {maximum}"
    return f"{names[k]} reaches {speed}, beyond {maximum}"


InverseDynamics = Callable[[Array, Array, Array], Array]
"""(q, v, a) -> (nv,) N m | N."""
MAX_PHASE = 0.25
"""Largest d w T of a drive with a model: its poles are then within a third of the specified ones."""
VELOCITY_WEIGHT = 0.5
"""b for commanded velocities."""


class Drive:
    """Servos of one robot. stiffness: K, damping: D, (nv,). inverse_dynamics: of the model, or None without a model."""

    def __init__(self, stiffness: Array, damping: Array, inverse_dynamics: InverseDynamics | None = None) -> None:
        self.stiffness, self.damping, self._inverse_dynamics = stiffness, damping, inverse_dynamics

    @classmethod
    def of_model(
        cls, inverse_dynamics: InverseDynamics, natural_frequency: float, damping_ratio: float, n: int, cycle_s: float
    ) -> Drive:
        """Returns servos with the robot's model. natural_frequency: w, rad/s. damping_ratio: d. n: entries of v.

        Raises:
            InvalidArgumentError: A number is not positive, or their product is too large for the cycle.
        """
        w, d = natural_frequency, damping_ratio
        if not (w > 0.0 and d > 0.0 and w * d * cycle_s <= MAX_PHASE):
            raise InvalidArgumentError(
                f"drive.natural_frequency is {w:g} and drive.damping_ratio {d:g}: expected positive numbers, their "
                f"product at most {MAX_PHASE / cycle_s:g} rad/s, a quarter of rate_hz",
                path="drive.natural_frequency",
            )
        return cls(np.full(n, w * w), np.full(n, 2.0 * d * w), inverse_dynamics)

    @classmethod
    def of_gains(cls, stiffness: float | list[float], damping: float | list[float], n: int) -> Drive:
        """Returns servos without a model. stiffness: N m/rad | N/m, damping: N m s/rad | N s/m, one number or n each.

        Raises:
            InvalidArgumentError: There are neither one nor n numbers, or one is not positive and finite.
        """
        return cls(
            per_joint("drive.stiffness", stiffness, n, positive=True),
            per_joint("drive.damping", damping, n, positive=True),
        )

    def effort(self, to: SetPoint, q: Array, v: Array) -> Array:
        """Returns the efforts (nv,) N m | N at q, v (nv,), before limits."""
        weight = VELOCITY_WEIGHT if to.interface == "velocity" else 1.0
        u = self.stiffness * (to.position - q) + self.damping * (weight * to.velocity - v)
        return (u if self._inverse_dynamics is None else self._inverse_dynamics(q, v, u)) + to.effort


SHARE = 0.9
"""Share of a velocity limit that set points use; near the limit itself the robot is stopped."""
STREAM_S = 0.01
"""Largest time between commands that counts when testing whether a position is far."""
BRAKING = 0.8
"""Share of the acceleration used to brake towards a far position."""


@dataclass
class SetPoints:
    """Set points of one robot. cycle_s: s. lower, upper: (nv,) rad | m. velocity_limit: (nv,) rad/s | m/s. Limits may
    be infinite. held_back: (nv,), joints that have not reached the last commanded position, because it was far.
    """

    cycle_s: float
    lower: Array
    upper: Array
    velocity_limit: Array

    def __post_init__(self) -> None:
        n = self.lower.size
        self._fastest = SHARE * self.velocity_limit
        self._interface: Interface = "position"
        self._effort = np.zeros(n)
        self.approach_by(np.full(n, np.inf))
        self.begin(np.zeros(n))

    def approach_by(self, acceleration: Array) -> None:
        """Sets the acceleration (nv,) rad/s^2 | m/s^2 towards far positions; by default infinite."""
        # without a velocity limit no position is far
        at_once = np.where(np.isfinite(self._fastest), self._fastest / self.cycle_s, 1.0)
        self._acceleration = np.minimum(acceleration, at_once)

    def begin(self, q: Array) -> None:
        """Begins at the robot's position q (nv,), at rest."""
        self._at = self._target = q
        self._rate = self._speed = np.zeros_like(q)
        self._far: Flags = np.zeros(q.size, dtype=np.bool_)
        self.held_back = self._far
        self._cycles = 0
        self._newly = False

    def within(self, interface: Interface, value: Array) -> Array:
        """Returns the command (nv,) clipped to the limits of position or velocity."""
        if interface == "position":
            return np.minimum(np.maximum(value, self.lower), self.upper)
        return np.minimum(np.maximum(value, -self._fastest), self._fastest)

    def too_far(self, value: Array, elapsed_s: float) -> Flags:
        """Whether each commanded position (nv,) is out of reach of the set point within `elapsed_s`."""
        return np.asarray(np.abs(value - self._at) > self.velocity_limit * elapsed_s)

    def take(self, interface: Interface, value: Array, velocity: Array, effort: Array) -> None:
        """Accepts a command for the next cycle. value: (nv,) within the limits. velocity: that of positions."""
        self._interface, self._effort = interface, effort
        if interface == "position":
            since_s = self.cycle_s * min(max(1, self._cycles), max(1, round(STREAM_S / self.cycle_s)))
            self._far = self._far | (np.abs(value - self._target) > since_s * self._fastest)
            self._target, self._rate, self._cycles = value, self.within("velocity", velocity), 0
        else:
            self._rate = value
        self._newly = True

    def advance(self, q: Array, saturated: Flags, *, moves: bool) -> SetPoint:
        """Returns the set point of the cycle that begins now, for a robot at q (nv,).

        saturated: (nv,) motors at their effort limits; commanded velocities are not integrated there. moves: whether
        the brakes are open; before that the set point is at q.
        """
        step = self.cycle_s
        self._cycles += 1
        by_velocity = self._interface == "velocity"
        if by_velocity:  # a set point beyond a limit moves no further out, and is not moved back
            target = self._at + np.where(saturated, 0.0, step * self._rate)
            target = self._no_further(target, self._at)
        else:
            target = self.within("position", self._target if self._newly else self._target + step * self._rate)
        self._newly = False
        self._target = target
        if not moves:
            self._at = q
            return SetPoint(self._interface, q, np.zeros_like(q), self._effort)
        rate = np.where((target <= self.lower) & (self._rate < 0.0), 0.0, self._rate)
        rate = np.where((target >= self.upper) & (self._rate > 0.0), 0.0, rate)
        if by_velocity:
            self._at = target
        else:
            self._approach(target)
            rate = np.where(self.held_back, 0.0, rate)
        return SetPoint(self._interface, self._at, rate, self._effort)

    def _approach(self, target: Array) -> None:
        """Moves one cycle towards the target, at full speed or, if it was far, with limited acceleration."""
        step, before = self.cycle_s, self._at
        most = step * self._fastest
        self._at = np.minimum(np.maximum(target, before - most), before + most)
        if self._far.any():
            gap, change = target - before, step * self._acceleration
            # the speed from which the set point can still brake, with a reserve for the cycle
            wanted = np.minimum(self._fastest, np.sqrt(2.0 * BRAKING * self._acceleration * np.abs(gap)))
            speed = np.minimum(np.maximum(np.sign(gap) * wanted, self._speed - change), self._speed + change)
            on_the_way = self._no_further(before + step * speed, before)
            self._far = self._far & ((np.abs(gap) > most) | (np.abs(gap) > step * (np.abs(speed) + change)))
            self._at = np.where(self._far, on_the_way, self._at)
        self.held_back = self._at != target
        self._speed = (self._at - before) / step

    def _no_further(self, to: Array, before: Array) -> Array:
        """Clips `to` to the position limits, or to `before` where that is already beyond a limit."""
        return np.minimum(np.maximum(to, np.minimum(self.lower, before)), np.maximum(self.upper, before))
