"""What a law is held to, when it is asked, and what is shown of it: no processes."""

from __future__ import annotations

import re
import sys

import msgspec
import numpy as np
import pytest

from dyn_service.control.controller import ReferenceTracker, Tracking, hold_maker
from dyn_service.control.dry_runs import dry_run
from dyn_service.control.law import Law, LawError, RobotState, checked_command, reset_law
from dyn_service.control.laws.computed_torque import ComputedTorque, gains
from dyn_service.control.trajectory import MultiSine, Reference
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError, UnavailableError
from dyn_service.graph.middleware.telemetry import Facts, Rows, TelemetryStore
from dyn_service.graph.nodes.controllers.computed_torque import NODE, ControllerParameters
from dyn_service.graph.nodes.controllers.controller_kind import controller_kind
from dyn_service.graph.nodes.controllers.parameters import LoopParameters, own_parameters
from dyn_service.graph.nodes.controllers.report import LawSignals, law_section
from dyn_service.graph.nodes.registry import clash
from dyn_service.messages.dyn_service_msgs import PlantState
from tests.phrases import naming, unnamed

NAMES = ("shoulder", "elbow")
STATE = RobotState(0.0, np.zeros(2), np.zeros(2), np.zeros(2))
REFERENCE = Reference(np.zeros(2), np.zeros(2), np.zeros(2))


class Scripted(Law):
    """Returns the given answer, and keeps its inputs."""

    name = "scripted"

    def __init__(self, answer=None) -> None:
        self.answer, self.resets, self.calls = answer, [], []

    def reset(self, state: RobotState) -> None:
        self.resets.append(state)

    def update(self, state: RobotState, reference: Reference, dt: float):
        self.calls.append((state, reference, dt))
        return self.answer(state) if callable(self.answer) else self.answer


def divided(state: RobotState):
    return [1.0 / state.q[0].item()] * 2


@pytest.mark.parametrize(
    ("answer", "values"),
    [
        (None, ["'scripted'", "2", "nothing"]),
        ([1.0], ["'scripted'", "(1,)", "2"]),
        (3.0, ["'scripted'", "()", "2"]),
        ("much", ["'scripted'", "'much'", "2"]),
        ([0.0, np.nan], ["'scripted'", "nan", "'elbow'"]),
        ([-np.inf, 0.0], ["'scripted'", "-inf", "'shoulder'"]),
    ],
)
def test_what_is_no_command_is_refused_by_name(answer, values: list[str]) -> None:
    with pytest.raises(LawError) as excinfo:
        checked_command(Scripted(answer), STATE, REFERENCE, 0.002, NAMES)
    assert unnamed(excinfo.value, *values) == []


def test_a_law_that_fails_is_named_with_the_line() -> None:
    with pytest.raises(LawError, match=naming("'scripted'", "update", "ZeroDivisionError", "test_law.py")):
        checked_command(Scripted(divided), STATE, REFERENCE, 0.002, NAMES)


def test_the_line_is_that_of_the_law_where_a_library_or_this_package_failed(pendulum: Robot) -> None:
    """Not that of NumPy, and also where the error is one of this package."""

    def singular(state: RobotState):
        return np.linalg.inv(np.zeros((2, 2)))

    def of_another_size(state: RobotState):
        return pendulum.gravity_forces(np.zeros(7))

    for law, kind, words in ((singular, LawError, "LinAlgError"), (of_another_size, InvalidArgumentError, "(7,)")):
        line = law.__code__.co_firstlineno + 1
        with pytest.raises(
            kind, match=naming("law 'scripted' failed in its update", words, f"(test_law.py, line {line})")
        ):
            checked_command(Scripted(law), STATE, REFERENCE, 0.002, NAMES)


def test_a_law_that_exits_is_a_law_that_failed() -> None:
    with pytest.raises(LawError, match=naming("'scripted'", "SystemExit: 3 (test_law.py, line")):
        checked_command(Scripted(lambda state: sys.exit(3)), STATE, REFERENCE, 0.002, NAMES)


def test_a_reset_that_fails_is_named_too_and_an_error_without_words_by_its_kind() -> None:
    class Wordless(Scripted):
        def reset(self, state: RobotState) -> None:
            raise KeyError

    with pytest.raises(
        LawError, match=naming("'scripted'", "reset", re.compile(r"KeyError \(test_law.py, line \d+\)$"))
    ):
        reset_law(Wordless(), STATE)


def test_errors_of_the_model_are_not_the_laws() -> None:
    def gone(state: RobotState):
        raise UnavailableError("no server")

    place = r"^law 'scripted' failed in its update: no server \(test_law.py, line \d+\)$"
    with pytest.raises(UnavailableError, match=place):  # of its own type: the controller asks again
        checked_command(Scripted(gone), STATE, REFERENCE, 0.002, NAMES)


def state_of(robot: Robot, k: int, mode: str = "active", **changes) -> PlantState:
    """The k-th state of a plant that publishes at 1 kHz."""
    names = robot.configuration.velocity_names
    fields = {"position": [0.1], "velocity": [0.2], "effort": [0.3], "command_delay": 0.001, **changes}
    return PlantState(
        session=1, seq=k, stamp=0.001 * k, name=names, mode=mode, cause="", since=0.0, epoch=0, armable=True,
        command_seq=-1, fingerprint=robot.fingerprint, **fields,
    )  # fmt: skip


def test_a_law_is_reset_where_the_plant_was_not_under_command_and_told_how_long_ago_it_was_asked(
    pendulum: Robot,
) -> None:
    configuration = pendulum.configuration
    following, law = (
        ReferenceTracker(configuration, pendulum.fingerprint, hold_maker(configuration), 500.0),
        Scripted([0.0]),
    )
    schedule = (
        (0, "braked"),
        (2, "arming"),
        (4, "active"),
        (6, "active"),
        (12, "active"),
        (14, "stopped"),
        (16, "active"),
    )
    for k, mode in schedule:
        state = state_of(pendulum, k, mode)
        assert following.due(state)
        following.answer(law, following.moment(state))
    assert [state.t for state in law.resets] == pytest.approx([0.0, 0.002, 0.014])
    assert [dt for *_, dt in law.calls] == pytest.approx([0.002, 0.002, 0.002, 0.002, 0.006, 0.002, 0.002])
    assert following.skipped == 2


def test_an_update_that_is_lost_is_made_up_for(pendulum: Robot) -> None:
    """Its time is in the next dt, and a reset that was lost comes again."""
    configuration, lost_steps = pendulum.configuration, {4, 0}
    following = ReferenceTracker(configuration, pendulum.fingerprint, hold_maker(configuration), 500.0)
    law = Scripted(lambda state: [0.0])
    for k in (0, 2, 4, 6):
        state = state_of(pendulum, k)
        assert following.due(state)
        moment = following.moment(state)
        if k in lost_steps:
            law.answer = lambda state: (_ for _ in ()).throw(UnavailableError("away"))
            with pytest.raises(UnavailableError):
                following.answer(law, moment)
            law.answer = lambda state: [0.0]
        else:
            following.answer(law, moment)
    assert len(law.resets) == 2
    assert [dt for *_, dt in law.calls] == pytest.approx([0.002, 0.002, 0.002, 0.004])


class Moving(Scripted):
    """One that has a motion of its own from the second update on."""

    own_motion = None

    def motion(self):
        return (self.own_motion, 0.5) if self.own_motion is not None and len(self.calls) > 1 else None


def test_a_motion_of_the_laws_own_is_followed_from_when_it_began(pendulum: Robot) -> None:
    configuration = pendulum.configuration
    following, law = (
        ReferenceTracker(configuration, pendulum.fingerprint, hold_maker(configuration), 500.0),
        Moving([0.0]),
    )
    law.own_motion = MultiSine(*([np.zeros(1)] * 3), np.ones((1, 1)), np.ones(1), np.zeros((1, 1)), 0.1)
    for k in range(0, 800, 2):
        state = state_of(pendulum, k)
        assert following.due(state)
        moment = following.moment(state)
        following.answer(law, moment)
    assert (following.trajectory is law.own_motion, following.begin_s) == (True, 0.5)
    # the last state is of 0.798 s, and the horizon twice 1 ms: the plant's delay, and half a period
    np.testing.assert_allclose(moment.reference.q, law.own_motion.sample(0.3).q, atol=1e-12)
    np.testing.assert_allclose(moment.error, law.own_motion.sample(0.298).q - 0.1, atol=1e-12)


def test_the_delay_is_the_median_of_the_last_and_none_of_another_run_of_the_plant(pendulum: Robot) -> None:
    configuration = pendulum.configuration
    following = ReferenceTracker(configuration, pendulum.fingerprint, hold_maker(configuration), 1000.0)

    def horizon(k: int, **changes) -> float:
        state = state_of(pendulum, k, **changes)
        assert following.due(state)
        return following.moment(state).horizon_s

    for k in range(60):  # the first state is the one of the taking over: a command before it is not this controller's
        assert horizon(k, command_delay=0.5 if k == 0 else 0.001) == pytest.approx(0.001 if k == 0 else 0.0015)
    # of 31, 16 are the larger half
    horizons = [horizon(k, command_delay=0.003) for k in range(60, 80)]
    assert horizons == pytest.approx([0.0015] * 15 + [0.0035] * 5)
    restarted = msgspec.structs.replace(state_of(pendulum, 0), session=2)
    assert following.due(restarted)
    assert following.moment(restarted).horizon_s == pytest.approx(0.001)  # half a period for one that is not known
    assert (following.restarts, following.skipped) == (1, 0)


@pytest.mark.parametrize("compensate", [False, True])
def test_the_measured_state_is_beside_the_foretold_one(pendulum: Robot, compensate: bool) -> None:
    configuration = pendulum.configuration
    following = ReferenceTracker(configuration, pendulum.fingerprint, hold_maker(configuration), 500.0, compensate)
    state = state_of(pendulum, 0)
    assert following.due(state)
    law_state = following.moment(state).state
    assert (law_state.measured.t, law_state.measured.q, law_state.measured.v, law_state.effort) == (0.0, 0.1, 0.2, 0.3)
    # half a period for a delay that is not known yet, and half of the one for which the command acts
    assert law_state.t == pytest.approx(0.002 if compensate else 0.0)
    assert (law_state.q[0] > 0.1, law_state is not law_state.measured) == (compensate, compensate)


def test_a_dry_run_tracks_as_the_loop_does(pendulum: Robot) -> None:
    """And under what pushes: at rest e = -push / (M kp), so the push, the gains and the mass are all in it."""
    kp, kd = gains(20.0, 0.9, 1)
    assert (kp.tolist(), kd.tolist()) == ([400.0], [36.0])
    law = ComputedTorque(pendulum, kp, kd)
    free = dry_run(law, pendulum, 0.5, q=[0.3])
    # the effort is held for 2 ms at a joint that stands: nothing but rounding is left
    assert np.abs(free.error).max() < 1e-9
    pushed = dry_run(law, pendulum, 1.0, q=[0.3], push=lambda t, q, v: [0.4])
    inertia = pendulum.mass_matrix([0.3])[0, 0]
    # after 18 time constants the rest is exp(-18) of it
    np.testing.assert_allclose(pushed.error[-1], -0.4 / (inertia * kp), rtol=1e-6)
    assert len(pushed.t) == 1001
    assert len(pushed.updated) == 501
    with pytest.raises(InvalidArgumentError, match=naming("q", "(2,)", "(1,)")):
        dry_run(law, pendulum, 0.1, q=[0.0, 0.0])


def test_a_dry_run_gives_the_law_and_the_push_the_state_of_the_plant(pendulum: Robot) -> None:
    law = Scripted(np.array([0.2]))
    pushes: list[tuple[float, float, float]] = []
    run = dry_run(law, pendulum, 0.01, q=[0.3], v=[-0.5], push=lambda t, q, v: pushes.append((t, *q, *v)) or [0.0])
    np.testing.assert_array_equal(pushes, np.column_stack([run.t, run.q, run.v]))
    assert pushes[0] == (0.0, 0.3, -0.5)
    # No effort acts before the first state; from the next step on, the efforts of the first update do.
    assert [state.measured.effort.tolist() for state, *_ in law.calls[:3]] == [[0.0], [0.0], [0.2]]


def test_what_tracking_sums_up() -> None:
    tracking = Tracking()
    for error in ([3.0, 0.0], [0.0, -4.0], [1.0, 1.0]):
        tracking.add(np.array(error))
    assert (tracking.count, tracking.maximum) == (3, 4.0)
    assert tracking.rms == pytest.approx(np.sqrt(27.0 / 6.0))


class Showing(Scripted):
    def signals(self):
        return {"residual": np.array([1.0, -2.0]) * len(self.calls), "share": 0.5}


class Sent:
    """What a telemetry would send."""

    def __init__(self) -> None:
        self.store = TelemetryStore()

    def rows(self, channel: str, columns: list[str], block: np.ndarray) -> None:
        self.store.take(Rows("arm", 1, channel, list(columns), block.astype("<f8").tobytes()))


def test_signals_of_a_law_are_recorded_and_shown() -> None:
    telemetry, law = Sent(), Showing([0.0, 0.0])
    signals = LawSignals(NAMES, telemetry)
    for k in range(3):
        checked_command(law, STATE, REFERENCE, 0.002, NAMES)
        signals.take(0.002 * k, law)
    signals.flush()
    assert signals.latest() == {"law.residual": 6.0, "law.share": 0.5}
    telemetry.store.take(Facts("arm", 1, {"law": "showing", "law_parameters": {"gain": 2.0}}))
    section = law_section(telemetry.store.nodes["arm"], telemetry.store)
    assert section.content["name"] == "showing"
    assert section.content["parameters"] == {"gain": 2.0}
    shoulder, elbow = section.content["signals"]["residual"]
    assert (shoulder["name"], shoulder["max"], elbow["max"]) == ("shoulder", 3.0, 6.0)
    assert elbow["rms"] == pytest.approx(2.0 * np.sqrt(14.0 / 3.0))
    assert section.content["signals"]["share"] == [{"name": "share", "rms": 0.5, "max": 0.5}]
    assert [card.title for card in section.charts["showing: residual"]] == ["shoulder", "elbow"]
    assert (
        law_section(TelemetryStore().nodes.setdefault("x", type(telemetry.store.nodes["arm"])()), telemetry.store)
        is None
    )


def test_two_controllers_share_the_panels_of_all_controllers() -> None:
    other = controller_kind("damper", LoopParameters, lambda p, model: Scripted([0.0]))
    assert clash([("a/controller", NODE), ("b/damper", other)], ()) is None
    assert own_parameters(ControllerParameters(natural_frequency=5.0))["natural_frequency"] == 5.0
    assert own_parameters(LoopParameters()) == {}


@pytest.mark.parametrize(
    ("period_s", "rate_hz", "words"),
    [
        (0.001, 500.0, ""),
        (0.002, 500.0, ""),
        (0.005, 500.0, "at 200 Hz"),
        (0.001, 300.0, "at 1000 Hz"),
        (0.001, 100.0, ""),
    ],
)
def test_states_that_do_not_come_at_the_laws_rate_are_said_once(
    pendulum: Robot, period_s: float, rate_hz: float, words: str
) -> None:
    """A law for 500 Hz at 200 Hz is warned of. Lost and repeated states cause no warning."""
    configuration = pendulum.configuration
    following = ReferenceTracker(configuration, pendulum.fingerprint, hold_maker(configuration), rate_hz)
    stamps = [10.0, *(k * period_s for k in range(200) if k % 3), *([0.999] * 3)]  # first one of an earlier run
    first = PlantState(
        session=7, seq=0, stamp=0.0, name=("hinge",), position=[0.0], velocity=[0.0], effort=[0.0], mode="active",
        cause="", since=0.0, epoch=0, armable=True, command_seq=-1, command_delay=0.0, fingerprint="f",
    )  # fmt: skip
    states = [msgspec.structs.replace(first, stamp=stamp) for stamp in stamps]
    doubts = [doubt for state in states if (doubt := following.rate_warning(state))]
    assert len(doubts) == bool(words)
    assert all(words in doubt and f"rate_hz, {rate_hz:g}" in doubt for doubt in doubts)
    assert all(doubt.endswith("or the machine is busy") == (period_s * rate_hz > 1.0) for doubt in doubts)


@pytest.mark.parametrize(("update_ms", "slow"), [(31.0, True), (4.9, False)])
def test_a_law_that_takes_longer_than_its_period_is_named_as_the_cause(
    pendulum: Robot, update_ms: float, slow: bool
) -> None:
    """A law for 200 Hz whose states come at 28.57 Hz; with states at its rate no time is a cause."""
    configuration = pendulum.configuration
    texts = []
    for period_s in (0.035, 0.005):
        following = ReferenceTracker(configuration, pendulum.fingerprint, hold_maker(configuration), 200.0)
        states = [state_of(pendulum, round(1e3 * k * period_s)) for k in range(1, 60)]
        updates_us = [900.0, 1e3 * update_ms, 1e3 * update_ms]
        texts.append([text for state in states if (text := following.rate_warning(state, updates_us))])
    sentence = (
        "an update of the law takes 31 ms of its 5 ms: it runs at 28.57 Hz instead of 200; make its update faster, or "
        "lower rate_hz"
    )
    assert (texts[0] == [sentence]) == slow
    assert len(texts[0]) == 1
    assert texts[1] == []
