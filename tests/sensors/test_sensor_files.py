"""Sensor files: what they say is what the sensors do, and a fault names file, line and key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dyn_service import Robot, Wrench
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.sensors import Sensors
from dyn_service.sensors.devices import Encoder
from dyn_service.sensors.settings import (
    MAX_SENSORS,
    EncoderSettings,
    Errors,
    ForceTorqueSettings,
    ImuSettings,
    SensorSettings,
    read_settings,
)
from dyn_service.support.documents import ConfigurationError
from tests.conftest import URDF
from tests.phrases import unnamed

EXAMPLE = URDF.parent / "config" / "ur5e_sensors.yaml"


@pytest.fixture(scope="module")
def ur5e() -> Robot:
    return Robot.from_urdf(URDF / "ur5e.urdf")


def test_the_example_is_for_the_robot_beside_it(ur5e: Robot) -> None:
    sensors = Sensors.from_file(ur5e, EXAMPLE)
    assert list(sensors.devices) == ["wrist", "tool", *ur5e.joint_names]
    assert sensors.settings.seed == 1
    assert sensors.settings.force_torque["wrist"].force.range == (500.0, 500.0, 900.0)
    assert sensors.settings.encoders["elbow_joint"].count == pytest.approx(2 * np.pi / (4096 * 101))


def test_a_file_says_what_code_would(ur5e: Robot, tmp_path: Path) -> None:
    path = tmp_path / "sensors.yaml"
    path.write_text(
        "robot: ur5e\nseed: 5\nimus:\n"
        "  tool: {link: tool0, rate_hz: 100, xyz: [0, 0.1, 0], gyroscope: {bias: [1, 2, 3]}}\n"
        "encoders:\n  elbow_joint: {step: 1e-3, rate_hz: 10}\n"
    )
    settings = SensorSettings(
        robot="ur5e",
        seed=5,
        imus={
            "tool": ImuSettings(
                link="tool0", rate_hz=100.0, xyz=(0.0, 0.1, 0.0), gyroscope=Errors(bias=(1.0, 2.0, 3.0))
            )
        },
        encoders={"elbow_joint": EncoderSettings(step=1e-3, rate_hz=10.0)},
    )
    assert read_settings(path)[0] == settings
    q, rest = ur5e.neutral(), np.zeros(6)
    sensors, other_sensors = Sensors.from_file(ur5e, path), Sensors(ur5e, settings)
    for name, reading in sensors.read(0.0, q, rest, rest).items():
        assert reading.value.tobytes() == other_sensors.read(0.0, q, rest, rest)[name].value.tobytes()
    assert sensors.read(0.0, q, rest, rest)["tool"].value[3:] == pytest.approx([1.0, 2.0, 3.0])


def test_each_reads_its_own_joint_link_and_place(ur5e: Robot) -> None:
    settings = SensorSettings(
        robot="ur5e",
        imus={"tool": ImuSettings(link="forearm_link", rate_hz=1e3, xyz=(0.1, 0.2, 0.3), rpy=(0.4, 0.5, 0.6))},
        encoders={"wrist_2_joint": EncoderSettings(step=1e-9, rate_hz=1e3)},
        force_torque=read_settings(EXAMPLE)[0].force_torque,
    )
    rng = np.random.default_rng(0)
    q, v, a = rng.normal(size=(3, 6))
    g = (0.0, 1.0, -9.0)
    sensors = Sensors(ur5e, settings)
    assert isinstance(sensors.devices["wrist_2_joint"], Encoder)
    sensors.devices["wrist"].reset(0)
    read = sensors.read(0.5, q, v, a, gravity=g)
    motion = ur5e.imu(q, v, a, links=["forearm_link"], xyz=(0.1, 0.2, 0.3), rpy=(0.4, 0.5, 0.6), gravity=g)
    assert read["tool"].value == pytest.approx(np.concatenate([motion.specific_force, motion.angular_velocity], -1)[0])
    assert read["wrist_2_joint"].value[0] == pytest.approx(q[4], abs=1e-9)
    assert read["wrist_2_joint"].stamp == 0.5
    assert "wrist" not in read  # on its way
    push = Wrench("tool0", force=(100.0, 200.0, -300.0))
    load = ur5e.force_torque(q, v, a, joints=["tool0_joint"], direction="child_on_parent", gravity=g, wrenches=push)
    for k in range(100):
        read = sensors.read(0.501 + k * 1e-3, q, v, a, gravity=g, wrenches=push)
    assert np.abs(load.force).max() > 100.0
    assert read["wrist"].value[:3] == pytest.approx(load.force[0], abs=15.0)


def test_a_wrist_without_errors_reads_what_the_motion_says(ur5e: Robot) -> None:
    """Speed, acceleration, weight and a push: each is in it, of what hangs behind the joint."""
    wrist = ForceTorqueSettings(joint="wrist_3_joint", rate_hz=100.0, xyz=(0.1, 0.0, 0.2), rpy=(0.3, 0.0, 0.1))
    sensors = Sensors(ur5e, SensorSettings(robot="ur5e", force_torque={"wrist": wrist}))
    q, v, a = np.random.default_rng(2).normal(size=(3, 6))
    options = {"gravity": (0.0, 1.0, -9.0), "wrenches": Wrench("tool0", force=(10.0, 20.0, -30.0))}
    load = ur5e.force_torque(q, v, a, joints=["wrist_3_joint"], xyz=wrist.xyz, rpy=wrist.rpy, **options)
    reading = sensors.read(0.0, q, v, a, **options)["wrist"].value
    np.testing.assert_allclose(reading, np.concatenate([load.force[0], load.torque[0]]), rtol=1e-12)


def test_nothing_is_asked_where_nothing_is_due(ur5e: Robot) -> None:
    sensors = Sensors.from_file(ur5e, EXAMPLE)
    q, rest = ur5e.neutral(), np.zeros(6)
    sensors.read(0.0, q, rest, rest)
    first_readings = sensors.read(0.0004, q, rest, rest)
    wrong = np.full(6, np.nan)  # would be refused
    assert {n: r.seq for n, r in sensors.read(0.0008, wrong, wrong, wrong).items()} == {
        n: r.seq for n, r in first_readings.items()
    }


def test_time_that_goes_back_is_no_stale_reading(ur5e: Robot) -> None:
    sensors = Sensors(ur5e, SensorSettings(robot="ur5e", imus={"tool": ImuSettings(link="tool0", rate_hz=100.0)}))
    rest = np.zeros(6)
    sensors.read(1.0, rest, rest, rest)
    with pytest.raises(InvalidArgumentError, match="reset it first"):
        sensors.read(0.0, rest, rest, rest)
    sensors.reset()
    assert sensors.read(0.0, rest, rest, rest)["tool"].stamp == 0.0


def test_all_force_torque_sensors_are_tared_at_once(ur5e: Robot) -> None:
    sensors = Sensors.from_file(ur5e, EXAMPLE)
    q, rest = np.zeros((300, 6)), np.zeros((300, 6))
    t = np.arange(300) * 1e-3
    sensors.tare(100)
    read = sensors.record(t, q, rest, rest)
    assert np.abs(read["wrist"].value[50, :3]).max() > 0.3
    assert np.abs(read["wrist"].value[100:, :3].mean(axis=0)).max() < 0.1
    assert not sensors.devices["tool"].tared.any()


def test_a_tare_takes_one_sample_where_no_number_is_given(ur5e: Robot) -> None:
    wrist = ForceTorqueSettings(joint="wrist_3_joint", rate_hz=100.0)
    sensors = Sensors(ur5e, SensorSettings(robot="ur5e", force_torque={"wrist": wrist}))
    sensors.tare()
    q = np.array([[0.3] * 6, [0.9] * 6])
    value = sensors.record(np.array([0.0, 0.01]), q, 0 * q, 0 * q)["wrist"].value
    np.testing.assert_array_equal(value[0], np.zeros(6))
    assert np.abs(value[1]).max() > 0.3


def test_one_more_sensor_leaves_the_others_bits(ur5e: Robot) -> None:
    settings = read_settings(EXAMPLE)[0]
    fewer = SensorSettings(robot="ur5e", seed=settings.seed, imus=settings.imus)
    q, rest = np.zeros((40, 6)), np.zeros((40, 6))
    t = np.arange(40) * 2.5e-3
    imu_only, with_others = (Sensors(ur5e, x).record(t, q, rest, rest)["tool"].value for x in (fewer, settings))
    assert imu_only.tobytes() == with_others.tobytes()
    other = Sensors(ur5e, fewer, seed=settings.seed + 1).record(t, q, rest, rest)["tool"].value
    assert not np.array_equal(imu_only, other)


def test_switched_on_again_they_draw_by_the_seed_that_they_were_made_with(ur5e: Robot) -> None:
    """Each kind by it: the encoders too, whose noise is of each sample."""
    settings = SensorSettings(
        robot="ur5e",
        imus={"tool": ImuSettings(link="tool0", rate_hz=100.0, gyroscope=Errors(bias_spread=1.0))},
        encoders={"elbow_joint": EncoderSettings(step=1e-9, rate_hz=100.0, noise=0.1)},
        force_torque={"wrist": ForceTorqueSettings(joint="tool0_joint", rate_hz=100.0, force=Errors(bias_spread=1.0))},
    )
    rest = np.zeros(6)

    def bits(sensors: Sensors) -> dict[str, bytes]:
        return {name: reading.value.tobytes() for name, reading in sensors.read(0.0, rest, rest, rest).items()}

    sensors = Sensors(ur5e, settings, seed=5)
    first = bits(sensors)
    by_default = bits(Sensors(ur5e, settings))
    assert all(first[name] != by_default[name] for name in ("tool", "elbow_joint", "wrist"))
    assert by_default == bits(Sensors(ur5e, settings, seed=0))
    for seed, expected in ((None, first), (0, by_default), (None, by_default), (5, first)):
        sensors.reset(seed)
        assert bits(sensors) == expected


def test_what_a_file_leaves_out(ur5e: Robot, tmp_path: Path) -> None:
    path = tmp_path / "few.yaml"
    path.write_text("robot: ur5e\nimus: {tool: {link: tool0, rate_hz: 100}}\n")
    settings, _ = read_settings(str(path))
    assert settings == SensorSettings(robot="ur5e", seed=0, imus={"tool": ImuSettings(link="tool0", rate_hz=100.0)})
    tool = settings.imus["tool"]
    assert (tool.xyz, tool.rpy, tool.latency_s, tool.filter) == ((0.0,) * 3, (0.0,) * 3, 0.0, None)
    assert [part.bias for part in (tool.accelerometer, tool.gyroscope)] == [0.0, 0.0]


HEAD = "robot: ur5e\n"
FAULTS = {
    "robot: panda\n": (1, "robot", ["'panda'", "'ur5e'"]),
    "seed: 1\n": (1, None, ["missing key 'robot'"]),
    HEAD + "imu: {}\n": (2, "imu", ["'imu'", "'imus'"]),
    HEAD + "seed: -1\n": (2, "seed", ["0", "-1", "whole", "number"]),
    HEAD + "imus:\n  a:\n    rate_hz: 10\n": (3, "imus.a", ["missing key 'link'"]),
    HEAD + "imus:\n  a:\n    link: nowhere\n    rate_hz: 10\n": (4, "imus.a.link", ["'nowhere'", "robot", "link"]),
    HEAD + "imus:\n  a:\n    link: tool0\n    rate_hz: 0\n": (5, "imus.a.rate_hz", ["a number above 0, found 0"]),
    HEAD + "imus:\n  a:\n    link: tool0\n    rate_hz: .nan\n": (5, "imus.a.rate_hz", ["expected a number"]),
    HEAD + "imus:\n  a:\n    link: tool0\n    rate_hz: .inf\n": (5, "imus.a.rate_hz", ["of at most 1e+300, found inf"]),
    HEAD + "imus:\n  a:\n    link: tool0\n    rate_hz: 10\n    gyroscope:\n      nois: 1\n": (
        7,
        "imus.a.gyroscope.nois",
        ["unknown key 'nois'"],
    ),
    HEAD + "imus:\n  a:\n    link: tool0\n    rate_hz: 10\n    gyroscope:\n      step: -1\n": (
        6,
        "imus.a.gyroscope",
        ["step", "0", "-1"],
    ),
    HEAD + "imus:\n  a:\n    link: tool0\n    rate_hz: 10\n    xyz: [1, 2]\n": (
        6,
        "imus.a.xyz",
        ["3", "2", "list", "entries"],
    ),
    HEAD + "force_torque:\n  a: {joint: tool_joint, rate_hz: 10}\n": (
        3,
        "force_torque.a.joint",
        ["no joint 'tool_joint'"],
    ),
    HEAD + "force_torque:\n  a: {joint: tool0_joint, rate_hz: 10, direction: up}\n": (
        3,
        "force_torque.a.direction",
        ["parent_on_child, child_on_parent", "'up'"],
    ),
    HEAD + "force_torque:\n  a: {joint: tool0_joint, rate_hz: 10, filter: {cutoff_hz: 5}}\n": (
        3,
        "force_torque.a",
        ["filter.cutoff_hz", "5", "rate_hz"],
    ),
    HEAD + "encoders:\n  elbow_joint: {rate_hz: 10}\n": (3, "encoders.elbow_joint", ["found neither"]),
    HEAD + "encoders:\n  elbow: {rate_hz: 10, step: 1}\n": (3, "encoders.elbow", ["no joint 'elbow'"]),
    HEAD + "encoders:\n  tool0_joint: {rate_hz: 10, step: 1}\n": (3, "encoders.tool0_joint", ["has no encoder"]),
    HEAD + "imus:\n  elbow_joint: {link: tool0, rate_hz: 1}\nencoders:\n  elbow_joint: {rate_hz: 10, step: 1}\n": (
        1,
        None,
        ["'elbow_joint'", "sensors", "called"],
    ),
}


@pytest.mark.parametrize("text", FAULTS)
def test_faults_name_file_line_and_key(text: str, ur5e: Robot, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as error:
        Sensors.from_file(ur5e, path)
    line, key, values = FAULTS[text]
    assert (error.value.line, error.value.path) == (line, key)
    assert unnamed(error.value.message, *values) == []
    assert str(error.value).startswith(f"{path}:{line}: ")


def test_no_file_and_no_robot_like_it(ur5e: Robot, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="cannot be read"):
        Sensors.from_file(ur5e, tmp_path / "none.yaml")
    with pytest.raises(InvalidArgumentError, match="for robot 'panda'") as error:
        Sensors(ur5e, SensorSettings(robot="panda"))
    assert error.value.path == "robot"
    with pytest.raises(NotFoundError, match="no link 'hand'"):
        Sensors(ur5e, SensorSettings(robot="ur5e", imus={"a": ImuSettings(link="hand", rate_hz=1.0)}))
    flying = Robot.from_urdf(URDF / "ur5e.urdf", root="floating")
    with pytest.raises(NotFoundError, match="'root_joint' has no encoder"):
        Sensors(flying, SensorSettings(robot="ur5e", encoders={"root_joint": EncoderSettings(step=1.0, rate_hz=1.0)}))
    linkage = Robot.from_file(URDF / "four_bar.urdf")
    with pytest.raises(NotFoundError, match="'pin' closes a loop"):
        Sensors(linkage, SensorSettings(robot="four_bar", encoders={"pin": EncoderSettings(step=1.0, rate_hz=1.0)}))


def test_sensors_are_bounded() -> None:
    units = {f"{k}": ImuSettings(link="a", rate_hz=1.0) for k in range(MAX_SENSORS + 1)}
    with pytest.raises(InvalidArgumentError, match=f"there are {MAX_SENSORS + 1} sensors"):
        SensorSettings(robot="ur5e", imus=units)
