"""A unit of FMI as the plant's engine: the bits of `simulate`, the plant's own engine but for roundings, errors."""

from __future__ import annotations

import re
import shutil
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from dyn_service import Payload, Robot, Wrench
from dyn_service.control.dry_runs import ClosedLoop
from dyn_service.errors import (
    DynError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnimplementedError,
)
from dyn_service.graph.nodes.controllers.computed_torque import NODE, ControllerParameters
from dyn_service.graph.nodes.controllers.controller_kind import commander
from dyn_service.graph.nodes.plant.factory import PlantParameters, make_engine, make_plant
from dyn_service.graph.nodes.plant.node import PlantChanges
from dyn_service.support.optional import MissingLibraryError
from tests.conftest import URDF

pytest.importorskip("fmpy", reason="fmpy is not installed: pip install 'dyn_service[fmu]'")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler is installed")
ROBOT = Robot.from_urdf(URDF / "ur5e.urdf")
Q = np.array([0.3, -1.2, 1.0, 0.2, 0.1, 0.0])


@pytest.fixture(scope="module", params=[2, 3])
def unit(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("fmu") / "ur5e.fmu"
    return str(ROBOT.export_fmu(file, version=request.param))


def parameters(unit: str = "", **changes: object) -> PlantParameters:
    values = {"robot": "-", "initial_position": Q.tolist(), **changes}
    return PlantParameters(**values, **({"engine": "fmu", "fmu": unit} if unit else {}))


def test_steps_have_the_bits_of_simulate(unit: str) -> None:
    engine = make_engine(ROBOT, parameters(unit, substeps=2), Q)
    rng = np.random.default_rng(0)
    v, tau = rng.normal(size=(2, 6))
    states = [(Q, v)]
    for _ in range(20):
        states.append(engine.step(*states[-1], tau, 1e-3))
    expected = ROBOT.simulate(Q, v, tau, dt=5e-4, steps=40, every=2)
    assert np.array_equal([q for q, _ in states], expected.q)
    assert np.array_equal([v for _, v in states], expected.v)
    after_reset = engine.step(*states[7], tau, 1e-3)  # from another state than the last one
    assert all(np.array_equal(a, b) for a, b in zip(after_reset, states[8], strict=True))
    assert engine.acceleration(Q, v, tau) == pytest.approx(ROBOT.forward_dynamics(Q, v, tau), rel=1e-12)


def test_a_controlled_plant_is_that_of_the_own_engine(unit: str) -> None:
    """In lockstep, with brakes, arming and a push. The own engine computes RK4's sums by NumPy, and the efforts of a
    push at each of its stages."""
    ends, pushed = [], []
    for engine in ("", unit):
        p = parameters(engine, control_rate_hz=500.0)
        plant = make_plant(ROBOT, p, session=1)
        controller = commander(NODE.spec, ControllerParameters(), ROBOT, number=1, restarted=False)
        loop = ClosedLoop(plant, controller.answer, every=2)
        loop.run(0.2)
        ends.append(np.concatenate([plant.q, plant.v]))
        PlantChanges(plant, ROBOT, p).push(Wrench("tool0", force=(0.0, 20.0, 0.0)), 0.05)
        loop.run(0.05)
        pushed.append(plant.q - controller.following.trajectory.sample(0.25).q)
    assert np.abs(ends[0] - ends[1]).max() < 1e-12
    assert np.abs(pushed[1] - pushed[0]).max() < 0.02 * np.abs(pushed[0]).max()
    assert np.abs(pushed[0]).max() > 1e-3, "the push acts"


def test_a_foreign_unit_without_accelerations_and_dt(unit: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(unit) as unit_archive, zipfile.ZipFile(tmp_path / "foreign.fmu", "w") as foreign:
        for name in unit_archive.namelist():
            content = unit_archive.read(name)
            if name == "modelDescription.xml":
                root = ET.fromstring(content)
                variables = next(root.iter("ModelVariables"))
                for variable in [x for x in variables if re.match(r"acceleration\.|dt$", x.attrib["name"])]:
                    variables.remove(variable)
                structure = next(root.iter("ModelStructure"))
                structure.clear()
                content = ET.tostring(root)
            foreign.writestr(name, content)
    engine, zero = make_engine(ROBOT, parameters(str(tmp_path / "foreign.fmu")), Q), np.zeros(6)
    q, v = engine.step(Q, zero, zero, 1e-3)
    expected = ROBOT.simulate(Q, zero, zero, dt=1e-3, steps=1)
    assert np.array_equal([q, v], [expected.q[-1], expected.v[-1]])
    assert np.isnan(engine.acceleration(q, v, zero)).all()
    with pytest.raises(UnimplementedError, match="a unit has no brakes"):
        engine.step(q, v, zero, 1e-3, np.ones(6, bool))
    with pytest.raises(InvalidArgumentError, match="the unit has no parameter 'dt', so substeps must be 1"):
        make_engine(ROBOT, parameters(str(tmp_path / "foreign.fmu"), substeps=2), Q)


def test_state_and_brakes(unit: str) -> None:
    p = parameters(unit)
    plant = make_plant(ROBOT, p, session=1)
    changes = PlantChanges(plant, ROBOT, p)
    changes.set_state(position=(Q + 0.1).tolist(), velocity=[0.5, 0.0, 0.0, 0.0, 0.0, 0.0])
    plant.advance(200)
    assert not plant.v.any()
    assert plant.q == pytest.approx(Q + 0.1 + [0.025, 0, 0, 0, 0, 0], abs=1e-3)
    with pytest.raises(InvalidArgumentError, match="MJCF file or FMU"):
        changes.set_payload(Payload("tool0", 1.0))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"engine": "own"}, InvalidArgumentError, "fmu: only engine 'fmu' takes an FMU, found engine 'own'"),
        ({"fmu": ""}, InvalidArgumentError, "fmu: engine 'fmu' needs the path of an FMU"),
        ({"fmu": "none.fmu"}, NotFoundError, "there is no file 'none.fmu'"),
        ({"fmu": str(URDF / "ur5e.urdf")}, InvalidArgumentError, "is no co-simulation unit for this machine"),
        ({"overlay": {"gravity": [0.0, 0.0, 0.0]}}, InvalidArgumentError, "overlay: the FMU specifies the simulated"),
        ({"position_limits": True}, InvalidArgumentError, "position_limits: the FMU specifies the simulated robot"),
        ({"undriven": ["elbow_joint"]}, UnimplementedError, "the robot has joints without brakes"),
    ],
)
def test_errors(unit: str, changes: dict[str, object], error: type[DynError], words: str) -> None:
    values = {"robot": "-", "engine": "fmu", "fmu": unit, **changes}
    with pytest.raises(error, match=words):
        make_engine(ROBOT, PlantParameters(**values), Q)


def test_a_unit_of_another_robot_and_one_that_fails(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Robot.from_urdf(URDF / "pendulum.urdf")
    with pytest.raises(InvalidArgumentError, match=r"the unit has no variable 'effort\.hinge'"):
        make_engine(other, parameters(unit, initial_position=[]), np.zeros(1))
    engine = make_engine(ROBOT, parameters(unit), Q)
    with pytest.raises(
        FailedPreconditionError, match=r"ur5e\.fmu: the unit failed in a step: .*'velocity.*' is not finite"
    ):
        engine.step(Q, np.full(6, 1e200), np.zeros(6), 1e-3)
    engine = make_engine(ROBOT, parameters(unit, substeps=2), Q)
    zero, state = np.zeros(6), engine.step(Q, np.ones(6), np.zeros(6), 1e-3)
    with pytest.raises(FailedPreconditionError, match=r"is not finite after t = 0\.0015 s"):  # the second substep
        engine.step(*state, np.full(6, 1e10), 1e-3)
    expected = ROBOT.simulate(*state, zero, dt=5e-4, steps=2)
    assert all(map(np.array_equal, engine.step(*state, zero, 1e-3), (expected.q[-1], expected.v[-1])))
    with pytest.raises(FailedPreconditionError, match=r"is not finite after t = 0\.002 s"):  # begins anew
        engine.step(Q, np.full(6, 1e200), zero, 1e-3)
    monkeypatch.setitem(sys.modules, "fmpy", None)
    with pytest.raises(MissingLibraryError, match=r"pip install 'dyn_service\[fmu\]'"):
        make_engine(ROBOT, parameters(unit), Q)
