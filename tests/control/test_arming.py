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
    arming = Arming(("hinge",), "f", 5, rearm=rearm, restarted=restarted)
    assert arming.may_command(FRESH)
    assert arming.command(FRESH, Command(np.array([0.5]))).arm
    assert arming.may_command(changed(FRESH, mode=ACTIVE, cause="", seq=1))
    return arming


@pytest.mark.parametrize("rearm", [False, True])
def test_a_plant_that_was_started_anew_is_armed_again_only_with_rearm(rearm: bool) -> None:
    """Its process died under the command and is there again: a person has to know, as of any other stop."""
    arming, restarted = armed(rearm=rearm), changed(FRESH, session=8)
    if rearm:
        assert arming.may_command(restarted)
        assert arming.command(restarted, Command(np.array([0.5]))).session == 8
    else:
        with pytest.raises(FailedPreconditionError, match=naming("restarted", "rearm")):
            arming.may_command(restarted)


def test_a_plant_that_another_has_taken_over_since_is_left_alone() -> None:
    arming = armed(rearm=False)
    assert not arming.may_command(changed(FRESH, session=8, mode=ACTIVE, epoch=1))


def test_one_that_never_armed_waits_for_a_plant_that_comes_and_goes() -> None:
    arming = Arming(("hinge",), "f", 5, rearm=False, restarted=False)
    assert not arming.may_command(changed(FRESH, armable=False))
    assert arming.may_command(changed(FRESH, session=8))


def test_a_stop_under_its_command() -> None:
    stopped = changed(FRESH, mode=STOPPED, cause="missed", since=0.1, epoch=1, seq=100)
    with pytest.raises(FailedPreconditionError, match=naming("missed", "0.1 s", "rearm")):
        armed(rearm=False).may_command(stopped)
    assert armed(rearm=True).may_command(stopped)


def test_a_stop_before_the_second_command_says_what_to_set() -> None:
    """A controller of 20 Hz before a plant that waits 20 ms: no fault of a process, and each start would end so."""
    stopped = changed(FRESH, mode=STOPPED, cause="missed", since=0.1, epoch=1, seq=100)
    arming, hint = armed(rearm=False), r"restart the controller \(.*control_rate_hz"
    with pytest.raises(FailedPreconditionError, match=hint):
        arming.may_command(stopped)
    arming.command(changed(FRESH, mode=ACTIVE, cause="", seq=2), Command(np.array([0.5])))
    for state in (stopped, changed(stopped, cause="velocity")):
        with pytest.raises(FailedPreconditionError, match=r"restart the controller$"):
            arming.may_command(state)


def test_one_that_was_started_again_takes_over_what_never_moved_alone() -> None:
    arming = Arming(("hinge",), "f", 5, rearm=False, restarted=True)
    assert arming.may_command(FRESH)
    with pytest.raises(FailedPreconditionError, match="the launcher has restarted"):
        arming.may_command(changed(FRESH, mode=BRAKED, cause="released"))


def test_it_releases_only_the_plant_that_it_armed() -> None:
    """Its last message leaves another controller's plant alone: the pair of session and epoch names the owner."""
    arming, running = armed(rearm=False), changed(FRESH, mode=ACTIVE, cause="", seq=9)
    assert arming.release(None) is None
    for other in ({"session": 8}, {"epoch": 1}):
        assert arming.release(changed(running, **other)) is None
    last = arming.release(running)
    assert last is not None
    assert (last.session, last.state_seq, last.epoch, last.controller) == (7, 9, 0, 5)
    assert (last.release, last.arm, last.effort) == (True, False, [0.0])
