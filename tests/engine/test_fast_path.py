"""The first call of a query takes the slow path, later ones the fast path if possible, with the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dyn_service import InvalidArgumentError, Robot
from dyn_service.api.queries import QUERIES, RobotQueries
from tests.conftest import URDF


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


FORMS = {
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
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_numbers(fresh: Robot, form: Any, lead: tuple[int, ...]) -> None:
    """The result and its type are the same in the first call and later ones."""
    given = [form(x) for x in state(fresh, *lead)]
    first = fresh.inverse_dynamics(*given)
    assert type(first) is np.ndarray
    assert first.tobytes() == fresh.inverse_dynamics(*(np.asarray(x, dtype=float) for x in given)).tobytes()
    for _ in range(2):
        later = fresh.inverse_dynamics(*given)
        assert type(later) is np.ndarray
        assert later.tobytes() == first.tobytes()


WRONG = {
    "a text": ("x", "must be real numbers"),
    "nothing": (None, "needs the input 'v'"),
    "complex": (np.ones(4) * 1j, "must be real numbers"),
    "too few": (np.ones(3), "v has shape"),
    "objects": (np.array([None] * 4), "must be real numbers"),
    "ragged": ([[1.0], [1.0, 2.0]], "must be real numbers"),
}


@pytest.mark.parametrize(("wrong", "words"), WRONG.values(), ids=WRONG)
def test_errors_are_raised_on_every_call(fresh: Robot, wrong: Any, words: str) -> None:
    q, v, a = state(fresh)
    said = []
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match=words) as caught:
            fresh.inverse_dynamics(q, wrong, a)
        said.append(str(caught.value))
        fresh.inverse_dynamics(q, v, a)  # installs the fast path
    assert said[0] == said[1]


OTHERS: dict[str, dict[str, Any]] = {
    "gravity": {"gravity": [0.0, 0.0, -1.0]},
    "gravity of a batch": {"gravity": np.array([[0.0, 0.0, -1.0], [0.0, 0.0, -2.0]])},
    "the other method": {"method": "mass_matrix"},
    "the same method in another string": {"method": "".join(["artic", "ulated"])},
    "all at once": {"gravity": np.zeros(3), "wrenches": [], "method": "mass_matrix"},
}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_optional_arguments_take_effect(fresh: Robot, others: dict[str, Any]) -> None:
    q, v, tau = state(fresh)
    first = fresh.forward_dynamics(q, v, tau, **others)
    plain = fresh.forward_dynamics(q, v, tau)
    for _ in range(2):
        assert fresh.forward_dynamics(q, v, tau, **others).tobytes() == first.tobytes()
        assert fresh.forward_dynamics(q, v, tau).tobytes() == plain.tobytes()
    expected = fresh.evaluate("forward_dynamics", {"q": q, "v": v, "tau": tau, **_inputs(others)}, _options(others))
    assert first.tobytes() == expected["a"].tobytes()


def _inputs(others: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in others.items() if name in QUERIES["forward_dynamics"].inputs}


def _options(others: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in others.items() if name in QUERIES["forward_dynamics"].options}


@pytest.mark.parametrize("gravity", ["down", (0.0, 0.0), np.zeros(2), np.zeros((2, 2))], ids=repr)
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
        with pytest.raises(InvalidArgumentError, match="method must be 'articulated' or 'mass_matrix', found"):
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
        before = robot.neutral()
        robot.neutral()[:] = 0.5
        assert (robot.neutral() == before).all()
        for shared in (robot.configuration.neutral, robot.configuration.angles, robot.configuration.shifts):
            with pytest.raises(ValueError, match="read-only"):
                shared[:] = 1
