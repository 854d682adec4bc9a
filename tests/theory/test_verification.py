"""The self-check held honest: one wrong answer is seen by the residuals that compare it, and by no other.

`SEEN_BY` says for each answer that `verify` uses which residuals may change. A residual that compared an answer with
itself, or took the smaller of two differences, would miss its entry; one that compared the wrong pair would have one
too many.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dyn_service.engine.robot import Robot
from dyn_service.formulations import verification
from dyn_service.formulations.verification import residuals, survey
from dyn_service.formulations.world_equations import WorldEquations
from tests.comparing import assert_formulations_agree
from tests.conftest import URDF
from tests.oracle.example_robots import path_of
from tests.terms.interpreting import interpreting

AGREE = 1e-11
"""Rounding of four joints' sums is 1e-15; the answers' own errors are 1e-16 to 1e-14."""

DETECTED_SHARE = 2e-6
"""A thousandth of an answer is more than this share of what it is compared with; Coriolis loads are the smallest."""

OF_EFFORTS = {
    "mass_matrix",
    "projected",
    "body_recursion",
    "power",
    "influence_operators",
    "constraint_power",
    "influence_solution",
    "articulated",
    "mass_matrix_solution",
    "momentum_rate",
}
"""All that compare with inverse dynamics or start from its efforts. The joint loads answer for whatever efforts act."""

SEEN_BY: dict[tuple[str, str], set[str]] = {
    ("inverse_dynamics", ""): OF_EFFORTS,
    # Not by the accelerations: M (a' - a) is zero for any M where they agree.
    ("mass_matrix", ""): {"mass_matrix", "momentum", "energy", "power", "velocity_from_momentum", "momentum_rate"},
    ("bias_forces", ""): {"mass_matrix"},
    ("gravity_forces", ""): {"power"},
    ("momentum", ""): {"momentum"},
    ("momentum_rate", ""): {"momentum_rate"},
    ("momentum_derivative", ""): {"momentum_rate", "power"},
    ("velocity_from_momentum", "articulated"): {"velocity_from_momentum"},
    ("velocity_from_momentum", "mass_matrix"): {"velocity_from_momentum"},
    ("forward_dynamics", "articulated"): {"articulated"},
    ("forward_dynamics", "mass_matrix"): {"mass_matrix_solution"},
    ("equation_terms", "mass_matrix"): {"projected"},
    ("equation_terms", "velocity_forces"): {"projected"},
    ("equation_terms", "gravity_forces"): {"projected"},
    ("equation_terms", "efforts"): set(),
    ("equation_terms", "external_forces"): set(),
    ("body_recursion", "tau"): {"body_recursion"},
    ("body_recursion", "omega"): set(),
    ("energy", "kinetic"): {"energy"},
    ("energy", "potential"): set(),
    ("constraint_forces", "actuation"): {"constraint_forces"},
    ("constraint_forces", "wrench"): set(),
}
"""(query, its method or the field of its result) -> the residuals that detect an error in it."""

EXPLICIT: dict[str, set[str]] = {
    "mass_matrix": {"influence_operators"},
    "C": {"influence_operators", "influence_solution"},
    "M": {"influence_operators", "influence_solution", "constraint_power"},
    "B": {"influence_operators", "influence_solution", "constraint_power"},
    "applied": {"influence_operators", "influence_solution", "constraint_power"},
    "acceleration": {"influence_operators", "influence_solution", "constraint_power"},
    "velocity": {"influence_operators", "influence_solution", "constraint_power"},
    "forward_dynamics": {"influence_solution"},
}
"""The same for the explicit operators of `WorldEquations`."""


RESIDUALS = set().union(*SEEN_BY.values(), *EXPLICIT.values())
NEED_FORWARD_DYNAMICS = {
    "articulated",
    "mass_matrix_solution",
    "influence_solution",
    "velocity_from_momentum",
    "momentum_rate",
    "constraint_forces",
}


def slightly_off(x: Any) -> Any:
    """Up to a thousandth off, each entry of the last axis by another share: no scale can hide it."""
    x = np.asarray(x, dtype=float)
    return x * (1.0 + 1e-3 * np.arange(1, x.shape[-1] + 1) / x.shape[-1]) if x.ndim else x * 1.001


def all_nan(x: Any) -> Any:
    return np.full_like(np.asarray(x, dtype=float), np.nan)


@pytest.fixture(scope="module")
def robot() -> Robot:
    """Turning and sliding joints, and a fixed one."""
    return Robot.from_urdf(URDF / "scara.urdf")


@pytest.fixture
def state(robot: Robot) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(3, robot.nv))


def with_wrong(
    monkeypatch: pytest.MonkeyPatch, robot: Robot, query: str, part: str, wrong: Callable[[Any], Any]
) -> None:
    """Makes the robot's one answer, or one method's, or one field of it, wrong."""
    right = getattr(robot, query)
    by_method = "method" in inspect.signature(getattr(Robot, query)).parameters

    def answer(*args: Any, **options: Any) -> Any:
        result = right(*args, **options)
        if by_method:
            return wrong(result) if options.get("method", "articulated") == part else result
        return dataclasses.replace(result, **{part: wrong(getattr(result, part))}) if part else wrong(result)

    monkeypatch.setattr(robot, query, answer)


def disagreeing(residual_of: dict[str, Any]) -> set[str]:
    """The residuals that changed; each either clearly did or clearly did not."""
    for name, residual in residual_of.items():
        assert not AGREE < residual < DETECTED_SHARE, name
    return {name for name, residual in residual_of.items() if not residual < DETECTED_SHARE}


@pytest.mark.parametrize("gravity", [None, (0.3, 1.0, -3.7), (0.0, 0.0, 0.0)], ids=["earth", "aslant", "none"])
def test_right_answers_agree(robot: Robot, state: np.ndarray, gravity: tuple[float, ...] | None) -> None:
    assert disagreeing(residuals(robot, *state, gravity=gravity)) == set()


def test_without_movable_joints_there_is_nothing_to_disagree_on() -> None:
    residual_of = residuals(Robot.from_urdf('<robot name="r"><link name="a"/></robot>'), [], [], [])
    assert {float(residual) for residual in residual_of.values()} == {0.0}


def test_every_query_is_asked_about_the_same_state(
    monkeypatch: pytest.MonkeyPatch, robot: Robot, state: np.ndarray
) -> None:
    """Joint loads carry the efforts at any state, so the residual alone could not detect another error."""
    gravity = np.array([0.3, 1.0, -3.7])
    q, v, a = state
    tau, p = robot.inverse_dynamics(q, v, a, gravity=gravity), robot.mass_matrix(q) @ v
    expected = {"q": q, "v": v, "a": a, "tau": tau, "p": p, "gravity": gravity}
    queries = set()

    def noting(query: str, right: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*args: Any, **options: Any) -> Any:
            bound_arguments = inspect.signature(getattr(Robot, query)).bind(None, *args, **options).arguments
            takes = inspect.signature(getattr(Robot, query)).parameters
            for name in expected.keys() & takes.keys():
                np.testing.assert_allclose(
                    bound_arguments[name], expected[name], rtol=1e-12, err_msg=f"{name} of {query}"
                )
            queries.add(query)
            return right(*args, **options)

        return answer

    for query in {query for query, _ in SEEN_BY}:
        monkeypatch.setattr(robot, query, noting(query, getattr(robot, query)))
    residuals(robot, *state, gravity=gravity)
    assert queries == {query for query, _ in SEEN_BY}


@pytest.mark.parametrize(("query", "part"), SEEN_BY, ids=["-".join(filter(None, key)) for key in SEEN_BY])
def test_a_wrong_answer_is_seen_by_what_compares_it(
    monkeypatch: pytest.MonkeyPatch, robot: Robot, state: np.ndarray, query: str, part: str
) -> None:
    with_wrong(monkeypatch, robot, query, part, slightly_off)
    assert disagreeing(residuals(robot, *state)) == SEEN_BY[query, part]


@pytest.mark.parametrize(("query", "part"), SEEN_BY, ids=["-".join(filter(None, key)) for key in SEEN_BY])
def test_a_lost_answer_is_seen_too(
    monkeypatch: pytest.MonkeyPatch, robot: Robot, state: np.ndarray, query: str, part: str
) -> None:
    """A NaN is in no way near to a number. It may spoil more than its own comparison: it is in their scales."""
    with_wrong(monkeypatch, robot, query, part, all_nan)
    assert SEEN_BY[query, part] <= disagreeing(residuals(robot, *state))
    assert bool(SEEN_BY[query, part]) == (not survey(robot, states=2)["worst"] < AGREE)


@pytest.mark.parametrize("name", EXPLICIT)
def test_a_wrong_explicit_operator_is_seen(
    monkeypatch: pytest.MonkeyPatch, robot: Robot, state: np.ndarray, name: str
) -> None:
    right = inspect.getattr_static(WorldEquations, name)
    if callable(right):
        wrong: Any = lambda self, x: slightly_off(right(self, x))
    else:
        wrong = property(lambda self: slightly_off(right.func(self)))
    monkeypatch.setattr(verification, "WorldEquations", type("Wrong", (WorldEquations,), {name: wrong}))
    assert disagreeing(residuals(robot, *state)) == EXPLICIT[name]


def test_every_residual_can_tell(robot: Robot, state: np.ndarray) -> None:
    assert set(residuals(robot, *state)) == RESIDUALS


def test_relative_difference_in_numbers() -> None:
    """The largest difference over the largest entry of either side or of the scale; NaN stays NaN."""
    x, y = np.array([3.0, -4.0]), np.array([3.0, -4.5])
    assert verification.relative(x, y) == 0.5 / 4.5
    assert verification.relative(y, x) == 0.5 / 4.5
    assert verification.relative(x, -x) == 2.0
    assert verification.relative(x, y, np.array([0.0, 10.0])) == 0.05
    assert verification.relative(x, y, np.array([0.0, 1.0])) == 0.5 / 4.5
    assert verification.relative(np.array([1.0]), np.array([0.75])) == 0.25
    assert verification.relative(np.zeros(2), np.zeros(2)) == 0.0
    assert verification.relative(np.zeros(0), np.zeros(0)) == 0.0
    assert np.isnan(verification.relative(x, y * np.nan))
    assert np.isnan(verification.relative(np.zeros(2), np.array([0.0, np.nan])))
    rows = verification.relative(np.array([x, y, 0 * x]), np.array([y, y, 0 * y]))
    np.testing.assert_array_equal(rows, [0.5 / 4.5, 0.0, 0.0])


LIGHT = """<robot name="light"><link name="base"/>
<link name="arm"><inertial><origin xyz="0 0 -0.1"/><mass value="0.01"/>
<inertia ixx="1e-4" ixy="0" ixz="0" iyy="1e-4" iyz="0" izz="1e-5"/></inertial></link>
<link name="tip"><inertial><origin xyz="0 0.02 -0.1"/><mass value="0.01"/>
<inertia ixx="1e-4" ixy="0" ixz="0" iyy="1e-4" iyz="0" izz="1e-5"/></inertial></link>
<joint name="j1" type="continuous"><parent link="base"/><child link="arm"/><axis xyz="1 0 0"/></joint>
<joint name="j2" type="continuous"><parent link="arm"/><child link="tip"/><axis xyz="1 0 0"/>
<origin xyz="0 0 -0.2"/></joint></robot>"""
"""All its efforts are far below one."""


@pytest.fixture(scope="module", params=["scara", "light"])
def sized(request: pytest.FixtureRequest) -> Robot:
    return interpreting(LIGHT) if request.param == "light" else Robot.from_urdf(URDF / "scara.urdf")


@pytest.mark.parametrize("largest", ["efforts", "bias", "unit"])
def test_efforts_are_compared_at_the_size_of_what_they_are_made_of(
    monkeypatch: pytest.MonkeyPatch, sized: Robot, largest: str
) -> None:
    """The scale is the largest of the efforts, the bias forces and the efforts of a unit acceleration."""
    n = sized.nv
    q = np.linspace(0.3, 0.1, n)
    v, a, gravity = np.zeros(n), np.zeros(n), np.zeros(3)
    if largest == "efforts":
        a = -np.full(n, 1e3)
    elif largest == "bias":
        gravity = np.array([0.0, 10.0, -1e4])
        a = np.linalg.solve(sized.mass_matrix(q), -sized.gravity_forces(q, gravity=gravity))  # falls: no efforts
    sizes = {
        "efforts": np.abs(sized.inverse_dynamics(q, v, a, gravity=gravity)).max(),
        "bias": np.abs(sized.gravity_forces(q, gravity=gravity)).max(),
        "unit": np.abs(sized.mass_matrix(q)).max(),
    }
    assert max(sizes, key=lambda name: sizes[name]) == largest
    wrong = np.zeros(n)
    # A thousandth: large against rounding, small enough that it does not become the scale itself.
    wrong[-1] = 1e-3 * sizes[largest]
    faults = {
        "body_recursion": lambda result: dataclasses.replace(result, tau=result.tau + wrong),
        "bias_forces": lambda result: result + wrong,
        "equation_terms": lambda result: dataclasses.replace(result, gravity_forces=result.gravity_forces - wrong),
        "constraint_forces": lambda result: dataclasses.replace(result, actuation=result.actuation + wrong),
        "momentum_rate": lambda result: result + wrong,
    }
    reporting = {"bias_forces": "mass_matrix", "equation_terms": "projected"}
    for query, change in faults.items():
        right = getattr(sized, query)
        with monkeypatch.context() as patched:
            patched.setattr(
                sized, query, lambda *args, right=right, change=change, **options: change(right(*args, **options))
            )
            residual = sized.verify(q, v, a, gravity=gravity)[reporting.get(query, query)]
        # The wrong answer may itself be the largest, by the thousandth it is off.
        assert residual == pytest.approx(1e-3, rel=2e-3), query
    C = WorldEquations.C.func
    with monkeypatch.context() as patched:
        other = type("Wrong", (WorldEquations,), {"C": property(lambda self: C(self) + wrong)})
        patched.setattr(verification, "WorldEquations", other)
        assert sized.verify(q, v, a, gravity=gravity)["influence_operators"] == pytest.approx(1e-3, rel=2e-3)


def test_powers_are_compared_at_the_size_of_their_terms(monkeypatch: pytest.MonkeyPatch, robot: Robot) -> None:
    """Powers of joints cancel in their sum; the scale is the sum of their sizes."""
    rng = np.random.default_rng(5)
    q, v, a = rng.normal(size=(3, robot.nv))
    v = np.array([1.0, -2.0, 3.0, -0.5])
    tau, bias = robot.inverse_dynamics(q, v, a), robot.bias_forces(q, v)
    effort = np.maximum(np.maximum(np.abs(tau), np.abs(bias)), np.abs(robot.mass_matrix(q)).max())
    off_by = np.array([0.0, 1e-2, 0.0, 0.0])
    right = robot.gravity_forces
    monkeypatch.setattr(robot, "gravity_forces", lambda *args, **options: right(*args, **options) + off_by)
    residual = robot.verify(q, v, a)["power"]
    assert residual == pytest.approx(0.02 / (np.abs(v) * effort).sum(), rel=1e-9)


def test_power_of_constraints_is_compared_with_what_cancels_in_it(
    monkeypatch: pytest.MonkeyPatch, robot: Robot
) -> None:
    """The scale is the larger of two sums of sizes: over the links' powers, over the joints'. Either occurs."""
    right, larger = WorldEquations.applied.func, set()
    pushed = np.zeros((len(robot.tree), 6))
    pushed[-1, 5] = 1e-3
    for seed in range(12):
        q, v, a = np.random.default_rng(seed).normal(size=(3, robot.nv))
        tau = robot.inverse_dynamics(q, v, a)
        world = WorldEquations(robot.tree, q, v, robot.gravity)
        inertial = np.einsum("nij,nj->ni", world.M, world.acceleration(a)) + world.B - world.applied - pushed
        links, joints = np.abs(inertial * world.velocity).sum(), np.abs(v * tau).sum()
        larger.add("links" if links > joints else "joints")
        with monkeypatch.context() as patched:
            wrong = property(lambda self: right(self) + pushed)
            patched.setattr(verification, "WorldEquations", type("Wrong", (WorldEquations,), {"applied": wrong}))
            residual = robot.verify(q, v, a)["constraint_power"]
        missing = abs(1e-3 * world.velocity[-1, 5])
        # The difference is of sums a thousand times larger than itself at most: three digits less than rounding.
        assert residual == pytest.approx(missing / max(links, joints), rel=1e-9)
    assert larger == {"links", "joints"}


SOLID = '<inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>'
LIMITED = f"""<robot name="limited">{"".join(f'<link name="l{k}">{SOLID}</link>' for k in range(6))}
<joint name="j0" type="prismatic"><parent link="l0"/><child link="l5"/><limit upper="1"/></joint>
<joint name="j1" type="revolute"><parent link="l0"/><child link="l1"/><limit lower="-0.5" upper="2"/></joint>
<joint name="j2" type="continuous"><parent link="l1"/><child link="l2"/></joint>
<joint name="j3" type="prismatic"><parent link="l2"/><child link="l3"/><limit lower="1"/></joint>
<joint name="j4" type="revolute"><parent link="l3"/><child link="l4"/><limit lower="0" upper="0"/></joint></robot>"""


def test_survey_draws_within_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions fill the limits, and a turn or two metres where one is missing; the worst counts."""
    seen: dict[str, np.ndarray] = {}

    def recording_residuals(robot: Robot, q: np.ndarray, v: np.ndarray, a: np.ndarray) -> dict[str, np.ndarray]:
        seen.update(q=q, v=v, a=a)
        return {"one": np.array([1e-9, 3e-9, 0.0]), "other": np.array([2e-9, 0.0, 0.0])}

    monkeypatch.setattr(verification, "residuals", recording_residuals)
    report = survey(Robot.from_urdf(LIMITED), states=400, seed=3)
    assert report == {"residuals": {"one": 3e-9, "other": 2e-9}, "worst": 3e-9, "states": 400}
    low, high = np.array([-1.0, -0.5, -np.pi, 1.0, -np.pi]), np.array([1.0, 2.0, np.pi, 3.0, np.pi])
    assert {x.shape for x in seen.values()} == {(400, 5)}
    assert (seen["q"] >= low).all()
    assert (seen["q"] <= high).all()
    # That 400 draws leave a 50th of the range free at one of ten ends has a chance of 0.3 %; the seed is fixed.
    assert (seen["q"].min(axis=0) < low + 0.02 * (high - low)).all()
    assert (seen["q"].max(axis=0) > high - 0.02 * (high - low)).all()
    for name in ("v", "a"):
        assert seen[name].std() == pytest.approx(1.0, abs=0.1)  # of 2000 draws: 0.02 off at one sigma
    assert not np.array_equal(seen["v"], seen["a"])


def test_survey_is_the_same_for_the_same_seed(monkeypatch: pytest.MonkeyPatch, robot: Robot) -> None:
    positions: list[np.ndarray] = []
    monkeypatch.setattr(verification, "residuals", lambda robot, q, v, a: positions.append(q) or {"one": q[:, 0]})
    for options in ({}, {"states": 20, "seed": 0}, {"states": 20, "seed": 1}):
        survey(robot, **options)
    np.testing.assert_array_equal(positions[0], positions[1])
    assert not np.array_equal(positions[1], positions[2])


def test_batches_and_single_states() -> None:
    robot = Robot.from_urdf(URDF / "cart_pendulum.urdf")
    q, v, a = np.random.default_rng(0).normal(size=(3, 2, 3, robot.nv))
    batch, single = robot.verify(q, v, a), robot.verify(q[1, 2], v[1, 2], a[1, 2])
    assert {name: residual.shape for name, residual in batch.items()} == dict.fromkeys(RESIDUALS, (2, 3))
    assert {name: float(residual[1, 2]) for name, residual in batch.items()} == {
        name: float(residual) for name, residual in single.items()
    }


def test_rest_without_load_is_no_disagreement() -> None:
    robot = Robot.from_urdf(URDF / "scara.urdf")
    zero = np.zeros(robot.nv)
    assert max(robot.verify(zero, zero, zero, gravity=(0, 0, 0)).values()) < AGREE


def test_massless_mover_leaves_out_what_has_no_answer() -> None:
    robot = interpreting(
        '<robot name="r"><link name="a"/><link name="b"/>'
        '<joint name="j" type="continuous"><parent link="a"/><child link="b"/></joint></robot>'
    )
    assert set(robot.verify([0.1], [0.2], [0.3])) == RESIDUALS - NEED_FORWARD_DYNAMICS


def test_a_state_without_an_answer_is_said() -> None:
    """A wrist whose axes meet, and only whose hand has mass: in line, what turns one turns the other."""
    inertia = '<inertia ixx="0.01" iyy="0.02" izz="0.03" ixy="0" ixz="0" iyz="0"/>'
    joints = "".join(
        f'<joint name="{name}" type="continuous"><parent link="{i}"/><child link="{i + 1}"/>'
        f'<axis xyz="{axis}"/></joint>'
        for i, (name, axis) in enumerate({"roll": "0 0 1", "pitch": "0 1 0", "turn": "0 0 1"}.items())
    )
    hand = f'<link name="3"><inertial><mass value="1"/>{inertia}</inertial></link>'
    robot = interpreting(f'<robot name="r"><link name="0"/><link name="1"/><link name="2"/>{hand}{joints}</robot>')
    positions, unit = np.array([[0.3, 0.5, 0.2], [0.3, 0.0, 0.2]]), np.ones(3)
    assert max(robot.verify(positions[0], unit, unit).values()) < AGREE
    with np.errstate(invalid="ignore", divide="ignore"):
        residual_of = robot.verify(positions, unit, unit)
    assert max(float(residual[0]) for residual in residual_of.values()) < AGREE
    assert np.isnan(residual_of["influence_solution"][1])  # its own alone: the others of the batch have theirs


ICUB = "icub_description/robots/icub.urdf"


@pytest.fixture(scope="module")
def icub() -> Robot:
    """Its neck and hands make cond(M) 1e10, and each joint has a damping of 1 N m s/rad."""
    return interpreting(path_of(ICUB))


def test_momentum_rate_knows_the_condition_of_the_mass_matrix(monkeypatch: pytest.MonkeyPatch, icub: Robot) -> None:
    """Rounding of M^-1 p is no fault, and damping that is left out is: here too, joint by joint."""
    assert_formulations_agree(icub, AGREE, 5)
    joints = [*range(0, icub.nv, 6), icub.joint_names.index("neck_yaw")]
    q = np.array([icub.random_configuration(seed=k) for k in joints])
    v, a = np.random.default_rng(3).normal(size=(2, len(joints), icub.nv))
    right = icub.momentum_rate
    lost_damping = np.eye(icub.nv)[joints] * icub.passive_forces(q, v).damping  # of one joint in each state
    monkeypatch.setattr(icub, "momentum_rate", lambda *args, **options: right(*args, **options) + lost_damping)
    assert icub.verify(q, v, a)["momentum_rate"].min() > 1e-7  # a hundred times the bound of `dyn check`
