"""A co-simulation unit of FMI 2.0 or 3.0 as the engine of a simulated plant, with the variables of `dyn export --fmu`.

A unit keeps its own state. If a step begins at another state than the last one ended at (brakes, `set_state`), the unit
is reset and begins there. External wrenches act as joint efforts, J^T f at the beginning of a step. fmpy is imported
only here, when an engine is made.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dyn_service.api.queries import Array, Wrench
from dyn_service.errors import (
    DynError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnimplementedError,
    failure,
)
from dyn_service.model.configuration import Configuration
from dyn_service.simulation.engines import EffortsOf, Engine
from dyn_service.support.optional import load
from dyn_service.support.suggestions import did_you_mean

T = TypeVar("T")


class FmuEngine(Engine):
    """A robot in a unit, whose contacts are not known.

    file: the FMU. configuration: the joints. dt_s: the plant's step. substeps: the unit's steps in it, of a unit with
    the parameter `dt`. efforts_of: the joint efforts of wrenches.

    Raises:
        MissingLibraryError: fmpy is not installed.
        NotFoundError: There is no such file.
        InvalidArgumentError: It is no co-simulation unit for this machine, or lacks a variable.
    """

    def __init__(
        self, file: Path, configuration: Configuration, dt_s: float, substeps: int, efforts_of: EffortsOf
    ) -> None:
        fmpy = load("engine 'fmu'", "fmpy")
        if not file.is_file():
            raise NotFoundError(f"there is no file {str(file)!r}", path="fmu")
        self.file, self.substeps, self._efforts_of = file, substeps, efforts_of
        self._messages: list[str] = []
        self._state: Array | None = None  # not known: the unit is new, or failed
        self._is_new = True
        folder = tempfile.mkdtemp(prefix="dyn-fmu-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

        def instantiated() -> tuple[Any, Any]:
            fmpy.extract(str(file), folder)
            model = fmpy.read_model_description(folder)
            log = lambda *parts: messages.append(parts[-1].decode() if isinstance(parts[-1], bytes) else str(parts[-1]))
            return model, fmpy.instantiate_fmu(folder, model, "CoSimulation", logger=log)

        messages = self._messages
        model, unit = self._call(instantiated, InvalidArgumentError, "is no co-simulation unit for this machine")
        weakref.finalize(self, unit.freeInstance)
        references = {variable.name: int(variable.valueReference) for variable in model.modelVariables}
        q_names, v_names = configuration.position_names, configuration.velocity_names

        def references_of(quantity: str, names: Sequence[str]) -> list[int]:
            for name in (f"{quantity}.{name}" for name in names):
                if name not in references:
                    hint = did_you_mean(name, references)
                    raise InvalidArgumentError(f"{file}: the unit has no variable '{name}'{hint}", path="fmu")
            return [references[f"{quantity}.{name}"] for name in names]

        if any(f"current.{name}" in references for name in v_names):
            text = "the unit limits efforts by its motors: export it without --motors, the plant has those of the robot"
            raise InvalidArgumentError(f"{file}: {text}", path="fmu")

        self._effort = references_of("effort", v_names)
        self._outputs = references_of("position", q_names) + references_of("velocity", v_names)
        self._initial = references_of("initial_position", q_names) + references_of("initial_velocity", v_names)
        has_acceleration = f"acceleration.{v_names[0]}" in references
        self._acceleration = references_of("acceleration", v_names) if has_acceleration else []
        self._step = [references["dt"]] if "dt" in references else []
        if substeps != 1 and not self._step:
            text = f"{file}: the unit has no parameter 'dt', so substeps must be 1"
            raise InvalidArgumentError(text, path="substeps")
        self._unit, self._nq, self._dt_s = unit, configuration.nq, dt_s
        self._is_fmi2 = model.fmiVersion.startswith("2")
        self._set_reals = unit.setReal if self._is_fmi2 else unit.setFloat64
        self._get_reals = unit.getReal if self._is_fmi2 else unit.getFloat64
        self._steps = 0
        self._wrenches: tuple[Wrench, ...] = ()

    def step(self, q: Array, v: Array, tau: Array, dt_s: float, braked: Array | None = None) -> tuple[Array, Array]:
        if braked is not None:
            raise UnimplementedError("a unit has no brakes: with joints without brakes, use the plant's own engine")

        def next_state() -> Array:
            self._set_state(q, v, tau)
            self._unit.doStep(self._steps * dt_s, dt_s)
            return np.array(self._get_reals(self._outputs))

        self._state = state = self._call(next_state, FailedPreconditionError, "the unit failed in a step")
        self._steps += 1
        return state[: self._nq].copy(), state[self._nq :].copy()

    def acceleration(self, q: Array, v: Array, tau: Array) -> Array:
        def joint_accelerations() -> Array:
            self._set_state(q, v, tau)
            return np.array(self._get_reals(self._acceleration)) if self._acceleration else np.full(len(v), np.nan)

        return self._call(joint_accelerations, FailedPreconditionError, "the unit failed")

    def push(self, wrenches: Sequence[Wrench]) -> None:
        self._wrenches = tuple(wrenches)

    def _set_state(self, q: Array, v: Array, tau: Array) -> None:
        """Resets the unit to this state, if it is in another, and sets the efforts."""
        efforts = tau + self._efforts_of(q, self._wrenches) if self._wrenches else tau
        state = np.concatenate([q, v])
        if self._state is None or not np.array_equal(state, self._state):
            self._restart(state)
        self._set_reals(self._effort, efforts.tolist())

    def _restart(self, state: Array) -> None:
        if not self._is_new:
            self._unit.reset()
        self._is_new = False
        self._set_reals(self._initial, state.tolist())
        if self._step:
            self._set_reals(self._step, [self._dt_s / self.substeps])
        now_s = self._steps * self._dt_s
        (self._unit.setupExperiment if self._is_fmi2 else self._unit.enterInitializationMode)(startTime=now_s)
        if self._is_fmi2:
            self._unit.enterInitializationMode()
        self._unit.exitInitializationMode()
        self._state = state

    def _call(self, call: Callable[[], T], fault: type[DynError], text: str) -> T:
        self._messages.clear()
        try:
            return call()
        except DynError:
            raise
        except Exception as error:
            self._state = None
            raise fault(f"{self.file}: {text}: {'; '.join(self._messages) or failure(error)}", path="fmu") from error
