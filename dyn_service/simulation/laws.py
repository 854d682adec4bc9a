"""Control laws given as data (`api/laws.py`): checked arrays, evaluation at a state, and terms for compiled steps.

A law is a sum of terms; each is a row of the table or a function of `dynamics/newton_euler.py`, computed by a kernel.
One state at a time, the kernels are called from here; many steps at a time, they are called in compiled code, with the
same bits. Locked joints get no effort.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

import numpy as np

from dyn_service.api.arrays import all_finite, finite, found, numbers
from dyn_service.api.laws import SCALARS, SHAPES, Compensation, ComputedTorqueLaw, PDLaw, SimulationLaw
from dyn_service.api.queries import Array, EffortFunction, RobotQueries
from dyn_service.api.robot_properties import RobotProperties
from dyn_service.errors import InvalidArgumentError, UnimplementedError
from dyn_service.model.configuration import Configuration
from dyn_service.simulation.loads import HeldEfforts, Lead, by_step, fits_steps, not_finite
from dyn_service.support.suggestions import did_you_mean


class Term(NamedTuple):
    """One kernel of a law.

    name: a row of the table or a function of `dynamics/newton_euler.py`. inputs: its arrays (steps or 1, ..., n), `q`
    or `v`, or the output of an earlier term. output: the name of its result. model: the robot whose kernel it is; None:
    the simulated one. gravity: whether it has the gravity of the simulation.
    """

    name: str
    inputs: Mapping[str, Array | str]
    output: str
    model: RobotProperties | None = None
    gravity: bool = False


class LawEfforts(HeldEfforts):
    """The efforts of a law.

    steps: the required number of samples; None: any, the same for all.

    Raises:
        InvalidArgumentError: A number of the law has the wrong shape or value; `path` names it.
    """

    def __init__(self, configuration: Configuration, law: SimulationLaw, steps: int | None) -> None:
        self.function, self.constant, self.by_state = None, False, True
        self._configuration, self._law = configuration, law
        self._arrays: dict[str, Array] = {}
        for name, value in law.numbers.items():
            array = _number_of_law(f"tau.{name}", name, value, configuration, steps)
            steps = array.shape[-len(SHAPES[name]) - 1] if steps is None and _samples(name, array) > 1 else steps
            self._arrays[name] = array
        model = law.model
        if model is not None and model.configuration.velocity_names != configuration.velocity_names:
            text = f"tau.model is robot '{model.name}', whose joints are not those of the simulated robot"
            raise InvalidArgumentError(text, path="tau.model")
        kinds = get_args(Compensation)
        if isinstance(law, PDLaw) and law.compensation not in kinds:
            value = f"{law.compensation!r}{did_you_mean(law.compensation, kinds)}"
            text = f"tau.compensation must be one of {', '.join(kinds)}, found {value}"
            raise InvalidArgumentError(text, path="tau.compensation")

    def bind(self, robot: RobotQueries, gravity: Array | None) -> None:
        """Sets the simulated robot, and the gravity of the simulation."""
        if not hasattr(robot, "term_of_law") or not hasattr(self._law.model or robot, "term_of_law"):
            text = "a law given as data needs its robot in this process: give it as a function of (t, q, v)"
            raise UnimplementedError(text, path="tau")
        model = self._law.model
        if model is not None and (model.free < robot.free).any():
            joint = self._configuration.velocity_names[int(np.argmax(model.free < robot.free))]
            raise InvalidArgumentError(f"joint '{joint}' is locked in tau.model, not in the robot", path="tau.model")
        self._robot, self._gravity = robot, gravity
        self._terms = self._terms_of_law(robot.free)

    def terms_from(self, first: int, steps: int) -> list[Term]:
        """Returns the terms of `steps` steps from `first` on; the output of the last one is the effort."""

        def part(x: Array | str) -> Array | str:
            return x if isinstance(x, str) or len(x) == 1 else x[first : first + steps]

        return [term._replace(inputs={name: part(x) for name, x in term.inputs.items()}) for term in self._terms]

    def _terms_of_law(self, free: Array) -> list[Term]:
        law, arrays, zeros = self._law, self._arrays, np.zeros(self._configuration.nv)
        samples = {name: by_step(arrays.get(name, zeros), len(core)) for name, core in SHAPES.items() if name != "gain"}
        # A locked joint has no reference motion.
        if not free.all():
            samples |= {name: samples[name] * free for name in ("v_ref", "a_ref")}
        reference = {name: samples[name] for name in ("q_ref", "v_ref")}
        gains = {name: samples[name] for name in ("kp", "kd")}
        state: dict[str, Any] = {"q": "q", "v": "v"}
        model, has_gravity = self._law.model, self._law.model is None
        tau = samples["feedforward"]
        # a kernel for each term: in one for their sum, fused products would give other bits than the law as a function
        if isinstance(law, ComputedTorqueLaw):
            arrays_of_term = {**state, **reference, **gains, "a_ref": samples["a_ref"]}
            terms = [Term("computed_torque", arrays_of_term, "law", model, has_gravity)]
        elif isinstance(law, PDLaw):
            terms = []
            if law.compensation != "none":
                by_reference = law.compensation == "reference"
                v, a = (samples["v_ref"], samples["a_ref"]) if by_reference else (zeros[None], zeros[None])
                terms = [Term("inverse_dynamics", {"q": "q", "v": v, "a": a}, "model", model, has_gravity)]
            base_effort = "model" if terms else tau
            terms.append(Term("joint_feedback", {**state, **reference, **gains, "tau": base_effort}, "law"))
        else:
            gain = by_step(arrays["gain"], 2)
            columns = {"position_gain": slice(None, zeros.size), "velocity_gain": slice(zeros.size, None)}
            parts = {name: np.ascontiguousarray(gain[..., part]) for name, part in columns.items()}
            terms = [Term("state_feedback", {**state, **reference, **parts, "tau": tau}, "law")]
        lacks_feedforward = "feedforward" in arrays and not any(x is tau for x in terms[-1].inputs.values())
        if lacks_feedforward or "limit" in arrays or not free.all():
            limit = samples["limit"] if "limit" in arrays else np.full_like(zeros, np.inf)[None]
            added = samples["feedforward"] if lacks_feedforward else zeros[None]
            inputs: dict[str, Any] = {"tau": "law", "added": added, "limit": limit, "free": free[None]}
            terms.append(Term("limited", inputs, "tau"))
        return terms

    def efforts(self, k: int, q: Array, v: Array) -> Array:
        """Returns the efforts (..., nv) at a state, with the samples of step k."""
        values: dict[str, Array] = {"q": q, "v": v}
        tau = q
        for term in self._terms:
            inputs = {n: values[x] if isinstance(x, str) else x[min(k, len(x) - 1)] for n, x in term.inputs.items()}
            if term.gravity and self._gravity is not None:
                inputs["gravity"] = self._gravity
            model: Any = term.model or self._robot
            tau = values[term.output] = model.term_of_law(term.name, inputs)
        return tau

    def at(self, index: int, step: int, t: float, q: Array, v: Array) -> Array:
        """Returns the efforts in a step; see `Held.at`."""
        tau = self.efforts(index, q, v)
        if not all_finite(tau):
            raise not_finite(tau, self._configuration.velocity_joints, step, t)
        return tau

    def _leads(self, first: Array | None) -> dict[str, Lead]:
        leads = {f"tau.{name}": x.shape[: max(x.ndim - len(SHAPES[name]) - 1, 0)] for name, x in self._arrays.items()}
        return leads | {"tau.model": getattr(self._law.model, "lead", ())}


def law_function(law: SimulationLaw, robot: RobotQueries, dt: float, t0: float) -> EffortFunction:
    """Returns the law as a function of (t, q, v): `SimulationLaw.function`."""
    efforts = LawEfforts(robot.configuration, law, None)
    efforts.bind(robot, None)
    return lambda t, q, v: efforts.efforts(max(int((t - t0) / dt + 1e-6), 0), q, v)


def _samples(name: str, array: Array) -> int:
    core = len(SHAPES[name])
    return 1 if array.ndim <= core else array.shape[-core - 1]


def _number_of_law(path: str, name: str, value: Any, configuration: Configuration, steps: int | None) -> Array:
    """Returns a number of a law as an array of doubles with samples, or of the core shape."""
    sizes = {"nq": configuration.nq, "nv": configuration.nv, "2 nv": 2 * configuration.nv}
    core = tuple(sizes[size] for size in SHAPES[name])
    array = numbers(value)
    if array is not None and not array.ndim and name in SCALARS:
        array = np.full(core, array[()])
    if array is None or array.shape[-len(core) :] != core or not (steps is None or fits_steps(array, steps, len(core))):
        constant_shape = f"({', '.join(map(str, core))}{',' * (len(core) == 1)})"
        samples_shape = f"(..., {'steps' if steps is None else steps}, {', '.join(map(str, core))})"
        shape = found(value) if array is None else f"shape {array.shape}"
        raise InvalidArgumentError(f"{path} has {shape}, expected {constant_shape} or {samples_shape}", path=path)
    if name != "limit":
        array = finite(path, array)
        return configuration.unit(array, path) if name == "q_ref" else array
    if not (array >= 0.0).all():
        raise InvalidArgumentError(f"{path} must be at least 0, found {array[~(array >= 0.0)].flat[0]:g}", path=path)
    return array
