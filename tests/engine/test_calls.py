"""The first call with some options is evaluated, later ones run the kernel directly, with the same results."""

from __future__ import annotations

import copy
import pickle
import random
from dataclasses import replace
from functools import partial
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest

from dyn_service import DynError, FailedPreconditionError, InvalidArgumentError, NotFoundError, Robot, Wrench
from dyn_service.api.queries import QUERIES, Inertial, JointNumbers, Overlay, Payload, Query, RobotQueries
from dyn_service.engine.calls import MAX_CACHED, MAX_COMBINATIONS
from dyn_service.engine.evaluator import Evaluator
from tests.conftest import URDF
from tests.counting import calls_of
from tests.passive import small
from tests.phrases import naming
from tests.unbound import result_of
from tests.uncertified import uncertified


class Own(np.ndarray):
    """A subclass of arrays, as libraries define."""


class Holder:
    """An object that NumPy can convert, and that refuses NumPy's ufuncs."""

    __array_ufunc__ = None

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.values.astype(dtype or float)


@pytest.fixture
def fresh() -> Robot:
    return Robot.from_urdf(URDF / "scara.urdf")


def state(robot: Robot, *lead: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).normal(size=(3, *lead, robot.nv)))


FORMS_OF_ARRAYS = {
    "lists": np.ndarray.tolist,
    "tuples": lambda x: tuple(x.tolist()),
    "an own array": lambda x: x.view(Own),
    "a holder": Holder,
    "single precision": np.float32,
    "every other": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "read-only": lambda x: np.broadcast_to(x, x.shape),
    "whole numbers": lambda x: np.rint(x).astype(int),
}


@pytest.mark.parametrize("lead", [(), (3,)], ids=str)
@pytest.mark.parametrize("form", FORMS_OF_ARRAYS.values(), ids=FORMS_OF_ARRAYS)
def test_every_form_of_numbers(fresh: Robot, form: Any, lead: tuple[int, ...]) -> None:
    """The result and its type are the same in the first call and later ones."""
    arguments = [form(x) for x in state(fresh, *lead)]
    first = fresh.inverse_dynamics(*arguments)
    assert type(first) is np.ndarray
    assert first.tobytes() == fresh.inverse_dynamics(*(np.asarray(x, dtype=float) for x in arguments)).tobytes()
    for _ in range(2):
        repeated = fresh.inverse_dynamics(*arguments)
        assert type(repeated) is np.ndarray
        assert repeated.tobytes() == first.tobytes()


WRONG_VELOCITIES = {
    "a text": ("x", "must be real numbers"),
    "nothing": (None, "needs the input 'v'"),
    "complex": (np.ones(4) * 1j, "must be real numbers"),
    "too few": (np.ones(3), "v has shape"),
    "objects": (np.array([None] * 4), "must be real numbers"),
    "ragged": ([[1.0], [1.0, 2.0]], "must be real numbers .*row 1 has length 2, row 0 has length 1"),
}


@pytest.mark.parametrize(("wrong", "words"), WRONG_VELOCITIES.values(), ids=WRONG_VELOCITIES)
def test_errors_are_raised_on_every_call(fresh: Robot, wrong: Any, words: str) -> None:
    q, v, a = state(fresh)
    texts = []
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match=words) as error:
            fresh.inverse_dynamics(q, wrong, a)
        texts.append(str(error.value))
        fresh.inverse_dynamics(q, v, a)  # installs the fast path
    assert texts[0] == texts[1]


OTHERS: dict[str, dict[str, Any]] = {
    "gravity": {"gravity": [0.0, 0.0, -1.0]},
    "gravity of a batch": {"gravity": np.array([[0.0, 0.0, -1.0], [0.0, 0.0, -2.0]])},
    "the other method": {"method": "mass_matrix"},
    "the same method in another string": {"method": "".join(["artic", "ulated"])},
    "all at once": {"gravity": np.zeros(3), "wrenches": [], "method": "mass_matrix"},
}


@pytest.mark.parametrize("optional", OTHERS.values(), ids=OTHERS)
def test_optional_arguments_take_effect(fresh: Robot, optional: dict[str, Any]) -> None:
    q, v, tau = state(fresh)
    first = fresh.forward_dynamics(q, v, tau, **optional)
    plain = fresh.forward_dynamics(q, v, tau)
    for _ in range(2):
        assert fresh.forward_dynamics(q, v, tau, **optional).tobytes() == first.tobytes()
        assert fresh.forward_dynamics(q, v, tau).tobytes() == plain.tobytes()
    expected = fresh.evaluate("forward_dynamics", {"q": q, "v": v, "tau": tau, **_inputs(optional)}, _options(optional))
    assert first.tobytes() == expected["a"].tobytes()


def _inputs(optional: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in optional.items() if name in QUERIES["forward_dynamics"].inputs}


def _options(optional: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in optional.items() if name in QUERIES["forward_dynamics"].options}


@pytest.mark.parametrize("gravity", ["down", (0.0, 0.0), np.zeros(2), np.zeros((2, 2)), np.ones(3, bool)], ids=repr)
def test_invalid_gravity_is_refused_on_every_call(fresh: Robot, gravity: Any) -> None:
    q, v, a = state(fresh)
    for _ in range(3):
        with pytest.raises(InvalidArgumentError, match="gravity"):
            fresh.inverse_dynamics(q, v, a, gravity=gravity)
        fresh.inverse_dynamics(q, v, a)


@pytest.mark.parametrize("option", ["mass", None, 3, ["articulated"]], ids=repr)
def test_an_invalid_option_is_refused_on_every_call(fresh: Robot, option: Any) -> None:
    q, v, tau = state(fresh)
    for _ in range(3):
        with pytest.raises(InvalidArgumentError, match=naming("method", "'articulated'", "'mass_matrix'")):
            fresh.forward_dynamics(q, v, tau, method=option)
        fresh.forward_dynamics(q, v, tau)


def test_an_overridden_method_is_called() -> None:
    class Doubled(Robot):
        def mass_matrix(self, q: Any) -> Any:
            return 2.0 * super().mass_matrix(q)

    plain, doubled = (kind.from_urdf(URDF / "scara.urdf") for kind in (Robot, Doubled))
    q = np.full(plain.nv, 0.3)
    for _ in range(3):
        assert (doubled.mass_matrix(q) == 2.0 * plain.mass_matrix(q)).all()
    assert isinstance(doubled, RobotQueries)


def test_neutral_returns_a_new_array(fresh: Robot) -> None:
    for root in ("fixed", "floating"):
        robot = Robot.from_urdf(URDF / "scara.urdf", root=root)  # type: ignore[arg-type]
        neutral = robot.neutral()
        robot.neutral()[:] = 0.5
        assert (robot.neutral() == neutral).all()
        for constant in (robot.configuration.neutral, robot.configuration.angles, robot.configuration.shifts):
            with pytest.raises(ValueError, match="read-only"):
                constant[:] = 1


# Combinations of options.

LOAD = Overlay(Payload("pendulum", 0.5, (0.0, 0.01, 0.02)))


@pytest.fixture(scope="module")
def arm() -> Robot:
    return uncertified(small())


PAIRS = {"inverse_dynamics", "forward_dynamics", "constraint_forces", "operational_space", "newton_euler_blocks"}
"""Rows whose options are combined, since each combination may have a kernel of its own."""


def options_of(row: Query) -> dict[str, Any]:
    """Returns a value for each optional argument of a row that is not its default."""
    values: dict[str, Any] = {}
    for name in row.optional_arguments:
        option, spec = row.options.get(name), row.inputs.get(name)
        if option is not None and option.type == "names":
            values[name] = ["pendulum"] if row.row_dimension == "nl" or name == "links" else ["hinge"]
        elif option is not None:
            values[name] = option.choices[-1] if option.choices else not option.default
        elif spec is not None and spec.kind == "gravity":
            values[name] = np.array([0.1, 0.2, -1.6])
        elif spec is not None and spec.kind == "wrenches":
            values[name] = [Wrench("pendulum", force=(1.0, 2.0, 3.0), point=(0.0, 0.1, 0.0))]
        elif spec is not None and spec.kind == "overlay":
            values[name] = LOAD
    return values


def parts(row: Query, result: Any) -> list[Any]:
    """Returns the outputs in bytes, and the labels."""
    outputs = [result] if row.result_type is None else [getattr(result, name) for name in row.result_names]
    return [x.tobytes() if isinstance(x, np.ndarray | np.floating) else x for x in outputs]


@pytest.mark.parametrize("row", [row for row in QUERIES.values() if not row.constant], ids=lambda row: row.name)
def test_combinations_of_options(arm: Robot, row: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each option alone, and in pairs: after two calls nothing is evaluated any more, and the bits are the same."""
    ask, rng, options = getattr(arm, row.name), np.random.default_rng(0), options_of(row)
    sizes = {name: row.inputs[name] for name in row.required}
    arguments = {n: "pendulum" if s.kind == "link" else rng.normal(size=s.dims(arm.sizes)) for n, s in sizes.items()}
    evaluated: list[str] = []
    answer = Evaluator.answer

    def counting_evaluate(self: Evaluator, row: Query, *arguments: Any) -> Any:
        evaluated.append(row.name)
        return answer(self, row, *arguments)

    monkeypatch.setattr(Evaluator, "answer", counting_evaluate)
    for names in chain.from_iterable(combinations(options, count) for count in range(3 if row.name in PAIRS else 2)):
        chosen_options = {name: options[name] for name in names}
        expected = parts(row, result_of(arm, row, {**arguments, **chosen_options}))
        for _ in range(2):
            assert parts(row, ask(**arguments, **chosen_options)) == expected, names
        evaluated.clear()
        assert parts(row, ask(**arguments, **chosen_options)) == expected, names
        assert not evaluated, names


def test_options_equal_to_a_bound_one_are_checked(arm: Robot) -> None:
    """1 equals True, and a text equals its letters, but neither is a valid option."""
    q = np.zeros(2)
    for _ in range(3):
        arm.inverse_dynamics(q, q, q, passive=False)
        arm.inverse_dynamics(q, q, q, passive=True)
        for invalid in (0, 1, np.False_, None):
            with pytest.raises(InvalidArgumentError, match="passive must be true or false"):
                arm.inverse_dynamics(q, q, q, passive=invalid)  # type: ignore[arg-type]
        arm.constraint_forces(q, q, q, joints=["cart_slide", "hinge"])
        with pytest.raises(InvalidArgumentError, match="joints must be"):
            arm.constraint_forces(q, q, q, joints="cart_slide")
        with pytest.raises(NotFoundError, match="no joint 'three'"):
            arm.constraint_forces(q, q, q, joints=["cart_slide", "three"])


def test_new_selections_do_not_fill_the_memory(arm: Robot) -> None:
    q = np.ones(2)
    whole = arm.constraint_forces(q, q, q)
    for k in range(2 * MAX_COMBINATIONS):
        names = ["cart_slide", "hinge"] * (k % 70) + ["hinge"]
        loads = arm.constraint_forces(q, q, q, joints=names)
        assert loads.joints == tuple(names)
        assert (loads.wrench[-1] == whole.wrench[1]).all()
        assert len(arm.evaluator.row_calls["constraint_forces"]._bound) <= MAX_COMBINATIONS


FORMS_OF_VECTORS: list[Any] = [
    *[lambda x: x] * 8,
    np.ndarray.tolist,
    np.float32,
    lambda x: np.flip(np.flip(x).copy()),
    lambda x: np.broadcast_to(x, (2, *x.shape)),
    lambda x: x[..., :-1],
    lambda x: x.astype(int),
    lambda x: x > 0,
    lambda x: x * np.nan,
    lambda x: None,
    lambda x: "x",
]
VALUES: dict[str, list[Any]] = {
    "flag": [True, False, 0, 1, None, np.True_],
    "names": [["cart_slide"], ("hinge", "cart_slide"), None, ["no"], "cart_slide", [1], ["pendulum"]],
    "gravity": [np.array([0.0, 0.0, -1.0]), (0.0, 0.0, -2.0), [0, 1, 0], np.zeros((3, 3)), np.zeros(2), "g", None],
    "wrenches": [
        [],
        None,
        Wrench("pendulum", force=(1, 2, 3)),
        [Wrench("no")],
        "w",
        [Wrench("pendulum", np.ones((2, 3)))],
    ],
    "overlay": [
        LOAD,
        Overlay(gravity=(0, 0, -1.0)),
        Overlay(locked=["cart_slide"]),
        Overlay(Payload("pendulum", -1.0)),
        None,
        {},
    ],
    "directions": [["x", "rz"], ("z",), None, ["no"], np.ones(6), [0.1] * 6],
    "plain": [np.array([0.1, 0.2, 0.3]), [0.1, 0.2, 0.3], None, np.zeros(1)],
}


@pytest.mark.parametrize("row", [QUERIES[name] for name in sorted(PAIRS)], ids=lambda row: row.name)
def test_random_arguments(arm: Robot, row: Query) -> None:
    """Valid or not, several calls return or raise the same as the evaluation, to the last bit and word."""
    rng, draw = np.random.default_rng(0), random.Random(0)
    robots = [arm, arm.overlaid(LOAD), arm.overlaid(Overlay(locked=["cart_slide"]))]
    for _ in range(150):
        robot, lead = draw.choice(robots), draw.choice([(), (), (2,)])
        arguments: dict[str, Any] = {}
        for name in row.required:
            spec = row.inputs[name]
            vector = rng.uniform(-0.5, 0.5, (*lead, *spec.dims(arm.sizes)))
            if draw.random() < 0.5 and spec.kind in ("velocity", "acceleration"):
                vector[..., 0] = 0.0  # the locked joint
            arguments[name] = "pendulum" if spec.kind == "link" else draw.choice(FORMS_OF_VECTORS)(vector)
            if spec.scalar and draw.random() < 0.7:
                arguments[name] = draw.choice([0.5, np.float64(0.1), 2, np.array(0.3)])
        chosen_options = {}
        for name in row.optional_arguments:
            option = row.options.get(name)
            if option is not None and option.choices:
                values = [*option.choices, "bad", 1, None]
            else:
                values = VALUES[row.inputs[name].kind if option is None else option.type]
            if draw.random() < 0.4:
                chosen_options[name] = draw.choice(values)
        expected = outcome(row, partial(result_of, robot, row), {**arguments, **chosen_options})
        for _ in range(3):
            assert outcome(row, getattr(robot, row.name), **arguments, **chosen_options) == expected, (
                arguments,
                chosen_options,
            )


def outcome(row: Query, call: Any, *arguments: Any, **keywords: Any) -> Any:
    """Returns the outputs of a call in bytes, or its error's type, path and text."""
    try:
        return parts(row, call(*arguments, **keywords))
    except DynError as error:
        return type(error), error.path, str(error)


# Overlays given with calls.


def test_an_overlay_does_not_change_with_the_arrays_it_was_made_from(arm: Robot) -> None:
    q, com, links = np.ones(2), np.array([0.0, 0.0, 0.3]), {"cart": Inertial(mass=3.0)}
    overlay = Overlay([Payload("pendulum", 1.0, com)], links)
    answers = [arm.inverse_dynamics(q, q, q, overlay=overlay).tobytes() for _ in range(3)]
    # The caller's own arrays: an overlay that kept them would change under the kernels that were bound to it.
    com[:] = 5.0
    links["pendulum"] = Inertial(mass=9.0)
    assert arm.inverse_dynamics(q, q, q, overlay=overlay).tobytes() == answers[0]
    assert len({*answers}) == 1
    with pytest.raises(ValueError, match="read-only"):
        overlay.payloads[0].com[0] = 1.0  # type: ignore[index]
    unpickled = pickle.loads(pickle.dumps(overlay))
    assert arm.inverse_dynamics(q, q, q, overlay=unpickled).tobytes() == answers[0]
    assert unpickled.content == copy.deepcopy(overlay).content == overlay.content


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Overlay(Payload("pendulum", 1.0)), Overlay(Payload("cart", 1.0))),
        (Overlay(Payload("pendulum", 1.0)), Overlay(Payload("pendulum", 1.0 + 1e-15))),
        (Overlay(Payload("pendulum", 1.0, (0.0, 0.1, 0.0))), Overlay(Payload("pendulum", 1.0, (0.1, 0.0, 0.0)))),
        (Overlay(links={"pendulum": Inertial(mass=2.0)}), Overlay(links={"cart": Inertial(mass=2.0)})),
        (
            Overlay(joints={"cart_slide": JointNumbers(damping=1.0)}),
            Overlay(joints={"cart_slide": JointNumbers(friction=1.0)}),
        ),
        (Overlay(gravity=(0.0, 0.0, -1.0)), Overlay(gravity=(0.0, 0.0, -2.0))),
        (Overlay(locked=["cart_slide"]), Overlay(locked=["hinge"])),
    ],
    ids=range(7),
)
def test_overlays_are_told_apart_by_content(arm: Robot, first: Overlay, second: Overlay) -> None:
    q, zero = np.array([0.3, 0.2]), np.zeros(2)
    expected = [arm.overlaid(overlay).inverse_dynamics(q, zero, zero).tobytes() for overlay in (first, second)]
    for _ in range(3):
        for overlay, bits in zip((first, second), expected, strict=True):
            copied = replace(overlay)  # equal in content, another object
            assert arm.inverse_dynamics(q, zero, zero, overlay=copied).tobytes() == bits
            assert arm.inverse_dynamics(q, zero, zero, overlay=overlay).tobytes() == bits
    assert first.content != second.content


def test_an_overlay_with_a_content_like_a_valid_one_is_checked(arm: Robot) -> None:
    q = np.ones(2)
    for _ in range(3):
        arm.inverse_dynamics(q, q, q, overlay=Overlay(Payload("pendulum", 1.0)))
        arm.inverse_dynamics(q, q, q, overlay=Overlay(Payload("pendulum", np.ones(()))))
        for mass in (True, np.ma.masked_array(np.ones(1), [True]), "1.0", None):
            with pytest.raises(InvalidArgumentError, match="mass"):
                arm.inverse_dynamics(q, q, q, overlay=Overlay(Payload("pendulum", mass)))  # type: ignore[arg-type]


def test_an_overlay_that_contradicts_an_argument_is_refused_on_every_call(arm: Robot) -> None:
    q = np.ones(2)
    heavy, damped = Overlay(gravity=(0.0, 0.0, -1.0)), Overlay(joints={"cart_slide": JointNumbers(damping=1.0)})
    for _ in range(3):
        arm.inverse_dynamics(q, q, q, overlay=heavy)
        arm.inverse_dynamics(q, q, q, overlay=damped)
        with pytest.raises(InvalidArgumentError, match="gravity is given twice"):
            arm.inverse_dynamics(q, q, q, overlay=heavy, gravity=np.zeros(3))
        view = Robot._with(arm.evaluator.overlaid_by(damped, "overlay"))
        view.inverse_dynamics(q, q, q, passive=False)  # the robot itself has no conflict
        with pytest.raises(InvalidArgumentError, match="passive=False switches off"):
            arm.inverse_dynamics(q, q, q, overlay=damped, passive=False)


@pytest.mark.parametrize("form", [np.array, list, lambda x: np.array([x, x])], ids=["array", "list", "batch"])
def test_motions_of_locked_joints_are_refused_on_every_call(arm: Robot, form: Any) -> None:
    q, moving_hinge, overlay = [0.3, 0.2], [0.0, 1.0], Overlay(locked=["cart_slide"])
    view = arm.overlaid(overlay)
    for _ in range(3):
        expected = view.inverse_dynamics(form(q), form(moving_hinge), form(moving_hinge))
        tau = arm.inverse_dynamics(form(q), form(moving_hinge), form(moving_hinge), overlay=overlay)
        assert tau.tobytes() == expected.tobytes()
        for moving in ([1e-300, 0.0], [np.nan, 0.0]):
            for v, a in ((moving, moving_hinge), (moving_hinge, moving)):
                with pytest.raises(InvalidArgumentError, match="joint 'cart_slide', which is locked"):
                    view.inverse_dynamics(form(q), form(v), form(a))
        last = np.array([[0.0, 0.0], [0.0, 1.0], [5.0, 0.0]])
        with pytest.raises(InvalidArgumentError, match="joint 'cart_slide', which is locked"):
            view.inverse_dynamics(q, last, moving_hinge)


def test_robots_of_overlays_are_bounded(arm: Robot) -> None:
    """In number; an overlay of thousands of robots is not kept."""
    q = np.ones(2)
    for k in range(MAX_CACHED + 5):
        arm.inverse_dynamics(q, q, q, overlay=Overlay(Payload("pendulum", 1.0 + k)))
    batched = Overlay(Payload("pendulum", np.arange(1.0, 5000.0)))
    arm.inverse_dynamics(q, q, q, overlay=batched)
    assert 0 < len(arm.evaluator.overlaid.by_id) <= MAX_CACHED
    assert arm.evaluator.overlaid.find(batched) is None


def test_an_overlay_without_inertia_is_refused_on_every_call() -> None:
    """Although the kernel of its row is loaded."""
    bare = Robot.from_text(
        '<robot name="r"><link name="a"/><link name="b"/>'
        '<joint name="j" type="continuous"><parent link="a"/><child link="b"/></joint></robot>'
    )
    robot = bare.overlaid(Overlay(joints={"j": JointNumbers(armature=2.0)}))
    for _ in range(3):
        assert robot.forward_dynamics([0.1], [0.2], [3.0]).tolist() == [1.5]
        with pytest.raises(FailedPreconditionError, match="no inertia along it"):
            robot.forward_dynamics([0.1], [0.2], [3.0], overlay=Overlay(joints={"j": JointNumbers(armature=0.0)}))
    view = robot.overlaid(Overlay(joints={"j": JointNumbers(armature=0.0)}))
    assert view.evaluator.load_kernel(QUERIES["forward_dynamics"], "articulated")  # as a server does
    with pytest.raises(FailedPreconditionError, match="no inertia along it"):
        view.forward_dynamics([0.1], [0.2], [3.0])


# Cost.


@pytest.mark.parametrize("options", [{"gravity": np.zeros(3)}, {"passive": False}, {"overlay": LOAD}], ids=str)
def test_options_add_few_calls(arm: Robot, options: dict[str, Any]) -> None:
    """Functions of Python and C that one call runs, one of them the kernel: the plain call runs 5."""
    q = np.ones(2)
    for _ in range(3):
        arm.inverse_dynamics(q, q, q), arm.inverse_dynamics(q, q, q, **options)
    plain = calls_of(lambda: arm.inverse_dynamics(q, q, q))
    added_calls = calls_of(lambda: arm.inverse_dynamics(q, q, q, **options)) - plain
    # Functions that run, not time: the same on a busy machine.
    assert plain <= 7
    assert added_calls <= {"gravity": 0, "passive": 3, "overlay": 3}[next(iter(options))]


@pytest.mark.parametrize("lead", [(), (9,)], ids=str)
def test_wrenches_of_other_numbers_and_rotated_results_in_given_arrays_are_not_evaluated(
    arm: Robot, lead: tuple[int, ...]
) -> None:
    """Their arrays are converted to doubles; results that are rotated afterwards are copied. An evaluation runs 400.

    Where xarray is imported, fields of wrenches are searched for its arrays, in some 30 calls.
    """
    q, v, a = state(arm, *lead)
    first, second = np.array([0.1, 0.2, 0.3]), 0.5 * np.ones((*lead, 3))
    numbers = [Wrench("pendulum", force=first.astype(np.float32)), Wrench("cart", force=second.astype(np.float32))]
    doubles = [Wrench("pendulum", force=first.astype(np.float32).astype(float)), Wrench("cart", force=second)]
    whole = [Wrench("pendulum", torque=np.array([1, 2, 3]), point=np.array([0, 1, 0]))]
    out = arm.link_motion(q, v, a, frame="world")
    calls: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"wrenches": numbers}, {"wrenches": doubles}),
        ({"wrenches": whole}, {"wrenches": [Wrench("pendulum", torque=(1.0, 2.0, 3.0), point=(0.0, 1.0, 0.0))]}),
    ]
    for single_options, expected in calls:
        for _ in range(3):
            tau = arm.inverse_dynamics(q, v, a, **single_options)
            assert tau.tobytes() == arm.inverse_dynamics(q, v, a, **expected).tobytes()
        assert calls_of(lambda single_options=single_options: arm.inverse_dynamics(q, v, a, **single_options)) <= 150
    for _ in range(3):
        motion = arm.link_motion(q, v, a, frame="world", out=out)
    assert motion.velocity is out.velocity
    assert calls_of(lambda: arm.link_motion(q, v, a, frame="world", out=out)) <= 150
