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

    file: the FMU. at: the joints. dt_s: the plant's step. substeps: the unit's steps in it, of a unit with the
    parameter `dt`. efforts_of: the joint efforts of wrenches.

    Raises:
        MissingLibraryError: fmpy is not installed.
        NotFoundError: There is no such file.
        InvalidArgumentError: It is no co-simulation unit for this machine, or lacks a variable.
    """

    def __init__(self, file: Path, at: Configuration, dt_s: float, substeps: int, efforts_of: EffortsOf) -> None:
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
            about = fmpy.read_model_description(folder)
            log = lambda *of: messages.append(of[-1].decode() if isinstance(of[-1], bytes) else str(of[-1]))
            return about, fmpy.instantiate_fmu(folder, about, "CoSimulation", logger=log)

        messages = self._messages
        about, unit = self._called(instantiated, InvalidArgumentError, "is no co-simulation unit for this machine")
        weakref.finalize(self, unit.freeInstance)
        places = {each.name: int(each.valueReference) for each in about.modelVariables}
        of_q, of_v = at.position_names, at.velocity_names

        def found(quantity: str, names: Sequence[str]) -> list[int]:
            for name in (f"{quantity}.{each}" for each in names):
                if name not in places:
                    raise InvalidArgumentError(
                        f"{file}: the unit has no variable '{name}'{did_you_mean(name, places)}", path="fmu"
                    )
            return [places[f"{quantity}.{each}"] for each in names]

        self._effort, self._out = found("effort", of_v), found("position", of_q) + found("velocity", of_v)
        self._first = found("initial_position", of_q) + found("initial_velocity", of_v)
        self._acceleration = found("acceleration", of_v) if f"acceleration.{of_v[0]}" in places else []
        self._step = [places["dt"]] if "dt" in places else []
        if substeps != 1 and not self._step:
            raise InvalidArgumentError(
                f"{file}: the unit has no parameter 'dt', so substeps must be 1", path="substeps"
            )
        self._unit, self._second, self._nq, self._dt_s = unit, about.fmiVersion.startswith("2"), at.nq, dt_s
        self._set, self._get = (unit.setReal, unit.getReal) if self._second else (unit.setFloat64, unit.getFloat64)
        self._steps = 0
        self._pushes: tuple[Wrench, ...] = ()

    def step(self, q: Array, v: Array, tau: Array, dt_s: float, braked: Array | None = None) -> tuple[Array, Array]:
        if braked is not None:
            raise UnimplementedError("a unit has no brakes: with joints without brakes, use the plant's own engine")

        def advanced() -> Array:
            self._begin(q, v, tau)
            self._unit.doStep(self._steps * dt_s, dt_s)
            return np.array(self._get(self._out))

        self._state = reached = self._called(advanced, FailedPreconditionError, "the unit failed in a step")
        self._steps += 1
        return reached[: self._nq].copy(), reached[self._nq :].copy()

    def acceleration(self, q: Array, v: Array, tau: Array) -> Array:
        def found() -> Array:
            self._begin(q, v, tau)
            return np.array(self._get(self._acceleration)) if self._acceleration else np.full(len(v), np.nan)

        return self._called(found, FailedPreconditionError, "the unit failed")

    def push(self, wrenches: Sequence[Wrench]) -> None:
        self._pushes = tuple(wrenches)

    def _begin(self, q: Array, v: Array, tau: Array) -> None:
        """Resets the unit to this state, if it is in another, and sets the efforts."""
        pushed = tau + self._efforts_of(q, self._pushes) if self._pushes else tau
        state = np.concatenate([q, v])
        if self._state is None or not np.array_equal(state, self._state):
            self._restart(state)
        self._set(self._effort, pushed.tolist())

    def _restart(self, state: Array) -> None:
        if not self._is_new:
            self._unit.reset()
        self._is_new = False
        self._set(self._first, state.tolist())
        if self._step:
            self._set(self._step, [self._dt_s / self.substeps])
        now = self._steps * self._dt_s
        (self._unit.setupExperiment if self._second else self._unit.enterInitializationMode)(startTime=now)
        if self._second:
            self._unit.enterInitializationMode()
        self._unit.exitInitializationMode()
        self._state = state

    def _called(self, call: Callable[[], T], fault: type[DynError], what: str) -> T:
        self._messages.clear()
        try:
            return call()
        except DynError:
            raise
        except Exception as error:
            self._state = None
            raise fault(f"{self.file}: {what}: {'; '.join(self._messages) or failure(error)}", path="fmu") from error
