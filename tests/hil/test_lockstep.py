"""A plant and its controller in lockstep: equal to the bit, what faults do to it, how parameters reach it."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.hil import (
    Bias,
    Delay,
    HotMotor,
    Jitter,
    Killed,
    Loss,
    Noise,
    NotANumber,
    Reorder,
    SaggingSupply,
    Stale,
    Swapped,
    WornGear,
    WrongPayload,
)
from dyn_service.hil.bench import PlantHandle, RobotCache, Run, Setup, merged, open_bench, run_for
from dyn_service.hil.faults import Fault
from dyn_service.hil.setup import resolve
from dyn_service.support.documents import ConfigurationError
from tests.conftest import ROOT
from tests.phrases import naming, unnamed

ARM = Setup(str(ROOT / "launch" / "ur5e_computed_torque.launch.yaml"), {"robot": str(ROOT / "urdf" / "scara.urdf")})
ELBOW = "outer_joint"


@pytest.fixture(scope="module")
def cache() -> RobotCache:
    return RobotCache()


def run(cache: RobotCache, seconds: float, *faults: Fault, seed: int = 0, **setup) -> Run:
    return run_for(open_bench("lockstep", merged(ARM, setup), cache, faults, seed), seconds, "lockstep", seed, faults)


def test_five_runs_are_equal_to_the_bit(cache: RobotCache) -> None:
    """With chance on both ways; another seed is another run."""
    faults = [
        Noise(1e-5, 1e-4, channel="states"),
        Jitter(0.003),
        Loss(0.05),
        Reorder(0.05),
        Loss(0.02, channel="states"),
    ]
    first, *repeated = (run(cache, 0.2, *faults).record for _ in range(5))
    assert [first.same_as(other) for other in repeated] == [None] * 4
    assert first.same_as(run(cache, 0.2, *faults, seed=1).record) is not None


def test_a_clean_run_tracks(cache: RobotCache) -> None:
    check = run(cache, 0.6).check
    # what is left is the effort that is held through 2 ms: 1e-7 rad; see tests/control/test_computed_torque.py
    check.tracking().below(3e-5)
    check.deadlines().at_most(0)
    check.stops().at_most(0)
    check.count("refused").at_most(0)
    check.delay().at_most(1.001e-3)  # one step of the plant, as in real time
    check.under_command().at_least(0.95)
    check.frozen().below(1e-9)
    for kind in (check.position(), check.velocity(), check.effort()):
        kind.within_limits()


def test_the_record_is_what_the_plant_did(cache: RobotCache) -> None:
    record = run(cache, 0.4).record
    q, v, t = record.groups["position"].values, record.groups["velocity"].values, record.t
    assert t == pytest.approx(1e-3 * np.arange(400))
    # the trapezoid over a step errs by h^3 / 12 of the third derivative, some 1e-8 at these motions
    assert np.abs(np.diff(q, axis=0) - 0.5e-3 * (v[1:] + v[:-1])).max() < 1e-7
    reference, error = record.groups["reference"].values, record.groups["error"].values
    is_known = ~np.isnan(error)
    assert np.array_equal(is_known.all(axis=1), record.under("active"))
    assert np.array_equal(~np.isnan(reference).any(axis=1), record.under("active"))
    assert error[is_known] == pytest.approx((reference - q)[is_known])
    rate = record.groups["reference_velocity"].values
    assert np.nanmax(np.abs(np.diff(reference, axis=0) - 0.5e-3 * (rate[1:] + rate[:-1]))) < 1e-7


def test_a_late_command_is_late_by_as_much(cache: RobotCache) -> None:
    check = run(cache, 0.2, Delay(0.004)).check
    assert check.record.answers.values == pytest.approx(0.005)
    with pytest.raises(AssertionError, match="the latest took 5e-3 s"):
        check.deadlines().at_most(0)


def test_a_wrong_payload_shows_in_the_tracking_alone(cache: RobotCache) -> None:
    check = run(cache, 0.6, WrongPayload("tool0", 2.0, (0.0, 0.0, 0.1))).check
    check.deadlines().at_most(0)
    check.frozen().below(1e-9)
    with pytest.raises(AssertionError, match=naming(re.compile(r"tracking error 0\.\d+ m"), "3e-5 m")):
        check.tracking().below(3e-5)


@pytest.mark.parametrize("payloads", [{"link": "tool0", "mass": 0.5}, [{"link": "tool0", "mass": 0.5}]])
def test_a_wrong_payload_comes_beside_what_the_plant_carries(tmp_path: Path, payloads: object) -> None:
    """For the plant's process, which gets it on its command line, as for the plant in lockstep."""
    overlay = {"payloads": payloads, "gravity": [0.0, 0.0, -9.8]}
    parts = resolve(merged(ARM, {"plant": {"overlay": overlay}}), tmp_path)
    wrong = WrongPayload("tool0", 2.0)
    expected = {**overlay, "payloads": [{"link": "tool0", "mass": 0.5}, wrong.payload]}
    carrying = parts.with_faults([wrong])
    assert carrying.plant_parameters().overlay == expected
    [started] = [process for process in carrying.plan.processes if process.name == carrying.plant.name]
    assert started.command[-2:] == ("-p", f"overlay:={json.dumps({'payloads': expected['payloads']})}")
    assert parts.with_faults([]) is parts


def test_what_the_controller_sees_is_not_where_the_robot_is(cache: RobotCache) -> None:
    record = run(cache, 0.4, Bias(0.01, channel="states", joints=[ELBOW], from_s=0.2)).record
    offset = record.signal("measured", ELBOW).values - record.signal("position", ELBOW).values
    assert offset == pytest.approx(np.where(record.t >= 0.2, 0.01, 0.0), abs=1e-12)


def test_a_frozen_encoder_is_seen(cache: RobotCache) -> None:
    check = run(cache, 0.7, Stale(joints=[ELBOW], from_s=0.3)).check
    with pytest.raises(AssertionError, match=naming(ELBOW, "way of the reference", "(from")):
        check.frozen().below(1e-3)
    assert [verdict.subject for verdict in check.verdicts] == [ELBOW]


def test_a_controller_that_is_killed_is_missed(cache: RobotCache) -> None:
    done = run(cache, 0.6, Killed(from_s=0.3))
    assert done.ended == "controller: it was killed"
    [*_, last] = done.record.changes
    # the last command answers the state at 0.298 s and acts from 0.299 s on, for 20 cycles of 2.5 ms at most
    assert (last.mode, last.cause) == ("stopped", "missed")
    hold_s = last.t - 0.298
    assert 0.0 < hold_s <= 0.0511
    done.check.safe_stop(0.3).below(hold_s + 0.105)  # the brakes take 0.1 s


def test_one_that_comes_back_takes_over_with_rearm_alone(cache: RobotCache) -> None:
    killed = Killed(from_s=0.2, until_s=0.4)
    back = run(cache, 0.7, killed, controller={"rearm": True})
    assert (back.ended, back.record.changes[-1].mode) == ("", "active")
    without_rearm = run(cache, 0.7, killed, controller={"rearm": False})
    assert without_rearm.ended.startswith("controller: the plant is stopped (missed), and rearm is off")
    assert [text for _, text in without_rearm.record.notes] == [
        "controller: it was killed", "controller: it is started again", without_rearm.ended,
    ]  # fmt: skip


def test_each_kill_that_is_over_is_followed_by_a_start(cache: RobotCache) -> None:
    kills = [Killed(from_s=0.1, until_s=0.15), Killed(from_s=0.3, until_s=0.35)]
    bench = open_bench("lockstep", merged(ARM, {"controller": {"rearm": True}}), cache, kills, 0)
    bench.run_until(0.4)
    notes = [(t, text) for t, text in bench.record().notes]
    assert [text for _, text in notes] == ["controller: it was killed", "controller: it is started again"] * 2
    assert [t for t, _ in notes] == pytest.approx([0.1, 0.15, 0.3, 0.35])


def test_a_server_that_is_away_for_a_moment_is_borne(cache: RobotCache) -> None:
    check = run(cache, 0.5, Killed(node="server", from_s=0.3, until_s=0.31)).check
    check.stops().at_most(0)
    with pytest.raises(
        AssertionError, match=naming(re.compile("missed deadlines [45]"), re.compile(r"0\.31"))
    ):  # at 500 Hz
        check.deadlines().at_most(0)


def test_states_that_are_no_numbers_end_the_law_and_release_the_plant(cache: RobotCache) -> None:
    done = run(cache, 0.5, NotANumber(channel="states", joints=[ELBOW], from_s=0.3))
    assert unnamed(done.ended, "'computed_torque'", "nan") == []
    assert (done.record.changes[-1].mode, done.record.changes[-1].cause) == ("braked", "released")
    silent = run(cache, 0.4, Loss(1.0, channel="states", from_s=0.2), controller={"state_timeout_s": 0.1})
    assert silent.ended == "controller: no joint state arrived for 0.1 s"
    # the last came at 0.199 s; more than 0.1 s later it ends
    assert [t for t, _ in silent.record.notes] == pytest.approx([0.3])


def test_swapped_drives_stop_the_robot(cache: RobotCache) -> None:
    check = run(cache, 0.5, Swapped("inner_joint", "roll_joint")).check
    with pytest.raises(AssertionError):
        check.tracking().below(1e-2)


def test_faults_that_come_later(cache: RobotCache) -> None:
    bench = open_bench("lockstep", ARM, cache, (), 0)
    bench.run_until(0.2)
    assert bench.state.mode == "active"
    bench.inject(Loss(1.0))
    bench.run_until(0.4)
    assert (bench.state.mode, bench.state.cause, bench.now_s) == ("stopped", "missed", pytest.approx(0.4))
    with pytest.raises(InvalidArgumentError, match=naming("WrongPayload", "`run`")):
        PlantHandle(bench).inject(WrongPayload("tool0", 1.0))
    with pytest.raises(InvalidArgumentError, match=naming("Stale", "'elbow'")):
        bench.inject(Stale(joints=["elbow"]))


def test_the_test_says_parameters_over_the_files(cache: RobotCache) -> None:
    slow = run(cache, 0.3, controller={"rate_hz": 100.0}, plant={"control_rate_hz": 100.0})
    assert slow.record.control_s == pytest.approx(0.01)
    assert np.diff(slow.record.answers.t) == pytest.approx(0.01)
    rarely = run(cache, 0.1, plant={"state_rate_hz": 250.0})
    assert rarely.record.t == pytest.approx(0.004 * np.arange(25))


def test_the_nearest_word_stands_over_the_others() -> None:
    base = Setup("a", {"x": "1", "y": "1"}, {"rate_hz": 1.0}, {"rearm": True, "rate_hz": 1.0})
    merged_setup = merged(base, {"arguments": {"y": "2"}, "plant": {"brake_s": 1.0}, "controller": {"rate_hz": 2.0}})
    assert (merged_setup.launch, merged_setup.arguments) == ("a", {"x": "1", "y": "2"})
    assert (merged_setup.plant, merged_setup.controller) == (
        {"rate_hz": 1.0, "brake_s": 1.0},
        {"rearm": True, "rate_hz": 2.0},
    )
    assert merged(base, {"launch": "b"}) == dataclasses.replace(base, launch="b")


@pytest.mark.parametrize(
    ("setup", "error", "sentence"),
    [
        ({"plant": {"rate": 1.0}}, ConfigurationError, "test: rate:1: parameter 'rate': unknown key 'rate'"),
        ({"controller": {"rate_hz": "fast"}}, ConfigurationError, "test: rate_hz:.*'rate_hz'"),
        ({"controller": {"robot": "scra"}}, NotFoundError, "the server has no robot 'scra'; it has scara"),
        ({"launch": "nowhere"}, NotFoundError, "nowhere"),
        ({"arguments": {"robott": "x"}}, InvalidArgumentError, "unknown launch argument 'robott'"),
    ],
)
def test_what_does_not_fit_is_said(cache: RobotCache, setup: dict, error: type, sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        run(cache, 0.1, **setup)


def test_a_launch_without_a_plant(cache: RobotCache, tmp_path) -> None:
    path = tmp_path / "server.launch.yaml"
    path.write_text("launch:\n  - node: {pkg: dyn_service, exec: server}\n")
    with pytest.raises(InvalidArgumentError, match=naming("server.launch.yaml", "0 plants")):
        run_for(open_bench("lockstep", Setup(str(path)), cache, (), 0), 0.1, "lockstep", 0, ())


def test_a_robot_whose_file_is_written_anew_is_read_anew(cache: RobotCache, tmp_path) -> None:
    path = tmp_path / "pendulum.urdf"
    path.write_text((ROOT / "urdf" / "pendulum.urdf").read_text())
    arm = dataclasses.replace(ARM, arguments={"robot": str(path)})
    first = run(cache, 0.05, arguments=arm.arguments).log.states[0].fingerprint
    path.write_text(path.read_text().replace('<mass value="', '<mass value="1', 1))
    os.utime(path, (1, 1))
    assert run(cache, 0.05, arguments=arm.arguments).log.states[0].fingerprint != first


MOTORS = """robot: scara
motors:
  inner_joint: {torque_constant: 0.1, gear_ratio: 50, resistance: 2, voltage_limit: 48}
  outer_joint:
    {torque_constant: 0.1, gear_ratio: 50, resistance: 1, thermal_resistance: 2, thermal_time_constant_s: 100,
     temperature_limit_celsius: 120}
"""


@pytest.mark.parametrize("fault", [HotMotor(ELBOW, 200.0), SaggingSupply(0.0, from_s=0.2, until_s=0.3)])
def test_a_fault_of_motors_shows_in_the_efforts_and_the_tracking(
    cache: RobotCache, tmp_path: Path, fault: Fault
) -> None:
    """A winding above its limit has no current; without a supply only the back EMF acts."""
    (tmp_path / "joints.yaml").write_text(MOTORS)
    plant = {"joints": str(tmp_path / "joints.yaml")}
    clean, faulty = (run(cache, 0.4, *faults, plant=plant).check for faults in ((), (fault,)))
    clean.tracking().below(3e-5)
    with pytest.raises(AssertionError, match=naming("tracking error", "3e-5 rad")):
        faulty.tracking().below(3e-5)
    joint, kind = (ELBOW, "heat") if isinstance(fault, HotMotor) else ("inner_joint", "voltage")
    first, last = (round(1e3 * t) for t in (fault.from_s, min(fault.until_s, 0.4)))
    efforts = [check.record.signal("effort", joint).values for check in (clean, faulty)]
    assert np.array_equal(efforts[0][:first], efforts[1][:first])
    assert kind == "voltage" or not np.any(efforts[1])
    assert 0 < faulty.record.counts[f"{kind}_limited.{joint}"] <= last - first
    assert f"{kind}_limited.{joint}" not in clean.record.counts


def test_an_elastic_gear_of_a_launch_shows_at_motor_and_link(cache: RobotCache, tmp_path: Path) -> None:
    """The controller follows with the motor, which its states show; the link lags by the wind-up tau / K, and with a
    worn gear by half of its gap more.
    """
    joints = tmp_path / "joints.yaml"
    joints.write_text(
        f"robot: scara\nmotors:\n  {ELBOW}: {{torque_constant: 0.1, gear_ratio: 50, rotor_inertia: 4.0e-5, "
        "gear_stiffness: 2000, gear_damping: 2}\n"
    )
    launch, robot = Path(ARM.launch).read_text(), ARM.arguments["robot"]
    for place, value in (
        ('{name: robots, value: ["$(var robot)"]}', f'["{joints}"]'),
        ("{name: robot, value: $(var robot)}", joints),
    ):
        assert place in launch
        launch = launch.replace(place, f"{place}\n            - {{name: joints, value: {value}}}")
    (tmp_path / "arm.launch.yaml").write_text(launch)
    setup = {"launch": str(tmp_path / "arm.launch.yaml"), "arguments": {"robot": robot}}
    log, worn = (run(cache, 0.4, *faults, **setup).log for faults in ((), (WornGear(ELBOW, 0.01),)))
    k, wind_ups = log.states[0].name.index(ELBOW), []
    for entries in (log, worn):
        motor = np.array([state.position[k] for state in entries.states])
        effort = np.array([state.effort[k] for state in entries.states])
        link = np.array([q[k] for q, _ in entries.motions])
        wind_ups.append(np.abs(motor - link).max())
    assert 0.0 < wind_ups[0] < np.abs(effort).max() / 2000.0
    assert 0.005 < wind_ups[1] < 0.006
    assert all(np.array_equal(state.position[0], q[0]) for state, (q, _) in zip(log.states, log.motions, strict=True))


def test_faults_of_motors_are_parameters_of_the_plants_process(tmp_path: Path) -> None:
    """Each comes next to those before it, on the command line as for the plant in lockstep."""
    actuators = {"lag_s": 0.01, "supply_sags": [{"share": 0.9}]}
    faults = [SaggingSupply(0.5, from_s=0.2, until_s=1.0), HotMotor(ELBOW, 90.0), SaggingSupply(0.3, from_s=3.0)]
    parts = resolve(merged(ARM, {"plant": {"actuators": actuators}}), tmp_path).with_faults(faults)
    sags = [{"share": 0.9}, {"share": 0.5, "from_s": 0.2, "until_s": 1.0}, {"share": 0.3, "from_s": 3.0}]
    parameters = parts.plant_parameters().actuators
    assert (parameters.lag_s, parameters.winding_celsius) == (0.01, {ELBOW: 90.0})
    assert msgspec.to_builtins(parameters.supply_sags) == sags
    assert parts.plant.command[-2:] == ("-p", f"actuators:={json.dumps({'supply_sags': sags})}")


@pytest.mark.parametrize(
    ("fault", "values"),
    [(HotMotor("inner_joint", 200.0), ["inner_joint", ELBOW]), (HotMotor("elbow", 200.0), ["'elbow'", ELBOW])],
)
def test_a_fault_of_a_motor_without_heat_is_refused(
    cache: RobotCache, tmp_path: Path, fault: Fault, values: list[str]
) -> None:
    (tmp_path / "joints.yaml").write_text(MOTORS)
    with pytest.raises(InvalidArgumentError, match=naming("actuators.backlash", f"'{ELBOW}'", "gear_stiffness")):
        run(cache, 0.1, WornGear(ELBOW, 0.1), plant={"joints": str(tmp_path / "joints.yaml")})
    with pytest.raises(InvalidArgumentError, match=naming("winding_celsius", *values)):
        run(cache, 0.1, fault, plant={"joints": str(tmp_path / "joints.yaml")})
    with pytest.raises(InvalidArgumentError, match=naming("supply_sags", "voltage_limit")):
        run(cache, 0.1, SaggingSupply(0.5))
    with pytest.raises(InvalidArgumentError, match=naming("HotMotor", "omit")):
        HotMotor("elbow", 90.0, from_s=1.0)
