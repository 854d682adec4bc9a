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
- Commanded positions or velocities move a set point within limits (`drives.py`). Servos turn it into efforts, to which
  all of this applies, or a driver with its own drives receives it.
- A joint that would exceed its velocity limit within the next cycle stops the robot and shuts the brakes in any mode.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.control.command import (
    EFFORT_ONLY,
    WITH_ARTICLE,
    Interface,
    JointOrder,
    SetPoint,
    interface_values,
    joint_order,
    not_finite,
    size_summary,
    sizes_fit,
)
from dyn_service.control.plant.drives import Flags, Servo, SetPoints
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
Damping = Callable[[], Array]
"""Returns D (nv, nv) N m s/rad at the present position; in a stop the efforts are -D v."""

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
            limit = f"{MAX_CONTROL_S:g} s, because the last effort acts through missed cycles"
            longest_s = max(self.control_s, self.cycle_s)
            raise InvalidArgumentError(f"a control cycle is {longest_s:g} s: expected at most {limit}")
        most_s = MAX_MISSED_CYCLES * (self.control_s or self.cycle_s)
        if not self.hold_s <= most_s + _ROUNDING_S:
            limit = f"{MAX_MISSED_CYCLES} cycles of control, {most_s:g} s"
            raise InvalidArgumentError(f"hold_s is {self.hold_s:g}: expected at most {limit}")
        for name in ("effort_limit", "effort_rate", "velocity_limit", "rearm_velocity"):
            value = getattr(self, name)
            if value.shape != self.effort_limit.shape or not (value >= 0.0).all():
                raise InvalidArgumentError(f"{name} is {value}: expected numbers that are not negative, one per joint")

    @cached_property
    def effort_step(self) -> Array:
        """(nv,) N m | N, the largest change of each effort in a cycle."""
        return self.effort_rate * self.cycle_s

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
        unlimited = np.full(self.velocity_limit.shape, np.inf)
        lower, upper = -unlimited if self.lower is None else self.lower, unlimited if self.upper is None else self.upper
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
        self.saturated, self.held_back, self.beyond, self.too_far = np.zeros((4, len(self.names)), np.int64)
        self.interface: Interface = "effort"
        self.value: Array = self.effort
        self.set_point: SetPoint | None = None
        self.points = self.settings.set_points()
        self._target = self.effort
        self._is_effort_limited: Flags = np.zeros(len(self.names), dtype=np.bool_)
        self._is_set_point_limited = self._is_effort_limited
        self._controller = 0
        self._accepted_s = self._now_s = 0.0
        self._published: dict[int, float] = {}
        self._newest = -1
        self._stop_damping: Array | None = None
        self._previous_speeds: list[float] = []

    def published(self, seq: int, now_s: float) -> None:
        """Records that the state `seq` is published now; numbers increase."""
        self._published[seq] = now_s
        self._newest = seq
        # An older state can no longer be answered; without this the table would grow as long as the plant runs.
        while now_s - self._published[first := next(iter(self._published))] > self.settings.hold_s + _ROUNDING_S:
            del self._published[first]

    def armable(self, v: Array) -> bool:
        """Whether every joint is slow enough for a command to arm the robot."""
        for speed, limit in zip(v.tolist(), self.settings.rearm_velocity.tolist(), strict=True):
            # Negated, so that NaN is too fast; the limit itself is allowed, because that of a locked joint is 0.
            if not -limit <= speed <= limit:
                return False
        return True

    def offer(self, command: JointCommand, now_s: float, v: Array, q: Array | None = None) -> bool:
        """Accepts the command for the next cycle, or sets `refusal`; returns whether it was accepted.

        v, q: (nv,) as measured; q is not needed if only efforts are commanded.
        """
        self._now_s = now_s
        order = joint_order(command.name, self.names)
        refusal = self._refusal(command, order, now_s, v)
        if refusal is None and command.release:
            if self.mode in RUNNING:  # a release does not end a stop
                self._latch("released", BRAKED, "")
            self.counters.commands += 1
            return True
        if refusal is None:
            requested = self._without_undriven(interface_values(command)[order])
            limited = self._within_limits(command, requested)
            is_limited = limited != requested
            clipped = any(is_limited.tolist())
            if self.settings.beyond_limits == "stop":
                refusal = self._refuse_beyond_limits(command, requested, limited, now_s)
        if refusal is not None:
            reason, sentence = refusal
            self.refusal = Refusal(reason, f"a command was refused: {sentence}")
            self.counters.refused[reason] += 1
            return False
        if self.mode not in RUNNING:
            self._arm(command, v if q is None else q)
        self.value = requested
        if self.interface == "effort":
            self._target, self._is_effort_limited = limited, is_limited
        else:
            effort = self._without_undriven(np.array(command.effort)[order])
            # No velocity is guessed: without one the set point steps at the controller's rate.
            velocity = np.array(command.velocity)[order] if command.velocity else np.zeros_like(effort)
            self.points.take(self.interface, limited, velocity, effort)
            self._is_set_point_limited = is_limited
        self._accepted_s = now_s
        self.command_delay_s = now_s - self._published[command.state_seq]
        self.command_seq = command.state_seq
        self.counters.commands += 1
        self.counters.clipped += clipped
        return True

    def cycle(self, now_s: float, v: Array, q: Array | None = None) -> Actuation:
        """Returns the actuation of the cycle that begins now, for v, q (nv,) measured now; q as in `offer`."""
        settings, self._now_s = self.settings, now_s
        speeds: list[float] = v.tolist()
        previous_speeds = self._previous_speeds or speeds
        self._previous_speeds = speeds
        # ages are whole cycles: the half cycle makes the comparison independent of rounding
        if self.mode in RUNNING and now_s - self._accepted_s + 0.5 * settings.cycle_s > settings.hold_s:
            self.stop("missed", f"no command was accepted for {settings.hold_s:g} s")
        # The speed at the end of this cycle, because at the limit itself it would be too late to brake.
        # In Python, where infinity minus infinity is silent: a third of the time of NumPy's functions.
        self.trip([now + (now - previous) for now, previous in zip(speeds, previous_speeds, strict=True)], _TRIP)
        self.set_point = None
        if self.mode in RUNNING:
            target = self._target if self.interface == "effort" else self._drive_effort(v, v if q is None else q)
        else:
            target = self._stop_effort(v)
        is_slewing = None
        if target is not self.effort:  # else an earlier cycle has reached it
            step = settings.effort_step
            # Not np.clip, which takes twice as long for the few numbers of a robot.
            reachable = np.minimum(np.maximum(target, self.effort - step), self.effort + step)
            is_limited = reachable != target
            is_slewing = is_limited if any(is_limited.tolist()) else None
            self.effort = target if is_slewing is None else reachable
        if self.mode == ARMING and is_slewing is None:
            self._enter(ACTIVE, "")
            self.brakes = False
        if self.mode == ACTIVE:
            self.counters.active_steps += 1
            self.saturated += self._is_effort_limited
            if is_slewing is not None:
                self.counters.slowed += 1
                self.held_back += is_slewing
            if self.set_point is not None:
                self.beyond += self._is_set_point_limited
                self.too_far += self.points.held_back
        return Actuation(self.effort, self.brakes)

    def trip(self, v: Sequence[float], share: float = 1.0) -> bool:
        """Stops the robot and shuts the brakes if a joint is at this share of its velocity limit; returns whether."""
        limits = self.settings.velocity_limit
        too_fast = is_too_fast(v, limits, share)
        if too_fast:
            self.shut("velocity", too_fast_words(self.names, self.turns, np.array(v), limits, share))
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
            self._stop_damping = self.damping()
            # Brakes stop a robot whose damping is unknown; efforts that are not finite would not.
            self.brakes |= not bool(np.isfinite(self._stop_damping).all())

    def _enter(self, mode: str, cause: str, reason: str = "") -> None:
        self.mode, self.cause, self.reason, self.since_s = mode, cause, reason, self._now_s

    def _arm(self, command: JointCommand, q: Array) -> None:
        self._enter(ARMING, "")
        self._controller = command.controller
        self.counters.armed += 1
        self.interface = next(interface for interface in self.interfaces if interface == command.interface)
        self._is_effort_limited = self._is_set_point_limited = np.zeros(len(self.names), dtype=np.bool_)
        self.points.begin(q)

    def _within_limits(self, command: JointCommand, requested: Array) -> Array:
        if command.interface == "effort":
            return self._within_effort_limits(requested)
        return self.points.within("velocity" if command.interface == "velocity" else "position", requested)

    def _within_effort_limits(self, effort: Array) -> Array:
        limit = self.settings.effort_limit
        return np.minimum(np.maximum(effort, -limit), limit)

    def _without_undriven(self, effort: Array) -> Array:
        undriven = self.settings.undriven
        return effort if undriven is None else np.where(undriven, 0.0, effort)

    def _drive_effort(self, v: Array, q: Array) -> Array:
        set_point = self.set_point = self.points.advance(q, self._is_effort_limited, moves=not self.brakes)
        requested = self._without_undriven(set_point.effort if self.servo is None else self.servo(set_point, q, v))
        limited = self._within_effort_limits(np.where(np.isnan(requested), 0.0, requested))
        self._is_effort_limited = limited != requested
        return limited

    def _stop_effort(self, v: Array) -> Array:
        """Returns the efforts of a stop: -D v, scaled together to the limits, so that they only dissipate energy."""
        limit = self.settings.effort_limit
        if self._stop_damping is None or not (np.isfinite(self._stop_damping).all() and np.isfinite(v).all()):
            return np.zeros_like(self.effort)
        effort = -(self._stop_damping @ v)
        has_motor = limit > 0.0
        # One share for all joints: clipped one by one, the efforts of a coupled D could feed energy into a joint.
        share = float((np.abs(effort[has_motor]) / limit[has_motor]).max(initial=1.0))
        return np.where(has_motor, effort / share, 0.0)

    def _refusal(self, command: JointCommand, order: JointOrder | None, t: float, v: Array) -> tuple[str, str] | None:
        seq = command.state_seq
        # From the coarsest mismatch to the finest, so that the reason names the cause and not a consequence of it.
        if command.fingerprint != self.fingerprint:
            model = command.fingerprint[:64]  # the sender is not trusted
            return ("fingerprint", f"it is for the model {model!r}, this is {self.fingerprint!r}")
        if command.session != self.session:
            return ("session", f"it is for the run {command.session}, this is {self.session}")
        kind = command.interface
        if kind not in self.interfaces:
            interfaces = ", ".join(self.interfaces)
            return ("interface", f"it commands by {kind[:64]!r}, the robot is commanded by {interfaces}")
        if self.mode in RUNNING and kind != self.interface:
            return ("interface", f"it commands by {kind!r}, the robot was armed by {self.interface!r}")
        if order is None or not sizes_fit(command, len(self.names)):
            return ("names", f"{size_summary(command)} for other joints than {', '.join(self.names)}")
        if bad_field := not_finite(command):
            return ("not_finite", f"{WITH_ARTICLE[bad_field]} is not a finite number")
        if not 0 <= seq <= self._newest:
            return ("ahead", f"it answers state {seq}, the newest is {self._newest}")
        if command.epoch != self.epoch:
            return ("epoch", f"it answers a state before the last stop: of epoch {command.epoch}, this is {self.epoch}")
        if self.mode in RUNNING and command.controller != self._controller:
            return ("controller", "another controller has armed the robot")
        if command.release:
            return None
        sent_s = self._published.get(seq)
        if sent_s is None or t - sent_s > self.settings.hold_s + _ROUNDING_S:
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

    def _refuse_beyond_limits(
        self, command: JointCommand, value: Array, possible: Array, t: float
    ) -> tuple[str, str] | None:
        """Returns the refusal of a command beyond the limits, and latches a stop; or None."""
        # At least a cycle: two commands of one cycle would otherwise have no room to differ.
        elapsed = max(t - self._accepted_s, self.settings.cycle_s) + _ROUNDING_S
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


def is_too_fast(v: Sequence[float], limits: Array, share: float = 1.0) -> bool:
    """Whether a joint is not below this share of its velocity limit; NaN is not."""
    # in Python: a third of the time of NumPy's functions for the few numbers of a robot
    for speed, limit in zip(v, limits.tolist(), strict=True):  # noqa: SIM110  no call for each joint
        if not -share * limit < speed < share * limit:
            return True
    return False


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
