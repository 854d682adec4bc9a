"""Requirements of a Panda under computed torque. `--wrong` injects a fault, and one of the tests fails.

pytest examples/hil                                        all pass
pytest examples/hil --wrong payload --hil-report=report    test_it_goes_where_it_is_told fails; report/index.html
"""

import pytest


@pytest.mark.requirement("REQ-1")
def test_it_goes_where_it_is_told(arm):
    """Detects a payload that the controller's model lacks."""
    check = arm(1.5).check
    check.tracking().below(1e-3)  # 0.2 mrad on a usual day; 9 mrad with 0.3 kg more
    check.under_command().at_least(0.98)


@pytest.mark.requirement("REQ-2")
def test_answers_come_in_time(arm):
    """Detects a late controller."""
    check = arm(1.0).check
    check.deadlines().at_most(0)
    check.delay().percentile(99).at_most(0.002)


@pytest.mark.requirement("REQ-3")
def test_encoders_count(arm):
    """Detects a frozen encoder."""
    arm(1.0).check.frozen().below(2e-3)


@pytest.mark.requirement("REQ-4")
def test_nothing_runs_away(arm):
    """Detects two drives wired to each other's joints."""
    check = arm(1.0).check
    check.stops().at_most(0)
    check.velocity().within_limits(share=0.8)
    check.effort().within_limits()
    check.position().within_limits()
