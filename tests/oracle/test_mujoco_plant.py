"""MuJoCo as a plant: compared with ours step by step, under commands, with its contacts, and its errors."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from dyn_service.api.queries import Wrench
from dyn_service.control.dry_runs import ClosedLoop
from dyn_service.engine.robot import Robot
from dyn_service.errors import DynError, FailedPreconditionError, UnimplementedError
from dyn_service.graph.nodes.controllers.computed_torque import NODE, ControllerParameters
from dyn_service.graph.nodes.controllers.controller_kind import commander
from dyn_service.graph.nodes.plant.factory import PlantParameters, make_engine, make_plant, real_robot
from dyn_service.model.description import RootType
from tests.conftest import URDF
from tests.control.test_plant_truth import drive
from tests.phrases import naming
from tests.terms.interpreting import interpreted_robot, interpreting

OTHERWISE = {
    "gravity": [1.0, 0.0, -5.0],
    "joints": {"wrist_3_joint": {"damping": 0.3, "armature": 0.02, "stiffness": 2.0, "rest": 0.4}},
    "payloads": [
        {"link": "tool0", "mass": 0.5, "com": [0.0, 0.1, 0.05], "inertia": [[0.01, 0, 0], [0, 0.02, 0], [0, 0, 0.02]]}
    ],
    "links": {"forearm_link": {"mass": 3.0, "com": [0.2, 0.0, 0.02]}},
}  # fmt: skip


@pytest.fixture(scope="module")
def ur5e() -> Robot:
    return Robot.from_urdf(URDF / "ur5e.urdf")


def engines(robot: Robot, dt: float = 1e-3, **changes):
    """Ours and MuJoCo, of the same plant."""
    ours = PlantParameters(robot="-", rate_hz=1.0 / dt, **changes)
    mujoco_parameters = PlantParameters(robot="-", rate_hz=1.0 / dt, engine="mujoco", **changes)
    q = robot.configuration.neutral
    return make_engine(real_robot(robot, ours), ours, q), make_engine(
        real_robot(robot, mujoco_parameters), mujoco_parameters, q
    )


def state_differences(engines, q, v, tau, steps: int, dt: float = 1e-3) -> list[np.ndarray]:
    """How far q and v are from each other after so many steps."""
    own_state = mujoco_state = (q, v)
    for _ in range(steps):
        own_state, mujoco_state = engines[0].step(*own_state, tau, dt), engines[1].step(*mujoco_state, tau, dt)
    return [np.abs(a - b) for a, b in zip(own_state, mujoco_state, strict=True)]


def state_difference(engines, q, v, tau, steps: int, dt: float = 1e-3) -> float:
    """How far the states are from each other, at most."""
    return max(float(difference.max()) for difference in state_differences(engines, q, v, tau, steps, dt))


def assert_states_close(tolerance: float, robot: Robot, engines, q, v, tau, steps: int) -> None:
    """Fails unless the states after so many steps differ by less than the tolerance; names the worst joint."""
    configuration = robot.configuration
    names_of_entries = (configuration.position_names, configuration.velocity_names)
    differences = state_differences(engines, q, v, tau, steps)
    for term, names, difference in zip("qv", names_of_entries, differences, strict=True):
        joint = names[int(np.argmax(difference))]
        assert difference.max() < tolerance, f"{term} of joint '{joint}' of '{robot.name}' after {steps} steps"


@pytest.mark.parametrize("overlay", [{}, OTHERWISE], ids=["model", "overlay"])
@pytest.mark.parametrize(("integrator", "substeps"), [("rk4", 1), ("rk4", 2), ("semi_implicit_euler", 1)])
def test_the_same_steps_but_for_roundings(ur5e: Robot, overlay: dict, integrator: str, substeps: int) -> None:
    """Joints that turn: the same formula in both, so that only roundings are left: 1e-14 a step, here 200 of them, and
    motions part by a factor of some tens meanwhile."""
    rng = np.random.default_rng(0)
    v, tau = rng.normal(size=(2, 6)) * [[0.5], [2.0]]
    engine_pair = engines(ur5e, overlay=overlay, integrator=integrator, substeps=substeps)
    assert_states_close(1e-10, ur5e, engine_pair, ur5e.random_configuration(seed=1), v, tau, 200)


def test_a_floating_robot_parts_by_the_order_of_the_steps() -> None:
    """On rotations the two fourth-order steps differ: by a sixteenth where the step is half as long."""
    robot = Robot.from_urdf(URDF / "solo12.urdf", root="floating")
    rng = np.random.default_rng(0)
    q, v = robot.random_configuration(seed=1), 0.5 * rng.normal(size=robot.nv)
    tau = np.concatenate([np.zeros(6), 0.1 * rng.normal(size=12)])
    coarse_error, fine_error = (
        state_difference(engines(robot, dt), q, v, tau, round(0.08 / dt), dt) for dt in (4e-3, 2e-3)
    )
    assert coarse_error < 1e-8
    assert 12.0 < coarse_error / fine_error < 20.0


BALL = """<robot name="ball"><link name="base"/>
  <link name="arm"><inertial><origin xyz="0 0 -0.2"/><mass value="1.5"/>
    <inertia ixx="0.02" ixy="0.001" ixz="0" iyy="0.025" iyz="0" izz="0.012"/></inertial></link>
  <link name="hand"><inertial><origin xyz="0.1 0 0"/><mass value="0.4"/>
    <inertia ixx="0.001" ixy="0" ixz="0" iyy="0.002" iyz="0" izz="0.002"/></inertial></link>
  <joint name="shoulder" type="spherical"><parent link="base"/><child link="arm"/></joint>
  <joint name="elbow" type="continuous"><parent link="arm"/><child link="hand"/>
    <origin xyz="0 0 -0.4"/><axis xyz="0 1 0"/></joint></robot>"""


def test_a_ball_has_four_numbers_there_too() -> None:
    robot = Robot.from_urdf(BALL)
    rng = np.random.default_rng(3)
    q, v, tau = robot.random_configuration(seed=3), rng.normal(size=4), rng.normal(size=4)
    ours, mujoco_a = (engine.acceleration(q, v, tau) for engine in engines(robot))
    np.testing.assert_allclose(ours, mujoco_a, rtol=1e-9)  # roundings
    # both turn by steps of fourth order, of different constants: 1e-3^4 of some 1e2 rad/s^2, ten times
    assert_states_close(1e-8, robot, engines(robot), q, v, tau, 10)


PUCK = """<robot name="puck"><link name="base"/>
  <link name="table"><inertial><mass value="1"/>
    <inertia ixx="0.1" ixy="0" ixz="0" iyy="0.1" iyz="0" izz="0.1"/></inertial></link>
  <link name="disc"><inertial><origin xyz="0.1 -0.05 0.02"/><mass value="1.5"/>
    <inertia ixx="0.02" ixy="0.001" ixz="0" iyy="0.025" iyz="0" izz="0.012"/></inertial></link>
  <link name="flap"><inertial><origin xyz="0.1 0 0"/><mass value="0.4"/>
    <inertia ixx="0.001" ixy="0" ixz="0" iyy="0.002" iyz="0" izz="0.002"/></inertial></link>
  TILT
  <joint name="slides" type="planar"><parent link="table"/><child link="disc"/><axis xyz="0.36 0.48 0.8"/>
    <origin xyz="0.1 0.2 0.3" rpy="0.3 -0.2 1.0"/><dynamics damping="0.7"/></joint>
  <joint name="hinge" type="continuous"><parent link="disc"/><child link="flap"/>
    <origin xyz="0.2 0 0"/><axis xyz="0 1 0"/></joint></robot>"""
TILT = '<joint name="tilt" type="continuous"><parent link="base"/><child link="table"/><axis xyz="0 1 0"/></joint>'


@pytest.mark.parametrize("root", ["fixed", "planar"])
def test_a_planar_joint_is_two_slides_and_a_hinge(root: RootType) -> None:
    """Askew on a table that tilts, and as the root. The accelerations are the same; steps part by their constants, of
    fourth order, for velocities are taken in axes that turn or do not.
    """
    rooted = PUCK.replace("TILT", "").replace('<link name="base"/>', "")
    robot = interpreting(PUCK.replace("TILT", TILT) if root == "fixed" else rooted, root=root)
    rng = np.random.default_rng(5)
    q, (v, tau) = robot.random_configuration(seed=5), rng.normal(size=(2, robot.nv)) * [[0.5], [0.02]]
    engine_pair = engines(robot)
    ours, mujoco_a = (engine.acceleration(q, v, tau) for engine in engine_pair)
    np.testing.assert_allclose(ours, mujoco_a, rtol=1e-9)  # roundings
    push = Wrench("flap", force=(1.0, 2.0, 3.0), point=(0.1, 0.0, 0.0))
    for engine in engine_pair:
        engine.push([push])
    ours, mujoco_a = (engine.acceleration(q, v, tau) for engine in engine_pair)
    np.testing.assert_allclose(ours, mujoco_a, rtol=1e-9)
    for joint, in_v in zip(robot.configuration.joints, robot.configuration.v_slices, strict=True):
        tau[in_v] *= joint.nv == 1  # the others have no motors; theirs would keep its direction through a step
    coarse_error, fine_error = (
        state_difference(engines(robot, dt), q, v, tau, round(0.16 / dt), dt) for dt in (4e-3, 2e-3)
    )
    assert coarse_error < 1e-7
    assert 12.0 < coarse_error / fine_error < 20.0
    assert "joint" in engine_pair[1].notes[0]


def tied() -> Robot:
    """A hinge, and a mimic joint that turns the other way, 1.5 times as fast, with an offset."""
    body = (
        '<inertial><origin xyz="0.1 0 0"/><mass value="1"/>'
        '<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>'
    )
    joint = (
        '<joint name="{0}" type="revolute"><parent link="base"/><child link="{1}"/><axis xyz="0 1 0"/>'
        '<limit lower="-3" upper="3" effort="9" velocity="9"/>{2}</joint>'
    )
    mimic = '<mimic joint="hinge" multiplier="-1.5" offset="0.2"/>'
    links = "".join(f'<link name="{name}">{body}</link>' for name in ("base", "one", "other"))
    joints = joint.format("hinge", "one", "") + joint.format("follower", "other", mimic)
    return Robot.from_text(f'<robot name="tied">{links}{joints}</robot>')


def test_a_push_is_the_same_push(ur5e: Robot) -> None:
    """Held by us as a wrench, there as force and torque that keep their arm through a step: of first order in it."""
    rng = np.random.default_rng(2)
    q, v = ur5e.random_configuration(seed=2), 0.2 * rng.normal(size=6)
    zero, push = np.zeros(6), Wrench("tool0", force=(20.0, -5.0, 10.0), torque=(0.3, 0.0, 0.1), point=(0.0, 0.0, 0.1))
    # of the tool, which has no mass, and of a link whose centre of mass is not its origin
    in_frame = {"force": (0.0, 0.0, 20.0), "torque": (0.0, 0.1, 0.0), "frame": "forearm_link"}
    for wrench in (
        push,
        Wrench("tool0", **in_frame),
        Wrench("upper_arm_link", (0.0, 0.0, 0.0), (20.0, -5.0, 10.0), (0.1, 0.2, 0.3)),
    ):
        pushed = []
        for dt in (1e-3, 5e-4):
            engine_pair = engines(ur5e, dt)
            for engine in engine_pair:
                engine.push([wrench])
            ours, mujoco_a = (engine.acceleration(q, v, zero) for engine in engine_pair)
            np.testing.assert_allclose(ours, mujoco_a, rtol=1e-9)  # roundings
            pushed.append(state_difference(engine_pair, q, v, zero, round(0.02 / dt), dt))
        assert 1.6 < pushed[0] / pushed[1] < 2.4
        engine_pair[0].push([])
        assert np.abs(engine_pair[0].acceleration(q, v, zero) - ours).max() > 1.0


def test_fingers_follow_by_a_soft_constraint() -> None:
    """The Panda's second finger is a joint of its own there: the states stay near, and it stays with its leader."""
    panda = Robot.from_urdf(URDF / "panda.urdf")
    engine_pair = engines(panda)
    q = 0.5 * (panda.limits.lower + panda.limits.upper)
    # rad/s, as the constraint settles
    assert_states_close(5e-3, panda, engine_pair, q, np.zeros(8), panda.gravity_forces(q), 50)
    model, data = engine_pair[1].model, engine_pair[1].data
    first, second = (data.qpos[model.joint(f"panda_finger_joint{k}").qposadr[0]] for k in (1, 2))
    assert first == pytest.approx(second, abs=1e-3)  # m: the constraint is soft


def test_joints_that_follow_begin_where_their_leaders_put_them() -> None:
    """At their own ratio, turned and shifted: the constraint then has nothing to pull at, and the motions stay near."""
    robot = tied()
    engine_pair = engines(robot)
    q, v, tau = np.array([0.3]), np.array([0.4]), np.array([0.7])
    engine_pair[1].acceleration(q, v, tau)
    model, data = engine_pair[1].model, engine_pair[1].data
    follower = model.joint("follower")
    # Set, not integrated: one rounding.
    assert data.qpos[follower.qposadr[0]] == pytest.approx(-1.5 * 0.3 + 0.2, abs=1e-15)
    assert data.qvel[follower.dofadr[0]] == pytest.approx(-1.5 * 0.4, abs=1e-15)
    assert_states_close(5e-3, robot, engine_pair, q, v, tau, 20)  # rad/s, as the constraint settles


@pytest.mark.parametrize(("mass", "rms"), [(0.0, 0.0), (0.3, 3.2e-3)])
def test_the_shipped_controller_commands_it(mass: float, rms: float) -> None:
    """Ten per cent of its payload more than the model has costs what it costs on our plant: docs/plants.md."""
    panda = Robot.from_urdf(URDF / "panda.urdf")
    errors = []
    for engine in ("own", "mujoco"):
        parameters = PlantParameters(
            robot="-",
            engine=engine,
            control_rate_hz=500.0,
            initial_position={"panda_joint4": -1.2, "panda_joint6": 1.6},
            overlay={"payloads": [{"link": "panda_hand", "mass": mass, "com": [0.0, 0.0, 0.1]}]} if mass else {},
        )
        plant = make_plant(panda, parameters, session=1)
        law = commander(NODE.spec, ControllerParameters(), panda, number=1, restarted=False)
        ClosedLoop(plant, law.answer, every=2).run(0.6)
        assert (plant.safety.mode, sum(plant.safety.counters.stops.values())) == ("active", 0)
        errors.append(law.following.tracking.rms)
    assert errors[1] == pytest.approx(errors[0], rel=1e-3, abs=5e-6)  # what is left is the soft finger
    assert max(errors) < 5e-6 if not mass else errors[0] > 0.1 * rms


GROUND = """<mujoco model="brick"><compiler angle="radian"/><option timestep="0.004"/><worldbody>
  <geom name="floor" type="plane" size="1 1 0.1"/>
  <body name="brick" pos="0 0 0.2"><freejoint name="root_joint"/>
    <geom type="box" size="0.1 0.1 0.05" mass="2.0"/></body></worldbody>
  <actuator><motor joint="root_joint" gear="0 0 1 0 0 0"/></actuator></mujoco>"""


def test_its_own_contacts_hold_it(tmp_path: Path) -> None:
    """A brick falls for 0.15 m and comes to rest on the plane of its file."""
    path = tmp_path / "brick.xml"
    path.write_text(GROUND)
    robot = Robot.from_file(path)
    parameters = PlantParameters(robot="-", engine="mujoco", mjcf=str(path), safe_stop="zero")
    plant = drive(make_plant(robot, parameters, session=1), np.zeros(6), 0)
    plant.robot.set_state(np.array([0.0, 0.0, 0.2, 0.0, 0.0, 0.0, 1.0]), np.zeros(6))
    drive(plant, np.zeros(6), 1000)
    assert plant.q[2] == pytest.approx(0.05, abs=1e-3)  # MuJoCo's contacts give way by its solimp
    assert np.abs(plant.v).max() < 1e-3
    assert plant.robot.engine.model.opt.timestep == pytest.approx(1e-3)


@pytest.mark.parametrize("joint", ["panda_finger_joint1", "panda_finger_joint2"])
def test_an_overlay_in_the_words_of_a_file_is_the_overlaid_robot(joint: str) -> None:
    """Of a follower too, whose spring rests where its leader is at zero."""
    text = (URDF / "panda.urdf").read_text()
    text = text.replace('multiplier="1" offset="0"', 'multiplier="1" offset="0.003"')
    assert 'offset="0.003"' in text
    panda = interpreted_robot(Robot.from_urdf(text))
    overlay = {"joints": {joint: {"stiffness": 30.0, "rest": 0.01, "damping": 2.0}}}
    real = real_robot(panda, PlantParameters(robot="-", overlay=overlay))
    reread = interpreted_robot(Robot(real.as_described))
    q, v = panda.random_configuration(seed=4), np.linspace(-0.5, 0.5, 8)
    tau, two = (robot.inverse_dynamics(q, v, np.zeros(8)) for robot in (real, reread))
    np.testing.assert_allclose(tau, two, rtol=1e-12, atol=1e-12)  # roundings
    assert np.abs(tau - panda.inverse_dynamics(q, v, np.zeros(8))).max() > 1e-2


HINGED = """<mujoco model="hinged"><compiler angle="radian" autolimits="true"/><worldbody><body name="bar">
  <joint name="hinge" axis="0 1 0" range="-0.5 0.5"/><geom type="box" pos="0.2 0 0" size="0.2 0.02 0.02" mass="1"/>
  </body></worldbody><actuator><position joint="hinge" kp="500"/></actuator></mujoco>"""


@pytest.mark.parametrize("limits", [False, True])
def test_limits_act_where_they_are_asked_for_and_actuators_never(tmp_path: Path, limits: bool) -> None:
    """A bar falls from the horizontal: past its limit or not, and its servo does not hold it."""
    path = tmp_path / "hinged.xml"
    path.write_text(HINGED)
    parameters = PlantParameters(
        robot="-", engine="mujoco", mjcf=str(path), position_limits=limits, safe_stop="zero", initial_position=[0.0]
    )
    plant = drive(make_plant(Robot.from_file(path), parameters, session=1), [0.0], 500)
    assert bool(plant.q[0] > 0.6) is not limits
    assert not limits or plant.q[0] == pytest.approx(0.5, abs=0.05)  # the limit gives way by MuJoCo's solimp


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mjcf": "none.xml"}, "there is no file 'none.xml'"),
        ({"mjcf": "BRICK"}, "MuJoCo's model has no joint 'shoulder_pan_joint' of the robot; its joints are root_joint"),
        ({"mjcf": "BROKEN"}, "broken.xml: MuJoCo rejects it: "),
        ({"integrator": "explicit_euler"}, "MuJoCo has no step 'explicit_euler', expected one of rk4"),
        ({"contacts": [{"link": "tool0"}]}, "contacts: MuJoCo uses those of its MJCF file"),
        ({"overlay": OTHERWISE, "mjcf": "BRICK"}, "expected one of 'overlay' and 'mjcf'"),
        ({"overlay": {"locked": ["elbow_joint"]}}, "with joint 'elbow_joint' locked cannot be written to a robot file"),
        ({"engine": "own", "mjcf": "BRICK"}, "mjcf: a file for MuJoCo, expected engine 'mujoco'"),
    ],
)
def test_what_is_refused(ur5e: Robot, tmp_path: Path, changes: dict, message: str) -> None:
    for name, text in (("BRICK", GROUND), ("BROKEN", "<mujoco><worldbody><body/></mujoco>")):
        path = tmp_path / f"{name.lower()}.xml"
        path.write_text(text)
        changes = {key: str(path) if value == name else value for key, value in changes.items()}
    with pytest.raises(DynError) as error:
        make_plant(ur5e, PlantParameters(robot="-", **{"engine": "mujoco", **changes}), session=1)
    assert message in str(error.value)


def test_a_screw_is_refused_by_name() -> None:
    """A slide coupled to a hinge would be a soft one there, which it is not."""
    thread = '<drake:screw_thread_pitch value="0.01"/>'
    robot = Robot.from_urdf(
        '<robot name="vise"><link name="base"/><link name="jaw"><inertial><mass value="2"/><inertia ixx="1" iyy="1" '
        'izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link><drake:joint name="spindle" type="screw"><parent '
        f'link="base"/><child link="jaw"/><axis xyz="1 0 0"/>{thread}</drake:joint></robot>'
    )
    with pytest.raises(UnimplementedError, match=naming("'spindle'", "MuJoCo", "screw")):
        make_plant(robot, PlantParameters(robot="-", engine="mujoco"), session=1)


def test_without_mujoco_the_plant_says_what_to_install(ur5e: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(FailedPreconditionError, match=naming("'mujoco'", "dyn_service[mujoco]")):
        make_plant(ur5e, PlantParameters(robot="-", engine="mujoco"), session=1)


def test_a_state_that_is_no_longer_finite_names_its_joint(ur5e: Robot) -> None:
    """MuJoCo would put the robot back to its first state and go on."""
    plant = make_plant(ur5e, PlantParameters(robot="-", engine="mujoco"), session=1)
    robot = plant.robot
    robot.velocity_limit = np.full(6, np.inf)
    robot.v = np.array([0.0, 0.0, 1e200, 0.0, 0.0, 0.0])
    with np.errstate(all="ignore"), pytest.raises(FailedPreconditionError, match="'elbow_joint' is no longer finite"):
        robot.write(np.zeros(6), brakes=False)
