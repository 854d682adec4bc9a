"""The store and the report, from messages made here: figures are checked against ones worked out by hand."""

import base64
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dyn_service.control.trajectory import PointToPoint
from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.launch.planner import LaunchPlan
from dyn_service.graph.launch.report import SCHEMA, _cpu, finite, write_report
from dyn_service.graph.launch.supervisor import Outcome
from dyn_service.graph.middleware.telemetry import (
    Facts,
    Fault,
    Ready,
    Recording,
    Rows,
    Stats,
    TelemetryStore,
    decode,
    rows_of,
)
from dyn_service.graph.nodes.plant.report import (
    Part,
    effort_cards,
    motion_of,
    parts_of,
    tracking_cards,
    tracking_section,
)
from dyn_service.graph.report import page
from dyn_service.graph.report.charts import ROUNDING, Chart, Line, envelope, quantiles, resumptions, with_gaps
from tests.trees import configuration

JOINTS = ["lift", "turn"]
AT = configuration(JOINTS, ["prismatic", "revolute"])
MOTION = PointToPoint(np.zeros(2), np.zeros(2), np.array([[1.0, -2.0]]), move_s=1.0, dwell_s=1.0)
OFFSET = np.array([3e-3, -4e-3])
"""What the recorded plant is away from its reference."""


def rows(node: str, channel: str, columns: list[str], table: np.ndarray) -> Rows:
    return Rows(node, 1, channel, columns, np.ascontiguousarray(table, dtype="<f8").tobytes())


@pytest.fixture
def store() -> TelemetryStore:
    """A run of 3 s: braked for 1 s, then on a reference that began at 1 s, off by OFFSET."""
    store = TelemetryStore()
    store.take(Ready("plant", 1))
    store.take(
        Facts("plant", 1, {"role": "plant", "robot": "crane", "fingerprint": "f00", "joints": JOINTS, "session": 9,
                           "configuration": AT.to_wire(), "effort_limit": [10.0, math.inf]})
    )  # fmt: skip
    store.take(Facts("controller", 2, {"role": "controller", "deadline_s": 0.002, "rate_hz": 500.0}))
    reference = {"session": 9, "begin_s": 1.0, "joints": JOINTS[::-1], "motion": MOTION.to_wire()}
    store.take(Facts("controller", 2, {"reference": reference}))
    t = np.arange(0.0, 3.0, 0.001)
    q = MOTION.sample(t - 1.0).q[:, ::-1] - OFFSET
    mode = (t >= 1.0 - 1e-9).astype(float)
    table = np.column_stack([t, np.full_like(t, 9.0), mode, q, 0.0 * q, np.cos(t), 20.0 * np.sin(t)])
    columns = ["t", "session", "mode", *(f"{kind}.{name}" for kind in ("q", "v", "tau") for name in JOINTS)]
    for part in np.array_split(table, 7):
        store.take(rows("plant", "plant", columns, part))
    round_trips_us = np.concatenate([np.full(989, 100.0), np.full(10, 200.0), [5000.0]])
    requests = np.column_stack([np.linspace(0.0, 3.0, 1000), np.zeros(1000), round_trips_us, round_trips_us > 2000.0])
    store.take(rows("controller", "requests", ["t", "kind", "round_trip_us", "missed"], requests))
    loads = np.column_stack([t[::40], np.full(75, 50.0), 1e-5 + 0.0 * t[::40], np.zeros((75, 2))])
    store.take(rows("controller", "loads", ["t", "force.lift", "force.turn", "torque.lift", "torque.turn"], loads))
    for pid, count in ((2, 700), (3, 302)):  # the controller was started twice
        store.take(Stats("controller", pid, {"sent": count - 5, "answered": 1, "lost": 1, "deadline_misses": 0}))
        store.take(Stats("controller", pid, {"sent": count, "answered": count - 1, "lost": 1, "deadline_misses": 1}))
    stopped = {"stops": 3, "stops_missed": 2, "stops_velocity": 1, "armed": 4}
    refusals = {"refused": 7, "refused_ahead": 5, "refused_epoch": 2, "last_refusal": "a command was refused: why"}
    store.take(Stats("plant", 1, {"steps": 3000, "overruns": 2, **stopped, **refusals}))
    return store


def test_report_from_a_recorded_run(store: TelemetryStore, tmp_path: Path) -> None:
    plan = LaunchPlan(tmp_path / "crane.launch.yaml", {"rate": "500"}, ())
    summary = write_report(tmp_path / "out", plan, store, Outcome("3 s are over", ["a fault"], [], 3.0))
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert report["schema"] == SCHEMA
    assert report["robot"] == {"name": "crane", "fingerprint": "f00", "joints": JOINTS}
    assert report["launch"] == {"file": "crane.launch.yaml", "arguments": {"rate": "500"}}
    assert report["outcome"].items() >= {
        "exit_code": 1, "clean": False, "reason": "3 s are over", "faults": ["a fault"],
    }.items()  # fmt: skip
    assert report["duration_s"] == 3.0
    requests = report["requests"]
    assert (requests["sent"], requests["answered"], requests["lost"], requests["deadline_misses"]) == (1002, 1000, 2, 2)
    trips = requests["update_us"]
    assert (trips["count"], trips["p50"], trips["p99"], trips["max"]) == (1000, 100.0, 200.0, 5000.0)
    assert trips["p99_9"] == pytest.approx(204.8)
    tracking = report["tracking"]
    assert tracking["samples"] == 2000
    assert [joint["name"] for joint in tracking["joints"]] == JOINTS
    assert [joint["unit"] for joint in tracking["joints"]] == ["m", "rad"]
    np.testing.assert_allclose([joint["rms"] for joint in tracking["joints"]], [3e-3, 4e-3], rtol=1e-9)
    assert tracking["rms"] == pytest.approx(math.sqrt(12.5) * 1e-3)
    assert tracking["rms_by_unit"] == {"m": pytest.approx(3e-3), "rad": pytest.approx(4e-3)}
    assert tracking["max"] == pytest.approx(4e-3)
    assert report["loads"]["joints"][0] == {"name": "lift", "force_max_n": 50.0, "torque_max_nm": 0.0}
    plant = report["plant"]
    assert (plant["steps"], plant["stops"], plant["causes"]) == (3000, 3, {"missed": 2, "velocity": 1})
    assert (plant["refused"], plant["refusals"]) == (7, {"ahead": 5, "epoch": 2})
    assert plant["last_refusal"] == "a command was refused: why"
    assert "safe stops: 3 (2 missed, 1 velocity), armed 4 times" in summary
    assert "refused commands: 7 (5 for a state not yet published, 2 for a state before the last stop)" in summary
    assert {"dyn_service", "python", "numpy", "pyzmq"} <= set(report["versions"])
    assert any("1002 sent, 1000 answered, 2 lost" in line for line in summary)
    assert any("rms 3.54e-03, max 4.00e-03 (turn, rad)" in line for line in summary)


def test_recordings_are_kept(store: TelemetryStore, tmp_path: Path) -> None:
    write_report(tmp_path, LaunchPlan(tmp_path / "c.yaml", {}, ()), store, Outcome())
    with np.load(tmp_path / "recording.npz") as arrays:
        assert arrays["plant.plant"].shape == (3000, 9)
        assert arrays["plant.plant.columns"].tolist()[:4] == ["t", "session", "mode", "q.lift"]


def test_report_of_a_launch_without_our_nodes(tmp_path: Path) -> None:
    assert (
        write_report(tmp_path, LaunchPlan(tmp_path / "x.launch.yaml", {}, ()), TelemetryStore(), Outcome("done")) == []
    )
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["robot"]["name"] is None
    assert "tracking" not in report
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.html", "report.json"]


def test_reference_is_cut_where_the_next_one_begins(store: TelemetryStore) -> None:
    constant = PointToPoint(np.array([-1.0, 0.5]), np.zeros(2), np.array([[-1.0, 0.5]]), 1.0, 0.0)
    second_reference = {"session": 9, "begin_s": 2.5, "joints": JOINTS, "motion": constant.to_wire()}
    store.take(Facts("controller", 3, {"reference": second_reference}))
    motion = motion_of(store.nodes["plant"], store)
    assert motion is not None
    assert motion.reference[2499].tolist() == MOTION.sample(1.499).q[::-1].tolist()
    assert motion.reference[2500].tolist() == [-1.0, 0.5]


SEVERAL = configuration(["hull", "lift", "ball", "base"], ["floating", "prismatic", "spherical", "planar"])


@pytest.fixture
def flying() -> TelemetryStore:
    """2 s of a robot of such joints, off its reference by 1e-3 along each velocity; the controller orders its joints
    otherwise and writes a quaternion with the other sign, and an angle a turn further on.
    """
    order = ["base", "ball", "lift", "hull"]
    joints, in_q, _ = SEVERAL.chosen(order)
    start = joints.integrate(joints.neutral, np.linspace(0.1, 0.5, joints.nv))
    point = joints.integrate(start, np.linspace(0.4, -0.4, joints.nv))
    point[2] += 2.0 * np.pi
    point[3:7] *= -1.0
    motion = PointToPoint(start, np.zeros(joints.nv), np.array([point, start]), 0.8, 0.2, joints)
    store = TelemetryStore()
    configuration = SEVERAL.to_wire()
    store.take(Facts("plant", 1, {"role": "plant", "robot": "flyer", "joints": list(SEVERAL.names), "session": 9,
                                 "configuration": configuration, "effort_limit": [math.inf] * 13}))  # fmt: skip
    store.take(Facts("controller", 2, {"role": "controller"}))
    reference = {"session": 9, "begin_s": 0.0, "joints": order, "motion": motion.to_wire()}
    store.take(Facts("controller", 2, {"reference": reference}))
    t = np.arange(0.0, 2.0, 0.001)
    q = np.empty((len(t), SEVERAL.nq))
    q[:, in_q] = joints.integrate(motion.sample(t).q, np.full(13, -1e-3))
    v = np.tile(np.arange(13.0), (len(t), 1))
    table = np.column_stack([t, np.full_like(t, 9.0), np.ones_like(t), q, 0.0 * v, v * np.sin(6.0 * t)[:, None]])
    columns = ["t", "session", "mode", *(f"q.{name}" for name in SEVERAL.position_names)]
    columns += [f"{kind}.{name}" for kind in ("v", "tau") for name in SEVERAL.velocity_names]
    store.take(rows("plant", "plant", columns, table))
    return store


def test_errors_of_joints_with_several_ways_to_move(flying: TelemetryStore) -> None:
    section = tracking_section(flying.nodes["plant"], flying)
    assert section is not None
    joints = section.content["joints"]
    assert [joint["name"] for joint in joints] == list(SEVERAL.velocity_names)
    assert "".join(joint["unit"][0] for joint in joints) == "mmmrrr" + "m" + "rrr" + "mmr"
    np.testing.assert_allclose([joint["rms"] for joint in joints], 1e-3, rtol=1e-6)
    assert section.content["rms_by_unit"] == {"m": pytest.approx(1e-3), "rad": pytest.approx(1e-3)}


def test_charts_of_rounding_errors_are_flat(flying: TelemetryStore) -> None:
    """An error of 1e-17 does not fill its axis, and is not drawn in nanometres."""
    motion = motion_of(flying.nodes["plant"], flying)
    assert motion is not None
    for card in tracking_cards(replace(motion, error=1e-14 * motion.error)):
        assert re.fullmatch(r"error \[(m|rad)\]", card.charts[1].label)
        assert {chart.least for chart in card.charts} == {ROUNDING}


def test_cpu_times_of_runs_are_summed() -> None:
    store = TelemetryStore()
    for pid, cpu_s in ((1, 2.0), (2, 3.0)):
        store.take(Stats("plant", pid, {"cpu_s": cpu_s, "lived_s": 10.0}))
    store.take(Stats("plant", 3, {"steps": 7}))  # killed: it tells no CPU time
    assert _cpu(store.nodes["plant"]) == {"cpu_s": 5.0, "cpu_share": 0.25}
    assert _cpu(None) == {"cpu_s": None, "cpu_share": None}


def test_references_are_shown_beside_what_was_measured(flying: TelemetryStore) -> None:
    """A quaternion's sign and full turns, in which they may differ and mean the same, are those of the measured one."""
    recording = flying.nodes["plant"].recordings["plant"]
    recording.table[500:, 3 + 3 : 3 + 7] *= -1.0  # the plant's hull
    recording.table[:, 3 + 14] -= 4.0 * np.pi  # the plant's base
    motion = motion_of(flying.nodes["plant"], flying)
    assert motion is not None
    np.testing.assert_allclose(motion.error, 1e-3, rtol=1e-6)
    assert np.abs(motion.reference - motion.q).max() < 3e-3


def test_translations_and_rotations_have_panels_of_their_own(flying: TelemetryStore) -> None:
    parts = parts_of(SEVERAL)
    assert [(part.title, part.position, part.error_unit, part.effort_unit) for part in parts] == [
        ("hull, translation", "position [m]", "m", "N"),
        ("hull, rotation", "quaternion", "rad", "N m"),
        ("lift", "position [m]", "m", "N"),
        ("ball, rotation", "quaternion", "rad", "N m"),
        ("base, translation", "position [m]", "m", "N"),
        ("base, rotation", "position [rad]", "rad", "N m"),
    ]
    assert parts[1] == Part(
        "hull, rotation",
        "quaternion",
        "rad",
        "N m",
        (3, 4, 5, 6),
        (3, 4, 5),
        ("qx", "qy", "qz", "qw"),
        ("wx", "wy", "wz"),
    )
    assert [n for part in parts for n in part.in_q] == list(range(SEVERAL.nq))
    assert [n for part in parts for n in part.in_v] == list(range(SEVERAL.nv))
    motion = motion_of(flying.nodes["plant"], flying)
    assert motion is not None
    tracking, efforts = tracking_cards(motion), effort_cards(motion)
    assert [card.title for card in tracking] == [card.title for card in efforts] == [part.title for part in parts]
    assert tracking[0].note == "error rms 1 mm"
    assert efforts[0].note == "peak 2 N"
    upper, lower = tracking[1].charts
    assert (upper.label, lower.label) == ("quaternion", "error [mrad]")
    assert [line.label for line in upper.lines][::2] == [f"reference q{axis}" for axis in "xyzw"]
    assert [line.label for line in upper.lines][1::2] == [f"measured q{axis}" for axis in "xyzw"]
    assert [line.label for line in lower.lines] == ["error x", "error y", "error z"]
    assert len({line.role for line in lower.lines}) == 3
    assert [line.label for line in tracking[2].charts[1].lines] == ["error"]
    assert [line.label for line in efforts[0].charts[0].lines] == ["effort x", "effort y", "effort z"]


def test_recording_is_bounded_and_spans_the_run() -> None:
    recording = Recording(["t", "x"], max_bytes=16 * 1000)
    for begin in range(0, 10_000, 37):
        t = np.arange(begin, min(begin + 37, 10_000), dtype=float)
        recording.extend(np.column_stack([t, t]))
    times = recording.column("t")
    assert recording.seen == 10_000
    assert recording.stride == 16
    assert times.tolist() == list(range(0, 10_000, 16))


def test_times_of_a_restarted_clock_increase(store: TelemetryStore) -> None:
    columns = ["t", "session", "mode", *(f"{kind}.{name}" for kind in ("q", "v", "tau") for name in JOINTS)]
    store.take(rows("plant", "plant", columns, np.array([[0.0, 10.0, 0.0] + [0.0] * 6, [0.5, 10.0, 0.0] + [0.0] * 6])))
    motion = motion_of(store.nodes["plant"], store)
    assert motion is not None
    assert np.all(np.diff(motion.t) >= 0.0)
    assert motion.t[-1] == pytest.approx(2.999 + 0.5)


def test_messages_that_are_none() -> None:
    store = TelemetryStore()
    store.take(Rows("n", 1, "c", ["a", "b"], b"\0" * 17))
    store.take(Fault("n", 1, "broken"))
    assert store.malformed == 1
    assert store.nodes["n"].faults == ["broken"]
    for frame in (b"", b"\x80", b"\x81\xa4kind\xa4what"):
        with pytest.raises(InvalidArgumentError, match="not a telemetry message"):
            decode(frame)
    with pytest.raises(InvalidArgumentError, match="17 bytes are not rows of 16"):
        rows_of(Rows("n", 1, "c", ["a", "b"], b"\0" * 17))


def test_a_long_line_is_broken_at_its_gap_alone() -> None:
    """2,000 of 10,000 points are kept, many of them further apart than the rows."""
    t = np.arange(10_000.0)
    t[6_000:] += 500.0
    wave = np.random.default_rng(0).normal(size=len(t))
    values = page.packed(Chart(t, [Line("x", wave)], "x [rad]"), "", 2_000)["lines"][0]["y"]
    assert np.isnan(np.frombuffer(base64.b64decode(values), "<f4")).sum() == 1


def test_lines_of_plots() -> None:
    t = np.array([0.0, 1.0, 2.0, 9.0, 10.0])
    t, x = with_gaps(t, np.arange(5.0), resumptions(t))
    np.testing.assert_array_equal(t, [0.0, 1.0, 2.0, np.nan, 9.0, 10.0])
    np.testing.assert_array_equal(x, [0.0, 1.0, 2.0, np.nan, 3.0, 4.0])
    fast = np.array([0.0, 0.001, 0.002, 0.003, 0.053, 0.054, 0.124])  # a busy machine skips 50 ms, no row lacks
    t, _ = with_gaps(fast, np.arange(7.0), resumptions(fast))
    np.testing.assert_array_equal(t, [*fast[:6], np.nan, fast[6]])
    t = np.arange(10_000.0)
    spike = np.where(t == 7777.0, 5.0, 0.0)
    kept_t, kept_values = envelope(t, spike, 200)
    assert len(kept_values) <= 200
    assert kept_t[np.argmax(kept_values)] == 7777.0
    two = np.column_stack([spike, -np.roll(spike, 3)])
    two[:100, 1] = np.nan
    kept_t, kept_values = envelope(t, two, 200)
    assert len(kept_values) <= 200
    assert (kept_t[np.argmax(kept_values[:, 0])], kept_t[np.nanargmin(kept_values[:, 1])]) == (7777.0, 7780.0)
    assert np.isnan(kept_values[0, 1])
    assert len(envelope(t, np.random.default_rng(0).normal(size=(len(t), 2)), 200)[0]) <= 200
    assert quantiles(np.empty(0))["count"] == 0
    assert finite({"a": [1.0, math.nan], "b": (math.inf, 2)}) == {"a": [1.0, None], "b": [None, 2]}
