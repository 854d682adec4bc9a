"""Which plant a controller arms, and when it gives up: states in, decisions out."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from dyn_service.control.command import Command
from dyn_service.control.controller import Arming
from dyn_service.control.plant.safety import ACTIVE, BRAKED, STOPPED
from dyn_service.errors import FailedPreconditionError
from dyn_service.messages.dyn_service_msgs import PlantState
from tests.phrases import naming

FRESH = PlantState(
    session=7, seq=0, stamp=0.0, name=("hinge",), position=[0.0], velocity=[0.0], effort=[0.0], mode=BRAKED,
    cause="start", since=0.0, epoch=0, armable=True, command_seq=-1, command_delay=0.0, fingerprint="f",
)  # fmt: skip


def changed(state: PlantState, **values: object) -> PlantState:
    return msgspec.structs.replace(state, **values)


def armed(*, rearm: bool, restarted: bool = False) -> Arming:
    """A controller that has armed the fresh plant."""
    one = Arming(("hinge",), "f", 5, rearm=rearm, restarted=restarted)
    assert one.may_command(FRESH)
    assert one.command(FRESH, Command(np.array([0.5]))).arm
    assert one.may_command(changed(FRESH, mode=ACTIVE, cause="", seq=1))
    return one


@pytest.mark.parametrize("rearm", [False, True])
def test_a_plant_that_was_started_anew_is_armed_again_only_with_rearm(rearm: bool) -> None:
    """Its process died under the command and is there again: a person has to know, as of any other stop."""
    one, restarted = armed(rearm=rearm), changed(FRESH, session=8)
    if rearm:
        assert one.may_command(restarted)
        assert one.command(restarted, Command(np.array([0.5]))).session == 8
    else:
        with pytest.raises(FailedPreconditionError, match=naming("restarted", "rearm")):
            one.may_command(restarted)


def test_a_plant_that_another_has_taken_over_since_is_left_alone() -> None:
    one = armed(rearm=False)
    assert not one.may_command(changed(FRESH, session=8, mode=ACTIVE, epoch=1))


def test_one_that_never_armed_waits_for_a_plant_that_comes_and_goes() -> None:
    one = Arming(("hinge",), "f", 5, rearm=False, restarted=False)
    assert not one.may_command(changed(FRESH, armable=False))
    assert one.may_command(changed(FRESH, session=8))


def test_a_stop_under_its_command() -> None:
    stopped = changed(FRESH, mode=STOPPED, cause="missed", since=0.1, epoch=1, seq=100)
    with pytest.raises(FailedPreconditionError, match=naming("missed", "0.1 s", "rearm")):
        armed(rearm=False).may_command(stopped)
    assert armed(rearm=True).may_command(stopped)


def test_a_stop_before_the_second_command_says_what_to_set() -> None:
    """A controller of 20 Hz before a plant that waits 20 ms: no fault of a process, and each start would end so."""
    stopped = changed(FRESH, mode=STOPPED, cause="missed", since=0.1, epoch=1, seq=100)
    one, hint = armed(rearm=False), r"restart the controller \(.*control_rate_hz"
    with pytest.raises(FailedPreconditionError, match=hint):
        one.may_command(stopped)
    one.command(changed(FRESH, mode=ACTIVE, cause="", seq=2), Command(np.array([0.5])))
    for state in (stopped, changed(stopped, cause="velocity")):
        with pytest.raises(FailedPreconditionError, match=r"restart the controller$"):
            one.may_command(state)


def test_one_that_was_started_again_takes_over_what_never_moved_alone() -> None:
    again = Arming(("hinge",), "f", 5, rearm=False, restarted=True)
    assert again.may_command(FRESH)
    with pytest.raises(FailedPreconditionError, match="the launcher has restarted"):
        again.may_command(changed(FRESH, mode=BRAKED, cause="released"))


def test_it_releases_only_the_plant_that_it_armed() -> None:
    """Its last message leaves another controller's plant alone: the pair of session and epoch names the owner."""
    one, running = armed(rearm=False), changed(FRESH, mode=ACTIVE, cause="", seq=9)
    assert one.release(None) is None
    for other in ({"session": 8}, {"epoch": 1}):
        assert one.release(changed(running, **other)) is None
    last = one.release(running)
    assert last is not None
    assert (last.session, last.state_seq, last.epoch, last.controller) == (7, 9, 0, 5)
    assert (last.release, last.arm, last.effort) == (True, False, [0.0])
