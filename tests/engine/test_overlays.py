"""Overlays: every row of the table with an overlay equals that row of a robot with an edited description."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service.api.queries import COMPUTATIONS, QUERIES, Contact, Inertial, JointNumbers, Overlay, Payload, Wrench
from dyn_service.api.spec import PASSIVE_PARTS, Variant
from dyn_service.engine.robot import Robot
from dyn_service.errors import DynError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.formulations.verification import residuals
from dyn_service.kernels import graph
from dyn_service.kernels.certify import certified, drawn_numbers
from dyn_service.kernels.compile_events import listening
from dyn_service.model import composite
from dyn_service.model.inertia import BodyInertia, eigenvalues_exceed
from dyn_service.parsing.urdf.reader import read
from tests.conftest import URDF
from tests.mimics import drawn as led
from tests.overlays import CASES, GRAVITY, ROWS, State, apart, drawn, fixed, numbers, of_free, options
from tests.passive import restless
from tests.phrases import naming, unnamed
from tests.random_robots import MANY_TYPES, random_urdf
from tests.tables import assert_complete
from tests.terms.interpreting import interpreted, interpreted_robot
from tests.wide import wide

PANDA_JOINTS = URDF.parent / "config" / "panda_joints.yaml"

ROBOTS: dict[str, Callable[[], Robot]] = {
    "fixed": lambda: Robot.from_urdf(URDF / "ur5e.urdf"),
    "floating": lambda: restless(random_urdf(42, movable=3), 2, root="floating"),
    "planar": lambda: restless(random_urdf(4, movable=5), 1, root="planar"),
    "panda": lambda: Robot.from_urdf(URDF / "panda.urdf", joints=PANDA_JOINTS),
    "all types": lambda: restless(random_urdf(3, movable=6, types=MANY_TYPES), 1),
    "following": lambda: Robot(led(read(random_urdf(8, movable=5)), 2, 0.6)),
}


@cache
def robot(name: str) -> Robot:
    return interpreted_robot(ROBOTS[name]())


def panda() -> Robot:
    return robot("panda")


@pytest.mark.parametrize("name", wide(ROBOTS, {"floating", "following"}.__contains__))
def test_every_row_equals_that_of_the_edited_robot(name: str) -> None:
    """In every method, in body and world axes, with a wrench, with and without mimic joints."""
    base_robot = robot(name)
    edit = drawn(base_robot, 1)
    other = interpreted_robot(Robot(edit.description))
    state = State(base_robot, 2)
    for row, method in CASES:
        inputs = state.inputs(row)
        weighted_inputs = {**inputs, "gravity": GRAVITY} if "gravity" in row.inputs else inputs
        for option in options(row, method):
            try:
                expected_outputs = numbers(other.evaluate(row.name, weighted_inputs, option), row)
            except FailedPreconditionError:
                with pytest.raises(FailedPreconditionError):
                    base_robot.evaluate(row.name, {**inputs, "overlay": edit.overlay}, option)
                continue
            ours = numbers(base_robot.evaluate(row.name, {**inputs, "overlay": edit.overlay}, option), row)
            for output, expected in expected_outputs.items():
                # Sums of as many terms as bodies, in another order: the edited file's inertias are added before the
                # kernel, those of an overlay within it.
                assert apart(ours[output], expected) < 1e-13, (row.name, method, output)


@pytest.mark.parametrize("wrenches", [(), (Wrench("pendulum", (1.0, 2.0, 3.0), (4.0, 5.0, 6.0), frame="world"),)])
def test_derivatives_of_an_rk4_step(wrenches: tuple[Wrench, ...]) -> None:
    """The compiled kernel with its certificate, which the rows above have not."""
    pendulum = Robot.from_urdf(URDF / "cart_pendulum.urdf")
    other = pendulum.with_payload(Payload("pendulum", 2.0, (0.1, 0.2, 0.3)))
    q, v, tau = np.random.default_rng(3).normal(size=(3, 5, pendulum.nv))
    expected = other.step_derivatives(q, v, tau, 1e-2, integrator="rk4", wrenches=wrenches)
    overlay = pendulum.overlay_of(other)
    derivatives = pendulum.step_derivatives(q, v, tau, 1e-2, integrator="rk4", overlay=overlay, wrenches=wrenches)
    for name in QUERIES["step_derivatives"].outputs:
        # As above: inertias are added within the kernel.
        assert apart(getattr(derivatives, name), getattr(expected, name)) < 1e-13, name


OF_BODIES = {"branch_inertias": {"influence"}, "influence_operators": {"phi"}, "mass_matrix_steps": {"momenta"}}
"""Outputs per moving body, which differ if a joint is fixed instead of locked."""

DIFFERENT = ("newton_euler_blocks", "inverse_dynamics_regressor", "energy_regressor")
"""Rows of which all outputs differ so; regressors keep the columns of locked joints."""


@pytest.mark.parametrize("name", wide(ROBOTS, {"floating", "following"}.__contains__))
def test_locked_joints_equal_fixed_joints(name: str) -> None:
    """Entries of the other joints in every row, and those of the locked joints."""
    base_robot = robot(name)
    locked = [joint for joint in base_robot.joint_names[1::3] if joint != "root_joint"]
    state = State(base_robot, 2, locked)
    other = interpreted_robot(Robot(fixed(base_robot, state.q, locked)))
    rest = state.without_locked(other)
    overlay = Overlay(locked=locked)
    for row, method in CASES:
        if row.name in DIFFERENT or (method in row.rejects_mimic and base_robot.tree.has_mimics):
            continue
        for option in options(row, method):
            reduced = numbers(other.evaluate(row.name, rest.inputs(row), option), row)
            whole = numbers(base_robot.evaluate(row.name, {**state.inputs(row), "overlay": overlay}, option), row)
            ours = of_free(base_robot, other, row, whole)
            for output in reduced.keys() - OF_BODIES.get(row.name, set()):
                locked_output, fixed_output = ours[output], reduced[output]
                if output in ("actuation", "constraint"):  # a locked joint carries all of its load, as a fixed one
                    moving = [
                        k for k, joint in enumerate(base_robot.all_joint_names) if joint in other.tree.moving_joints
                    ]
                    locked_output, fixed_output = locked_output[moving], fixed_output[moving]
                # Of a link on the root, derivatives in its own axes are rounding on both sides.
                assert (
                    apart(locked_output, fixed_output) < 1e-12 or np.abs(locked_output - fixed_output).max() < 1e-14
                ), (row.name, method, output)
            for output, spec in row.outputs.items():
                if spec.shape == ("nv",) and row.name != "branch_inertias":
                    assert (whole[output][..., ~state.free] == 0.0).all(), (row.name, output)


def test_a_locked_joint_carries_its_load() -> None:
    """Its effort is 0; the load of its lock is in the joint loads and equals the effort that would hold it."""
    arm = panda()
    q, name = arm.random_configuration(seed=3), "panda_joint4"
    zero, k = np.zeros(arm.nv), arm.joint_names.index("panda_joint4")
    overlay = Overlay(locked=[name])
    holding_effort = arm.gravity_forces(q)[k]
    assert abs(holding_effort) > 1.0
    loads = arm.constraint_forces(q, zero, arm.gravity_forces(q), joints=[name], overlay=overlay)
    assert arm.gravity_forces(q, overlay=overlay)[k] == 0.0
    # Two ways from the same load to its part along the axis.
    assert loads.actuation[0] == pytest.approx(holding_effort, rel=1e-12)
    M = arm.mass_matrix(q, overlay=overlay)
    assert (M[k] == np.eye(arm.nv)[k]).all()
    assert (M[:, k] == np.eye(arm.nv)[k]).all()


def test_followers_are_locked_with_their_leader() -> None:
    arm = panda()
    q = arm.random_configuration(seed=1)
    tau = np.ones(arm.nv)
    a = arm.forward_dynamics(q, 0 * tau, tau, overlay=Overlay(locked=["panda_finger_joint1"]))
    assert a[-1] == 0.0
    assert np.abs(a[:-1]).min() > 0.0


LEADS = {
    "mass": (4, 1),
    "com": (1, 3, 3),
    "inertia": (4, 1, 3, 3),
    "damping": (3,),
    "carried": (4, 1),
    "gravity": (4, 3, 3),
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_leading_axes_broadcast_like_any_other(row: Any) -> None:
    """Each array of an overlay has other leading axes; the result equals that of single robots."""
    base_robot = robot("floating")
    rng = np.random.default_rng(5)
    base = np.diag([0.03, 0.04, 0.05])
    arrays = {
        "mass": rng.uniform(1.0, 2.0, LEADS["mass"]),
        "com": rng.uniform(-0.1, 0.1, LEADS["com"]),
        "inertia": base * rng.uniform(1.0, 2.0, (4, 1, 1, 1)),
        "damping": rng.uniform(0.5, 2.0, LEADS["damping"]),
        "carried": rng.uniform(1.0, 2.0, LEADS["carried"]),
        "gravity": rng.normal(size=LEADS["gravity"]),
    }
    link, other = base_robot.link_names[2], base_robot.link_names[-1]

    def overlay(**numbers_of: Any) -> Overlay:
        return Overlay(
            Payload(other, numbers_of["carried"], (0.1, 0.0, 0.0)),
            {link: Inertial(numbers_of["mass"], numbers_of["com"], numbers_of["inertia"])},
            {base_robot.joint_names[1]: JointNumbers(damping=numbers_of["damping"])},
            gravity=numbers_of["gravity"],
        )

    own_axes = {"com": 1, "inertia": 2, "gravity": 1}
    state = State(base_robot, 3)
    whole = numbers(base_robot.evaluate(row.name, {**state.inputs(row), "overlay": overlay(**arrays)}), row)
    for index in np.ndindex(4, 3):
        numbers_at = {
            name: np.broadcast_to(x, (4, 3, *x.shape[x.ndim - own_axes.get(name, 0) :]))[index]
            for name, x in arrays.items()
        }
        single = numbers(base_robot.evaluate(row.name, {**state.inputs(row), "overlay": overlay(**numbers_at)}), row)
        for output, expected in single.items():
            core = expected.ndim
            batch_output = np.broadcast_to(whole[output], (4, 3, *whole[output].shape[whole[output].ndim - core :]))[
                index
            ]
            np.testing.assert_allclose(
                batch_output, expected, rtol=1e-14, atol=1e-14 * max(np.abs(expected).max(initial=0), 1)
            )


def test_an_overlaid_robot_equals_passing_the_overlay() -> None:
    """To the last bit, in every row; overlays on an overlaid robot add up."""
    base_robot = robot("floating")
    edit = drawn(base_robot, 4)
    view, state = base_robot.overlaid(edit.overlay), State(base_robot, 1)
    assert (view.name, view.joint_names, view.link_names) == (
        base_robot.name,
        base_robot.joint_names,
        base_robot.link_names,
    )
    for row in ROWS:
        if row.rejects_mimic == frozenset(row.kernels):
            continue
        by_view = numbers(view.evaluate(row.name, state.inputs(row)), row)
        two = numbers(base_robot.evaluate(row.name, {**state.inputs(row), "overlay": edit.overlay}), row)
        for output in two:
            np.testing.assert_array_equal(by_view[output], two[output])
    brick = Payload(base_robot.link_names[-1], 0.5, (0.0, 0.1, 0.0))
    combined = Overlay([*edit.overlay.payloads, brick], edit.overlay.links, edit.overlay.joints, gravity=GRAVITY)  # type: ignore[misc,list-item]
    q = state.q
    assert apart(view.with_payload(brick).gravity_forces(q), base_robot.gravity_forces(q, overlay=combined)) < 1e-14
    assert apart(view.gravity_forces(q, overlay=Overlay(brick)), base_robot.gravity_forces(q, overlay=combined)) < 1e-14
    assert apart(view.gravity_forces(q, gravity=(0, 0, 0), passive=False), np.zeros(base_robot.nv)) == 0.0


def test_an_overlaid_robot_describes_itself() -> None:
    arm = panda()
    damped = Overlay(joints={"panda_joint1": JointNumbers(stiffness=3.0)})
    view = arm.overlaid(damped)
    assert set(view.description.passive) == {*arm.description.passive, "springs"}
    overlays = [
        Overlay(locked=["panda_joint1"]),
        Overlay(gravity=(0.0, 0.0, -1.6)),
        Overlay(Payload("panda_hand", 1.0)),
        Overlay(Payload("panda_hand", [1.0, 2.0])),
        Overlay(Payload("panda_hand", [1.0, 2.5])),
        damped,
    ]
    prints = [arm.overlaid(overlay).fingerprint for overlay in overlays]
    assert len({arm.fingerprint, *prints}) == 7
    # Servers and workers exchange robots by their fingerprints, so that a copy must have the same.
    assert prints[-1] == view.fingerprint == pickle.loads(pickle.dumps(view)).fingerprint
    assert arm.overlaid(overlays[1]).description.gravity == (0.0, 0.0, -1.6)
    assert arm.overlaid(damped, name="sprung").name == "sprung"


def test_pickled_overlaid_robots_answer_the_same() -> None:
    pendulum = Robot.from_urdf(URDF / "double_pendulum.urdf")
    view = pendulum.overlaid(drawn(pendulum, 3).overlay)
    unpickled = pickle.loads(pickle.dumps(view))
    q, v, a = np.random.default_rng(0).normal(size=(3, 2))
    assert (unpickled.inverse_dynamics(q, v, a) == view.inverse_dynamics(q, v, a)).all()


class Heard:
    """Records the kernels that were made."""

    def __init__(self) -> None:
        self.kernels: list[str] = []

    def begun(self, kernel: str) -> None:
        self.kernels.append(kernel)

    def ended(self) -> None:
        pass


@contextmanager
def heard() -> Any:
    listener = Heard()
    with listening(listener):
        yield listener.kernels


def test_one_kernel_for_all_numbers() -> None:
    """A second value, a lock, a payload, an overlaid robot and no friction need no further kernel."""
    pendulum = Robot.from_urdf(URDF / "double_pendulum.urdf")
    q, v, a = np.random.default_rng(0).normal(size=(3, 2))
    link, joint = pendulum.link_names[-1], pendulum.joint_names[0]
    row = QUERIES["inverse_dynamics"]
    assert not pendulum.evaluator.has_kernel(row, "", Variant(overlay=True))
    with heard() as first:
        pendulum.inverse_dynamics(q, v, a, overlay=Overlay())
    assert [name.split(" ")[0] for name in first] == ["inverse_dynamics-overlay"]
    assert pendulum.evaluator.has_kernel(row, "", Variant(overlay=True))
    assert not pendulum.evaluator.has_kernel(row)
    hinge_only = v * (0.0, 1.0)
    with heard() as later_kernels:
        for overlay, rate in (
            (Overlay(Payload(link, 2.0)), v),
            (Overlay(links={link: Inertial(mass=[1.0, 2.0])}), v),
            (Overlay(joints={joint: JointNumbers(friction=2.0, stiffness=1.0)}), v),
            (Overlay(locked=[joint]), hinge_only),
        ):
            tau = pendulum.inverse_dynamics(q, rate, hinge_only, overlay=overlay)
            assert (pendulum.overlaid(overlay).inverse_dynamics(q, rate, hinge_only) == tau).all()
            pendulum.overlaid(overlay).inverse_dynamics(q, rate, hinge_only, passive=False)
        pendulum.with_payload(Payload(link, 2.0)).inverse_dynamics(q, v, a)
    assert not later_kernels


def test_calls_without_an_overlay_run_no_overlay_code() -> None:
    """For one state, a batch and the slow path."""
    pendulum = Robot.from_urdf(URDF / "double_pendulum.urdf")
    q, v, a = np.random.default_rng(0).normal(size=(3, 2))
    pendulum.inverse_dynamics(q, v, a)
    code_files: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            code_files.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        pendulum.inverse_dynamics(q, v, a)
        of_one = len(code_files)
        pendulum.inverse_dynamics(np.stack([q] * 5), v, a)
        pendulum.evaluate("inverse_dynamics", {"q": q, "v": v, "a": a})
    finally:
        sys.setprofile(None)
    assert of_one <= 6
    assert not [name for name in code_files if "overla" in Path(name).name and name != __file__]


def test_two_threads_with_an_overlay_each() -> None:
    """On one robot without compiled kernels: each thread gets its own result, to the last bit."""
    pendulum = Robot.from_urdf(URDF / "double_pendulum.urdf")
    q, v, a = np.random.default_rng(0).normal(size=(3, 2))
    answers_of: list[list[Any]] = [[], [], [], []]

    def ask(k: int) -> None:
        overlay = Overlay(Payload(pendulum.link_names[-1], k + 1.0), gravity=(0.0, 0.0, -float(k)))
        view = pendulum.overlaid(overlay)
        for _ in range(100):
            answers_of[k] += [pendulum.inverse_dynamics(q, v, a, overlay=overlay), view.inverse_dynamics(q, v, a)]

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(len(answers_of))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {len(answers) for answers in answers_of} == {200}
    assert all(np.array_equal(answer, answers[0]) for answers in answers_of for answer in answers)
    assert len({float(answers[0][0]) for answers in answers_of}) == 4


def test_fast_paths_give_the_same_bits() -> None:
    """A single state of an overlaid robot takes the fast path and equals its batch; locked joints are checked."""
    pendulum = Robot.from_urdf(URDF / "double_pendulum.urdf")
    view = pendulum.overlaid(drawn(pendulum, 5).overlay)
    q, v, a = np.random.default_rng(0).normal(size=(3, 7, 2))
    whole = view.inverse_dynamics(q, v, a)
    call = view.evaluator.direct_calls["inverse_dynamics"]
    for k in range(7):
        assert call((q[k], v[k], a[k]), QUERIES["inverse_dynamics"].argument_defaults) is not None
        assert (view.inverse_dynamics(q[k], v[k], a[k]) == whole[k]).all()
        assert (view.inverse_dynamics(q[k].tolist(), v[k], a[k]) == whole[k]).all()
    batched = pendulum.overlaid(Overlay(Payload(pendulum.link_names[-1], np.arange(1.0, 8.0))))
    for k in range(7):
        single = pendulum.overlaid(Overlay(Payload(pendulum.link_names[-1], k + 1.0)))
        assert (single.inverse_dynamics(q[k], v[k], a[k]) == batched.inverse_dynamics(q, v, a)[k]).all()
    locked = pendulum.overlaid(Overlay(locked=[pendulum.joint_names[0]]))
    zero = np.zeros(2)
    for _ in range(2):
        assert locked.inverse_dynamics(q[0], zero, zero)[0] == 0.0
        with pytest.raises(InvalidArgumentError, match="which is locked, must be 0"):
            locked.inverse_dynamics(q[0], v[0], a[0])


MASSLESS = """<robot name="r">
<link name="base"/><link name="between"/><link name="arm"><inertial><origin xyz="0.1 0 0"/><mass value="1"/>
<inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial></link><link name="tip"/>
<joint name="a" type="revolute"><parent link="base"/><child link="between"/><axis xyz="0 0 1"/>
<limit lower="-1" upper="1" effort="1" velocity="1"/></joint>
<joint name="b" type="revolute"><parent link="between"/><child link="arm"/><axis xyz="0 1 0"/>
<limit lower="-1" upper="1" effort="1" velocity="1"/></joint>
<joint name="c" type="revolute"><parent link="arm"/><child link="tip"/><axis xyz="0 1 0"/>
<limit lower="-1" upper="1" effort="1" velocity="1"/></joint></robot>"""


@pytest.mark.parametrize("method", ["articulated", "mass_matrix"])
def test_a_massless_branch_may_get_inertia_or_be_locked(method: Any) -> None:
    """Joint c moves no mass. Forward dynamics accepts it if its link gets mass or the joint is locked."""
    chain = interpreted_robot(Robot.from_urdf(MASSLESS))
    q, v, tau = np.random.default_rng(0).uniform(-0.5, 0.5, (3, 3))
    with pytest.raises(FailedPreconditionError, match="joint 'c'"):
        chain.forward_dynamics(q, v, tau, method=method)
    with pytest.raises(FailedPreconditionError, match="joint 'c'"):
        chain.forward_dynamics(q, v, tau, method=method, overlay=Overlay(Payload("arm", 1.0)))
    with pytest.raises(FailedPreconditionError, match="joint 'c'"):  # only one of two robots has mass
        chain.forward_dynamics(q, v, tau, method=method, overlay=Overlay(Payload("tip", 1.0, ([0, 0, 0], [0.1, 0, 0]))))
    heavy = Overlay(Payload("tip", [1.0, 2.0], (0.1, 0.0, 0.0)))
    a = chain.forward_dynamics(q, v, tau, method=method, overlay=heavy)
    assert a.shape == (2, 3)
    assert np.isfinite(a).all()
    # A solution and its reverse: rounding times the condition of a light branch.
    assert apart(chain.inverse_dynamics(q, v, a, overlay=heavy), np.array([tau, tau])) < 1e-12
    lock = Overlay(locked=["c"])
    v[2] = 0.0
    with np.errstate(all="raise"):
        a = chain.forward_dynamics(q, v, tau, method=method, overlay=lock)
    assert np.isfinite(a).all()
    assert a[2] == 0.0
    assert apart(chain.inverse_dynamics(q, v, a, overlay=lock), tau * (1, 1, 0)) < 1e-12


HAND = Payload("panda_hand", 1.0)
FAULTS: list[tuple[str, Any, list[str]]] = [
    ("", 3.0, ["overlay", "float", "3.0"]),
    (".links.hand", Overlay(links={"hand": Inertial(1.0)}), ["'panda'", "'hand'"]),
    (".links.panda_hand.mass", Overlay(links={"panda_hand": Inertial(0.0)}), ["0", "must", "positive"]),
    (".links.panda_hand.mass", Overlay(links={"panda_hand": Inertial([1.0, -2.0])}), ["found -2"]),
    (".links.panda_hand.inertia", Overlay(links={"panda_hand": Inertial(inertia=np.triu(np.ones((3, 3))))}),
     ["must be symmetric"]),
    (".links.panda_hand.inertia", Overlay(links={"panda_hand": Inertial(inertia=np.diag([1.0, 1.0, -0.5]))}),
     ["-0.5", "1", "principal", "moments"]),
    (".links.panda_hand.inertia",
     Overlay(links={"panda_hand": Inertial(inertia=[np.eye(3), np.diag([1.0, 1.0, 2.1])])}),
     ["1", "2.1", "principal", "moments"]),
    (".links.panda_link8.mass", Overlay(links={"panda_link8": Inertial(com=(0, 0, 1))}), ["must be given"]),
    (".payloads.mass", Overlay(Payload("panda_hand", -1.0)), ["-1", "must", "at least 0 kg"]),
    (".payloads[0].link", Overlay([Payload("hand", 1.0)]), ["has no link 'hand'"]),
    (".joints.panda_joint9", Overlay(joints={"panda_joint9": JointNumbers(1.0)}), ["'panda_joint9'", "joint", "moves"]),
    (".joints.panda_joint8", Overlay(joints={"panda_joint8": JointNumbers(1.0)}), ["'panda_joint8'", "joint", "moves"]),
    (".joints.panda_joint1.damping", Overlay(joints={"panda_joint1": JointNumbers(-1.0)}),
     ["must be at least 0, found -1"]),
    (".joints.panda_joint1.friction_width", Overlay(joints={"panda_joint1": JointNumbers(friction_width=[1.0, 0.0])}),
     ["must be more than 0, found 0"]),
    (".locked[0]", Overlay(locked=["elbow"]), ["'elbow'", "joint", "moves"]),
    (".locked[0]", Overlay(locked=["panda_finger_joint2"]), ["'panda_finger_joint2'", "'panda_finger_joint1'"]),
    (".joints.panda_joint1", Overlay(joints={"panda_joint1": JointNumbers(1.0)}, locked=["panda_joint1"]),
     ["'panda_joint1'", "joint", "locked"]),
    (".joints.panda_finger_joint2",
     Overlay(joints={"panda_finger_joint2": JointNumbers(1.0)}, locked=["panda_finger_joint1"]),
     ["'panda_finger_joint2'", "'panda_finger_joint1'"]),
    (".links.panda_hand", Overlay(links={"panda_hand": Inertial([1.0, 1e99], (0.0, 0.0, 10.0))}),
     ["1e+101", "2", "1e+100", "inertia", "origin"]),
    (".payloads", Overlay(Payload("panda_hand", 1e200, (1e-60, 0.0, 0.0))), ["1e+140", "1e+100", "moment", "origin"]),
]  # fmt: skip


@pytest.mark.parametrize(("place", "overlay", "values"), FAULTS, ids=range(len(FAULTS)))
def test_faults(place: str, overlay: Any, values: list[str]) -> None:
    """The error and its path are the same for a query, a computation and an overlaid robot."""
    arm = panda()
    zero = np.zeros(arm.nv)
    for ask, path in (
        (lambda: arm.inverse_dynamics(zero, zero, zero, overlay=overlay), f"inputs.overlay{place}"),
        (lambda: arm.simulate(zero, zero, dt=1e-3, steps=1, overlay=overlay), f"overlay{place}"),
        (lambda: arm.overlaid(overlay), f"overlay{place}"),
    ):
        with pytest.raises(DynError) as error:
            ask()
        assert isinstance(error.value, InvalidArgumentError | NotFoundError)
        assert error.value.path == path
        assert unnamed(error.value, *values) == []


def test_contradictions() -> None:
    arm = panda()
    zero = np.zeros(arm.nv)
    state = (zero, zero, zero)
    with_gravity, damped = Overlay(gravity=GRAVITY), Overlay(joints={"panda_joint1": JointNumbers(1.0)})
    cases: list[tuple[Callable[[], Any], str, str]] = [
        (lambda: arm.inverse_dynamics(*state, gravity=GRAVITY, overlay=with_gravity), "inputs.overlay.gravity",
         "twice"),
        (lambda: arm.verify(*state, gravity=GRAVITY, overlay=with_gravity), "overlay.gravity", "twice"),
        (lambda: arm.inverse_dynamics(*state, passive=False, overlay=damped), "inputs.overlay.joints", "passive=False"),
        (lambda: arm.simulate(zero, zero, dt=1e-3, steps=1, passive=False, overlay=damped), "overlay.joints",
         "passive=False"),
        (lambda: arm.inverse_dynamics(zero, zero, zero, overlay=Overlay(HAND_LEADS)), "inputs",
         "do not broadcast against each other"),
        (
            lambda: arm.simulate_rheonomic(
                {"panda_joint1": np.zeros((3, 3))}, zero[1:], zero[1:], dt=1e-3, steps=1, overlay=LOCKED
            ),
            "overlay.locked",
            "prescribe them to stand still",
        ),
    ]  # fmt: skip
    for ask, path, message in cases:
        with pytest.raises(InvalidArgumentError, match=message) as error:
            ask()
        assert error.value.path == path
    moving = zero + (np.arange(arm.nv) == 2)
    for row in ("inverse_dynamics", "link_motion", "body_recursion"):
        for k in (1, 2):
            states: list[Any] = [zero, zero, zero]
            states[k] = np.stack([zero, moving])
            with pytest.raises(InvalidArgumentError, match=naming("'panda_joint3'", "locked", "0", "1")):
                getattr(arm, row)(*states, overlay=LOCKED)
    with pytest.raises(InvalidArgumentError, match="which is locked") as error:
        arm.simulate(zero, moving, dt=1e-3, steps=1, overlay=LOCKED)
    assert error.value.path == "v0"


HAND_LEADS = [Payload("panda_hand", [1.0, 2.0]), Payload("panda_link7", [1.0, 2.0, 3.0])]
LOCKED = Overlay(locked=["panda_joint3"])


def test_overlaid_robots_copy_their_arrays() -> None:
    """Later changes of the caller's arrays do not change an overlaid robot, and these arrays stay writeable."""
    arm = panda()
    arrays = {
        "mass": np.array([1.0, 2.0]),
        "com": np.array([0.1, 0.0, 0.0]),
        "inertia": 0.1 * np.eye(3),
        "damping": np.array([1.0, 2.0]),
        "gravity": np.array([0.0, 0.0, -1.6]),
        "carried": np.array([0.0, 0.2, 0.0]),
    }
    overlay = Overlay(
        Payload("panda_link7", 1.0, arrays["carried"]),
        {"panda_hand": Inertial(arrays["mass"], arrays["com"], arrays["inertia"])},
        {"panda_joint1": JointNumbers(arrays["damping"])},
        gravity=arrays["gravity"],
    )
    q, v = arm.random_configuration(seed=1), np.ones(arm.nv)
    view = arm.overlaid(overlay)
    answers = view.inverse_dynamics(q, v, v), composite.mass_matrix(view.tree, q)
    for array in arrays.values():
        array[...] = 7.0
    assert np.array_equal(view.inverse_dynamics(q, v, v), answers[0])
    assert np.array_equal(composite.mass_matrix(view.tree, q), answers[1])


def test_leading_axes_of_nested_overlays() -> None:
    """They broadcast, or an error names them: for one or two links, and for the payload of a motion."""
    arm = panda()
    three, q = arm.overlaid(Overlay(Payload("panda_hand", [1.0, 2.0, 3.0]))), arm.neutral()
    for link in ("panda_hand", "panda_link7"):
        assert three.gravity_forces(q, overlay=Overlay(Payload(link, [[1.0], [2.0]]))).shape == (2, 3, arm.nv)
        four = Payload(link, np.ones(4))
        asks: list[tuple[Callable[[], Any], str]] = [
            (lambda four=four: three.overlaid(Overlay(four)), "overlay.payloads.mass"),
            (lambda four=four: three.with_payload(four), "payload.mass"),
            (lambda four=four: three.gravity_forces(q, overlay=Overlay(four)), "overlay.payloads.mass"),
            (
                lambda four=four: three.simulate(q, 0 * q, dt=1e-3, steps=1, overlay=Overlay(four)),
                "overlay.payloads.mass",
            ),
            (
                lambda four=four: arm.simulate(
                    q, 0 * q, dt=1e-3, steps=1, overlay=Overlay(Payload("panda_hand", [1.0, 2.0, 3.0])), payload=four
                ),
                "payload.mass",
            ),
        ]
        for ask, place in asks:
            with pytest.raises(InvalidArgumentError, match=naming("'panda' (3,)", f"{place} (4,)")):
                ask()


def test_numbers_of_locked_joints_are_refused() -> None:
    """Also those of its mimic joints, in one overlay or in two."""
    arm = panda()
    view = arm.overlaid(Overlay(locked=["panda_joint3", "panda_finger_joint1"]))
    for joint, why in (
        ("panda_joint3", "is locked"),
        ("panda_finger_joint1", "is locked"),
        ("panda_finger_joint2", "follows 'panda_finger_joint1', which is locked"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"joint '{joint}' {why}") as error:
            view.overlaid(Overlay(joints={joint: JointNumbers(stiffness=30.0, rest=1.0)}))
        assert error.value.path == f"overlay.joints.{joint}"
    twice_overlaid = view.overlaid(Overlay(locked=["panda_joint1"], joints={"panda_joint2": JointNumbers(1.0)}))
    assert twice_overlaid.tree.locked_joints == {"panda_joint1", "panda_joint3", "panda_finger_joint1"}


def test_nan_and_infinity_at_a_locked_joint_are_refused() -> None:
    """NaN gives NaN at a movable joint, and is refused at a locked one."""
    view = panda().overlaid(LOCKED)
    zero = np.zeros(view.nv)
    for value in (np.nan, np.inf):
        v = np.array(zero)
        v[0] = value
        assert not np.isfinite(view.inverse_dynamics(zero, v, zero)).all()
        with pytest.raises(InvalidArgumentError, match=naming("'panda_joint3'", "locked")):
            view.inverse_dynamics(zero, np.full(view.nv, value), zero)


def test_the_overlay_of_overlaid_robots_is_complete() -> None:
    """It includes gravity and locks; differences that an overlay cannot express are refused."""
    arm = panda()
    edit = drawn(arm, 6)
    targets = [
        arm.overlaid(Overlay(edit.overlay.payloads, gravity=(0.0, 0.0, g), locked=["panda_joint3"]))
        for g in (-9.81, -1.6)
    ]
    overlay = arm.overlay_of(targets)
    assert list(overlay.locked) == ["panda_joint3"]
    q, a = arm.random_configuration(seed=1), np.ones(arm.nv) * (np.arange(arm.nv) != 2)
    tau = arm.inverse_dynamics(q, a, a, overlay=overlay)
    for k, other in enumerate(targets):
        assert apart(tau[k], other.inverse_dynamics(q, a, a)) < 1e-14
        single_overlay = arm.overlay_of(other)
        assert apart(arm.overlaid(single_overlay).inverse_dynamics(q, a, a), other.inverse_dynamics(q, a, a)) < 1e-14
    assert not any((arm.overlay_of([]).links, arm.overlay_of([]).joints, arm.overlay_of([]).locked))
    assert targets[0].overlay_of(targets[0]).locked == ()
    batched = arm.overlaid(Overlay(Payload("panda_hand", [1.0, 2.0])))
    cases: list[tuple[Robot, Any, str]] = [
        (arm, [arm, targets[0]], r"joint 'panda_joint3' is locked, unlike that of 'panda'"),
        (arm, [targets[0], arm], r"joint 'panda_joint3' is not locked, unlike"),
        (targets[0], arm, r"joint 'panda_joint3' is not locked"),
        (arm, batched, r"numbers have leading axes \(2,\)"),
        (arm, "panda", r"others\[0\] must be a Robot, found str 'p'"),
    ]
    for base, others_given, why in cases:
        with pytest.raises(InvalidArgumentError, match=why):
            base.overlay_of(others_given)


def test_the_overlay_of_a_joint_with_several_degrees_of_freedom() -> None:
    """A width in the file is the same for translations and rotations; the defaults differ, and no overlay has both."""
    floating = robot("floating")
    root = floating.joint_names[0]
    of_width = floating.overlaid(Overlay(joints={root: JointNumbers(friction=1.0, friction_width=0.1)}))
    restored = floating.overlaid(floating.overlay_of(of_width))
    assert np.array_equal(restored.tree.passive.width, of_width.tree.passive.width)
    with pytest.raises(InvalidArgumentError, match=naming(f"'{root}'", "friction_width")):
        of_width.overlay_of(floating)


def test_omitted_numbers_are_unchanged() -> None:
    """Only the mass of a link, or only the damping of a joint; also on an overlaid robot with other numbers."""
    arm = panda()
    first = arm.tree.inertia[arm.link_names.index("panda_link3")]
    view = arm.overlaid(Overlay(links={"panda_link3": Inertial(mass=9.0)}))
    other = view.tree.inertia[arm.link_names.index("panda_link3")]
    assert other.mass == 9.0
    assert np.array_equal(other.com, first.com)
    assert np.allclose(other.about_com, first.about_com, rtol=1e-15)
    view = view.overlaid(Overlay(joints={"panda_joint2": JointNumbers(damping=3.0)}))
    assert view.tree.inertia[arm.link_names.index("panda_link3")].mass == 9.0
    assert view.tree.passive.damping.tolist() == [3.0 if k == 1 else d for k, d in enumerate(arm.tree.passive.damping)]
    assert np.array_equal(view.tree.passive.friction, arm.tree.passive.friction)


def test_a_changed_mass_keeps_the_axes_of_the_inertia() -> None:
    """The tree equals that of the edited file to the last bit: small moments keep their digits only in these axes."""
    text = (
        '<robot name="rod"><link name="world"/><link name="rod"><inertial><origin xyz="0.1 0 0.3" rpy="0.3 0.7 -0.4"/>'
        '<mass value="{}"/><inertia ixx="1e-9" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>'
        '<joint name="j" type="continuous"><parent link="world"/><child link="rod"/><axis xyz="1 0 0"/></joint></robot>'
    )
    view = Robot.from_urdf(text.format(1.0)).overlaid(Overlay(links={"rod": Inertial(mass=2.0)}))
    edited = Robot.from_urdf(text.format(2.0)).tree.inertia[1]
    inertia = view.tree.inertia[1]
    assert inertia.centre is not None
    assert edited.centre is not None
    for array, other in zip(inertia.centre, edited.centre, strict=True):
        assert np.array_equal(array, other)
    assert inertia.centre[2].tolist() == np.diag([1e-9, 1.0, 1.0]).tolist()


def test_formulations_agree_with_an_overlay() -> None:
    """For one robot, several robots, and locked joints."""
    for name, share in (("panda", 0.6), ("all types", 0.5)):
        base_robot = robot(name)
        rng = np.random.default_rng(0)
        q, (v, a) = base_robot.random_configuration(seed=2), rng.normal(size=(2, base_robot.nv))
        overlay_of_many = drawn(base_robot, 3, share).overlay
        overlay_of_many = Overlay(
            [*overlay_of_many.payloads, Payload(base_robot.link_names[-1], [1.0, 2.0])],
            overlay_of_many.links,
            overlay_of_many.joints,
        )  # type: ignore[misc,list-item]
        locked = [joint for joint in base_robot.joint_names[1::3] if joint not in overlay_of_many.joints]
        for overlay in (overlay_of_many, Overlay(locked=locked)):
            is_locked = np.array([joint in overlay.locked for joint in base_robot.configuration.velocity_joints])
            residual_of = base_robot.verify(q, v * ~is_locked, a * ~is_locked, overlay=overlay)
            assert len(residual_of) == 14
            # A hundred times below the bound of `dyn check`: drawn inertias are well conditioned.
            assert max(float(x.max()) for x in residual_of.values()) < 1e-11
        with pytest.raises(InvalidArgumentError, match="gravity must be"):
            residuals(base_robot, q, v, a, gravity=[1.0])


@pytest.mark.parametrize("integrator", ["rk4", "semi_implicit_euler", "stick_slip", "implicit_midpoint", "adaptive"])
def test_a_motion_of_many_robots_equals_single_motions(integrator: Any) -> None:
    arm = panda()
    masses, damping = [0.5, 1.0, 2.0], [0.1, 1.0, 3.0]

    def overlay(m: Any, d: Any) -> Overlay:
        return Overlay(Payload("panda_hand", m), joints={"panda_joint2": JointNumbers(damping=d, friction=d)})

    start = (arm.random_configuration(seed=1), np.zeros(arm.nv))
    options_of_run: dict[str, Any] = {"dt": 1e-3, "steps": 4, "integrator": integrator}
    batch_motion = arm.simulate(*start, overlay=overlay(masses, damping), **options_of_run)
    assert batch_motion.q.shape == (3, 5, arm.nv)
    bound_motion = arm.overlaid(overlay(masses, damping)).simulate(*start, **options_of_run)
    assert np.array_equal(bound_motion.q, batch_motion.q)
    for k in range(3):
        single_motion = arm.simulate(*start, overlay=overlay(masses[k], damping[k]), **options_of_run)
        tolerance = 1e-9 if integrator == "adaptive" else 1e-14  # robots share adaptive steps
        assert apart(batch_motion.q[k], single_motion.q) < tolerance
        assert np.abs(batch_motion.v[k] - single_motion.v).max() < (1e-9 if integrator == "adaptive" else 1e-12)
    assert apart(batch_motion.v[0], batch_motion.v[2]) > 1e-3


def test_contacts_and_stops_with_different_friction() -> None:
    """Robots with different friction and damping: a joint held by friction in one robot moves in another."""
    arm = panda()
    start = (arm.random_configuration(seed=1), np.full(arm.nv, 0.2))
    options_of_run: dict[str, Any] = {"dt": 1e-3, "steps": 3, "position_limits": True, "integrator": "stick_slip"}
    friction, damping = np.array([[0.0, 0.0], [0.1, 40.0], [3.0, 0.0]]), [0.0, 2.0, 1.0]

    def overlay(f: Any, d: Any) -> Overlay:
        numbers = {"panda_joint2": JointNumbers(friction=f[..., 0], damping=d)}
        return Overlay(joints={**numbers, "panda_joint5": JointNumbers(friction=f[..., 1])})

    batch_motion = arm.simulate(*start, overlay=overlay(friction, damping), **options_of_run)
    for k in range(3):
        single_motion = arm.simulate(*start, overlay=overlay(friction[k], damping[k]), **options_of_run)
        for name in ("q", "v", "stop_efforts", "work", "stored", "dissipated"):
            assert apart(getattr(batch_motion, name)[k], getattr(single_motion, name)) < 1e-12, name
    held_joint = arm.joint_names.index("panda_joint5")
    assert batch_motion.v[1, -1, held_joint] == 0.0 != batch_motion.v[0, -1, held_joint]


SUPPORTS: list[dict[str, Any]] = [
    {"contacts": Contact("panda_hand", plane=(0.0, 0.0, 1.0)), "position_limits": True, "velocity_limits": True},
    {"contacts": Contact("panda_hand", plane=(0.0, 0.0, 1.0), rigid=True)},
    {"effort_limits": True},
]


@pytest.mark.parametrize("integrator", ["rk4", "semi_implicit_euler", "stick_slip"])
@pytest.mark.parametrize("supports", SUPPORTS, ids=lambda case: next(iter(case)))
def test_contacts_and_stops_of_many_robots(integrator: Any, supports: dict[str, Any]) -> None:
    """For as many robots as joints, or fewer: each moves as it does alone, with its own energies."""
    arm = panda()
    q, v = arm.neutral() + 0.05, np.linspace(-1.0, 1.0, arm.nv)
    options_of_run: dict[str, Any] = {"dt": 1e-3, "steps": 2, "integrator": integrator, **supports}

    def overlay(numbers: np.ndarray) -> list[Overlay]:
        joint = JointNumbers(damping=numbers, friction=numbers * (numbers > 1.0))
        return [
            Overlay(Payload("panda_hand", numbers)),
            Overlay(joints={"panda_joint4": joint, "panda_joint6": joint}),
            Overlay(gravity=numbers[..., None] * np.array([0.0, 3.0, -3.0])),
        ]

    ends = [
        [arm.simulate(q, v, overlay=single_overlay, **options_of_run) for single_overlay in overlay(np.float64(x))]
        for x in (0.5, 2.0)
    ]
    for count in (2, arm.nv):
        for kind, overlay_of_many in enumerate(overlay(np.linspace(0.5, 2.0, count))):
            batch_motion = arm.simulate(q, v, overlay=overlay_of_many, **options_of_run)
            for k, single_motions in zip((0, count - 1), ends, strict=True):
                for name, expected in vars(single_motions[kind]).items():
                    if name != "t" and isinstance(expected, np.ndarray):
                        row = getattr(batch_motion, name)[k]
                        assert apart(row, expected) < (1e-12 if name in "qv" else 1e-9), (name, kind)


def test_held_points_of_many_robots() -> None:
    arm = panda()
    start, masses = (arm.neutral() + 0.05, np.zeros(arm.nv)), [0.5, 2.0]
    ground = Contact("panda_hand", plane=(0.0, 0.0, 1.0))
    answers = arm.contact_dynamics(*start, np.zeros(arm.nv), ground, overlay=Overlay(Payload("panda_hand", masses)))
    for k, mass in enumerate(masses):
        single = arm.contact_dynamics(*start, np.zeros(arm.nv), ground, overlay=Overlay(Payload("panda_hand", mass)))
        # Two solutions with the contact's inertia, each as exact as its condition number allows.
        assert apart(answers.a[k], single.a) < 1e-10


@pytest.mark.parametrize("integrator", ["rk4", "stick_slip", "implicit_midpoint", "adaptive", "explicit_euler"])
def test_locked_joints_do_not_move(integrator: Any) -> None:
    """Locked joints are constant to the last bit under any efforts; the others move as with a fixed joint."""
    arm = panda()
    q, tau = arm.random_configuration(seed=4), np.full(arm.nv, 2.0)
    names = ["panda_joint3", "panda_finger_joint1"]
    overlay, options_of_run = Overlay(locked=names), {"dt": 1e-3, "steps": 4, "integrator": integrator}
    other = interpreted_robot(Robot(fixed(arm, q, names)))
    free = np.array([joint not in names for joint in arm.joint_names])
    expected = other.simulate(q[free], np.zeros(free.sum()), tau[free], **options_of_run)
    for efforts in (tau, np.tile(tau, (4, 1)), lambda t, q, v: tau):
        motion = arm.simulate(q, np.zeros(arm.nv), efforts, overlay=overlay, **options_of_run)
        assert (motion.q[:, ~free] == q[~free]).all()
        assert (motion.v[:, ~free] == 0.0).all()
        # Four steps of a robot with fewer bodies, whose sums have another order; velocities are larger by 1 / dt.
        assert apart(motion.q[:, free], expected.q) < 1e-12
        assert apart(motion.v[:, free], expected.v) < 1e-9


def test_gravity_of_an_overlay_equals_the_argument() -> None:
    """In all computations with gravity, also of overlaid robots; except `verify`, which returns rounding errors."""
    arm, moon = panda(), np.array([0.1, -0.2, -1.6])
    q, v = arm.random_configuration(seed=1), np.full(arm.nv, 0.3)
    foot, driven_joint = Contact("panda_hand", rigid=True), arm.joint_names[0]
    calls: dict[str, Callable[..., Any]] = {
        "simulate": lambda subject, **extra: subject.simulate(q, v, dt=1e-3, steps=5, **extra).q,
        "contact_dynamics": lambda subject, **extra: subject.contact_dynamics(q, v, v, foot, **extra).a,
        "ground_reactions": lambda subject, **extra: (
            subject.ground_reactions(q, v, v, foot, undriven=[driven_joint], **extra).tau
        ),
        "simulate_rheonomic": lambda subject, **extra: (
            subject.simulate_rheonomic({driven_joint: np.zeros((5, 3))}, q[1:], v[1:], dt=1e-3, steps=2, **extra).q
        ),
        "independent_motion": lambda subject, **extra: subject.independent_motion(q, v, **extra).bias_forces,
        "constraint_force_causes": lambda subject, **extra: subject.constraint_force_causes(q, v, v, **extra).weights,
    }
    with_gravity = {name for name, row in COMPUTATIONS.items() if row.robot and row.first("gravity")}
    assert calls.keys() == with_gravity - {"verify"}
    for name, ask in calls.items():
        weighted = ask(arm, gravity=moon)
        assert not np.array_equal(weighted, ask(arm)), name
        # Gravity enters as an acceleration in one and as a number of the overlay in the other.
        assert apart(ask(arm, overlay=Overlay(gravity=moon)), weighted) < 1e-12, name
        assert np.array_equal(ask(arm.overlaid(Overlay(gravity=moon))), ask(arm, overlay=Overlay(gravity=moon))), name


@pytest.mark.parametrize("integrator", ["rk4", "stick_slip"])
def test_a_joint_locked_beyond_its_limit_meets_no_stop(integrator: Any) -> None:
    """The stop of a locked joint stores and dissipates no energy; that of the other joint acts."""
    arm = panda()
    q = arm.neutral()
    locked, beyond_stop = arm.joint_names.index("panda_joint4"), arm.joint_names.index("panda_joint6")
    q[locked], q[beyond_stop] = arm.limits.upper[locked] + 0.1, arm.limits.upper[beyond_stop] + 1e-3
    options_of_run: dict[str, Any] = {"dt": 1e-3, "steps": 5, "integrator": integrator}
    overlay = Overlay(locked=["panda_joint4"])
    motion = arm.simulate(
        q, np.zeros(arm.nv), overlay=overlay, position_limits=True, velocity_limits=True, **options_of_run
    )
    assert (motion.stop_efforts[:, locked] == 0.0).all()
    assert motion.stop_efforts[0, beyond_stop] < -1.0
    q_within = np.array(q)
    q_within[locked] = arm.limits.upper[locked] - 0.1
    other = arm.simulate(q_within, np.zeros(arm.nv), overlay=overlay, position_limits=True, **options_of_run)
    assert motion.stored[0, 0] == other.stored[0, 0] > 0.0  # only from the stop of the other joint


@pytest.mark.parametrize("integrator", ["rk4", "stick_slip", "implicit_midpoint", "adaptive"])
def test_a_motion_with_a_gravity_for_each(integrator: Any) -> None:
    """Gravity is the only number of an overlay that is not in the tree; its leading axes mean several robots too."""
    arm = panda()
    gravity = np.array([[[0.0, 0.0, -9.81]], [[1.0, 0.0, -1.6]], [[0.0, 0.0, 0.0]]])
    start = (arm.random_configuration(seed=1), np.zeros(arm.nv))
    options_of_run: dict[str, Any] = {"dt": 1e-3, "steps": 3, "integrator": integrator}
    overlay = Overlay(Payload("panda_hand", [1.0, 2.0]), gravity=gravity)
    batch_motion, bound_motion = (
        arm.simulate(*start, overlay=overlay, **options_of_run),
        arm.overlaid(overlay).simulate(*start, **options_of_run),
    )
    assert batch_motion.q.shape == (3, 2, 4, arm.nv)
    assert np.array_equal(bound_motion.q, batch_motion.q)
    for k, mass in np.ndindex(3, 2):
        single_overlay = Overlay(Payload("panda_hand", mass + 1.0), gravity=gravity[k, 0])
        tolerance = 1e-9 if integrator == "adaptive" else 1e-13
        assert (
            apart(batch_motion.q[k, mass], arm.simulate(*start, overlay=single_overlay, **options_of_run).q) < tolerance
        )
    gravity_motion = arm.simulate(*start, overlay=Overlay(gravity=gravity), **options_of_run)
    assert gravity_motion.q.shape == (3, 1, 4, arm.nv)
    with pytest.raises(InvalidArgumentError, match=naming("(4, 1)", "gravity (3, 1)")):
        arm.overlaid(Overlay(gravity=gravity)).simulate(
            *start, overlay=Overlay(Payload("panda_hand", np.ones((4, 1)))), **options_of_run
        )


WITHOUT_OVERLAY = ("imu", "link_poses", "integrate", "difference", "joint_wrench_regressor", "momentum_regressor")
"""Queries that depend on no number of an overlay; `imu` and regressors have gravity as an input."""


GEOMETRIC = ("loop_error", "assemble")
"""Computations about poses alone, which no number of an overlay changes."""


def test_every_computation_accepts_overlays() -> None:
    for name, row in COMPUTATIONS.items():
        assert bool(row.of_kind("overlay")) == (row.robot and name not in GEOMETRIC), name
    independent_queries = {row.name for row in QUERIES.values() if row.inputs} - {row.name for row in ROWS}
    instruction = "add it if no number of an overlay changes its answer; otherwise its row needs the input `overlay`"
    assert_complete(
        WITHOUT_OVERLAY, independent_queries, "WITHOUT_OVERLAY in tests/engine/test_overlays.py", instruction
    )


@pytest.mark.parametrize("name", wide(ROBOTS, {"floating", "following"}.__contains__))
def test_certificates_hold_at_drawn_numbers(name: str) -> None:
    base_robot = robot(name)
    for query in ("inverse_dynamics", "forward_dynamics", "body_recursion", "equation_terms"):
        row = QUERIES[query]
        for method in row.kernels:
            signature = base_robot.signature(row, method, Variant(overlay=True))
            _, certificate = certified(base_robot.tree, signature, interpreted)
            assert certificate.holds, certificate
            assert certificate.states >= 10


def test_numbers_are_drawn_apart() -> None:
    """The robot's own; other ones with all passive forces; and none of these with locked joints."""
    base_robot = robot("all types")
    own_numbers, other_numbers, locked = drawn_numbers(base_robot.tree)
    assert own_numbers is base_robot.tree
    assert other_numbers.passive.acts == set(PASSIVE_PARTS)
    for own_body, other_body in zip(own_numbers.inertia, other_numbers.inertia, strict=True):
        assert other_body.mass != own_body.mass or own_body.mass == 0.0
    assert not locked.passive.acts
    assert locked.free is not None
    assert 0.0 < locked.free.sum() < base_robot.nv


PERTURBED_INERTIAS: dict[str, Callable[[Any], Any]] = {
    "mass": lambda body: graph.SymbolicInertia(body.mass * (1 + 1e-13), body.com, body.about_com),
    "com": lambda body: graph.SymbolicInertia(body.mass, body.com * (1 + 1e-13), body.about_com),
    "inertia": lambda body: graph.SymbolicInertia(body.mass, body.com, body.about_com * (1 + 1e-13)),
}


@pytest.mark.parametrize("part", PERTURBED_INERTIAS)
def test_certificates_detect_small_errors(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base_robot = robot("fixed")
    right = graph.inertia_in_symbols
    monkeypatch.setattr(graph, "inertia_in_symbols", lambda body_inertia: PERTURBED_INERTIAS[part](right(body_inertia)))
    signature = base_robot.signature(QUERIES["inverse_dynamics"], "", Variant(overlay=True))
    _, certificate = certified(base_robot.tree, signature, interpreted)
    assert not certificate.holds


def test_one_overlay_for_other_robots() -> None:
    """It contains only the differences; other joint origins are refused."""
    arm = panda()
    text = (URDF / "panda.urdf").read_text()
    heavier = text.replace('<mass value="4.970684"/>', '<mass value="5.5"/>', 1)
    assert heavier != text
    targets = [Robot.from_urdf(source, joints=PANDA_JOINTS) for source in (heavier, text)]
    overlay = arm.overlay_of(targets)
    assert list(overlay.links) == ["panda_link1"]
    assert overlay.links["panda_link1"].com is None
    np.testing.assert_array_equal(overlay.links["panda_link1"].mass, [5.5, 4.970684])
    assert overlay.joints == {}
    single_overlay = arm.overlay_of(targets[0])
    assert single_overlay.links["panda_link1"].mass == 5.5
    bare = arm.overlay_of(Robot.from_urdf(text))
    assert set(bare.joints) == {name for name in arm.tree.moving_joints if "joint" in name and name in bare.joints}
    assert arm.overlaid(bare).tree.passive.acts == frozenset()
    moved_text = text.replace('<origin xyz="0 0 0.333"', '<origin xyz="0 0 0.334"', 1)
    if moved_text == text:
        moved_text = text.replace("0.333", "0.334", 1)
    with pytest.raises(InvalidArgumentError, match=naming("'panda_joint1'", "origin")):
        arm.overlay_of([Robot.from_urdf(text), Robot.from_urdf(moved_text)])
    with pytest.raises(InvalidArgumentError, match="its links are"):
        arm.overlay_of(robot("fixed"))


def test_pivots_are_of_matrices_above_a_bound() -> None:
    rng = np.random.default_rng(0)
    A = rng.normal(size=(200, 3, 3))
    A = A + A.mT
    bounds = rng.normal(size=200)
    assert np.array_equal(eigenvalues_exceed(A, bounds), np.linalg.eigvalsh(A)[:, 0] > bounds)


def test_inertias_with_leading_axes_equal_single_ones() -> None:
    rng = np.random.default_rng(0)
    masses, coms = rng.uniform(1, 2, 5), rng.normal(size=(5, 3))
    inertias = np.array([np.eye(3) * m for m in rng.uniform(1, 2, 5)])
    R, p = np.linalg.qr(rng.normal(size=(3, 3)))[0], rng.normal(size=3)
    other = BodyInertia.from_com(0.5, np.ones(3), np.eye(3))
    batch = BodyInertia.from_com(masses, coms, inertias).transformed(R, p) + other
    for k in range(5):
        single = BodyInertia.from_com(float(masses[k]), coms[k], inertias[k]).transformed(R, p) + other
        for part in ("mass", "moment", "about_origin", "com", "about_com", "matrix"):
            # NumPy may add in another order in arrays of several robots.
            np.testing.assert_allclose(getattr(batch, part)[k], getattr(single, part), rtol=1e-15, atol=1e-15)
