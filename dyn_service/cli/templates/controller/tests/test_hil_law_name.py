"""The controller with its plant in lockstep; with `--hil real_time` the same with all processes of the launch file."""

import pytest

from dyn_service.hil import Delay


def test_it_follows_its_reference(run):
    check = run(2.0).check
    check.stops().at_most(0)
    check.velocity().within_limits()
    check.effort().within_limits()
    # springs alone lag by a / w^2 at an acceleration a, and by friction; with both in the law, `check.clean()` holds
    check.tracking().below(0.5)


@pytest.mark.hil(arguments={"trajectory": "hold"})
def test_it_carries_its_weight(run):
    run(1.0).check.tracking().below(1e-3)


def test_a_late_controller_is_stopped(run):
    run(2.0, faults=[Delay(0.5, from_s=1.0)]).check.safe_stop(after_s=1.0).below(0.4)  # 0.1 s to notice, 0.1 s to brake
