"""Robust weighted least squares of several joints, with standard errors that hold for correlated noise.

    minimise  sum over rows t, joints j of rho(e_tj / s_j) + (beta - beta_0)^T P (beta - beta_0) / 2,  e = y - X beta

rho is Huber's function, s_j the noise of joint j, estimated with the parameters until both stand still (iteratively
reweighted least squares). P is the information of what was known before. With psi = rho'(e / s) and m_j the share of
joint j's rows that are no outliers, the covariance of the estimate is

    A^-1 B A^-1,   A = sum_j m_j / s_j^2 X_j^T X_j + P,
    B = sum over lags l, joints i, j of Gamma_ij(l) / (s_i s_j) sum_t X_i(t)^T X_j(t + l) + c^2 P

Gamma(l) is the autocovariance of psi, weighted by Bartlett's window, so that noise that is correlated over time or
between joints counts for as few samples as it is worth. The window's length is that of Andrews (1991). Both s_j and
Gamma are divided by the share of freedom that the fit left to the residuals of the joint. c is `CAUTION`.

Source: P. Huber, 'Robust Statistics', 1981; W. Newey, K. West, 'A Simple, Positive Semi-Definite, Heteroskedasticity
and Autocorrelation Consistent Covariance Matrix', 1987.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.queries import Array

HUBER = 1.345
"""Residuals beyond this many standard deviations weigh less: 95 percent of the efficiency for normal noise."""

MEDIAN_TO_DEVIATION = 1.4826
"""Standard deviation of normal noise relative to the median of its magnitude."""

CAUTION = 3.0
"""What was known before may be wrong by this factor more than P says, where the data do not show it: in a SCARA whose
file had one mass off by 12 percent and else was right, the standard error of this mass was 3.5 times too small.
"""

LARGEST_PRODUCT = 250_000
"""Multiplications up to which OpenBLAS uses one thread (65536 times GEMM_MULTITHREAD_THRESHOLD, 4)."""

ITERATIONS, CONVERGED = 50, 1e-3
"""Of the reweighting; it ends when no noise changes by more than this share."""


LEAST_NOISE, LEAST_EFFORT = 1e-6, 1e-2
"""Least noise of a joint, relative to its largest effort, or to a hundredth of that of all joints: sensors are no
better. In an exact recording smaller noise is the rounding of filters, and the information spans so many powers of ten
that its smaller part is rounding too.
"""


@dataclass(frozen=True, eq=False)
class Regression:
    """estimate (p,); covariance (p, p); posterior (p, p): A^-1; prior_scale: of P to the prior; information (p, p): A
    without P; noise (joints,); residual (m, joints), NaN in rows that were not used; correlated_rows: length of the
    window of autocovariances. inflation (joints,): variance of a mean of residuals, relative to independent ones.
    """

    estimate: Array
    covariance: Array
    posterior: Array
    prior_scale: float
    information: Array
    noise: Array
    residual: Array
    correlated_rows: int
    inflation: Array

    def without(self, index: int) -> Regression:
        """Returns the regression with a parameter held at zero, without a new fit: conditional on it."""
        gain = self.covariance[:, index] / self.covariance[index, index]
        estimate = self.estimate - gain * self.estimate[index]
        covariance = self.covariance - np.outer(gain, self.covariance[index])
        covariance[index], covariance[:, index] = 0.0, 0.0
        return replace(self, estimate=estimate, covariance=covariance)

    def with_error(self, X: Array, mask: NDArray[np.bool_], error: Array) -> Regression:
        """Returns the regression whose covariance contains the effect of errors of y (m, joints) that are no noise.

        The vector by which they move the estimate counts as one standard error.
        """
        inliers = (np.abs(self.residual) < HUBER * self.noise).sum(axis=0) / np.maximum(
            np.isfinite(self.residual).sum(axis=0), 1
        )
        weighted_error = np.where(mask, error, 0.0) * inliers / self.noise**2
        move = self.posterior @ np.einsum("tjp,tj->p", X, weighted_error)
        return replace(self, covariance=self.covariance + np.outer(move, move))


def solve(
    X: Array, y: Array, mask: NDArray[np.bool_], prior: Array, prior_mean: Array, start: Regression | None = None
) -> Regression:
    """Returns the regression of y (m, joints) on X (m, joints, p) in the rows of a mask (m, joints).

    prior (p, p): positive definite. prior_mean (p,): beta_0. P is the prior times the mean inflation of residuals,
    since correlated rows count for fewer. start: of nearly the same rows, from which the iteration begins.
    """
    independent = start or _iterated(X, y, mask, prior, prior_mean)
    scale = float(np.mean(independent.inflation))
    return replace(_iterated(X, y, mask, prior * scale, prior_mean, independent), prior_scale=scale)


def _iterated(
    X: Array, y: Array, mask: NDArray[np.bool_], prior: Array, prior_mean: Array, start: Regression | None = None
) -> Regression:
    """Returns the regression of reweighted least squares, with P = prior, from the noise and residual of another."""
    rows, index = X[mask], np.nonzero(mask)[1]
    target, counts = y[mask], np.bincount(index, minlength=X.shape[1])
    scale = np.array([np.std(target[index == j]) if n else 1.0 for j, n in enumerate(counts)])
    noise, weight = np.maximum(scale, 1e-12), np.ones(len(target))
    if start is not None:
        noise, weight = start.noise, _huber(start.residual[mask], start.noise[index])
    largest = np.array([np.abs(target[index == j]).max(initial=1e-3) for j in range(len(counts))])
    floor = LEAST_NOISE * np.maximum(largest, LEAST_EFFORT * largest.max())
    beta = prior_mean
    for _ in range(ITERATIONS):
        weighted_rows = rows * (np.sqrt(weight) / noise[index])[:, None]
        inverse = _inverse_root(gram(weighted_rows) + prior)
        for _ in range(2):  # the second step corrects the rounding of the first
            residuals = target - np.einsum("np,p->n", rows, beta)
            slope = np.einsum("np,n->p", rows, weight / noise[index] ** 2 * residuals) - prior @ (beta - prior_mean)
            beta = beta + inverse.T @ (inverse @ slope)
        residuals = target - np.einsum("np,p->n", rows, beta)
        leverage = np.sum(product(weighted_rows, inverse.T) ** 2, axis=1)
        freedom = np.array([_freedom(leverage[index == j]) for j in range(len(counts))])
        previous = noise
        deviations = [_deviation(residuals[index == j]) if n else 1.0 for j, n in enumerate(counts)]
        noise = np.maximum(np.array(deviations) / np.sqrt(freedom), floor)
        weight = _huber(residuals, noise[index])
        if np.abs(noise / previous - 1.0).max() < CONVERGED:
            break
    residual = np.full(y.shape, np.nan)
    residual[mask] = residuals
    return _with_covariance(X, mask, residual, noise, freedom, beta, prior)


def gram(rows: Array, columns: Array | None = None) -> Array:
    """Returns rows^T columns (p, p) of (n, p) each; columns: None for the rows themselves.

    In products that are too small for threads of BLAS: these wait for each other at each step of a factorisation or
    product, which takes twice the time with two threads, and a hundred times where other processes use the processors.
    """
    blocks, p = _blocks_of(rows), rows.shape[1]
    right = blocks if columns is None else _blocks_of(columns)
    total = np.zeros((p, p))
    for k in range(0, len(blocks), 64):  # bounds the memory
        total += np.sum(np.swapaxes(blocks[k : k + 64], 1, 2) @ right[k : k + 64], axis=0)
    return total


def product(rows: Array, matrix: Array) -> Array:
    """Returns rows (n, p) times a matrix (p, p), as `gram` without threads."""
    return np.asarray((_blocks_of(rows) @ matrix).reshape(-1, matrix.shape[1])[: len(rows)])


def _blocks_of(rows: Array) -> Array:
    """Returns rows (n, p) as blocks (k, b, p) with b p^2 at most `LARGEST_PRODUCT`; the last one ends with zeros."""
    n, p = rows.shape
    length = max(1, LARGEST_PRODUCT // max(p, 1) ** 2)
    padded = np.zeros((-(-n // length) * length, p))
    padded[:n] = rows
    return padded.reshape(-1, length, p)


def _inverse_root(matrix: Array) -> Array:
    """Returns U with U^T U = matrix^-1, (p, p), of a positive definite matrix whose units differ by powers of ten."""
    size = np.sqrt(np.diag(matrix))
    # Rounding may make the least eigenvalues negative.
    correlation = matrix / np.outer(size, size) + 4.0 * len(size) * np.finfo(float).eps * np.eye(len(size))
    # SciPy's solver of triangles wakes threads, the inverse of NumPy does not.
    return np.asarray(np.linalg.inv(np.linalg.cholesky(correlation)) / size)


def remover(columns: Array) -> Callable[[Array], Array]:
    """Returns a function that removes from vectors (n, k) what is a combination of columns (n, p)."""
    size = np.linalg.norm(columns, axis=0)
    unit = columns / np.where(size > 0.0, size, 1.0)
    inverse = _inverse_root(gram(unit) + 1e-13 * np.eye(unit.shape[1]))
    basis = product(unit, inverse.T)

    def remove(vectors: Array) -> Array:
        for _ in range(2):  # the second time removes what rounding left
            vectors = vectors - np.einsum("np,p...->n...", basis, np.einsum("np,n...->p...", basis, vectors))
        return vectors

    return remove


def _huber(residual: Array, noise: Array) -> Array:
    """Returns the weights rho'(x) / x of x = residual / noise."""
    return np.asarray(HUBER / np.maximum(np.abs(residual) / noise, HUBER))


def _freedom(leverage: Array) -> float:
    """The share of a joint's residuals that the fit left free; at least a twentieth, since nothing is known below."""
    return max(0.05, 1.0 - float(leverage.mean())) if len(leverage) else 1.0


def _deviation(residual: Array) -> float:
    return float(MEDIAN_TO_DEVIATION * np.median(np.abs(residual)))


def _with_covariance(
    X: Array, mask: NDArray[np.bool_], residual: Array, noise: Array, freedom: Array, beta: Array, prior: Array
) -> Regression:
    weighted_X = np.where(mask[..., None], X, 0.0) / noise[:, None]
    ratio = np.where(mask, residual, 0.0) / noise
    psi = np.clip(ratio, -HUBER, HUBER) / np.sqrt(freedom)
    counts = np.maximum(mask.sum(axis=0), 1)
    inliers = ((np.abs(ratio) < HUBER) & mask).sum(axis=0) / counts
    p = X.shape[2]
    information = gram((weighted_X * np.sqrt(inliers)[:, None]).reshape(-1, p))
    gammas = _autocovariances(psi, mask)
    meat = CAUTION**2 * prior
    for lag, gamma in enumerate(gammas):
        mixed = np.einsum("ij,tjq->tiq", gamma, weighted_X[lag:])
        part = gram(weighted_X[: len(psi) - lag].reshape(-1, p), mixed.reshape(-1, p))
        meat += part if lag == 0 else part + part.T
    # Scaled to a diagonal of ones, because units of parameters differ by powers of ten.
    size = np.sqrt(np.diag(information + prior))
    inverse = np.linalg.inv((information + prior) / np.outer(size, size)) / np.outer(size, size)
    covariance = inverse @ meat @ inverse
    return Regression(
        beta, covariance, inverse, 1.0, information, noise, residual, len(gammas) - 1, _inflation_of(gammas)
    )


def inflation(residual: Array, mask: NDArray[np.bool_]) -> Array:
    """Returns the variance of a mean of residuals (m, joints) relative to independent ones, at least 1, (joints,)."""
    return _inflation_of(_autocovariances(np.where(mask, residual, 0.0), mask))


def _inflation_of(gammas: Array) -> Array:
    variance = np.maximum(np.diag(gammas[0]), np.finfo(float).tiny)
    total = np.diagonal(gammas, axis1=1, axis2=2).sum(axis=0)
    return np.asarray(np.maximum(2.0 * total / variance - 1.0, 1.0))


def _autocovariances(psi: Array, mask: NDArray[np.bool_]) -> Array:
    """Returns Gamma (lags, joints, joints) of the module, weighted by Bartlett's window; psi is 0 in unused rows."""
    lags, gammas = _window(psi), []
    for lag in range(lags + 1):
        first, second = slice(0, len(psi) - lag), slice(lag, None)
        pairs = np.maximum(mask[first].astype(float).T @ mask[second], 1.0)
        gammas.append((1.0 - lag / (lags + 1.0)) * (psi[first].T @ psi[second]) / pairs)
    return np.array(gammas)


def _window(psi: Array) -> int:
    """Andrews' length of Bartlett's window, from the correlation of neighbouring rows of each joint."""
    count = len(psi)
    if count < 4:
        return 0
    power = np.sum(psi**2, axis=0)
    moving = power > 0.0
    rho = np.clip(np.sum(psi[1:] * psi[:-1], axis=0)[moving] / power[moving], -0.97, 0.97)
    alpha = np.sum(4.0 * rho**2 / ((1.0 - rho) ** 6 * (1.0 + rho) ** 2)) / np.sum(1.0 / (1.0 - rho) ** 4)
    return int(min(1.1447 * (alpha * count) ** (1.0 / 3.0), count / 4)) if moving.any() else 0
