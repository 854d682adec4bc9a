"""The safety supervisor: every refusal, the watchdog, latched stops, limits under any commands."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dyn_service.control.command import _permutation
from dyn_service.control.plant import safety
from dyn_service.control.plant.safety import CAUSES, REFUSALS, SafetySettings, SafetySupervisor
from dyn_service.errors import InvalidArgumentError
from dyn_service.messages import decode, encode
from dyn_service.messages.dyn_service_msgs import JointCommand
from tests.phrases import naming, unnamed

NAMES = ("a", "b")
CYCLE_S, CYCLES = 0.001, 20
EFFORT, RATE, VELOCITY, REARM = np.array([10.0, 5.0]), np.array([400.0, 100.0]), np.array([2.0, 1.0]), 0.1


class Rig:
    """A supervisor, a clock that counts cycles, and two unit masses that its efforts and brakes move."""

    def __init__(self, **changes) -> None:
        options = {
            "cycle_s": CYCLE_S, "hold_s": CYCLES * CYCLE_S, "effort_limit": EFFORT, "effort_rate": RATE,
            "velocity_limit": VELOCITY, "rearm_velocity": np.full(2, REARM), "stop": "brake", "beyond_limits": "clip",
        }  # fmt: skip
        self.supervisor = SafetySupervisor(
            SafetySettings(**{**options, **changes}), NAMES, 7, "f00", lambda: 20.0 * np.eye(2)
        )
        self.count = 0
        self.v = np.zeros(2)
        self.efforts = [self.supervisor.effort]
        self.supervisor.published(0, 0.0)

    @property
    def now_s(self) -> float:
        return self.count * CYCLE_S

    def turn(self, cycles: int = 1) -> None:
        for _ in range(cycles):
            effort, brakes = self.supervisor.cycle(self.now_s, self.v)
            self.efforts.append(effort)
            self.v = 0.5 * self.v if brakes else self.v + CYCLE_S * effort
            self.count += 1
            self.supervisor.published(self.count, self.now_s)

    def command(self, effort=(1.0, 1.0), **changes) -> JointCommand:
        fields = {
            "session": 7, "state_seq": self.count, "epoch": self.supervisor.epoch, "fingerprint": "f00",
            "controller": 1, "name": NAMES, "effort": list(effort), "arm": self.supervisor.mode not in safety.RUNNING,
        }  # fmt: skip
        return JointCommand(**{**fields, **changes})

    def offer(self, *arguments, **changes) -> bool:
        return self.supervisor.offer(self.command(*arguments, **changes), self.now_s, self.v)

    @property
    def refused(self) -> dict[str, int]:
        return {reason: count for reason, count in self.supervisor.counters.refused.items() if count}


def running(cycles: int = 30, **changes) -> Rig:
    """Under command for so many cycles, with efforts that cancel out."""
    rig = Rig(**changes)
    for k in range(cycles):
        assert rig.offer((0.1 * (-1) ** k, 0.0))
        rig.turn()
    assert rig.supervisor.mode == "active"
    return rig


def test_efforts_grow_against_the_brakes_and_then_these_open() -> None:
    """10 N m at 0.4 a cycle: 25 cycles; the brakes open in the one in which the last effort is there."""
    rig = Rig()
    modes = []
    for _ in range(30):
        assert rig.offer((10.0, 0.0))
        rig.turn()
        modes.append(rig.supervisor.mode)
    assert modes == ["arming"] * 24 + ["active"] * 6
    assert rig.supervisor.since_s == pytest.approx(0.024)
    assert rig.supervisor.counters.slowed == 0
    np.testing.assert_allclose(np.diff([effort[0] for effort in rig.efforts])[:25], 0.4, rtol=1e-9)
    np.testing.assert_allclose(rig.v[0], 6 * 0.01, rtol=1e-9)


def test_the_last_effort_acts_for_twenty_cycles_and_not_for_one_more() -> None:
    rig = running()
    assert rig.offer((0.3, 0.0))
    rig.turn(CYCLES)
    assert (rig.supervisor.mode, rig.efforts[-1][0]) == ("active", 0.3)
    rig.turn()
    assert (rig.supervisor.mode, rig.supervisor.cause, rig.supervisor.counters.stops["missed"]) == (
        "stopped",
        "missed",
        1,
    )
    assert rig.supervisor.since_s == pytest.approx(0.030 + CYCLES * CYCLE_S)
    assert rig.efforts[-1][0] < 0.3


@pytest.mark.parametrize("cycle_s", [0.001, 0.003, 0.0007])
def test_cycles_are_counted_whatever_their_rounding(cycle_s: float) -> None:
    """Times are sums of cycles that no double holds exactly."""
    supervisor = SafetySupervisor(
        SafetySettings(cycle_s, 10 * cycle_s, EFFORT, RATE, VELOCITY, np.full(2, REARM), "brake", "clip"), NAMES, 7, "f"
    )
    count = 0
    for _ in range(60):
        supervisor.published(count, count * cycle_s)
        assert supervisor.offer(
            JointCommand(7, count, supervisor.epoch, "f", 1, NAMES, [0.0, 0.0], True), count * cycle_s, np.zeros(2)
        )
        for _ in range(10):
            supervisor.cycle(count * cycle_s, np.zeros(2))
            count += 1
            assert supervisor.mode == "active"
        supervisor.cycle(count * cycle_s, np.zeros(2))
        count += 1
        assert supervisor.mode == "stopped"


WRONG = {
    "fingerprint": {"fingerprint": "f01"},
    "session": {"session": 8},
    "interface": {"interface": "position", "position": [0.0, 0.0]},
    "names": {"name": ("a", "c"), "position": [0.0], "velocity": [0.0] * 3},
    "not_finite": {"effort": [math.nan, 0.0]},
    "ahead": {"state_seq": 2**62},
    "epoch": {"epoch": 0, "arm": True},
    "controller": {"controller": 2},
    "stale": {"state_seq": 9},
    "repeated": {"state_seq": 29},
    "old": {"state_seq": 28},
    "not_armed": {"arm": False},
    "moving": {"arm": True},
    "beyond_limits": {"effort": [10.1, 0.0]},
}


def wrong(reason: str, **changes) -> tuple[Rig, dict]:
    """A rig in the state in which a command is refused for this reason, and what is wrong with the command."""
    rig = running(**changes)
    if reason in ("epoch", "not_armed", "moving"):
        rig.turn(CYCLES + 1)
        assert rig.supervisor.mode == "stopped"
    if reason == "moving":
        rig.v = np.array([0.0, -0.101])
    return rig, WRONG[reason]


SAYS = {
    "fingerprint": ["'f01'", "'f00'"],
    "session": ["8", "7", "this"],
    "interface": ["'position'", "commands", "commanded"],
    "names": ["2", "1", "3", "positions", "velocities"],
    "not_finite": ["effort", "finite"],
    "ahead": ["4611686018427387904", "30", "answers", "newest"],
    "epoch": ["0", "1", "answers", "state"],
    "controller": ["controller", "armed"],
    "stale": ["9", "0.02", "answers", "published"],
    "repeated": ["state 29, but state 29"],
    "old": ["28", "29", "answers", "answered"],
    "not_armed": ["stopped", "command"],
    "moving": ["rearm_velocity", "robot", "faster"],
    "beyond_limits": ["an effort is beyond its limit: 10.1 for"],
}


def test_every_reason_has_its_case() -> None:
    assert tuple(WRONG) == tuple(SAYS) == tuple(REFUSALS)


@pytest.mark.parametrize("reason", REFUSALS)
def test_a_wrong_command_is_refused_by_its_reason_and_changes_nothing(reason: str) -> None:
    rig, changes = wrong(reason, beyond_limits="stop" if reason == "beyond_limits" else "clip")
    state_before = (
        rig.supervisor.mode,
        rig.supervisor.epoch,
        rig.supervisor.counters.commands,
        rig.supervisor.command_seq,
    )
    assert not rig.offer(**changes)
    assert rig.refused == {reason: 1}
    assert rig.supervisor.refusal is not None
    assert rig.supervisor.refusal.reason == reason
    assert unnamed(rig.supervisor.refusal.sentence, *SAYS[reason]) == []
    if reason != "beyond_limits":  # which stops
        assert (
            rig.supervisor.mode,
            rig.supervisor.epoch,
            rig.supervisor.counters.commands,
            rig.supervisor.command_seq,
        ) == state_before


@pytest.mark.parametrize("reason", [reason for reason in REFUSALS if reason not in ("epoch", "not_armed", "moving")])
def test_wrong_commands_do_not_feed_the_watchdog(reason: str) -> None:
    """A bad command in every cycle: the stop comes as without commands, and a good one then arms the robot."""
    rig = running()
    for _ in range(CYCLES):
        changes = WRONG[reason]
        if "state_seq" in changes and reason in ("stale", "repeated", "old"):
            changes = {"state_seq": min(changes["state_seq"], rig.supervisor.command_seq)}
        if reason == "beyond_limits":
            changes = {"session": 9, **changes}  # under `clip` it is a right one
        assert not rig.offer(**changes)
        rig.turn()
        assert rig.supervisor.counters.commands == 30
    rig.turn(2)
    assert (rig.supervisor.mode, rig.supervisor.cause) == ("stopped", "missed")
    assert rig.offer()
    assert rig.supervisor.mode == "arming"


def test_nothing_can_be_answered_before_a_state_is_sent_out() -> None:
    supervisor = SafetySupervisor(Rig().supervisor.settings, NAMES, 7, "f00")
    assert (supervisor.mode, supervisor.cause, supervisor.since_s, supervisor.epoch, supervisor.brakes) == (
        "braked",
        "start",
        0.0,
        0,
        True,
    )
    assert not supervisor.offer(Rig().command(), 0.0, np.zeros(2))
    assert supervisor.counters.refused["ahead"] == 1
    supervisor.published(0, 0.0)
    assert supervisor.offer(Rig().command(), 0.0, np.zeros(2))


def test_delay_of_a_command_is_from_its_state_to_when_it_was_taken() -> None:
    rig = running()
    command = rig.command()
    rig.turn(3)
    assert rig.supervisor.offer(command, rig.now_s, rig.v)
    assert rig.supervisor.command_delay_s == pytest.approx(0.003)


@pytest.mark.parametrize(("v", "share", "trips"), [(1.9, 1.0, False), (2.0, 1.0, True), (1.9, 0.9, True)])
def test_a_driver_may_trip_it_within_a_cycle(v: float, share: float, trips: bool) -> None:
    rig = running()
    arguments = () if share == 1.0 else (share,)
    assert rig.supervisor.trip(np.array([0.0, 0.5 * -v]), *arguments) is trips
    assert (rig.supervisor.mode, rig.supervisor.brakes, rig.supervisor.counters.stops["velocity"]) == (
        "stopped" if trips else "active", trips, int(trips),
    )  # fmt: skip


@pytest.mark.parametrize("seq", [2**62, 2**63 - 1, 31, -1, -(2**62)])
def test_an_absurd_sequence_locks_no_one_out(seq: int) -> None:
    rig = running()
    assert not rig.offer(state_seq=seq)
    assert not rig.offer(state_seq=seq, release=True)
    assert rig.refused == {"ahead": 2}
    assert rig.offer()
    rig.turn()
    assert rig.offer()


@pytest.mark.parametrize(
    "changes",
    [{"effort": [1.0]}, {"effort": []}, {"name": ("a",), "effort": [1.0]}, {"name": ("a", "a")}, {"name": ()}],
)
def test_joints_are_named_once_each(changes: dict) -> None:
    rig = running()
    assert not rig.offer(**changes)
    assert rig.refused == {"names": 1}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_effort_that_is_no_number(value: float) -> None:
    rig = running()
    assert not rig.offer((0.0, value))
    assert rig.refused == {"not_finite": 1}


def test_joints_go_by_name() -> None:
    rig = Rig()
    for _ in range(30):
        assert rig.offer((3.0, 1.0), name=("b", "a"))
        rig.turn()
    assert rig.efforts[-1].tolist() == [1.0, 3.0]


def test_names_of_strangers_neither_fill_the_memory_nor_keep_right_ones_out() -> None:
    rig = running()
    for k in range(40):
        assert not rig.offer(name=(f"a{k}", "b"))
    assert _permutation.cache_info().currsize == 16
    assert rig.offer()


@pytest.mark.parametrize(("cycles", "accepted"), [(0, True), (CYCLES, True), (CYCLES + 1, False)])
def test_age_of_the_state_that_is_answered(cycles: int, accepted: bool) -> None:
    """An arm has time: the robot stands still meanwhile."""
    rig = Rig()
    rig.turn(3)
    command = rig.command()
    rig.turn(cycles)
    assert rig.supervisor.offer(command, rig.now_s, rig.v) is accepted
    assert rig.refused == ({} if accepted else {"stale": 1})


def test_states_that_were_not_sent_out_cannot_be_answered() -> None:
    rig = Rig()
    rig.supervisor.published(40, 0.0)
    assert not rig.offer(state_seq=39)
    assert rig.refused == {"stale": 1}


def test_the_newest_state_ages_too() -> None:
    """No other was sent out since: it is the newest, and still too old to be answered."""
    rig = running()
    late_s = rig.now_s + (CYCLES + 1) * CYCLE_S
    assert not rig.supervisor.offer(rig.command(), late_s, rig.v)
    assert rig.refused == {"stale": 1}


def test_what_was_sent_out_long_ago_is_forgotten() -> None:
    rig = Rig()
    rig.turn(1000)
    assert len(rig.supervisor._published) == CYCLES + 1


def test_an_arm_from_before_the_stop_does_not_end_it() -> None:
    """On its way while the robot stopped: it answers a state in which it did not stand yet."""
    rig = running()
    on_its_way = rig.command(arm=True)
    rig.supervisor.stop("driver")
    assert not rig.supervisor.offer(on_its_way, rig.now_s, rig.v)
    assert rig.refused == {"epoch": 1}
    rig.turn()
    assert rig.offer()


def test_only_the_controller_that_armed_it_is_obeyed_until_it_stops() -> None:
    rig = running()
    assert not rig.offer(controller=2)
    assert not rig.offer(controller=2, release=True)
    assert not rig.offer(controller=2, arm=True)
    assert rig.refused == {"controller": 3}
    rig.turn(CYCLES + 1)
    assert rig.offer(controller=2)
    rig.turn()
    assert not rig.offer(controller=1)


def test_release_hands_over_and_does_not_undo_a_stop() -> None:
    rig = running()
    assert rig.offer(release=True, state_seq=rig.supervisor.command_seq)  # the last state may have been answered
    rig.turn()
    assert (rig.supervisor.mode, rig.supervisor.cause, rig.supervisor.brakes) == ("braked", "released", True)
    assert sum(rig.supervisor.counters.stops.values()) == 0
    assert not rig.offer(arm=False)
    rig = running()
    rig.supervisor.stop("driver")
    rig.turn()
    epoch = rig.supervisor.epoch
    assert rig.offer(release=True)
    assert (rig.supervisor.mode, rig.supervisor.cause, rig.supervisor.epoch) == ("stopped", "driver", epoch)
    assert rig.supervisor.counters.commands == 31


def test_a_mode_begins_when_its_command_comes() -> None:
    rig = Rig()
    rig.turn(5)
    assert rig.offer()
    assert (rig.supervisor.mode, rig.supervisor.since_s) == ("arming", 0.005)
    rig.turn(3)
    assert rig.offer(release=True)
    assert (rig.supervisor.mode, rig.supervisor.since_s) == ("braked", 0.008)


def test_a_stop_of_the_driver_holds() -> None:
    rig = running()
    rig.supervisor.stop()
    rig.turn(3)
    assert (rig.supervisor.mode, rig.supervisor.cause, rig.supervisor.counters.stops["driver"]) == (
        "stopped",
        "driver",
        1,
    )
    assert not rig.offer(arm=False)


def test_retaking_waits_for_low_speed() -> None:
    rig = running()
    rig.turn(CYCLES + 1)
    for v, accepted in (([0.2, 0.0], False), ([0.0, -0.11], False), ([math.nan, 0.0], False), ([0.1, -0.1], True)):
        rig.v = np.array(v)
        assert rig.supervisor.armable(rig.v) is accepted
        assert rig.offer() is accepted
    assert rig.refused == {"moving": 3}


@pytest.mark.parametrize(("effort", "acts"), [((25.0, -7.0), (10.0, -5.0)), ((-25.0, 7.0), (-10.0, 5.0))])
def test_efforts_beyond_their_limit_are_cut_and_counted(effort: tuple, acts: tuple) -> None:
    """5 N m at 0.1 a cycle: 50 cycles against the brakes."""
    rig = Rig()
    for _ in range(51):  # that is, and one for the roundings
        assert rig.offer(effort)
        rig.turn()
    assert (rig.supervisor.mode, rig.efforts[-1].tolist()) == ("active", list(acts))
    assert (rig.supervisor.counters.clipped, rig.supervisor.counters.commands, rig.supervisor.counters.armed) == (
        51,
        51,
        1,
    )


def test_a_steady_speed_below_the_limit_is_no_fault() -> None:
    rig = running()
    for v in (*np.arange(0.0, 1.9, 0.05), 1.9, 1.9):
        assert rig.supervisor.offer(rig.command((0.0, 0.0)), rig.now_s, rig.v)
        rig.v = np.array([v, -0.5 * v])
        rig.turn()
    assert (rig.supervisor.mode, rig.supervisor.cause) == ("active", "")


@pytest.mark.parametrize(("share", "mode"), [(0.975, "active"), (0.985, "stopped")])
def test_a_steady_speed_trips_it_just_below_the_limit(share: float, mode: str) -> None:
    """At 98 %: what is left is for a change of acceleration within the cycle."""
    rig = running()
    for k in range(1, 40):
        rig.v = np.array([0.0, share * (1.0 - 0.5**k) * VELOCITY[1]])
        rig.offer((0.0, 0.0))
        rig.turn()
    assert rig.supervisor.mode == mode


def test_a_change_beyond_the_rate_is_a_fault_within_one_cycle() -> None:
    """100 N m/s is 0.1 in a cycle: what would be allowed within five is not."""
    rig = running(beyond_limits="stop")
    assert not rig.offer((0.0, 0.5))
    assert (rig.supervisor.mode, rig.supervisor.cause, rig.refused) == (
        "stopped",
        "beyond_limits",
        {"beyond_limits": 1},
    )


@pytest.mark.parametrize("policy", ["brake", "damping", "zero"])
def test_a_release_shuts_the_brakes_under_any_policy(policy: str) -> None:
    rig = running(stop=policy)
    assert rig.offer(release=True)
    assert rig.supervisor.cycle(rig.now_s, rig.v).brakes


@pytest.mark.parametrize("v", [[2.5, 0.0], [0.0, -1.0], [math.nan, 0.0], [0.0, math.inf]])
@pytest.mark.parametrize("policy", ["brake", "damping", "zero"])
def test_a_joint_too_fast_stops_it_and_shuts_the_brakes(policy: str, v: list[float]) -> None:
    rig = running(stop=policy)
    effort, brakes = rig.supervisor.cycle(rig.now_s, np.array(v))
    assert (rig.supervisor.mode, rig.supervisor.cause, brakes) == ("stopped", "velocity", True)
    assert np.isfinite(effort).all()


def test_a_joint_that_will_be_too_fast_in_the_next_cycle_stops_it_now() -> None:
    rig = running()
    for k, v in enumerate((0.0, 0.6, 1.2)):
        rig.supervisor.offer(rig.command(), rig.now_s, rig.v)
        rig.supervisor.cycle(rig.now_s, np.array([v, 0.0]))
        rig.count += 1
        rig.supervisor.published(rig.count, rig.now_s)
        assert rig.supervisor.mode == "active", k
    rig.supervisor.cycle(rig.now_s, np.array([1.6, 0.0]))  # 2.0 next
    assert (rig.supervisor.mode, rig.supervisor.cause) == ("stopped", "velocity")


def test_changes_within_the_rate_are_no_fault_however_large_the_efforts() -> None:
    rig = running(beyond_limits="stop")
    for effort in (*np.arange(0.0, 9.5, 0.35), *np.arange(9.5, -9.5, -0.35)):
        rig.v = np.zeros(2)
        assert rig.offer((effort, 0.0))
        rig.turn()
    assert (rig.supervisor.mode, rig.refused) == ("active", {})


@pytest.mark.parametrize("effort", [(10.5, 0.0), (8.0, 0.0), (-8.0, 0.0)])
def test_beyond_limits_may_be_a_fault(effort: tuple[float, float]) -> None:
    """The first is beyond its limit; the others are 8 N m in one cycle, where 0.4 are allowed."""
    rig = running(beyond_limits="stop")
    assert rig.offer((0.2, 0.0))
    rig.turn()
    assert not rig.offer(effort)
    assert (rig.supervisor.mode, rig.supervisor.cause, rig.refused) == (
        "stopped",
        "beyond_limits",
        {"beyond_limits": 1},
    )
    rig.turn()
    assert rig.offer((8.0, 0.0)), "efforts grow slowly when it is armed"


@pytest.mark.parametrize(
    ("cycles", "change", "accepted"), [(1, 0.39, True), (1, 0.41, False), (3, 1.19, True), (3, 1.21, False)]
)
def test_the_rate_is_that_of_the_time_since_the_last_command(cycles: int, change: float, accepted: bool) -> None:
    """400 N m/s is 0.4 N m in a cycle of 1 ms, 1.2 N m after three cycles."""
    rig = running(beyond_limits="stop")
    assert rig.offer((0.2, 0.0))
    rig.turn(cycles)
    assert rig.offer((0.2 + change, 0.0)) == accepted
    assert (rig.supervisor.mode == "active") == accepted


def test_a_stop_names_the_joint_its_value_and_its_limit(caplog: pytest.LogCaptureFixture) -> None:
    rig = running()
    rig.supervisor.turns = (True, False)
    rig.supervisor.cycle(rig.now_s, np.array([0.5, -0.7]))  # of 2 and 1; 0.7 more in the next cycle
    assert rig.supervisor.reason == (
        f"{NAMES[1]} would reach 1.4 m/s in the next cycle; the stop is at 98 % of its limit, 1 m/s"
    )
    assert rig.supervisor.last_stop == f"velocity at {rig.now_s:.4g} s: {rig.supervisor.reason}"
    assert f"the robot is stopped: {rig.supervisor.last_stop}" in caplog.text
    quiet = running()
    quiet.turn(CYCLES + 1)
    assert (quiet.supervisor.cause, quiet.supervisor.reason) == (
        "missed",
        f"no command was accepted for {CYCLES * CYCLE_S:g} s",
    )
    rig_with_stops = running(beyond_limits="stop")
    rig_with_stops.offer((0.0, -5.5))
    assert rig_with_stops.supervisor.reason == f"an effort is beyond its limit: -5.5 for {NAMES[1]}"
    rig_with_stops = running(beyond_limits="stop")
    rig_with_stops.offer((3.0, 0.0))
    assert rig_with_stops.supervisor.reason == f"an effort is beyond its rate: 3 for {NAMES[0]}"
    rig_with_stops.turn()
    assert rig_with_stops.offer()
    assert rig_with_stops.supervisor.reason == ""  # armed again


def test_stops_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    for _ in range(15):
        rig.supervisor.stop("driver", "over")
    assert len(caplog.records) == 10
    assert rig.supervisor.counters.stops["driver"] == 15


def test_damping_takes_energy_within_the_limits() -> None:
    rig = running(stop="damping")
    rig.supervisor.stop()
    for v in ([1.5, 0.5], [-1.9, 0.9], [0.3, -0.01]):
        effort = rig.supervisor._stop_effort(np.array(v))
        assert (np.abs(effort) <= EFFORT).all()
        assert effort @ v < 0.0
        np.testing.assert_allclose(effort[0] * v[1], effort[1] * v[0], rtol=1e-12)  # along -v: all scaled alike


def test_damping_is_minus_D_v_within_small_limits_too_and_none_where_there_is_no_motor() -> None:
    """D is 20 N m s/rad; a limit of 0.5 N m binds the first of two and scales both; of a limit of 0 nothing acts."""
    rig = running(stop="damping")
    rig.supervisor.stop()
    assert rig.supervisor._stop_effort(np.array([0.1, -0.05])).tolist() == [-2.0, 1.0]
    weak = Rig(stop="damping", effort_limit=np.array([0.5, 5.0]))
    weak.supervisor.stop()
    assert weak.supervisor._stop_effort(np.array([0.1, -0.05])) == pytest.approx([-0.5, 0.25])
    unpowered = Rig(stop="damping", effort_limit=np.array([0.0, 5.0]))
    unpowered.supervisor.stop()
    assert unpowered.supervisor._stop_effort(np.array([9.0, -0.05])).tolist() == [0.0, 1.0]


def test_a_servo_that_says_no_number_gives_no_effort() -> None:
    """And says that it is not what was asked for; an effort that is NaN would be one for ever."""
    rig, servo_effort = Rig(), np.array([0.5, 0.25])
    rig.supervisor.interfaces, rig.supervisor.servo = ("position",), lambda set_point, q, v: servo_effort
    for _ in range(40):
        assert rig.offer((0.0, 0.0), interface="position", position=[0.0, 0.0])
        rig.turn()
    assert (rig.supervisor.mode, rig.efforts[-1].tolist()) == ("active", [0.5, 0.25])
    servo_effort[0] = np.nan
    for _ in range(40):
        assert rig.offer((0.0, 0.0), interface="position", position=[0.0, 0.0])
        rig.turn()
    assert rig.efforts[-1].tolist() == [0.0, 0.25]
    assert rig.supervisor.saturated.tolist() == [40, 0]


def test_damping_that_is_no_number_is_the_brakes() -> None:
    rig = running(stop="damping")
    rig.supervisor.damping = lambda: np.full((2, 2), math.nan)
    rig.supervisor.stop()
    effort, brakes = rig.supervisor.cycle(rig.now_s, rig.v)
    assert brakes
    assert np.isfinite(effort).all()


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"hold_s": 0.0005}, ["hold_s", "0.0005", "0.001"]),
        ({"hold_s": math.inf}, ["hold_s is inf: expected"]),
        ({"cycle_s": 0.0}, ["0", "least", "cycle"]),
        ({"hold_s": 0.021}, ["hold_s", "0.021", "20", "0.02"]),
        ({"hold_s": 0.201, "control_s": 0.01}, ["hold_s", "0.201", "20", "0.2"]),
        ({"hold_s": 20.0, "control_s": 1.01}, ["1.01", "1", "control", "cycle"]),
        ({"hold_s": 20.0, "control_s": math.nan}, ["nan", "1"]),
        ({"effort_rate": np.array([1.0])}, ["effort_rate is"]),
        ({"velocity_limit": np.array([1.0, math.nan])}, ["velocity_limit is"]),
        ({"effort_limit": np.array([-1.0, 1.0])}, ["effort_limit is"]),
    ],
)
def test_settings_out_of_their_range(changes: dict, values: list[str]) -> None:
    with pytest.raises(InvalidArgumentError, match=naming(*values)):
        Rig(**changes)


def test_damping_needs_damping() -> None:
    settings = Rig(stop="damping").supervisor.settings
    with pytest.raises(InvalidArgumentError, match="a stop by damping needs the damping"):
        SafetySupervisor(settings, NAMES, 7, "f00")


def test_cycles_in_which_the_rate_holds_an_effort_back_are_counted() -> None:
    """From 0 to 2 N m at 0.4 a cycle: five cycles, the last of which gets there."""
    rig = running()
    assert rig.supervisor.held_back.tolist() == rig.supervisor.saturated.tolist() == [0, 0]
    assert rig.offer((0.0, 0.0))
    rig.turn()
    slowed = rig.supervisor.counters.slowed
    assert rig.offer((2.0, 0.0))
    rig.turn(8)
    assert rig.supervisor.counters.slowed - slowed == 4
    assert rig.supervisor.held_back.tolist() == [4, 0]
    assert rig.efforts[-1][0] == 2.0


def test_what_a_stranger_writes_is_not_kept_at_length() -> None:
    rig = running()
    assert not rig.offer(fingerprint="x" * 100_000)
    assert rig.supervisor.refusal is not None
    assert len(rig.supervisor.refusal.sentence) < 200
    with pytest.raises(InvalidArgumentError, match=naming("JointCommand", "1048577 bytes", "1048576")):
        decode(JointCommand, b"x" * (2**20 + 1))


def test_a_command_of_another_version_is_none() -> None:
    command = Rig().command()
    assert decode(JointCommand, encode(command)) == command
    with pytest.raises(InvalidArgumentError, match=naming("JointCommand", "version", "1", "2")):
        decode(JointCommand, encode(Rig().command(v=1)))


any_float = st.floats(allow_nan=True, allow_infinity=True) | st.floats(-20.0, 20.0)
changes = st.fixed_dictionaries(
    {},
    optional={
        "effort": st.lists(any_float, min_size=2, max_size=2) | st.lists(any_float, max_size=3),
        "state_seq": st.integers(-(2**63), 2**64 - 1) | st.integers(0, 60),
        "epoch": st.integers(-1, 4),
        "fingerprint": st.sampled_from(["f00", "f01", ""]),
        "session": st.sampled_from([7, 8]),
        "controller": st.sampled_from([1, 2]),
        "name": st.sampled_from([("a", "b"), ("b", "a"), ("a",), ("a", "a")]),
        "arm": st.booleans(),
        "release": st.booleans(),
    },
)
right = st.builds(lambda effort: {"effort": list(effort)}, st.tuples(st.floats(-12.0, 12.0), st.floats(-12.0, 12.0)))
velocity = st.none() | st.tuples(*[st.floats(-3.0, 3.0) | st.sampled_from([math.nan, math.inf])] * 2)
steps = st.lists(
    st.tuples(st.lists(right | changes, max_size=2), st.integers(1, 3) | st.just(CYCLES + 1), velocity), max_size=40
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps, st.sampled_from(["brake", "damping", "zero"]), st.sampled_from(["clip", "stop"]))
def test_limits_and_stops_hold_under_any_commands(steps: list, policy: str, limit_policy: str) -> None:
    """Whatever comes, and whatever is measured: efforts, their rates, what ends a stop, how long an effort is held."""
    rig = Rig(stop=policy, beyond_limits=limit_policy)
    supervisor = rig.supervisor
    held_cycles = 0
    for commands, cycles, speeds in steps:
        for fields in commands:
            mode_before, epoch = supervisor.mode, supervisor.epoch
            command = rig.command(**fields)
            accepted = supervisor.offer(command, rig.now_s, rig.v)
            if accepted:
                held_cycles = 0
                assert (command.session, command.fingerprint, sorted(command.name)) == (7, "f00", ["a", "b"])
                assert command.epoch == epoch
                assert 0 <= command.state_seq <= rig.count
                assert np.isfinite(command.effort).all()
            if mode_before in ("braked", "stopped") and supervisor.mode != mode_before:
                assert accepted
                assert command.arm
                assert not command.release
                assert supervisor.mode == "arming"
                assert (np.abs(rig.v) <= REARM).all()
        for _ in range(cycles):
            if speeds is not None:
                rig.v = np.array(speeds)
            mode_before = supervisor.mode
            rig.turn()
            held_cycles += 1
            speeds = None
            if not np.isfinite(rig.v).all():
                rig.v = np.zeros(2)
            assert supervisor.mode == mode_before or (mode_before, supervisor.mode) in {
                ("arming", "active"), ("arming", "stopped"), ("active", "stopped"),
            }  # fmt: skip
            assert supervisor.mode == "stopped" or held_cycles <= CYCLES or mode_before == "braked"
            assert supervisor.brakes or supervisor.mode == "active" or policy != "brake"
    efforts = np.array(rig.efforts)
    assert np.isfinite(efforts).all()
    assert (np.abs(efforts) <= EFFORT).all()
    assert (np.abs(np.diff(efforts, axis=0)) <= RATE * CYCLE_S * (1.0 + 1e-12)).all()
    assert set(supervisor.counters.refused) == set(REFUSALS)
    assert set(supervisor.counters.stops) == set(CAUSES[2:])
