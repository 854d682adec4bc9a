"""What a log makes of messages: references of several runs and orders of joints, modes, answers, what was seen."""

from __future__ import annotations

import numpy as np
import pytest

from dyn_service.control.joint_states import JointStates
from dyn_service.control.trajectory import MultiSine
from dyn_service.graph.nodes.plant.report import Followed
from dyn_service.hil.signals import Change, MessageLog, ReceivedState
from dyn_service.messages.dyn_service_msgs import PlantState
from dyn_service.model.configuration import Configuration, Limits

AT = Configuration.from_wire(
    [
        {"name": "turn", "type": "continuous", "axis": [0, 0, 1]},
        {"name": "slide", "type": "prismatic", "axis": [0, 0, 1]},
        {"name": "swing", "type": "continuous", "axis": [0, 1, 0]},
    ]
)
BOUNDS = Limits(*(np.full(3, x) for x in (-1.0, 1.0, 2.0, 3.0)))


def state(session: int, seq: int, mode: str = "active", cause: str = "", command_seq: int = -1) -> PlantState:
    """The seq-th state of a run, 0.1 s after the one before; the k-th joint is at seq + k / 10."""
    q = [seq + 0.1 * k for k in range(3)]
    end = (mode, cause, 0.0, 0, True, command_seq, 0.001 * (command_seq + 1), "f00")
    return PlantState(session, seq, 0.1 * seq, AT.velocity_names, q, [-x for x in q], [2.0 * x for x in q], *end)


def constant(*q: float) -> MultiSine:
    """A constant reference."""
    goal, zero = np.array(q), np.zeros(len(q))
    return MultiSine(goal, zero, goal, np.zeros((1, len(q))), np.ones(1), np.zeros((1, len(q))), 1.0)


def log() -> MessageLog:
    return MessageLog(AT, JointStates(AT), BOUNDS, 0.2, 0.3, "arm")


def test_values_have_their_units_and_joints() -> None:
    message_log = log()
    message_log.states = [state(1, seq) for seq in range(4)]
    counters = {"refused": 2}
    record = message_log.record(counters)
    counters["refused"] = 3  # who counts goes on
    assert record.t == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert {kind: group.units for kind, group in record.groups.items()} == {
        "position": ("rad", "m", "rad"),
        "reference": ("rad", "m", "rad"),
        "velocity": ("rad/s", "m/s", "rad/s"),
        "reference_velocity": ("rad/s", "m/s", "rad/s"),
        "effort": ("N m", "N", "N m"),
        "error": ("rad", "m", "rad"),
    }
    assert all(group.names == ("turn", "slide", "swing") for group in record.groups.values())
    assert record.signal("position", "slide").values == pytest.approx([0.1, 1.1, 2.1, 3.1])
    assert record.signal("velocity", "slide").values == pytest.approx([-0.1, -1.1, -2.1, -3.1])
    assert record.signal("effort", "swing").values == pytest.approx([0.4, 2.4, 4.4, 6.4])
    assert np.isnan(record.groups["error"].values).all()  # nobody said what it follows
    assert (record.control_s, record.deadline_s, record.title, record.counts) == (0.2, 0.3, "arm", {"refused": 2})


def test_motions_stand_for_what_was_published() -> None:
    message_log = log()
    message_log.states = [state(1, seq) for seq in range(2)]
    message_log.motions = [(np.full(3, 7.0), np.full(3, 8.0)), (np.full(3, 9.0), np.full(3, 10.0))]
    record = message_log.record({})
    assert record.signal("position", "turn").values.tolist() == [7.0, 9.0]
    assert record.signal("velocity", "swing").values.tolist() == [8.0, 10.0]


def test_references_are_of_their_run_from_when_they_begin_to_the_next() -> None:
    """Two in the first run of the plant, one in the second, whose controller has the joints in another order."""
    message_log = log()
    message_log.states = [state(1, seq, "arming" if seq < 2 else "active") for seq in range(8)]
    message_log.states += [state(2, seq) for seq in range(4)]
    names = ("turn", "slide", "swing")
    message_log.followed = [
        Followed(1, 0.1, names, constant(1.0, 2.0, 3.0)),
        Followed(1, 0.5, names, constant(4.0, 5.0, 6.0)),
        Followed(2, 0.2, ("swing", "turn", "slide"), constant(30.0, 10.0, 20.0)),
    ]
    record = message_log.record({})
    nan = np.nan
    # under command from 0.2 s on; the second run's begins in its own time
    expected = [nan, nan, 1.0, 1.0, 1.0, 4.0, 4.0, 4.0, nan, nan, 10.0, 10.0]
    np.testing.assert_array_equal(record.signal("reference", "turn").values, expected)
    last = [record.signal("reference", name).values[-1] for name in names]
    assert last == [10.0, 20.0, 30.0]
    error = record.signal("error", "slide").values
    np.testing.assert_allclose(error[[2, 5, 11]], [2.0 - 2.1, 5.0 - 5.1, 20.0 - 3.1])
    assert np.isnan(error[[0, 1, 8, 9]]).all()
    rate = record.signal("reference_velocity", "swing").values
    np.testing.assert_array_equal(rate, np.where(np.isnan(expected), nan, 0.0))


def test_a_reference_that_moves_is_sampled_in_its_own_time() -> None:
    message_log = log()
    message_log.states = [state(1, seq) for seq in range(6)]
    motion = MultiSine(*([np.zeros(3)] * 3), np.array([[1.0, 2.0, 3.0]]), np.array([5.0]), np.zeros((1, 3)), 0.1)
    message_log.followed = [Followed(1, 0.2, ("swing", "turn", "slide"), motion)]
    record, sample = message_log.record({}), motion.sample(np.arange(4) * 0.1)
    for name, k in (("swing", 0), ("turn", 1), ("slide", 2)):
        np.testing.assert_allclose(record.signal("reference", name).values[2:], sample.q[:, k])
        np.testing.assert_allclose(record.signal("reference_velocity", name).values[2:], sample.v[:, k])


def test_modes_change_where_mode_or_cause_do() -> None:
    message_log = log()
    modes = [("braked", "start")] * 2 + [("active", "")] * 2 + [("stopped", "missed"), ("stopped", "velocity")]
    message_log.states = [state(1, seq, *mode) for seq, mode in enumerate(modes)]
    assert message_log.record({}).changes == (
        Change(0.0, "braked", "start"),
        Change(pytest.approx(0.2), "active", ""),
        Change(pytest.approx(0.4), "stopped", "missed"),
        Change(0.5, "stopped", "velocity"),
    )


def test_an_answer_is_where_another_command_took_effect() -> None:
    message_log = log()
    message_log.states = [state(1, seq, command_seq=command_seq) for seq, command_seq in enumerate((-1, 0, 0, 2, 3))]
    answers = message_log.record({}).answers
    assert (answers.name, answers.unit) == ("answers", "s")
    assert answers.t == pytest.approx([0.1, 0.3, 0.4])
    assert answers.values == pytest.approx([0.001, 0.003, 0.004])
    message_log.states = message_log.states[
        1:
    ]  # one that was there as it began counts too: nobody knows of the time before
    assert message_log.record({}).answers.t == pytest.approx([0.1, 0.3, 0.4])


def test_what_the_controller_saw_stays_until_it_sees_more() -> None:
    message_log = log()
    message_log.states = [state(1, seq) for seq in range(6)]
    message_log.received = [
        ReceivedState(1, state(1, 50)),
        ReceivedState(3, state(1, 60)),
        ReceivedState(3, state(1, 70)),
    ]
    assert message_log.record({}).signal("measured", "turn").values.tolist() == [50.0, 50.0, 50.0, 70.0, 70.0, 70.0]
