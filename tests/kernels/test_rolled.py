"""Kernels as loops equal straight-line kernels, for every row that sweeps compute, and do not grow with the robot."""

from __future__ import annotations

import ctypes
import dataclasses
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import numpy as np
import pinocchio as pin
import pytest

from dyn_service.api.queries import QUERIES, Wrench
from dyn_service.api.spec import WITH_WRENCHES, WITHOUT_WRENCHES, Variant
from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics import kinematics, motion_derivatives, newton_euler, sweeps
from dyn_service.dynamics.kinematics import free_selector, joint_values, joint_vector
from dyn_service.dynamics.rolled_tree import NotRolledError, RolledTree
from dyn_service.engine.robot import Robot
from dyn_service.engine.rollouts import signature_of_term
from dyn_service.errors import ResourceExhaustedError
from dyn_service.kernels import budget, certify, frames, lower
from dyn_service.kernels import direct as direct_calls
from dyn_service.kernels import loop as loops
from dyn_service.kernels.certificate import Certificate
from dyn_service.kernels.compiling import compiled
from dyn_service.kernels.direct import Arguments, direct_call
from dyn_service.kernels.graph import Graph, trace
from dyn_service.kernels.jit import host
from dyn_service.kernels.library import KernelLibrary, LibraryKernel
from dyn_service.kernels.loop import NARROW_LANES, Body
from dyn_service.kernels.rolled import FEW_KINDS, MAX_KINDS, Rolled, roll
from dyn_service.kernels.rollout import Block, Stage, run_stages
from dyn_service.kernels.signature import Signature
from dyn_service.kernels.staged import inner_of, staged
from dyn_service.model.parameters import parameters_of
from dyn_service.model.tree import Tree
from tests.conftest import URDF
from tests.oracle.example_robots import path_of
from tests.passive import restless
from tests.phrases import naming
from tests.random_robots import MANY_TYPES, random_urdf
from tests.terms.interpreting import interpreted
from tests.uncertified import uncertified
from tests.wide import wide

ROUNDING = 1e-11
"""Relative to the largest entry. The two forms round some thousand operations differently, 1e-16 each; solving for
accelerations magnifies this by the condition of the mass matrix, some thousands for these robots.
"""

NOT_ROLLED = {
    ("step_derivatives", "rk4"),
    ("step_derivatives", "semi_implicit_euler"),
    ("step_derivatives", "explicit_euler"),
    ("step_derivatives", "implicit_midpoint"),
}
"""Rows and methods that form matrices in ways that no sweep has; those of explicit steps are in stages."""

OVERLAY = Variant(wrenches=False, overlay=True)


def chain(bodies: int, *, types: Sequence[str] = ("revolute",), branches: int = 1) -> str:
    """Different bodies with joints about arbitrary axes, their types in turn; as so many branches of one chain each."""
    rng = np.random.default_rng(0)

    def numbers(*values: float) -> str:
        return " ".join(map(repr, map(float, values)))

    parts = ["<robot name='chain'><link name='base'/>"]
    for i in range(bodies):
        parent = f"link_{i - branches}" if i >= branches else "link_0" if i else "base"
        parts.append(
            f"<link name='link_{i}'><inertial><origin xyz='{numbers(*rng.uniform(-0.1, 0.1, 3))}'/>"
            f"<mass value='{rng.uniform(0.5, 2.0)}'/>"
            "<inertia ixx='0.02' iyy='0.03' izz='0.025' ixy='0.001' ixz='0.002' iyz='0.0005'/></inertial></link>"
            f"<joint name='joint_{i}' type='{types[i % len(types)]}'><parent link='{parent}'/><child link='link_{i}'/>"
            f"<origin xyz='{numbers(*rng.uniform(-0.1, 0.1, 2), 0.2)}' rpy='{numbers(*rng.uniform(-1, 1, 3))}'/>"
            f"<axis xyz='{numbers(*rng.normal(size=3))}'/><limit effort='9' velocity='9' lower='-9' upper='9'/></joint>"
        )
    return "".join(parts) + "</robot>"


@pytest.fixture(scope="module")
def mixed() -> Robot:
    """A tree of two branches with turning, sliding and fixed joints, several of each kind."""
    return Robot.from_text(chain(7, types=("revolute", "prismatic", "fixed"), branches=2))


@pytest.fixture(scope="module")
def manifold() -> Robot:
    """A tree with joints of every type."""
    return Robot.from_text(random_urdf(3, movable=6, types=MANY_TYPES))


@pytest.fixture(scope="module")
def long_chain() -> Robot:
    return Robot.from_text(chain(100))


def signature_of(robot: Robot, row: str, method: str, variant: Variant) -> Signature:
    """row: of the table, or a term of a law."""
    return robot.signature(QUERIES[row], method, variant) if row in QUERIES else signature_of_term(robot.evaluator, row)


def kernel_of(robot: Robot, row: str, method: str, variant: Variant) -> tuple[Rolled, Signature]:
    signature = signature_of(robot, row, method, variant)
    return roll(frames.kernel_tree(robot.tree, signature.bodies), signature), signature


def inputs_of(
    tree: Tree, signature: Signature, numbers: Iterator[np.ndarray], positions: float = 1.0
) -> list[np.ndarray]:
    """Eleven states: one vector of eight, and a part of another. numbers: for the inputs of an overlay. positions:
    their size.
    """
    rng = np.random.default_rng(1)
    arrays = []
    for operand in signature.inputs:
        x = rng.normal(size=(11, *operand.shape))
        if operand.kind == "position":
            x = tree.configuration.normalised(positions * x)
        elif operand.kind == "overlay":
            x = np.broadcast_to(next(numbers), x.shape)
        elif operand.kind == "duration":
            x = np.full(x.shape, 1e-3)
        elif operand.kind == "link":
            x = np.eye(operand.size)[rng.integers(0, operand.size, 11)]
        elif operand.kind == "directions":
            x = np.tile([0.0, 0.0, 0.0, 1.0, 0.0, 0.0], (11, 1))
        arrays.append(x)
    return arrays


def _outputs(answer: Any) -> tuple[np.ndarray, ...]:
    return answer if isinstance(answer, tuple) else (answer,)


def assert_equal(
    robot: Robot, row: str, method: str, variant: Variant, locked: Sequence[str] = (), positions: float = 1.0
) -> None:
    signature = signature_of(robot, row, method, variant)
    model = frames.kernel_tree(robot.tree.locked(locked), signature.bodies)
    inputs = inputs_of(robot.tree, signature, iter(parameters_of(model.tree).values()), positions)
    kernel = compiled(roll(model, signature), optimised=False)[0]
    loops = kernel(*inputs)
    for a, b in zip(_outputs(kernel(*(x[3:5] for x in inputs))), _outputs(loops), strict=True):
        np.testing.assert_array_equal(a, b[3:5], err_msg=f"{row}: two states")
    straight = interpreted(trace(model, signature))(*inputs)
    for operand, a, b in zip(signature.outputs, *map(_outputs, (loops, straight)), strict=True):
        scale = np.nanmax(np.abs(b), initial=0.0)  # an inertia is NaN where its direction is blocked
        np.testing.assert_allclose(a, b, rtol=0, atol=ROUNDING * scale, err_msg=f"{row}: {operand.name}")


ROWS = [
    (row.name, method)
    for row in QUERIES.values()
    for method in row.kernels
    if any(spec.kind in ("position", "velocity") for spec in row.inputs.values())
    and (row.name, method) not in NOT_ROLLED
]


@pytest.mark.parametrize(("row", "method"), ROWS, ids=lambda x: x)
def test_every_row_equals_its_straight_line_kernel(mixed: Robot, row: str, method: str) -> None:
    try:
        assert_equal(mixed, row, method, WITHOUT_WRENCHES)
    except NotRolledError as error:
        pytest.fail(
            f"{error}: write it as sweeps, or add {(row, method)} to NOT_ROLLED in tests/kernels/test_rolled.py"
        )


DERIVATIVES = [
    "inverse_dynamics_derivatives",
    "forward_dynamics_derivatives",
    "momentum_derivatives",
    "joint_wrench_derivatives",
]
PAIRS = [*DERIVATIVES, "coriolis_matrix", "inverse_dynamics_regressor"]
"""Rows with matrices of pairs of bodies."""


@pytest.mark.parametrize(
    "row", ["inverse_dynamics", "forward_dynamics", "mass_matrix", "jacobians", *PAIRS, "forward_dynamics_hessian"]
)
def test_joints_of_every_type(manifold: Robot, row: str) -> None:
    assert_equal(manifold, row, next(iter(QUERIES[row].kernels)), WITHOUT_WRENCHES)


@pytest.mark.parametrize(
    "row", ["inverse_dynamics", "forward_dynamics", "constraint_forces", "joint_wrench_derivatives"]
)
def test_wrenches_and_numbers_as_inputs(mixed: Robot, row: str) -> None:
    method = next(iter(QUERIES[row].kernels))
    assert_equal(mixed, row, method, WITH_WRENCHES)
    assert_equal(mixed, row, method, OVERLAY)


@pytest.mark.parametrize(
    "row",
    [
        "inverse_dynamics",
        "forward_dynamics",
        "mass_matrix",
        "energy",
        "energy_regressor",
        "passive_forces",
        "inverse_dynamics_hessian",
        *PAIRS,
    ],
)
def test_passive_forces_and_locked_joints(row: str) -> None:
    robot = restless(URDF / "ten_body_tree.urdf")
    method = next(iter(QUERIES[row].kernels))
    assert_equal(robot, row, method, WITHOUT_WRENCHES)
    assert_equal(robot, row, method, WITHOUT_WRENCHES, locked=robot.joint_names[1:4])


FOLLOWING = {"joint_4": ("joint_3", -0.7), "joint_7": ("joint_1", 1.5), "joint_8": ("joint_1", 0.4)}
"""Joints of three branches: one of the same branch as its leader, two of others."""


def follow(text: str, relations: Mapping[str, tuple[str, float]]) -> str:
    """The robot of this text, joints of which follow others. relations: leader and ratio by name."""
    for joint, (leader, ratio) in relations.items():
        begin, relation = (
            rf"(<joint name='{joint}' type='\w+'>)",
            f"<mimic joint='{leader}' multiplier='{ratio}' offset='0.1'/>",
        )
        text = re.sub(begin, rf"\1{relation}", text)
    return text


@pytest.fixture(scope="module")
def following(tmp_path_factory: pytest.TempPathFactory) -> Robot:
    file = tmp_path_factory.mktemp("following") / "robot.urdf"
    file.write_text(follow(chain(9, branches=3), FOLLOWING))
    return restless(file)


IN_CHAINS = {"joint_2": ("joint_5", -2.0), "joint_4": ("joint_2", 0.5), "joint_7": ("joint_4", -1.0)}
"""A joint follows one that follows one that follows one, before and behind it; sliding and turning joints in turn."""


@pytest.fixture(scope="module")
def in_chains() -> Robot:
    text = follow(chain(9, types=("revolute", "prismatic")), IN_CHAINS)
    base = "<inertial><mass value='3'/><inertia ixx='0.2' iyy='0.3' izz='0.25' ixy='0' ixz='0' iyz='0'/></inertial>"
    return Robot.from_text(text.replace("<link name='base'/>", f"<link name='base'>{base}</link>"), root="floating")


OF_MIMICS = (
    "inverse_dynamics",
    "mass_matrix",
    "jacobians",
    "operational_space",
    "passive_forces",
    "hamiltonian",
    "momentum_rate",
    "momentum_regressor",
    "joint_wrench_regressor",
    *PAIRS,
    "forward_dynamics_hessian",
    "centroidal_derivatives",
    "point_motion",
    "point_motion_derivatives",
)


@pytest.mark.parametrize(
    ("row", "method"),
    wide([case for case in ROWS if case[1] not in QUERIES[case[0]].rejects_mimic], lambda case: case[0] in OF_MIMICS),
)
@pytest.mark.parametrize("robot", wide(("following", "in_chains"), lambda robot: robot == "following"))
def test_joints_that_follow_others(robot: str, row: str, method: str, request: pytest.FixtureRequest) -> None:
    mimicking = request.getfixturevalue(robot)
    assert mimicking.tree.has_mimics
    assert_equal(mimicking, row, method, WITHOUT_WRENCHES)


@pytest.mark.parametrize("row", ["computed_torque", "joint_feedback"])
def test_errors_of_followers_are_those_of_their_leaders(row: str) -> None:
    """Whole turns of a continuous joint are no error, and none of its follower; those of a revolute joint are."""
    text = follow(chain(4), {"joint_2": ("joint_0", 1.0), "joint_3": ("joint_1", 1.0)})
    for name in ("joint_0", "joint_1"):
        begin = f"<joint name='{name}' type="
        continuous = text.replace(f"{begin}'revolute'", f"{begin}'continuous'")
        robot = Robot.from_text(continuous)
        assert len(robot.tree.configuration.wraps) == 1
        assert_equal(robot, row, "", WITHOUT_WRENCHES, positions=10.0)  # so that most errors have whole turns


def test_a_column_of_one_of_the_bodies_that_it_moves_is_not_rolled(
    following: Robot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loops write an output per kind of body, so that the columns of all but one of these bodies would be lost."""

    def of_bodies(tree: Tree, blocks: Sequence[ex.Matrix]) -> ex.Matrix:
        columns = free_selector(tree)
        return sum((blocks[i] @ columns[tree.in_v[i], :] for i in tree.movable), ex.zeros(6, tree.nv))

    monkeypatch.setattr(motion_derivatives, "joint_columns", of_bodies)
    with pytest.raises(NotRolledError, match="not a sum"):
        kernel_of(following, "centroidal_derivatives", "", WITHOUT_WRENCHES)


def test_joints_that_follow_others_with_wrenches_numbers_and_locks(following: Robot) -> None:
    for variant in (WITH_WRENCHES, OVERLAY):
        assert_equal(following, "forward_dynamics", "articulated", variant)
        assert_equal(following, "forward_dynamics_derivatives", "", variant)
    assert_equal(following, "forward_dynamics", "articulated", WITHOUT_WRENCHES, locked=["joint_1"])
    for row in ("mass_matrix", *PAIRS):
        assert_equal(following, row, "", WITHOUT_WRENCHES, locked=["joint_1"])


def certificate_of(robot: Robot, row: str, method: str, loops: Any) -> Certificate:
    """The certificate of a kernel as loops, which `loops` traces on a tree."""
    signature = robot.signature(QUERIES[row], method, WITHOUT_WRENCHES)

    def traced(model: Any, signature: Signature) -> Any:
        if inner_of(signature):
            return staged(signature, model.tree, lambda part: loops(model, part))
        return loops(model, signature)

    def build(graph: Any) -> Any:
        return compiled(graph, optimised=False)[0]

    return certify.certified(robot.tree, signature, build, traced)[1]


def with_another_ratio(model: frames.KernelTree, signature: Signature) -> Rolled:
    """Loops with a fault that straight-line code has not: a follower's position and rates are wrong by 1e-6."""
    tree = model.tree
    ratios = [1.0 if leader == i else 1.0 + 1e-6 for i, leader in enumerate(tree.mimicked_body)]
    inboard = [
        joint if x == 1.0 else joint.follower(joint.ratio * x) for joint, x in zip(tree.inboard, ratios, strict=True)
    ]
    return roll(dataclasses.replace(model, tree=dataclasses.replace(tree, inboard=tuple(inboard))), signature)


def without_followers(model: frames.KernelTree, signature: Signature) -> Rolled:
    """Loops with another such fault: a sum over the bodies that an entry of v moves is the value of its own joint."""

    def own(tree: Tree, x: Sequence[ex.Matrix]) -> ex.Matrix:
        assert isinstance(tree, RolledTree)
        return summed(
            tree, [value * float(not is_follower) for value, is_follower in zip(x, tree.follows, strict=True)]
        )

    summed = kinematics.sum_over_driven_bodies
    with mock.patch.object(kinematics, "sum_over_driven_bodies", own):
        return roll(model, signature)


@pytest.fixture(scope="module")
def mimicking() -> Robot:
    """A small robot with all passive forces: a sliding and a turning joint follow others of another branch."""
    relations = {"joint_3": ("joint_2", -0.7), "joint_4": ("joint_1", 1.5)}
    return restless(follow(chain(5, types=("revolute", "prismatic"), branches=2), relations))


IN_CERTIFICATES = [
    (row.name, method)
    for row in QUERIES.values()
    for method in row.kernels
    if not row.constant
    and method not in row.rejects_mimic
    and (row.name, method) != ("step_derivatives", "implicit_midpoint")
]
OF_NO_FOLLOWER = ("integrate", "difference")
"""Rows without a value of a joint that follows another."""


IN_SUITE = ("inverse_dynamics", "mass_matrix", "link_motion", "passive_forces", "energy", "centroidal_derivatives")


@pytest.mark.parametrize(("row", "method"), wide(IN_CERTIFICATES, lambda case: case[0] in IN_SUITE), ids=lambda x: x)
def test_certificates_of_loops_detect_their_faults(mimicking: Robot, row: str, method: str) -> None:
    """A certificate compares with straight-line code, which cannot have a fault of the loops."""
    certificate = certificate_of(mimicking, row, method, roll if row in OF_NO_FOLLOWER else with_another_ratio)
    assert certificate.holds is (row in OF_NO_FOLLOWER)


SUMS = (
    "inverse_dynamics",
    "gravity_forces",
    "momentum",
    "momentum_derivative",
    "point_motion",
    "energy_derivatives",
    "centroidal_derivatives",
    "point_motion_derivatives",
)
"""Rows with sums over the bodies that an entry of v moves."""


@pytest.mark.parametrize("row", wide(SUMS, lambda row: row in IN_SUITE))
@pytest.mark.parametrize("max_operations", [certify.MAX_STRAIGHT, 0])
def test_certificates_detect_a_lost_follower(row: str, max_operations: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of robots so large that a part of their bodies is compared."""
    robot = Robot.from_text(follow(chain(12, branches=2), {"joint_9": ("joint_4", -0.7)}))
    monkeypatch.setattr(certify, "MAX_STRAIGHT", max_operations)
    method = next(iter(QUERIES[row].kernels))
    assert certificate_of(robot, row, method, roll).holds
    certificate = certificate_of(robot, row, method, without_followers)
    assert certificate.error > 1e6


@pytest.mark.parametrize("name", ["mixed", "manifold", "following"])
def test_products_with_matrices_that_are_inputs(name: str, request: pytest.FixtureRequest) -> None:
    robot = request.getfixturevalue(name)
    assert_equal(robot, "state_feedback", "", WITHOUT_WRENCHES)
    if name == "following":  # others may have a reference that is no rotation in some states
        assert_certified(robot, "state_feedback", "")


def test_a_matrix_that_is_an_input_is_for_products_only(mixed: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(tree: Tree, **inputs: ex.Matrix) -> ex.Matrix:
        return inputs["position_gain"] * inputs["tau"]

    monkeypatch.setattr(newton_euler, "state_feedback", scaled)
    with pytest.raises(NotRolledError):
        kernel_of(mixed, "state_feedback", "", WITHOUT_WRENCHES)


def apart(bodies: int, follows: Mapping[str, tuple[str, float]] = MappingProxyType({})) -> Robot:
    """Three chains on the ground, some joints of which follow others."""
    text = chain(bodies, branches=3)
    for i in (1, 2):
        child = f"<child link='link_{i}'/>"
        text = text.replace(f"<parent link='link_0'/>{child}", f"<parent link='base'/>{child}")
    return Robot.from_text(follow(text, follows))


@pytest.mark.parametrize("follows", [{}, {"joint_4": ("joint_2", 1.5)}], ids=["apart", "coupled"])
@pytest.mark.parametrize("row", ["forward_dynamics_derivatives", "forward_dynamics_hessian"])
def test_matrices_of_branches_on_the_ground_are_solved_apart(follows: dict[str, tuple[str, float]], row: str) -> None:
    robot = apart(7, follows)
    assert sum(parent < 0 for parent in kernel_of(robot, row, "", WITHOUT_WRENCHES)[0].parent) == 3
    assert_equal(robot, row, "", WITHOUT_WRENCHES)


@pytest.fixture(scope="module")
def humanoid() -> Robot:
    """TALOS on a floating root: 38 velocities, on up to 15 of which one depends."""
    return Robot.from_urdf(path_of("talos_data/robots/talos_reduced.urdf"), root="floating")


def _multiplications(kernel: Any, count: Any, inputs: Sequence[np.ndarray]) -> int:
    """Returns the multiplications of vectors that the solutions of one call take."""
    count_before = count.value
    kernel(*inputs)
    return int(count.value - count_before)


def test_solutions_for_one_state_have_columns_in_lanes(humanoid: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in the compiled code.

    A dense substitution would take 2 x 331 for each of the 3 x 38 columns, 75,468: 331 is the sum of the numbers of
    velocities on which each depends. The zeros of the derivatives and the symmetry of the inverse leave 44,000, and
    blocks that are not full add a tenth. For one state a vector has several columns; blocks of 2, 6 and 8 columns do
    not fill all lanes.
    """
    count = ctypes.c_int64(0)
    multiplied = lower._Substitutions._plus

    def counted(self: Any, sums: Sequence[Any], *arguments: Any) -> list[Any]:
        b = self._factors.b
        place = b.inttoptr(lower.integer(ctypes.addressof(count)), lower.POINTER)
        b.store(b.add(b.load(place, typ=lower.I64), lower.integer(len(sums))), place)
        return multiplied(self, sums, *arguments)

    monkeypatch.setattr(lower._Substitutions, "_plus", counted)
    loops, signature = kernel_of(humanoid, "forward_dynamics_derivatives", "", WITHOUT_WRENCHES)
    kernel = compiled(loops, optimised=False)[0]
    inputs, lanes = inputs_of(humanoid.tree, signature, iter(())), host().lanes
    assert _multiplications(kernel, count, [x[:lanes] for x in inputs]) <= 50_000
    products = _multiplications(kernel, count, [x[:1] for x in inputs])
    assert products <= {2: 30_000, 4: 17_000, 8: 9_000}[lanes]


def test_solutions_have_the_same_bits_with_states_or_columns_in_lanes(humanoid: Robot) -> None:
    """Also of a vector after another whose results are NaN: entries that are zero are not set again."""
    loops, signature = kernel_of(humanoid, "forward_dynamics_derivatives", "", WITHOUT_WRENCHES)
    kernel = compiled(loops)[0]
    inputs = [np.concatenate([x, x]) for x in inputs_of(humanoid.tree, signature, iter(()))]
    expected = [kernel(*(x[k] for x in inputs)) for k in range(11)]
    inputs[0][:5] = np.nan
    for k, state in enumerate(zip(*kernel(*inputs), strict=True)):
        for x, expected_x in zip(state, expected[k % 11], strict=True):
            if k < 5:
                assert np.isnan(x).any()
            else:
                np.testing.assert_array_equal(x, expected_x)


def test_blocks_of_solutions_are_chains(humanoid: Robot, following: Robot) -> None:
    """So their rows have the same ancestors before the block, and their columns the same descendants after it."""
    for robot in (humanoid, following, apart(7)):
        elimination = kernel_of(robot, "forward_dynamics_derivatives", "", WITHOUT_WRENCHES)[0].elimination
        entries, _, end = elimination.nested
        for size_limit in (1, 3, 8):
            blocks = elimination.blocks(size_limit)
            assert [place for first, size in blocks for place in range(first, first + size)] == [*range(robot.nv)]
            for first, size in blocks:
                assert size <= size_limit
                for parent, child in pairwise(entries[first : first + size]):
                    assert elimination.parent[child] == parent
                    assert end[child] == end[parent]
    sizes = [
        size
        for _, size in kernel_of(humanoid, "forward_dynamics_derivatives", "", WITHOUT_WRENCHES)[0].elimination.blocks(
            8
        )
    ]
    assert sorted(sizes) == [2, 2, 6, 6, 6, 8, 8]


def test_products_of_a_step_in_stages_skip_other_branches_on_the_ground() -> None:
    def ranges(robot: Robot) -> list[tuple[int, int]]:
        signature = robot.signature(QUERIES["step_derivatives"], "semi_implicit_euler", WITHOUT_WRENCHES)
        model = frames.kernel_tree(robot.tree, signature.bodies)
        return [(tree.start, tree.stop) for tree in staged(signature, model.tree, lambda part: roll(model, part)).trees]

    assert ranges(apart(7)) == [(0, 3), (3, 5), (5, 7)]
    assert ranges(apart(7, {"joint_4": ("joint_0", 1.5)})) == [(0, 4), (4, 6)]
    assert ranges(apart(7, {"joint_5": ("joint_0", 1.5)})) == [(0, 6)]
    assert_stages_equal_one_graph(apart(4), "rk4", WITHOUT_WRENCHES)


def test_a_visit_is_compiled_once_for_bodies_with_states_of_the_same_shape() -> None:
    robot = Robot.from_text(chain(40, types=("revolute", "prismatic"), branches=4))
    loops, _ = kernel_of(robot, "inverse_dynamics_derivatives", "", WITHOUT_WRENCHES)
    (walks,) = loops.walks
    kinds = len(walks.first)
    assert kinds > 2
    assert len({id(step) for row in walks.visits for step in row if step}) <= kinds


def test_the_mass_matrix_is_factored_along_the_branches(following: Robot) -> None:
    """Rows of the factor have a place for each joint that it depends on: those on the way to the ground."""
    tree = Robot.from_text(chain(60, branches=20))
    loops, _ = kernel_of(tree, "forward_dynamics", "mass_matrix", WITHOUT_WRENCHES)
    assert (loops.elimination.width, loops.matrix) == (4, 60 * 4)
    coupled, _ = kernel_of(following, "forward_dynamics", "articulated", WITHOUT_WRENCHES)
    assert (coupled.elimination.width, coupled.matrix) == (4, 24)


@pytest.mark.parametrize(
    ("robot", "variant"),
    [("mixed", WITHOUT_WRENCHES), ("mixed", WITH_WRENCHES), ("mixed", OVERLAY), ("manifold", WITHOUT_WRENCHES)],
)
def test_a_kernel_in_stages_equals_one_that_repeats(
    robot: str, variant: Variant, request: pytest.FixtureRequest
) -> None:
    robot = request.getfixturevalue(robot)
    signature = robot.signature(QUERIES["step"], "rk4", variant)
    model = frames.kernel_tree(robot.tree, signature.bodies)
    inputs = inputs_of(robot.tree, signature, iter(parameters_of(model.tree).values()))
    repeated = interpreted(trace(model, signature))(*inputs)
    for form in (trace, roll):
        in_stages = compiled(staged(signature, model.tree, lambda part, form=form: form(model, part)), optimised=False)[
            0
        ](*inputs)
        for a, b in zip(in_stages, repeated, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=ROUNDING * np.abs(b).max(), err_msg=form.__name__)


@pytest.fixture(scope="module")
def turning() -> Robot:
    """A ball joint, which carries a hinge."""
    return Robot.from_text(chain(2, types=("spherical", "revolute")))


@pytest.mark.parametrize("method", ["semi_implicit_euler", "explicit_euler", "rk4"])
@pytest.mark.parametrize("variant", [WITHOUT_WRENCHES, WITH_WRENCHES, OVERLAY], ids=lambda x: "-".join(x.names))
def test_derivatives_in_stages_equal_those_of_one_graph(turning: Robot, method: str, variant: Variant) -> None:
    assert_stages_equal_one_graph(turning, method, variant)


def assert_stages_equal_one_graph(robot: Robot, method: str, variant: Variant) -> None:
    signature = robot.signature(QUERIES["step_derivatives"], method, variant)
    model = frames.kernel_tree(robot.tree, signature.bodies)
    inputs = inputs_of(robot.tree, signature, iter(parameters_of(model.tree).values()))
    whole = interpreted(trace(model, signature))(*inputs)
    straight, loops = (
        staged(signature, model.tree, lambda part, form=form: form(model, part)) for form in (trace, roll)
    )
    answers = [
        interpreted(straight)(*inputs),
        *(compiled(graph, optimised=False)[0](*inputs) for graph in (straight, loops)),
    ]
    for answer in answers:
        for operand, a, b in zip(signature.outputs, answer, whole, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=ROUNDING * np.abs(b).max(), err_msg=operand.name)


@pytest.mark.parametrize("form", [trace, roll])
def test_the_certificate_of_derivatives_in_stages_finds_an_error(turning: Robot, form: Any) -> None:
    signature = turning.signature(QUERIES["step_derivatives"], "rk4", WITHOUT_WRENCHES)
    model = frames.kernel_tree(turning.tree, signature.bodies)
    graph = staged(signature, model.tree, lambda part: form(model, part))
    kernel = compiled(graph)[0]
    difference = certify.difference(kernel, graph, turning.tree)
    assert difference.states == len(certify.POSITIONS)
    assert 0.0 < difference.error <= 1.0

    def changed(*inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        q, v, of_x, of_tau = kernel(*inputs)
        return q, v, of_x, of_tau * (1.0 + 1e-10)

    assert certify.difference(changed, graph, turning.tree).error > 1.0


@pytest.mark.parametrize(
    ("inner", "step"), [("forward_dynamics", "step"), ("forward_dynamics_derivatives", "step_derivatives")]
)
def test_a_step_has_the_code_of_one_forward_dynamics(mixed: Robot, inner: str, step: str) -> None:
    library = KernelLibrary(mixed.tree)
    inner_loop, step_loop = (
        library.direct_call(mixed.signature(QUERIES[row], method, WITHOUT_WRENCHES), Arguments()).__self__.owned[0]
        for row, method in ((inner, next(iter(QUERIES[inner].kernels))), (step, "rk4"))
    )
    assert step_loop.code.size < 1.5 * inner_loop.code.size
    assert step_loop.work > 2 * inner_loop.work


def test_code_does_not_grow_with_the_robot(long_chain: Robot) -> None:
    def count(robot: Robot) -> int:
        loops, _ = kernel_of(robot, "forward_dynamics", "articulated", WITHOUT_WRENCHES)
        return sum(len(step.program.instructions) for sweep in loops.passes for step in sweep.steps if step is not None)

    # Not equal: the numbers of a kind with one body are constants in the code.
    assert count(Robot.from_text(chain(150))) <= 1.1 * count(long_chain)


def test_sums_of_a_chain_need_two_rows(long_chain: Robot) -> None:
    loops, _ = kernel_of(long_chain, "inverse_dynamics", "", WITHOUT_WRENCHES)
    assert loops.rows == 3, "one for bodies without children, one for the body, one for its parent"
    for i, parent in enumerate(loops.parent):
        assert parent < 0 or loops.row[parent] != loops.row[i]


def test_a_state_has_the_same_bits_anywhere_in_a_batch(long_chain: Robot) -> None:
    rng = np.random.default_rng(2)
    q, v, tau = rng.normal(size=(3, 19, 100))
    batch = long_chain.forward_dynamics(q, v, tau)
    single = [long_chain.forward_dynamics(*state) for state in zip(q, v, tau, strict=True)]
    assert np.array_equal(batch, single)


@pytest.mark.parametrize("row", ["inverse_dynamics", "jacobians", "inverse_dynamics_derivatives", "step"])
def test_a_call_for_few_states_has_a_body_of_its_own_with_the_same_bits(manifold: Robot, row: str) -> None:
    signature = manifold.signature(QUERIES[row], "rk4" if row == "step" else "", WITHOUT_WRENCHES)
    model = frames.kernel_tree(manifold.tree, signature.bodies)
    graph = staged(signature, model.tree, lambda part: roll(model, part)) if row == "step" else roll(model, signature)
    kernel, loop, _ = compiled(graph)
    body = Body.of(loop.code)
    assert body.lanes == host().lanes
    assert bool(body.narrow) is (body.lanes > NARROW_LANES)
    inputs = inputs_of(manifold.tree, signature, iter(()))
    expected = _outputs(kernel(*inputs))
    for states_slice in (slice(4, 5), slice(8, 10), slice(2, 9, 5), slice(0, 3)):
        for a, b in zip(_outputs(kernel(*(x[states_slice] for x in inputs))), expected, strict=True):
            np.testing.assert_array_equal(a, b[states_slice])
    narrow = [_narrow_calls(kernel, loop, [x[:states] for x in inputs]) for states in range(1, 4)]
    assert narrow == ([1, 1, 0] if body.narrow else [0, 0, 0])
    if row != "step":
        return
    names = {"q": "q", "v": "v"}
    sources = {operand.name: x for operand, x in zip(signature.inputs, inputs, strict=True)} | names
    ends = []
    for part in (slice(4, 5), slice(0, 11)):
        state = {name: np.ascontiguousarray(x[part]) for name, x in zip(names, inputs, strict=False)}
        values = {name: x if isinstance(x, str) else x[None, part] for name, x in sources.items()}
        records = {name: np.empty((3, *x.shape)) for name, x in state.items()}
        run_stages([Stage(Block(body, signature), values, names)], state, records, 1)
        ends.append(records)
    for name in names:
        np.testing.assert_array_equal(ends[0][name][:, 0], ends[1][name][:, 4])


@pytest.mark.parametrize("form", [trace, roll])
def test_a_kernel_in_stages_reads_no_earlier_contents_of_memory(form: Any) -> None:
    """Only the part of the workspace that the loop clears is 0, the rest is NaN. Two joints are independent."""
    robot = Robot.from_text(chain(3, types=("fixed", "revolute", "prismatic"), branches=2))
    signature = robot.signature(QUERIES["step_derivatives"], "explicit_euler", WITHOUT_WRENCHES)
    model = frames.kernel_tree(robot.tree, signature.bodies)
    kernel, loop, _ = compiled(staged(signature, model.tree, lambda part: form(model, part)), optimised=False)
    body, inputs = Body.of(loop.code), inputs_of(robot.tree, signature, iter(()))
    expected = np.concatenate([x[0].reshape(-1) for x in kernel(*(x[:1] for x in inputs))])
    source = np.concatenate([x[0].reshape(-1) for x in inputs])
    sizes, lanes = [len(source), body.results, body.workspace], body.lanes
    memory = np.full(lanes * (sum(sizes) + 1), np.nan)
    memory = memory[-memory.ctypes.data % (8 * lanes) // 8 :][: lanes * sum(sizes)].reshape(-1, lanes)
    arguments, results, workspace = np.split(memory, np.cumsum(sizes)[:-1])
    arguments[...], results[...], workspace[: body.cleared] = source[:, None], 0.0, 0.0
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(body.address)(
        *(x.ctypes.data for x in (arguments, results, workspace))
    )
    np.testing.assert_array_equal(results[:, 0], expected)


@pytest.mark.parametrize("form_of_poses", [roll, trace])
def test_few_states_with_wrenches_have_the_same_bits(monkeypatch: pytest.MonkeyPatch, form_of_poses: Any) -> None:
    """Their wrenches are converted in vectors of few lanes, also if the kernel of the links' poses has no such body."""
    robot = uncertified(Robot.from_text(chain(3, types=("revolute", "prismatic"), branches=2)))

    def made(library: KernelLibrary, signature: Signature) -> LibraryKernel:
        form = form_of_poses if signature.name.startswith("link_poses") else roll
        kernel, loop, _ = compiled(form(frames.kernel_tree(library.links, signature.bodies), signature))
        assert bool(Body.of(loop.code).narrow) is (host().lanes > NARROW_LANES and form is roll)
        return LibraryKernel(kernel, Certificate(signature.name, "chosen frames", 0.0, 0), loop)

    monkeypatch.setattr(type(robot.evaluator.library), "_make", made)
    q, v, a = np.random.default_rng(3).normal(size=(3, 11, robot.nv))
    wrenches = [Wrench("link_2", force=(1.0, 2.0, 3.0), point=(0.1, 0.2, 0.3)), Wrench("link_1", torque=np.ones(3))]
    whole = robot.inverse_dynamics(q, v, a, wrenches=wrenches)
    direct = robot.evaluator.row_calls["inverse_dynamics"].bound(QUERIES["inverse_dynamics"].argument_defaults)
    assert direct is not None
    call: Any = direct.direct_with_wrenches
    plan = struct.unpack_from("=14q", call.__self__)[direct_calls._LOOP_PLAN]
    assert bool(ctypes.c_int64.from_address(plan + 8 * loops._NARROW_PLAN).value) is (host().lanes > NARROW_LANES)
    for _ in range(2):
        for states_slice in (4, slice(4, 5), slice(8, 10), slice(0, 3)):
            np.testing.assert_array_equal(
                robot.inverse_dynamics(q[states_slice], v[states_slice], a[states_slice], wrenches=wrenches),
                whole[states_slice],
            )


def _narrow_calls(kernel: Any, loop: Any, inputs: Sequence[np.ndarray]) -> int:
    """Returns how often a call runs the loop for few states."""
    calls: list[None] = []
    counting = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(lambda *_: calls.append(None))
    place = 8 * loops._NARROW_LOOP
    (address,) = struct.unpack_from("=q", loop.plan, place)
    struct.pack_into("=q", loop.plan, place, ctypes.cast(counting, ctypes.c_void_p).value)
    try:
        kernel(*inputs)
    finally:
        struct.pack_into("=q", loop.plan, place, address)
    return len(calls)


def test_a_long_call_releases_the_gil() -> None:
    """Its code is small, but runs for each pair of bodies."""
    robot = Robot.from_text(chain(200))
    library = KernelLibrary(robot.tree)
    signature = robot.signature(QUERIES["mass_matrix"], "", WITHOUT_WRENCHES)
    call: Any = library.direct_call(signature, Arguments())
    assert struct.unpack_from("=4q", call.__self__)[3] == 1


def test_the_choice_depends_on_robot_and_query(long_chain: Robot, panda: Robot) -> None:
    def rolled_if_large(robot: Robot, row: str) -> bool:
        signature = robot.signature(QUERIES[row], next(iter(QUERIES[row].kernels)), WITHOUT_WRENCHES)
        return budget.rolled_if_large(frames.kernel_tree(robot.tree, signature.bodies), signature) is not None

    assert not any(rolled_if_large(panda, row) for row in ("inverse_dynamics", "forward_dynamics", "jacobians", "step"))
    assert all(rolled_if_large(long_chain, row) for row in ("inverse_dynamics", "forward_dynamics", "mass_matrix"))
    assert not rolled_if_large(long_chain, "passive_forces")


def test_a_kernel_that_needs_too_much_memory_is_refused(
    long_chain: Robot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DYN_SERVICE_CACHE", str(tmp_path))
    monkeypatch.setattr(budget, "MAX_BYTES", 2 << 20)
    with pytest.raises(ResourceExhaustedError, match=naming("jacobians", "'chain'", "GB", "101 bodies")):
        Robot.from_text(chain(100)).jacobians(np.zeros(100))
    assert Robot.from_text(chain(100)).inverse_dynamics(*np.zeros((3, 100))).shape == (100,)


@pytest.mark.parametrize("row", ["inverse_dynamics", "forward_dynamics", "mass_matrix"])
def test_the_certificate_finds_an_error(row: str) -> None:
    assert_certified(Robot.from_text(chain(20)), row, next(iter(QUERIES[row].kernels)))


def assert_certified(robot: Robot, row: str, method: str) -> None:
    graph, _ = kernel_of(robot, row, method, WITHOUT_WRENCHES)
    kernel = compiled(graph)[0]
    difference = certify.difference(kernel, graph, robot.tree)
    assert difference.states == len(certify.POSITIONS)
    assert 0.0 < difference.error <= 1.0
    assert certify.difference(lambda *x: kernel(*x) * (1.0 + 1e-10), graph, robot.tree).error > 1.0


def test_a_mass_matrix_in_operator_form() -> None:
    """Springs, which act at rest too, are not a part of it."""
    robot = restless(chain(100), parts=("springs",))
    tree = robot.tree
    positions = np.random.default_rng(3).normal(size=(4, tree.nq))
    M = robot.mass_matrix(positions)
    operator = certify.MassOperator.at(tree, positions)
    x = np.random.default_rng(4).normal(size=(4, tree.nv, 3))
    np.testing.assert_allclose(operator @ x, M @ x, rtol=0, atol=1e-10 * np.abs(M @ x).max())  # 100 sums of 100 terms
    np.testing.assert_allclose(operator.diagonal, np.diagonal(M, axis1=1, axis2=2), rtol=1e-10)


def test_numbers_that_differ_in_the_last_digits_stay_apart() -> None:
    """A kind has a constant only where all its bodies agree to the last bit."""
    masses = re.sub(r"<mass value='[^']*'/>", "<mass value='1.0'/>", chain(20))
    robot = Robot.from_text(
        masses.replace("<mass value='1.0'/>", "<mass value='1.0000000001'/>", 5).replace(
            "<mass value='1.0000000001'/>", "<mass value='1.0'/>", 4
        )
    )
    loops, _ = kernel_of(robot, "link_motion", "", WITHOUT_WRENCHES)
    numbers_of_kinds = {x for table in loops.numbers for x in table.ravel().tolist()}
    assert {1.0, 1.0000000001} <= numbers_of_kinds


def test_values_of_inward_passes_and_totals_reach_later_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent's sum over its branch, and the sum over all bodies: no query of the table reads these in a pass."""

    def branch_shares(tree: Tree, q: ex.Matrix, v: ex.Matrix, gravity: ex.Matrix) -> ex.Matrix:
        rates = sweeps.kept(tree, [ex.sum1(rate) for rate in joint_values(tree, v)])
        branch = tree.inward(list(rates), lambda _, x: x)
        parent_sums = tree.of_parent(branch, ex.zeros(1, 1))
        whole = tree.total([(rate,) for rate in rates], ex.matrix(0.0))
        sums = tree.outward(lambda i, x: branch[i] if x is None else 2 * x + whole * branch[i])
        moves = sweeps.PerBody(ex.full(joint.nv, 1, 1.0) for joint in tree.inboard)
        return joint_vector(tree, moves @ sweeps.PerBody(a + 3 * b for a, b in zip(parent_sums, sums, strict=True)))

    monkeypatch.setattr(newton_euler, "bias_forces", branch_shares)
    robot = Robot.from_text(chain(7, branches=2))
    assert_equal(robot, "bias_forces", "", WITHOUT_WRENCHES)


@pytest.mark.parametrize("row", ["system_momentum", "system_momentum_rate"])
def test_a_branch_without_mass_divides_by_no_zero(row: str) -> None:
    """The mass is a number of the body in loops, and a quotient that is not used is computed too."""
    text = re.sub(r"(<link name='link_3'>)<inertial>.*?</inertial>", r"\1", chain(4))
    robot = Robot.from_text(text)
    loops, signature = kernel_of(robot, row, "", WITHOUT_WRENCHES)
    with np.errstate(all="raise"):
        answers = _outputs(compiled(loops, optimised=False)[0](*inputs_of(robot.tree, signature, iter(()))))
    assert all(np.isfinite(answer).all() for answer in answers)


def test_too_many_kinds_are_straight_line_code() -> None:
    """As of planar joints, whose axes are constants of the code."""
    robot = Robot.from_text(chain(MAX_KINDS + 2, types=("planar",)).replace("lower='-9' upper='9'", ""))
    with pytest.raises(NotRolledError):
        kernel_of(robot, "inverse_dynamics", "", WITHOUT_WRENCHES)


def test_large_results_are_compared_in_fewer_states(long_chain: Robot) -> None:
    small, _ = kernel_of(long_chain, "inverse_dynamics", "", WITHOUT_WRENCHES)
    large, _ = kernel_of(Robot.from_text(chain(350)), "mass_matrix", "", WITHOUT_WRENCHES)
    assert len(certify.compared_states(small)) == len(certify.POSITIONS)
    assert 2 <= len(certify.compared_states(large)) < len(certify.POSITIONS)


def test_large_robots_with_mimic_joints_have_certificates(following: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certify, "MAX_DENSE", 1)
    graph, _ = kernel_of(following, "forward_dynamics", "articulated", WITHOUT_WRENCHES)
    difference = certify.difference(compiled(graph)[0], graph, following.tree)
    assert difference.states == len(certify.POSITIONS)
    assert 0.0 < difference.error <= 1.0


def test_runs_that_do_not_fit_in_memory_are_summarised(mixed: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest change of each entry is that of all runs, whichever number of them is computed at a time."""
    graph, _ = kernel_of(mixed, "mass_matrix", "", WITHOUT_WRENCHES)
    inputs, _ = certify.drawn_states(graph.signature, mixed.tree)
    (runs,) = certify.rounded_in_code(graph, inputs)
    monkeypatch.setattr(certify, "MAX_RUN_BYTES", 1)
    (summary,) = certify.rounded_in_code(graph, inputs)
    assert summary.shape == (*runs.shape[:-1], 2)
    change = runs - runs[..., :1]
    assert 0.4 < np.mean(change[change != 0.0] > 0.0) < 0.6  # errors of both signs, of thousands of entries
    assert np.array_equal(summary[..., 0], runs[..., 0])
    np.testing.assert_allclose(
        summary[..., 1], np.max(np.abs(runs - runs[..., :1]), axis=-1) + runs[..., 0], rtol=1e-15
    )


@pytest.mark.parametrize("form", [Rolled, Graph])
def test_a_call_without_memory_is_an_error(mixed: Robot, form: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """A petabyte of workspace, which the system's allocator refuses."""
    signature = mixed.signature(QUERIES["inverse_dynamics"], "", WITHOUT_WRENCHES)
    graph = (roll if form is Rolled else trace)(frames.kernel_tree(mixed.tree, signature.bodies), signature)
    block = Block(Body.of(compiled(graph)[1].code), signature)
    monkeypatch.setattr(form, "workspace", 1 << 47)
    monkeypatch.setattr(Block, "numbers", 1 << 47)
    kernel, loop, _ = compiled(graph)
    q, v, a, gravity = np.zeros((3, mixed.nv)), np.zeros(mixed.nv), np.zeros(mixed.nv), np.zeros(3)
    for treatment in ("ignore", "warn", "raise"):
        with (
            np.errstate(invalid=treatment),
            pytest.raises(ResourceExhaustedError, match="inverse_dynamics: there is not enough memory"),
        ):
            kernel(q, v, a, gravity)
    direct = direct_call(signature, loop, Arguments({"gravity": gravity}))
    assert direct is not None
    assert direct((q[0], v, a), (None,)) is None, "so that the caller calls the kernel above"
    inputs = {name: x[None, None] for name, x in (("q", q[0]), ("v", v), ("a", a), ("gravity", gravity))}
    with pytest.raises(ResourceExhaustedError, match="memory"):
        run_stages([Stage(block, inputs, {"tau": "tau"})], {}, {"tau": np.zeros((2, 1, mixed.nv))}, 1)


def test_memory_decides_how_many_states_are_computed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = kernel_of(Robot.from_text(chain(60)), "jacobians", "", WITHOUT_WRENCHES)
    sizes = budget.batch_sizes(graph, 8)
    assert sizes == (8, 2)
    straight = compiled(graph)[0]
    q = np.random.default_rng(0).normal(size=(3, 60))
    results = 8 * sum(operand.size for operand in graph.signature.outputs)
    batch_sizes = set()
    monkeypatch.setattr(budget, "MAX_CACHED_BYTES", results - 1)
    assert budget.batch_sizes(graph, 8) == (2, 2)
    monkeypatch.setattr(budget, "MAX_CACHED_BYTES", results)
    assert budget.batch_sizes(graph, 8) == (8, 2)
    for arrays in (16, 9.5, 7, 5.5, 4):
        monkeypatch.setattr(budget, "MAX_BYTES", arrays * results)
        batch_sizes.add(budget.batch_sizes(graph, 8))
        for a, b in zip(compiled(graph)[0](q), straight(q), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-13 * np.abs(b).max())
    assert {None, (1, 1), (1, 2)} < batch_sizes


def test_kinds_of_bodies_are_few() -> None:
    """Zeros at the same places only make a kind of their own where there are few kinds."""
    robot = Robot.from_urdf(URDF / "ten_body_tree.urdf")
    few_kinds, signature = kernel_of(robot, "inverse_dynamics", "", WITHOUT_WRENCHES)
    many_kinds = roll(frames.kernel_tree(robot.tree, signature.bodies), signature, MAX_KINDS)
    assert max(few_kinds.kind) < FEW_KINDS <= max(many_kinds.kind) < MAX_KINDS
    assert many_kinds.operations < few_kinds.operations


def test_a_long_chain_agrees_with_pinocchio(long_chain: Robot) -> None:
    bodies = long_chain.nv
    model = pin.buildModelFromXML(chain(bodies))
    data = model.createData()
    rng = np.random.default_rng(5)
    q, v, a = rng.normal(size=(3, bodies))
    M = pin.crba(model, data, q)
    M = np.triu(M) + np.triu(M, 1).T
    scale = np.sqrt(np.diag(M))
    # Errors on the scale of each joint, since the base carries a hundred bodies: 1e-16 for each of some hundred sums.
    tau = pin.rnea(model, data, q, v, a)
    assert np.max(np.abs(long_chain.inverse_dynamics(q, v, a) - tau) / scale) <= 1e-12 * np.max(np.abs(tau) / scale)
    acceleration = long_chain.forward_dynamics(q, v, tau)
    assert np.max(np.abs(M @ (acceleration - a)) / scale) <= 1e-11 * np.max(np.abs(tau) / scale)
    assert np.max(np.abs(long_chain.mass_matrix(q) - M) / np.outer(scale, scale)) <= 1e-12
