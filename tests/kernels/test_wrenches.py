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
from dyn_service.engine.wrenches import places
from dyn_service.kernels import direct, loop
from dyn_service.kernels.direct import Arguments
from dyn_service.kernels.wrenches import MAX_WRENCHES
from tests.conftest import URDF
from tests.counting import calls_of
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
        there = robot.random_configuration(seed=seed) if spec.kind == "position" else None
        inputs.append(rng.normal(size=spec.dims(robot.sizes)) if there is None else there)
    return tuple(inputs)


def wrenches_of(robot: Robot, count: int, seed: int = 0) -> list[Wrench]:
    """Returns wrenches on random links and points in random axes."""
    rng = np.random.default_rng(seed)
    frames = ("world", *robot.link_names)
    found = []
    for _ in range(count):
        link = str(rng.choice(robot.link_names))
        torque, force, point = (tuple(x) for x in rng.normal(size=(3, 3)).tolist())
        frame = str(rng.choice([*frames, link, "world"]))
        found.append(Wrench(link, torque, force, point, frame))
    return found


def general(robot: Robot, row: Query, given: tuple[Any, ...], wrenches: Any, **others: Any) -> bytes:
    """Returns the result of the slow path in bytes."""
    inputs = {**dict(zip(row.required, given, strict=True)), row.wrenches or "": wrenches, **others}
    outputs = robot.evaluate(row.name, inputs)
    return b"".join(np.asarray(outputs[name]).tobytes() for name in row.outputs)


def bits(row: Query, answer: Any) -> bytes:
    """Returns the result of a method in bytes."""
    parts = [answer] if row.result_type is None else [getattr(answer, name) for name in row.outputs]
    return b"".join(np.asarray(part).tobytes() for part in parts)


class Counted:
    """Counts the calls that took the slow path."""

    def __init__(self, robot: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
        self.general = 0
        ask = robot._answer

        def answer(row: Query, *arguments: Any) -> Any:
            self.general += not row.constant
            return ask(row, *arguments)

        monkeypatch.setattr(robot, "_answer", answer)


@pytest.fixture
def panda() -> Robot:
    robot = robot_of("panda")
    robot.inverse_dynamics(*state(robot, ID), wrenches=[])  # installs the fast path
    return robot


@pytest.fixture
def counted(panda: Robot, monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(panda, monkeypatch)


# Accepted arguments.


LARGER = ("inverse_dynamics", "forward_dynamics", "constraint_forces")
"""Rows whose kernels of large robots are part of the default suite."""

ID_OF = lambda of: of if isinstance(of, str | int) else of.name


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
    counted = Counted(robot, monkeypatch)
    for seed in range(6):
        given, wrenches = state(robot, row, seed), wrenches_of(robot, seed % 5, seed)
        named = dict(zip(row.required, given, strict=True))
        assert bits(row, ask(**named, wrenches=wrenches)) == general(robot, row, given, wrenches)
    assert counted.general == 0


@pytest.mark.parametrize("last", ["own", "world"])
def test_axes_of_earlier_wrenches_are_those_of_the_state(panda: Robot, last: str, counted: Counted) -> None:
    """The poses are computed if any wrench needs them, not only the last one; those of another state are not used."""
    link, other = panda.link_names[5], panda.link_names[8]
    wrenches = [Wrench(link, force=(1.0, 2.0, 3.0), frame="world"), Wrench(other, force=(3.0, 1.0, 2.0), frame=other)]
    wrenches = wrenches if last == "own" else wrenches[::-1]
    for seed in range(3):
        inputs = state(panda, ID, seed)
        fast = bits(ID, panda.inverse_dynamics(*inputs, wrenches=wrenches))
        assert counted.general == 0
        assert fast == general(panda, ID, inputs, wrenches)
        counted.general = 0


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
    given = tuple(
        x if isinstance(x, str) else np.stack([x + 0.01 * k for k in range(states)]) for x in state(robot, row)
    )
    constant, each = wrenches_of(robot, 3), rng.normal(size=(3, states, 3))
    of_each = replace(wrenches_of(robot, 1, seed=7)[0], torque=each[0], force=each[1], point=each[2])
    strided = replace(wrenches_of(robot, 1, seed=9)[0], force=np.asfortranarray(each[0])[::-1])
    counted = Counted(robot, monkeypatch)
    named = dict(zip(row.required, given, strict=True))
    for wrenches in ([], constant, of_each, [of_each, *constant, strided]):
        assert bits(row, ask(**named, wrenches=wrenches)) == general(robot, row, given, wrenches)
    assert counted.general == 0


def test_a_wrench_with_another_number_of_states_takes_the_slow_path(panda: Robot) -> None:
    """Its vectors determine the result's axis if the state has none; another number than the state's is refused."""
    one = state(panda, ID)
    push = Wrench("panda_hand", force=np.ones((4, 3)))
    assert panda.inverse_dynamics(*one, wrenches=push).shape == (4, panda.nv)
    five = tuple(np.repeat(x[None], 5, axis=0) for x in one)
    with pytest.raises(InvalidArgumentError, match=r"wrenches\[0\]"):
        panda.inverse_dynamics(*five, wrenches=push)
    for empty in (np.empty((0, 3)), np.ones((1, 3)), np.ones((2, 5, 3))):
        if empty.shape[0] == 0:
            assert panda.inverse_dynamics(*one, wrenches=Wrench("panda_hand", force=empty)).shape == (0, panda.nv)
            continue
        answer = panda.inverse_dynamics(*five, wrenches=Wrench("panda_hand", force=empty))
        assert answer.shape == (*empty.shape[:-2], 5, panda.nv)


@pytest.mark.parametrize("name", ["ur5e", "upper_body", "cart_pendulum", "double_pendulum"])
def test_every_link_and_frame(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Including fixed links, whose wrenches are ignored."""
    robot = robot_of(name)
    given = state(robot, ID, 3)
    robot.inverse_dynamics(*given, wrenches=[])
    counted = Counted(robot, monkeypatch)
    answers = set()
    for link in robot.link_names:
        for frame in ("world", link, robot.link_names[-1], robot.link_names[0]):
            push = Wrench(link, (0.3, -0.2, 0.7), (4.0, 5.0, -6.0), (0.1, 0.2, -0.3), frame)
            answer = robot.inverse_dynamics(*given, wrenches=push)
            assert answer.tobytes() == general(robot, ID, given, push), (link, frame)
            answers.add(answer.tobytes())
    assert len(answers) > 2
    assert counted.general == 0


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
def test_every_form_of_vector(panda: Robot, counted: Counted, form: Any, part: str) -> None:
    given = state(panda, ID)
    push = Wrench("panda_hand", (0.1, 0.2, 0.3), (1.0, 2.0, 3.0), (0.4, 0.5, 0.6))
    push = replace(push, **{part: form((0.25, -1.5, 0.125))})
    for wrenches in (push, [push], (push,), [push, push]):
        assert panda.inverse_dynamics(*given, wrenches=wrenches).tobytes() == general(panda, ID, given, wrenches)
    assert counted.general == 0


def test_the_poses_count_for_the_gil(panda: Robot) -> None:
    """The GIL is released by the code of a call, to which the kernel of the links' poses belongs."""
    panda.inverse_dynamics(*state(panda, ID), wrenches=wrenches_of(panda, 1))
    library = panda._library
    work = [library.work(panda.signature(*of)) for of in ((ID, "", WITH_WRENCHES), (QUERIES["link_poses"], ""))]
    call: Any = next(iter(panda.row_calls["inverse_dynamics"]._bound.values())).with_wrenches
    assert struct.unpack_from("=4q", call.__self__)[3] == direct._released_from(sum(work))
    assert direct._released_from(sum(work)) != direct._released_from(work[0])


def test_lists_for_the_state(panda: Robot, counted: Counted) -> None:
    given = state(panda, ID)
    push = wrenches_of(panda, 1)
    expected = general(panda, ID, given, push)
    assert panda.inverse_dynamics(*(x.tolist() for x in given), wrenches=push).tobytes() == expected
    strided = tuple(np.repeat(x, 3)[::3] for x in given)
    assert panda.inverse_dynamics(*strided, wrenches=push).tobytes() == expected
    assert counted.general == 0


@pytest.mark.parametrize("weak", [np.array([0.1, 0.2, -1.6]), (0.1, 0.2, -1.6)], ids=["array", "tuple"])
def test_gravity_with_wrenches(panda: Robot, weak: Any) -> None:
    given, push = state(panda, ID), wrenches_of(panda, 2)
    expected = general(panda, ID, given, push, gravity=weak)
    assert panda.inverse_dynamics(*given, wrenches=push, gravity=weak).tobytes() == expected
    assert expected != general(panda, ID, given, push)


def test_a_link_that_is_called_world() -> None:
    """A frame `world` means the world's axes, except for a wrench on the link `world`."""
    urdf = (URDF / "double_pendulum.urdf").read_text().replace("lower_bar", "world")
    robot = Robot.from_urdf(urdf)
    assert "world" in robot.link_names
    given = state(robot, ID)
    for link in robot.link_names:
        push = Wrench(link, (1.0, 2.0, 3.0), (4.0, 5.0, 6.0), (0.1, 0.2, 0.3), "world")
        expected = general(robot, ID, given, push)
        assert [robot.inverse_dynamics(*given, wrenches=push).tobytes() for _ in range(3)] == [expected] * 3


def test_huge_inputs_equal_the_slow_path(panda: Robot) -> None:
    """Angles beyond the limit, and products that overflow, whose flags NumPy reports."""
    q, v, a = state(panda, ID)
    far = q.copy()
    far[0] = 1e14
    push = Wrench("panda_hand", force=(1.0, 2.0, 3.0))
    assert np.isnan(panda.inverse_dynamics(far, v, a, wrenches=push)).any()
    huge = Wrench("panda_hand", force=(1e308, 1e308, 1e308), point=(1e308, 1.0, 1.0))
    with np.errstate(all="ignore"):
        found = panda.inverse_dynamics(q, v, a, wrenches=huge)
        assert found.tobytes() == general(panda, ID, (q, v, a), huge)
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
def test_other_arrays_are_converted(panda: Robot, counted: Counted, wrenches: Any) -> None:
    lead = (1,) if isinstance(wrenches, list) else ()
    given = tuple(x.reshape(*lead, -1) for x in state(panda, ID))
    assert panda.inverse_dynamics(*given, wrenches=wrenches).tobytes() == general(panda, ID, given, wrenches)
    assert counted.general == 0


@pytest.mark.parametrize("wrenches", NOT_TAKEN.values(), ids=NOT_TAKEN)
def test_other_forms_take_the_slow_path(panda: Robot, counted: Counted, wrenches: Any) -> None:
    given = state(panda, ID)
    for _ in range(2):
        assert panda.inverse_dynamics(*given, wrenches=wrenches).tobytes() == general(panda, ID, given, wrenches)
    assert counted.general == 2


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
    given = state(panda, ID)
    for _ in range(2):
        with pytest.raises(DynError, match=words) as caught:
            panda.inverse_dynamics(*given, wrenches=wrenches)
        assert caught.value.path == path
        panda.inverse_dynamics(*given, wrenches=[])


def test_unknown_layouts_take_the_slow_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """On interpreters with another layout of objects."""
    monkeypatch.setattr(direct, "layout_is_known", lambda: False)
    robot = Robot.from_urdf(URDF / "double_pendulum.urdf")
    given, push = state(robot, ID), wrenches_of(robot, 2)
    expected = general(robot, ID, given, push)
    for _ in range(3):
        assert robot.inverse_dynamics(*given, wrenches=push).tobytes() == expected


# Cost.


@pytest.mark.parametrize("query", ["inverse_dynamics", "forward_dynamics", "constraint_forces", "computed_torque"])
@pytest.mark.parametrize("count", [1, 4])
def test_wrenches_add_no_calls(query: str, count: int) -> None:
    """For any number of wrenches, the same calls as without wrenches, one of which is the kernel's."""
    robot, row = robot_of("panda"), QUERIES[query]
    ask, given = getattr(robot, query), state(robot, row)
    named = dict(zip(row.required, given, strict=True))
    push = wrenches_of(robot, count)
    for _ in range(2):
        ask(**named), ask(**named, wrenches=push)
    assert calls_of(lambda: ask(**named, wrenches=push)) == calls_of(lambda: ask(**named))


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_references_and_memory_are_not_leaked(panda: Robot) -> None:
    """References and blocks of memory are the same before and after accepted and refused calls."""
    given = state(panda, ID)
    force, torque, bad = np.ones(3), [0.1, 0.2, 0.3], [1.0, 2.0, 3.0]
    cases = [
        [Wrench("panda_hand", torque, force), Wrench("panda_link3", torque, force, frame="panda_hand")],
        [Wrench("panda_hand", torque, force), Wrench("panda_hand", bad, force)],
        [Wrench("panda_hand", torque, force), Wrench("none")],
    ]
    del bad[2]  # after the check of the wrench
    call = call_with_wrenches(panda)
    held = (force, torque, bad, *given, panda._gravity, "panda_hand", Wrench)
    for wrenches in cases:
        others = (None, wrenches, True)
        call(given, others)
        references = [sys.getrefcount(thing) for thing in held]
        blocks = sys.getallocatedblocks()
        for _ in range(1000):
            call(given, others)
        assert sys.getallocatedblocks() - blocks < 200  # other threads of the test run may allocate some
        assert [sys.getrefcount(thing) for thing in held] == references


def call_with_wrenches(robot: Robot) -> Any:
    """Returns the call of inverse dynamics for one state with external wrenches."""
    signature, poses = robot._signatures_of(ID, "", WITH_WRENCHES)
    library = robot._library
    conversion = library.wrench_conversion(poses, robot._link_index, places(robot.tree, robot.bodies, links=False))
    assert conversion is not None
    arguments = Arguments({"gravity": robot.gravity, "wrenches": None, "passive": True})
    call = library.direct_call(signature, arguments, conversion)
    assert call is not None
    return call


def test_wrenches_are_held_without_the_gil(panda: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may drop the wrenches of a list meanwhile; the references are given back."""
    monkeypatch.setattr(direct, "HELD_BYTES", 1)
    call, given = call_with_wrenches(panda), state(panda, ID)
    listed = [Wrench("panda_hand", np.ones(3)), Wrench("panda_link3"), Wrench("panda_link0", np.ones(3))]
    expected = general(panda, ID, given, listed)
    references = [sys.getrefcount(wrench) for wrench in listed]
    for _ in range(100):
        assert call(given, (None, listed, True)).tobytes() == expected
    assert [sys.getrefcount(wrench) for wrench in listed] == references


def test_many_wrenches(panda: Robot, counted: Counted) -> None:
    """More than the table takes: the slow path."""
    given = state(panda, ID)
    for count in (MAX_WRENCHES, MAX_WRENCHES + 1):
        listed = wrenches_of(panda, count)
        assert panda.inverse_dynamics(*given, wrenches=listed).tobytes() == general(panda, ID, given, listed)
    assert counted.general == 1


def test_memory_on_the_heap(panda: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for robots of many links, whose poses do not fit on the stack."""
    monkeypatch.setattr(loop, "MAX_STACK_BYTES", 0)
    call, given, listed = call_with_wrenches(panda), state(panda, ID), wrenches_of(panda, 3)
    assert call(given, (None, listed, True)).tobytes() == general(panda, ID, given, listed)


@pytest.mark.parametrize(
    "arguments",
    [(), (((),),), ((), ()), ([], (None, [], True)), (None, None), ("state", (None, [])), ("state", [None, [], True])],
    ids=str,
)
def test_other_arguments_are_refused(panda: Robot, arguments: tuple[Any, ...]) -> None:
    call = call_with_wrenches(panda)
    given = tuple(state(panda, ID) if x == "state" else x for x in arguments)
    assert call(*given) is None
    assert call(state(panda, ID), (None, None, True)) is None  # no wrenches: answered by the kernel without wrenches
    assert call(state(panda, ID), (None, [], False)) is None
    assert call(state(panda, ID), (None, [], True)) is not None


def test_wrenches_are_still_plain_data() -> None:
    push = Wrench("hand", force=(1.0, 2.0, 3.0))
    again = pickle.loads(pickle.dumps(push))
    assert (again.link, again.force, again.frame) == ("hand", (1.0, 2.0, 3.0), "world")
    assert replace(push, frame="hand").force == push.force
    with pytest.raises(AttributeError):
        push.link = "other"  # type: ignore[misc]
