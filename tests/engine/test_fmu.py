"""Robots as FMUs: what FMI asks of them, the bits of `simulate`, saved states, errors; called as an importer does."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from dyn_service import Overlay, Payload, Robot
from dyn_service.api.queries import JointNumbers
from dyn_service.engine.export import fmu as module
from dyn_service.errors import (
    DynError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnimplementedError,
)
from dyn_service.kernels import budget
from tests.conftest import URDF

LINK = """<link name="{}"><inertial><origin xyz="0.1 0.2 -0.1"/><mass value="1.5"/>
    <inertia ixx="1" iyy="1.2" izz="0.9" ixy="0.1" ixz="0" iyz="-0.1"/></inertial></link>"""
ARM = f"""<robot name="arm">{LINK.format("base")}{LINK.format("arm")}<joint name="j %/1" type="revolute">
    <parent link="base"/><child link="arm"/><axis xyz="0 0 1"/><origin xyz="0 0.1 0.3"/>
    <limit lower="0.2" upper="1" velocity="3" effort="2"/><dynamics damping="0.3" friction="0.2"/></joint></robot>"""

ALL_OPTIONS: dict[str, Any] = {"payload": "arm", "friction": True, "imus": ("arm", "base")}
"""Options of an FMU with all parameters and sensors."""

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler is installed: cc, gcc or clang")


@cache
def robot(name: str) -> Robot:
    return Robot.from_urdf(ARM, root="floating") if name == "arm" else Robot.from_urdf(URDF / f"{name}.urdf")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fmu")


def fmu(folder: Path, name: str, version: int, **options: Any) -> Path:
    """The extracted FMU of a robot."""
    place = folder / "_".join([name, str(version), *map(str, options.values())])
    if not place.exists():
        file = robot(name).export_fmu(place.with_suffix(".fmu"), version=version, **options)
        zipfile.ZipFile(file).extractall(place)
    return place


LOG = {2: (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, *[ctypes.c_char_p] * 3)}
LOG[3] = LOG[2][:1] + LOG[2][2:-1]


class Unit:
    """An instance. messages: what it logged."""

    def __init__(self, place: Path, library: Path | None = None, token: str | None = None, kind: int = 1) -> None:
        root = ET.parse(place / "modelDescription.xml").getroot()
        self.version = int(root.attrib["fmiVersion"][0])
        self.places = {}
        for variable in root.findall("ModelVariables/*"):
            self.places[variable.attrib["name"]] = int(variable.attrib["valueReference"])
        self.library = ctypes.CDLL(str(library or next(place.glob("binaries/*/*.so"))))
        self.messages: list[str] = []
        # Kept as an attribute: the unit calls it as long as it lives, and ctypes does not hold it.
        self._log = ctypes.CFUNCTYPE(None, *LOG[self.version])(
            lambda *log_arguments: self.messages.append(log_arguments[-1].decode())
        )
        unit_token = token or root.attrib["guid" if self.version == 2 else "instantiationToken"]
        name, location, log = b"one", b"", ctypes.cast(self._log, ctypes.c_void_p)
        create = self.library[{2: "fmi2Instantiate", 3: "fmi3InstantiateCoSimulation"}[self.version]]
        create.restype = ctypes.c_void_p
        if self.version == 2:
            self._callbacks = (ctypes.c_void_p * 5)(log, None, None, None, None)
            self.instance = create(name, kind, unit_token.encode(), location, self._callbacks, 0, 1)
        else:
            self.instance = create(
                name, unit_token.encode(), location, *[False] * 4, None, ctypes.c_size_t(0), None, log, None
            )

    def call(self, function: str, *arguments: Any) -> int:
        status: int = self.library[f"fmi{self.version}{function}"](ctypes.c_void_p(self.instance), *arguments)
        return status

    def exchange(self, way: str, names: Sequence[str], values: Any) -> int:
        numbers = np.ascontiguousarray(values, dtype=float)
        count = ctypes.c_size_t(len(names))
        places = (ctypes.c_uint32 * len(names))(*(self.places[name] for name in names))
        kind = {2: "Real", 3: "Float64"}[self.version]
        status = self.call(f"{way}{kind}", places, count, ctypes.c_void_p(numbers.ctypes.data), count)
        if way == "Get":
            values[:] = numbers
        return status

    def set(self, values: Mapping[str, float]) -> int:
        return self.exchange("Set", [*values], [*values.values()])

    def get(self, quantity: str) -> np.ndarray:
        names = [name for name in self.places if name.startswith(f"{quantity}.")]
        # NaN, so that a value that the unit does not write is no number.
        values = np.full(len(names), np.nan)
        assert self.exchange("Get", names, values) == 0
        return values

    def state(self) -> bytes:
        return b"".join(self.get(quantity).tobytes() for quantity in ("position", "velocity", "acceleration"))

    def begin(self, q: np.ndarray, v: np.ndarray, tau: np.ndarray, **parameters: float) -> None:
        groups = {"initial_position": q, "initial_velocity": v, "effort": tau}
        for quantity, values in groups.items():
            names = [name for name in self.places if name.startswith(f"{quantity}.")]
            assert self.exchange("Set", names, values) == 0
        assert self.set(parameters) == 0
        experiment = (False, ctypes.c_double(0.0), ctypes.c_double(0.0), False, ctypes.c_double(0.0))
        if self.version == 2:
            assert self.call("SetupExperiment", *experiment) == 0
            experiment = ()
        assert self.call("EnterInitializationMode", *experiment) == 0
        assert self.call("ExitInitializationMode") == 0

    def step(self, time_s: float, length: float) -> int:
        """What FMI 3 returns besides: no event, no termination, no early return, and the time."""
        # True before the call: the unit has to write each of them.
        self.flags, self.last = (ctypes.c_bool * 3)(True, True, True), ctypes.c_double()
        out = (*(ctypes.byref(self.flags, k) for k in range(3)), ctypes.byref(self.last))
        rest = out if self.version == 3 else ()
        status = self.call("DoStep", ctypes.c_double(time_s), ctypes.c_double(length), True, *rest)
        assert self.version == 2 or not any(self.flags)
        return status

    def now(self) -> list[float]:
        """The time; with FMI 3 also the one that the last step returned."""
        values = np.full(1, np.nan)
        assert self.exchange("Get", ["time"], values) == 0
        return [float(values[0]), *([self.last.value] if self.version == 3 else [])]


def random_state(model: Robot, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    v, tau = rng.normal(size=(2, model.nv))
    return model.random_configuration(seed=seed), 0.2 * v, tau


@pytest.mark.parametrize(("name", "version"), [("arm", 2), ("arm", 3), ("panda", 2)])
def test_description_has_what_fmi_asks(name: str, version: int, folder: Path) -> None:
    place, model = fmu(folder, name, version), robot(name)
    root = ET.parse(place / "modelDescription.xml").getroot()
    variables = [{**x.attrib, **(x[0].attrib if len(x) else {})} for x in root.findall("ModelVariables/*")]
    assert [x["valueReference"] for x in variables] == [*map(str, range(len(variables)))]
    assert len({x["name"] for x in variables}) == len(variables) == 5 + 4 * model.nv + 2 * model.nq
    assert {x["unit"] for x in variables} == {x.attrib["name"] for x in root.findall("UnitDefinitions/Unit")}
    for x in variables:
        lower, upper = float(x.get("min", -np.inf)), float(x.get("max", np.inf))
        is_set = x["causality"] in ("parameter", "input")
        assert ("start" in x) == is_set, "start values are those of what is set"
        assert not is_set or lower <= float(x["start"]) <= upper
    unit_of = {x["name"]: x["unit"] for x in variables}
    for k, joint in enumerate(model.configuration.velocity_names):  # units of each variable, not only those in use
        turns = bool(model.configuration.turns[k])
        assert unit_of[f"velocity.{joint}"] == ("rad/s" if turns else "m/s")
        assert unit_of[f"effort.{joint}"] == ("N m" if turns else "N")
    if name == "panda":
        assert unit_of["position.panda_joint1"] == "rad"
        assert unit_of["position.panda_finger_joint1"] == "m"
    else:
        assert unit_of["position.root_joint.qw"] == "1"
    steps = root.find("DefaultExperiment"), root.find("CoSimulation")
    assert [x.get(attribute) for x, attribute in zip(steps, ("stepSize", "fixedInternalStepSize"), strict=True)] == [
        "0.001",
        "0.001" if version == 3 else None,
    ]
    limits = [float(x["max"]) for x in variables if x["name"].startswith("effort.") and "max" in x]
    assert limits == model.limits.effort[np.isfinite(model.limits.effort)].tolist()
    outputs = [k for k, x in enumerate(variables) if x["causality"] == "output"]
    assert len(outputs) == model.nq + 2 * model.nv
    tags = {2: ("Outputs/Unknown", "InitialUnknowns/Unknown"), 3: ("Output", "InitialUnknown")}[version]
    key, first = ("index", 1) if version == 2 else ("valueReference", 0)
    for tag in tags:
        assert [int(x.attrib[key]) - first for x in root.findall(f"ModelStructure/{tag}")] == outputs
    units = {x.attrib["name"]: x[0].attrib for x in root.findall("UnitDefinitions/Unit")}
    assert units["N m"] == {"kg": "1", "m": "2", "s": "-2"}
    assert units["rad/s^2"] == {"rad": "1", "s": "-2"}
    is_structured = root.attrib["variableNamingConvention"] == "structured"
    assert is_structured == (name == "panda"), "'j %/1' is no identifier"


@pytest.mark.filterwarnings("ignore:module 'sre_:DeprecationWarning")  # lark, which fmpy imports
@pytest.mark.parametrize(("name", "version"), [("arm", 2), ("arm", 3), ("panda", 2)])
def test_fmpy_finds_no_fault(name: str, version: int, folder: Path) -> None:
    validation = pytest.importorskip("fmpy.validation", reason="fmpy is not installed: 200 MB with what it needs")
    options = ALL_OPTIONS if name == "arm" else {}
    assert validation.validate_fmu(f"{fmu(folder, name, version, **options)}.fmu") == []


@pytest.mark.parametrize(("name", "version"), [("pendulum", 3), ("panda", 2), ("arm", 2), ("arm", 3)])
def test_bits_of_simulate(name: str, version: int, folder: Path) -> None:
    """Two instances in turns, one with another step and gravity. The arm floats, with damping and friction."""
    place, model = fmu(folder, name, version), robot(name)
    units = [Unit(place), Unit(place)]
    steps = [1e-3, 2.5e-4]
    gravity = np.array([[*model.gravity], [1.0, -2.0, 3.0]])
    states = [random_state(model, seed) for seed in (0, 1)]
    if name == "arm":
        states[0][0][3:7] *= 1.5  # the quaternion
    for unit, state, dt, g in zip(units, states, steps, gravity, strict=True):
        unit.begin(*state, dt=dt, **{f"gravity.{axis}": x for axis, x in zip("xyz", g, strict=True)})
    states_of_units = [[unit.state()] for unit in units]
    for k in range(20):
        for unit, states_found in zip(units, states_of_units, strict=True):
            assert unit.step(k * 0.002, 0.002) == 0
            states_found.append(unit.state())
    for (q, v, tau), dt, g, unit_states in zip(states, steps, gravity, states_of_units, strict=True):
        stride = round(0.002 / dt)
        path = model.simulate(q, v, tau, dt=dt, steps=20 * stride, every=stride, gravity=g)
        a = model.forward_dynamics(path.q, path.v, tau, gravity=g)
        assert unit_states == [b"".join(x.tobytes() for x in row) for row in zip(path.q, path.v, a, strict=True)]
    assert [*units[0].now(), *units[1].now()] == [0.04] * (2 if version == 2 else 4), "time; FMI 3: also the last one"
    assert not [*units[0].messages, *units[1].messages]


@pytest.mark.skipif(sys.platform != "linux", reason="other linkers bind a library's own symbols by themselves")
def test_units_do_not_call_the_functions_of_others(folder: Path, tmp_path: Path) -> None:
    """All units have functions of the same names; an importer may load them globally."""
    other, place = fmu(folder, "pendulum", 3), fmu(folder, "arm", 3)
    # The worst that an importer may do; symbols of a later library then bind to these.
    ctypes.CDLL(str(next(other.glob("binaries/*/*.so"))), mode=ctypes.RTLD_GLOBAL)
    copied_library = shutil.copy(next(place.glob("binaries/*/*.so")), tmp_path / "again.so")  # not loaded before
    assert Unit(place, copied_library).get("initial_position").tolist() == [0.0] * 6 + [1.0, 0.2]


@pytest.mark.parametrize("version", [2, 3])
def test_saved_states(version: int, folder: Path) -> None:
    unit, model = Unit(fmu(folder, "arm", version)), robot("arm")
    unit.begin(*random_state(model, 2))
    state, size = "FMUState" if version == 3 else "FMUstate", ctypes.c_size_t()
    assert unit.step(0.0, 0.01) == 0
    state_before, saved, restored = unit.state(), ctypes.c_void_p(), ctypes.c_void_p()
    assert unit.call(f"Get{state}", ctypes.byref(saved)) == 0
    assert unit.call(f"Serialized{state}Size", saved, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value)
    assert unit.call(f"Serialize{state}", saved, buffer, size) == 0
    assert unit.step(0.01, 0.01) == 0
    state_after = unit.state()
    assert state_before != state_after
    other = Unit(fmu(folder, "arm", version))
    read = "Deserialize" if version == 3 else "DeSerialize"
    assert other.call(f"{read}{state}", buffer, size, ctypes.byref(restored)) == 0
    for instance, pointer in ((unit, saved), (other, restored)):
        assert instance.call(f"Set{state}", pointer) == 0
        assert instance.state() == state_before
        assert instance.step(0.01, 0.01) == 0
        assert instance.state() == state_after
        assert instance.call(f"Free{state}", ctypes.byref(pointer)) == 0
        assert pointer.value is None
    assert other.call(f"{read}{state}", buffer, ctypes.c_size_t(7), ctypes.byref(restored)) == 3
    assert other.messages == [f"a state has {size.value} bytes, found 7"]
    assert unit.call("Terminate") == 0
    assert unit.call("Reset") == 0
    unit.begin(*random_state(model, 2))
    assert unit.step(0.0, 0.01) == 0
    assert unit.state() == state_before
    unit.call("FreeInstance")


@pytest.mark.parametrize("version", [2, 3])
def test_errors_of_the_unit(version: int, folder: Path) -> None:
    place, model = fmu(folder, "arm", version), robot("arm")
    unit, wrong = Unit(place), Unit(place, token="another")
    assert wrong.instance is None
    assert version == 3 or Unit(place, kind=0).instance is None, "model exchange"
    assert wrong.messages[0].startswith("the token is another, expected that of this unit, ")
    joint = "j %/1"
    assert unit.step(0.0, 0.01) == 3
    assert unit.set({"dt": -1.0}) == 3
    unit.places["none"] = len(unit.places)
    assert unit.set({"none": 0.0}) == unit.exchange("Get", ["none"], np.zeros(1)) == 3
    del unit.places["none"]
    unit.begin(*random_state(model, 3))
    state_before = unit.state()
    for length in (0.0015, 0.0, -0.001, 0.00100001, np.nan):
        assert unit.step(0.0, length) == 3
    assert unit.step(np.nan, 0.001) == 3
    assert unit.step(0.0, 0.001 * (1 + 1e-9)) == 0, "rounding of the importer's times"
    assert unit.set({f"initial_position.{joint}": 0.0}) == 3
    assert unit.set({f"position.{joint}": 0.0}) == 3
    assert unit.set({f"effort.{joint}": np.nan}) == 3
    assert unit.call("EnterInitializationMode", *([0] * 5 if version == 3 else [])) == 3
    assert unit.set({f"effort.{joint}": 1e308}) == 0
    valid = unit.get("velocity")
    accelerations = [name for name in unit.places if name.startswith("acceleration.")]
    assert unit.exchange("Get", accelerations, np.zeros(len(accelerations))) == 3
    assert unit.step(0.001, 0.5) == 3
    last = len(unit.places) - 1
    assert unit.messages == [
        "DoStep is called in the wrong mode, expected step mode",
        "'dt' must be a positive number, found -1",
        *[f"there is no variable with the value reference {last + 1}, the largest is {last}"] * 2,
        *(
            f"the communication step of {length} s is no multiple of dt = 0.001 s"
            for length in ("0.0015", "0", "-0.001", "0.00100001", "nan")
        ),
        "the communication point is nan, expected a finite time",
        f"'initial_position.{joint}' can be set before the end of the initialization only",
        f"'position.{joint}' cannot be set: it is no input or parameter",
        f"'effort.{joint}' must be a finite number, found nan",
        "EnterInitializationMode is called in the wrong mode, expected instantiated mode",
        *unit.messages[-2:],
    ]
    assert unit.messages[-2].startswith("'acceleration.")
    assert unit.messages[-2].endswith(
        "' is not finite at t = 0.001 s: a position, velocity, effort or parameter is too large"
    )
    assert "' is not finite after t = 0.00" in unit.messages[-1]
    assert state_before != valid.tobytes()
    assert np.isfinite(unit.get("velocity")).all()
    name = {2: "fmi2GetInteger", 3: "fmi3GetInt32"}[version]
    unit.library[name].restype = ctypes.c_int
    assert unit.call(name[4:], None, ctypes.c_size_t(0), None, ctypes.c_size_t(0)) == 0
    assert unit.call(name[4:], None, ctypes.c_size_t(1), None, ctypes.c_size_t(1)) == 3
    assert unit.call("GetDirectionalDerivative") == 3


@pytest.mark.parametrize("version", [2, 3])
def test_a_quaternion_whose_length_is_no_number_is_refused(version: int, folder: Path) -> None:
    unit = Unit(fmu(folder, "arm", version))
    q, v, tau = random_state(robot("arm"), 3)
    for size, length in ((1e200, "inf"), (1e-200, "0")):
        q[3:7] = [size, 0.0, 0.0, size]
        with pytest.raises(AssertionError):
            unit.begin(q, v, tau)
        expected = f"the initial position has a quaternion of length {length}, expected one of length 1"
        assert unit.messages.pop() == expected
        assert unit.call("Reset") == 0
    q[3:7] = [3.0, 0.0, 0.0, 4.0]
    unit.begin(q, v, tau)
    np.testing.assert_array_equal(unit.get("position")[3:7], [0.6, 0.0, 0.0, 0.8])


@pytest.mark.parametrize("version", [2, 3])
def test_steps_too_long_for_damping_and_friction_are_refused(version: int, folder: Path) -> None:
    """When the unit is written; and when it steps, with another dt, friction that was changed, or where it moved to."""
    arm = robot("arm")
    with pytest.raises(FailedPreconditionError, match=r"steps of 2 s of rk4 are unstable: joint 'j %/1' is too light"):
        arm.export_fmu(folder / f"unwritten{version}.fmu", dt=2.0)
    assert not (folder / f"unwritten{version}.fmu").exists()
    place, joint = fmu(folder, "arm", version, friction=True), "j %/1"
    rest = arm.configuration.neutral, np.zeros(arm.nv), np.zeros(arm.nv)
    ease = np.linalg.inv(arm.mass_matrix(rest[0]))[-1, -1]

    def damping(share: float) -> float:
        return share * 2.785 / (1e-3 * ease) - 0.2 / 0.1

    unit = Unit(place)
    unit.begin(*rest, **{f"damping.{joint}": damping(0.98)})
    assert unit.step(0.0, 0.01) == 0
    assert unit.set({f"damping.{joint}": damping(1.03)}) == 0
    assert unit.step(0.01, 0.01) == 3
    assert unit.messages[-1].startswith(
        "dt = 0.001 s is unstable at t = 0.01 s: damping or friction stops a joint within"
    )
    assert unit.set({f"damping.{joint}": 0.3, f"friction.{joint}": 0.1 * (damping(1.03) + 2.0)}) == 0
    assert unit.step(0.01, 0.01) == 3
    assert unit.set({f"friction.{joint}": 0.2}) == 0
    assert unit.step(0.01, 0.01) == 0
    longer = Unit(place)
    longer.begin(*rest, dt=1.02 * 2.785 / ((0.3 + 0.2 / 0.1) * ease))
    assert longer.step(0.0, 1.02 * 2.785 / ((0.3 + 0.2 / 0.1) * ease)) == 3
    assert "is unstable at t = 0 s" in longer.messages[-1]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(("dt", "count"), [(1e-300, "1e+298"), (5e-324, "inf"), (1e-12, "1e+10")])
def test_steps_that_would_take_for_ever(version: int, dt: float, count: str, folder: Path) -> None:
    unit, model = Unit(fmu(folder, "arm", version)), robot("arm")
    unit.begin(*random_state(model, 3), dt=dt)
    state_before = unit.state()
    assert unit.step(0.0, 0.01) == 3
    assert unit.messages == [
        f"the communication step of 0.01 s takes {count} steps of dt = {dt:.17g} s, at most 1e+09 are allowed"
    ]
    assert unit.state() == state_before
    assert unit.step(0.0, 5 * dt) == 0
    assert unit.now()[0] == 5 * dt


def test_units_with_other_steps_have_other_tokens(tmp_path: Path) -> None:
    """A saved state or a reference to one of them must not be taken for the other's."""
    tokens: list[str] = []
    different: list[dict[str, Any]] = [{}, {"effort_limits": True}, {"integrator": "explicit_euler"}, {"dt": 2e-3}]
    for k, options in enumerate(different):
        file = robot("pendulum").export_fmu(tmp_path / f"{k}.fmu", **options)
        root = ET.fromstring(zipfile.ZipFile(file).read("modelDescription.xml"))
        tokens.append(root.attrib["instantiationToken"])
    assert len(set(tokens)) == 4


def test_efforts_within_limits_and_a_payload(folder: Path) -> None:
    loaded = robot("pendulum").with_payload(Payload(robot("pendulum").link_names[-1], 2.0))
    place = folder / "limited"
    file = loaded.export_fmu(folder / "limited.fmu", effort_limits=True, integrator="semi_implicit_euler", dt=2e-3)
    zipfile.ZipFile(file).extractall(place)
    unit = Unit(place)
    unit.begin(np.zeros(1), np.zeros(1), np.array([-1e3]))
    assert unit.step(0.0, 0.1) == 0
    expected = loaded.simulate([0.0], [0.0], -loaded.limits.effort, dt=2e-3, steps=50, integrator="semi_implicit_euler")
    assert unit.get("position").tobytes() == expected.q[-1].tobytes()
    a = loaded.forward_dynamics(expected.q[-1], expected.v[-1], -loaded.limits.effort)
    assert unit.get("acceleration").tobytes() == a.tobytes()


@pytest.mark.parametrize("version", [2, 3])
def test_payload_and_friction_as_parameters(version: int, folder: Path, tmp_path: Path) -> None:
    """Those of the file: the bits of the robot. Friction: those of an overlay. A payload: its numbers are rounded
    differently. Set between two steps, it acts from the next one on.
    """
    place, model = fmu(folder, "arm", version, **ALL_OPTIONS), robot("arm")
    root, joint, com = ET.parse(place / "modelDescription.xml").getroot(), "j %/1", [0.3, -0.1, 0.2]
    variables = {x.attrib["name"]: {**x.attrib, **(x[0].attrib if len(x) else {})} for x in root.find("ModelVariables")}
    tunable = {name: x["start"] for name, x in variables.items() if x["variability"] == "tunable"}
    assert [*tunable.items()][3:] == [
        *((f"payload.{x}", "0.0") for x in ("mass", "x", "y", "z")), (f"damping.{joint}", "0.3"),
        (f"friction.{joint}", "0.2"),
    ]  # fmt: skip
    assert [variables[f"{x}.{joint}"]["unit"] for x in ("damping", "friction")] == ["N m s/rad", "N m"]
    load = {"payload.mass": 0.7, **{f"payload.{axis}": x for axis, x in zip("xyz", com, strict=True)}}
    rubs = {f"damping.{joint}": 0.1, f"friction.{joint}": 0.5}
    joints = {joint: JointNumbers(damping=0.1, friction=0.5)}
    payload = Payload("arm", 0.7, com)
    state = random_state(model, 5)
    unit = Unit(place)
    for parameters, overlay in (
        ({}, None), (rubs, Overlay(joints=joints)), (load, Overlay(payloads=payload)),
        ({**load, **rubs}, Overlay(joints=joints, payloads=payload)),
    ):  # fmt: skip
        overlaid = model if overlay is None else model.overlaid(overlay)
        unit.begin(*state)
        assert unit.step(0.0, 0.01) == 0
        assert unit.set(parameters) == 0
        assert unit.step(0.01, 0.03) == 0
        first = model.simulate(*state, dt=1e-3, steps=10)
        end = overlaid.simulate(first.q[-1], first.v[-1], state[2], dt=1e-3, steps=30)
        end_state = np.concatenate([unit.get("position"), unit.get("velocity")])
        expected = np.concatenate([end.q[-1], end.v[-1]])
        # A payload's sums are rounded in another order in the unit; everything else has the same bits.
        assert np.abs(end_state - expected).max() <= (1e-13 if load.items() <= parameters.items() else 0.0)
        a = overlaid.forward_dynamics(end.q[-1], end.v[-1], state[2])
        assert np.abs(unit.get("acceleration") - a).max() <= (1e-11 if load.items() <= parameters.items() else 0.0)
        assert unit.call("Terminate") == 0
        assert unit.call("Reset") == 0
    assert unit.set({"payload.mass": -0.1}) == unit.set({f"friction.{joint}": -1.0}) == 3
    assert unit.messages[-1] == f"'friction.{joint}' must be a number, at least 0, found -1"
    assert unit.set({"payload.x": -0.1}) == 0
    if version == 2:
        return  # the sources are the same
    library = tmp_path / "unit.so"
    options = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O0", "-fPIC", "-shared", "-o", str(library)]
    assert COMPILER is not None
    subprocess.run([COMPILER, *options, *map(str, sorted(place.glob("sources/*.c"))), "-lm"], check=True)
    compiled = Unit(place, library)
    compiled.begin(*state, **load, **rubs)
    assert compiled.step(0.0, 0.04) == 0
    unit.begin(*state, **load, **rubs)
    assert unit.step(0.0, 0.04) == 0
    # Another compiler may contract products and sums: forty steps of roundings.
    np.testing.assert_allclose(compiled.get("position"), unit.get("position"), rtol=1e-12, atol=1e-12)


def test_units_of_damping_and_friction() -> None:
    panda = robot("panda")
    unit_of = {x.name: x.unit for x in module._parameters(panda, False, module._friction_rates(panda))}
    for joint, units in (
        ("panda_joint1", ["N m s/rad", "N m"]),
        ("panda_finger_joint1", ["N s/m", "N"]),
        ("panda_finger_joint2", ["N s/m", "N"]),  # it mimics the other
    ):
        assert [unit_of[f"{quantity}.{joint}"] for quantity in ("damping", "friction")] == units


@pytest.mark.parametrize("version", [2, 3])
def test_imus(version: int, folder: Path) -> None:
    """The bits of the query `imu`, at the acceleration under the present efforts."""
    unit, model = Unit(fmu(folder, "arm", version, **ALL_OPTIONS)), robot("arm")
    q, v, tau = random_state(model, 6)
    g = [1.0, -2.0, 3.0]
    unit.begin(q, v, tau, **{f"gravity.{axis}": x for axis, x in zip("xyz", g, strict=True)})
    assert unit.step(0.0, 0.02) == 0
    assert (
        unit.set({f"effort.{name}": x for name, x in zip(model.configuration.velocity_names, 2.0 * tau, strict=True)})
        == 0
    )
    expected = model.simulate(q, v, tau, dt=1e-3, steps=20, gravity=g)
    state = expected.q[-1], expected.v[-1]
    read = model.imu(*state, model.forward_dynamics(*state, 2.0 * tau, gravity=g), links=["arm", "base"], gravity=g)
    assert unit.get("specific_force").tobytes() == read.specific_force.tobytes()
    assert unit.get("angular_velocity").tobytes() == read.angular_velocity.tobytes()
    assert unit.set({"specific_force.arm.x": 1.0}) == 3


@pytest.mark.parametrize("version", [2, 3])
def test_sources_for_other_processors(version: int, folder: Path, tmp_path: Path) -> None:
    place, model = fmu(folder, "pendulum", version, imus=("base",)), robot("pendulum")
    names = [
        x.attrib["name"] for x in ET.parse(place / "modelDescription.xml").findall("CoSimulation/SourceFiles/File")
    ]
    if version == 3:
        build = ET.parse(place / "sources" / "buildDescription.xml")
        names = [x.attrib["name"] for x in build.findall("BuildConfiguration/SourceFileSet/SourceFile")]
    library, sources = tmp_path / "unit.so", [str(place / "sources" / name) for name in names]
    assert COMPILER is not None
    options = ["-std=c99", "-Wall", "-Werror", "-O0", "-fPIC", "-shared", "-o", str(library)]
    subprocess.run([COMPILER, *options, *sources, "-lm"], check=True)
    unit, binary = Unit(place, library), Unit(place)
    for instance in (unit, binary):
        instance.begin(*random_state(model, 4))
        assert instance.step(0.0, 0.1) == 0
    # 400 evaluations, each with some units in the last place of sums that cancel.
    np.testing.assert_allclose(unit.get("position"), binary.get("position"), rtol=1e-12, atol=1e-12)
    assert not unit.get("angular_velocity").any(), "entries that are 0 at every state, of a link that never moves"
    cleared = (place / "sources" / "kernels.c").read_text().count("    memset(y")
    assert cleared == 5, "all outputs: of step two, of acceleration one, of imu two"
    assert unit.call("Terminate") == 0


def test_loops_have_no_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_SERVICE_CACHE", "")
    monkeypatch.setattr(budget, "FIRST_PROBE", 1)
    monkeypatch.setattr(budget, "MAX_UNROLLED", 0)  # each kernel is a loop over the bodies
    pendulum = Robot.from_urdf(URDF / "double_pendulum.urdf")
    archive = zipfile.ZipFile(pendulum.export_fmu(tmp_path / "one.fmu", integrator="semi_implicit_euler"))
    assert [Path(file_name).suffix for file_name in archive.namelist()] == [".so", ".xml"]
    archive.extractall(tmp_path / "one")
    unit, (q, v, tau) = Unit(tmp_path / "one"), random_state(pendulum, 8)
    unit.begin(q, v, tau)
    assert unit.step(0.0, 0.01) == 0
    expected = pendulum.simulate(q, v, tau, dt=1e-3, steps=10, integrator="semi_implicit_euler")
    assert unit.get("position").tobytes() == expected.q[-1].tobytes()


def test_other_processor(tmp_path: Path) -> None:
    if shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("aarch64-linux-gnu-gcc is not installed")
    file = robot("pendulum").export_fmu(tmp_path / "one.fmu", target="aarch64")
    code = zipfile.ZipFile(file).read("binaries/aarch64-linux/pendulum.so")
    assert int.from_bytes(code[18:20], "little") == 183, "e_machine of ELF"
    second_file = robot("pendulum").export_fmu(tmp_path / "two.fmu", target="aarch64")
    assert file.read_bytes() == second_file.read_bytes()


ERRORS: dict[str, tuple[dict[str, Any], type[DynError], str]] = {
    "version": ({"version": 1}, InvalidArgumentError, "version of FMI must be 2 or 3, found 1"),
    "version as text": ({"version": 3.0}, InvalidArgumentError, r"version of FMI must be 2 or 3, found 3\.0"),
    "flag": ({"effort_limits": "no"}, InvalidArgumentError, "effort_limits must be true or false, found str 'no'"),
    "friction": ({"friction": 1}, InvalidArgumentError, "friction must be true or false, found int 1"),
    "path": ({"file": 3}, InvalidArgumentError, "file must be a path, found int 3"),
    "folder": ({"file": URDF, "force": True}, InvalidArgumentError, "urdf is a folder, which no file can replace"),
    "device": ({"file": "/dev/null", "force": True}, InvalidArgumentError, "/dev/null is a device, socket or pipe"),
    "long path": ({"file": "x" * 300}, InvalidArgumentError, "x cannot be written: File name too long"),
    "no number": ({"dt": "1"}, InvalidArgumentError, "dt must be a positive number of seconds, found '1'"),
    "array": ({"dt": np.ones(2)}, InvalidArgumentError, "dt must be a positive number of seconds, found array"),
    "dt": ({"dt": 0.0}, InvalidArgumentError, r"dt must be a positive number of seconds, found 0\.0"),
    "integrator": ({"integrator": "rk5"}, InvalidArgumentError, "did you mean 'rk4'"),
    "target": ({"target": "cortex-m7"}, UnimplementedError, "FMUs are written for Linux and macOS, not for thumbv7em"),
    "payload": ({"payload": "bub"}, NotFoundError, "robot 'pendulum' has no link 'bub'"),
    "imus": ({"imus": ["bub"]}, NotFoundError, "robot 'pendulum' has no link 'bub'"),
    "one imu": ({"imus": "bub"}, NotFoundError, "robot 'pendulum' has no link 'bub'"),
    "imu twice": ({"imus": ["base", "base"]}, InvalidArgumentError, "imus contains link 'base' twice"),
    "still payload": ({"payload": "base"}, InvalidArgumentError, "link 'base' never moves: a payload on it has no"),
    "name": ({"name": "7 arms"}, InvalidArgumentError, "name must begin with a letter"),
}


@pytest.mark.parametrize("wrong", ERRORS)
def test_errors(wrong: str, tmp_path: Path) -> None:
    options, kind, message = ERRORS[wrong]
    with pytest.raises(kind, match=message):
        robot("pendulum").export_fmu(**{"file": tmp_path / "one.fmu", **options})
    assert not [*tmp_path.iterdir()]


def test_files_compilers_and_robots_without_joints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "one.fmu"
    file.write_text("mine")
    with pytest.raises(InvalidArgumentError, match=r"one\.fmu already exists: set force=True"):
        robot("pendulum").export_fmu(file)
    with pytest.raises(InvalidArgumentError, match=r"one\.fmu.below cannot be written"):
        robot("pendulum").export_fmu(file / "below")
    with monkeypatch.context() as full:
        full.setattr(zipfile.ZipFile, "writestr", Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(InvalidArgumentError, match="cannot be written: No space"):
            robot("pendulum").export_fmu(file, force=True)
    assert [*tmp_path.iterdir()] == [file]
    with pytest.raises(FailedPreconditionError, match="has no movable joints"):
        Robot.from_urdf(f'<robot name="rock">{LINK.format("base")}</robot>').export_fmu(tmp_path / "rock.fmu")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        FailedPreconditionError, match=r"an FMU for host needs a C compiler, cc, gcc, clang, .*: install"
    ):
        robot("pendulum").export_fmu(file, force=True)
    failing = tmp_path / "cc"
    failing.write_text("#!/bin/sh\necho no header >&2; exit 1")
    failing.chmod(0o755)
    with pytest.raises(FailedPreconditionError, match="cc failed: no header"):
        robot("pendulum").export_fmu(file, force=True)
    assert file.read_text() == "mine"
