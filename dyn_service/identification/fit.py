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

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from dyn_service.api.queries import Array, RobotQueries
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.identification.recordings import Recording
from dyn_service.identification.regression import Regression, remover, solve
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
    filtered_again,
    kept_samples,
    smooth_rows,
    usable_rows,
)
from dyn_service.identification.terms import (
    FILE_PARAMETERS,
    FORMS,
    FRICTION_KINDS,
    Form,
    FrictionTerm,
    InertialModel,
    SpeedName,
    effort_rows,
    file_widths,
    friction_columns,
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

WIDTH_SHARES = (0.005, 2.0)
"""Bounds of widths, as shares of a joint's largest velocity: beyond them friction acts as a jump, or is viscous."""

LEAST_STRIBECK = 1.5
"""Least Stribeck speed relative to the width: a slower one acts like another width."""

LARGEST_STEP = 0.5
"""Of the logarithm of a width or Stribeck speed in one iteration, so that it stays where its slope is valid."""

WIDE = ("coulomb", "asymmetric", "stribeck")
"""Kinds of friction with a width."""

SETTLED = 0.05
"""Steps of speeds and delay, relative to their standard errors, at which their iteration ends."""

REFINEMENTS = 12
"""Most iterations of delay, widths and Stribeck speeds; each about squares their relative error."""

LEAST_VARIANCE = 1e-3
"""Least variance of the noise of power in a row, relative to the mean: a robot at rest has no infinite weight."""

LEAST_SPEED = 1e-6
"""A joint that is never faster, rad/s or m/s, has no friction that depends on velocity."""


@dataclass(frozen=True, eq=False)
class _Friction:
    """Terms of friction, whose widths and Stribeck speeds may be parameters, too: by the slope of efforts about the
    terms. coefficients (terms,): of the terms. speeds: index of the joint's velocity, and name.
    """

    terms: tuple[FrictionTerm, ...]
    coefficients: Array
    speeds: tuple[tuple[int, SpeedName], ...] = ()

    @classmethod
    def of(cls, terms: Sequence[FrictionTerm], coefficients: Array) -> _Friction:
        """Returns the terms with all their speeds as parameters."""
        wide = sorted({term.index for term in terms if term.kind in WIDE})
        speeds: list[tuple[int, SpeedName]] = [(index, "width") for index in wide]
        speeds += [(term.index, "stribeck_speed") for term in terms if term.kind == "stribeck"]
        return cls(tuple(terms), coefficients, tuple(speeds))

    def columns(self, v: Array) -> Array:
        """Efforts (n, nv, terms + speeds) per coefficient, and per logarithm of a speed."""
        slopes = np.zeros((*v.shape, len(self.speeds)))
        for k, (index, name) in enumerate(self.speeds):
            for term, coefficient in zip(self.terms, self.coefficients, strict=True):
                if term.index == index:
                    slopes[:, index, k] += coefficient * term.slope(v, name)
        return np.concatenate([friction_columns(self.terms, v), slopes], axis=-1)

    def moved(self, coefficients: Array, steps: Array, fastest: Array) -> _Friction:
        """Returns other coefficients, and speeds after steps of their logarithms, within those that a joint shows.

        fastest (nv,): largest speeds.
        """
        changes: dict[tuple[int, str], float] = {}
        for (index, name), step in zip(self.speeds, steps, strict=True):
            changes[index, name] = float(np.exp(np.clip(step, -LARGEST_STEP, LARGEST_STEP)))
        terms = []
        for term in self.terms:
            width = term.width * changes.get((term.index, "width"), 1.0)
            low, high = WIDTH_SHARES[0] * fastest[term.index], WIDTH_SHARES[1] * fastest[term.index]
            width = float(np.clip(width, min(low, term.width), max(high, term.width)))
            speed = term.stribeck_speed * changes.get((term.index, "stribeck_speed"), 1.0)
            speed = max(speed, LEAST_STRIBECK * width) if term.kind == "stribeck" else speed
            terms.append(replace(term, width=width, stribeck_speed=speed))
        return replace(self, terms=tuple(terms), coefficients=coefficients)

    def speed(self, index: int, name: SpeedName) -> float:
        """Value of a speed, rad/s | m/s."""
        kinds = WIDE if name == "width" else ("stribeck",)
        term = next(term for term in self.terms if term.index == index and term.kind in kinds)
        return term.width if name == "width" else term.stribeck_speed


@dataclass(frozen=True, eq=False)
class _Sample:
    """Rows of a motion in one form. inertial (m, rows, nb); spring (n, nv); mask (m, rows): the rows that count. weight
    (m, rows): of each row, 1 except for energy.
    """

    motion: Motion
    form: Form
    inertial: Array
    spring: Array
    mask: NDArray[np.bool_]
    weight: Array

    @classmethod
    def of(cls, model: InertialModel, motion: Motion, form: Form, reference: Array) -> _Sample:
        """reference (nv,): typical efforts; noise of efforts is taken as a share of them."""
        mask = usable_rows(motion)
        weight = np.ones(mask.shape)
        if form == "energy":
            mask = np.asarray(mask.all(axis=1, keepdims=True))
            variance = effort_rows(motion, motion.v * reference**2, form)  # of power: noise of efforts times velocity
            weight = np.maximum(variance, LEAST_VARIANCE * max(float(np.mean(variance)), 1e-30)) ** -0.5
        return cls(motion, form, model.rows(motion, form), model.spring_effort(motion.q), mask, weight)

    def filtered_again(self, model: InertialModel) -> _Sample:
        """Returns the sample with positions that are filtered once more; the mask is that of comparable rows."""
        motion, mask = filtered_again(self.motion)
        inertial, spring = model.rows(motion, self.form), model.spring_effort(motion.q)
        return replace(self, motion=motion, inertial=inertial, spring=spring, mask=self.mask & mask[:, None])

    def target(self, delay_s: float) -> Array:
        """Efforts (m, rows) to be explained: measured, less those of springs of the file."""
        effort = effort_rows(self.motion, self.motion.effort, self.form, delay_s)
        return (effort - effort_rows(self.motion, self.spring, self.form)) * self.weight

    def columns(self, friction: _Friction, delay_s: float | None = None) -> Array:
        """All columns (m, rows, p): inertial, friction, its speeds; with a delay, last the derivative of efforts."""
        parts = [self.inertial, friction_rows(self.motion, friction.columns, self.form)]
        if delay_s is not None:
            rate = effort_rows(self.motion, self.motion.effort, self.form, delay_s, order=1)
            parts.append(-rate[..., None])
        return np.concatenate(parts, axis=-1) * self.weight[..., None]


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
    notes = continuous.notes
    motion = filter_motion(continuous, cutoff_hz, **bounds)
    model = inertial_model(robot)
    reference = _reference_effort(motion)
    sample = _Sample.of(model, motion, form, reference)
    is_fit, is_check = _blocks(motion, 0.0 if isinstance(check, Recording) else check)
    sample = replace(sample, mask=sample.mask & is_fit[:, None])
    slow, fast = _typical_states(model, motion)
    problem = _Problem(model, sample, sample.filtered_again(model), slow, reference)
    fitted_friction, delay, regression = _fitted(problem, first_terms(robot, motion, friction), friction, delay_s)
    terms, nb = fitted_friction.terms, len(model.names)
    # The rows of energy are relative to the noise of power that typical efforts have.
    noise = regression.noise[0] * reference if form == "energy" else regression.noise
    comparisons = [_comparison(model, motion, terms, regression.estimate, delay, is_fit, is_check)]
    if isinstance(check, Recording):
        whole = check.motion_of(robot, rest_positions)
        notes += tuple(f"check: {note}" for note in whole.notes)
        other = filter_motion(whole, motion.cutoff_hz, **bounds)
        all_rows = np.ones(len(kept_samples(other)), dtype=bool)
        comparisons.append(_comparison(model, other, terms, regression.estimate, delay, ~all_rows, all_rows))
    return Identification(
        robot,
        model,
        _by_joint(robot, fitted_friction, regression, nb),
        noise,
        delay,
        float(np.sqrt(regression.covariance[-1, -1])) if delay_s is None and delay else 0.0,
        motion.cutoff_hz,
        form,
        _joined(comparisons),
        unknown_directions(model, fast, regression.estimate[:nb], regression.covariance[:nb, :nb], noise),
        terms,
        regression,
        notes,
    )


@dataclass(frozen=True, eq=False)
class _Problem:
    """What a fit needs. refiltered: the sample of the motion that is filtered once more. reference (nv,): typical
    efforts of joints, the scale of the prior.
    """

    model: InertialModel
    sample: _Sample
    refiltered: _Sample
    states: TypicalStates
    reference: Array
    share: float = FIRST_SHARE

    def with_share(self, friction: _Friction, delay_s: float, start: Regression) -> tuple[_Problem, Regression]:
        """Returns the problem with the share that is likeliest: delta^T G delta / gamma, with gamma the number of
        combinations that the data determine, and G the information of a typical state; and its regression.
        """
        problem, nb, regression = self, len(self.model.names), start
        G = self.information()
        for _ in range(SHARE_ITERATIONS):
            regression = problem.solve(friction, delay_s, start=regression)
            delta = regression.estimate[:nb] - self.model.file_values
            P = G * regression.prior_scale / problem.share**2
            determined = nb - float(np.sum(P * regression.posterior[:nb, :nb]))
            share = float(np.sqrt(delta @ G @ delta / max(determined, 1.0)))
            change = share / problem.share
            problem = replace(problem, share=max(share, LEAST_SHARE))
            if 0.9 < change < 1.1:
                break
        return problem, regression

    def information(self) -> Array:
        """Information G (nb, nb) of a typical state whose efforts are wrong by themselves, over all joints."""
        nb = len(self.model.names)
        return self.states.information(self.reference * np.sqrt(len(self.reference) / nb))

    def solve(
        self, friction: _Friction, delay_s: float, with_delay: bool = False, start: Regression | None = None
    ) -> Regression:
        """Returns the regression on all columns.

        start: of the same noise, from which the iteration begins.
        """
        X = self.sample.columns(friction, delay_s if with_delay else None)
        nb, nt, p = len(self.model.names), len(friction.terms), X.shape[-1]
        row_count = int(self.sample.mask.sum())
        if row_count <= p:
            text = f"the recording leaves {row_count} rows for {p} parameters; record longer, or raise cutoff_hz"
            raise FailedPreconditionError(text)
        prior, mean = np.zeros((p, p)), np.zeros(p)
        prior[:nb, :nb] = self.information() / self.share**2
        mean[:nb] = self.model.file_values
        # One standard deviation: a term as large as the typical effort, a speed that is wrong by a factor of e, ..
        largest = np.abs(friction_columns(friction.terms, self.sample.motion.v)).max(axis=(0, 1), initial=0.0)
        prior[range(nb, nb + nt), range(nb, nb + nt)] = (
            np.where(largest > 0.0, largest, 1.0) / self.reference[[term.index for term in friction.terms]]
        ) ** 2
        widths = file_widths(self.model.robot)
        for k, (index, name) in enumerate(friction.speeds, start=nb + nt):
            prior[k, k] = 1.0
            mean[k] = np.log(widths[index] / friction.speed(index, name)) if name == "width" else 0.0
        if with_delay:
            prior[-1, -1] = self.sample.motion.cutoff_hz**2  # .. and a delay of a cycle
        return solve(X, self.sample.target(delay_s), self.sample.mask, prior, mean, start)

    def with_filter_error(
        self, regression: Regression, friction: _Friction, delay_s: float, with_delay: bool
    ) -> Regression:
        """Returns the regression whose covariance contains the effect of filters: the motion that is filtered once more
        changes efforts about as much as the first time.
        """
        X = self.sample.columns(friction, delay_s if with_delay else None)
        terms, n = replace(friction, speeds=()), len(self.model.names) + len(friction.terms)
        theta = regression.estimate[:n]
        change = self.refiltered.target(delay_s) - self.sample.target(delay_s)
        change -= (self.refiltered.columns(terms) - X[..., :n]) @ theta
        return regression.with_error(X, self.refiltered.mask, change)


def _fitted(
    problem: _Problem, terms: list[FrictionTerm], kinds: Collection[str], delay_s: float | None
) -> tuple[_Friction, float, Regression]:
    """Returns the significant terms, the delay, and the regression with both.

    Its last entry is the delay's if that is estimated and significant.
    """
    nb = len(problem.model.names)
    friction = _Friction(tuple(terms), np.zeros(len(terms)))
    delay = _first_delay(problem, friction) if delay_s is None else delay_s
    regression = problem.solve(friction, delay)
    terms = _with_speeds(problem, terms, kinds, delay, regression)
    friction = _Friction(tuple(terms), np.zeros(len(terms)))
    problem, regression = problem.with_share(friction, delay, regression)
    friction = _Friction.of(terms, regression.estimate[nb:])
    estimated = delay_s is None
    friction, delay, regression = _refined(problem, friction, delay, estimated, regression)
    if estimated and abs(delay) < SIGNIFICANT_DELAY * np.sqrt(regression.covariance[-1, -1]):
        estimated = False
        friction, delay, regression = _refined(problem, friction, 0.0, estimated, regression)
    while len(remaining := _significant(problem, friction, regression)) < len(friction.terms):
        friction = _Friction.of([friction.terms[k] for k in remaining], friction.coefficients[remaining])
        friction, delay, regression = _refined(problem, friction, delay, estimated, regression)
    return friction, delay, regression


def _refined(
    problem: _Problem, friction: _Friction, delay: float, with_delay: bool, start: Regression
) -> tuple[_Friction, float, Regression]:
    """Returns the friction, the delay, and the regression about them, when its steps are small next to their errors."""
    nb, nt, longest = len(problem.model.names), len(friction.terms), _longest(problem)
    fastest = np.abs(problem.sample.motion.v).max(axis=0)
    regression = start
    for _ in range(REFINEMENTS):
        previous, previous_delay = friction, delay
        regression = problem.solve(friction, delay, with_delay, regression)
        steps = regression.estimate[nb + nt : nb + nt + len(friction.speeds)]
        friction = friction.moved(regression.estimate[nb : nb + nt], steps, fastest)
        delay = float(np.clip(delay + regression.estimate[-1], -longest, longest)) if with_delay else delay
        moves = [np.log(friction.speed(*speed) / previous.speed(*speed)) for speed in friction.speeds]
        moves += [delay - previous_delay] if with_delay else []
        errors = np.sqrt(np.diag(regression.covariance)[nb + nt :])
        if (np.abs(moves) <= SETTLED * errors).all():
            break
    return friction, delay, problem.with_filter_error(regression, previous, previous_delay, with_delay)


def _significant(problem: _Problem, friction: _Friction, regression: Regression) -> list[int]:
    """Returns the indices of the terms left after the weakest are removed, until all are significant.

    Viscous and Coulomb friction of a joint stay or go together: each alone would take the place of the other.
    """
    first, terms = len(problem.model.names), friction.terms
    groups: dict[tuple[int, str], list[int]] = {}
    for k, term in enumerate(terms):
        groups.setdefault((term.index, "usual" if term.kind in FILE_PARAMETERS else term.kind), []).append(k)

    def strength(group: list[int]) -> float:
        """Rms number of standard errors from zero, relative to what is significant."""
        rows = np.add(group, first)
        x, C = regression.estimate[rows], regression.covariance[np.ix_(rows, rows)]
        scale = np.sqrt(np.maximum(np.diag(C), rounding[rows]))
        squares = x / scale @ np.linalg.lstsq(C / np.outer(scale, scale), x / scale, rcond=1e-12)[0]
        return float(np.sqrt(max(squares, 0.0) / len(group))) / SIGNIFICANT[terms[group[0]].kind]

    # of a term that depends on removed ones, rounding may leave less than nothing
    rounding = 1e-14 * np.diag(regression.covariance)
    while groups:
        weakest = min(groups, key=lambda name: strength(groups[name]))
        if strength(groups[weakest]) >= 1.0:
            break
        for k in groups.pop(weakest):
            regression = regression.without(first + k)
        remaining = sorted(k for group in groups.values() for k in group)
        speeds = _Friction.of([terms[k] for k in remaining], friction.coefficients[remaining]).speeds
        for k, speed in enumerate(friction.speeds, start=first + len(terms)):
            if speed not in speeds and regression.covariance[k, k] > 0.0:
                regression = regression.without(k)
    return sorted(k for group in groups.values() for k in group)


def _longest(problem: _Problem) -> float:
    """The longest delay: the edges of the filter have no more samples."""
    return float(min(LONGEST_DELAY_S, EDGE_CYCLES / problem.sample.motion.cutoff_hz))


def _first_delay(problem: _Problem, friction: _Friction) -> float:
    """Returns the delay of least residual, of some in steps of an eighth of a cycle of the cut-off."""
    sample, longest = problem.sample, _longest(problem)
    regression = problem.solve(friction, 0.0)
    weight = sample.mask / regression.noise
    X = sample.columns(friction) * weight[..., None]
    remove = remover(X.reshape(-1, X.shape[-1]))
    steps = int(np.ceil(8.0 * longest * sample.motion.cutoff_hz))
    delays = np.linspace(-longest, longest, 2 * steps + 1)

    def residual(delay: float) -> float:
        return float(np.sum(remove((sample.target(delay) * weight).ravel()) ** 2))

    return float(min(delays, key=residual))


def _with_speeds(
    problem: _Problem, terms: list[FrictionTerm], kinds: Collection[str], delay: float, regression: Regression
) -> list[FrictionTerm]:
    """Returns the terms with the widths of least residual, and the Stribeck terms that reduce it significantly."""
    sample = problem.sample
    scale = (sample.mask / regression.noise * sample.weight)[..., None]
    y = (sample.target(delay) * sample.mask / regression.noise).ravel()
    inertial = (sample.inertial * scale).reshape(-1, sample.inertial.shape[-1])
    for index in sorted({term.index for term in terms if term.kind == "coulomb"}):
        terms = _with_speeds_of_joint(sample, scale, y, inertial, terms, kinds, index, regression.prior_scale)
    return sorted(terms, key=lambda term: (term.index, FRICTION_KINDS.index(term.kind)))


def _with_speeds_of_joint(
    sample: _Sample,
    scale: Array,
    y: Array,
    inertial: Array,
    terms: Sequence[FrictionTerm],
    kinds: Collection[str],
    index: int,
    inflation: float,
) -> list[FrictionTerm]:
    """As `_with_speeds`, for one joint. scale (m, rows, 1): of rows; y (m rows,), inertial (m rows, nb): scaled.
    inflation: squares of residuals by which a width is worse that differs from the file's by a factor of e.
    """
    row = 0 if sample.form == "energy" else index
    speeds = SPEED_SHARES * float(np.abs(sample.motion.v[:, index]).max())
    local = [term for term in terms if term.index == index and term.kind in WIDE]
    rest = [term for term in terms if term not in local]

    def scaled(terms: Sequence[FrictionTerm], with_slope: bool = False) -> Array:
        # Coulomb friction is the first, by which the slope of the width is about that of all terms.
        speeds: tuple[tuple[int, SpeedName], ...] = ((index, "width"),) if with_slope else ()
        friction = _Friction(tuple(terms), np.arange(len(terms)) == 0.0, speeds)
        rows = friction_rows(sample.motion, friction.columns, sample.form) * scale
        return rows.reshape(-1, rows.shape[-1])

    other_columns = np.concatenate([inertial, scaled(rest)], axis=1)
    remove = remover(other_columns)
    r = remove(y)
    freedom = max(1.0 - other_columns.shape[1] / max(int(sample.mask.sum()), 1), 0.05)

    def remainder(part: Array) -> Array:
        return remover(remove(part))(r).reshape(scale.shape[:2])

    def with_width(width: float) -> list[FrictionTerm]:
        return [replace(term, width=width) for term in local]

    def cost(width: float) -> float:
        distance = np.log(width / local[0].width)
        return float(np.sum(remainder(scaled(with_width(width))) ** 2) + inflation * distance**2)

    best = min([local[0].width, *speeds.tolist()], key=cost)
    bounds = np.log(best) + np.array([-LARGEST_STEP, LARGEST_STEP])
    search = minimize_scalar(lambda x: cost(np.exp(x)), bounds=bounds, method="bounded", options={"xatol": 1e-2})
    local = with_width(float(np.exp(search.x)))
    if "stribeck" not in kinds:
        return [*rest, *local]
    # The columns contain the slope of the width, so that a width that is not quite right is no Stribeck friction.
    least_squares, stribeck = float(np.sum(remainder(scaled(local, with_slope=True)) ** 2)), None
    for speed in np.maximum(speeds, LEAST_STRIBECK * local[0].width):
        term = replace(local[0], kind="stribeck", stribeck_speed=float(speed))
        residual = remainder(scaled([*local, term], with_slope=True))
        squares = float(np.sum(residual**2))
        if squares < least_squares - (0.0 if stribeck else _chance(residual[:, row]) / freedom):
            least_squares, stribeck = squares, term
    return [*rest, *local, *([stribeck] if stribeck else [])]


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
    return recorded, recorded.scaled(model, np.maximum(v, limit), np.maximum(a, limit / REACH_TIME_S))


def _reference_effort(motion: Motion) -> Array:
    """Rms of measured efforts (nv,), at least a hundredth of the largest, also for unmeasured ones."""
    rms = np.sqrt(np.mean(motion.effort**2, axis=0))
    has_effort = motion.usable.any(axis=0)
    return np.asarray(np.where(has_effort, np.maximum(rms, max(0.01 * rms.max(), 1e-9)), max(rms.max(), 1e-9)))


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
    sample = _Sample.of(model, motion, "effort", np.ones(motion.v.shape[1]))
    spring = effort_rows(motion, sample.spring, "effort")
    X = sample.columns(_Friction(tuple(terms), np.zeros(len(terms))))
    fitted = X @ estimate[: X.shape[-1]] + spring
    file = smooth_rows(motion, np.asarray(model.robot.inverse_dynamics(motion.q, motion.v, motion.a)))
    measurement = sample.target(delay) + spring
    return Comparison(motion.t[kept_samples(motion)], measurement, file, fitted, sample.mask, is_fit, is_check, X)


def _joined(comparisons: Sequence[Comparison]) -> Comparison:
    names = ("t", "measurement", "file", "fitted", "usable", "is_fit", "is_check", "columns")
    return Comparison(*(np.concatenate([getattr(comparison, name) for comparison in comparisons]) for name in names))


def _by_joint(robot: RobotQueries, friction: _Friction, regression: Regression, first: int) -> dict[str, JointFriction]:
    widths, errors = file_widths(robot), np.sqrt(np.diag(regression.covariance))
    by_joint = {}
    for index, name in enumerate(robot.configuration.velocity_names):
        term_index = {term.kind: k for k, term in enumerate(friction.terms, start=first) if term.index == index}
        speeds = {speed: friction.speed(index, speed) for k, speed in friction.speeds if k == index}
        speed_errors = {
            speed: value * float(errors[first + len(friction.terms) + friction.speeds.index((index, speed))])
            for speed, value in speeds.items()
        }
        by_joint[name] = JointFriction(
            name,
            {kind: float(regression.estimate[k]) for kind, k in term_index.items()},
            {kind: float(errors[k]) for kind, k in term_index.items()} | speed_errors,
            speeds.get("width", float(widths[index])),
            speeds.get("stribeck_speed"),
        )
    return by_joint


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
