"""Every query in numbers against Pinocchio, each on its own: the equations themselves, before any kernel is compiled.

A second long, so it is what a changed sign or a dropped term meets first.
"""

from __future__ import annotations

import importlib

import pytest

from dyn_service.simulation.integrators import implicit_midpoint
from tests.terms import many_in_numbers, passive_in_numbers, steps_in_numbers
from tests.terms.in_numbers import Numbers, difference

MODULES = (
    "articulated",
    "body_frame",
    "constraint",
    "coriolis",
    "derivatives",
    "hamilton",
    "hessians",
    "integration",
    "kinematics",
    "mass_matrix",
    "midpoint",
    "motion_derivatives",
    "newton_euler",
    "operators",
    "passive",
    "projected",
    "regressors",
    "sensors",
    "sweeps",
    "task_space",
)
IMPORTED_MODULES = {name: importlib.import_module(f"dyn_service.dynamics.{name}") for name in MODULES}
IMPORTED_MODULES["implicit_midpoint"] = implicit_midpoint
CASES = {
    f"{name}, {'moving bodies' if welded else 'all links'}": case
    for welded in (False, True)
    for name, case in Numbers(IMPORTED_MODULES, welded=welded).cases().items()
}
CASES |= {f"{name}, joints of every type": case for name, case in many_in_numbers.cases(IMPORTED_MODULES).items()}
CASES |= {
    f"{name}, joints that do something": case for name, case in passive_in_numbers.cases(IMPORTED_MODULES).items()
}
CASES |= steps_in_numbers.cases(IMPORTED_MODULES)

BOUND = 1e-10
"""Of the largest entry: both sides' rounding, 1e-13 here, where the mass matrix has a condition number of 1e3."""


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_pinocchio(name: str) -> None:
    assert difference(CASES[name]) < BOUND
