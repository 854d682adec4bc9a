"""One state through one compiled call: the gufunc's bits for accepted arguments, else None, without leaks."""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import struct
import sys
import sysconfig
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dyn_service.api.queries import QUERIES, Query
from dyn_service.api.spec import Variant
from dyn_service.engine.robot import Robot
from dyn_service.kernels import (
    compiling,  # noqa: F401  # here, so that its `compile_ir` is not the one that a test counts
    direct,
    jit,
    loop,
    python_api,
)
from dyn_service.kernels.direct import ANY, Arguments
from dyn_service.kernels.library import KernelLibrary
from dyn_service.kernels.signature import Signature, signature_of
from dyn_service.support.buffers import LARGE_BYTES
from tests.conftest import ROBOTS, URDF
from tests.wide import wide

ROWS = [row for row in QUERIES.values() if not row.constant]


class Pair:
    """The gufunc and the direct call of a kernel, and inputs of one state."""

    def __init__(self, library: KernelLibrary, signature: Signature) -> None:
        self.signature = signature
        self.ufunc = library.kernel(signature)
        call = library.direct_call(signature, Arguments())
        assert call is not None
        self.direct = call

    def call(self, *inputs: Any) -> Any:
        """Calls it with all inputs as required arguments."""
        return self.direct(inputs, ())

    def state(self, seed: int = 0) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        return [rng.normal(size=operand.shape) for operand in self.signature.inputs]


_PAIRS: dict[tuple[str, str, str, bool], Pair] = {}
_LIBRARIES: dict[str, tuple[Robot, KernelLibrary]] = {}


def pair(robot: str, row: Query, method: str | None = None, *, wrenches: bool = False) -> Pair:
    method = next(iter(row.kernels)) if method is None else method
    key = (robot, row.name, method, wrenches)
    if key not in _PAIRS:
        if robot not in _LIBRARIES:
            model = Robot.from_urdf(URDF / f"{robot}.urdf", mimic=False)  # every row accepts this robot
            _LIBRARIES[robot] = model, KernelLibrary(model.tree)
        model, library = _LIBRARIES[robot]
        _PAIRS[key] = Pair(library, model.signature(row, method, Variant(wrenches)))
    return _PAIRS[key]


@pytest.fixture(scope="module")
def panda() -> Pair:
    return pair("panda", QUERIES["inverse_dynamics"])


@pytest.fixture(scope="module")
def controller() -> Pair:
    return pair("panda", QUERIES["computed_torque"])


@pytest.fixture(scope="module")
def three_outputs() -> Pair:
    """Three outputs."""
    return pair("panda", QUERIES["constraint_forces"])


@pytest.fixture
def releasing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pair], Any]:
    """Returns the call of a kernel that counts as large, so that it releases the GIL."""
    monkeypatch.setattr(direct, "HELD_BYTES", 0)

    def made(kernel: Pair) -> Any:
        call = _LIBRARIES["panda"][1].direct_call(kernel.signature, Arguments())
        assert call is not None
        return lambda *inputs: call(inputs, ())

    return made


def assert_same(answer: Any, expected: Any) -> None:
    """Same types, same shapes, same bits."""
    assert type(answer) is type(expected)
    if isinstance(expected, tuple):
        assert len(answer) == len(expected)
        for answer_part, expected_part in zip(answer, expected, strict=True):
            assert_same(answer_part, expected_part)
    else:
        assert answer.dtype == expected.dtype
        assert answer.shape == expected.shape
        assert answer.tobytes() == expected.tobytes()


# Accepted arguments.


LARGER = ("inverse_dynamics", "forward_dynamics", "computed_torque", "constraint_forces", "energy", "mass_matrix")
"""Rows whose kernels of the Panda are made for other tests too; its others are compiled for the wide run."""

ASKED = wide(
    ((name, row) for name in ("cart_pendulum", "panda") for row in ROWS),
    lambda case: case[0] != "panda" or case[1].name in LARGER,
)


@pytest.mark.parametrize(("robot", "row"), ASKED, ids=lambda case: case if isinstance(case, str) else case.name)
def test_every_row_equals_its_gufunc_to_the_last_bit(robot: str, row: Query) -> None:
    for method in row.kernels:
        kernel = pair(robot, row, method)
        for seed in range(5):
            state = kernel.state(seed)
            assert_same(kernel.call(*state), kernel.ufunc(*state))


@pytest.mark.parametrize("path", wide(ROBOTS, lambda path: path.stem != "upper_body"), ids=lambda path: path.stem)
@pytest.mark.parametrize("query", ["inverse_dynamics", "forward_dynamics", "mass_matrix"])
def test_every_robot_equals_the_gufunc_to_the_last_bit(path: Path, query: str) -> None:
    kernel = pair(path.stem, QUERIES[query])
    for seed in range(20):
        state = kernel.state(seed)
        assert_same(kernel.call(*state), kernel.ufunc(*state))


def test_floating_robot() -> None:
    """More positions than velocities."""
    robot = Robot.from_urdf(URDF / "double_pendulum.urdf", root="floating")
    kernel = Pair(KernelLibrary(robot.tree), robot.signature(QUERIES["inverse_dynamics"], ""))
    state = kernel.state()
    state[0] = robot.random_configuration(seed=1)
    assert robot.nq == robot.nv + 1
    assert_same(kernel.call(*state), kernel.ufunc(*state))


def layouts(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the same numbers in other memory layouts."""
    every_third = np.zeros([3 * n for n in array.shape])[tuple(slice(1, None, 3) for _ in array.shape)]
    every_third[...] = array
    yield every_third
    yield np.flip(np.flip(array).copy())
    yield np.asfortranarray(array)
    yield array.T.copy().T
    view = np.zeros((3, *array.shape, 2))[1, ..., 1]
    view[...] = array
    yield view
    fixed = array.copy()
    fixed.flags.writeable = False
    yield fixed


def test_any_strides() -> None:
    kernel = pair("panda", QUERIES["inverse_dynamics"], wrenches=True)  # wrenches have two axes
    state = kernel.state()
    expected = kernel.ufunc(*state)
    for k, array in enumerate(state):
        for other in layouts(array):
            assert_same(kernel.call(*state[:k], other, *state[k + 1 :]), expected)


def test_pickled_arrays(panda: Pair) -> None:
    """Unpickled arrays have their own dtype object."""
    state = panda.state()
    unpickled = pickle.loads(pickle.dumps(state))
    assert unpickled[0].dtype is not state[0].dtype
    assert_same(panda.call(*unpickled), panda.ufunc(*state))
    assert_same(panda.call(*(x + 0.0 for x in unpickled)), panda.ufunc(*state))


def test_an_array_with_stride_zero(panda: Pair) -> None:
    state = panda.state()
    state[1] = np.broadcast_to(np.array(0.25), (9,))
    assert_same(panda.call(*state), panda.ufunc(*state))


def test_results_are_new_owned_writable_and_contiguous(three_outputs: Pair) -> None:
    state = three_outputs.state()
    first, second = three_outputs.call(*state), three_outputs.call(*state)
    copies = [array.copy() for array in second]
    for array in first:
        assert type(array) is np.ndarray
        assert array.base is None
        assert array.flags.owndata
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert array.flags.aligned
        array[...] = 7.0
    assert_same(second, tuple(copies))
    assert_same(three_outputs.call(*state), second)


def test_output_without_axes_is_a_number() -> None:
    kernel = pair("panda", QUERIES["energy"])
    answer = kernel.call(*kernel.state())
    assert [type(value) for value in answer] == [np.float64] * 4


def test_a_float_replaces_equal_numbers(controller: Pair) -> None:
    state = controller.state()
    marked = [k for k, operand in enumerate(controller.signature.inputs) if operand.scalar]
    assert [controller.signature.inputs[k].name for k in marked] == ["kp", "kd"]
    for indices in (marked, marked[:1], marked[1:]):
        short, long = list(state), list(state)
        for k in indices:
            short[k], long[k] = 0.1 + k, np.full(9, 0.1 + k)
        assert_same(controller.call(*short), controller.ufunc(*long))


def test_a_float_replaces_a_time_step() -> None:
    kernel = pair("panda", QUERIES["step"])
    state = kernel.state()
    k = [operand.name for operand in kernel.signature.inputs].index("dt")
    expected = kernel.ufunc(*state[:k], np.array([1e-3]), *state[k + 1 :])
    assert_same(kernel.call(*state[:k], 1e-3, *state[k + 1 :]), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_in_gives_nan_out(panda: Pair, bad: float) -> None:
    """Without a warning, as with the gufunc; warnings are errors in this test."""
    state = panda.state()
    state[0][3] = bad
    answer = panda.call(*state)
    assert np.isnan(answer).any()
    assert_same(answer, panda.ufunc(*state))


# Arguments that give None.


class Subclass(np.ndarray):
    pass


def misaligned(array: np.ndarray) -> np.ndarray:
    shifted = np.zeros(array.nbytes + 1, dtype=np.uint8)[1:].view(np.float64).reshape(array.shape)
    shifted[...] = array
    return shifted


OTHERS: dict[str, Callable[[np.ndarray], Any]] = {
    "None": lambda x: None,
    "int": lambda x: 1,
    "bool": lambda x: True,
    "float": lambda x: 1.0,
    "str": lambda x: "1",
    "bytes": lambda x: x.tobytes(),
    "object": lambda x: object(),
    "class": lambda x: np.ndarray,
    "NumPy number": lambda x: np.float64(1.0),
    "buffer": lambda x: memoryview(x),
    "0-d": lambda x: np.array(1.0),
    "no states": lambda x: np.empty((0, *x.shape)),
    "two axes of states": lambda x: np.stack([x, x])[None],
    "longer": lambda x: np.append(x, 1.0),
    "shorter": lambda x: x[:-1],
    "empty": lambda x: x[:0],
    "column": lambda x: x[:, None],
    "float16": lambda x: x.astype(np.float16),
    "complex": lambda x: x.astype(np.complex128),
    "objects": lambda x: x.astype(object),
    "structured": lambda x: x.view([("x", np.float64)]),
    "longdouble": lambda x: x.astype(np.longdouble),
    "other byte order": lambda x: x.astype(x.dtype.newbyteorder()),
    "misaligned": misaligned,
    "subclass": lambda x: x.view(Subclass),
    "matrix": lambda x: np.matrix(x),
    "masked": lambda x: np.ma.masked_array(x),
}
"""Functions that turn an accepted array into one that gives None."""

CONVERTED: dict[str, Callable[[np.ndarray], Any]] = {
    "list": lambda x: x.tolist(),
    "tuple": lambda x: tuple(x.tolist()),
    "NumPy numbers": lambda x: list(x),
    "integers": lambda x: [round(e) for e in x],
    "float32": lambda x: x.astype(np.float32),
    "strided float32": lambda x: np.repeat(x.astype(np.float32), 3)[::-3][::-1],
    "int64": lambda x: np.round(x).astype(np.int64),
}
"""Functions that turn the vector of one state into one that is converted."""

UNCONVERTED: dict[str, Callable[[np.ndarray], Any]] = {
    "empty list": lambda x: [],
    "shorter list": lambda x: x.tolist()[:-1],
    "list of a list": lambda x: [x.tolist()],
    "list with a text": lambda x: [*x.tolist()[:-1], "1"],
    "list with a bool": lambda x: [*x.tolist()[:-1], True],
    "list with None": lambda x: [*x.tolist()[:-1], None],
    "list with a huge number": lambda x: [*x.tolist()[:-1], 1 << 63],
    "list with a single": lambda x: [*x.tolist()[:-1], np.float32(1.0)],
    "subclass of list": lambda x: type("Listed", (list,), {})(x.tolist()),
    "set": lambda x: set(x.tolist()),
    "longer float32": lambda x: np.append(x, 1.0).astype(np.float32),
    "float32 of no states": lambda x: np.empty((0, *x.shape), np.float32),
    "float32 with two axes of states": lambda x: np.stack([x, x])[None].astype(np.float32),
    "misaligned float32": lambda x: np.zeros(4 * len(x) + 1, dtype=np.uint8)[1:].view(np.float32),
    "0-d float32": lambda x: np.float32(1.0)[...],
    "int32": lambda x: x.astype(np.int32),
    "uint64": lambda x: x.astype(np.uint64),
}
OTHERS |= UNCONVERTED


def contents(arguments: list[Any]) -> list[bytes]:
    return [x.tobytes() if isinstance(x, np.ndarray) else repr(x).encode() for x in arguments]


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # np.matrix
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_other_arguments_give_none_and_are_not_changed(panda: Pair, other: Callable[[np.ndarray], Any]) -> None:
    state = panda.state()
    for k, array in enumerate(state):
        arguments = [*state[:k], other(array), *state[k + 1 :]]
        contents_before = contents(arguments)
        assert panda.call(*arguments) is None
        assert contents(arguments) == contents_before
    assert_same(panda.call(*state), panda.ufunc(*state))


@pytest.mark.parametrize("convert", CONVERTED.values(), ids=CONVERTED.keys())
def test_vectors_of_numbers_are_converted(panda: Pair, convert: Callable[[np.ndarray], Any]) -> None:
    state = panda.state()
    for indices in ([k] for k in range(len(state))):
        arguments = [convert(x) if k in indices else x for k, x in enumerate(state)]
        contents_before = contents(arguments)
        assert_same(panda.call(*arguments), panda.ufunc(*arguments))
        assert contents(arguments) == contents_before
    arguments = [*map(convert, state)]
    assert_same(panda.call(*arguments), panda.ufunc(*arguments))
    batch = [np.stack([state[0]] * 5), *arguments[1:]]
    assert_same(panda.call(*batch), panda.ufunc(*batch))


@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_vectors_of_several_states_are_converted(panda: Pair, kind: Any) -> None:
    """With any strides, together with doubles and single states; not if they do not fit on the stack."""
    rng = np.random.default_rng(0)
    batch = [rng.normal(scale=9.0, size=(13, *x.shape)).astype(kind) for x in panda.signature.inputs]
    forms: list[Callable[[np.ndarray], np.ndarray]] = [
        lambda x: x,
        lambda x: x[::-1],
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        lambda x: np.broadcast_to(x[4], x.shape),
    ]
    for form in forms:
        formed = [form(x) for x in batch]
        assert_same(panda.call(*formed), panda.ufunc(*formed))
        assert_same(panda.call(formed[0], *batch[1:]), panda.ufunc(formed[0], *batch[1:]))
    q, v, *rest = batch
    mixed = (q, v[0], *(x.astype(np.float64) for x in rest))
    assert_same(panda.call(*mixed), panda.ufunc(*mixed))
    assert panda.call(q[:12], v, *rest) is None
    per_state = sum(x[0].size for x in batch)
    for count in (direct.CONVERTED // per_state, direct.CONVERTED // per_state + 1):
        states = [np.resize(x, (count, *x.shape[1:])) for x in batch]
        answer = panda.call(*states)
        assert (answer is None) == (count * per_state > direct.CONVERTED)
        if answer is not None:
            assert_same(answer, panda.ufunc(*states))


@pytest.mark.parametrize("value", [1, True, np.float32(1.0), np.array(1.0), None, "1.0", 1j, np.ones(8)], ids=repr)
def test_scalar_inputs_take_no_other_numbers(controller: Pair, value: Any) -> None:
    state = controller.state()
    for k, operand in enumerate(controller.signature.inputs):
        if operand.scalar:
            assert controller.call(*state[:k], value, *state[k + 1 :]) is None


@pytest.mark.parametrize("number", [2.5, -0.0, 0.0])
def test_numbers_of_numpy_are_numbers(controller: Pair, number: float) -> None:
    """An entry of an array of gains, and a number that a server has decoded, are `numpy.float64`."""
    state = controller.state()
    for k, operand in enumerate(controller.signature.inputs):
        if operand.scalar:
            expected = controller.ufunc(*state[:k], np.full(operand.shape, number), *state[k + 1 :])
            for kind in (float, np.float64):
                assert_same(controller.call(*state[:k], kind(number), *state[k + 1 :]), expected)


@pytest.mark.parametrize("count", [0, 1, 3, 5, 40])
def test_another_number_of_arguments_gives_none(panda: Pair, count: int) -> None:
    state = panda.state()
    assert panda.call(*(state * 10)[:count]) is None


def test_arguments_are_two_tuples(panda: Pair) -> None:
    state = tuple(panda.state())
    with pytest.raises(TypeError, match="keyword"):
        panda.direct(state[:3], (), gravity=np.zeros(3))
    for arguments in ((), (state,), (state, (), ()), (list(state), ()), (state, []), (state, None), (None, ())):
        assert panda.direct(*arguments) is None


def test_optional_and_fixed_arguments(panda: Pair) -> None:
    """An option must be the object itself, an ignored argument may be anything, and None means the default."""
    q, v, a, gravity = panda.state()
    library, option, fixed = _LIBRARIES["panda"][1], object(), np.zeros(9)
    expected, expected_with_fixed = panda.ufunc(q, v, a, gravity), panda.ufunc(q, v, fixed, gravity)
    call = library.direct_call(panda.signature, Arguments({"gravity": gravity, "method": option, "frame": ANY}))
    assert call is not None
    for gravity_argument in (None, gravity):
        assert_same(call((q, v, a), (gravity_argument, option, "any")), expected)
    assert call((q, v, a), (np.zeros(3), option, "any")).tobytes() != expected.tobytes()
    for options in ((None, None, 1), (None, object(), 1), (None, option), (gravity[:2], option, 1), (1.0, option, 1)):
        assert call((q, v, a), options) is None
    call = library.direct_call(panda.signature, Arguments({"gravity": gravity}, {"a": fixed}))
    assert call is not None
    assert_same(call((q, v), (None,)), expected_with_fixed)
    assert call((q, v, a), (None,)) is None


def test_entries_that_must_be_zero(panda: Pair) -> None:
    """Of a locked joint's velocity and acceleration, in every state."""
    library, gravity, (q, v, a, _) = _LIBRARIES["panda"][1], np.array([0.0, 0.0, -9.81]), panda.state()
    call = library.direct_call(panda.signature, Arguments({"gravity": gravity}, {}, {"v": [1, 4], "a": [2]}))
    assert call is not None
    v[[1, 4]] = a[2] = 0.0
    v[4] = -0.0
    assert_same(call((q, v, a), (None,)), panda.ufunc(q, v, a, gravity))
    assert_same(call((q, v.tolist(), a), (None,)), panda.ufunc(q, v, a, gravity))
    batch = np.stack([v] * 11)
    assert_same(call((q, batch, a), (None,)), panda.ufunc(q, batch, a, gravity))
    fixed = library.direct_call(panda.signature, Arguments({"gravity": gravity}, {"a": a}, {"v": [1, 4]}))
    assert fixed is not None
    assert_same(fixed((q, v), (None,)), panda.ufunc(q, v, a, gravity))
    assert fixed((q, v + 1.0), (None,)) is None
    for value in (1e-300, -1.0, np.nan):
        for k, entry in ((1, 1), (1, 4), (2, 2)):
            moving = [q, v.copy(), a.copy()]
            moving[k][entry] = value
            assert call(tuple(moving), (None,)) is None
        batch = np.stack([v] * 11)
        batch[10, 4] = value
        assert call((q, batch, a), (None,)) is None
        assert call((q, batch.astype(np.float32), a), (None,)) is None or value == 1e-300  # which is 0 as a single


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_mixture_of_arguments(data: st.DataObject) -> None:
    """The result is the gufunc's if all arguments are accepted, else None."""
    kernel = pair("panda", QUERIES["computed_torque"])
    state = kernel.state(data.draw(st.integers(0, 5)))
    alike: dict[str, Callable[[np.ndarray], Any]] = {
        "itself": lambda x: x,
        "strided": lambda x: next(layouts(x)),
        "reversed": lambda x: np.flip(np.flip(x).copy()),
    }
    arguments: list[Any] = []
    plain: list[Any] = []
    is_accepted = True
    for operand, array in zip(kernel.signature.inputs, state, strict=True):
        kind = data.draw(st.sampled_from([*alike] * 20 + [*OTHERS]))
        argument = (alike.get(kind) or OTHERS[kind])(array)
        arguments.append(argument)
        number = kind == "float" and operand.scalar
        plain.append(np.full(operand.shape, 1.0) if number else array)
        is_accepted &= kind in alike or number
    count = data.draw(st.sampled_from([len(arguments)] * 8 + [0, len(arguments) - 1]))
    answer = kernel.call(*arguments[:count])
    if is_accepted and count == len(arguments):
        assert_same(answer, kernel.ufunc(*plain))
    else:
        assert answer is None


# Floating-point errors.


def test_overflow_is_left_to_the_gufunc(panda: Pair) -> None:
    """The gufunc warns, raises or ignores by `numpy.errstate`."""
    state = panda.state()
    state[1][:] = 1e200
    assert panda.call(*state) is None
    with pytest.raises(FloatingPointError), np.errstate(all="raise"):
        panda.ufunc(*state)
    with np.errstate(all="ignore"):
        panda.ufunc(*state)
        assert panda.call(*state) is None
    state = panda.state()
    assert_same(panda.call(*state), panda.ufunc(*state))


def test_earlier_floating_point_flags_are_ignored(panda: Pair) -> None:
    state = panda.state()
    with np.errstate(all="ignore"):
        np.float64(1e300) * np.float64(1e300)
    product = 1e300
    product *= 1e300  # Python's arithmetic does not clear the flags
    assert panda.call(*state) is not None


# Several states.


@pytest.mark.parametrize(("robot", "row"), ASKED, ids=lambda case: case if isinstance(case, str) else case.name)
@pytest.mark.parametrize("states", [1, 7, 256])
def test_a_batch_equals_its_gufunc_to_the_last_bit(robot: str, row: Query, states: int) -> None:
    """The largest results of 256 states are above the bound up to which a call without arrays answers."""
    kernel, rng = pair(robot, row), np.random.default_rng(0)
    state = [rng.normal(size=(states, *operand.shape)) for operand in kernel.signature.inputs]
    expected = kernel.ufunc(*state)
    arrays = expected if isinstance(expected, tuple) else (expected,)
    if sum(array.nbytes for array in arrays) < LARGE_BYTES:
        assert_same(kernel.call(*state), expected)
    else:
        assert kernel.call(*state) is None
    out = tuple(np.full_like(array, np.nan) for array in arrays)
    answer = kernel.direct(tuple(state), (), out)
    assert answer is (out if len(out) > 1 else out[0])
    assert_same(answer, expected)


def test_given_arrays_that_are_refused(three_outputs: Pair) -> None:
    """Nothing is written into them, and no reference is lost."""
    state = three_outputs.state()
    expected = three_outputs.call(*state)

    def into(k: int, array: Any) -> tuple[Any, ...]:
        return tuple(array if place == k else np.zeros_like(x) for place, x in enumerate(expected))

    fixed = np.zeros_like(expected[1])
    fixed.flags.writeable = False
    memory = np.zeros(expected[0].size + expected[1].size - 1)
    overlapping = memory[: expected[0].size].reshape(expected[0].shape), memory[expected[0].size - 1 :]
    for out in (
        into(1, fixed),
        into(1, np.zeros((1, *expected[1].shape))),
        into(0, np.zeros(expected[0].shape[::-1])),
        into(0, np.zeros(expected[0].shape, order="F")),
        into(0, np.zeros(expected[0].shape, np.float32)),
        into(0, np.ma.zeros(expected[0].shape)),
        into(2, None),
        into(0, expected[0])[:2],
        [*into(0, expected[0])],
        (*overlapping, np.zeros_like(expected[2])),
    ):
        counts = [sys.getrefcount(array) for array in out]
        assert three_outputs.direct(tuple(state), (), out) is None
        assert [sys.getrefcount(array) for array in out] == counts
        assert not any(np.any(array) for array in out if array is not None and array is not expected[0])
    for k in range(len(state)):  # the last entry of an input is the first one of an output, or is next to it
        for overlap in (0, 1):
            memory = np.zeros(state[k].size + expected[1].size - overlap)
            memory[: state[k].size] = state[k]
            inputs = (*state[:k], memory[: state[k].size], *state[k + 1 :])
            answer = three_outputs.direct(inputs, (), into(1, memory[state[k].size - overlap :]))
            assert (answer is None) == bool(overlap)
            if answer is not None:
                assert_same(answer, expected)


def test_inputs_without_the_axis_are_the_same_in_all_states(panda: Pair) -> None:
    rng = np.random.default_rng(0)
    for batched in itertools.product((False, True), repeat=len(panda.signature.inputs)):
        shapes = [
            (5, *x.shape) if is_batch else x.shape for x, is_batch in zip(panda.signature.inputs, batched, strict=True)
        ]
        state = [rng.normal(size=shape) for shape in shapes]
        assert_same(panda.call(*state), panda.ufunc(*state))


def test_any_strides_of_the_states(panda: Pair) -> None:
    state = [np.random.default_rng(0).normal(size=(8, *x.shape)) for x in panda.signature.inputs]
    forms: list[Callable[[np.ndarray], np.ndarray]] = [
        lambda x: x[::-1],
        lambda x: x[::3],
        lambda x: np.asfortranarray(x),
        lambda x: np.broadcast_to(x[0], x.shape),
    ]
    for form in forms:
        formed = [form(x) for x in state]
        assert_same(panda.call(*formed), panda.ufunc(*formed))


def test_other_numbers_of_states_give_none(panda: Pair) -> None:
    """Also one state with five, which NumPy broadcasts."""
    state = panda.state()
    for k in range(len(state)):
        for count in (1, 4, 6):
            batch = [np.repeat(x[None], 5, axis=0) for x in state]
            batch[k] = np.repeat(state[k][None], count, axis=0)
            assert panda.call(*batch) is None
    assert panda.call(*(np.repeat(x[None], 5, axis=0) for x in state)) is not None


def test_an_overflow_in_any_state_gives_none(panda: Pair) -> None:
    state = [np.repeat(x[None], 20, axis=0) for x in panda.state()]
    state[1][17, 3] = 1e200
    assert panda.call(*state) is None


# The GIL.


def test_large_kernels_release_the_gil(panda: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    library = _LIBRARIES["panda"][1]
    size = library.work(panda.signature)
    lanes = jit.host().lanes
    for size_limit, states in ((size, 1), (size + 1, lanes + 1), (2 * size, lanes + 1), (2 * size + 1, 2 * lanes + 1)):
        monkeypatch.setattr(direct, "HELD_BYTES", size_limit)
        call: Any = library.direct_call(panda.signature, Arguments())
        assert struct.unpack_from("=4q", call.__self__)[3] == states


# Interpreters and kernels without a call.


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.setattr(sysconfig, "get_config_var", lambda name: name == "Py_GIL_DISABLED"),
        lambda m: m.setattr(sys, "getobjects", list, raising=False),
        lambda m: m.setattr(sys.implementation, "name", "pypy"),
        lambda m: m.setattr(python_api, "FLAGS", 68),
        lambda m: m.setattr(python_api, "DESCR", 48),
    ],
    ids=["no GIL", "traced references", "not CPython", "flags elsewhere", "descr elsewhere"],
)
def test_unknown_layouts_have_no_call(
    panda: Pair, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]
) -> None:
    python_api.layout_is_known.cache_clear()
    try:
        with monkeypatch.context() as patch:
            change(patch)
            assert _LIBRARIES["panda"][1].direct_call(panda.signature, Arguments()) is None
    finally:
        python_api.layout_is_known.cache_clear()
    assert _LIBRARIES["panda"][1].direct_call(panda.signature, Arguments()) is not None


def test_robot_without_joints_has_no_call() -> None:
    robot = Robot.from_urdf('<robot name="still"><link name="base"/></robot>')
    library = KernelLibrary(robot.tree)
    for row in ROWS:
        for method in row.kernels:
            assert library.direct_call(signature_of(row, method, robot.sizes), Arguments()) is None


# Memory, threads, processes.


def references(kernel: Pair, arguments: list[Any]) -> list[int]:
    """Returns the reference counts of all objects that a call uses."""
    gc.collect()
    objects = [*arguments, kernel.direct, None, float, np.ndarray, np.dtype(np.float64), kernel.direct.__self__]
    return [sys.getrefcount(instance) for instance in objects]


CASES: dict[str, Callable[[list[Any]], list[Any]]] = {
    "taken": lambda x: x,
    "taken after a look": lambda x: pickle.loads(pickle.dumps(x)),
    "taken from lists": lambda x: [x_k if isinstance(x_k, float) else x_k.tolist() for x_k in x],
    "taken from singles": lambda x: [x_k if isinstance(x_k, float) else x_k.astype(np.float32) for x_k in x],
    "refused after a look": lambda x: [x[0].astype(np.float16), *x[1:]],
    "refused at once": lambda x: x[:-1],
    "refused at the end": lambda x: [*x[:-1], [*x[-1].tolist(), "1"]],
    "refused after": lambda x: [x[0], np.full(9, 1e200), *x[2:]],
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("query", ["computed_torque", "constraint_forces", "energy"])
def test_no_reference_is_leaked_or_dropped(query: str, case: str) -> None:
    kernel = pair("panda", QUERIES[query])
    scalars = [operand.scalar for operand in kernel.signature.inputs]
    arguments = CASES[case]([2.5 if scalar else x for scalar, x in zip(scalars, kernel.state(), strict=True)])
    inputs = tuple(arguments)
    assert (kernel.direct(inputs, ()) is None) == case.startswith("refused")
    counts_before = references(kernel, arguments)
    tracemalloc.start()
    try:
        for _ in range(500):
            kernel.direct(inputs, ())
        traced_bytes, _ = tracemalloc.get_traced_memory()
        for _ in range(2000):
            kernel.direct(inputs, ())
        # A leaked object takes at least 16 bytes a call; other threads of the test run may allocate some kB meanwhile.
        assert tracemalloc.get_traced_memory()[0] - traced_bytes < 20_000
    finally:
        tracemalloc.stop()
    counts_after = references(kernel, arguments)
    assert max(abs(count - count_after) for count, count_after in zip(counts_before, counts_after, strict=True)) < 50


def test_results_have_one_owner(three_outputs: Pair) -> None:
    state = three_outputs.state()
    fresh = three_outputs.ufunc(*state), three_outputs.call(*state)
    assert [sys.getrefcount(array) for array in fresh[0]] == [sys.getrefcount(array) for array in fresh[1]]
    assert sys.getrefcount(fresh[0]) == sys.getrefcount(fresh[1])


@pytest.mark.parametrize("query", ["inverse_dynamics", "constraint_forces", "energy"])
def test_failed_allocations_raise_memory_error(query: str) -> None:
    """For each allocation that fails; earlier outputs are freed."""
    testcapi = pytest.importorskip("_testcapi")
    kernel = pair("panda", QUERIES[query])
    state = kernel.state()
    inputs = tuple(state)
    kernel.direct(inputs, ())
    counts_before = references(kernel, state)
    failed = 0
    for _ in range(200):
        for start in range(12):
            error = None
            testcapi.set_nomemory(start, start + 1)
            try:
                kernel.direct(inputs, ())
            except MemoryError as raised:
                error = raised
            finally:
                testcapi.remove_mem_hooks()
            failed += error is not None
            del error
    assert failed >= 200
    assert (
        max(
            abs(count - count_after)
            for count, count_after in zip(counts_before, references(kernel, state), strict=True)
        )
        < 50
    )


@pytest.mark.parametrize("releases", [False, True], ids=["holding the GIL", "without the GIL"])
def test_many_threads_at_once(three_outputs: Pair, releasing: Callable[[Pair], Any], releases: bool) -> None:
    call = releasing(three_outputs) if releases else three_outputs.call
    states = [three_outputs.state(seed) for seed in range(8)]
    expected = [three_outputs.ufunc(*state) for state in states]

    def work(k: int) -> None:
        for _ in range(3000):
            assert_same(call(*states[k]), expected[k])
            assert call(*states[k][:2]) is None

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_first_calls_from_many_threads(panda: Pair) -> None:
    library = _LIBRARIES["panda"][1]
    state = panda.state()
    expected = panda.ufunc(*state)
    direct._method.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        calls = list(pool.map(lambda _: library.direct_call(panda.signature, Arguments()), range(8)))
    for call in calls:
        assert call is not None
        assert_same(call(tuple(state), ()), expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_can_call(panda: Pair) -> None:
    state = panda.state()
    expected = panda.ufunc(*state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn about a fork with threads
        child = os.fork()
    if child == 0:
        same = all(panda.call(*state).tobytes() == expected.tobytes() for _ in range(1000))
        os._exit(0 if same else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_functions_are_compiled_once_and_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_SERVICE_CACHE", str(tmp_path / "kernels"))
    compiled = []
    plain = jit.compile_ir

    def counted(text: str, **options: Any) -> bytes:
        compiled.append(text)
        return plain(text, **options)

    monkeypatch.setattr(jit, "compile_ir", counted)
    for _ in range(3):
        direct._method.cache_clear()
        loop._function.cache_clear()
        robot = Robot.from_urdf(URDF / "pendulum.urdf")
        kernel = Pair(KernelLibrary(robot.tree), robot.signature(QUERIES["inverse_dynamics"], ""))
        assert_same(kernel.call(*kernel.state()), kernel.ufunc(*kernel.state()))
    assert len(compiled) == 2, "the direct call and the loop around a kernel"
    assert len(list((tmp_path / "kernels").iterdir())) == 3


def test_code_holds_no_address_of_its_process() -> None:
    """The code is stored on disk."""
    code = direct._emit()
    assert code == direct._emit()
    addresses = {str(address) for address in python_api.addresses() if address > 4096}
    assert not any(address in code for address in addresses)


def test_call_outlives_its_library() -> None:
    robot = Robot.from_urdf(URDF / "pendulum.urdf")
    kernel = Pair(KernelLibrary(robot.tree), robot.signature(QUERIES["inverse_dynamics"], ""))
    state, call = kernel.state(), kernel.call
    expected = kernel.ufunc(*state)
    del kernel, robot
    gc.collect()
    assert_same(call(*state), expected)
