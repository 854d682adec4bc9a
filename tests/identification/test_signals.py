"""Filters and derivatives against sines in closed form; the proposed cut-off; samples that are not usable."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dyn_service.errors import InvalidArgumentError
from dyn_service.identification import Recording, filter_motion, propose_cutoff
from dyn_service.identification.signals import kept_samples, smooth_rows, usable_rows

RATE, OMEGA = 200.0, 2.0 * np.pi * 0.7


def sines(duration_s: float = 20.0, jitter_s: float = 0.0, noise: float = 0.0, seed: int = 0) -> Recording:
    """A sine of 0.7 Hz and a cosine of 1.4 Hz."""
    rng = np.random.default_rng(seed)
    t = np.arange(0.0, duration_s, 1.0 / RATE)
    t = t + jitter_s * rng.uniform(-1.0, 1.0, len(t))
    q = np.column_stack([np.sin(OMEGA * t), 0.3 * np.cos(2.0 * OMEGA * t)])
    return Recording(t, q + noise * rng.standard_normal(q.shape), q.copy(), ("a", "b"))


def test_derivatives_have_neither_phase_nor_loss() -> None:
    motion = filter_motion(sines(jitter_s=1e-3), cutoff_hz=8.0)
    t = motion.t
    v = np.column_stack([OMEGA * np.cos(OMEGA * t), -0.6 * OMEGA * np.sin(2.0 * OMEGA * t)])
    a = np.column_stack([-(OMEGA**2) * np.sin(OMEGA * t), -1.2 * OMEGA**2 * np.cos(2.0 * OMEGA * t)])
    # At the ends of the motion filters have seen one side only: 0.4 percent of the acceleration, less in the middle.
    np.testing.assert_allclose(motion.v, v, atol=2e-4 * np.abs(v).max())
    np.testing.assert_allclose(motion.a, a, atol=5e-3 * np.abs(a).max())
    inside = slice(200, -200)
    np.testing.assert_allclose(motion.a[inside], a[inside], atol=1e-4 * np.abs(a).max())
    assert motion.usable.all()


def test_rows_of_efforts_are_filtered_without_phase_and_shifted_to_earlier_times() -> None:
    motion = filter_motion(sines(), cutoff_hz=8.0)
    t = motion.t[kept_samples(motion)]
    # The gain at 1.4 Hz is 1 - (1.4 / 8)^8.
    np.testing.assert_allclose(smooth_rows(motion, motion.effort)[:, 0], np.sin(OMEGA * t), atol=2e-4)
    late = smooth_rows(motion, motion.effort, shift_s=0.02)[:, 0]
    np.testing.assert_allclose(late, np.sin(OMEGA * (t + 0.02)), atol=2e-4)
    rate = smooth_rows(motion, motion.effort, order=1)[:, 0]
    np.testing.assert_allclose(rate[5:-5], OMEGA * np.cos(OMEGA * t[5:-5]), atol=2e-3)  # less the ends


@pytest.mark.parametrize("noise", [1e-3, 1e-5])
def test_the_cut_off_lies_between_motion_and_noise(noise: float) -> None:
    cutoff = propose_cutoff(sines(noise=noise))
    assert 1.4 < cutoff <= 0.1 * RATE
    # Less noise leaves a wider band.
    assert propose_cutoff(sines(noise=noise / 10.0)) >= cutoff


def test_gaps_are_not_bridged() -> None:
    whole = sines()
    rows = (whole.t < 9.0) | (whole.t > 11.0)
    gapped = replace(whole, t=whole.t[rows], q=whole.q[rows], effort=whole.effort[rows])
    motion = filter_motion(gapped, cutoff_hz=8.0)
    assert set(motion.segment.tolist()) == {0, 1}
    assert not ((motion.t > 8.9) & (motion.t < 11.1)).any()
    v = OMEGA * np.cos(OMEGA * motion.t)
    np.testing.assert_allclose(motion.v[:, 0], v, atol=2e-3 * OMEGA)


def test_stops_saturation_and_unmeasured_efforts_are_not_usable() -> None:
    recording = sines()
    effort = recording.effort.copy()
    effort[:, 1] = np.nan
    bounds = {"lower": np.array([-0.9, -1.0]), "upper": np.array([2.0, 1.0]), "effort_limit": np.array([0.95, 0.0])}
    motion = filter_motion(replace(recording, effort=effort), cutoff_hz=8.0, **bounds)
    free = (np.sin(OMEGA * motion.t) > -0.88) & (np.sin(OMEGA * motion.t) < 0.93)
    blocked = (np.sin(OMEGA * motion.t) < -0.91) | (np.sin(OMEGA * motion.t) > 0.96)
    assert motion.usable[free, 0].all()
    assert not motion.usable[blocked, 0].any()
    assert not motion.usable[:, 1].any()
    rows = usable_rows(motion)
    assert not rows[blocked[kept_samples(motion)], 0].any()
    assert rows[:, 0].any()


def test_what_cannot_be_filtered_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"80 Hz.*found 90"):
        filter_motion(sines(), cutoff_hz=90.0)
    with pytest.raises(InvalidArgumentError, match="record longer"):
        filter_motion(sines(duration_s=0.3), cutoff_hz=5.0)


def test_thinned_efforts_fold_no_noise_into_the_motion() -> None:
    """At 33.3 Hz 32 Hz would appear as 1.3 Hz; of it the filter at 13.3 Hz, applied twice, leaves (13.3 / 32)^8."""
    t = np.arange(0.0, 8.0, 0.005)
    noise = np.sin(2.0 * np.pi * 32.0 * t)[:, None]
    motion = filter_motion(Recording(t, np.sin(t)[:, None], noise, ("a",)), 2.0)
    assert motion.rate_hz == pytest.approx(200.0 / 6.0)
    assert np.abs(motion.effort).max() < 2.0 * (13.3 / 32.0) ** 8
