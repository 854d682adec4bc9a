"""Recordings in wrong units, with jumps, or of other rows than they seem: each is refused with its cause."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service import Overlay, Payload, Robot
from dyn_service.errors import DynError, InvalidArgumentError, NotFoundError
from dyn_service.identification import PayloadEstimator, Recording, filter_motion, identify, identify_payload
from dyn_service.identification.recordings import read_recording

LINK = """<link name="{}"><inertial><mass value="2"/><origin xyz="0 0.1 -0.3"/>
<inertia ixx="0.05" ixy="0" ixz="0" iyy="0.05" iyz="0" izz="0.05"/></inertial></link>"""
JOINTS = ("turn", "bend")
T = np.arange(0.0, 8.0, 0.01)
BALL = Payload("forearm", 1.0, (0.0, 0.0, -0.2))


@cache
def arm() -> Robot:
    """A continuous joint, then a joint with limits."""
    limits = '<axis xyz="1 0 0"/><limit lower="-2" upper="2" velocity="8" effort="90"/>'
    return Robot.from_text(
        '<robot name="arm"><link name="base"/>'
        + LINK.format("upper")
        + LINK.format("forearm")
        + f'<joint name="turn" type="continuous"><parent link="base"/><child link="upper"/>{limits}</joint>'
        + '<joint name="bend" type="revolute"><parent link="upper"/><child link="forearm"/>'
        + f'<origin xyz="0 0 -0.5"/>{limits}</joint></robot>'
    )


@cache
def motion() -> dict[str, Any]:
    """The first joint turns several times; efforts are those of the arm with a ball."""
    phase = T[:, None] * [2.0, 3.1]
    q = np.column_stack([2.5 * T, np.zeros(len(T))]) + np.sin(phase)
    v = np.array([2.5, 0.0]) + [2.0, 3.1] * np.cos(phase)
    a = -np.square([2.0, 3.1]) * np.sin(phase)
    return {"t": T, "q": q, "v": v, "tau": arm().inverse_dynamics(q, v, a, overlay=Overlay(BALL))}


BENT = int(np.argmax(np.abs(np.sin(3.1 * T))))


def recording(joints: tuple[str, ...] = JOINTS, **changes: Any) -> Recording:
    arrays = {**motion(), "v": None, **changes}
    return Recording(arrays["t"], arrays["q"], arrays["tau"], joints, arrays["v"])


def wrapped() -> Any:
    q = motion()["q"].copy()
    q[:, 0] = np.mod(q[:, 0], 2.0 * np.pi)
    return q


def test_wrapped_angles_of_a_continuous_joint_are_unwrapped_with_a_note() -> None:
    """The unwrapped angles differ from the original by rounding alone, so the estimates agree to 1e-6."""
    noise = 0.01 * np.random.default_rng(0).normal(size=(len(T), 2))
    efforts = motion()["tau"] + noise
    whole, unwrapped = (identify(arm(), recording(q=q, tau=efforts)) for q in (motion()["q"], wrapped()))
    np.testing.assert_allclose(unwrapped.estimate, whole.estimate, atol=1e-6)
    assert whole.notes == ()
    assert "joint 'turn' is continuous" in unwrapped.notes[0]
    assert unwrapped.notes[0] in str(unwrapped)
    for source in ({**motion(), "q": wrapped()}, recording(q=wrapped())):
        estimate = identify_payload(arm(), source, "forearm")
        assert estimate.mass == pytest.approx(1.0, abs=0.01)
        assert estimate.notes == unwrapped.notes
        assert unwrapped.notes[0] in str(estimate)


def jump() -> Any:
    q = motion()["q"].copy()
    q[400:, 1] += 1.5
    return q


def ranged_wrap() -> Any:
    """An encoder with less range than its joint: a step within the limits."""
    q = motion()["q"].copy()
    q[:, 1] = np.where(T < 4.0, -1.9, 1.9)
    return q


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"q": jump()}, ["'bend'", "rows 399 and 400 (t = 4 s)", "1.5", "velocity limit"]),
        ({"q": ranged_wrap()}, ["'bend'", "jumps by 3.8"]),
        ({"q": np.rad2deg(motion()["q"]) * [1.0, 0.0]}, ["'turn'", "rad/s", "are these degrees?"]),
        ({"q": np.rad2deg(wrapped()) * [1.0, 0.0]}, ["'turn'", "are these degrees?"]),
        ({"q": motion()["q"] + np.outer(30.0 * T, [1.0, 0.0])}, ["'turn' moves with 3", "3 times the 8"]),
        (
            {"q": np.rad2deg(motion()["q"]) * [0.0, 1.0]},
            [f"'bend': position -57.2958 in row {BENT} is outside its limits, -2 to 2 rad", "degrees?"],
        ),
        ({"t": 1e3 * T}, ["10 s", "at most 0.25 s", "are these milliseconds?"]),
    ],
)
def test_wrong_units_and_jumps(changes: dict[str, Any], words: list[str]) -> None:
    arrays = {**motion(), **changes}
    calls = [
        lambda: identify(arm(), recording(**changes)),
        lambda: identify_payload(arm(), arrays, "forearm"),
        lambda: identify_payload(arm(), recording(**changes), "forearm"),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError) as caught:
            call()
        assert all(word in str(caught.value) for word in words), str(caught.value)


def test_rows_that_move_are_no_poses() -> None:
    arrays = motion()
    without_v = {name: arrays[name] for name in ("t", "q", "tau")}
    assert identify_payload(arm(), without_v, "forearm").mass == pytest.approx(1.0, abs=0.01)
    with pytest.raises(InvalidArgumentError, match=r"row 0 is no pose at rest: 'turn' has the velocity 4\.5"):
        identify_payload(arm(), {name: arrays[name] for name in ("q", "v", "tau")}, "forearm")
    with pytest.raises(InvalidArgumentError, match="degrees"):
        identify_payload(arm(), {"q": 57.3 * arrays["q"], "tau": arrays["tau"]}, "forearm")


def test_payload_with_a_joint_without_effort_or_at_rest() -> None:
    """Filtered positions, so that velocities are derived."""
    efforts = motion()["tau"].copy()
    efforts[:, 0] = np.nan
    estimate = identify_payload(arm(), recording(tau=efforts), "forearm")
    # One axis shows the first moment alone; the filter of positions changes it by less than a hundredth.
    assert estimate.mass * estimate.com[2] == pytest.approx(-0.2, abs=2e-3)
    q = motion()["q"] * [0.0, 1.0] + [0.7, 0.0]
    v, a = motion()["v"] * [0.0, 1.0], -np.square([0.0, 3.1]) * np.sin(T[:, None] * [0.0, 3.1])
    tau = arm().inverse_dynamics(q, v, a, overlay=Overlay(BALL))
    bend = Recording(T, q[:, 1:], tau[:, 1:], ("bend",))
    estimate = identify_payload(arm(), bend, "forearm", rest_positions={"turn": 0.7})
    assert estimate.mass * estimate.com[2] == pytest.approx(-0.2, abs=2e-3)


@pytest.mark.parametrize(
    ("rest", "error", "words"),
    [
        ({"zz": 0.0}, NotFoundError, "rest_positions: robot 'arm' has no joint 'zz'"),
        ({"turn": "a"}, InvalidArgumentError, "joint 'turn' must be a finite number, found 'a'"),
        ({"turn": np.nan}, InvalidArgumentError, "found nan"),
    ],
)
def test_rest_positions(rest: dict[str, Any], error: type[DynError], words: str) -> None:
    with pytest.raises(error, match=words):
        recording().for_robot(arm(), rest)


@pytest.mark.parametrize("gain", [np.nan, 0, np.inf, "a", None, [1.0]])
def test_gains_are_numbers_other_than_zero(gain: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="gain of joint 'bend' must be a finite number other than 0"):
        recording().with_gains({"turn": 1.0, "bend": gain})


@pytest.mark.parametrize("rows", [0, 1])
def test_too_few_rows(rows: int) -> None:
    short = recording(**{name: array[:rows] for name, array in motion().items()})
    for call in (
        lambda: identify(arm(), short),
        lambda: identify_payload(arm(), short, "forearm"),
        lambda: filter_motion(short),
    ):
        with pytest.raises(InvalidArgumentError, match=f"at least two rows, found {rows}"):
            call()


def test_arguments_of_other_types() -> None:
    with pytest.raises(InvalidArgumentError, match="cutoff_hz must be a number in Hz, found 'a'"):
        identify(arm(), recording(), cutoff_hz="a")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"write \['viscous'\]"):
        identify(arm(), recording(), friction="viscous")
    with pytest.raises(InvalidArgumentError, match=r"real numbers of shape .* found .*complex"):
        recording(q=motion()["q"] + 0j)
    with pytest.raises(InvalidArgumentError, match=r"recording: q must be real numbers, found .*complex"):
        identify_payload(arm(), {**motion(), "q": motion()["q"] + 0j}, "forearm")
    estimator = PayloadEstimator(arm(), "forearm")
    with pytest.raises(InvalidArgumentError, match=r"q must have the shape \(2,\), found \(3,\)"):
        estimator.update(np.zeros(3), np.zeros(2), np.zeros(2), 0.01)


HEADER = "t,q.turn,q.bend,tau.turn,tau.bend"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (HEADER + ",position[turn]\n" + "1,2,3,4,5,6\n", "twice, in the columns 'q.turn' and 'position[turn]'"),
        (HEADER + ",tau.bend\n" + "1,2,3,4,5,6\n", "twice, in the columns 'tau.bend' and 'tau.bend'"),
        (HEADER + ",time\n" + "1,2,3,4,5,6\n", "twice, in the columns 't' and 'time'"),
        (HEADER + "\n1,2,3,4,5\n1,2,3\n1,2,3,4,5\n", "line 3: expected 5 numbers as in the header, found 3"),
        (HEADER + "\n", "no rows of numbers"),
        ((HEADER + ",q.\xfcber\n1,2,3,4,5,6\n").encode("latin-1"), "is not in UTF-8: byte 36 is 0xfc"),
    ],
)
def test_wrong_csv_files(content: str | bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "motion.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidArgumentError) as caught:
        read_recording(file, arm())
    assert words in str(caught.value)


def test_other_files(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InvalidArgumentError, match="is a folder"):
        read_recording(tmp_path / "folder.csv", arm())
    (tmp_path / "marked.csv").write_text(HEADER + "\n0,1,2,3,4\n1,2,3,4,5\n", encoding="utf-8-sig")
    np.testing.assert_array_equal(read_recording(tmp_path / "marked.csv", arm()).t, [0.0, 1.0])
    np.savez(tmp_path / "vector.npz", t=T, q=motion()["q"][:, 1], tau=motion()["tau"][:, 1])
    single = read_recording(tmp_path / "vector.npz", arm(), joints=["bend"], rest_positions={"turn": 0.0})
    np.testing.assert_array_equal(single.q[:, 1], motion()["q"][:, 1])
