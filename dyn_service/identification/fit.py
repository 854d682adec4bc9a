"""`identify`: base parameters and friction of a robot from a recording of its motion.

1. The recording becomes a smooth motion (`signals`), its columns are those of `terms`.
2. The delay of efforts after positions is searched where the residual is least, within the edges of the filter; then it
   is a parameter: tau(t + d) = Y theta - delta d tau / dt, refined until delta vanishes.
3. The width of each joint's Coulomb friction, and the speed of its Stribeck friction, are searched on a grid; a value
   replaces the file's only if it is significantly better.
4. Terms of friction are removed, the weakest first, until all differ from zero by `SIGNIFICANT` standard errors.
5. The parameters are fitted (`regression`) in some blocks of the recording, and checked in the others.

What was known before, P of the regression, is that the robot's file predicts efforts of typical states with an error
that is a share of these efforts, the same for all combinations of parameters. The share is estimated from those that
the recording shows (empirical Bayes); the others stay near the file's. For what is shown well, hundreds of rows
outweigh it.

Source of the share: D. MacKay, 'Bayesian Interpolation', 1992.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.queries import Array, RobotQueries
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.identification.recordings import Recording
from dyn_service.identification.regression import Regression, solve
from dyn_service.identification.result import (
    REACH_TIME_S,
    Comparison,
    Identification,
    JointFriction,
    TypicalStates,
    unknown_directions,
)
from dyn_service.identification.signals import (
    EDGE_CYCLES,
    Motion,
    filter_motion,
    kept_samples,
    smooth_rows,
    usable_rows,
)
from dyn_service.identification.terms import (
    FORMS,
    FRICTION_KINDS,
    Form,
    FrictionTerm,
    InertialModel,
    effort_rows,
    file_widths,
    friction_rows,
    inertial_model,
)
from dyn_service.support.suggestions import known_instead

SIGNIFICANT = {"viscous": 3.0, "coulomb": 3.0, "offset": 3.0, "asymmetric": 5.0, "stribeck": 5.0}
"""Standard errors that a term of friction must differ from zero. By chance 1 in 370 terms is beyond 3. Residuals of a
real robot are errors of its model too, which rare terms copy: on a recorded Panda terms between 3 and 5 made the
error of the check larger.
"""

SIGNIFICANT_DELAY, SIGNIFICANT_SPEED = 3.0, 5.0
"""As `SIGNIFICANT`, of the delay, and of a width or Stribeck speed that is the best of a grid."""

FIRST_SHARE, LEAST_SHARE = 1.0, 0.01
"""Error of the file's efforts as a share of typical efforts: before it is estimated, and at least."""

SLOWEST_SHARE = 0.05
"""Joints that hardly moved count as if they had moved at this share of their limit, so that all parameters matter."""

SHARE_ITERATIONS = 5
"""The search of the share ends earlier when it changes by less than a tenth, which hardly changes any parameter."""

LONGEST_DELAY_S = 0.1

BLOCK_S, BLOCK_CYCLES = 1.0, 10.0
"""A block is at least this long, and this many cycles of the cut-off."""

SPEED_SHARES = np.geomspace(0.01, 0.5, 10)
"""Widths of friction and Stribeck speeds that are tried, as shares of a joint's largest velocity."""

FINER = np.geomspace(1.0 / 1.5, 1.5, 9)
"""Factors of the best speed that are tried next."""

LEAST_SPEED = 1e-6
"""A joint that is never faster, rad/s or m/s, has no friction that depends on velocity."""


@dataclass(frozen=True, eq=False)
class _Sample:
    """Rows of a motion in one form. inertial (m, rows, nb); spring (n, nv); mask (m, rows): the rows that count."""

    motion: Motion
    form: Form
    inertial: Array
    spring: Array
    mask: NDArray[np.bool_]

    @classmethod
    def of(cls, model: InertialModel, motion: Motion, form: Form) -> _Sample:
        usable = usable_rows(motion)
        mask = np.asarray(usable.all(axis=1, keepdims=True)) if form == "energy" else usable
        return cls(motion, form, model.rows(motion, form), model.spring_effort(motion.q), mask)

    def target(self, delay_s: float) -> Array:
        """Efforts (m, rows) to be explained: measured, less those of springs of the file."""
        effort = effort_rows(self.motion, self.motion.effort, self.form, delay_s)
        return effort - effort_rows(self.motion, self.spring, self.form)

    def columns(self, terms: Sequence[FrictionTerm], delay_s: float | None = None) -> Array:
        """All columns (m, rows, p); with a delay, the last one is the derivative of efforts there."""
        parts = [self.inertial, friction_rows(self.motion, terms, self.form)]
        if delay_s is not None:
            rate = effort_rows(self.motion, self.motion.effort, self.form, delay_s, order=1)
            parts.append(-rate[..., None])
        return np.concatenate(parts, axis=-1)


def identify(
    robot: RobotQueries,
    recording: Recording,
    *,
    check: Recording | float = 1.0 / 3.0,
    friction: Collection[str] = FRICTION_KINDS,
    form: Form = "effort",
    cutoff_hz: float | None = None,
    delay_s: float | None = None,
    rest_positions: Mapping[str, float] | None = None,
) -> Identification:
    """Returns base parameters and friction of a robot from a recording; see the module for the steps.

    Args:
        robot: The robot as its file describes it, in this process or of a server; gravity is its own.
        recording: Positions and efforts of its joints.
        check: A recording of another motion; or the share of blocks of this one, from 0 to 0.5, that are not fitted.
        friction: The kinds of terms that may be used, of `FRICTION_KINDS`.
        form: "effort", or without accelerations "momentum", "energy".
        cutoff_hz: Of the filters; None: `propose_cutoff` of the recording.
        delay_s: By which efforts arrive later than positions; None: it is estimated.
        rest_positions: Positions of joints that are not in the recording because they stood still.

    Raises:
        InvalidArgumentError: An argument is out of its range, or the recording is too short for the cut-off.
        NotFoundError: The recording lacks a joint.
        FailedPreconditionError: Fewer rows remain than there are parameters.
        UnimplementedError: The robot has closed loops, or joints whose position is no number.
    """
    _check_arguments(check, friction, form, delay_s)
    limits = robot.limits
    bounds = {"lower": limits.lower, "upper": limits.upper, "effort_limit": limits.efforts}
    continuous = recording.motion_of(robot, rest_positions)
    motion = filter_motion(continuous, cutoff_hz, **bounds)
    model = inertial_model(robot)
    sample = _Sample.of(model, motion, form)
    is_fit, is_check = _blocks(motion, 0.0 if isinstance(check, Recording) else check)
    sample = replace(sample, mask=sample.mask & is_fit[:, None])
    slow, fast = _typical_states(model, motion)
    problem = _Problem(model, sample, slow, _reference_effort(motion))
    terms, delay, regression = _fitted(problem, first_terms(robot, motion, friction), friction, delay_s)
    nb, noise = len(model.names), _effort_noise(problem, regression)
    comparisons = [_comparison(model, motion, terms, regression.estimate, delay, is_fit, is_check)]
    if isinstance(check, Recording):
        other = filter_motion(check.motion_of(robot, rest_positions), motion.cutoff_hz, **bounds)
        all_rows = np.ones(len(kept_samples(other)), dtype=bool)
        comparisons.append(_comparison(model, other, terms, regression.estimate, delay, ~all_rows, all_rows))
    return Identification(
        robot,
        model,
        _by_joint(robot, terms, regression, nb),
        noise,
        delay,
        float(np.sqrt(regression.covariance[-1, -1])) if delay_s is None and delay else 0.0,
        motion.cutoff_hz,
        form,
        _joined(comparisons),
        unknown_directions(model, fast, regression.estimate[:nb], regression.covariance[:nb, :nb], noise),
        tuple(terms),
        regression,
        continuous.notes,
    )


@dataclass(frozen=True, eq=False)
class _Problem:
    """What a fit needs. reference (nv,): typical efforts of joints, the scale of the prior."""

    model: InertialModel
    sample: _Sample
    states: TypicalStates
    reference: Array
    share: float = FIRST_SHARE

    def with_share(self, terms: Sequence[FrictionTerm], delay_s: float) -> _Problem:
        """Returns the problem with the share that is likeliest: delta^T G delta / gamma, with gamma the number of
        combinations that the data determine, and G the information of a typical state.
        """
        problem, nb = self, len(self.model.names)
        G = self.information()
        for _ in range(SHARE_ITERATIONS):
            regression = problem.solve(terms, delay_s, with_delay=False)
            delta = regression.estimate[:nb] - self.model.file_values
            P = G * regression.prior_scale / problem.share**2
            determined = nb - float(np.sum(P * regression.posterior[:nb, :nb]))
            share = float(np.sqrt(delta @ G @ delta / max(determined, 1.0)))
            change = share / problem.share
            problem = replace(problem, share=max(share, LEAST_SHARE))
            if 0.9 < change < 1.1:
                break
        return problem

    def information(self) -> Array:
        """Information G (nb, nb) of a typical state whose efforts are wrong by themselves, over all joints."""
        nb = len(self.model.names)
        return self.states.information(self.reference * np.sqrt(len(self.reference) / nb))

    def solve(self, terms: Sequence[FrictionTerm], delay_s: float, with_delay: bool) -> Regression:
        X = self.sample.columns(terms, delay_s if with_delay else None)
        nb, p = len(self.model.names), X.shape[-1]
        row_count = int(self.sample.mask.sum())
        if row_count <= p:
            text = f"the recording leaves {row_count} rows for {p} parameters; record longer, or raise cutoff_hz"
            raise FailedPreconditionError(text)
        prior = np.zeros((p, p))
        prior[:nb, :nb] = self.information() / self.share**2
        # A term as large as the typical effort, or a delay of a cycle, counts as one standard deviation.
        scales = [np.abs(x).max() or 1.0 for x in np.moveaxis(X[..., nb:], -1, 0)]
        indices = [term.index for term in terms] + ([int(np.argmax(self.reference))] if with_delay else [])
        prior[range(nb, p), range(nb, p)] = (np.array(scales) / self.reference[indices]) ** 2
        if self.sample.form == "energy":
            prior[nb:, nb:] /= np.maximum(1.0, np.abs(self.sample.motion.v).max()) ** 2
        mean = np.concatenate([self.model.file_values, np.zeros(p - nb)])
        return solve(X, self.sample.target(delay_s), self.sample.mask, prior, mean)


def _fitted(
    problem: _Problem, terms: list[FrictionTerm], kinds: Collection[str], delay_s: float | None
) -> tuple[list[FrictionTerm], float, Regression]:
    """Returns the significant terms, the delay, and the regression with both.

    Its last entry is the delay's if that is estimated and significant.
    """
    delay = _first_delay(problem, terms) if delay_s is None else delay_s
    regression = problem.solve(terms, delay, with_delay=False)
    terms = _with_speeds(problem, terms, kinds, delay, regression)
    problem = problem.with_share(terms, delay)
    estimated = delay_s is None
    for _ in range(4):
        regression = problem.solve(terms, delay, estimated)
        if not estimated:
            break
        step, error = regression.estimate[-1], np.sqrt(regression.covariance[-1, -1])
        delay = float(np.clip(delay + step, -_longest(problem), _longest(problem)))
        if abs(step) < 0.05 * error:
            break
    if estimated and abs(delay) < SIGNIFICANT_DELAY * np.sqrt(regression.covariance[-1, -1]):
        delay, estimated = 0.0, False
        regression = problem.solve(terms, delay, with_delay=False)
    remaining = _significant(problem, terms, regression)
    return remaining, delay, problem.solve(remaining, delay, estimated) if len(remaining) < len(terms) else regression


def _significant(problem: _Problem, terms: Sequence[FrictionTerm], regression: Regression) -> list[FrictionTerm]:
    """Returns the terms left after the weakest is removed, one by one, until all are significant."""
    first, remaining = len(problem.model.names), list(range(len(terms)))
    # of a term that depends on removed ones, rounding may leave less than nothing
    rounding = 1e-14 * np.diag(regression.covariance)
    while remaining:
        variance = np.maximum(np.diag(regression.covariance), rounding)
        ratio = [abs(regression.estimate[first + k]) / np.sqrt(variance[first + k]) for k in remaining]
        strength = [x / SIGNIFICANT[terms[k].kind] for k, x in zip(remaining, ratio, strict=True)]
        weakest = int(np.argmin(strength))
        if strength[weakest] >= 1.0:
            break
        regression = regression.without(first + remaining.pop(weakest))
    return [terms[k] for k in remaining]


def _longest(problem: _Problem) -> float:
    """The longest delay: the edges of the filter have no more samples."""
    return float(min(LONGEST_DELAY_S, EDGE_CYCLES / problem.sample.motion.cutoff_hz))


def _first_delay(problem: _Problem, terms: Sequence[FrictionTerm]) -> float:
    """Returns the delay of least residual, of some in steps of an eighth of a cycle of the cut-off."""
    sample, longest = problem.sample, _longest(problem)
    regression = problem.solve(terms, 0.0, with_delay=False)
    weight = sample.mask / regression.noise
    X = sample.columns(terms) * weight[..., None]
    Q = np.linalg.qr(X.reshape(-1, X.shape[-1]))[0]
    steps = int(np.ceil(8.0 * longest * sample.motion.cutoff_hz))
    delays = np.linspace(-longest, longest, 2 * steps + 1)

    def residual(delay: float) -> float:
        y = (sample.target(delay) * weight).ravel()
        return float(y @ y - np.sum((Q.T @ y) ** 2))

    return float(min(delays, key=residual))


def _with_speeds(
    problem: _Problem, terms: list[FrictionTerm], kinds: Collection[str], delay: float, regression: Regression
) -> list[FrictionTerm]:
    """Returns the terms with the widths, and the Stribeck terms, that reduce the residual significantly."""
    sample = problem.sample
    weight = sample.mask / regression.noise
    y = (sample.target(delay) * weight).ravel()
    inertial = (sample.inertial * weight[..., None]).reshape(-1, sample.inertial.shape[-1])
    for index in sorted({term.index for term in terms if term.kind == "coulomb"}):
        terms = _with_speeds_of_joint(sample, weight, y, inertial, terms, kinds, index)
    return sorted(terms, key=lambda term: (term.index, FRICTION_KINDS.index(term.kind)))


def _with_speeds_of_joint(
    sample: _Sample,
    weight: Array,
    y: Array,
    inertial: Array,
    terms: Sequence[FrictionTerm],
    kinds: Collection[str],
    index: int,
) -> list[FrictionTerm]:
    """As `_with_speeds`, for one joint. weight (m, rows), y (m rows,), inertial (m rows, nb): weighted."""
    fastest, row = float(np.abs(sample.motion.v[:, index]).max()), 0 if sample.form == "energy" else index
    local = [term for term in terms if term.index == index and term.kind in ("coulomb", "asymmetric")]
    rest = [term for term in terms if term not in local]

    def weighted(subset: Sequence[FrictionTerm]) -> Array:
        X = friction_rows(sample.motion, subset, sample.form) * weight[..., None]
        return X.reshape(-1, len(subset))

    Q = np.linalg.qr(np.concatenate([inertial, weighted(rest)], axis=1))[0]
    r = y - Q @ (Q.T @ y)
    freedom = max(1.0 - Q.shape[1] / max(int(sample.mask.sum()), 1), 0.05)

    def remainder(subset: Sequence[FrictionTerm]) -> Array:
        part = weighted(subset)
        basis = np.linalg.qr(part - Q @ (Q.T @ part))[0]
        return np.asarray(r - basis @ (basis.T @ r)).reshape(weight.shape)

    def squares(subset: Sequence[FrictionTerm]) -> float:
        return float(np.sum(remainder(subset) ** 2))

    def searched(with_speed: Callable[[float], list[FrictionTerm]], present: list[FrictionTerm]) -> list[FrictionTerm]:
        speeds = SPEED_SHARES * fastest
        for _ in range(2):  # then finer, about the best
            best = min((with_speed(float(speed)) for speed in speeds), key=squares)
            speed = best[-1].stribeck_speed if best[-1].kind == "stribeck" else best[0].width
            speeds = speed * FINER
        gain = squares(present) - squares(best)
        return best if gain > _chance(remainder(best)[:, row]) / freedom else present

    local = searched(lambda w: [replace(term, width=w) for term in local], local)
    if "stribeck" in kinds:
        first, slowest = replace(local[0], kind="stribeck"), 1.5 * local[0].width
        local = searched(lambda v_s: [*local, replace(first, stribeck_speed=max(v_s, slowest))], local)
    return [*rest, *local]


def _chance(residual: Array) -> float:
    """Returns the reduction of squares by one parameter that is significant.

    The residual may be correlated: neighbouring rows of correlation rho count for (1 - rho) / (1 + rho) rows.
    """
    variance = float(np.mean(residual**2))
    rho = float(np.clip(np.mean(residual[1:] * residual[:-1]) / max(variance, 1e-30), 0.0, 0.9))
    return SIGNIFICANT_SPEED**2 * variance * (1.0 + rho) / (1.0 - rho)


def first_terms(robot: RobotQueries, motion: Motion, kinds: Collection[str]) -> list[FrictionTerm]:
    """Returns the terms with the widths of the robot's file; Stribeck terms are searched later."""
    names, widths = robot.configuration.velocity_names, file_widths(robot)
    terms = []
    for index, name in enumerate(names):
        if not motion.usable[:, index].any():
            continue
        moves = np.abs(motion.v[:, index]).max() > LEAST_SPEED
        usual = [kind for kind in FRICTION_KINDS if kind in kinds and kind != "stribeck"]
        terms += [FrictionTerm(name, index, kind, widths[index]) for kind in usual if moves or kind == "offset"]
    return terms


def _typical_states(model: InertialModel, motion: Motion) -> tuple[TypicalStates, TypicalStates]:
    """Returns states as fast as the recording, or `SLOWEST_SHARE` of the limit, and as fast as the robot can be."""
    v, a = np.abs(motion.v).max(axis=0), np.abs(motion.a).max(axis=0)
    limit = model.robot.limits.speeds
    limit = np.where(np.isfinite(limit), limit, np.maximum(v, 1.0))
    slow = np.maximum(v, SLOWEST_SHARE * limit)
    recorded = TypicalStates.of(model, slow, np.maximum(a, SLOWEST_SHARE * limit / REACH_TIME_S))
    return recorded, TypicalStates.of(model, np.maximum(v, limit), np.maximum(a, limit / REACH_TIME_S))


def _reference_effort(motion: Motion) -> Array:
    """Rms of measured efforts (nv,), at least a hundredth of the largest, also for unmeasured ones."""
    rms = np.sqrt(np.mean(motion.effort**2, axis=0))
    has_effort = motion.usable.any(axis=0)
    return np.asarray(np.where(has_effort, np.maximum(rms, max(0.01 * rms.max(), 1e-9)), max(rms.max(), 1e-9)))


def _effort_noise(problem: _Problem, regression: Regression) -> Array:
    """Noise of efforts (nv,). That of the energy form is of power, so it is divided by the rms velocity of all."""
    if problem.sample.form != "energy":
        return regression.noise
    speed = np.sqrt(np.mean(np.sum(problem.sample.motion.v**2, axis=1)))
    return np.full(problem.model.robot.nv, regression.noise[0] / max(float(speed), LEAST_SPEED))


def _blocks(motion: Motion, share: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Returns which rows are fitted and which check: blocks in turn, without the rows that the filter mixes."""
    t = motion.t[kept_samples(motion)]
    if share == 0.0 or not len(t):
        return np.ones(len(t), dtype=bool), np.zeros(len(t), dtype=bool)
    length = max(BLOCK_S, BLOCK_CYCLES / motion.cutoff_hz)
    count = max(round(1.0 / share), int((t[-1] - t[0]) / length))
    place = (t - t[0]) / (t[-1] - t[0]) * count
    block = np.minimum(place.astype(int), count - 1)
    # Block k checks where the integer part of share (k + 1) increases, so that checks are spread evenly.
    checks = np.floor(share * (block + 1) + 1e-9) > np.floor(share * block + 1e-9)
    mixed = int(np.ceil(0.5 * motion.rate_hz / motion.cutoff_hz / motion.stride))
    near_check = np.convolve(checks, np.ones(2 * mixed + 1), mode="same") > 0.5
    return ~near_check, checks


def _comparison(
    model: InertialModel,
    motion: Motion,
    terms: Sequence[FrictionTerm],
    estimate: Array,
    delay: float,
    is_fit: NDArray[np.bool_],
    is_check: NDArray[np.bool_],
) -> Comparison:
    sample = _Sample.of(model, motion, "effort")
    spring = effort_rows(motion, sample.spring, "effort")
    X = sample.columns(terms)
    fitted = X @ estimate[: X.shape[-1]] + spring
    file = smooth_rows(motion, np.asarray(model.robot.inverse_dynamics(motion.q, motion.v, motion.a)))
    measurement = sample.target(delay) + spring
    return Comparison(motion.t[kept_samples(motion)], measurement, file, fitted, sample.mask, is_fit, is_check, X)


def _joined(comparisons: Sequence[Comparison]) -> Comparison:
    names = ("t", "measurement", "file", "fitted", "usable", "is_fit", "is_check", "columns")
    return Comparison(*(np.concatenate([getattr(comparison, name) for comparison in comparisons]) for name in names))


def _by_joint(
    robot: RobotQueries, terms: Sequence[FrictionTerm], regression: Regression, first: int
) -> dict[str, JointFriction]:
    widths = file_widths(robot)
    errors = np.sqrt(np.diag(regression.covariance))
    friction = {}
    for index, name in enumerate(robot.configuration.velocity_names):
        term_index = {term.kind: k for k, term in enumerate(terms) if term.index == index}
        values = {kind: float(regression.estimate[first + k]) for kind, k in term_index.items()}
        wide = (term.width for term in terms if term.index == index and term.kind not in ("viscous", "offset"))
        width = next(wide, float(widths[index]))
        speed = next((term.stribeck_speed for term in terms if term.index == index and term.kind == "stribeck"), None)
        standard_errors = {kind: float(errors[first + k]) for kind, k in term_index.items()}
        friction[name] = JointFriction(name, values, standard_errors, width, speed)
    return friction


def _check_arguments(check: Recording | float, friction: Collection[str], form: str, delay_s: float | None) -> None:
    if not isinstance(check, Recording) and not 0.0 <= check <= 0.5:
        raise InvalidArgumentError(f"check must be a Recording or from 0 to 0.5, found {check!r}", path="check")
    if form not in FORMS:
        raise InvalidArgumentError(f"form must be one of {', '.join(FORMS)}, found {form!r}", path="form")
    unknown = [kind for kind in friction if kind not in FRICTION_KINDS]
    if isinstance(friction, str) or unknown:
        kind = friction if isinstance(friction, str) else unknown[0]
        if kind in FRICTION_KINDS:
            text = f"friction must be a list of kinds, found the text {kind!r}: write [{kind!r}]"
            raise InvalidArgumentError(text, path="friction")
        hint = known_instead(kind, FRICTION_KINDS)
        raise InvalidArgumentError(f"friction has no kind {kind!r}{hint}; expected a list of kinds", path="friction")
    if delay_s is not None and not abs(delay_s) <= LONGEST_DELAY_S:
        text = f"delay_s must be from -{LONGEST_DELAY_S:g} to {LONGEST_DELAY_S:g} s or None, found {delay_s!r}"
        raise InvalidArgumentError(text, path="delay_s")
