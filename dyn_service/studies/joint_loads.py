"""Loads that size bearings, guides and drives: each joint's wrench by cause, in the axes of a designer.

With u the joint's axis, F and M the force and moment of the parent on the child at the joint's origin:

    radial = |F - (F.u) u|,   axial = F.u,   tilting = |M - (M.u) u|,   drive = tau

A bearing does not carry the drive's torque M.u; a guide (prismatic) carries all of M and not the drive's force F.u, so
its axial load is 0. A fixed joint has no drive: `drive` is its torsion M.u. Causes add up, as vectors, to the whole:

    gravity   at rest            inertia    the accelerations and the rotors' armature
    velocity  centrifugal, Coriolis          external   the wrenches in the options
    friction  damping, friction and springs: of the drive alone

Source: Newton-Euler (13), (20). Bearing life uses means: the cubic mean over states, and over a duty cycle weighted by
the turned angle, (sum |v| dt P^p / sum |v| dt)^(1/p), p = 3 for balls, 10/3 for rollers.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dyn_service.api.arrays import Array, found, numbers
from dyn_service.engine.robot import Robot
from dyn_service.errors import NotFoundError
from dyn_service.graph.report import page
from dyn_service.graph.report.charts import Card, Chart, Line
from dyn_service.model.joints import joint_of
from dyn_service.studies.keys import check_names, wrenches_of, wrong
from dyn_service.support.optional import load

MEASURES = ("radial", "axial", "tilting", "drive")
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
    `link`, `force`, `torque`, `point` and `frame`.
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
        check_names("options", "option of design_loads called", options, ("joints", "wrenches"))
        self.wrenches = wrenches_of(options)
        self.axes = np.array([joints_by_name[name].parameters.get("axis", (0.0, 0.0, 1.0)) for name in self.joints])
        self.slides = np.array([joints_by_name[name].shifts == (True,) for name in self.joints])
        entries = robot.configuration.velocity_names
        self.entry = np.array([entries.index(name) if name in entries else -1 for name in self.joints])

    def template(self, state: Mapping[str, Any]) -> Any:
        """Returns the labelled answer at one state."""
        xarray = load("design loads", "xarray")
        coordinates = {"urdf_joint": self.joints, "measure": list(MEASURES)}
        attributes = {"units": "N, N, N m, N m | N", "equation": "Newton-Euler (13), (20)"}
        variables = {name: (("urdf_joint", "measure"), x, attributes) for name, x in self(state).items()}
        return xarray.Dataset(variables, coords=coordinates)

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Returns `load`, the whole, and the measures of each cause, (.., joints, 4)."""
        whole, causes = self._split(inputs)
        return {"load": self._measures(whole), **{name: self._measures(part) for name, part in causes.items()}}

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
    """

    rows: list[dict[str, Any]]
    curves: dict[tuple[str, str], tuple[Array, Array]]
    result: Any
    study: Any

    @property
    def _text(self) -> Callable[[float], str]:
        return readable([row["largest"] for row in self.rows])

    def csv(self) -> str:
        """Returns the table for a supplier, with q, v and a of the state of each largest load."""
        text, format_number = io.StringIO(), self._text
        writer = csv.DictWriter(text, list(self.rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in self.rows:
            inputs = {k: f"{x:.9g}" for k, x in row.items() if k.endswith("]")}
            writer.writerow({k: format_number(x) if isinstance(x, float) else x for k, x in row.items()} | inputs)
        return text.getvalue()

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
        files = page.soft("Files: ", page.links(["loads.csv"]))
        header = page.header(f"Design loads of {attributes['robot']}", "", note, page.facts(facts), files)
        parts = [page.Part(f"joint-{k}", name, self._joint(name), name, is_open=True) for k, name in enumerate(joints)]
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
    options: dict[str, Any] = {"joints": list(joints)} if joints else {}
    options |= {"wrenches": list(wrenches)} if wrenches else {}
    output = {"query": "design_loads", "options": options, "output": "load"}
    reduce = ["min", "max", "absmax", "rms", "cubic_mean", "histogram"]
    # One chunk first, because a histogram needs its range before it counts.
    pilot = robot.study(vary, {"load": {**output, "reduce": ["absmax"]}}, samples=samples)
    first = -pilot.task(0, 0, 1)["load extremes"].min(axis=0)
    histogram_range = np.where(np.isfinite(first) & (first > 0), _MARGIN * first, 1.0)
    causes = {name: {**output, "output": name, "reduce": ["absmax"]} for name in CAUSES}
    load_output = output | {"reduce": reduce, "bins": 2 * bins, "range": [[-x, x] for x in histogram_range.tolist()]}
    study = robot.study(vary, {"load": load_output, **causes}, samples=samples)
    result = study.run(store, **how)
    loads = Loads(robot, options)
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
    return DesignLoads(rows, curves, result, study)


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
        f"{key} {name} [{unit}{per}]": float(x)
        for key, names, units, per in columns
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

    Raises:
        InvalidArgumentError: An array has the wrong shape or numbers that are not finite, the times do not increase, or
            the exponent is not positive and finite.
        NotFoundError: The robot has no such joint.
    """
    if not 0.0 < exponent < math.inf:
        raise wrong("exponent", f"expected a positive, finite number, found {exponent:g}")
    options: dict[str, Any] = {"joints": list(joints)} if joints else {}
    loads = Loads(robot, {**options, "wrenches": list(wrenches)})
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
    measures, dt = loads(arrays)["load"], np.gradient(t)
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
        rows.append(row)
    return rows
