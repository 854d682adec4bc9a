"""A robot as an FMU: a co-simulation unit of FMI 2.0 or 3.0 that needs no Python, for tools that simulate or test.

The steps are those of `Robot.simulate`, by the exported functions of `step` and `forward_dynamics`; `fmu.c` has the
functions of FMI. Units and texts in modelDescription.xml are those of the table, limits those of the robot. Source: FMI
2.0.5 and 3.0.2, https://fmi-standard.org.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import uuid
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from numbers import Integral, Real
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree as ET

import numpy as np

from dyn_service import __version__
from dyn_service.api.lists import row_of
from dyn_service.api.queries import Query
from dyn_service.api.spec import Variant
from dyn_service.dynamics import expressions as ex
from dyn_service.engine.export.functions import (
    check_flags,
    chosen,
    function_of,
    links_of,
    path_of,
    prefix_of,
    reject_existing,
)
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from dyn_service.kernels.export import Function, Target, object_code, target_of
from dyn_service.kernels.rolled import Rolled
from dyn_service.model.description import motors_by_entry
from dyn_service.model.motors import Motor, motor_arrays
from dyn_service.model.parameters import BODIES, FREE, JOINTS, parameters_of
from dyn_service.simulation.stability import LIMITS, SPACING, check_step, longest_held_step
from dyn_service.support.files import replacement

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot

_BASE_UNITS: Mapping[str, Mapping[str, int]] = {
    "kg": {"kg": 1},
    "N": {"kg": 1, "m": 1, "s": -2},
    "m": {"m": 1},
    "rad": {"rad": 1},
    "s": {"s": 1},
    "A": {"A": 1},
    "degC": {"K": 1},
    "1": {},
}
_OPTIONS = ("-std=c99", "-O2", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-shared")
_UNARY = ((ex.NEG, "-"), (ex.INVERSE, "1.0 / "), (ex.SQRT, "sqrt"), (ex.SIN, "sin"), (ex.COS, "cos"), (ex.FABS, "fabs"))
_BINARY = ((ex.ADD, "+"), (ex.SUB, "-"), (ex.MUL, "*"), (ex.DIV, "/"), (ex.LESS, "<"))
_IN_C = {
    **{operation: f"{text}({{}})" for operation, text in (*_UNARY, (ex.TANH, "tanh"))},
    **{operation: f"{{}} {text} {{}}" for operation, text in _BINARY},
    **{operation: f"{text}({{}}, {{}})" for operation, text in ((ex.COPYSIGN, "copysign"), (ex.ATAN2, "atan2"))},
    ex.SQUARE: "{0} * {0}",
    ex.TWICE: "{0} + {0}",
    ex.NOT: "{} == 0.0",
    ex.IF_ELSE_ZERO: "{} == 0.0 ? 0.0 : {}",
    ex.FMIN: "{0} > {1} ? {1} : {0}",
    ex.FMAX: "{0} < {1} ? {1} : {0}",
}


class _Variable(NamedTuple):
    """A variable; its place in the list is its value reference. start: None if it is computed."""

    name: str
    causality: str
    variability: str
    text: str
    unit: str
    start: float | None = None
    lower: float = -math.inf
    upper: float = math.inf


def export_fmu(
    robot: Robot,
    file: str | os.PathLike[str],
    *,
    version: int,
    integrator: str,
    dt: float,
    effort_limits: bool,
    target: str,
    name: str | None,
    force: bool,
    payload: str | None,
    friction: bool,
    imus: Sequence[str],
    motors: bool,
) -> Path:
    """Writes a robot as an FMU; see `Robot.export_fmu`."""
    check_flags(effort_limits=effort_limits, friction=friction, force=force, motors=motors)
    path, prefix = path_of("file", file), prefix_of(robot, target, name)
    machine, step = target_of(target), chosen(f"step:{integrator}")
    system = _checked_system(robot, version, dt, machine)
    reject_existing("file", path, force)
    _check_parameters_of_loops(robot, payload, friction)
    check_step(robot, dt, integrator)
    imus = links_of(robot, "imus", imus)
    carrier, places = _carrier(robot, payload), [robot.evaluator.model.index_of(link, "imus") for link in imus]
    rate_of_joint = _friction_rates(robot) if friction else {}
    motor_of_entry, longest = _motors(robot, dt) if motors else ({}, math.inf)
    rows = {"MODEL_STEP": step, "MODEL_ACCELERATION": chosen("forward_dynamics")}
    models = {name: function_of(robot, *row, prefix) for name, row in rows.items()}
    if payload is not None or rate_of_joint:
        models |= {f"{name}_WITH": _with_numbers(robot, *row, models[name].name) for name, row in rows.items()}
    models |= {"MODEL_IMU": function_of(robot, *chosen("imu"), prefix)} if imus else {}
    functions, variables = [*models.values()], _variables(robot, dt)
    variables += _parameters(robot, carrier >= 0, rate_of_joint)
    variables += _motor_outputs(robot, motor_of_entry) + _imu_outputs(imus)
    fingerprint = repr(
        (robot.tree.fingerprint, version, integrator, effort_limits, prefix, payload, variables, motor_of_entry)
    )
    token = str(uuid.uuid5(uuid.NAMESPACE_OID, fingerprint))
    damped = friction or {"damping", "friction"} & robot.tree.passive.acts
    share = LIMITS[integrator].damping if damped else 0.0
    bounds = robot.limits.efforts if effort_limits else np.full(robot.nv, math.inf)
    sources = {
        "fmu.c": resources.files("dyn_service.engine.export").joinpath("fmu.c").read_text("utf-8"),
        "model.h": _header(robot, models, variables, bounds, machine, version, token, share)
        + _numbers(robot, carrier, payload, rate_of_joint, places)
        + _motor_numbers(robot, motor_of_entry, longest),
    }
    processor = {"arm64": "aarch64"}.get(machine.processor, machine.processor)
    folder = f"{system}64" if (version, processor) == (2, "x86_64") else f"{processor}-{system}"
    library = _compiled(sources, object_code(functions, machine)[0], machine, target)
    files = {f"binaries/{folder}/{prefix}{machine.ending}": library}
    source_names, source_files = _source_files(sources, _in_c(functions), version, prefix)
    files |= source_files
    files["modelDescription.xml"] = _description(robot, prefix, version, variables, token, dt, source_names)
    _write(path, files)
    return path


def _checked_system(robot: Robot, version: int, dt: float, machine: Target) -> str:
    """Returns the name that FMI has for the operating system.

    Raises:
        InvalidArgumentError: `version` or `dt` is invalid.
        FailedPreconditionError: The robot has no movable joints.
        UnimplementedError: There are no FMUs for the target.
    """
    if not isinstance(version, Integral) or version not in (2, 3):
        raise InvalidArgumentError(f"version of FMI must be 2 or 3, found {version!r}", path="version")
    if isinstance(dt, bool) or not isinstance(dt, Real) or not 0.0 < dt < math.inf:
        raise InvalidArgumentError(f"dt must be a positive number of seconds, found {dt!r}", path="dt")
    if not robot.nv:
        raise FailedPreconditionError(f"robot '{robot.name}' has no movable joints, so it has no FMU")
    if "linux" in machine.triple:
        return "linux"
    if "apple" in machine.triple:
        return "darwin"
    raise UnimplementedError(f"FMUs are written for Linux and macOS, not for {machine.triple}", path="target")


def _check_parameters_of_loops(robot: Robot, payload: str | None, friction: bool) -> None:
    """Refuses parameters that the functions of closed loops do not take, by UnimplementedError."""
    if robot.closed_motion is not None and (payload is not None or friction):
        raise UnimplementedError(
            f"the FMU of robot '{robot.name}', which has closed loops, has no parameters of payload and friction: "
            "export robot.with_payload(..) or robot.overlaid(..)",
            path="friction" if payload is None else "payload",
        )


def _source_files(
    sources: Mapping[str, str], kernels: str, version: int, prefix: str
) -> tuple[list[str], dict[str, bytes]]:
    """Returns the names of the C files of an FMU, and its source files by path; none if the kernels have no C code."""
    if not kernels:
        return [], {}
    names = ["fmu.c", "kernels.c"]
    files = {f"sources/{file}": text.encode() for file, text in {**sources, "kernels.c": kernels}.items()}
    return names, files | ({"sources/buildDescription.xml": _build_description(prefix, names)} if version == 3 else {})


def _build_description(prefix: str, sources: Sequence[str]) -> bytes:
    """Returns buildDescription.xml."""
    root = ET.Element("fmiBuildDescription", fmiVersion="3.0")
    build = ET.SubElement(root, "BuildConfiguration", modelIdentifier=prefix)
    _add_all(ET.SubElement(build, "SourceFileSet", language="C99"), "SourceFile", sources)
    return _as_bytes(root)


def _write(path: Path, contents: Mapping[str, bytes]) -> None:
    """Writes an FMU of these files."""
    try:
        with replacement(path) as file, zipfile.ZipFile(file, "w") as archive:
            for name, content in sorted(contents.items()):
                archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be written: {error.strerror}", path="file") from None


def _variables(robot: Robot, dt: float) -> list[_Variable]:
    """Returns the variables in the order of `fmu.c`."""
    configuration, limits, inputs = robot.configuration, robot.limits, row_of("step").inputs
    in_q, in_v, in_tau = ((limits.lower, limits.upper), *((-x, x) for x in (limits.speeds, limits.efforts)))
    of_q = configuration.position_names, np.where(configuration.angles, 0, np.where(configuration.shifts, 1, 2))
    of_v = configuration.velocity_names, np.where(configuration.turns, 0, 1)
    q, v, a = inputs["q"], inputs["v"], row_of("forward_dynamics").outputs["a"]
    first = np.clip(configuration.neutral, *in_q)
    if robot.closed_motion is not None:
        first = robot.assemble(first)
        if robot.closed_motion.driven is not None:  # joints without a drive accept no effort but 0
            drives = robot.closed_motion.driven
            in_tau = np.where(drives, in_tau[0], 0.0), np.where(drives, in_tau[1], 0.0)
    rest, free = np.zeros(configuration.nv), (np.full(configuration.nv, -math.inf), np.full(configuration.nv, math.inf))
    initial, output = ("parameter", "fixed"), ("output", "continuous")
    groups: list[tuple[Any, ...]] = [
        ("effort", ("input", "continuous"), inputs["tau"], of_v, rest, in_tau),
        ("position", output, q, of_q, None, in_q),
        ("velocity", output, v, of_v, None, in_v),
        ("acceleration", output, a, of_v, None, free),
        ("initial_position", initial, q, of_q, first, in_q),
        ("initial_velocity", initial, v, of_v, rest, in_v),
    ]
    variables = [
        _Variable("time", "independent", "continuous", "time", "s"),
        _Variable("dt", *initial, inputs["dt"].text, inputs["dt"].unit, float(dt)),
    ]
    for axis, g in zip("xyz", robot.gravity, strict=True):
        spec = inputs["gravity"]
        variables.append(_Variable(f"gravity.{axis}", "parameter", "tunable", spec.text, spec.unit, float(g)))
    for name, role, spec, (names, place_of_unit), starts, limits_of_group in groups:
        units = [*spec.unit.split(" | "), "1"]  # the last one is that of quaternions
        for k, entry in enumerate(names):
            start = None if starts is None else float(starts[k])
            lower, upper = (float(bounds[k]) for bounds in limits_of_group)
            unit = units[place_of_unit[k]]
            variables.append(_Variable(f"{name}.{entry}", role[0], role[1], spec.text, unit, start, lower, upper))
    return variables


def _carrier(robot: Robot, payload: str | None) -> int:
    """Returns the moving body of the payload's link, -1 without a payload."""
    if payload is None:
        return -1
    body = robot.bodies.body[robot.evaluator.model.index_of(payload, "payload")]
    if body < 0:
        raise InvalidArgumentError(f"link '{payload}' never moves: a payload on it has no effect", path="payload")
    return body


def _friction_rates(robot: Robot) -> dict[str, int]:
    """Returns the place of each joint with damping and friction among the rates of moving joints, by its name."""
    tree = robot.tree
    axes = ((i, tree.joints[i]) for i in tree.movable if tree.inboard[i].refused("friction") is None)
    return {name: tree.in_rates[i].start for i, name in axes if tree.inboard[i].nv == 1}


def _parameters(robot: Robot, loaded: bool, rate_of_joint: Mapping[str, int]) -> list[_Variable]:
    """Returns the parameters of payload and friction, in the order of `fmu.c`."""
    tree, role = robot.tree, ("parameter", "tunable")
    variables = [_Variable("payload.mass", *role, "mass of the payload, a point", "kg", 0.0, 0.0)] if loaded else []
    variables += [_Variable(f"payload.{x}", *role, "payload, in its link's frame", "m", 0.0) for x in "xyz" if loaded]
    for quantity, numbers, per_velocity, text in (
        ("damping", tree.passive.damping, " s", "effort per velocity"),
        ("friction", tree.passive.friction, "", "Coulomb friction"),
    ):
        for name, k in rate_of_joint.items():
            turns = tree.inboard[tree.joints.index(name)].subspace[:3].any()
            if per_velocity:
                unit = f"N m{per_velocity}/rad" if turns else f"N{per_velocity}/m"
            else:
                unit = "N m" if turns else "N"
            variables.append(_Variable(f"{quantity}.{name}", *role, text, unit, float(numbers[k]), 0.0))
    return variables


def _motors(robot: Robot, dt: float) -> tuple[dict[int, Motor], float]:
    """Returns the motors by entry of v, those with heat first, and the longest step, s, for their back EMF.

    Raises:
        FailedPreconditionError: The robot's files have no motor, or the step is longer.
        UnimplementedError: A motor has an elastic gear.
    """
    names = robot.configuration.velocity_joints
    motors = motors_by_entry(robot.as_described, names)
    if not motors:
        text = "has no motor in its files: add motors to a joint file, or export it without motors"
        raise FailedPreconditionError(f"robot '{robot.name}' {text}", path="motors")
    elastic = [names[k] for k, motor in motors.items() if motor.gear_stiffness is not None]
    if elastic:
        text = f"the unit has no state for the rotor behind the gear_stiffness of joint {', '.join(elastic)}"
        raise UnimplementedError(f"{text}: use the plant, or leave out gear_stiffness", path="motors")
    longest, worst = longest_held_step(robot, motor_arrays(motors, robot.nv).braking)
    if dt > longest:
        text = f"expected at most {longest:.4g}, or a larger rotor_inertia of the motor of joint '{names[worst]}'"
        cause = "because its back EMF brakes it faster than a step"
        raise FailedPreconditionError(f"dt is {dt:g} s: {text}, {cause}", path="dt")
    return dict(sorted(motors.items(), key=lambda item: item[1].thermal_resistance is None)), longest


def _motor_outputs(robot: Robot, motors: Mapping[int, Motor]) -> list[_Variable]:
    """Returns the variables of motors, in the order of `fmu.c`."""
    names, output = robot.configuration.velocity_joints, ("output", "continuous")
    hot = [k for k, motor in motors.items() if motor.thermal_resistance is not None]
    return [
        *(_Variable(f"current.{names[k]}", *output, "current of the motor in the last step", "A") for k in motors),
        *(_Variable(f"winding_temperature.{names[k]}", *output, "temperature of the winding", "degC") for k in hot),
    ]


def _imu_outputs(links: Sequence[str]) -> list[_Variable]:
    """Returns the variables of inertial measurement units on links, in the order of `fmu.c`."""
    return [
        _Variable(f"{quantity}.{link}.{axis}", "output", "continuous", spec.text, spec.unit)
        for quantity, spec in row_of("imu").outputs.items()
        for link in links
        for axis in "xyz"
    ]


def _motor_numbers(robot: Robot, motors: Mapping[int, Motor], longest: float) -> str:
    """Returns the part of model.h for motors."""
    arrays, entries = motor_arrays(motors, robot.nv), [*motors]
    hot = sum(motor.thermal_resistance is not None for motor in motors.values())
    numbers = {
        "gain": arrays.gain,
        "resistance": arrays.resistance,
        "current": arrays.current_limit,
        "voltage": arrays.voltage_limit,
        "heat": arrays.heat,
        "time": arrays.time_constant,
        "rise": arrays.largest_rise,
        "ambient": arrays.ambient,
    }
    lines = [f"#define NM {len(motors)}", f"#define NH {hot}", f"#define LONGEST_DT {_in_hex(longest)}"]
    for name, array in numbers.items():
        lines.append(f"static const double motor_{name}[] = {{{', '.join([*map(_in_hex, array[entries]), '0'])}}};")
    lines.append(f"static const int motor_entry[] = {{{', '.join(map(str, [*entries, 0]))}}};")
    return "\n".join([*lines, ""])


def _in_hex(x: float) -> str:
    return float(x).hex() if math.isfinite(x) else "INFINITY"


def _with_numbers(robot: Robot, row: Query, method: str, name: str) -> Function:
    """Returns the function of a row with the numbers of bodies and joints as inputs."""
    signature = robot.signature(row, method, Variant(overlay=True))
    graphs = robot.evaluator.library.graphs(signature)
    return Function(f"{name}_with", signature, graphs, len(row.required), robot.evaluator.defaults_of(row))


def _numbers(
    robot: Robot, carrier: int, payload: str | None, rate_of_joint: Mapping[str, int], imus: Sequence[int]
) -> str:
    """Returns the part of model.h for parameters and sensors."""
    weld, numbers = robot.bodies, parameters_of(robot.bodies.tree)
    payload_link = 0 if payload is None else robot.evaluator.model.index_of(payload, "payload")
    lists = {"bodies": numbers[BODIES], "rates": numbers[JOINTS], "moves": numbers[FREE]}
    lists |= {"payload_rotation": weld.rotation[payload_link], "payload_origin": weld.origin[payload_link]}
    sizes = {"PAYLOAD_BODY": carrier, "NF": len(rate_of_joint), "NB": len(weld.tree), "NR": len(numbers[JOINTS])}
    sizes |= {"NI": len(imus), "NL": len(robot.tree.links)}
    lines = [f"#define {name} {value}" for name, value in sizes.items()]
    if payload is not None or rate_of_joint:
        for name, array in lists.items():
            lines.append(f"static const double {name}[] = {{{', '.join(float(x).hex() for x in np.ravel(array))}}};")
        lines.append(f"static const int rate_of[] = {{{', '.join(map(str, [*rate_of_joint.values(), -1]))}}};")
    if imus:
        lines.append(f"static const int imus[] = {{{', '.join(map(str, imus))}}};")
    return "\n".join([*lines, ""])


def _description(
    robot: Robot, prefix: str, version: int, variables: Sequence[_Variable], token: str, dt: float, sources: list[str]
) -> bytes:
    """Returns modelDescription.xml."""
    third, length = version == 3, repr(float(dt))
    legal = all(re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", variable.name, re.ASCII) for variable in variables)
    root = ET.Element(
        "fmiModelDescription",
        {
            "fmiVersion": f"{version}.0",
            "modelName": robot.name,
            "instantiationToken" if third else "guid": token,
            "generationTool": f"dyn_service {__version__}",
            "variableNamingConvention": "structured" if legal else "flat",
        },
    )
    state = "FMUState" if third else "FMUstate"
    abilities = ["canHandleVariableCommunicationStepSize", f"canGetAndSet{state}", f"canSerialize{state}"]
    abilities += [] if third else ["canNotUseMemoryManagementFunctions"]
    steps = {"fixedInternalStepSize": length} if third else {}
    unit = ET.SubElement(root, "CoSimulation", {"modelIdentifier": prefix, **dict.fromkeys(abilities, "true"), **steps})
    if sources and not third:
        _add_all(ET.SubElement(unit, "SourceFiles"), "File", sources)
    units = ET.SubElement(root, "UnitDefinitions")
    for name in dict.fromkeys(variable.unit for variable in variables):
        ET.SubElement(ET.SubElement(units, "Unit", name=name), "BaseUnit", _exponents(name))
    _add_all(ET.SubElement(root, "LogCategories"), "Category", ["logStatusError"])
    ET.SubElement(root, "DefaultExperiment", startTime="0.0", stepSize=length)
    elements = ET.SubElement(root, "ModelVariables")
    for k, variable in enumerate(variables):
        attributes = {"name": variable.name, "valueReference": str(k), "description": variable.text}
        attributes |= {"causality": variable.causality, "variability": variable.variability}
        initial = {"parameter": "exact", "output": "calculated"}.get(variable.causality)
        attributes |= {"initial": initial} if initial else {}
        numbers = {"start": variable.start, "min": variable.lower, "max": variable.upper}
        value = {key: repr(x) for key, x in numbers.items() if x is not None and math.isfinite(x)}
        parent = elements if third else ET.SubElement(elements, "ScalarVariable", attributes)
        ET.SubElement(
            parent, "Float64" if third else "Real", {**(attributes if third else {}), "unit": variable.unit, **value}
        )
    structure = ET.SubElement(root, "ModelStructure")
    outputs = [k for k, variable in enumerate(variables) if variable.causality == "output"]
    for role in ("Output", "InitialUnknown"):
        parent = structure if third else ET.SubElement(structure, f"{role}s")
        for k in outputs:
            place = {"valueReference": str(k)} if third else {"index": str(k + 1)}
            ET.SubElement(parent, role if third else "Unknown", place)
    return _as_bytes(root)


def _add_all(parent: ET.Element, tag: str, names: Sequence[str]) -> None:
    for name in names:
        ET.SubElement(parent, tag, name=name)


def _as_bytes(root: ET.Element) -> bytes:
    ET.indent(root)
    text: bytes = ET.tostring(root, "utf-8", xml_declaration=True)
    return text


def _exponents(unit: str) -> dict[str, str]:
    """Returns the exponents of SI's base units: of `N m` kg 1, m 2, s -2; and the offset of a temperature."""
    exponents: Counter[str] = Counter()
    for sign, part in zip((1, -1), unit.split("/"), strict=False):
        for factor in part.split():
            name, _, power = factor.partition("^")
            for base, exponent in _BASE_UNITS[name].items():
                exponents[base] += sign * exponent * int(power or 1)
    offset = {"offset": "273.15"} if unit == "degC" else {}
    return {base: str(exponent) for base, exponent in exponents.items() if exponent} | offset


def _header(
    robot: Robot,
    models: Mapping[str, Function],
    variables: Sequence[_Variable],
    bounds: np.ndarray,
    machine: Target,
    version: int,
    token: str,
    largest_share: float,
) -> str:
    """Returns model.h. largest_share: of the rate of damping times the step; 0 without damping."""
    configuration = robot.configuration
    starts = [variable.start or 0.0 for variable in variables]
    first, state = 5 + configuration.nv, configuration.nq + configuration.nv
    starts[first : first + state] = starts[first + state + configuration.nv :][:state]
    turning = [
        (part, joint.quaternion) for joint, part in zip(configuration.joints, configuration.q_slices, strict=True)
    ]
    lists = {
        "double starts": (x.hex() for x in starts),
        "double effort_limits": map(_in_hex, bounds),
        "char *const names": (_quoted(variable.name) for variable in variables),
        "int quaternions": [*(str(part.start + inner.start) for part, inner in turning if inner.stop), "-1"],
    }
    sizes = {"FMI": version, "TOKEN": f'"{token}"', "NQ": configuration.nq, "NV": configuration.nv}
    if robot.closed_motion is not None:
        sizes["CLOSED_LOOPS"] = 1
        drives = np.ones(robot.nv) if robot.closed_motion.driven is None else robot.closed_motion.driven
        lists["double drives"] = (float(drive).hex() for drive in drives)
    sizes |= {"SPACING": repr(SPACING), "LARGEST_SHARE": repr(largest_share)}
    sizes["WORKSPACE"] = max(function.workspace(machine) for function in models.values())
    sizes |= {name: f"{function.name}_eval" for name, function in models.items()}
    lines = [f"#define {name} {value}" for name, value in sizes.items()]
    lines += [f"{_prototype(function)};" for function in models.values()]
    lines += [f"static const {name}[] = {{{', '.join(entries)}}};" for name, entries in lists.items()]
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    safe = (chr(byte) if re.match(r"[\w .-]", chr(byte), re.ASCII) else f"\\{byte:03o}" for byte in text.encode())
    return f'"{"".join(safe)}"'


def _prototype(function: Function) -> str:
    parameters = [f"const double *x{k}" for k in range(len(function.signature.inputs))]
    parameters += [f"double *y{k}" for k in range(len(function.signature.outputs))]
    return f"int {function.name}_eval({', '.join(parameters)}, double *w)"


def _in_c(functions: Sequence[Function]) -> str:
    """Returns the functions in C, for processors without a binary; their inputs must not be their outputs.

    Empty if a function is a loop over the bodies.
    """
    lines = ["#include <math.h>", "#include <string.h>"]
    for function in functions:
        (graph,) = function.graphs
        if isinstance(graph, Rolled) or graph.is_rolled:
            return ""
        program = graph.program
        lines += ["", _prototype(function), "{", "    (void)w;"]
        lines += [f"    memset(y{k}, 0, {8 * count});" for k, count in enumerate(program.outputs)]
        for k, (operation, first, second) in enumerate(program.instructions):
            if operation == ex.OUTPUT:
                lines.append(f"    y{first[0]}[{first[1]}] = t{second};")
            elif operation == ex.CONSTANT:
                lines.append(f"    const double t{k} = {float(first).hex()};")
            elif operation == ex.INPUT:
                lines.append(f"    const double t{k} = x{first}[{second}];")
            else:
                lines.append(f"    const double t{k} = {_IN_C[operation].format(f't{first}', f't{second}')};")
        lines += ["    return 0;", "}"]
    return "\n".join([*lines, ""])


def _compiled(sources: Mapping[str, str], code: bytes, machine: Target, target: str) -> bytes:
    """Returns the shared library, by the first C compiler that is installed and can.

    Raises:
        FailedPreconditionError: No such compiler is installed.
    """
    host_triple, linux = target_of("host").triple, "linux" in machine.triple
    native = machine.triple.split("-")[::2] == host_triple.split("-")[::2]
    commands = [[name] for name in ("cc", "gcc", "clang") if native]
    commands += [[f"{machine.processor}-linux-gnu-gcc"], ["clang", f"--target={machine.triple}"]]
    problem = "install one of them"
    with TemporaryDirectory() as folder:
        for file, text in sources.items():
            Path(folder, file).write_text(text, "utf-8")
        Path(folder, "kernels.o").write_bytes(code)
        for command in commands:
            if shutil.which(command[0]) is None:
                continue
            options = [*_OPTIONS, *(["-Wl,-Bsymbolic"] if linux else []), "-o", "unit", "fmu.c", "kernels.o", "-lm"]
            done = subprocess.run([*command, *options], cwd=folder, capture_output=True, text=True, errors="replace")
            if done.returncode == 0:
                return Path(folder, "unit").read_bytes()
            problem = f"{command[0]} failed: {done.stderr.strip()}"
    names = ", ".join(dict.fromkeys(command[0] for command in commands))
    raise FailedPreconditionError(f"an FMU for {target} needs a C compiler, {names}: {problem}")
