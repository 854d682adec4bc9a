r"""Physically consistent parameters: those of possible links that fit an estimate best.

The mass distribution of a link has a pseudo-inertia, positive definite if the link is a body with volume,

    P = [ Sigma  h ]      Sigma = tr(I) / 2 e - I,  h = m c,  all about the link's origin
        [ h^T    m ]

With b the estimated values, C their covariance, and A the matrix from theta to b, the parameters are the minimum of

    (A theta - b)^T C^-1 (A theta - b) + sum_i |X_i - X_i0|^2 / s^2 + sum_k (y_k / y_k0 - 1)^2 / s^2

    subject to    X_i - margin_i e positive semidefinite,    y_k >= 0,        X_i = S_i^-1 P_i S_i^-T,  R_i = S_i S_i^T

in which X_i0 and y_k0 are the numbers of the robot's file, y the passive parameters, and |.| is Frobenius' norm. R_i is
the file's pseudo-inertia, in no direction flatter than `FLATTEST`; margin_i is less than `margin` for links that are
flatter in the file, but not less than a hundredth of it. So the file counts as one measurement of each number with the
relative standard error s (of armatures that are 0: `ARMATURE`). Where the data are precise they decide, and where they
say nothing the file does. The norm is that of the affine-invariant metric: it does not depend on units or on frames of
links, and it is the second order of the entropic divergence. Links without mass in the file have none here. The problem
is convex; Clarabel solves it as a conic program.

Sources: Traversaro, Brossette, Escande, Nori, 'Identification of Fully Physical Consistent Inertial Parameters using
Optimization on Manifolds', 2016; Wensing, Kim, Slotine, 'Linear Matrix Inequalities for Physically Consistent Inertial
Parameter Identification', 2018; Lee, Wensing, Park, 'Geometric Robot Dynamic Identification', 2020.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.model.parameters import COLUMNS, INERTIAL, LINEAR, ROWS, symmetric
from dyn_service.support.optional import load

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot
    from dyn_service.model.tree import Tree

FILE_ERROR = 1.0
"""Default relative standard error of the file's numbers: a link may well have twice its mass."""

MARGIN = 0.01
"""Default of the smallest eigenvalue of X: a link keeps a hundredth of the file's mass, and a tenth of its extents."""

ARMATURE = 10.0
"""Standard error of an armature that is 0 in the file, relative to the inertia that its joint moves: that of a geared
motor is some times as large.
"""

FLATTEST = 0.1
"""Smallest extent of R relative to its largest, so that a rod or a plate in the file may get a thickness."""

GAP = 1e-6
"""Largest duality gap, relative to the objective and at least to 1, the square of one standard error."""

_TOLERANCE = 1e-10
"""Tolerance of the solver; a result that only meets `GAP` is used too."""

_AT_BOUND = 1e-9
"""Smaller passive parameters (N m s/rad, N m, kg m^2, ..) are 0."""

_BINDS = 1e-3
"""Multiplier, in squares of standard errors, above which the bound of a link is active; others are some 1e-8."""

_WIDTH = len(INERTIAL)


@dataclass(frozen=True, eq=False)
class PhysicalParameters:
    """Parameters of possible links.

    theta: (nt,), those of `dynamic_parameters`. values: (n,), the estimated values that follow from them, and the other
    terms. misfit: (values - b)^T C^-1 (values - b), how far the constraints and the file pull them from the estimate,
    in squares of standard errors. change: (nl,), |X - X0| of each link, 0 where nothing differs. bounded: names of
    links at the margin, whose data alone give no possible link. repaired: names of links that are impossible in the
    file. gap: the duality gap relative to the objective.
    """

    theta: Array
    values: Array
    misfit: float
    change: Array
    bounded: tuple[str, ...]
    repaired: tuple[str, ...]
    gap: float


def pseudo_inertia(theta: Array) -> Array:
    """Returns the pseudo-inertias (..., 4, 4) of inertial parameters (..., 10), in the order of `INERTIAL`."""
    theta = np.asarray(theta, dtype=np.float64)
    inertia = symmetric(theta[..., 4:])
    P = np.empty((*theta.shape[:-1], 4, 4))
    P[..., :3, :3] = 0.5 * np.trace(inertia, axis1=-2, axis2=-1)[..., None, None] * np.eye(3) - inertia
    P[..., :3, 3] = P[..., 3, :3] = theta[..., 1:4]
    P[..., 3, 3] = theta[..., 0]
    return P


def inertial_parameters(P: Array) -> Array:
    """Returns the inertial parameters (..., 10) of pseudo-inertias (..., 4, 4)."""
    Sigma = P[..., :3, :3]
    inertia = np.trace(Sigma, axis1=-2, axis2=-1)[..., None, None] * np.eye(3) - Sigma
    return np.concatenate([P[..., 3, 3:], P[..., :3, 3], inertia[..., ROWS, COLUMNS]], axis=-1)


def central_moments(theta: Array) -> Array:
    """Returns the second moments (3, 3) kg m^2 about the centre of mass of inertial parameters (10,)."""
    h = theta[1:4]
    return np.asarray(pseudo_inertia(theta)[:3, :3] - np.outer(h, h) / theta[0])


def physical_parameters(
    robot: Robot,
    matrix: Array,
    values: Array,
    information: Array,
    *,
    file_error: float = FILE_ERROR,
    margin: float = MARGIN,
    theta: Array | None = None,
) -> PhysicalParameters:
    """Returns the parameters of possible links that are nearest to an estimate; the equations: `inertias.py`.

    matrix: A, (nb, nt), such as `combinations` of `base_parameters`. values: b, (n,), the estimates of A theta, then
    n - nb other terms, which are free. information: C^-1, (n, n). file_error: s. margin: smallest eigenvalue of X, from
    0 to 1. theta: (nt,), the numbers in the place of the file's. Parameters without a column in A keep them, and so do
    armatures of 0 that act like an inertia of links.

    Raises:
        InvalidArgumentError: A shape is wrong, or a number is out of its range or not finite.
        FailedPreconditionError: The links that move have no mass in the file; or the solver fails.
        MissingLibraryError: Clarabel is not installed.
    """
    names = robot.dynamic_parameters().parameters
    prior = np.asarray(robot.dynamic_parameters().theta if theta is None else theta, dtype=np.float64)
    matrix, values, information = (np.asarray(x, dtype=np.float64) for x in (matrix, values, information))
    _check(matrix, values, information, prior, len(names), file_error, margin)
    problem = _Problem.of(robot, matrix, values, information, prior, file_error)
    if not problem.links and not problem.passive:
        raise FailedPreconditionError(
            f"robot '{robot.name}': no link that moves has a mass in its file, so there is nothing to start from; give "
            "its links approximate masses and inertias"
        )
    margins = [float(np.clip(np.linalg.eigvalsh(x0)[0], 0.01 * margin, margin)) for x0 in problem.X0]
    z, forces, gap = _solved(problem, margins)
    y = z[10 * len(problem.links) :][: len(problem.passive)]
    y[y < _AT_BOUND] = 0.0  # the solver ends slightly inside or outside of a bound
    theta = problem.theta(z)
    residual = problem.root @ (problem.matrix @ z - problem.target)
    X = [_symmetric(x) for x in z[: 10 * len(problem.links)].reshape(-1, 10)]
    change = np.zeros(len(problem.all_links))
    change[problem.links] = [np.linalg.norm(x - x0) for x, x0 in zip(X, problem.X0, strict=True)]
    result = problem.matrix @ z + problem.offset
    bounded = tuple(problem.all_links[i] for i, force in zip(problem.links, forces, strict=True) if force > _BINDS)
    return PhysicalParameters(theta, result, float(residual @ residual), change, bounded, problem.repaired, gap)


def _check(
    matrix: Array, values: Array, information: Array, prior: Array, nt: int, file_error: float, margin: float
) -> None:
    n = len(values)
    if matrix.ndim != 2 or matrix.shape[1] != nt or len(matrix) > n:
        raise InvalidArgumentError(
            f"matrix must have the shape (at most {n}, {nt}), a column for each parameter, found {matrix.shape}",
            path="matrix",
        )
    if values.shape != (n,) or information.shape != (n, n):
        raise InvalidArgumentError(
            f"information must have the shape ({n}, {n}), found {information.shape}", path="information"
        )
    for name, array in {"matrix": matrix, "values": values, "information": information, "theta": prior}.items():
        if not np.isfinite(array).all():
            raise InvalidArgumentError(f"{name} must have finite numbers", path=name)
    if prior.shape != (nt,):
        raise InvalidArgumentError(f"theta must have the shape ({nt},), found {prior.shape}", path="theta")
    if not (math.isfinite(file_error) and file_error > 0.0):
        raise InvalidArgumentError(f"file_error must be a positive number, found {file_error!r}", path="file_error")
    if not 0.0 < margin < 1.0:
        raise InvalidArgumentError(f"margin must be a number between 0 and 1, found {margin!r}", path="margin")


@dataclass(frozen=True, eq=False)
class _Problem:
    """The problem in z: svec(X) of the links `links`, then passive parameters, then other terms.

    matrix, target: the data are root (matrix z - target), with target = b - offset. centre, weight: of the pull, per
    entry of z. groups: entries of theta of each passive parameter.
    """

    all_links: Sequence[str]
    links: list[int]
    passive: list[list[int]]
    X0: list[Array]
    maps: list[Array]
    prior: Array
    matrix: Array
    offset: Array
    target: Array
    root: Array
    centre: Array
    weight: Array
    repaired: tuple[str, ...]

    @classmethod
    def of(cls, robot: Robot, A: Array, values: Array, information: Array, prior: Array, file_error: float) -> _Problem:
        tree = robot.tree
        blocks = [slice(_WIDTH * i, _WIDTH * (i + 1)) for i in range(len(tree))]
        links = [i for i, block in enumerate(blocks) if A[:, block].any() and prior[block][0] > 0.0]
        root = _root(information)
        of_links = A[:, [k for i in links for k in range(blocks[i].start, blocks[i].stop)]]
        scales = _passive_scales(robot, prior)
        # Those on which the data depend. An armature that acts like an inertia of links, as that of a first joint, is
        # one of them if the file has it.
        passive = [
            group
            for group in _groups(tree)
            if (root[:, : len(A)] @ A[:, group]).any()
            and (prior[group[0]] or not _is_combination(of_links, A[:, group].sum(axis=1)))
        ]
        X0, maps, repaired = [], [], []
        for i in links:
            S = _scale(prior[blocks[i]])
            inverse = np.linalg.inv(S)
            X = inverse @ pseudo_inertia(prior[blocks[i]]) @ inverse.T
            eigenvalues, axes = np.linalg.eigh(X)
            # beyond rounding: a point mass or a rod in the file is possible, and its X has eigenvalues of 0
            if eigenvalues[0] < -1e-9 * eigenvalues[-1]:
                repaired.append(tree.links[i])
            X0.append((axes * np.maximum(eigenvalues, 0.0)) @ axes.T)
            maps.append(np.stack([inertial_parameters(S @ E @ S.T) for E in _BASIS], axis=1))
        other_terms = len(values) - len(A)
        columns = [A[:, blocks[i]] @ M for i, M in zip(links, maps, strict=True)]
        columns += [A[:, group].sum(axis=1)[:, None] for group in passive]
        of_theta = np.hstack(columns) if columns else np.zeros((len(A), 0))
        matrix = np.block(
            [
                [of_theta, np.zeros((len(A), other_terms))],
                [np.zeros((other_terms, of_theta.shape[1])), np.eye(other_terms)],
            ]
        )
        fixed = prior.copy()
        for i in links:
            fixed[blocks[i]] = 0.0
        fixed[[k for group in passive for k in group]] = 0.0
        offset = np.concatenate([A @ fixed, np.zeros(other_terms)])
        y0 = np.array([prior[group[0]] for group in passive])
        centre = np.concatenate([*map(_svec, X0), y0, values[len(A) :]])
        # Without a scale, a millionth of the data's weight decides.
        by_data = 1e-6 * np.square(root @ matrix).sum(axis=0)[10 * len(links) :][: len(y0)]
        scale = np.array([scales[group[0]] for group in passive])
        of_y = np.where(scale > 0.0, 1.0 / np.square(file_error * np.where(scale > 0.0, scale, 1.0)), by_data)
        weight = np.concatenate([np.full(10 * len(links), file_error**-2), of_y, np.zeros(other_terms)])
        return cls(
            tree.links, links, passive, X0, maps, prior, matrix, offset, values - offset, root, centre, weight,
            tuple(repaired),
        )  # fmt: skip

    def theta(self, z: Array) -> Array:
        """Returns theta, (nt,)."""
        theta = self.prior.copy()
        for k, (i, M) in enumerate(zip(self.links, self.maps, strict=True)):
            theta[_WIDTH * i : _WIDTH * (i + 1)] = M @ z[10 * k : 10 * (k + 1)]
        for y, group in zip(z[10 * len(self.links) :], self.passive, strict=False):
            theta[group] = y
        return theta


def _is_combination(columns: Array, column: Array) -> bool:
    """Returns whether a column is a combination of others."""
    rest = column - columns @ np.linalg.lstsq(columns, column, rcond=None)[0]
    return bool(np.linalg.norm(rest) <= 1e-9 * np.linalg.norm(column))


def _groups(tree: Tree) -> list[list[int]]:
    """Returns the entries of theta of each passive parameter: a joint has one number for all its velocities."""
    first = {name: _WIDTH * len(tree) + part * tree.nr for part, name in enumerate(LINEAR)}
    return [
        [first[name] + k for k in range(tree.nr)[tree.in_rates[i]]]
        for name in LINEAR
        for i in tree.movable
        if name in ("damping", "friction") or tree.inboard[i].refused(name) is None
    ]


def _passive_scales(robot: Robot, prior: Array) -> Array:
    """Returns one standard error of the file's passive parameters, in theta's order: the number itself; of an armature
    that is 0, `ARMATURE` times the inertia that its joint moves. 0: nothing is known.
    """
    tree, scales = robot.tree, prior.copy()
    first = _WIDTH * len(tree) + LINEAR.index("armature") * tree.nr
    inertia = np.diag(np.asarray(robot.mass_matrix(robot.neutral())))
    for i in tree.movable:
        for k in range(tree.nr)[tree.in_rates[i]]:
            scales[first + k] = prior[first + k] or ARMATURE * inertia[tree.in_v[i]].max(initial=0.0)
    return scales


def _scale(theta: Array) -> Array:
    """Returns S, (4, 4), with S S^T = R the file's pseudo-inertia, in no direction flatter than `FLATTEST`."""
    m, c = theta[0], theta[1:4] / theta[0]
    eigenvalues, axes = np.linalg.eigh(central_moments(theta))
    # 1 mm of a point mass
    largest = max(eigenvalues[-1], 1e-6 * m)
    S = np.zeros((4, 4))
    S[:3, :3] = axes * np.sqrt(np.maximum(eigenvalues, FLATTEST**2 * largest))
    S[:, 3] = math.sqrt(m) * np.append(c, 1.0)
    return S


_UPPER = [(i, j) for j in range(4) for i in range(j + 1)]
"""Entries of the upper triangle, column by column, the order of Clarabel's cone."""

_FACTOR = np.array([1.0 if i == j else math.sqrt(2.0) for i, j in _UPPER])


def _svec(X: Array) -> Array:
    """Returns the upper triangle as a vector whose length is Frobenius' norm."""
    return np.asarray(np.array([X[place] for place in _UPPER]) * _FACTOR)


def _symmetric(x: Array) -> Array:
    """Returns the matrix of `_svec`."""
    X = np.zeros((4, 4))
    for (i, j), value in zip(_UPPER, x / _FACTOR, strict=True):
        X[i, j] = X[j, i] = value
    return X


_BASIS = [_symmetric(row) for row in np.eye(10)]


def _root(information: Array) -> Array:
    """Returns U, (n, n), with U^T U = C^-1."""
    size = np.sqrt(np.maximum(np.diag(information), 0.0))
    # of correlations, because the units of values differ by many powers of ten
    unit = np.where(size > 0.0, size, 1.0)
    eigenvalues, axes = np.linalg.eigh(0.5 * (information + information.T) / np.outer(unit, unit))
    if len(eigenvalues) and eigenvalues[0] < -1e-6 * max(eigenvalues[-1], 0.0):
        raise InvalidArgumentError("information must be positive semidefinite", path="information")
    return np.asarray(np.sqrt(np.maximum(eigenvalues, 0.0))[:, None] * axes.T * unit)


def _solved(problem: _Problem, margins: Sequence[float]) -> tuple[Array, Array, float]:
    """Returns z, the trace of each link's multiplier, and the relative duality gap."""
    from scipy import sparse

    clarabel = load("the identification of physically consistent inertias", "clarabel")
    n, rows = len(problem.centre), len(problem.root)
    bounds, count = 10 * len(problem.links), len(problem.passive)
    # The residual is a variable, because the square of `root` would lose half the digits.
    P = sparse.diags(np.concatenate([problem.weight, np.ones(rows)])).tocsc()
    linear = np.concatenate([-problem.weight * problem.centre, np.zeros(rows)])
    data = sparse.csc_matrix(np.hstack([problem.root @ problem.matrix, -np.eye(rows)]))
    inner = sparse.hstack([-sparse.eye(bounds + count, n), sparse.csc_matrix((bounds + count, rows))])
    right = np.concatenate([
        problem.root @ problem.target,
        *(-_svec(margin * np.eye(4)) for margin in margins),
        np.zeros(count),
    ])  # fmt: skip
    cones = [clarabel.ZeroConeT(rows), *(clarabel.PSDTriangleConeT(4) for _ in problem.links)]
    cones += [clarabel.NonnegativeConeT(count)] if count else []
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = _TOLERANCE
    settings.reduced_tol_gap_abs = settings.reduced_tol_gap_rel = settings.reduced_tol_feas = GAP
    solution = clarabel.DefaultSolver(P, linear, sparse.vstack([data, inner]).tocsc(), right, cones, settings).solve()
    z = np.array(solution.x)[:n]
    # the constant that makes the objective the sum of squares in the module's docstring, halved
    objective = solution.obj_val + 0.5 * float(problem.weight @ np.square(problem.centre))
    gap = abs(solution.obj_val - solution.obj_val_dual) / max(1.0, abs(objective))
    if str(solution.status) not in ("Solved", "AlmostSolved") or not np.isfinite(z).all() or not gap <= GAP:
        raise FailedPreconditionError(
            f"physical_parameters: the solver ends with the status {solution.status} and a relative duality gap of "
            f"{gap:.1e}, expected at most {GAP:g}"
        )
    multipliers = np.array(solution.z)[rows : rows + bounds].reshape(-1, 10)
    return z, multipliers @ _svec(np.eye(4)), gap
