"""Encoding and decoding of arrays and wrenches."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dyn_service import Inertial, InvalidArgumentError, JointNumbers, Overlay, Payload, Wrench
from dyn_service.api.spec import Kind
from dyn_service.service.protocol import inputs
from dyn_service.service.protocol.arrays import WireArray, pack_array, pack_output, unpack_array
from dyn_service.service.protocol.inputs import (
    MAX_ENCODINGS,
    pack,
    pack_state,
    pack_wrenches,
    unpack,
    unpack_wrenches,
)
from dyn_service.service.protocol.messages import encode
from tests.counting import calls_of
from tests.phrases import naming

finite = st.floats(allow_nan=False, allow_infinity=False)
shapes = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=5)


def over_the_wire(value: Any) -> Any:
    return msgpack.unpackb(encode(value))


@given(hnp.arrays(np.float64, shapes, elements=finite))
def test_arrays_round_trip_bit_for_bit(array: np.ndarray) -> None:
    for layout in (array, np.asfortranarray(array), array[::-1] if array.ndim else array):
        for encoded in (pack_array(layout, "inputs.q"), pack_output(layout)):
            decoded = unpack_array(over_the_wire(encoded), "inputs.q")
            assert decoded.shape == layout.shape
            assert decoded.dtype == np.float64
            assert decoded.tobytes() == layout.tobytes()


@given(hnp.arrays(np.float64, shapes, elements=st.floats()))
def test_an_array_with_a_number_that_is_not_finite_is_refused(array: np.ndarray) -> None:
    message = over_the_wire(pack_array(array, "inputs.q"))
    if np.isfinite(array).all():
        assert unpack_array(message, "inputs.q").tobytes() == array.tobytes()
    else:
        with pytest.raises(InvalidArgumentError, match=r"q must be finite, found -?(inf|nan)"):
            unpack_array(message, "inputs.q")


@pytest.mark.parametrize(
    "value",
    [[], [1.0], [0.1, -0.0, 5e-324], [1.0, 2], [1, 2], [[1.0], [2.0]], (0.1, 0.2), [float("nan"), 1.0]],
    ids=str,
)
def test_lists_are_encoded_as_arrays_of_doubles(value: Any) -> None:
    array = np.asarray(value, dtype=float)
    assert pack_array(value, "q") == WireArray("<f8", array.shape, array.tobytes())


@pytest.mark.parametrize("value", [[True], ["1"], [None], [[1.0], 2.0], np.array([True])], ids=str)
def test_lists_of_other_values_are_refused(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="must be real numbers"):
        pack_array(value, "q")


@given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=1, max_dims=4, max_side=4), elements=finite))
def test_lists_decode_to_the_same_bits_as_arrays(array: np.ndarray) -> None:
    decoded = unpack_array(over_the_wire(array.tolist()), "inputs.q")
    assert decoded.shape == array.shape
    assert decoded.tobytes() == array.tobytes()


@given(st.integers(-(2**63), 2**64 - 1) | finite)
def test_numbers(number: float) -> None:
    decoded = unpack_array(over_the_wire(number), "inputs.kp")
    assert decoded.shape == ()
    assert float(decoded) == float(number)


def test_sums_that_overflow_are_finite() -> None:
    array = np.full(8, 1.7e308)
    assert unpack_array(over_the_wire(pack_array(array, "q")), "q").tolist() == array.tolist()


def test_big_endian_arrays_are_converted() -> None:
    array = np.array([1.0, 2.0], dtype=">f8")
    assert unpack_array(over_the_wire(pack_array(array, "q")), "q").tolist() == [1.0, 2.0]


def test_large_outputs_are_not_copied() -> None:
    array = np.arange(10_000.0).reshape(100, 100)
    assert isinstance(pack_output(array).data, memoryview)
    assert unpack_array(over_the_wire(pack_output(array)), "q").tolist() == array.tolist()


@pytest.mark.parametrize(
    "value",
    ["x", [True], np.array([1j]), [[1], [1, 2]], [None], object(), b"abc"],
    ids=lambda value: type(value).__name__,
)
def test_values_that_are_not_arrays_of_numbers_are_refused(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="q must be") as excinfo:
        pack_array(value, "inputs.q")
    assert excinfo.value.path == "inputs.q"


def test_wrenches_round_trip() -> None:
    wrenches = [
        Wrench("hand", force=(1.0, 2.0, 3.0)),
        Wrench("arm", torque=np.ones((4, 3)), point=[0.0, 0.1, 0.2], frame="arm"),
    ]
    for wrench_input in (wrenches, tuple(wrenches), wrenches[0]):
        decoded = unpack_wrenches(over_the_wire(pack_wrenches(wrench_input, "inputs.wrenches")), "inputs.wrenches")
        expected = [wrench_input] if isinstance(wrench_input, Wrench) else list(wrench_input)
        assert len(decoded) == len(expected)
        for left, right in zip(decoded, expected, strict=True):
            assert (left.link, left.frame) == (right.link, right.frame)
            for part in ("torque", "force", "point"):
                assert np.array_equal(getattr(left, part), np.asarray(getattr(right, part)))


STATES: list[tuple[Kind, Any]] = [
    ("wrenches", []),
    ("wrenches", Wrench("a")),
    ("wrenches", (Wrench("a", force=(1.0, 2.0, -0.0)), Wrench("b", np.ones(3), [1.0, 2.0, 3.0], np.zeros(3), "b"))),
    ("overlay", Overlay()),
    ("overlay", Overlay(Payload("a", 1.0, np.ones(3)), {"b": Inertial(2)}, {"j": JointNumbers(1.0)}, ["k"], [0, 0, 1])),
]
OTHERS: list[tuple[Kind, Any]] = [
    ("wrenches", Wrench("a", force=np.ones((2, 3)))),
    ("wrenches", [Wrench("a", force=(1, 2.0, 3.0))]),
    ("wrenches", [Wrench("a", force=np.ones(3, np.float32))]),
    ("wrenches", [Wrench("\ud800")]),
    ("wrenches", "text"),
    ("overlay", Overlay(Payload("a", [1.0, 2.0]))),
    ("overlay", Overlay(Payload("a", memoryview(np.ones(1))))),  # type: ignore[arg-type]  # it may change
    ("overlay", Overlay(locked=["\ud800"])),
    ("payload", Payload("a", 1.0)),
]


@pytest.mark.parametrize(("kind", "value"), STATES, ids=map(str, range(len(STATES))))
def test_wrenches_and_overlays_of_a_state_are_encoded_at_once(kind: Kind, value: Any) -> None:
    """With the same content as by `pack`; what cannot change only once."""
    packed = pack_state(kind, value, f"inputs.{kind}")
    assert packed is not None
    decoded, expected = (unpack(kind, over_the_wire(encoding), "x") for encoding in (packed, pack(kind, value, "x")))
    assert repr(decoded).replace("(0.0, 0.0, 0.0)", "array([0., 0., 0.])") == repr(expected)
    changes = isinstance(value, tuple)  # its vectors are lists and arrays
    assert (pack_state(kind, value, f"inputs.{kind}") is packed) != changes
    assert calls_of(lambda: pack_state(kind, value, f"inputs.{kind}")) <= (16 if changes else 5)


@pytest.mark.parametrize(("kind", "value"), OTHERS, ids=map(str, range(len(OTHERS))))
def test_other_wrenches_and_overlays_are_not(kind: Kind, value: Any) -> None:
    for _ in range(2):
        assert pack_state(kind, value, f"inputs.{kind}") is None


def test_changes_of_a_wrench_are_sent() -> None:
    force = np.ones(3)
    wrench = Wrench("a", force=force)
    first = pack_state("wrenches", wrench, "x")
    force[0] = 2.0
    assert bytes(first or b"") != bytes(pack_state("wrenches", wrench, "x") or b"")


def test_few_encodings_are_kept() -> None:
    values: list[Any] = [Overlay(Payload("a", float(k))) for k in range(MAX_ENCODINGS // 2 + 10)]
    values += [Wrench("a", (float(k), 0.0, 0.0)) for k in range(len(values))]
    for value in values:
        kind: Kind = "overlay" if isinstance(value, Overlay) else "wrenches"
        assert pack_state(kind, value, "x") is pack_state(kind, value, "x") is not None
        assert len(inputs._encodings) <= MAX_ENCODINGS


@pytest.mark.parametrize(
    ("value", "path", "values"),
    [
        (5, "inputs.wrenches", ["wrenches", "int"]),
        ({"link": "a"}, "inputs.wrenches", ["wrenches", "dict"]),
        ([5], "inputs.wrenches[0]", ["wrenches[0]", "int"]),
    ],
)
def test_values_that_are_not_wrenches_are_refused(value: Any, path: str, values: list[str]) -> None:
    with pytest.raises(InvalidArgumentError, match=naming(*values)) as excinfo:
        pack_wrenches(value, "inputs.wrenches")
    assert excinfo.value.path == path
