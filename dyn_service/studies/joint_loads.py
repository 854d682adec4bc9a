"""Loads that size bearings, guides and drives: each joint's wrench by cause, in the axes of a designer.

With u the joint's axis, F and M the force and moment of the parent on the child at the joint's origin:

    radial = |F - (F.u) u|,   axial = F.u,   tilting = |M - (M.u) u|,   drive = tau

A bearing does not carry the drive's torque M.u; a guide (prismatic) carries all of M and not the drive's force F.u, so
its axial load is 0. A fixed joint has no drive: `drive` is its torsion M.u. Causes add up, as vectors, to the whole:

    gravity   at rest            inertia    the accelerations and the rotors' armature
    velocity  centrifugal, Coriolis          external   the wrenches in the options
    friction  damping, friction and springs: of the drive alone

A joint with a motor of gear N, torque constant K, resistance R uses these shares of its limits, 1 - the largest of them
is its margin, negative where a limit is exceeded:

    current  |i| / limit, i = drive / (N K)         voltage  |R i + N K v| / limit, which is 1 on the torque-speed line
    heat     i_rms / sqrt((limit - ambient) / (R_th R)), over the states; of a timed motion that repeats without end
             sqrt((peak - ambient) / (limit - ambient)), which is the same share for a constant current

Source: Newton-Euler (13), (20); motors: `model/motors.py`. Bearing life uses means: the cubic mean over states, and
over a duty cycle weighted by the turned angle, (sum |v| dt P^p / sum |v| dt)^(1/p), p = 3 for balls, 10/3 for rollers.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dyn_service.api.arrays import Array, found, numbers
from dyn_service.engine.robot import Robot
from dyn_service.errors import NotFoundError
from dyn_service.graph.report import page
from dyn_service.graph.report.charts import Card, Chart, Line
from dyn_service.model.description import motors_by_entry
from dyn_service.model.joints import joint_of
from dyn_service.model.motors import Motor, motor_arrays
from dyn_service.studies.keys import check_names, part_of, wrenches_of, wrong
from dyn_service.support.optional import load

MEASURES = ("radial", "axial", "tilting", "drive")
QUANTITIES = ("current", "voltage")
"""Of a motor, A and V."""
LIMITS = ("current", "voltage", "heat")
CAUSES = ("inertia", "velocity", "gravity", "external", "friction")

ROUNDING = 1e-12
"""Share of the largest number below which others are rounding errors: they are printed and drawn as 0."""

_SHARE = "share of states with at least this load [%]"
_MARGIN = 1.25
"""Range of a duration curve over the largest load of the first states; larger loads are in its last bin."""


def readable(*values: Any) -> Callable[[float], str]:
    """Returns the function that prints a number with 6 digits, and 0 if it is rounding compared with `values`."""
    sizes = np.abs(np.concatenate([np.ravel(x) for x in values]))
    rounding = ROUNDING * sizes.max(initial=0.0, where=np.isfinite(sizes))
    return lambda x: f"{0.0 if abs(x) <= rounding else x:.6g}"


class _Parts(NamedTuple):
    """Force (.., joints, 3), moment (.., joints, 3) and drive (.., joints)."""

    force: Array
    moment: Array
    drive: Array


class Loads:
    """Answers the query `design_loads` of a study.

    options: `joints`: names; default: all that move about or along one axis. `wrenches`: external ones, each a map of
    `link`, `force`, `torque`, `point` and `frame`. `motors`: by joint, the fields of `model.motors.Motor`; with these
    the answer has `motor`, current and voltage.
    """

    required = ("q", "v", "a")
    accepted = frozenset({*required, "overlay"})

    def __init__(self, robot: Robot, options: Mapping[str, Any]) -> None:
        self.robot = robot
        joints_by_name = {j.name: joint_of(j.type, j.axis, j.pitch) for j in robot.description.joints}
        default = [name for name, joint in joints_by_name.items() if joint.single_dof]
        self.joints: list[str] = list(options.get("joints") or default)
        for name in self.joints:
            check_names("options.joints", "joint", [name], joints_by_name, NotFoundError)
            joint = joints_by_name[name]
            if joint.nv > 1:
                text = f"joint '{name}' is {joint.type}, with {joint.nv} degrees of freedom: leave it out"
                raise wrong("options.joints", text)
        check_names("options", "option of design_loads called", options, ("joints", "wrenches", "motors"))
        self.wrenches = wrenches_of(options)
        self.axes = np.array([joints_by_name[name].parameters.get("axis", (0.0, 0.0, 1.0)) for name in self.joints])
        self.slides = np.array([joints_by_name[name].shifts == (True,) for name in self.joints])
        entries = robot.configuration.velocity_names
        self.entry = np.array([entries.index(name) if name in entries else -1 for name in self.joints])
        motors = part_of(options.get("motors") or {}, dict[str, Motor], "options.motors")
        check_names("options.motors", "joint", motors, joints_by_name, NotFoundError)
        self.motors = {j: motors[name] for j, name in enumerate(self.joints) if name in motors and self.entry[j] >= 0}
        self.motor_arrays = motor_arrays(self.motors, len(self.joints))

    def template(self, state: Mapping[str, Any]) -> Any:
        """Returns the labelled answer at one state."""
        xarray = load("design loads", "xarray")
        coordinates = {"urdf_joint": self.joints, "measure": list(MEASURES)}
        attributes = {"units": "N, N, N m, N m | N", "equation": "Newton-Euler (13), (20)"}
        answer = self(state)
        of_motors = answer.pop("motor", None)
        variables = {name: (("urdf_joint", "measure"), x, attributes) for name, x in answer.items()}
        if of_motors is not None:
            coordinates["quantity"] = list(QUANTITIES)
            attributes = {"units": "A, V", "equation": "i = drive / (N K), u = R i + N K v"}
            variables["motor"] = (("urdf_joint", "quantity"), of_motors, attributes)
        return xarray.Dataset(variables, coords=coordinates)

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Returns `load`, the whole, and the measures of each cause, (.., joints, 4); `motor` (.., joints, 2)."""
        whole, causes = self._split(inputs)
        answer = {"load": self._measures(whole), **{name: self._measures(part) for name, part in causes.items()}}
        if self.motors:
            answer["motor"] = self._motor(whole.drive, inputs["v"])
        return answer

    def _motor(self, drive: Array, v: Any) -> Array:
        """Returns currents and voltages, (.., joints, 2); 0 of joints without motor, and of unknown resistances."""
        has_motor = np.isin(np.arange(len(self.joints)), [*self.motors])
        has_resistance = [j in self.motors and self.motors[j].resistance is not None for j in range(len(self.joints))]
        current = np.where(has_motor, drive / self.motor_arrays.gain, 0.0)
        voltage = self.motor_arrays.voltage(current, np.asarray(v)[..., self.entry])
        return np.stack([current, np.where(has_resistance, voltage, 0.0)], axis=-1)

    def shares(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Returns each cause's part of the load at one state, along the direction of the whole: they add up to it."""
        whole, causes = self._split(inputs)
        radial, _, tilting = self._vectors(whole)
        directions = [x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-300) for x in (radial, tilting)]
        shares = {}
        for name, part in causes.items():
            r, a, t = self._vectors(part)
            shares[name] = np.stack([(r * directions[0]).sum(-1), a, (t * directions[1]).sum(-1), part.drive], axis=-1)
        return shares

    def _split(self, inputs: Mapping[str, Any]) -> tuple[_Parts, dict[str, _Parts]]:
        q, v, a = (inputs[name] for name in self.required)
        overlay = {"overlay": inputs["overlay"]} if inputs.get("overlay") is not None else {}
        still_v, still_a, weightless = np.zeros(self.robot.nv), np.zeros(self.robot.nv), np.zeros(3)
        wrenches = {} if self.wrenches is None else {"wrenches": self.wrenches}
        passive = self.robot.passive_forces(q, v, **overlay)
        at_rest = self.robot.passive_forces(q, still_v, **overlay)
        friction = passive.damping + passive.friction + passive.springs
        springs = at_rest.damping + at_rest.friction + at_rest.springs

        def parts(v: Any, a: Any, passive: Any, **options: Any) -> _Parts:
            wrench = self.robot.force_torque(q, v, a, joints=self.joints, **options, **overlay)
            tau = self.robot.inverse_dynamics(q, v, a, **options, **overlay) - passive
            axis_load = np.where(self.slides, (wrench.force * self.axes).sum(-1), (wrench.torque * self.axes).sum(-1))
            drive = np.where(self.entry >= 0, tau[..., self.entry], axis_load) if tau.shape[-1] else axis_load
            return _Parts(wrench.force, wrench.torque, drive)

        whole = parts(v, a, 0.0, **wrenches)
        gravity = parts(still_v, still_a, springs)
        velocity = parts(v, still_a, friction, gravity=weightless)
        zeros = _Parts(*(np.zeros_like(x) for x in gravity))
        external = parts(still_v, still_a, springs, gravity=weightless, **wrenches) if wrenches else zeros
        friction_drive = np.where(self.entry >= 0, friction[..., self.entry], 0.0)
        # Inertia is what the other causes leave, so that all of them add up to the whole.
        caused = [gravity, velocity, external]
        force, moment = (getattr(whole, name) - sum(getattr(x, name) for x in caused) for name in ("force", "moment"))
        inertia = _Parts(force, moment, whole.drive - sum(x.drive for x in caused) - friction_drive)
        by_cause = {
            "inertia": inertia,
            "velocity": velocity,
            "gravity": gravity,
            "external": external,
            "friction": _Parts(zeros.force, zeros.moment, friction_drive),
        }
        return whole, by_cause

    def _vectors(self, load: _Parts) -> tuple[Array, Array, Array]:
        """Returns radial force, axial force and tilting moment."""
        axial = (load.force * self.axes).sum(-1)
        axis_moment = np.where(self.slides, 0.0, (load.moment * self.axes).sum(-1))
        radial = load.force - axial[..., None] * self.axes
        return radial, np.where(self.slides, 0.0, axial), load.moment - axis_moment[..., None] * self.axes

    def _measures(self, load: _Parts) -> Array:
        radial, axial, tilting = self._vectors(load)
        parts = (np.linalg.norm(radial, axis=-1), axial, np.linalg.norm(tilting, axis=-1), load.drive)
        return np.stack(np.broadcast_arrays(*parts), axis=-1)


class DesignLoads(NamedTuple):
    """Loads of joints over a study.

    rows: for each joint and measure a map with the columns of the CSV, not rounded. curves: by (joint, measure) loads
    and the share of states with at least this load. result: the study's Dataset. study: for `study.state(index)`.
    margins: for each joint with a motor a map of its `margin`, the `limit` that is used most (`LIMITS`, "" if none is)
    and the `state` of this, -1 for heat, which is that of all states; the largest `current` and `voltage`, the
    `rms current`, A, V, A, and the shares of the limits.
    """

    rows: list[dict[str, Any]]
    curves: dict[tuple[str, str], tuple[Array, Array]]
    result: Any
    study: Any
    margins: list[dict[str, Any]]

    @property
    def _text(self) -> Callable[[float], str]:
        return readable([row["largest"] for row in self.rows])

    def csv(self) -> str:
        """Returns the table for a supplier, with q, v and a of the state of each largest load."""
        return _table_text(self.rows, self._text)

    def write(self, folder: str | Path) -> Path:
        """Writes `loads.csv` and the page `index.html`, with tables and curves of each joint; returns the page."""
        place, attributes = Path(folder), self.result.attrs
        place.mkdir(parents=True, exist_ok=True)
        (place / "loads.csv").write_text(self.csv(), "utf-8")
        joints = dict.fromkeys(row["joint"] for row in self.rows)
        facts = [("states", f"{attributes['states']:,}"), ("states without finite loads", _failures(self.result))]
        facts += [("model", self.study.fingerprint[:12])]
        note = f"Numbers below {ROUNDING:g} of the largest load are rounding errors, written as 0. "
        note += "The CSV also has q, v and a of the state of each largest load."
        files = page.soft("Files: ", page.links(["loads.csv", *(["motors.csv"] if self.margins else [])]))
        header = page.header(f"Design loads of {attributes['robot']}", "", note, page.facts(facts), files)
        parts = []
        if self.margins:
            (place / "motors.csv").write_text(_table_text(self.margins, lambda x: f"{x:.6g}"), "utf-8")
            table = [
                {k: float(f"{x:.6g}") if isinstance(x, float) else x for k, x in row.items()} for row in self.margins
            ]
            parts.append(page.Part("motors", "Motors", page.numbers({"margins": table}), "Motors", is_open=True))
        parts += [page.Part(f"joint-{k}", name, self._joint(name), name, is_open=True) for k, name in enumerate(joints)]
        path = place / "index.html"
        path.write_text(page.render("Design loads", header, parts, "design loads"), "utf-8")
        return path

    def _joint(self, joint: str) -> page.Content:
        """Returns the content of a joint's part of the page."""
        rows, text = [row for row in self.rows if row["joint"] == joint], self._text
        heads: dict[str, Sequence[str]] = {"loads": ("largest", "min", "max", "rms", "cubic_mean", "state")}
        heads |= {"parts of the largest load": CAUSES, "largest load": tuple(f"{cause} alone" for cause in CAUSES)}
        tables = {
            title: [
                {"": row["measure"], "unit": row["unit"]}
                | {name: float(text(row[name])) if isinstance(row[name], float) else row[name] for name in names}
                for row in rows
            ]
            for title, names in heads.items()
        }
        cards = []
        for row in rows:
            loads, share = self.curves[joint, row["measure"]]
            curve = np.array([float(text(min(load, abs(row["largest"])))) for load in loads])
            line = Line(row["measure"], curve, "effort")
            chart = Chart(100.0 * share, [line], f"{row['measure']} [{row['unit']}]", _SHARE, timed=False)
            cards.append(Card(row["measure"], [chart], f"largest {text(row['largest'])} {row['unit']}"))
        return [page.numbers(tables), page.cards(cards, points=1000)]


def _table_text(rows: Sequence[Mapping[str, Any]], format_number: Callable[[float], str]) -> str:
    """Returns rows as CSV; columns with a unit in brackets are inputs, with 9 digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        inputs = {k: f"{x:.9g}" for k, x in row.items() if k.endswith("]")}
        writer.writerow({k: format_number(x) if isinstance(x, float) else x for k, x in row.items()} | inputs)
    return text.getvalue()


def _margin(shares: Mapping[str, float], places: Mapping[str, int], place_name: str) -> dict[str, Any]:
    """Returns margin, limit, place and shares of one motor."""
    limit = max(shares, key=lambda name: shares[name])
    columns = {f"{name} share": share for name, share in shares.items()}
    return {"margin": 1.0 - shares[limit], "limit": limit if shares[limit] else "", place_name: places[limit]} | columns


def _options(robot: Robot, joints: Sequence[str] | None, wrenches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the options of `Loads`, with the motors of the robot's files."""
    names = robot.configuration.velocity_joints
    motors = motors_by_entry(robot.base.as_described, names)
    options: dict[str, Any] = {"joints": list(joints)} if joints else {}
    options |= {"wrenches": list(wrenches)} if wrenches else {}
    return options | (
        {"motors": {names[k]: msgspec.to_builtins(motor) for k, motor in motors.items()}} if motors else {}
    )


def design_loads(
    robot: Robot,
    vary: Mapping[str, Any],
    *,
    samples: Mapping[str, Any] | None = None,
    joints: Sequence[str] | None = None,
    wrenches: Sequence[Mapping[str, Any]] = (),
    store: str | Path | None = None,
    bins: int = 100,
    **how: Any,
) -> DesignLoads:
    """Returns the loads of joints over the states of a study.

    Args:
        robot: The robot.
        vary: See `Robot.study`; with q, v and a.
        samples: See `Robot.study`.
        joints: Names; None: all that move about or along one axis.
        wrenches: External wrenches, see `Loads`.
        store: Of the study.
        bins: Of the duration curves.
        how: Further arguments of `Study.run`.

    Raises:
        DynError: As `Robot.study` and `Study.run`.
    """
    options = _options(robot, joints, wrenches)
    loads = Loads(robot, options)
    output = {"query": "design_loads", "options": options, "output": "load"}
    reduce = ["min", "max", "absmax", "rms", "cubic_mean", "histogram"]
    # One chunk first, because a histogram needs its range before it counts.
    pilot = robot.study(vary, {"load": {**output, "reduce": ["absmax"]}}, samples=samples)
    first = -pilot.task(0, 0, 1)["load extremes"].min(axis=0)
    histogram_range = np.where(np.isfinite(first) & (first > 0), _MARGIN * first, 1.0)
    causes = {name: {**output, "output": name, "reduce": ["absmax"]} for name in CAUSES}
    load_output = output | {"reduce": reduce, "bins": 2 * bins, "range": [[-x, x] for x in histogram_range.tolist()]}
    motors = {"motor": output | {"output": "motor", "reduce": ["absmax", "rms"]}} if loads.motors else {}
    study = robot.study(vary, {"load": load_output, **causes, **motors}, samples=samples)
    result = study.run(store, **how)
    rows, curves = [], {}
    for j, joint in enumerate(loads.joints):
        for m, measure in enumerate(MEASURES):
            index = int(result.load_absmax_index.values[j, m])
            if index < 0:
                raise wrong("vary", f"no state has finite loads: {_failures(result)}")
            state = study.state(index)
            shares = loads.shares(state)
            force = measure in ("radial", "axial") or (measure == "drive" and loads.slides[j])
            row: dict[str, Any] = {"joint": joint, "measure": measure, "unit": "N" if force else "N m"}
            row |= {"largest": float(loads(state)["load"][j, m]), "state": index}
            row |= {kind: float(result[f"load_{kind}"].values[j, m]) for kind in ("min", "max", "rms", "cubic_mean")}
            row |= {cause: float(shares[cause][j, m]) for cause in CAUSES}
            row |= {f"{cause} alone": float(result[f"{cause}_absmax"].values[j, m]) for cause in CAUSES}
            rows.append(row | _columns(robot, state))
            counts = result.load_histogram.values[j, m]
            # Both signs together, from load 0 on; the last entry is beyond the range.
            by_size = (counts + counts[::-1])[bins + 1 :]
            share = np.cumsum(by_size[::-1])[1:] / max(counts.sum(), 1)
            curves[joint, measure] = histogram_range[4 * j + m] / bins * np.arange(bins - 1, -1, -1), share
    return DesignLoads(rows, curves, result, study, _margins(loads, result))


def _margins(loads: Loads, result: Any) -> list[dict[str, Any]]:
    """Returns the margins of the joints with motors."""
    limits, rows = loads.motor_arrays, []
    for j in loads.motors:
        (current, voltage), places = result.motor_absmax.values[j], result.motor_absmax_index.values[j]
        rms = float(result.motor_rms.values[j, 0])
        shares = {
            "current": float(current / limits.current_limit[j]),
            "voltage": float(voltage / limits.voltage_limit[j]),
            "heat": float(rms / limits.continuous_current[j]),
        }
        states = {"current": int(places[0]), "voltage": int(places[1]), "heat": -1}
        row = {"joint": loads.joints[j], **_margin(shares, states, "state")}
        rows.append(row | {"current": float(current), "voltage": float(voltage), "rms current": rms})
    return rows


def _failures(result: Any) -> str:
    """Returns how many states have no finite loads, by reason."""
    return ", ".join(f"{count:,} {reason}" for reason, count in json.loads(result.attrs["failures"]).items()) or "none"


def _columns(robot: Robot, state: Mapping[str, Any]) -> dict[str, float]:
    """Returns q, v and a of a state by name and unit, `q elbow [rad]`."""
    configuration = robot.configuration
    q_units = np.where(configuration.angles, "rad", np.where(configuration.shifts, "m", "1"))
    v_units = ["rad" if turns else "m" for turns in configuration.turns]
    q_names, v_names = configuration.position_names, configuration.velocity_names
    columns = (("q", q_names, q_units, ""), ("v", v_names, v_units, "/s"), ("a", v_names, v_units, "/s^2"))
    return {
        f"{key} {name} [{unit}{divisor}]": float(x)
        for key, names, units, divisor in columns
        for name, unit, x in zip(names, units, state[key], strict=True)
    }


def duty_cycle(
    robot: Robot,
    motion: Mapping[str, Array],
    *,
    joints: Sequence[str] | None = None,
    wrenches: Sequence[Mapping[str, Any]] = (),
    exponent: float = 3.0,
) -> list[dict[str, Any]]:
    """Returns the equivalent loads of a recorded duty cycle, one map for each joint.

    Args:
        robot: The robot.
        motion: t, q, v and a, such as from `graph.bags.recording`: (n,) s, (n, nq), (n, nv), (n, nv).
        joints: Names; None: all that move about or along one axis.
        wrenches: External wrenches, see `Loads`.
        exponent: p: 3 for ball bearings and strain wave gears, 10/3 for roller bearings.

    Returns:
        `joint`, `turned` (rad | m, the sum of |v| dt), and for each measure its equivalent load; NaN if it never moves.
        Of a joint with a motor also `margin`, `limit`, the `sample` that is the worst, the shares of the limits, the
        largest `current` and `voltage`, A and V, and the highest temperature of the winding, `celsius` if it is at
        ambient temperature at the begin, `celsius repeated` if the motion repeats without end.

    Raises:
        InvalidArgumentError: An array has the wrong shape or numbers that are not finite, the times do not increase, or
            the exponent is not positive and finite.
        NotFoundError: The robot has no such joint.
    """
    if not 0.0 < exponent < math.inf:
        raise wrong("exponent", f"expected a positive, finite number, found {exponent:g}")
    loads = Loads(robot, _options(robot, joints, wrenches))
    check_names("motion", "array of the recording called", ("t", *Loads.required), motion)
    arrays: dict[str, Array] = {}
    for name, width in {"t": (), "q": (robot.nq,), "v": (robot.nv,), "a": (robot.nv,)}.items():
        array = numbers(motion[name])
        shape = (len(arrays.get("t", np.ravel(motion["t"]))), *width)
        if array is None or array.shape != shape or not np.isfinite(array).all():
            fault = found(motion[name]) if array is None or array.shape != shape else "numbers that are not"
            raise wrong(f"motion.{name}", f"expected finite numbers of shape {shape}, found {fault}")
        arrays[name] = array
    t, v = arrays.pop("t"), arrays["v"]
    if len(t) < 2 or not (np.diff(t) > 0.0).all():
        raise wrong("motion.t", "expected at least two times, which increase")
    answer, dt = loads(arrays), np.gradient(t)
    measures = answer["load"]
    heat = _winding_rises(loads, t, answer["motor"][..., 0]) if loads.motors else None
    rows = []
    for j, joint in enumerate(loads.joints):
        moving = loads.entry[j] >= 0
        weight = np.abs(v[:, loads.entry[j]]) * dt if moving else np.zeros(len(dt))
        travel = float(weight.sum())
        row: dict[str, Any] = {"joint": joint, "turned": travel}
        for m, measure in enumerate(MEASURES):
            load = np.abs(measures[:, j, m])
            scale = float(load.max()) or 1.0  # large exponents would overflow
            power = float((weight * (load / scale) ** exponent).sum())
            row[measure] = scale * (power / travel) ** (1 / exponent) if travel else float("nan")
        if heat is not None and j in loads.motors:
            row |= _timed_margin(loads, j, answer["motor"][:, j], *(rises[:, j] for rises in heat))
        rows.append(row)
    return rows


def _winding_rises(loads: Loads, t: Array, current: Array) -> tuple[Array, Array]:
    """Returns the rises (n, joints), K, of a motion from cold windings, and of the motion that repeats without end."""
    arrays = loads.motor_arrays
    cold = arrays.rises(t, current, np.zeros(len(loads.joints)))
    decay = -np.expm1(-(t[-1] - t[0]) / arrays.time_constant)
    begin = np.divide(cold[-1], decay, out=np.zeros_like(decay), where=arrays.heat > 0.0)
    return cold, arrays.rises(t, current, begin)


def _timed_margin(loads: Loads, j: int, motor: Array, cold: Array, repeated: Array) -> dict[str, Any]:
    """Returns the margin of one motor over a timed motion; motor: (n, 2). cold, repeated: (n,) K."""
    limits = loads.motor_arrays
    places = {name: int(np.argmax(x)) for name, x in zip(LIMITS, (*np.abs(motor).T, repeated), strict=True)}
    current, voltage = (float(np.abs(motor[places[name], k])) for k, name in enumerate(QUANTITIES))
    rise = float(repeated[places["heat"]])
    shares = {
        "current": float(current / limits.current_limit[j]),
        "voltage": float(voltage / limits.voltage_limit[j]),
        "heat": float(np.sqrt(rise / limits.largest_rise[j])),
    }
    row = _margin(shares, places, "sample") | {"current": current, "voltage": voltage}
    if limits.heat[j] > 0.0:
        ambient = float(limits.ambient[j])
        row |= {"celsius": ambient + float(cold.max()), "celsius repeated": ambient + rise}
    return row
