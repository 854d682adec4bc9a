"""What each fault does to messages, by value; that chance comes from the seed; how faults add up."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError
from dyn_service.hil.faults import (
    Bias,
    Channel,
    Delay,
    Fault,
    HotMotor,
    Jitter,
    Killed,
    Loss,
    Noise,
    NotANumber,
    Reorder,
    SaggingSupply,
    Saturation,
    Stale,
    Swapped,
    WornGear,
    WrongPayload,
    check_faults,
)
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState
from dyn_service.model.configuration import Configuration
from tests.graph.many_ways import MANY_WAYS
from tests.phrases import naming, unnamed

AT = Configuration.from_wire([{"name": name, "type": "continuous", "axis": [0, 0, 1]} for name in ("a", "b", "c")])


def state(seq: int, configuration: Configuration = AT, q=None) -> PlantState:
    q = [0.1 * seq + k for k in range(configuration.nq)] if q is None else q
    v = [1.0 + k for k in range(configuration.nv)]
    end = ("active", "", 0.0, 0, True, seq - 1, 0.001, "f00")
    return PlantState(1, seq, 1e-3 * seq, configuration.velocity_names, q, v, [0.0] * configuration.nv, *end)


def command(seq: int, name=("c", "a", "b"), effort=(30.0, 10.0, 20.0)) -> JointCommand:
    return JointCommand(1, seq, 0, "f00", 5, name, list(effort))


def through(faults, count: int = 1000, seed: int = 0, channel="commands", make=command) -> list[tuple[float, object]]:
    """What arrives of so many messages that are sent every ms: when, and what."""
    line: Channel = Channel(faults, channel, seed, AT)
    arrived = []
    for seq in range(count):
        line.send(make(seq), 1e-3 * seq)
        arrived += [(1e-3 * seq, message) for message in line.due(1e-3 * seq)]
    while line.next_s < math.inf:
        now = line.next_s
        arrived += [(now, message) for message in line.due(now)]
    return arrived


def seqs(arrived) -> list[int]:
    return [message.state_seq if isinstance(message, JointCommand) else message.seq for _, message in arrived]


def test_without_faults_all_arrives_at_once_as_it_is() -> None:
    arrived = through([])
    assert seqs(arrived) == list(range(1000))
    assert [t for t, _ in arrived] == [1e-3 * seq for seq in range(1000)]
    assert arrived[3][1] == command(3)


def test_delay() -> None:
    arrived = through([Delay(0.02, from_s=0.1, until_s=0.2)])
    late = [t - 1e-3 * message.state_seq for t, message in arrived]
    by_seq = dict(zip(seqs(arrived), late, strict=True))
    expected = [0.02 if 100 <= seq < 200 else 0.0 for seq in range(1000)]
    assert [by_seq[seq] for seq in range(1000)] == pytest.approx(expected, abs=1e-12)
    # those of the last 20 ms of the window are overtaken by the ones after it
    assert seqs(arrived) != sorted(seqs(arrived))


def test_jitter_keeps_the_order_and_its_bound() -> None:
    arrived = through([Jitter(0.004)])
    late = np.array([t - 1e-3 * message.state_seq for t, message in arrived])
    assert seqs(arrived) == list(range(1000))
    assert late.min() >= 0.0
    assert 0.0035 < late.max() <= 0.004 + 1e-9
    assert 0.002 < late.mean() < 0.0035  # a uniform delay of 2 ms in the mean, and more for those who wait in line


@pytest.mark.parametrize("burst", [1, 5])
def test_loss_is_the_share_that_it_says(burst: int) -> None:
    arrived = seqs(through([Loss(0.2, burst)], count=20_000))
    lost_seqs = sorted(set(range(20_000)) - set(arrived))
    # a deviation of sqrt(0.2 0.8 burst / 20000), 0.003 for single ones and about 0.006 for five
    assert len(lost_seqs) / 20_000 == pytest.approx(0.2, abs=4 * 0.003 * burst**0.5)
    ends = np.flatnonzero(np.diff([-2, *lost_seqs, 10**9]) != 1)
    lengths = np.diff(ends)
    assert set(lengths % burst) == {0} if burst > 1 else 1 in lengths
    assert seqs(through([Loss(0.0)])) == list(range(1000))
    assert through([Loss(1.0)]) == []
    assert through([Loss(1.0, 3)]) == []


def test_reorder_passes_each_message_once() -> None:
    arrived = through([Reorder(0.3)])
    order = seqs(arrived)
    assert sorted(order) == list(range(len(order)))
    assert len(order) >= 999  # the last one may be held for good
    swapped = [k for k in range(len(order) - 1) if order[k] > order[k + 1]]
    assert all(order[k] == order[k + 1] + 1 for k in swapped)
    # each is held with 0.3 unless one is held already: 0.3 / 1.3 of them
    assert len(swapped) / 1000 == pytest.approx(0.3 / 1.3, abs=0.05)
    late = {k + 1 for k in swapped}
    assert [t for t, _ in arrived] == pytest.approx([1e-3 * (seq + (n in late)) for n, seq in enumerate(order)])


def test_a_frozen_encoder() -> None:
    arrived = [message for _, message in through([Stale(joints=["b"], from_s=0.5)], channel="states", make=state)]
    frozen = arrived[499:503]
    assert [message.position[1] for message in frozen] == pytest.approx([50.9, 51.0, 51.0, 51.0])
    assert [message.velocity[1] for message in frozen] == [2.0, 0.0, 0.0, 0.0]
    assert [message.position[0] for message in frozen] == pytest.approx([49.9, 50.0, 50.1, 50.2])
    assert frozen[-1].velocity == [1.0, 0.0, 3.0]


def test_what_is_no_number() -> None:
    [(_, message)] = through([NotANumber(joints=["b"])], count=1)
    assert message.effort[:2] == [30.0, 10.0]
    assert math.isnan(message.effort[2])  # `b` stands last in these commands
    [(_, seen)] = through([NotANumber(channel="states", joints=["c"])], count=1, channel="states", make=state)
    assert seen.position[:2] == [0.0, 1.0]
    assert np.isnan([seen.position[2], seen.velocity[2]]).all()
    messages = through([NotANumber(share=0.25)], count=4000)
    bad = np.mean([math.isnan(message.effort[0]) for _, message in messages])
    assert bad == pytest.approx(0.25, abs=0.03)  # four deviations of sqrt(0.25 0.75 / 4000)


def test_bias_noise_and_saturation() -> None:
    [(_, message)] = through([Bias(0.5, channel="states", joints=["a"])], count=1, channel="states", make=state)
    assert message.position == [0.5, 1.0, 2.0]
    [(_, message)] = through([Bias(-2.0, joints=["a"])], count=1)
    assert message.effort == [30.0, 8.0, 20.0]
    [(_, message)] = through([Saturation(15.0, joints=["a", "c"])], count=1)
    assert message.effort == [15.0, 10.0, 20.0]
    negative = lambda seq: command(seq, effort=(-30.0, -10.0, 20.0))
    [(_, message)] = through([Saturation(15.0)], count=1, make=negative)
    assert message.effort == [-15.0, -10.0, 15.0]
    [(_, message)] = through([Saturation(1.5, channel="states")], count=1, channel="states", make=state)
    assert (message.position, message.velocity) == ([0.0, 1.0, 1.5], [1.0, 2.0, 3.0])
    noisy = through([Noise(0.01, 0.1, channel="states", joints=["b"])], count=4000, channel="states", make=state)
    offsets = np.array([message.position for _, message in noisy]) - [state(seq).position for seq in range(4000)]
    rates = np.array([message.velocity for _, message in noisy]) - state(0).velocity
    assert offsets[:, 1].std() == pytest.approx(0.01, rel=0.05)  # four deviations of 1 / sqrt(2 4000)
    assert rates[:, 1].std() == pytest.approx(0.1, rel=0.05)
    assert not np.stack([offsets, rates])[:, :, [0, 2]].any()


def test_swapped_joints() -> None:
    [(_, message)] = through([Swapped("a", "c")], count=1)
    assert (message.name, message.effort) == (("c", "a", "b"), [10.0, 30.0, 20.0])
    [(_, message)] = through([Swapped("a", "b", channel="states")], count=1, channel="states", make=state)
    assert (message.position, message.velocity) == ([1.0, 0.0, 2.0], [2.0, 1.0, 3.0])


def test_joints_with_several_ways_to_move() -> None:
    """A bias of a ball turns it: what arrives is still a rotation."""
    configuration = Robot.from_urdf(MANY_WAYS, root="floating").configuration
    line: Channel[PlantState] = Channel([Bias(0.1, channel="states", joints=["ball"])], "states", 0, configuration)
    line.send(state(0, configuration, configuration.neutral.tolist()), 0.0)
    [message] = line.due(0.0)
    displacement = configuration.difference(configuration.neutral, np.array(message.position))
    assert displacement == pytest.approx(
        [0.1 if name.startswith("ball.") else 0.0 for name in configuration.velocity_names]
    )
    Channel([Swapped("swing", "hoist")], "commands", 0, configuration)
    with pytest.raises(InvalidArgumentError, match=naming("Swapped", "'ball'", "'swing'")):
        Channel([Swapped("ball", "swing")], "commands", 0, configuration)


def test_who_reads_gets_the_newest_of_what_has_come() -> None:
    line: Channel[JointCommand] = Channel([Delay(0.01)], "commands", 0, AT)
    for seq in range(3):
        line.send(command(seq), 0.001 * seq)
    assert line.newest(0.0115) == command(1)  # the third is under way
    assert line.newest(0.0115) is None
    assert line.newest(0.012) == command(2)
    assert line.next_s == math.inf


def test_faults_act_one_after_the_other() -> None:
    [(t, message)] = through([Bias(10.0), Saturation(25.0), Delay(0.01), Delay(0.02)], count=1)
    assert (t, message.effort) == (pytest.approx(0.03), [25.0, 20.0, 25.0])
    [(_, message)] = through([Saturation(25.0), Bias(10.0)], count=1)
    assert message.effort == [35.0, 20.0, 30.0]
    # those of the other way leave this one alone
    assert through([Bias(1.0, channel="states"), Loss(1.0, channel="states")], count=1)[0][1] == command(0)


def test_the_same_seed_is_the_same_chance() -> None:
    faults = [Jitter(0.003), Loss(0.1), Reorder(0.1), Noise(1.0)]
    first, repeated, other = (through(faults, seed=seed) for seed in (7, 7, 8))
    assert first == repeated
    assert first != other


def test_chance_of_one_fault_does_not_depend_on_another() -> None:
    arrived_alone = seqs(through([Loss(0.3)], seed=3))
    assert seqs(through([Loss(0.3), Noise(1.0)], seed=3)) == arrived_alone
    assert seqs(through([Loss(0.3), Loss(0.0)], seed=3)) == arrived_alone
    # two of one kind are two chances: their deviations add up as squares, those of one chance as they are
    offsets = np.array([message.effort[0] for _, message in through([Noise(1.0), Noise(1.0)], count=4000)]) - 30.0
    assert offsets.std() == pytest.approx(2.0**0.5, rel=0.05)  # four deviations of 1 / sqrt(2 4000)


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (lambda: Channel([Stale(joints=["d"])], "states", 0, AT), ["Stale", "'d'", "a, b, c"]),
        (lambda: Channel([Swapped("a", "e")], "commands", 0, AT), ["Swapped", "'e'", "a, b, c"]),
        (
            lambda: Channel([Stale(channel="commands")], "commands", 0, AT),
            ["Stale", "commands", "positions"],
        ),
        (lambda: Loss(1.5), ["Loss", "share", "1.5", "0", "1"]),
        (lambda: Reorder(math.nan), ["Reorder", "share", "nan", "0", "1"]),
        (lambda: Loss(0.5, 0), ["Loss", "burst", "0", "1"]),
        (lambda: Delay(-0.1), ["Delay", "by_s", "-0.1", "0"]),
        (lambda: Jitter(math.inf), ["Jitter", "most_s", "inf", "0"]),
        (lambda: Delay(0.1, from_s=2.0, until_s=1.0), ["Delay", "from_s is 2", "until_s 1"]),
        (lambda: Delay(0.1, from_s=1.0, until_s=1.0), ["Delay", "from_s is 1", "until_s 1"]),
        (lambda: Killed(from_s=-1.0), ["Killed", "from_s", "-1", "until_s", "inf", "0"]),
        (lambda: Killed(node="plants"), ["Killed", "node", "'plants'", "'controller'", "'server'"]),
        (
            lambda: Killed(node="plant"),
            ["Killed", "node", "'plant'", "(1.0, channel='states')"],
        ),
        (
            lambda: Stale(channel="state"),
            ["Stale", "channel", "'state'", "'states'", "'commands'"],
        ),
        (lambda: Loss(0.5, 1.5), ["Loss", "burst", "1.5", "1"]),
        (lambda: Bias(math.nan), ["Bias", "by", "nan"]),
        (lambda: Noise(math.nan), ["Noise", "deviation", "nan", "0"]),
        (lambda: Noise(0.1, -0.1), ["Noise", "rate_deviation", "-0.1", "0"]),
        # cut to [5, -5] every effort would be -5
        (lambda: Saturation(-5.0), ["Saturation", "limit", "-5", "0"]),
        (lambda: Swapped("a", "a"), ["Swapped", "'a'"]),
        (lambda: Channel([Stale(joints="abc")], "states", 0, AT), ["Stale", "joints", "'abc'"]),
        (lambda: WrongPayload("tool", 0.0), ["WrongPayload", "mass", "0"]),
        (lambda: WrongPayload("tool", 1.0, from_s=1.0), ["WrongPayload", "from_s", "until_s"]),
        (lambda: HotMotor("a", 90.0, from_s=1.0), ["HotMotor", "from_s", "until_s"]),
        (lambda: WornGear("a", -0.1), ["WornGear", "backlash", "-0.1", "0"]),
        (lambda: WornGear("a", 0.1, until_s=1.0), ["WornGear", "from_s", "until_s"]),
        (lambda: SaggingSupply(1.5), ["SaggingSupply", "share", "1.5", "1"]),
    ],
)
def test_what_does_not_fit_is_said(make, values: list[str]) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        make()
    assert unnamed(refusal.value, *values) == []


@pytest.mark.parametrize(
    ("faults", "seconds", "values"),
    [
        ([Delay(0.1), Delay(0.1, from_s=2.0)], 2.0, ["Delay", "2", "begins"]),
        ([Delay], 2.0, ["faults", "<class 'dyn_service.hil.faults.Delay'>", "Delay(0.02)"]),
        ([], 0.0, ["0", "positive", "seconds"]),
        ([], math.nan, ["nan"]),
    ],
)
def test_a_run_in_which_a_fault_does_nothing_shows_nothing(faults, seconds: float, values: list[str]) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        check_faults(faults, seconds)
    assert unnamed(refusal.value, *values) == []
    check_faults([Delay(0.1, from_s=1.99)], 2.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda **span: Delay(0.1, **span), lambda **span: Jitter(0.1, **span), lambda **span: Loss(0.1, **span),
        lambda **span: Reorder(0.1, **span), lambda **span: Stale(**span), lambda **span: NotANumber(**span),
        lambda **span: Bias(0.1, **span), lambda **span: Noise(0.1, **span), lambda **span: Saturation(1.0, **span),
        lambda **span: Swapped("a", "b", **span), lambda **span: Killed(**span),
        lambda **span: SaggingSupply(0.5, **span),
    ],
)  # fmt: skip
def test_every_fault_has_its_time_and_none_that_cannot_be(make) -> None:
    fault = make(from_s=1.0, until_s=2.0)
    assert [fault.active_at(t) for t in (0.999, 1.0, 1.999, 2.0)] == [False, True, True, False]
    with pytest.raises(InvalidArgumentError, match=naming("from_s is 2", "until_s 2")):
        make(from_s=2.0, until_s=2.0)


def test_every_fault_is_in_the_tests_above() -> None:
    def below(kind: type) -> set[str]:
        return {kind.__name__}.union(*map(below, kind.__subclasses__()))

    assert below(Fault) - {"Fault", "ChannelFault", "ValueFault", "PlantFault"} == {
        "Delay", "Jitter", "Loss", "Reorder", "Stale", "NotANumber", "Bias", "Noise", "Saturation", "Swapped",
        "WrongPayload", "HotMotor", "SaggingSupply", "WornGear", "Killed",
    }  # fmt: skip
