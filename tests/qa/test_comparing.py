"""What a failing comparison says: `tests/comparing.py`, `tests/tables.py`."""

from __future__ import annotations

import numpy as np
import pytest

from dyn_service import Robot
from tests.comparing import assert_close, explanation
from tests.conftest import URDF
from tests.phrases import unnamed
from tests.tables import assert_complete, entry
from tests.terms.interpreting import interpreting


@pytest.fixture
def scara() -> Robot:
    return interpreting(URDF / "scara.urdf")


@pytest.fixture
def states(scara: Robot) -> tuple[np.ndarray, ...]:
    return tuple(np.random.default_rng(0).uniform(-0.1, 0.1, (3, 5, scara.nv)))


def test_robot_state_term_and_joint_are_named(scara: Robot, states: tuple[np.ndarray, ...]) -> None:
    M = scara.mass_matrix(states[0])
    wrong = M.copy()
    wrong[3, 1, 0] += 0.5
    assert_close("mass_matrix", M, M, 1e-10, scara, *states)
    with pytest.raises(AssertionError) as error:
        assert_close("mass_matrix", wrong, M, 1e-10, scara, *states)
    first, second = scara.joint_names[:2]
    text = f"{wrong[3, 1, 0]:.6g}"
    assert (
        unnamed(error.value, "mass_matrix", "'scara'", "state 3 of 5", f"'{second}'", f"'{first}'", text, 1e-10) == []
    )


def test_links_of_an_output_are_named(scara: Robot, states: tuple[np.ndarray, ...]) -> None:
    position = scara.link_poses(states[0]).position
    wrong = position.copy()
    wrong[1, 2, 0] = np.nan
    with pytest.raises(AssertionError) as error:
        assert_close("link_poses.position", wrong, position, 1e-10, scara, *states)
    assert unnamed(error.value, "state 1 of 5", f"link '{scara.link_names[2]}'", "nan") == []


def test_a_tolerance_may_be_one_of_each_state(scara: Robot, states: tuple[np.ndarray, ...]) -> None:
    tau = scara.inverse_dynamics(*states)
    scaled_tau = tau * (1.0 + 1e-6 * np.arange(5)[:, None])
    assert_close("inverse_dynamics", scaled_tau, tau, 1.1e-6 * np.arange(5) + 1e-15, scara, *states)
    with pytest.raises(AssertionError, match="state 4 of 5"):
        assert_close("inverse_dynamics", scaled_tau, tau, 3.5e-6, scara, *states)


def test_the_formulation_that_disagrees_is_named(
    scara: Robot, states: tuple[np.ndarray, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    q, v, a = states
    sound = explanation([{"x": 1}, {"robot": scara, "q": q, "v": v, "a": a}])
    assert sound is not None
    assert "all formulations agree" in sound
    right = scara.momentum_rate
    monkeypatch.setattr(scara, "momentum_rate", lambda *args, **options: right(*args, **options) + 1.0)
    text = explanation([{"robot": scara, "q": q[0], "v": v[0], "a": a[0]}])
    assert unnamed(text, "'scara'", "verify: momentum_rate", str(q[0].tolist())) == []


def test_without_a_robot_or_a_state_nothing_is_added(scara: Robot) -> None:
    assert explanation([{"q": np.zeros(4)}, {"robot": scara, "q": np.zeros(3)}]) is None


def test_a_missing_entry_says_what_to_add() -> None:
    assert entry({"a": 1}, "a", "TABLE in tests/x.py", "its number") == 1
    with pytest.raises(pytest.fail.Exception) as error:
        entry({"a": 1}, "power", "TABLE in tests/x.py", "its number of operations")
    assert unnamed(error.value, "TABLE in tests/x.py", "'power'", "its number of operations") == []


def test_an_incomplete_list_says_what_to_do() -> None:
    assert_complete(["a", "b"], {"b", "a"}, "LIST in tests/x.py", "add it")
    for names, required, values in (
        (["a"], ["a", "power"], ("LIST in tests/x.py", "lacks power", "add its line")),
        (["a", "old"], ["a"], ("LIST in tests/x.py", "has old", "remove it")),
    ):
        with pytest.raises(pytest.fail.Exception) as error:
            assert_complete(names, required, "LIST in tests/x.py", "add its line")
        assert unnamed(error.value, *values) == []
