"""Values of arguments are checked when they are made: the error is raised at the line with the mistake."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dyn_service import InvalidArgumentError
from dyn_service.api.arguments import Inertial, JointNumbers, Overlay, Payload, Wrench
from dyn_service.api.arrays import found
from tests.phrases import naming

NAN, INF = float("nan"), float("inf")
# fmt: off
WRONG_VALUES: list[tuple[Callable[[], Any], str, list[str]]] = [
    (lambda: Wrench("hand", force=(1, 2)), "force", ["tuple (1, 2)", "(..., 3)"]),
    (lambda: Wrench("hand", point=[1.0, 2.0, 3.0, 4.0]), "point", ["[1.0, 2.0, 3.0, 4.0]", "(..., 3)"]),
    (lambda: Wrench("hand", torque=np.ones((3, 2))), "torque", ["shape (3, 2)", "(..., 3)"]),
    (lambda: Wrench("hand", ("1", "2", "3")), "torque", ["('1', '2', '3')", "numbers"]),  # type: ignore[arg-type]
    (lambda: Wrench("hand", torque=None), "torque", ["None", "numbers"]),  # type: ignore[arg-type]
    (lambda: Wrench("hand", force=(2**64, 0, 0)), "force", ["18446744073709551616", "numbers"]),
    (lambda: Wrench(3), "link", ["int 3", "name"]),  # type: ignore[arg-type]
    (lambda: Wrench("hand", frame=None), "frame", ["None", "name"]),  # type: ignore[arg-type]
    (lambda: Payload(["hand"], 1.0), "link", ["['hand']", "name"]),  # type: ignore[arg-type]
    (lambda: Payload("hand", "heavy"), "mass", ["'heavy'", "number"]),
    (lambda: Payload("hand", None), "mass", ["None", "number"]),  # type: ignore[arg-type]
    (lambda: Payload("hand", [None]), "mass", ["list [None]", "number"]),  # type: ignore[arg-type]
    (lambda: Payload("hand", 1.0, com=(1, 2)), "com", ["tuple (1, 2)", "(..., 3)"]),
    (lambda: Payload("hand", 1.0, inertia=np.ones(3)), "inertia", ["shape (3,)", "(..., 3, 3)"]),
    (lambda: Payload("hand", 1.0, com=(0.0, NAN, 0.0)), "com", ["nan at [1]", "finite"]),
    (lambda: Inertial(NAN), "mass", ["nan", "finite"]),
    (lambda: Inertial(True), "mass", ["bool True", "number"]),
    (lambda: Inertial(com=(0.0, 1.0)), "com", ["(0.0, 1.0)", "(..., 3)"]),
    (lambda: JointNumbers(damping="much"), "damping", ["'much'", "number"]),
    (lambda: JointNumbers(rest=[0.0, INF]), "rest", ["inf at [1]", "finite"]),
    (lambda: Overlay("brick"), "payloads", ["'brick'", "Payload"]),  # type: ignore[arg-type]
    (lambda: Overlay({"link": "hand"}), "payloads", ["dict {'link': 'hand'}", "use Payload(**..)"]),  # type: ignore[arg-type]
    (lambda: Overlay([Payload("hand", 1.0), 2]), "payloads[1]", ["int 2", "Payload"]),  # type: ignore[list-item]
    (lambda: Overlay(links=[1]), "links", ["list [1]", "Inertial"]),  # type: ignore[arg-type]
    (lambda: Overlay(links={"hand": 2.0}), "links.hand", ["float 2.0", "Inertial"]),  # type: ignore[dict-item]
    (lambda: Overlay(joints={"j": {}}), "joints.j", ["dict {}", "JointNumbers"]),  # type: ignore[dict-item]
    (lambda: Overlay(locked="elbow"), "locked", ["'elbow'", "list"]),
    (lambda: Overlay(gravity=(0.0, 0.0)), "gravity", ["(0.0, 0.0)", "(..., 3)", "m/s^2"]),
    (lambda: Overlay(gravity=(0.0, NAN, 0.0)), "gravity", ["nan at [1]", "finite"]),
]
# fmt: on


@pytest.mark.parametrize(("make", "path", "values"), WRONG_VALUES, ids=range(len(WRONG_VALUES)))
def test_wrong_values_are_refused_when_they_are_made(make: Callable[[], Any], path: str, values: list[str]) -> None:
    with pytest.raises(InvalidArgumentError, match=naming(*values)) as error:
        make()
    assert error.value.path == path
    assert str(error.value).startswith(f"{path} must be ")


ACCEPTED_VALUES: list[Any] = [
    Wrench("hand", [1, 2, 3], np.ones((4, 1, 3), np.float32), frame="hand"),
    Wrench("hand", force=(NAN, 0.0, 0.0)),  # NaN gives NaN
    Payload("hand", [[1], [2]], np.zeros((0, 3)), np.zeros((2, 3, 3))),
    Inertial(),
    JointNumbers(rest=-1),
    Overlay((Payload("hand", 0),), {"hand": Inertial(1)}, {"j": JointNumbers(0.0)}, ("k",), [0, 0, -1]),
]


@pytest.mark.parametrize("value", ACCEPTED_VALUES, ids=range(len(ACCEPTED_VALUES)))
def test_values_survive_copies(value: Any) -> None:
    assert repr(pickle.loads(pickle.dumps(value))) == repr(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([0.0, 1.0, "fast", 2.0], "str 'fast' at [2]"),
        ([[0.0, 1.0], (2.0, None)], "NoneType None at [1, 1]"),
        ([0.5, 1j, 2], "complex 1j at [1]"),
        (["left", "right"], "list ['left', 'right']"),
        (["elbow", 3], "list ['elbow', 3]"),  # a list of names
        ([[1.0], [1.0, 2.0]], "lists of different lengths: row 1 has length 2, row 0 has length 1"),
        ([True, 1], "list [True, 1]"),
    ],
)
def test_the_entry_that_is_no_number_is_quoted(value: Any, text: str) -> None:
    assert found(value) == text
