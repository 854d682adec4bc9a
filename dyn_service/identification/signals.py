"""Recordings as smooth motions: even times, zero-phase filters, derivatives without phase, a proposed cut-off.

Positions are filtered by a Butterworth filter forward and backward (zero phase) and differentiated as quintic splines
through the filtered samples, which have no phase either. The filter of positions is twice as wide as the cut-off,
`MOTION_BAND`, so that it does not weaken the motion below the cut-off; `smooth_rows` then filters efforts and columns
of regressors alike at the cut-off itself, so that both sides of tau = Y theta are changed in the same way, also where
friction jumps.

The cut-off is proposed from the spectrum of acceleration, S_a = (2 pi f)^4 S_q: the motion's spectrum falls, the
noise of encoders rises as f^4, and in the valley between them noise begins to exceed the motion. The cut-off is the
upper end of the valley.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import interpolate, signal

from dyn_service.api.arrays import numbers
from dyn_service.api.queries import Array
from dyn_service.errors import InvalidArgumentError
from dyn_service.identification.recordings import Recording

ORDER = 4
"""Of Butterworth filters; applied twice, their gain is 1 / (1 + (f / f_c)^8)."""

MOTION_BAND = 2.0
"""Bandwidth of positions relative to the cut-off: a motion at the cut-off loses 0.4 percent."""

SAMPLES_PER_CYCLE = 16.0
"""Least samples of a motion in a cycle of the cut-off; recordings with more are thinned out, which costs nothing."""

LOWEST_CYCLES = 10.0
"""The proposed cut-off is at least this many cycles in the recording, at least `LOWEST_HZ`."""

VALLEY_DEPTH = 2.0
"""The cut-off is where the spectrum has risen by this factor above its valley, which is flat: more rows remain."""

LOWEST_HZ, HIGHEST_SHARE = 1.0, 0.1
"""Bounds of a proposed cut-off; the upper one is a share of the sampling rate."""

EDGE_CYCLES = 1.0
"""Cycles of the cut-off that are dropped at each end, where the filter lacks samples of one side: the response of the
filter to a step there has fallen to a hundredth."""


@dataclass(frozen=True, eq=False)
class Motion:
    """An evenly sampled, smooth motion.

    t (n,) s; q, v, a, effort (n, nv), effort as recorded, its delay included; usable (n, nv): False where an effort is
    not that of the motion: at a limit of position or effort, or not measured. segment (n,): its number, between
    pauses of the recording. rate_hz: of t. cutoff_hz: of rows made by `smooth_rows`. dense_v: v (.., nv) of each
    segment at `thinning` times the rate, that of the recording.
    """

    t: Array
    q: Array
    v: Array
    a: Array
    effort: Array
    usable: NDArray[np.bool_]
    segment: NDArray[np.intp]
    rate_hz: float
    cutoff_hz: float
    dense_v: tuple[Array, ...]
    thinning: int

    @property
    def stride(self) -> int:
        """Samples between two rows of `smooth_rows`: two rows per cycle of the cut-off, so that the filter leaves
        noise of neighbouring rows nearly uncorrelated.
        """
        return max(1, int(self.rate_hz / (2.0 * self.cutoff_hz)))

    def parts(self) -> list[slice]:
        """The samples of each segment."""
        edges = [0, *(np.flatnonzero(np.diff(self.segment)) + 1).tolist(), len(self.t)]
        return [slice(first, last) for first, last in pairwise(edges)]


def propose_cutoff(recording: Recording) -> float:
    """Returns the cut-off frequency in Hz: the upper end of the valley of the spectrum of acceleration, see the module.

    The spectra of joints are divided by their values at the peak, and averaged as logarithms over joints and over
    bands of a sixth of an octave.
    """
    rate = 1.0 / recording.period_s
    longest = max(recording.segments(), key=lambda rows: rows.stop - rows.start)
    t, q = recording.t[longest], recording.q[longest]
    even = np.arange(t[0], t[-1], 1.0 / rate)
    low = max(LOWEST_HZ, LOWEST_CYCLES / max(t[-1] - t[0], 1e-9))
    high = max(HIGHEST_SHARE * rate, low)
    moving = np.ptp(q, axis=0) > 0.0
    if len(even) < 64 or not moving.any() or high <= low:
        return float(min(low, 0.2 * rate))
    q = interpolate.make_interp_spline(t, q[:, moving], k=3)(even)
    frequency, S_q = signal.welch(q, rate, nperseg=min(len(even), int(8.0 * rate)), axis=0, detrend="linear")
    S_a = S_q[1:] * (2.0 * np.pi * frequency[1:, None]) ** 4
    edges = np.geomspace(low / 2.0, high, max(2, int(6.0 * np.log2(2.0 * high / low)) + 1))
    band = np.digitize(frequency[1:], edges)
    bands = [k for k in range(1, len(edges)) if (band == k).any()]
    level = np.array([np.log(S_a[band == k].mean(axis=0) + np.finfo(float).tiny) for k in bands]).mean(axis=1)
    middle = np.array([np.exp(np.log(frequency[1:][band == k]).mean()) for k in bands])
    in_range = middle >= low
    if not in_range.any():
        return float(low)
    middle, level = middle[in_range], level[in_range]
    return float(middle[level <= level.min() + np.log(VALLEY_DEPTH)][-1])


def filter_motion(
    recording: Recording,
    cutoff_hz: float | None = None,
    *,
    lower: Array | None = None,
    upper: Array | None = None,
    effort_limit: Array | None = None,
) -> Motion:
    """Returns the smooth motion of a recording: even times, filtered positions, their derivatives, efforts.

    cutoff_hz: None: by `propose_cutoff`. lower, upper (nv,): limits of position; samples there are not usable, because
    a stop carries part of the load. effort_limit (nv,): so are samples at which the drive saturates.

    Raises:
        InvalidArgumentError: The recording has less than two rows, the cut-off is not between 0 and 0.4 of the sampling
            rate, or no segment is long enough.
    """
    if len(recording) < 2:
        raise InvalidArgumentError(f"a motion must have at least two rows, found {len(recording)}", path="t")
    rate = 1.0 / recording.period_s
    cutoff = propose_cutoff(recording) if cutoff_hz is None else _frequency(cutoff_hz)
    if not 0.0 < cutoff <= 0.4 * rate:
        text = f"cutoff_hz must be between 0 and 0.4 of the sampling rate, {0.4 * rate:g} Hz, found {cutoff:g}"
        raise InvalidArgumentError(text, path="cutoff_hz")
    usable = _usable(recording, lower, upper, effort_limit)
    thinned = max(1, int(rate / (SAMPLES_PER_CYCLE * cutoff)))
    edge = int(np.ceil(EDGE_CYCLES * rate / cutoff))
    pieces, dense_v = [], []
    for number, rows in enumerate(recording.segments()):
        t = np.arange(recording.t[rows.start], recording.t[rows.stop - 1], 1.0 / rate)
        if len(t) <= 4 * edge:
            continue
        q = _low_pass(_resampled(recording.t[rows], recording.q[rows], t), MOTION_BAND * cutoff, rate)
        effort = _resampled(recording.t[rows], np.nan_to_num(recording.effort[rows]), t)
        effort = _before_thinning(effort, rate, thinned)
        nearest_row = np.searchsorted(recording.t[rows], t, side="right") - 1
        inner = slice(edge, len(t) - edge, thinned)
        v, a = _derivatives(t, q, t[edge : len(t) - edge])
        dense_v.append(v)
        pieces.append(
            (
                t[inner],
                q[inner],
                v[::thinned],
                a[::thinned],
                effort[inner],
                usable[rows][nearest_row][inner],
                np.full(len(t[inner]), number),
            )
        )
    if not pieces:
        text = f"no part of the recording without a gap is longer than {4.0 * EDGE_CYCLES / cutoff:.3g} s, four cycles"
        raise InvalidArgumentError(f"{text} of the cut-off {cutoff:.3g} Hz; record longer, or raise cutoff_hz")
    t, q, v, a, effort, valid, segment = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    return Motion(t, q, v, a, effort, valid, segment, rate / thinned, cutoff, tuple(dense_v), thinned)


def filtered_again(motion: Motion) -> tuple[Motion, NDArray[np.bool_]]:
    """Returns the motion with positions filtered once more, and which rows of `smooth_rows` are so far from the
    ends that the second filter has samples of both sides, too.
    """
    q, v, a, dense_v = *(np.empty_like(motion.q) for _ in range(3)), []
    is_inner = np.zeros(len(motion.t), dtype=bool)
    distance = 2 * int(np.ceil(EDGE_CYCLES * motion.rate_hz / motion.cutoff_hz))
    for part, previous in zip(motion.parts(), motion.dense_v, strict=True):
        t = motion.t[part]
        q[part] = _low_pass(motion.q[part], MOTION_BAND * motion.cutoff_hz, motion.rate_hz)
        v[part], a[part] = _derivatives(t, q[part], t)
        dense_v.append(
            _derivatives(t, q[part], t[0] + np.arange(len(previous)) / (motion.thinning * motion.rate_hz))[0]
        )
        is_inner[part.start + distance : part.stop - distance] = True
    return replace(motion, q=q, v=v, a=a, dense_v=tuple(dense_v)), is_inner[kept_samples(motion)]


def at_rate(motion: Motion, function: Callable[[Array], Array]) -> Array:
    """Returns a function of velocities (.., nv) at the times of a motion; nothing is folded into the band.

    It is computed at the rate of the recording, as efforts are: friction jumps within one sample.
    """
    rate = motion.thinning * motion.rate_hz
    parts = []
    for v in motion.dense_v:
        x = function(v)
        thin = x[:: motion.thinning].copy()
        nonzero = x.any(axis=0)
        thin[:, nonzero] = _before_thinning(x[:, nonzero], rate, motion.thinning)[:: motion.thinning]
        parts.append(thin)
    return np.concatenate(parts)


def _before_thinning(x: Array, rate: float, thinning: int) -> Array:
    """Returns x below half of the new rate, so that thinning out folds no noise into the band of the cut-off."""
    return _low_pass(x, 0.4 * rate / thinning, rate) if thinning > 1 else x


def _derivatives(t: Array, q: Array, times: Array) -> list[Array]:
    """Returns velocities and accelerations at some times."""
    position = interpolate.make_interp_spline(t, q, k=5)
    return [position.derivative(order)(times) for order in (1, 2)]


def smooth_rows(motion: Motion, x: Array, order: int = 0, shift_s: float = 0.0) -> Array:
    """Returns x (n, ..) filtered at the cut-off, at every `stride`-th sample less the edges of segments.

    order: 1 returns the derivative to time of the filtered x. shift_s: x at t + shift_s.
    """
    rows = []
    for part, inner in zip(motion.parts(), _kept(motion), strict=True):
        smooth = _low_pass(x[part], motion.cutoff_hz, motion.rate_hz)
        if order or shift_s:
            t = motion.t[part]
            smooth = interpolate.make_interp_spline(t, smooth, k=5)(t[inner] + shift_s, nu=order)
            rows.append(smooth)
        else:
            rows.append(smooth[inner])
    return np.concatenate(rows)


def kept_samples(motion: Motion) -> NDArray[np.intp]:
    """Returns the indices in the motion of the rows of `smooth_rows`."""
    samples = np.arange(len(motion.t))
    return np.concatenate([samples[part][inner] for part, inner in zip(motion.parts(), _kept(motion), strict=True)])


def usable_rows(motion: Motion) -> NDArray[np.bool_]:
    """Returns for each row of `smooth_rows` and joint whether all samples that the filter mixes are usable."""
    width = 2 * int(np.ceil(motion.rate_hz / (2.0 * motion.cutoff_hz))) + 1
    rows = []
    for part, inner in zip(motion.parts(), _kept(motion), strict=True):
        unusable = ~motion.usable[part]
        mixed = signal.oaconvolve(unusable.astype(float), np.ones((width, 1)), mode="same", axes=0) > 0.5
        rows.append(~mixed[inner])
    return np.concatenate(rows)


def _frequency(cutoff_hz: object) -> float:
    number = numbers(cutoff_hz)
    if number is None or number.shape:
        raise InvalidArgumentError(f"cutoff_hz must be a number in Hz, found {cutoff_hz!r}", path="cutoff_hz")
    return float(number)


def _kept(motion: Motion) -> list[slice]:
    edge = int(np.ceil(EDGE_CYCLES * motion.rate_hz / motion.cutoff_hz))
    return [slice(edge, max(edge, part.stop - part.start - edge), motion.stride) for part in motion.parts()]


def _resampled(t: Array, x: Array, even: Array) -> Array:
    """Returns x at even times, by a cubic spline: noise passes, but phase and amplitude below a third of the rate do
    not change.
    """
    return np.asarray(interpolate.make_interp_spline(t, x, k=3)(even))


@lru_cache(maxsize=32)
def _sections(frequency: float, rate: float) -> Array:
    return np.asarray(signal.butter(ORDER, frequency, fs=rate, output="sos"))


def _low_pass(x: Array, frequency: float, rate: float) -> Array:
    sos = _sections(min(frequency, 0.45 * rate), rate)
    padding = min(len(x) - 1, int(3.0 * rate / frequency))
    return np.asarray(signal.sosfiltfilt(sos, x, axis=0, padlen=padding))


def _usable(
    recording: Recording, lower: Array | None, upper: Array | None, effort_limit: Array | None
) -> NDArray[np.bool_]:
    usable = np.isfinite(recording.effort)
    margin = 1e-3
    if lower is not None and upper is not None:
        span = np.where(np.isfinite(upper - lower), upper - lower, 0.0)
        usable &= (recording.q > lower + margin * span) & (recording.q < upper - margin * span)
    if effort_limit is not None:
        limited = (effort_limit > 0.0) & np.isfinite(effort_limit)
        usable &= ~limited | (np.abs(np.nan_to_num(recording.effort)) < (1.0 - margin) * effort_limit)
    return usable
