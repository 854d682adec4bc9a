"""One state with external wrenches through one compiled call: the same bits as the slow path, at almost the cost of a
call without wrenches. Arguments that the call does not accept take the slow path, with the same results.
"""

from __future__ import annotations

import gc
import pickle
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dyn_service import DynError, InvalidArgumentError, Robot, Wrench
from dyn_service.api.queries import QUERIES, Query
from dyn_service.api.spec import WITH_WRENCHES
from dyn_service.engine import bound_calls
from dyn_service.engine.wrenches import places
from dyn_service.kernels import direct, loop
from dyn_service.kernels.direct import Arguments
from dyn_service.kernels.wrenches import MAX_WRENCHES
from tests.conftest import URDF
from tests.counting import calls_of
from tests.unbound import result_of
from tests.uncertified import uncertified
from tests.wide import wide

ROWS = [row for row in QUERIES.values() if row.wrenches is not None]
ID = QUERIES["inverse_dynamics"]
_ROBOTS: dict[tuple[str, str], Robot] = {}


def robot_of(name: str, root: Any = "fixed") -> Robot:
    """Returns a robot shared by the tests, since its kernels take long to make."""
    if (name, root) not in _ROBOTS:
        _ROBOTS[name, root] = uncertified(Robot.from_urdf(URDF / f"{name}.urdf", root=root))
    return _ROBOTS[name, root]


def state(robot: Robot, row: Query, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Returns the required inputs of one state."""
    rng = np.random.default_rng(seed)
    inputs = []
    for name in row.required:
        spec = row.inputs[name]
        if spec.kind == "link":
            inputs.append(str(rng.choice(robot.link_names)))
            continue
        configuration = robot.random_configuration(seed=seed) if spec.kind == "position" else None
        inputs.append(rng.normal(size=spec.dims(robot.sizes)) if configuration is None else configuration)
    return tuple(inputs)


def wrenches_of(robot: Robot, count: int, seed: int = 0) -> list[Wrench]:
    """Returns wrenches on random links and points in random axes."""
    rng = np.random.default_rng(seed)
    frames = ("world", *robot.link_names)
    wrenches = []
    for _ in range(count):
        link = str(rng.choice(robot.link_names))
        torque, force, point = (tuple(x) for x in rng.normal(size=(3, 3)).tolist())
        frame = str(rng.choice([*frames, link, "world"]))
        wrenches.append(Wrench(link, torque, force, point, frame))
    return wrenches


def general(robot: Robot, row: Query, required: tuple[Any, ...], wrenches: Any, **options: Any) -> bytes:
    """Returns the result with wrenches that NumPy converts, in bytes."""
    arguments = {**dict(zip(row.required, required, strict=True)), row.wrenches or "": wrenches, **options}
    conversions = SlowCalls.conversions
    result = bits(row, result_of(robot, row, arguments))
    SlowCalls.conversions = conversions
    return result


def bits(row: Query, answer: Any) -> bytes:
    """Returns the result of a method in bytes."""
    parts = [answer] if row.result_type is None else [getattr(answer, name) for name in row.outputs]
    return b"".join(np.asarray(part).tobytes() for part in parts)


class SlowCalls:
    """Counts the calls whose wrenches NumPy converts, other than those of `general`."""

    conversions = 0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        convert = bound_calls.link_wrenches
        SlowCalls.conversions = 0

        def converted(*arguments: Any) -> Any:
            SlowCalls.conversions += 1
            return convert(*arguments)

        monkeypatch.setattr(bound_calls, "link_wrenches", converted)


@pytest.fixture
def panda() -> Robot:
    robot = robot_of("panda")
    robot.inverse_dynamics(*state(robot, ID), wrenches=[])  # installs the fast path
    return robot


@pytest.fixture
def slow_calls(panda: Robot, monkeypatch: pytest.MonkeyPatch) -> SlowCalls:
    return SlowCalls(monkeypatch)


# Accepted arguments.


LARGER = ("inverse_dynamics", "forward_dynamics", "constraint_forces")
"""Rows whose kernels of large robots are part of the default suite."""

ID_OF = lambda case: case if isinstance(case, str | int) else case.name


@pytest.mark.parametrize(
    ("name", "root", "row"),
    wide(
        ((name, root, row) for name, root in (("scara", "floating"), ("panda", "fixed")) for row in ROWS),
        lambda case: case[0] == "scara" or case[2].name in LARGER,
    ),
    ids=ID_OF,
)
def test_every_row_equals_the_slow_path(name: str, root: str, row: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    robot = robot_of(name, root)
    ask = getattr(robot, row.name)
    ask(**dict(zip(row.required, state(robot, row), strict=True)), wrenches=wrenches_of(robot, 1))  # makes the kernels
    slow_calls = SlowCalls(monkeypatch)
    for seed in range(6):
        required, wrenches = state(robot, row, seed), wrenches_of(robot, seed % 5, seed)
        named_inputs = dict(zip(row.required, required, strict=True))
        assert bits(row, ask(**named_inputs, wrenches=wrenches)) == general(robot, row, required, wrenches)
    assert slow_calls.conversions == 0


@pytest.mark.parametrize("last", ["own", "world"])
def test_axes_of_earlier_wrenches_are_those_of_the_state(panda: Robot, last: str, slow_calls: SlowCalls) -> None:
    """The poses are computed if any wrench needs them, not only the last one; those of another state are not used."""
    link, other = panda.link_names[5], panda.link_names[8]
    wrenches = [Wrench(link, force=(1.0, 2.0, 3.0), frame="world"), Wrench(other, force=(3.0, 1.0, 2.0), frame=other)]
    wrenches = wrenches if last == "own" else wrenches[::-1]
    for seed in range(3):
        inputs = state(panda, ID, seed)
        fast = bits(ID, panda.inverse_dynamics(*inputs, wrenches=wrenches))
        assert slow_calls.conversions == 0
        assert fast == general(panda, ID, inputs, wrenches)
        SlowCalls.conversions = 0


@pytest.mark.parametrize(
    ("name", "states", "row"),
    wide(
        (
            (name, states, row)
            for name, states in (("cart_pendulum", 3), ("panda", 3), ("panda", 200), ("solo12", 64))
            for row in ROWS
        ),
        lambda case: case[0] == "cart_pendulum" or case[2].name in LARGER[: 2 if case[0] == "solo12" else 3],
    ),
    ids=ID_OF,
)
def test_a_batch_equals_the_slow_path(name: str, states: int, row: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    robot, rng = robot_of(name), np.random.default_rng(states)
    ask = getattr(robot, row.name)
    ask(**dict(zip(row.required, state(robot, row), strict=True)), wrenches=wrenches_of(robot, 1))
    required = tuple(
        x if isinstance(x, str) else np.stack([x + 0.01 * k for k in range(states)]) for x in state(robot, row)
    )
    constant, vectors = wrenches_of(robot, 3), rng.normal(size=(3, states, 3))
    of_each = replace(wrenches_of(robot, 1, seed=7)[0], torque=vectors[0], force=vectors[1], point=vectors[2])
    strided = replace(wrenches_of(robot, 1, seed=9)[0], force=np.asfortranarray(vectors[0])[::-1])
    slow_calls = SlowCalls(monkeypatch)
    named_inputs = dict(zip(row.required, required, strict=True))
    for wrenches in ([], constant, of_each, [of_each, *constant, strided]):
        assert bits(row, ask(**named_inputs, wrenches=wrenches)) == general(robot, row, required, wrenches)
    assert slow_calls.conversions == 0


def test_a_wrench_with_another_number_of_states_takes_the_slow_path(panda: Robot) -> None:
    """Its vectors determine the result's axis if the state has none; another number than the state's is refused."""
    required = state(panda, ID)
    push = Wrench("panda_hand", force=np.ones((4, 3)))
    assert panda.inverse_dynamics(*required, wrenches=push).shape == (4, panda.nv)
    five_states = tuple(np.repeat(x[None], 5, axis=0) for x in required)
    with pytest.raises(InvalidArgumentError, match=r"wrenches\[0\]"):
        panda.inverse_dynamics(*five_states, wrenches=push)
    for empty in (np.empty((0, 3)), np.ones((1, 3)), np.ones((2, 5, 3))):
        if empty.shape[0] == 0:
            assert panda.inverse_dynamics(*required, wrenches=Wrench("panda_hand", force=empty)).shape == (0, panda.nv)
            continue
        answer = panda.inverse_dynamics(*five_states, wrenches=Wrench("panda_hand", force=empty))
        assert answer.shape == (*empty.shape[:-2], 5, panda.nv)


@pytest.mark.parametrize("name", ["ur5e", "upper_body", "cart_pendulum", "double_pendulum"])
def test_every_link_and_frame(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Including fixed links, whose wrenches are ignored."""
    robot = robot_of(name)
    required = state(robot, ID, 3)
    robot.inverse_dynamics(*required, wrenches=[])
    slow_calls = SlowCalls(monkeypatch)
    answers = set()
    for link in robot.link_names:
        for frame in ("world", link, robot.link_names[-1], robot.link_names[0]):
            push = Wrench(link, (0.3, -0.2, 0.7), (4.0, 5.0, -6.0), (0.1, 0.2, -0.3), frame)
            answer = robot.inverse_dynamics(*required, wrenches=push)
            assert answer.tobytes() == general(robot, ID, required, push), (link, frame)
            answers.add(answer.tobytes())
    assert len(answers) > 2
    assert slow_calls.conversions == 0


FORMS: dict[str, Callable[[tuple[float, ...]], Any]] = {
    "tuple": lambda x: x,
    "list": list,
    "array": np.array,
    "every other": lambda x: np.repeat(np.array(x), 2)[::2],
    "backwards": lambda x: np.array(x[::-1])[::-1],
    "read-only": lambda x: np.broadcast_to(np.array(x), (3,)),
    "NumPy's numbers": lambda x: tuple(np.array(x)),
    "whole numbers": lambda x: tuple(round(10 * y) for y in x),
    "large whole numbers": lambda x: [2**62 + 1, -(2**53) - 1, 0],
    "some whole numbers": lambda x: [x[0], 3, x[2]],
    "pickled": lambda x: pickle.loads(pickle.dumps(np.array(x))),
    "negative zeros": lambda x: (-0.0, -0.0, -0.0),
    "not a number": lambda x: (float("nan"), 1.0, 2.0),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("part", ["torque", "force", "point"])
def test_every_form_of_vector(panda: Robot, slow_calls: SlowCalls, form: Any, part: str) -> None:
    required = state(panda, ID)
    push = Wrench("panda_hand", (0.1, 0.2, 0.3), (1.0, 2.0, 3.0), (0.4, 0.5, 0.6))
    push = replace(push, **{part: form((0.25, -1.5, 0.125))})
    for wrenches in (push, [push], (push,), [push, push]):
        assert panda.inverse_dynamics(*required, wrenches=wrenches).tobytes() == general(panda, ID, required, wrenches)
    assert slow_calls.conversions == 0


def test_the_poses_count_for_the_gil(panda: Robot) -> None:
    """The GIL is released by the code of a call, to which the kernel of the links' poses belongs."""
    panda.inverse_dynamics(*state(panda, ID), wrenches=wrenches_of(panda, 1))
    library = panda.evaluator.library
    work = [library.work(panda.signature(*kernel)) for kernel in ((ID, "", WITH_WRENCHES), (QUERIES["link_poses"], ""))]
    call: Any = next(iter(panda.evaluator.row_calls["inverse_dynamics"]._bound.values())).direct_with_wrenches
    assert struct.unpack_from("=4q", call.__self__)[3] == direct._released_from(sum(work))
    assert direct._released_from(sum(work)) != direct._released_from(work[0])


def test_lists_for_the_state(panda: Robot, slow_calls: SlowCalls) -> None:
    required = state(panda, ID)
    push = wrenches_of(panda, 1)
    expected = general(panda, ID, required, push)
    assert panda.inverse_dynamics(*(x.tolist() for x in required), wrenches=push).tobytes() == expected
    strided = tuple(np.repeat(x, 3)[::3] for x in required)
    assert panda.inverse_dynamics(*strided, wrenches=push).tobytes() == expected
    assert slow_calls.conversions == 0


@pytest.mark.parametrize("weak", [np.array([0.1, 0.2, -1.6]), (0.1, 0.2, -1.6)], ids=["array", "tuple"])
def test_gravity_with_wrenches(panda: Robot, weak: Any) -> None:
    required, push = state(panda, ID), wrenches_of(panda, 2)
    expected = general(panda, ID, required, push, gravity=weak)
    assert panda.inverse_dynamics(*required, wrenches=push, gravity=weak).tobytes() == expected
    assert expected != general(panda, ID, required, push)


def test_a_link_that_is_called_world() -> None:
    """A frame `world` means the world's axes, except for a wrench on the link `world`."""
    urdf = (URDF / "double_pendulum.urdf").read_text().replace("lower_bar", "world")
    robot = Robot.from_urdf(urdf)
    assert "world" in robot.link_names
    required = state(robot, ID)
    for link in robot.link_names:
        push = Wrench(link, (1.0, 2.0, 3.0), (4.0, 5.0, 6.0), (0.1, 0.2, 0.3), "world")
        expected = general(robot, ID, required, push)
        assert [robot.inverse_dynamics(*required, wrenches=push).tobytes() for _ in range(3)] == [expected] * 3


def test_huge_inputs_equal_the_slow_path(panda: Robot) -> None:
    """Angles beyond the limit, and products that overflow, whose flags NumPy reports."""
    q, v, a = state(panda, ID)
    q_beyond_limit = q.copy()
    q_beyond_limit[0] = 1e14
    push = Wrench("panda_hand", force=(1.0, 2.0, 3.0))
    assert np.isnan(panda.inverse_dynamics(q_beyond_limit, v, a, wrenches=push)).any()
    huge = Wrench("panda_hand", force=(1e308, 1e308, 1e308), point=(1e308, 1.0, 1.0))
    with np.errstate(all="ignore"):
        answer = panda.inverse_dynamics(q, v, a, wrenches=huge)
        assert answer.tobytes() == general(panda, ID, (q, v, a), huge)
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        panda.inverse_dynamics(q, v, a, wrenches=huge)


# Arguments that take the slow path.


class Own(Wrench):
    """A subclass."""


NOT_TAKEN: dict[str, Any] = {
    "several states": [Wrench("panda_hand", force=np.ones((2, 3)))],
    "an own kind of wrench": Own("panda_hand", force=(1.0, 2.0, 3.0)),
}
CONVERTED: dict[str, Any] = {
    "single precision": Wrench("panda_hand", force=np.ones(3).astype(np.float32)),
    "whole numbers in an array": Wrench("panda_hand", force=np.array([1, 2, 3])),
    "of each state": [Wrench("panda_hand", force=np.ones(3)), Wrench("panda_hand", torque=np.ones((1, 3), np.float32))],
}


@pytest.mark.parametrize("wrenches", CONVERTED.values(), ids=CONVERTED)
def test_other_arrays_are_converted(panda: Robot, slow_calls: SlowCalls, wrenches: Any) -> None:
    lead = (1,) if isinstance(wrenches, list) else ()
    required = tuple(x.reshape(*lead, -1) for x in state(panda, ID))
    assert panda.inverse_dynamics(*required, wrenches=wrenches).tobytes() == general(panda, ID, required, wrenches)
    assert slow_calls.conversions == 0


@pytest.mark.parametrize("wrenches", NOT_TAKEN.values(), ids=NOT_TAKEN)
def test_other_forms_take_the_slow_path(panda: Robot, slow_calls: SlowCalls, wrenches: Any) -> None:
    required = state(panda, ID)
    for _ in range(2):
        assert panda.inverse_dynamics(*required, wrenches=wrenches).tobytes() == general(panda, ID, required, wrenches)
    assert slow_calls.conversions == 2


WRONG: dict[str, tuple[Any, str, str]] = {
    "no such link": (Wrench("panda_hnad"), "inputs.wrenches[0].link", "did you mean 'panda_hand'"),
    "no such frame": (Wrench("panda_hand", frame="wrold"), "inputs.wrenches[0].frame", "'wrold'; did you mean 'world'"),
    "the second": ([Wrench("panda_hand"), Wrench("x")], "inputs.wrenches[1].link", "no link 'x'"),
    "no wrench": (["panda_hand"], "inputs.wrenches[0]", "must be a Wrench"),
    "a text": ("panda_hand", "inputs.wrenches", "must be a Wrench or a list"),
    "a map": ({"link": "panda_hand"}, "inputs.wrenches", r"must be a Wrench or a list .*; use Wrench\("),
}


@pytest.mark.parametrize(("wrenches", "path", "words"), WRONG.values(), ids=WRONG)
def test_errors_are_raised_on_every_call(panda: Robot, wrenches: Any, path: str, words: str) -> None:
    required = state(panda, ID)
    for _ in range(2):
        with pytest.raises(DynError, match=words) as error:
            panda.inverse_dynamics(*required, wrenches=wrenches)
        assert error.value.path == path
        panda.inverse_dynamics(*required, wrenches=[])


def test_unknown_layouts_take_the_slow_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """On interpreters with another layout of objects."""
    monkeypatch.setattr(direct, "layout_is_known", lambda: False)
    robot = Robot.from_urdf(URDF / "double_pendulum.urdf")
    required, push = state(robot, ID), wrenches_of(robot, 2)
    expected = general(robot, ID, required, push)
    for _ in range(3):
        assert robot.inverse_dynamics(*required, wrenches=push).tobytes() == expected


# Cost.


@pytest.mark.parametrize("query", ["inverse_dynamics", "forward_dynamics", "constraint_forces", "computed_torque"])
@pytest.mark.parametrize("count", [1, 4])
def test_wrenches_add_no_calls(query: str, count: int) -> None:
    """For any number of wrenches, the same calls as without wrenches, one of which is the kernel's."""
    robot, row = robot_of("panda"), QUERIES[query]
    ask, required = getattr(robot, query), state(robot, row)
    named_inputs = dict(zip(row.required, required, strict=True))
    push = wrenches_of(robot, count)
    for _ in range(2):
        ask(**named_inputs), ask(**named_inputs, wrenches=push)
    assert calls_of(lambda: ask(**named_inputs, wrenches=push)) == calls_of(lambda: ask(**named_inputs))


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_references_and_memory_are_not_leaked(panda: Robot) -> None:
    """References and blocks of memory are the same before and after accepted and refused calls."""
    required = state(panda, ID)
    force, torque, bad = np.ones(3), [0.1, 0.2, 0.3], [1.0, 2.0, 3.0]
    cases = [
        [Wrench("panda_hand", torque, force), Wrench("panda_link3", torque, force, frame="panda_hand")],
        [Wrench("panda_hand", torque, force), Wrench("panda_hand", bad, force)],
        [Wrench("panda_hand", torque, force), Wrench("none")],
    ]
    del bad[2]  # after the check of the wrench
    call = call_with_wrenches(panda)
    objects = (force, torque, bad, *required, panda.gravity, "panda_hand", Wrench)
    for wrenches in cases:
        options = (None, wrenches, True)
        call(required, options)
        references = [sys.getrefcount(instance) for instance in objects]
        blocks = sys.getallocatedblocks()
        for _ in range(1000):
            call(required, options)
        assert sys.getallocatedblocks() - blocks < 200  # other threads of the test run may allocate some
        assert [sys.getrefcount(instance) for instance in objects] == references


def call_with_wrenches(robot: Robot) -> Any:
    """Returns the call of inverse dynamics for one state with external wrenches."""
    signature, poses = robot.evaluator._signatures_of(ID, "", WITH_WRENCHES)
    library = robot.evaluator.library
    conversion = library.wrench_conversion(
        poses, robot.evaluator.model.link_index, places(robot.tree, robot.bodies, links=False)
    )
    assert conversion is not None
    arguments = Arguments({"gravity": robot.gravity, "wrenches": None, "passive": True})
    call = library.direct_call(signature, arguments, conversion)
    assert call is not None
    return call


def test_wrenches_are_held_without_the_gil(panda: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may drop the wrenches of a list meanwhile; the references are given back."""
    monkeypatch.setattr(direct, "HELD_BYTES", 1)
    call, required = call_with_wrenches(panda), state(panda, ID)
    wrenches = [Wrench("panda_hand", np.ones(3)), Wrench("panda_link3"), Wrench("panda_link0", np.ones(3))]
    expected = general(panda, ID, required, wrenches)
    references = [sys.getrefcount(wrench) for wrench in wrenches]
    for _ in range(100):
        assert call(required, (None, wrenches, True)).tobytes() == expected
    assert [sys.getrefcount(wrench) for wrench in wrenches] == references


def test_many_wrenches(panda: Robot, slow_calls: SlowCalls) -> None:
    """More than the table takes: the slow path."""
    required = state(panda, ID)
    for count in (MAX_WRENCHES, MAX_WRENCHES + 1):
        wrenches = wrenches_of(panda, count)
        assert panda.inverse_dynamics(*required, wrenches=wrenches).tobytes() == general(panda, ID, required, wrenches)
    assert slow_calls.conversions == 1


def test_memory_on_the_heap(panda: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for robots of many links, whose poses do not fit on the stack."""
    monkeypatch.setattr(loop, "MAX_STACK_BYTES", 0)
    call, required, wrenches = call_with_wrenches(panda), state(panda, ID), wrenches_of(panda, 3)
    assert call(required, (None, wrenches, True)).tobytes() == general(panda, ID, required, wrenches)


@pytest.mark.parametrize(
    "arguments",
    [(), (((),),), ((), ()), ([], (None, [], True)), (None, None), ("state", (None, [])), ("state", [None, [], True])],
    ids=str,
)
def test_other_arguments_are_refused(panda: Robot, arguments: tuple[Any, ...]) -> None:
    call = call_with_wrenches(panda)
    call_arguments = tuple(state(panda, ID) if x == "state" else x for x in arguments)
    assert call(*call_arguments) is None
    assert call(state(panda, ID), (None, None, True)) is None  # no wrenches: answered by the kernel without wrenches
    assert call(state(panda, ID), (None, [], False)) is None
    assert call(state(panda, ID), (None, [], True)) is not None


def test_wrenches_are_still_plain_data() -> None:
    push = Wrench("hand", force=(1.0, 2.0, 3.0))
    restored = pickle.loads(pickle.dumps(push))
    assert (restored.link, restored.force, restored.frame) == ("hand", (1.0, 2.0, 3.0), "world")
    assert replace(push, frame="hand").force == push.force
    with pytest.raises(AttributeError):
        push.link = "other"  # type: ignore[misc]
