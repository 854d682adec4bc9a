"""Drop or change a term of an equation, and the comparison with Pinocchio must turn red.

Each case edits one expression in memory and evaluates the queries in numbers (`in_numbers.py`, `many_in_numbers.py`,
`passive_in_numbers.py`) until one is wrong. `terms.toml` lists the terms of the documents; `qa/mutations` puts every
small fault there is into every module.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from tests.terms import many_in_numbers, passive_in_numbers, steps_in_numbers
from tests.terms.edits import Edit, EditError, edited
from tests.terms.in_numbers import Case, Numbers, difference

Cases = Callable[[Mapping[str, ModuleType]], dict[str, Case]]


def one_way(modules: Mapping[str, ModuleType]) -> dict[str, Case]:
    """Joints with one way to move each."""
    return Numbers(modules).cases()


CASES = {
    "one way": one_way,
    "several ways": many_in_numbers.cases,
    "passive": passive_in_numbers.cases,
    "followers": passive_in_numbers.mimicking_cases,
    "locks": passive_in_numbers.locked_cases,
    "steps": steps_in_numbers.cases,
}

TERMS: dict[str, dict[str, dict[str, list[str]]]] = tomllib.loads(
    Path(__file__).with_name("terms.toml").read_text(encoding="utf-8")
)
"""By the cases that show them, by module, by name: function, expression, what becomes of it."""

EDITS = [
    pytest.param(Edit(module, *edit), CASES[kind], id=f"{kind}, {module} {name}")
    for kind, edits_by_module in TERMS.items()
    for module, edits in edits_by_module.items()
    for name, edit in edits.items()
]


@pytest.mark.parametrize("cases", CASES.values(), ids=CASES)
def test_as_written_all_agree(cases: Cases) -> None:
    with edited() as modules:
        errors = {name: difference(case) for name, case in cases(modules).items()}
    # Rounding of both sides; a term left out differs by more than 1e-6, so that nothing lies between.
    assert {name: error for name, error in errors.items() if not error < 1e-10} == {}


_DETECTING_CASES: dict[str, list[str]] = {}
"""By module, the cases that detected an edit, latest first; they are tried first for the next edit."""


def _words(edit: Edit) -> tuple[str, ...]:
    """What the cases are called that an edit is most likely seen in."""
    function = edit.function.rpartition(".")[2].strip("_")
    return function, edit.module.rpartition(".")[2], *_SEEN_IN.get(edit.module, ())


_SEEN_IN = {
    "dynamics.derivatives": ("derivatives",),
    "dynamics.hessians": ("hessian",),
    "dynamics.motion_derivatives": ("derivatives of joint loads",),
    "dynamics.midpoint": ("implicit midpoint, A and B",),
    "dynamics.coriolis": ("coriolis, C v", "coriolis"),
    "dynamics.regressors": ("regressor",),
    "dynamics.hamilton": ("momentum", "flow", "energy"),
    "dynamics.task_space": ("point_local", "point"),
    "dynamics.body_frame": ("recursion",),
    "dynamics.operators": ("newton_euler_blocks",),
    "dynamics.newton_euler": ("newton_euler_blocks", "inverse_dynamics"),
    "dynamics.passive": ("energy, kinetic", "mass_matrix", "passive_forces"),
    "dynamics.spatial": ("mass_matrix", "forward_dynamics, articulated"),
    "dynamics.kinematics": ("projected", "equation_terms, M"),
    "simulation.integrators.implicit_midpoint": ("midpoint_step, momentum",),
    "dynamics.projected": ("terms",),
}


@pytest.mark.parametrize(("edit", "cases"), EDITS)
def test_without_the_term_they_do_not(edit: Edit, cases: Cases) -> None:
    detecting = _DETECTING_CASES.setdefault(edit.module, [])
    with edited(edit) as modules:
        case_table = cases(modules)
        try:
            likely = (name for word in _words(edit) for name in case_table if word in name)
            # The case that saw the last edit first: of hundreds of cases most edits then need one.
            for name in dict.fromkeys([*(name for name in detecting if name in case_table), *likely, *case_table]):
                if not difference(case_table[name]) < 1e-6:
                    detecting.insert(0, name)
                    return
        except (RuntimeError, ZeroDivisionError, KeyError, AssertionError):
            return  # CasADi refuses the shapes, an entry is missing, or it is asked of what it is not: red enough
    pytest.fail("no case detects it")


SOURCE = """
class Body:
    def load(self, a):
        return (self.m
                * a) + self.m * a  # twice

def load(m, a):
    return [m * a for a in (a, -a)]
"""


def _of_source(edit: Edit) -> str:
    return ast.unparse(edit.made_in(ast.parse(SOURCE)))


def test_an_edit_does_not_see_line_breaks() -> None:
    source = _of_source(Edit("m", "Body.load", "(self.m)*a", "0", times=2))
    assert "return 0 + 0" in source
    assert "m * a for a" in source


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (Edit("m", "load", "m * b", "0"), "m.load: 'm * b' occurs 0 times, expected 1"),
        (Edit("m", "Body.load", "self.m * a", "0"), "m.Body.load: 'self.m * a' occurs 2 times, expected 1"),
        (Edit("m", "load", "m * a", "m*a"), "m.load: 'm*a' is what stands there"),
        (Edit("m", "Body.loads", "m * a", "0"), "m has 0 functions Body.loads, expected 1"),
    ],
    ids=["nowhere", "twice", "the same", "no such function"],
)
def test_an_edit_that_does_not_fit_is_an_error(edit: Edit, message: str) -> None:
    with pytest.raises(EditError) as error:
        _of_source(edit)
    assert str(error.value) == message
