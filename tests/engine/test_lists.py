"""Lists of queries: one kernel, whose results are those of the separate calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service import Contact, DynError, InvalidArgumentError, NotFoundError, Overlay, Payload, Robot
from dyn_service.api import lists
from dyn_service.api.lists import names_queries, row_of, row_of_list
from dyn_service.api.queries import QUERIES
from dyn_service.errors import ResourceExhaustedError, UnimplementedError
from dyn_service.kernels import budget, frames, library
from dyn_service.kernels.graph import trace
from tests.conftest import URDF
from tests.overlays import State, apart
from tests.passive import small
from tests.phrases import naming

ROUNDING = 1e-13
"""Of the largest entry of an output: the compiler may add the terms of a sum in another order in a larger kernel."""

DYNAMICS = ["inverse_dynamics", "mass_matrix", "forward_dynamics"]


@pytest.fixture(scope="module")
def cart() -> Robot:
    return small()


def compare(robot: Any, names: list[str] | str, arguments: dict[str, Any]) -> None:
    """Compares the results of a list with those of the separate calls, by type, shape, labels and value."""
    row = row_of_list(names)
    results = robot.evaluate(names, **arguments)
    assert list(results) == [part.name for part in row.parts]
    for part in row.parts:
        separate = getattr(robot, part.name)(**{n: x for n, x in arguments.items() if n in part.parameters})
        assert type(results[part.name]) is type(separate)
        outputs, expected = part.outputs_of(results[part.name]), part.outputs_of(separate)
        for name in part.outputs:
            assert apart(outputs[name], expected[name]) < ROUNDING, (part.name, name)
        assert all(outputs[name] == expected[name] for name in part.labels)


def inputs(robot: Robot, names: list[str] | str, **replacements: Any) -> dict[str, Any]:
    row = row_of_list(names)
    return {n: x for n, x in {**State(robot, 3).inputs(row), **replacements}.items() if n in row.inputs}


@pytest.mark.parametrize("file", ["panda.urdf", "scara.urdf", None])
def test_results_are_those_of_separate_calls(file: str | None) -> None:
    """Mimic joints and friction; a floating base; every passive property."""
    robot = small() if file is None else Robot.from_urdf(URDF / file, root="floating" if "scara" in file else "fixed")
    arguments = {name: x for name, x in inputs(robot, DYNAMICS).items() if name != "wrenches"}
    compare(robot, DYNAMICS, arguments)
    compare(robot, DYNAMICS, {**arguments, "passive": False, "gravity": (1.0, 2.0, 3.0)})
    certificates = set(robot.certificates)
    reversed_results = robot.evaluate(DYNAMICS[::-1], **arguments)
    assert set(robot.certificates) == certificates
    np.testing.assert_array_equal(reversed_results["mass_matrix"], robot.evaluate(DYNAMICS, **arguments)["mass_matrix"])


LISTS = [
    ["inverse_dynamics", "mass_matrix", "operational_space"],
    ["link_poses", "coriolis_matrix", "jacobians", "bias_accelerations", "energy"],
    ["branch_inertias", "bias_forces"],
    ["constraint_forces", "imu", "step"],
    "whole_body_terms",
]


@pytest.mark.parametrize("names", LISTS, ids=str)
def test_every_kind_of_argument(cart: Robot, names: list[str] | str) -> None:
    arguments = inputs(cart, names)
    row = row_of_list(names)
    for _ in range(2):  # evaluated, then bound
        compare(cart, names, arguments)
    batch = {n: np.broadcast_to(x, (5, 1, *np.shape(x))) if n in ("v", "tau", "a") else x for n, x in arguments.items()}
    compare(cart, names, batch)
    if "link" in arguments:
        compare(cart, names, {**batch, "link": [arguments["link"]] * 3})
    overlay = Overlay(payloads=Payload(cart.link_names[-1], mass=np.array([1.0, 2.0])), gravity=(0.0, 0.0, -1.6))
    if all(part.overlay is not None for part in row.parts):
        compare(cart, names, {**{n: x for n, x in arguments.items() if n != "wrenches"}, "overlay": overlay})
        compare(cart.overlaid(overlay), names, batch)


@pytest.mark.parametrize(
    "names",
    [
        ["mass_matrix", "link_poses"],
        ["mass_matrix", "integrate"],
        ["bias_forces", "mass_matrix"],
        ["jacobians", "energy"],
    ],
    ids=str,
)
def test_only_queries_with_gravity_have_the_axes_of_the_gravity_of_an_overlay(cart: Robot, names: list[str]) -> None:
    arguments = {n: x for n, x in inputs(cart, names).items() if n not in ("wrenches", "gravity", "overlay")}
    gravity = np.arange(6.0).reshape(2, 1, 3)
    payload = Payload(cart.link_names[-1], mass=np.array([1.0, 2.0, 3.0]))
    for overlay in (Overlay(gravity=gravity), Overlay(gravity=gravity, payloads=payload)):
        compare(cart, names, {**arguments, "overlay": overlay})
        compare(cart.overlaid(overlay), names, arguments)


def test_results_with_fewer_axes_do_not_keep_the_batch(cart: Robot) -> None:
    arguments = inputs(cart, ["mass_matrix", "bias_forces"])
    M = cart.evaluate(["mass_matrix", "bias_forces"], **{**arguments, "v": np.ones((1000, cart.nv))})["mass_matrix"]
    assert M.base is None
    assert M.flags.owndata


def test_names_of_lists_are_bounded_and_consistent() -> None:
    twice = "mass_matrix+mass_matrix"
    assert not names_queries(twice)
    with pytest.raises(InvalidArgumentError, match=naming("mass_matrix twice")):
        row_of(twice)
    all_names = "+".join(QUERIES)
    assert names_queries(all_names)

    class Long(str):
        def split(self, *_: Any) -> Any:
            raise AssertionError("it is too long to be split")

    assert not names_queries(Long(all_names + "+energy" * 1000))
    with pytest.raises(UnimplementedError, match=naming("no query ''")):
        row_of("+" * 100_000)


def test_properties_of_lists_are_those_of_their_queries() -> None:
    forward, branches = row_of("mass_matrix+forward_dynamics"), row_of("mass_matrix+branch_inertias")
    assert forward.inverts_mass_matrix == {"articulated", "mass_matrix"}
    assert forward.cost_exponent == {"articulated": 1, "mass_matrix": 3}
    assert row_of("mass_matrix+equation_terms").cost_exponent == {"": 3}
    assert branches.rejects_mimic == branches.inverts_mass_matrix == {""}
    assert not branches.control
    step, force = QUERIES["step"], QUERIES["force_torque"]
    for row, name, change in ((step, "dt", {"scalar": False}), (force, "xyz", {"default": (1.0, 0.0, 0.0)})):
        other = replace(row, inputs={**row.inputs, name: replace(row.inputs[name], **change)})
        with pytest.raises(InvalidArgumentError, match=naming(f"need different inputs {name}")):
            lists._inputs([row, other])


def test_an_empty_batch_leaves_out_only_its_own_axes(cart: Robot) -> None:
    arguments = inputs(cart, ["mass_matrix", "bias_forces"], v=np.zeros((0, cart.nv)))
    results = cart.evaluate(["mass_matrix", "bias_forces"], **arguments)
    assert results["mass_matrix"].shape == (cart.nv, cart.nv)
    assert results["bias_forces"].shape == (0, cart.nv)


def test_a_robot_without_joints() -> None:
    robot = Robot.from_text('<robot name="stone"><link name="stone"/></robot>')
    results = robot.evaluate(["mass_matrix", "link_poses"], q=[])
    assert results["mass_matrix"].shape == (0, 0)
    np.testing.assert_array_equal(results["link_poses"].rotation, np.eye(3)[None])


def test_methods_are_chosen_where_queries_agree(cart: Robot) -> None:
    names = ["velocity_from_momentum", "hamiltonian_flow", "mass_matrix"]
    compare(cart, names, {**inputs(cart, names), "method": "mass_matrix"})
    assert "method" not in row_of("forward_dynamics+step").options


def test_a_list_of_one_is_the_plain_call(cart: Robot) -> None:
    q = np.zeros(cart.nq)
    results = cart.evaluate(["mass_matrix"], q=q)
    np.testing.assert_array_equal(results["mass_matrix"], cart.mass_matrix(q))
    assert list(cart.evaluate("mass_matrix", q=q)) == ["mass_matrix"]


def operations(robot: Robot, name: str, method: str = "") -> int:
    row = row_of(name)
    signature = robot.signature(row, method if method in row.kernels else next(iter(row.kernels)))
    return trace(frames.kernel_trees(robot.tree, signature, frames.cheapest_frames(robot.tree)), signature).operations


def test_common_work_is_done_once(panda: Robot) -> None:
    for method, share in (("articulated", 0.9), ("mass_matrix", 0.7)):  # 3038 of 3452, 2439 of 3687
        whole, *parts = (operations(panda, name, method) for name in ("+".join(DYNAMICS), *DYNAMICS))
        assert whole < share * sum(parts)
    for name in ("bias_forces+gravity_forces", "link_poses+jacobians", "mass_matrix+bias_forces+point_motion"):
        assert operations(panda, name) < sum(operations(panda, part) for part in name.split("+"))


WRONG_LISTS = [
    ([], "a list of names"),
    (3, "a list of names"),
    (["mass_matrix", 3], "a list of names"),
    (["mass_matrix", "dance"], "no query 'dance'"),
    (["mass_matrix", "bias_forces", "mass_matrix"], "mass_matrix twice"),
    (["mass_matrix", "simulate"], "simulate is a computation"),
    (["mass_matrix", "topology"], "topology has no inputs"),
    (["mass_matrix", "whole_body_terms"], "whole_body_terms is a list of queries itself"),
    ({"mass_matrix", "energy"}, "a list of names of queries, found an object of type set"),
    ({"mass_matrix": 1, "energy": 2}, "found an object of type dict"),
    (iter(["mass_matrix", "energy"]), "a list of names of queries"),
    (["whole_body_terms", "energy"], "name its queries instead, mass_matrix, bias_forces, point_motion"),
    (["branch_inertias", "link_poses"], "call them separately"),
]


@pytest.mark.parametrize(("names", "text"), WRONG_LISTS, ids=[text for _, text in WRONG_LISTS])
def test_wrong_lists(cart: Robot, names: Any, text: str) -> None:
    with pytest.raises(DynError, match=naming(text)) as error:
        cart.evaluate(names, q=np.zeros(cart.nq))
    assert isinstance(error.value, UnimplementedError | InvalidArgumentError)
    assert error.value.path in ("queries", "query")


def test_wrong_arguments(cart: Robot) -> None:
    q = np.zeros(cart.nq)
    for arguments, path in (
        ({"q": q}, "inputs.v"),
        ({"q": q, "v": q, "tau": q}, "inputs.tau"),
        ({"q": 1, "v": q}, "inputs.q"),
    ):
        with pytest.raises(InvalidArgumentError) as error:
            cart.evaluate(["mass_matrix", "bias_forces"], **arguments)
        assert error.value.path == path
    with pytest.raises(InvalidArgumentError, match=naming("inputs are given by name")):
        cart.evaluate(["mass_matrix", "bias_forces"], q, q)  # type: ignore[arg-type]
    with pytest.raises(NotFoundError):
        cart.evaluate("whole_body_terms", q=q, v=q, link="thumb")
    with pytest.raises(InvalidArgumentError, match=naming("passive must be true or false")):
        cart.evaluate(["mass_matrix", "bias_forces"], q=q, v=q, passive=1)


def test_the_number_of_kernels_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "MAX_LIST_KERNELS", 2)
    robot = Robot.from_urdf(URDF / "pendulum.urdf")
    q = np.zeros(1)
    for names in (["mass_matrix", "bias_forces"], ["bias_forces", "mass_matrix"], ["mass_matrix", "gravity_forces"]):
        robot.evaluate(names, q=q, **({"v": q} if "bias_forces" in names else {}))
    with pytest.raises(ResourceExhaustedError, match=naming("2 kernels of lists of queries")):
        robot.evaluate(["link_poses", "mass_matrix"], q=q)
    robot.evaluate(["mass_matrix", "bias_forces"], q=q, v=q)
    robot.link_poses(q)


def test_robots_in_loops_use_the_kernels_of_the_queries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DYN_SERVICE_CACHE", str(tmp_path))
    monkeypatch.setattr(budget, "MAX_UNROLLED", -1)
    monkeypatch.setattr(budget, "FIRST_PROBE", 0)
    names = ["gravity_forces", "passive_forces"]
    robot, other = (Robot.from_urdf(URDF / "double_pendulum.urdf") for _ in range(2))
    for first_or_second in (robot, other):
        q = np.zeros((4, first_or_second.nq))
        results = first_or_second.evaluate(names, q=q, v=q[0])
        np.testing.assert_array_equal(results["gravity_forces"], first_or_second.gravity_forces(q))
        assert results["passive_forces"].stored.shape == (4,)
        assert set(first_or_second.certificates) == {
            "gravity_forces",
            "passive_forces",
            "gravity_forces+passive_forces",
        }
        monkeypatch.setattr(library, "release_freed_memory", None)  # the second robot compiles nothing
        monkeypatch.setattr(library.KernelLibrary, "_make", None)  # and finds in the store that the list has no kernel


def test_constants_of_a_whole_body_problem() -> None:
    robot = Robot.from_urdf(URDF / "solo12.urdf", root="floating")
    foot = Contact(robot.link_names[-1], (0.0, 0.0, -0.1), normal=(0.0, 1.0, 1.0), friction=0.5)
    constants = robot.whole_body_constants([foot, Contact(robot.link_names[-2], rigid=True)], facets=6)
    assert constants.selection.shape == (12, 18)
    assert not constants.selection[:, :6].any()
    assert (constants.effort.shape, constants.cones.shape) == ((12,), (2, 7, 3))
    assert not constants.cones[1].any()
    normal = np.array([0.0, 1.0, 1.0]) / np.sqrt(2.0)
    f = np.random.default_rng(0).normal(size=(20000, 3)) + 2.0 * normal
    in_pyramid = (constants.cones[0] @ f[..., None] <= 0.0).all(axis=(-2, -1))
    normal_force = f @ normal
    sliding = np.linalg.norm(f - normal_force[:, None] * normal, axis=-1) / normal_force
    assert in_pyramid.any()
    assert (sliding[in_pyramid] <= 0.5 + 1e-12).all()  # the pyramid is in the cone
    assert in_pyramid[(normal_force > 0) & (sliding < 0.5 * np.cos(np.pi / 6))].all()  # and has its inner radius
    terms = robot.evaluate(
        "whole_body_terms", **inputs(robot, "mass_matrix+bias_forces"), link=constants.links, point=constants.points
    )
    assert terms["mass_matrix"].shape == (18, 18)
    assert terms["point_motion"].jacobian.shape == (2, 6, 18)
    with pytest.raises(NotFoundError):
        robot.whole_body_constants(Contact("thumb"))
    for wrong in ({"facets": 2}, {"contacts": [Contact("base_link", friction=-1.0)]}, {"contacts": ["foot"]}):
        with pytest.raises(InvalidArgumentError):
            robot.whole_body_constants(**wrong)  # type: ignore[arg-type]
