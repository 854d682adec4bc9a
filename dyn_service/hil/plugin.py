"""The pytest plug-in: options and markers, and the fixtures where a project asks for them.

pytest loads this module in every run of an environment that has this package, so it defines no fixtures by itself.
A project enables them by naming its launch file: `hil_launch` in its pytest section, `--hil-launch`, or
`@pytest.mark.hil(launch=..)` on a test, a class or a module.
"""

from __future__ import annotations

from types import FunctionType

import pytest

MODES = ("lockstep", "real_time", "hardware")
FIXTURES = "dyn_service.hil.fixtures"
GIVEN = ("run", "clock", "plant", "controller", "server", "robot")
MARKERS = (
    "requirement(*names): the requirements that a test verifies, shown in the reports",
    "hil(launch=, arguments=, plant=, controller=): the launch file of a test, its arguments, parameters of its nodes",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of hardware-in-the-loop tests."""
    group = parser.getgroup("hil", "hardware in the loop (dyn_service)")
    group.addoption("--hil", choices=MODES, default=MODES[0], help="where the plant and its controller run")
    group.addoption("--hil-launch", metavar="FILE", help="the launch file, instead of hil_launch; write the =")
    group.addoption(
        "--hil-endpoint",
        metavar="NAME=ENDPOINT",
        action="append",
        default=[],
        help="with --hil=hardware: where the driver's topics are, plant_state=tcp://.. and joint_commands=tcp://..",
    )
    group.addoption("--hil-seed", metavar="N", type=int, default=0, help="seed of the random faults; by default 0")
    group.addoption(
        "--hil-wall-limit",
        metavar="S",
        type=float,
        help="wall time in s in which a run must end; by default 30 s, and 10 s per second of the plant's time",
    )
    group.addoption(
        "--hil-report", metavar="DIR", help="write an HTML page of all runs there, and a recording of each failure"
    )
    parser.addini("hil_launch", "launch file of hardware-in-the-loop tests, or the name of a shipped one")


def pytest_exception_interact(
    node: pytest.Item | pytest.Collector,
    call: pytest.CallInfo[object],
    report: pytest.TestReport | pytest.CollectReport,
) -> None:
    """Explains a missing fixture if the project names no launch file."""
    if call.excinfo is None or not isinstance(call.excinfo.value, pytest.FixtureLookupError):
        return
    fixture = call.excinfo.value.argname
    if fixture in GIVEN and not node.config.pluginmanager.has_plugin(FIXTURES):
        why = f"{fixture!r} is a fixture of dyn_service.hil where pytest.ini names a launch file: hil_launch = FILE"
        report.sections.append(("hil", why))


def pytest_configure(config: pytest.Config) -> None:
    """Declares the markers; brings the fixtures where the project names a launch file, or wants a report."""
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    # `run` and `robot` are common names: projects without a launch file do not get these fixtures
    if any((config.getini("hil_launch"), config.getoption("hil_launch"), config.getoption("hil_report"))):
        config.pluginmanager.import_plugin(FIXTURES)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> None:
    """Brings the fixtures before the first test is made whose marker names a launch file."""
    manager = collector.config.pluginmanager
    if manager.has_plugin(FIXTURES) or not isinstance(obj, FunctionType | type):
        return
    marks = [*getattr(obj, "pytestmark", ()), *collector.iter_markers()]
    if any(mark.name == "hil" and "launch" in mark.kwargs for mark in marks):
        manager.import_plugin(FIXTURES)
