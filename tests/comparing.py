"""Comparisons with an oracle whose failures name robot, state, term and joint, and the formulation that disagrees.

`assert_close` names the term, the state and the entry. For any failure in the folders of EXPLAINED, the hook in
tests/conftest.py adds `explanation`: the robot and the state that the failing functions have, and what `Robot.verify`
finds there. If all formulations agree, the oracle, its model or the conversion between the two is the suspect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dyn_service.api.queries import COMPUTATIONS, QUERIES
from dyn_service.engine.robot import Robot
from dyn_service.formulations.verification import survey

EXPLAINED = ("oracle", "theory")
AGREE = 1e-9
"""Residuals of `verify` below this are rounding; `dyn check` has the same bound."""


def relative_errors(ours: np.ndarray, reference: np.ndarray, min_scale: float = 1e-12) -> np.ndarray:
    """Each state's error over that state's largest entry, or over `min_scale` where that is larger. Axis 0: states."""
    assert ours.shape == reference.shape
    if not reference.size:
        return np.zeros(len(reference))
    scale = np.abs(reference).reshape(len(reference), -1).max(axis=1)
    error = np.abs(ours - reference).reshape(len(reference), -1).max(axis=1)
    return error / np.maximum(scale, max(min_scale, 1e-12))


def relative_error(ours: np.ndarray, reference: np.ndarray) -> float:
    """The worst state's."""
    return float(relative_errors(ours, reference).max())


def assert_close(
    term: str,
    ours: Any,
    reference: Any,
    tolerance: float | np.ndarray,
    robot: Robot,
    q: np.ndarray,
    v: np.ndarray | None = None,
    a: np.ndarray | None = None,
    *,
    min_scale: float = 1e-12,
) -> None:
    """Fails unless each state's relative error is at most the tolerance, one number or one of each state.

    term: what is compared, as `place` takes it. ours, reference: (states, ...), or (...) where q is one state.
    """
    ours, reference = np.asarray(ours, dtype=float), np.asarray(reference, dtype=float)
    if np.ndim(q) == 1:
        ours, reference = ours[None], reference[None]
        q, v, a = (None if x is None else x[None] for x in (q, v, a))  # type: ignore[assignment]
    assert ours.shape == reference.shape, f"{term} of '{robot.name}': {ours.shape}, the reference {reference.shape}"
    errors = relative_errors(ours, reference, min_scale)
    shares = errors / np.broadcast_to(tolerance, errors.shape)
    if (shares <= 1.0).all():  # false for NaN too
        return
    state = int(np.argmax(np.where(np.isnan(shares), np.inf, shares)))
    limit = float(np.broadcast_to(tolerance, errors.shape)[state])
    difference = np.abs(ours[state] - reference[state])
    entry = np.unravel_index(np.argmax(np.where(np.isnan(difference), np.inf, difference)), difference.shape)
    # The frame is what `explanation` reads: it is to have this state, not all of them.
    q, v, a = (None if x is None else x[state] for x in (q, v, a))  # type: ignore[assignment]
    raise AssertionError(
        f"{term} of '{robot.name}', state {state} of {len(errors)}, {place(robot, term, difference.shape, entry)}: "
        f"{ours[state][entry]:.6g}, the reference has {reference[state][entry]:.6g}; "
        f"relative error {errors[state]:.2g}, at most {limit:.2g} is allowed"
    )


def assert_formulations_agree(robot: Robot, tolerance: float, states: int) -> dict[str, Any]:
    """Returns `survey`; fails unless its residuals are below the tolerance, with the names of those that are not."""
    report = survey(robot, states=states)
    wrong = {name: f"{residual:.2g}" for name, residual in report["residuals"].items() if not residual < tolerance}
    assert not wrong, f"formulations of '{robot.name}' disagree by {tolerance:g} or more: {wrong}"
    return report


def place(robot: Robot, term: str, shape: tuple[int, ...], entry: Iterable[Any]) -> str:
    """Names an entry of a query's output by joints and links, where the output has an entry for each of them.

    term: `QUERY` or `QUERY.OUTPUT`, and after a comma what else distinguishes it.
    """
    query, _, output = term.partition(",")[0].partition(".")
    row = QUERIES.get(query) or COMPUTATIONS.get(query)
    specs = {} if row is None else row.outputs
    symbols = specs[output].shape if output in specs else next((spec.shape for spec in specs.values()), ())
    names = {
        "nv": ("joint", robot.configuration.velocity_names),
        "nq": ("joint", robot.configuration.position_names),
        "nj": ("joint", robot.all_joint_names),
        "nl": ("link", robot.link_names),
    }
    parts = []
    for axis, (size, k) in enumerate(zip(shape, entry, strict=True)):
        kind, labels = names.get(symbols[axis] if len(symbols) == len(shape) else "", ("", ()))
        parts.append(f"{kind} '{labels[k]}'" if len(labels) == size else str(k))
    return f"entry ({', '.join(parts)})" if parts else "the value"


def explanation(frames: Iterable[Mapping[str, Any]]) -> str | None:
    """Returns what is known of the state at which a test failed; None if no frame has a robot and a state.

    frames: the local variables of the failing functions, the innermost first.
    """
    for variables in frames:
        robots = [value for value in variables.values() if isinstance(value, Robot)]
        for robot in robots:
            state = _state(robot, variables)
            if state is not None:
                return f"robot '{robot.name}', joints {', '.join(robot.joint_names)}\n{_verified(robot, *state)}"
    return None


def _state(robot: Robot, variables: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    q, v, a = (variables.get(name) for name in "qva")
    if not isinstance(q, np.ndarray) or q.shape[-1:] != (robot.nq,):
        return None
    lead = q.shape[:-1]
    v, a = (
        x if isinstance(x, np.ndarray) and x.shape == (*lead, robot.nv) else np.zeros((*lead, robot.nv)) for x in (v, a)
    )
    return q, v, a


def _verified(robot: Robot, q: np.ndarray, v: np.ndarray, a: np.ndarray) -> str:
    try:
        residuals = {name: np.atleast_1d(residual) for name, residual in robot.verify(q, v, a).items()}
    except Exception as error:  # the robot may be what is broken
        return f"{_printed(q, v, a)}\nverify: {type(error).__name__}: {error}"
    worst = max(residuals, key=lambda name: np.nan_to_num(residuals[name], nan=np.inf).max(initial=0.0))
    if q.ndim > 1:
        index = np.unravel_index(int(np.argmax(np.nan_to_num(residuals[worst], nan=np.inf))), residuals[worst].shape)
        q, v, a = q[index], v[index], a[index]
    wrong = {name: float(np.max(x, initial=0.0)) for name, x in residuals.items() if not (x < AGREE).all()}
    verdict = ", ".join(f"{name} {residual:.2g}" for name, residual in wrong.items())
    largest = float(np.max(residuals[worst], initial=0.0))
    return f"{_printed(q, v, a)}\nverify: {verdict or f'all formulations agree, to {largest:.1g}'}"


def _printed(q: np.ndarray, v: np.ndarray, a: np.ndarray) -> str:
    return "\n".join(f"{name} = {np.asarray(x).tolist()}" for name, x in zip("qva", (q, v, a), strict=True))
