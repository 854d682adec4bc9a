"""The functions that answer the rows of long computations.

They are above the table (`api.queries`) and import NumPy code of simulations and formulations, so each row's functions
are imported when the row is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

from dyn_service.api.queries import COMPUTATIONS, Computation


class Functions(NamedTuple):
    """The functions of a row.

    run: computes the answer of a call, from the robot, if the row needs one, and the method's arguments. cost: predicts
    the cost of a request, from sizes, inputs and options. part: answers one of the requests into which a client divides
    a call, from robot, inputs, options and a progress callback, with outputs by name; None: `run` does. The server
    keeps no state between requests, so a caller cancels by sending no further request.
    """

    run: Callable[..., Any]
    cost: Callable[..., Any]
    part: Callable[..., Mapping[str, Any]] | None = None


def _verify() -> Functions:
    from dyn_service.formulations import cost, verification

    return Functions(verification.residuals, cost.verify)


def _simulate() -> Functions:
    from dyn_service.simulation import cost, parts
    from dyn_service.simulation.simulate import simulate

    return Functions(simulate, cost.simulate, parts.simulated)


def _simulate_rheonomic() -> Functions:
    from dyn_service.simulation import cost, parts, rheonomic

    return Functions(rheonomic.simulate_rheonomic, cost.simulate_rheonomic, parts.simulated_rheonomic)


def _contact_dynamics() -> Functions:
    from dyn_service.simulation import cost
    from dyn_service.simulation.contact import supports

    return Functions(supports.contact_dynamics, cost.contact_dynamics)


def _constraint_force_causes() -> Functions:
    from dyn_service.formulations import force_causes

    return Functions(force_causes.constraint_force_causes, force_causes.cost)


def _ground_reactions() -> Functions:
    from dyn_service.simulation.contact import ground_reactions

    return Functions(ground_reactions.ground_reactions, ground_reactions.cost)


def _of_loops(name: str) -> Functions:
    from dyn_service.engine.loops import computations

    return Functions(getattr(computations, name), computations.cost)


def _segment_inverse_dynamics() -> Functions:
    from dyn_service.formulations import cost, segments

    return Functions(segments.inverse_dynamics, cost.segment_inverse_dynamics)


def _segment_matrices() -> Functions:
    from dyn_service.formulations import cost, segments

    return Functions(segments.matrices, cost.segment_matrices)


_IMPORTS: Mapping[str, Callable[[], Functions]] = {
    "verify": _verify,
    "simulate": _simulate,
    "simulate_rheonomic": _simulate_rheonomic,
    "contact_dynamics": _contact_dynamics,
    "constraint_force_causes": _constraint_force_causes,
    "ground_reactions": _ground_reactions,
    "loop_error": partial(_of_loops, "loop_error"),
    "assemble": partial(_of_loops, "assemble"),
    "independent_motion": partial(_of_loops, "independent_motion"),
    "segment_inverse_dynamics": _segment_inverse_dynamics,
    "segment_matrices": _segment_matrices,
}


def functions_of(row: Computation) -> Functions:
    """Returns the functions of a row, imported on first use."""
    return _functions(row.name)


@cache
def _functions(name: str) -> Functions:
    return _IMPORTS[name]()


def load(names: Iterable[str]) -> None:
    """Imports the functions of these computations, so that their first calls need not; ignores other names."""
    for name in names:
        if name in COMPUTATIONS:
            functions_of(COMPUTATIONS[name])
