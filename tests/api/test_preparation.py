"""Preparation compiles exactly the kernels that first calls would compile."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from dyn_service import QUERIES, Contact, InvalidArgumentError, Robot
from dyn_service.api.arguments import Integrator, Method
from dyn_service.api.preparation import PURPOSES, chosen
from dyn_service.service.server.settings import ServerSettings
from tests.conftest import URDF
from tests.phrases import naming


@pytest.fixture
def fresh() -> Robot:
    return Robot.from_urdf(URDF / "scara.urdf")


def compiled_kernels(robot: Robot) -> set[str]:
    return set(robot.evaluator.library.certificates)


def rows(kernels: set[str]) -> set[str]:
    return {name.partition("-")[0] for name in kernels}


def prepared_kernels(purpose: str) -> set[str]:
    robot = Robot.from_urdf(URDF / "scara.urdf")
    names: list[str] = []
    robot.prepare([purpose], progress=lambda name, seconds: names.append(name))
    assert set(names) == compiled_kernels(robot)
    assert len(names) == len(set(names)) == len(chosen([purpose]))
    return compiled_kernels(robot)


def test_verify_compiles_what_is_prepared(fresh: Robot) -> None:
    state = np.full(fresh.nv, 0.3)
    fresh.verify(state, state, state)
    assert compiled_kernels(fresh) == prepared_kernels("verify")


def test_simulate_compiles_what_is_prepared(fresh: Robot) -> None:
    state = np.full(fresh.nv, 0.3)
    for integrator in get_args(Integrator):
        for method in get_args(Method):
            fresh.simulate(state, state, dt=1e-3, steps=1, integrator=integrator, method=method)
    contact = Contact(fresh.link_names[-1], rigid=True)
    fresh.simulate(state, state, dt=1e-3, steps=1, contacts=contact)
    compiled, ready = compiled_kernels(fresh), prepared_kernels("simulate")
    assert compiled <= ready
    assert rows(compiled) == rows(ready)  # preparation compiles every method of each row


def test_contact_dynamics_compiles_what_is_prepared(fresh: Robot) -> None:
    state = np.full(fresh.nv, 0.3)
    fresh.contact_dynamics(state, state, state, Contact(fresh.link_names[-1]))
    compiled, ready = compiled_kernels(fresh), prepared_kernels("contact_dynamics")
    assert compiled <= ready
    assert rows(compiled) == rows(ready)


def test_rheonomic_motions_compile_what_is_prepared(fresh: Robot) -> None:
    state = np.full(fresh.nv - 1, 0.3)
    fresh.simulate_rheonomic({fresh.joint_names[0]: lambda t: (0.0, 0.0, 0.0)}, state, state, dt=1e-3, steps=1)
    assert compiled_kernels(fresh) == prepared_kernels("simulate_rheonomic")


def test_control_is_the_default(fresh: Robot) -> None:
    fresh.prepare()
    assert compiled_kernels(fresh) == prepared_kernels("control")
    assert set(PURPOSES["control"]) == {name for name, row in QUERIES.items() if row.control}


def test_a_query_by_its_name(fresh: Robot) -> None:
    fresh.prepare(["forward_dynamics", "energy"])
    assert compiled_kernels(fresh) == {"forward_dynamics-articulated", "forward_dynamics-mass_matrix", "energy"}


def test_a_name_that_is_none(fresh: Robot) -> None:
    with pytest.raises(InvalidArgumentError, match=naming("'verfy'", "'verify'")):
        fresh.prepare(["verfy"])
    with pytest.raises(InvalidArgumentError, match="found 'verfy'"):
        ServerSettings(prepare=["verfy"])


@pytest.mark.parametrize(
    ("prepare", "purposes"), [(True, list(PURPOSES)), (False, []), (["control", "energy"], ["control", "energy"])]
)
def test_what_a_server_prepares(prepare: bool | list[str], purposes: list[str]) -> None:
    assert ServerSettings(prepare=prepare).purposes == purposes
