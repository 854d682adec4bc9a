"""Options for an injected fault and the number of seeds: `pytest examples/hil --wrong payload --seeds 20`."""

import pytest

from dyn_service.hil import Delay, Jitter, Noise, Stale, Swapped, WrongPayload

ORDINARY_DISTURBANCES = [  # encoders are noisy, and an answer takes its time: on a good day too
    Noise(2e-6, 2e-4, channel="states"),
    Jitter(0.0008),
]
FAULTS = {
    "nothing": [],
    "payload": [WrongPayload("panda_hand", mass=0.3, com=(0.0, 0.0, 0.1))],  # a tenth of what a Panda may carry
    "order": [Swapped("panda_joint5", "panda_joint6")],
    "late": [Delay(0.004, from_s=0.5)],
    "encoder": [Stale(joints=["panda_joint4"], from_s=0.5)],
}


def pytest_addoption(parser):
    """The two options."""
    parser.addoption("--wrong", choices=FAULTS, action="append", help="what goes wrong on purpose; may be given often")
    parser.addoption("--seeds", type=int, default=1, help="how many seeds each test is run with")


def pytest_generate_tests(metafunc):
    """Runs the tests of the arm with each fault and each seed."""
    if "arm" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("seeds")))
        metafunc.parametrize("wrong", metafunc.config.getoption("wrong") or ["nothing"])


@pytest.fixture
def arm(run, seed, wrong):
    """Returns a function of seconds: a run of the arm with ordinary disturbances and the chosen fault."""
    return lambda seconds: run(seconds, faults=[*ORDINARY_DISTURBANCES, *FAULTS[wrong]], seed=seed)
