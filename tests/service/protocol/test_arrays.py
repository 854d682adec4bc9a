"""Encoding and decoding of arrays and wrenches."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dyn_service import InvalidArgumentError, Wrench
from dyn_service.service.protocol.arrays import pack_array, pack_output, unpack_array
from dyn_service.service.protocol.inputs import pack_wrenches, unpack_wrenches
from dyn_service.service.protocol.messages import encode
from tests.phrases import naming

finite = st.floats(allow_nan=False, allow_infinity=False)
shapes = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=5)


def over_the_wire(value: Any) -> Any:
    return msgpack.unpackb(encode(value))


@given(hnp.arrays(np.float64, shapes, elements=finite))
def test_arrays_round_trip_bit_for_bit(array: np.ndarray) -> None:
    for written in (array, np.asfortranarray(array), array[::-1] if array.ndim else array):
        for pack in (lambda value: pack_array(value, "inputs.q"), pack_output):
            found = unpack_array(over_the_wire(pack(written)), "inputs.q")
            assert found.shape == written.shape
            assert found.dtype == np.float64
            assert found.tobytes() == written.tobytes()


@given(hnp.arrays(np.float64, shapes, elements=st.floats()))
def test_an_array_with_a_number_that_is_not_finite_is_refused(array: np.ndarray) -> None:
    message = over_the_wire(pack_array(array, "inputs.q"))
    if np.isfinite(array).all():
        assert unpack_array(message, "inputs.q").tobytes() == array.tobytes()
    else:
        with pytest.raises(InvalidArgumentError, match=r"q must be finite, found -?(inf|nan)"):
            unpack_array(message, "inputs.q")


@given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=1, max_dims=4, max_side=4), elements=finite))
def test_lists_decode_to_the_same_bits_as_arrays(array: np.ndarray) -> None:
    found = unpack_array(over_the_wire(array.tolist()), "inputs.q")
    assert found.shape == array.shape
    assert found.tobytes() == array.tobytes()


@given(st.integers(-(2**63), 2**64 - 1) | finite)
def test_numbers(number: float) -> None:
    found = unpack_array(over_the_wire(number), "inputs.kp")
    assert found.shape == ()
    assert float(found) == float(number)


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
    with pytest.raises(InvalidArgumentError, match="q must be") as found:
        pack_array(value, "inputs.q")
    assert found.value.path == "inputs.q"


def test_wrenches_round_trip() -> None:
    wrenches = [
        Wrench("hand", force=(1.0, 2.0, 3.0)),
        Wrench("arm", torque=np.ones((4, 3)), point=[0.0, 0.1, 0.2], frame="arm"),
    ]
    for given_ in (wrenches, tuple(wrenches), wrenches[0]):
        found = unpack_wrenches(over_the_wire(pack_wrenches(given_, "inputs.wrenches")), "inputs.wrenches")
        expected = [given_] if isinstance(given_, Wrench) else list(given_)
        assert len(found) == len(expected)
        for left, right in zip(found, expected, strict=True):
            assert (left.link, left.frame) == (right.link, right.frame)
            for part in ("torque", "force", "point"):
                assert np.array_equal(getattr(left, part), np.asarray(getattr(right, part)))


@pytest.mark.parametrize(
    ("value", "path", "values"),
    [
        (5, "inputs.wrenches", ["wrenches", "int"]),
        ({"link": "a"}, "inputs.wrenches", ["wrenches", "dict"]),
        ([5], "inputs.wrenches[0]", ["wrenches[0]", "int"]),
        ([Wrench(3)], "inputs.wrenches[0].link", ["wrenches[0].link", "int"]),  # type: ignore[arg-type]
        (Wrench("a", force="x"), "inputs.wrenches[0].force", ["wrenches[0].force", "str"]),
    ],
)
def test_values_that_are_not_wrenches_are_refused(value: Any, path: str, values: list[str]) -> None:
    with pytest.raises(InvalidArgumentError, match=naming(*values)) as found:
        pack_wrenches(value, "inputs.wrenches")
    assert found.value.path == path
