"""Real sensors: each error by itself is what its setting says, and the same seed gives the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dyn_service.errors import InvalidArgumentError
from dyn_service.sensors.devices import Cascade, Device, Encoder, force_torque, imu, sections_of
from dyn_service.sensors.settings import EncoderSettings, Errors, Filter, ForceTorqueSettings, ImuSettings
from tests.phrases import naming

RATE = 1000.0


def one_axis(
    errors: Errors | None = None, low_pass: Filter | None = None, *, seed: int = 0, latency_s: float = 0.0
) -> Device:
    """A sensor of one axis."""
    return Device("one", RATE, latency_s, [errors or Errors()], low_pass, axes=1, seed=seed)


def samples(device: Device, truth: np.ndarray) -> np.ndarray:
    """What it reads of one value a sample, (K,)."""
    return device.record(np.arange(len(truth)) / RATE, np.asarray(truth, dtype=float)[:, None]).value[:, 0]


def test_a_sensor_without_errors_reads_what_is_true() -> None:
    truth = np.random.default_rng(0).normal(size=50)
    assert np.array_equal(samples(one_axis(), truth), truth)


def test_the_same_seed_gives_the_same_bits_and_another_others() -> None:
    wrong = Errors(bias_spread=1.0, bias_walk=0.1, noise_density=0.01)
    truth = np.zeros(200)
    first = samples(one_axis(wrong, seed=3), truth)
    assert first.tobytes() == samples(one_axis(wrong, seed=3), truth).tobytes()
    other = samples(one_axis(wrong, seed=4), truth)
    assert not np.isin(first, other).any()
    device = one_axis(wrong, Filter(cutoff_hz=50.0), seed=3)
    first_run = samples(device, truth)
    device.tare(5)
    samples_after = device.record(1.0 + np.arange(10) / RATE, np.zeros((10, 1))).value
    device.reset(3)
    assert samples(device, truth).tobytes() == first_run.tobytes()
    assert samples_after.any()


def test_sensors_of_every_kind_draw_by_their_seed_and_name_and_come_late() -> None:
    wrong = Errors(noise_density=0.01)
    kinds: dict[Callable[..., Device], Any] = {
        Encoder: EncoderSettings(step=1e-9, noise=0.02, rate_hz=RATE, latency_s=0.25),
        imu: ImuSettings(link="a", accelerometer=wrong, gyroscope=wrong, rate_hz=RATE, latency_s=0.25),
        force_torque: ForceTorqueSettings(joint="a", force=wrong, torque=wrong, rate_hz=RATE, latency_s=0.25),
    }
    for make, settings in kinds.items():
        read = []
        for name, seed in (("a", 1), ("a", 1), ("a", 2), ("b", 1)):
            device = make(name, settings, seed=seed)
            truth = np.zeros(1 if make is Encoder else 6)
            device.offer(0.0, truth)
            assert device.read(0.2) is None
            reading = device.read(0.25)
            assert reading is not None
            read.append(reading.value.tobytes())
        assert read[0] == read[1]
        assert len(set(read)) == 3, make


def test_each_sensor_draws_for_itself() -> None:
    """Its name is part of its seed, and what one error draws moves no other's bits."""
    noisy = Errors(noise_density=0.01)
    a, b = (Device(name, RATE, 0.0, [noisy], axes=1, seed=1) for name in ("left", "right"))
    truth = np.zeros(100)
    assert abs(np.corrcoef(samples(a, truth), samples(b, truth))[0, 1]) < 0.4
    white = samples(one_axis(noisy), truth)
    walking = samples(one_axis(Errors(noise_density=0.01, bias_walk=1e-9)), truth)
    assert np.abs(white - walking).max() < 1e-8
    axes = Device("three", RATE, 0.0, [noisy]).record(np.arange(2000) / RATE, np.zeros((2000, 3))).value
    assert np.abs(np.corrcoef(axes.T) - np.eye(3)).max() < 0.1


def test_the_mean_of_white_noise_falls_with_the_root_of_time() -> None:
    import scipy.stats

    density, runs = 0.02, 200
    device = Device("many", RATE, 0.0, [Errors(noise_density=density)], axes=runs)
    read = device.record(np.arange(1000) / RATE, np.zeros((1000, runs))).value.T
    for averaged in (1, 10, 100, 1000):
        means = read.reshape(runs, -1, averaged).mean(axis=2).ravel()
        expected = density / math.sqrt(averaged / RATE)
        assert means.std() == pytest.approx(expected, rel=5.0 / math.sqrt(2 * len(means)))  # five standard deviations
    assert abs(read.mean()) < 5 * density / math.sqrt(read.size / RATE)
    assert scipy.stats.kstest(read.ravel() / read.std(), "norm").pvalue > 1e-4


def test_the_bias_wanders_with_the_root_of_time() -> None:
    walk, runs = 0.3, 2000
    device = Device("many", RATE, 0.0, [Errors(bias_walk=walk)], axes=runs)
    read = device.record(np.arange(401) / RATE, np.zeros((401, runs))).value
    assert not read[0].any()
    for k in (1, 4, 100, 400):
        assert read[k].std() == pytest.approx(walk * math.sqrt(k / RATE), rel=5.0 / math.sqrt(2 * runs))
    steps = np.diff(read, axis=0)
    assert abs(np.corrcoef(steps[0], steps[1])[0, 1]) < 5.0 / math.sqrt(runs)


def test_the_bias_wanders_on_through_samples_that_were_missed() -> None:
    runs = 2000
    device = Device("many", RATE, 0.0, [Errors(bias_walk=1.0)], axes=runs)
    read = device.record([0.0, 0.25], np.zeros((2, runs))).value
    assert read[1].std() == pytest.approx(0.5, rel=5.0 / math.sqrt(2 * runs))


def test_biases_are_there_from_the_start_and_stay() -> None:
    read = samples(one_axis(Errors(bias=-0.75)), np.ones(20))
    assert np.array_equal(read, np.full(20, 0.25))
    runs = 4000
    device = Device("many", RATE, 0.0, [Errors(bias=2.0, bias_spread=0.5)], axes=runs)
    biases = device.record([0.0, 1.0], np.zeros((2, runs))).value
    assert np.array_equal(biases[0], biases[1])
    assert biases[0].mean() == pytest.approx(2.0, abs=5 * 0.5 / math.sqrt(runs))
    assert biases[0].std() == pytest.approx(0.5, rel=5.0 / math.sqrt(2 * runs))


def test_readings_end_at_the_range() -> None:
    device = one_axis(Errors(range=2.0))
    truth = np.array([-1e9, -2.0, -1.99, 0.0, 1.99, 2.0, 2.0000001, 1e300])
    record = device.record(np.arange(8) / RATE, truth[:, None])
    assert record.value[:, 0].tolist() == [-2.0, -2.0, -1.99, 0.0, 1.99, 2.0, 2.0, 2.0]
    assert record.clipped[:, 0].tolist() == [True, False, False, False, False, False, True, True]


def test_readings_are_whole_counts_and_the_nearest() -> None:
    step, edge = 0.07, 1.0
    truth = np.random.default_rng(1).uniform(-1.5, 1.5, 2000)
    read = samples(one_axis(Errors(step=step, range=edge)), truth)
    counts = np.rint(read / step)
    assert np.array_equal(counts * step, read)
    assert np.abs(read).max() == math.floor(edge / step) * step  # no count beyond the range
    in_range = np.abs(truth) < 0.97
    assert np.abs(read - truth)[in_range].max() <= step / 2 * (1 + 1e-12)
    assert len(np.unique(counts)) == 2 * math.floor(edge / step) + 1
    whole = samples(one_axis(Errors(step=0.1, range=0.3)), np.array([9.0, -9.0]))
    assert whole == pytest.approx([0.3, -0.3])  # 0.3 / 0.1 is three counts, whatever it is in doubles


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("cutoff", [1.0, 37.0, 200.0, 499.0])
def test_filters_are_butterworths(order: int, cutoff: float) -> None:
    import scipy.signal

    sections = sections_of(Filter(cutoff_hz=cutoff, order=order), RATE)  # type: ignore[arg-type]
    expected = scipy.signal.butter(order, cutoff, fs=RATE, output="sos")
    assert sections == pytest.approx(expected, rel=1e-11, abs=1e-14)


def test_filters_answer_as_scipys() -> None:
    import scipy.signal

    sections = scipy.signal.cheby1(4, 1.0, 80.0, fs=RATE, output="sos")
    for low_pass in (
        Filter(cutoff_hz=60.0),
        Filter(cutoff_hz=60.0, order=2),
        Filter(sections=tuple(map(tuple, sections.tolist()))),
    ):
        truth = np.random.default_rng(2).normal(size=500) + 3.0
        sos = sections_of(low_pass, RATE)
        initial_state = scipy.signal.sosfilt_zi(sos) * truth[0]
        assert samples(one_axis(low_pass=low_pass), truth) == pytest.approx(
            scipy.signal.sosfilt(sos, truth, zi=initial_state)[0], rel=1e-10, abs=1e-10
        )
    scaled_filter = Filter(sections=tuple(tuple(3.0 * x for x in row) for row in sections.tolist()))
    assert sections_of(scaled_filter, RATE) == pytest.approx(sections)


def test_a_filter_has_stood_at_its_first_sample() -> None:
    cascade = Cascade(sections_of(Filter(cutoff_hz=5.0, order=2), RATE))
    for _ in range(3):
        assert cascade(np.array([4.0])) == pytest.approx([4.0], rel=1e-12)
    cascade.reset()
    assert cascade(np.array([-1.0])) == pytest.approx([-1.0], rel=1e-12)


def test_the_filter_comes_before_range_and_counts() -> None:
    """What overshoots in the filter is cut, and what it smooths is counted."""
    step = np.concatenate([np.zeros(5), np.full(100, 1.0)])
    overshooting = Filter(cutoff_hz=50.0, order=2)
    assert samples(one_axis(low_pass=overshooting), step).max() > 1.03
    read = samples(one_axis(Errors(range=1.0, step=0.25), overshooting), step)
    assert read.max() == 1.0
    assert set(read.tolist()) == {0.0, 0.25, 0.5, 0.75, 1.0}


def test_tare_takes_off_the_mean_of_the_next_samples() -> None:
    device = one_axis()
    truth = np.array([5.0, 1.0, 2.0, 6.0, 7.0, 8.0])
    first = device.record([0.0], truth[:1, None]).value[:, 0]
    device.tare(3)
    rest = device.record(np.arange(1, 6) / RATE, truth[1:, None]).value[:, 0]
    assert [*first, *rest] == [5.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    device.tare()
    assert device.record([0.006, 0.007], np.array([[9.0], [10.0]])).value[:, 0].tolist() == [0.0, 1.0]
    assert device.tared.tolist() == [9.0]
    device.reset(0)
    assert device.record([0.0], [[5.0]]).value.tolist() == [[5.0]]
    with pytest.raises(InvalidArgumentError, match="samples is 0, expected at least 1"):
        device.tare(0)


def test_the_range_is_that_of_what_is_not_tared() -> None:
    device = one_axis(Errors(range=10.0))
    device.tare()
    assert device.record([0.0, 0.1, 0.2], [[4.0], [50.0], [-50.0]]).value[:, 0].tolist() == [0.0, 6.0, -14.0]


def test_samples_are_taken_at_the_rate_and_come_late() -> None:
    device = one_axis(latency_s=0.0025)
    came = []
    for k in range(40):  # four looks at each sample
        t = k / (4 * RATE)
        device.offer(t, [float(k)])
        reading = device.read(t)
        came.append(None if reading is None else (reading.seq, reading.stamp, float(reading.value[0])))
    assert came[:10] == [None] * 10
    for k in range(10, 40):
        seq = (k - 10) // 4
        assert came[k] == (seq, seq / RATE, 4.0 * seq)


def test_no_sample_is_lost_to_the_rounding_of_times() -> None:
    device, t = Device("one", 10_000.0, 0.0, [Errors()], axes=1), 0.0
    numbers = []
    for k in range(5000):
        device.offer(t, [float(k)])
        reading = device.read(t)
        assert reading is not None
        numbers.append(reading.seq)
        t += 1e-4
    assert numbers == list(range(5000))


def test_time_does_not_go_back_but_by_a_reset() -> None:
    device = one_axis()
    device.offer(1.0, [1.0])
    device.offer(1.0005, [2.0])  # nothing is due
    assert device.read(1.0005).value.tolist() == [1.0]  # type: ignore[union-attr]
    with pytest.raises(InvalidArgumentError, match=naming("'one'", "1 s", "t = 0.5")):
        device.offer(0.5, [1.0])
    with pytest.raises(InvalidArgumentError, match="reset it first"):
        device.due(0.5)
    with pytest.raises(InvalidArgumentError, match="reset it first"):
        device.record([1.5, 0.5], [[1.0], [1.0]])
    device.reset(0)
    assert device.read(2.0) is None
    device.offer(0.5, [3.0])
    assert device.read(0.5).value.tolist() == [3.0]  # type: ignore[union-attr]


def test_a_record_may_be_without_samples() -> None:
    """A motion that is recorded piece by piece may have pieces in which nothing is due."""
    force, turn = (
        Device("wrist", 100.0, 0.0, [Errors(), Errors()]),
        Encoder("j", EncoderSettings(step=1.0, rate_hz=100.0)),
    )
    for device, outputs in ((force, 6), (turn, 2)):
        truth = np.zeros((2, device.channels))
        assert device.record([0.0, 0.001], truth).value.shape == (1, outputs)
        for empty in (device.record([0.002, 0.003], truth), device.record([], truth[:0])):
            assert (empty.stamp.shape, empty.value.shape, empty.clipped.shape) == ((0,), (0, outputs), (0, outputs))


@pytest.mark.parametrize("truth", [[np.nan], [np.inf], [1.0, 2.0], 1.0])
def test_what_is_no_value_is_refused_and_leaves_nothing(truth: object) -> None:
    device = one_axis(Errors(noise_density=1.0), Filter(cutoff_hz=10.0))
    with pytest.raises(InvalidArgumentError, match="sensor 'one' takes 1 finite numbers"):
        device.offer(0.0, truth)  # type: ignore[arg-type]
    device.offer(0.0, [1.0])
    assert np.isfinite(device.read(0.0).value).all()  # type: ignore[union-attr]
    with pytest.raises(InvalidArgumentError, match="t is nan, expected a finite time"):
        device.due(math.nan)


def encoder(**settings: object) -> Encoder:
    return Encoder("joint", EncoderSettings(rate_hz=RATE, **settings))  # type: ignore[arg-type]


def encoded(device: Encoder, q: np.ndarray, t: np.ndarray | None = None) -> np.ndarray:
    return device.record(np.arange(len(q)) / RATE if t is None else t, q[:, None]).value


def test_encoders_read_whole_counts() -> None:
    settings = EncoderSettings(counts_per_turn=2048, gear_ratio=50, rate_hz=RATE)
    assert settings.count == 2 * math.pi / (2048 * 50)
    q = np.random.default_rng(3).uniform(-20.0, 20.0, 300)  # more turns than one
    read = encoded(Encoder("joint", settings), q)[:, 0]
    assert np.array_equal(np.rint(read / settings.count) * settings.count, read)
    assert np.abs(read - q).max() <= settings.count / 2 * (1 + 1e-9)
    shifted = encoded(encoder(step=0.5, offset=0.3), np.array([0.0, 0.25, 0.7]))
    assert shifted[:, 0].tolist() == [0.5, 0.5, 1.0]
    noisy = encoded(encoder(step=1e-9, noise=0.02), np.zeros(5000))
    assert noisy[:, 0].std() == pytest.approx(0.02, rel=5.0 / math.sqrt(10_000))


def test_velocities_are_differences_of_positions() -> None:
    q = np.cumsum(np.random.default_rng(4).normal(size=100)) * 0.01
    for sample_distance in (1, 7):
        read = encoded(encoder(step=1e-3, velocity_samples=sample_distance), q)
        position, velocity = read.T
        assert velocity[0] == 0.0
        for k in range(1, 100):
            back = min(k, sample_distance)
            assert velocity[k] == pytest.approx((position[k] - position[k - back]) * RATE / back, abs=1e-9)
    slow = encoded(encoder(step=1e-3), 0.1 / RATE * np.arange(100))[:, 1]  # ten samples a count
    assert set(np.round(slow, 9).tolist()) == {0.0, 1.0}
    assert slow[1:].mean() == pytest.approx(0.1, abs=0.02)


def test_velocities_count_the_time_that_has_gone_by() -> None:
    read = encoded(encoder(step=1e-6), np.array([0.0, 0.002, 0.012]), np.array([0.0, 0.001, 0.006]))
    assert read[:, 1] == pytest.approx([0.0, 2.0, 2.0])


def test_velocities_are_filtered_and_a_tare_is_no_motion() -> None:
    import scipy.signal

    low_pass = Filter(cutoff_hz=40.0)
    q = np.random.default_rng(5).normal(size=60)
    raw, smooth = (encoded(encoder(step=1e-3, velocity_filter=f), q)[:, 1] for f in (None, low_pass))
    assert smooth == pytest.approx(scipy.signal.sosfilt(sections_of(low_pass, RATE), raw), rel=1e-9, abs=1e-9)
    device = encoder(step=1e-3)
    encoded(device, np.full(2, 0.5))
    device.tare()
    assert encoded(device, np.full(3, 0.5), np.arange(2, 5) / RATE).tolist() == [[0.0, 0.0]] * 3
    filtered = encoder(step=1e-3, velocity_filter=low_pass)
    first_run = encoded(filtered, q)
    filtered.reset(0)
    assert encoded(filtered, q).tobytes() == first_run.tobytes()
    moving = encoder(step=1e-3)
    first = encoded(moving, np.array([0.0, 1.0]))
    moving.reset(0)
    assert encoded(moving, np.array([5.0]))[0].tolist() == [5.0, 0.0]
    assert first[1, 1] == 1000.0


def test_a_kind_has_its_channels_in_order() -> None:
    wrist = force_torque(
        "wrist",
        ForceTorqueSettings(
            joint="j", rate_hz=RATE, force=Errors(bias=(1.0, 2.0, 3.0)), torque=Errors(bias=4.0, range=(4.5, 9.0, 9.0))
        ),
    )
    assert wrist.record([0.0], np.ones((1, 6))).value.tolist() == [[2.0, 3.0, 4.0, 4.5, 5.0, 5.0]]
    unit = imu("imu", ImuSettings(link="l", rate_hz=RATE, accelerometer=Errors(step=2.0), gyroscope=Errors(step=5.0)))
    assert unit.record([0.0], np.full((1, 6), 4.1)).value.tolist() == [[4.0, 4.0, 4.0, 5.0, 5.0, 5.0]]


WRONG = [
    (lambda: Errors(noise_density=-1.0), ["noise_density", "0", "-1"]),
    (lambda: Errors(bias=(0.0, math.nan, 0.0)), ["bias", "nan"]),
    (lambda: Errors(step=math.inf), ["step", "0", "inf"]),
    (lambda: Errors(range=0.0), ["range", "0", "more"]),
    (lambda: Errors(range=(1.0, 1.0, -1.0)), ["range", "0", "-1"]),
    (lambda: Errors(bias_spread=-1.0), ["bias_spread", "0", "-1"]),
    (lambda: Errors(bias_walk=(0.0, 0.0, -1.0)), ["bias_walk must be"]),
    (lambda: Filter(), ["cutoff_hz", "sections", "neither"]),
    (lambda: Filter(cutoff_hz=1.0, sections=()), ["found both"]),
    (lambda: Filter(sections=((1.0, 0.0, 0.0, 1.0, -2.0, 1.0),)), ["sections[0] is not stable"]),
    (lambda: Filter(sections=((1.0, 0.0, 0.0, 0.0, 0.0, 0.0),)), ["sections[0] is not stable"]),
    (lambda: Filter(sections=((1.0, 0.0, 0.0, 1.0, 0.0, 1.1),)), ["sections[0] is not stable"]),
    (lambda: Filter(sections=((1.0, 0.0, 0.0, 2.0, -3.0, 0.0),)), ["sections[0] is not stable"]),
    (lambda: Filter(sections=((math.nan, 0.0, 0.0, 1.0, 0.0, 0.0),)), ["sections", "finite"]),
    (lambda: ImuSettings(link="l", rate_hz=100.0, filter=Filter(cutoff_hz=50.0)), ["filter.cutoff_hz", "50"]),
    (lambda: ImuSettings(link="l", rate_hz=1e6, latency_s=1.0), ["latency_s", "1", "100000"]),
    (lambda: ImuSettings(link="l", rate_hz=1e3, rpy=(0.0, 0.0, math.nan)), ["rpy must be a finite number"]),
    (lambda: ForceTorqueSettings(joint="j", rate_hz=1e3, xyz=(0.0, math.inf, 0.0)), ["xyz must be a finite number"]),
    (lambda: EncoderSettings(rate_hz=1.0), ["counts_per_turn", "encoder", "neither"]),
    (lambda: EncoderSettings(rate_hz=1.0, step=1.0, counts_per_turn=4.0), ["found both"]),
]


@pytest.mark.parametrize(("make", "values"), WRONG)
def test_settings_that_no_sensor_has(make: object, values: list[str]) -> None:
    with pytest.raises(InvalidArgumentError, match=naming(*values)):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_whether_a_section_is_stable_does_not_depend_on_its_scale(scale: float) -> None:
    """The poles of z^2 - 1.5 z + 0.6 are inside the unit circle; of z^2 - 1.7 z + 0.6, one is at 1.05."""
    stable, unstable = ((scale, 0.0, 0.0, scale, scale * a1, scale * 0.6) for a1 in (-1.5, -1.7))
    assert np.abs(np.roots(stable[3:])).max() < 1.0 < np.abs(np.roots(unstable[3:])).max()
    Filter(sections=(stable,))
    for wrong in (unstable, (1.0, 0.0, 0.0, 1.0, -1.5, 0.5)):  # the second has a pole at 1
        with pytest.raises(InvalidArgumentError, match="is not stable"):
            Filter(sections=(wrong,))


def test_latency_is_bounded_by_the_samples_that_are_on_their_way() -> None:
    """A fast sensor without latency, and a slow one with much, have few."""
    for rate_hz, latency_s in ((1e6, 0.0), (1e6, 0.1), (0.1, 1e6)):
        assert ImuSettings(link="l", rate_hz=rate_hz, latency_s=latency_s).latency_s == latency_s
    with pytest.raises(InvalidArgumentError, match=r"latency_s is 1\.1e"):
        ImuSettings(link="l", rate_hz=0.1, latency_s=1.1e6)


def test_settings_made_in_code_are_held_to_the_bounds_of_files() -> None:
    for settings, words in (
        (ImuSettings(link="l", rate_hz=-1.0), "rate_hz"),
        (ImuSettings(link="l", rate_hz=math.nan), "rate_hz"),
        (ImuSettings(link="l", rate_hz=10.0, latency_s=-0.1), "latency_s"),
    ):
        with pytest.raises(InvalidArgumentError) as error:
            imu("imu", settings)
        assert error.value.path == words
