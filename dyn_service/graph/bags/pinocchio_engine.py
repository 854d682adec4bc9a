"""Answers recorded requests with Pinocchio, an independent engine.

Its rigid-body dynamics of the robot's URDF, on which passive joint forces is laid as here: the difference of
our answers with and without. It answers for one fixed root and joints that turn or shift, without wrenches, overlays
and names; other questions are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.queries import QUERIES
from dyn_service.engine.robot import Robot
from dyn_service.errors import DynError, FailedPreconditionError
from dyn_service.service.protocol.arrays import pack_output, unpack_array
from dyn_service.service.protocol.messages import (
    VERSION,
    Reply,
    Request,
    RequestRefusedError,
    Timing,
    encode,
    read_request,
)
from dyn_service.support.optional import load

Array = NDArray[np.float64]

WITHIN = 1e-9
"""Relative difference of two engines that counts as equal: both round at 1e-16 and lose digits by cancellation."""
_STATES = ("q", "v", "a", "tau", "q_ref", "v_ref", "a_ref")
_GAINS = ("kp", "kd")
_OPTIONS = {"passive", "method"}
_NONE = np.zeros(3)
MAX_STATES = 10_000
"""Of one request: each is a call from Python."""


def pinocchio(robots: Sequence[Robot], texts: Sequence[str], say: Callable[[str], None]) -> Callable[[bytes], Any]:
    """Returns an `Answer` for `verify`.

    texts: Their URDF files, in any order. say: Called for robots that Pinocchio cannot represent.

    Raises:
        FailedPreconditionError: Pinocchio is not installed, or can represent none of the robots.
    """
    engine = load("--engine pinocchio", "pinocchio")
    known: dict[str, _Peer] = {}
    by_name = {robot.name: robot for robot in robots}
    for text in texts:
        model = _model(engine, text, mimic=False)
        robot = None if model is None else by_name.get(model.name)
        if robot is not None and model is not None and model.nv != robot.nv:
            model = _model(engine, text, mimic=True)
        if robot is None or model is None:
            say("a file in the bag is not the URDF file of a robot in it: it is left out")
            continue
        try:
            known[robot.name] = _Peer(engine, model, robot)
        except FailedPreconditionError as error:
            say(str(error))
    if not known:
        raise FailedPreconditionError("there is no robot that Pinocchio can take as it is")

    def answer(request: bytes) -> bytes | None:
        try:
            asked = read_request(request)
            peer = (
                known[str(asked.robot)]
                if isinstance(asked.robot, str) or len(known) > 1
                else next(iter(known.values()))
            )
            found = peer.answer(asked)
        except (RequestRefusedError, DynError, KeyError, ValueError):
            return None
        if found is None:
            return None
        name = next(iter(QUERIES[asked.query].outputs))
        return encode(Reply(VERSION, asked.id, True, {name: pack_output(found)}, Timing(0.0, 0.0)))

    return answer


class _Peer:
    """A robot in Pinocchio, with the joints in this package's order."""

    def __init__(self, engine: Any, model: Any, robot: Robot) -> None:
        self._engine, self._model, self._robot = engine, model, robot
        self._data = model.createData()
        names = list(model.names)
        joints = [model.joints[names.index(name)] if name in names else None for name in robot.joint_names]
        if robot.nq != robot.nv or model.nv != robot.nv or any(joint is None or joint.nv != 1 for joint in joints):
            raise FailedPreconditionError(
                f"robot {robot.name!r} is left out: it has {robot.nv} degrees of freedom here, {model.nv} in Pinocchio"
            )
        self._v = np.array([joint.idx_v for joint in joints if joint is not None])
        self._q = [(joint.idx_q, joint.nq) for joint in joints if joint is not None]
        self._bare = robot.without_passive
        self._questions: Mapping[str, Callable[..., Array]] = {
            "inverse_dynamics": self._inverse,
            "forward_dynamics": self._forward,
            "mass_matrix": self._mass,
            "bias_forces": lambda passive, q, v: self._inverse(passive, q, v, np.zeros_like(v)),
            "gravity_forces": lambda passive, q: self._inverse(passive, q, np.zeros_like(q), np.zeros_like(q)),
            "computed_torque": self._computed_torque,
        }

    def answer(self, request: Request) -> Array | None:
        """Returns the answer, or None if the query is not supported."""
        inputs = {name: value for name, value in (request.inputs or {}).items() if value is not None}
        options = {name: value for name, value in (request.options or {}).items() if value is not None}
        question = self._questions.get(request.query)
        if question is None or not (inputs.keys() <= {*_STATES, *_GAINS, "gravity"} and options.keys() <= _OPTIONS):
            return None
        gravity = unpack_array(inputs.pop("gravity"), "gravity") if "gravity" in inputs else self._robot.gravity
        if gravity.shape != (3,):
            return None
        self._model.gravity.linear = gravity
        wanted = [name for name in QUERIES[request.query].inputs if name in (*_STATES, *_GAINS)]
        if inputs.keys() != set(wanted):
            return None
        arrays = [unpack_array(inputs[name], name) for name in wanted]
        shape = np.broadcast_shapes(*[array.shape[:-1] for array in arrays if array.ndim])
        if int(np.prod(shape)) > MAX_STATES:
            return None
        rows = [np.broadcast_to(array, (*shape, self._robot.nv)).reshape(-1, self._robot.nv) for array in arrays]
        passive = bool(options.get("passive", True))
        found = [question(passive, *state) for state in zip(*rows, strict=True)]
        return np.array(found).reshape(*shape, *np.shape(found[0]))

    def _inverse(self, passive: bool, q: Array, v: Array, a: Array) -> Array:
        theirs = self._engine.rnea(self._model, self._data, self._theirs(q), self._moved(v), self._moved(a))
        found: Array = theirs[self._v]
        if not passive:
            return found
        whole = self._robot.inverse_dynamics(q, v, a, gravity=_NONE)
        bare = self._bare.inverse_dynamics(q, v, a, gravity=_NONE)
        return np.asarray(found + (whole - bare), np.float64)

    def _mass(self, passive: bool, q: Array) -> Array:
        upper = np.triu(self._engine.crba(self._model, self._data, self._theirs(q)))
        whole = upper + np.triu(upper, 1).T
        found: Array = whole[np.ix_(self._v, self._v)]
        return found + (self._robot.mass_matrix(q) - self._bare.mass_matrix(q)) if passive else found

    def _forward(self, passive: bool, q: Array, v: Array, tau: Array) -> Array:
        bias = self._inverse(passive, q, v, np.zeros_like(v))
        return np.asarray(np.linalg.solve(self._mass(passive, q), tau - bias), np.float64)

    def _computed_torque(
        self, passive: bool, q: Array, v: Array, q_ref: Array, v_ref: Array, a_ref: Array, kp: Array, kd: Array
    ) -> Array:
        return self._inverse(passive, q, v, a_ref + kd * (v_ref - v) + kp * (q_ref - q))

    def _theirs(self, q: Array) -> Array:
        """Converts positions to Pinocchio's: cosine and sine for continuous joints."""
        found = np.zeros(self._model.nq)
        for value, (at, count) in zip(q, self._q, strict=True):
            if count == 1:
                found[at] = value
            else:
                found[at : at + 2] = np.cos(value), np.sin(value)
        return found

    def _moved(self, values: Array) -> Array:
        found = np.zeros(self._model.nv)
        found[self._v] = values
        return found


def _model(engine: Any, text: str, *, mimic: bool) -> Any | None:
    try:
        return engine.buildModelFromXML(text, mimic=mimic)
    except (ValueError, RuntimeError, TypeError):
        return None
