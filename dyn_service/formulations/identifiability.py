"""The base parameters of a robot: the combinations of its dynamic parameters on which its efforts depend.

    tau = Y theta = Y_b theta_b,    theta_b = K theta

No motion identifies the parameter of a column of Y that at all states is zero or a sum of multiples of the columns
before it. Such columns are found from Y at random states, by Gram-Schmidt orthogonalisation of its columns in their
order, each scaled to length 1: a column is dependent if its part that is orthogonal to the columns before it vanishes.
Y_b consists of the independent columns, and the rows of K contain what the dependent ones add to them. Since links
inward of a joint precede those outward, parameters of a link that cannot be identified are added to links inward of it.

Source: M. Gautier, 'Numerical Calculation of the Base Inertial Parameters of Robots', 1991.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dyn_service.api.queries import Array, RobotQueries
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.model.parameters import LINEAR

ROWS_PER_PARAMETER = 3
"""Rows of Y at random states for each parameter."""

INDEPENDENT, DEPENDENT = 1e-6, 1e-10
"""Length of the orthogonal part of a column above which it is independent, and below which it is dependent, relative to
the column, and of a column relative to the longest of its kind. Lengths between them are undecided. Rounding errors of
Y and of the sums are 1e-15 to 1e-12.
"""


@dataclass(frozen=True, eq=False)
class BaseParameters:
    """Base parameters and their definition; `len` is their number, the rank of Y.

    names: what each is, `link2.Iyy + link3.Iyy + 0.4 link3.m`. columns: the columns of Y_b in Y. combinations: K,
    (nb, nt). parameters: the names of theta, (nt,). smallest, largest: the relative lengths of the shortest independent
    and the longest dependent column; no other length is between them.
    """

    names: tuple[str, ...]
    columns: tuple[int, ...]
    combinations: Array
    parameters: tuple[str, ...]
    smallest: float
    largest: float

    def __len__(self) -> int:
        return len(self.columns)


def base_parameters(robot: RobotQueries, *, seed: int = 0, threshold: float | None = None) -> BaseParameters:
    """Returns the base parameters of a robot, in this process or of a server.

    robot: gravity is its own. seed: selects the random states. threshold: relative length above which a column is
    independent, from 1e-10 to 1; None refuses columns between `DEPENDENT` and `INDEPENDENT`.

    Raises:
        InvalidArgumentError: The threshold is out of its range.
        FailedPreconditionError: A column can neither be called dependent nor independent; the message names it. Or the
            robot has closed loops.
    """
    if robot.description.loop_joints:
        raise FailedPreconditionError(
            f"base_parameters has no answer for robot '{robot.name}': at random states its loops are open; stack "
            "inverse_dynamics_regressor at states of assemble and independent_motion instead"
        )
    if threshold is not None and not DEPENDENT <= threshold <= 1.0:
        text = f"threshold must be a number from {DEPENDENT:g} to 1, or None, found {threshold!r}"
        raise InvalidArgumentError(text, path="threshold")
    smallest = DEPENDENT if threshold is None else threshold
    parameters = robot.dynamic_parameters()
    states = math.ceil(ROWS_PER_PARAMETER * len(parameters.parameters) / max(robot.nv, 1)) + 1
    q = np.stack([np.asarray(robot.random_configuration(seed=seed + k)) for k in range(states)])
    v, a = np.random.default_rng(seed).uniform(-1.0, 1.0, (2, states, robot.nv))
    Y = np.reshape(robot.inverse_dynamics_regressor(q, v, a).regressor, (-1, len(parameters.parameters)))
    length = np.linalg.norm(Y, axis=0)
    kinds = np.array([_kind(name) for name in parameters.parameters])
    of_kind = np.array([length[kinds == kind].max() for kind in kinds])
    # 1 instead of a length of 0: such columns are zero, and dependent.
    share = length / np.where(of_kind > 0.0, of_kind, 1.0)
    scaled_Y = Y / np.where(length > 0.0, length, 1.0)
    columns, parts = _independent(scaled_Y, share, smallest)
    undecided = [k for k, part in enumerate(parts) if DEPENDENT < part < INDEPENDENT]
    if undecided and threshold is None:
        k = undecided[0]
        raise FailedPreconditionError(
            f"parameter '{parameters.parameters[k]}' of robot '{robot.name}' is nearly without effect, or nearly a "
            f"combination of those before it: the relative length of what it adds is {parts[k]:.1e}, "
            f"expected at most {DEPENDENT:g} or at least {INDEPENDENT:g}; to decide it, give a threshold between them"
        )
    K: Array = np.asarray(np.linalg.lstsq(scaled_Y[:, columns], scaled_Y, rcond=None)[0], dtype=np.float64)
    K[(np.abs(K) < smallest) | (share <= smallest)] = 0.0
    K *= length / length[columns, None]
    K[:, columns] = np.eye(len(columns))
    dependent = [part for k, part in enumerate(parts) if k not in columns]
    return BaseParameters(
        tuple(_name(row, parameters.parameters, column) for row, column in zip(K, columns, strict=True)),
        tuple(columns),
        K,
        parameters.parameters,
        min((parts[k] for k in columns), default=math.inf),
        max(dependent, default=0.0),
    )


def _kind(parameter: str) -> str:
    """Returns the kind of a parameter: those of one kind have the same unit, except at prismatic joints."""
    number = parameter.rpartition(".")[2]
    return number if number in LINEAR else number[0]


def _independent(columns: Array, share: Array, smallest: float) -> tuple[list[int], list[float]]:
    """Returns the independent columns, and of all columns the relative length of their part orthogonal to those before.

    columns: of length 1. share: the length that they had, relative to the longest of their kind. smallest: the largest
    length of a dependent column.
    """
    basis = np.zeros((len(columns), 0))
    pivot_columns: list[int] = []
    lengths: list[float] = []
    for k, part in enumerate(columns.T):
        # Twice, because rounding leaves a part along the basis the first time.
        for _ in range(2):
            part = part - basis @ (basis.T @ part)
        length = float(np.linalg.norm(part))
        lengths.append(min(length, float(share[k])))
        if lengths[-1] > smallest:
            pivot_columns.append(k)
            basis = np.column_stack([basis, part / length])
    return pivot_columns, lengths


def _name(row: Array, parameters: tuple[str, ...], column: int) -> str:
    """Returns a sum: the independent parameter, then the others with their factors."""
    text = parameters[column]
    for k in np.flatnonzero(row):
        if k != column:
            factor = "" if math.isclose(abs(row[k]), 1.0, rel_tol=1e-9) else f"{abs(row[k]):.6g} "
            text += f" {'-' if row[k] < 0.0 else '+'} {factor}{parameters[k]}"
    return text
