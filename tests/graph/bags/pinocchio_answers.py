"""Answers of Pinocchio, an independent engine, to recorded requests.

They are its rigid-body dynamics of the robot's URDF, to which passive joint forces are added: the difference of this
package's answers with and without them. It answers for a fixed root and joints that turn or shift, without wrenches,
overlays and names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pinocchio as pin

from dyn_service import Robot
from dyn_service.api.queries import QUERIES, Array
from dyn_service.errors import DynError, FailedPreconditionError
from dyn_service.graph.bags.requests import Answer
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
from dyn_service.simulation.peer_tasks import to_pinocchio

WITHIN = 1e-9
"""Relative difference of two engines that counts as equal: both round at 1e-16 and lose digits by cancellation."""
_STATES = ("q", "v", "a", "tau", "q_ref", "v_ref", "a_ref")
_GAINS = ("kp", "kd")
_OPTIONS = {"passive", "method"}
_NO_GRAVITY = np.zeros(3)


def pinocchio_answers(robots: Sequence[Robot], texts: Sequence[str], say: Callable[[str], None]) -> Answer:
    """Returns an `Answer` for `verify`.

    texts: their URDF files, in any order. say: called for robots that Pinocchio cannot represent.

    Raises:
        FailedPreconditionError: Pinocchio can represent none of the robots.
    """
    peers: dict[str, _PinocchioRobot] = {}
    by_name = {robot.name: robot for robot in robots}
    for text in texts:
        model = _model(text, mimic=False)
        robot = None if model is None else by_name.get(model.name)
        if robot is not None and model is not None and model.nv != robot.nv:
            model = _model(text, mimic=True)
        if robot is None or model is None:
            say("a file in the bag is not the URDF file of a robot in it: it is left out")
            continue
        try:
            peers[robot.name] = _PinocchioRobot(model, robot)
        except FailedPreconditionError as error:
            say(str(error))
    if not peers:
        raise FailedPreconditionError("there is no robot that Pinocchio can take as it is")

    def answer(frame: bytes) -> bytes | None:
        try:
            request = read_request(frame)
            has_name = isinstance(request.robot, str) or len(peers) > 1
            peer = peers[str(request.robot)] if has_name else next(iter(peers.values()))
            output = peer.answer(request)
        except (RequestRefusedError, DynError, KeyError, ValueError):
            return None
        if output is None:
            return None
        name = next(iter(QUERIES[request.query].outputs))
        return encode(Reply(VERSION, request.id, True, {name: pack_output(output)}, Timing(0.0, 0.0)))

    return answer


class _PinocchioRobot:
    """A robot in Pinocchio, with the joints in this package's order."""

    def __init__(self, model: Any, robot: Robot) -> None:
        self._model, self._robot = model, robot
        self._data = model.createData()
        names = list(model.names)
        joints = [model.joints[names.index(name)] if name in names else None for name in robot.joint_names]
        if robot.nq != robot.nv or model.nv != robot.nv or any(joint is None or joint.nv != 1 for joint in joints):
            raise FailedPreconditionError(
                f"robot {robot.name!r} is left out: it has {robot.nv} degrees of freedom here, {model.nv} in Pinocchio"
            )
        self._order_v = np.array([joint.idx_v for joint in joints if joint is not None])
        self._without_passive = robot.without_passive
        self._queries: Mapping[str, Callable[..., Array]] = {
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
        query = self._queries.get(request.query)
        if query is None or not (inputs.keys() <= {*_STATES, *_GAINS, "gravity"} and options.keys() <= _OPTIONS):
            return None
        gravity = unpack_array(inputs.pop("gravity"), "gravity") if "gravity" in inputs else self._robot.gravity
        if gravity.shape != (3,):
            return None
        self._model.gravity.linear = gravity
        names = [name for name in QUERIES[request.query].inputs if name in (*_STATES, *_GAINS)]
        if inputs.keys() != set(names):
            return None
        arrays = [unpack_array(inputs[name], name) for name in names]
        shape = np.broadcast_shapes(*[array.shape[:-1] for array in arrays if array.ndim])
        rows = [np.broadcast_to(array, (*shape, self._robot.nv)).reshape(-1, self._robot.nv) for array in arrays]
        passive = bool(options.get("passive", True))
        outputs = [query(passive, *state) for state in zip(*rows, strict=True)]
        return np.array(outputs).reshape(*shape, *np.shape(outputs[0]))

    def _inverse(self, passive: bool, q: Array, v: Array, a: Array) -> Array:
        tau_pin = pin.rnea(self._model, self._data, self._q_pin(q), self._v_pin(v), self._v_pin(a))
        tau: Array = tau_pin[self._order_v]
        if not passive:
            return tau
        with_passive = self._robot.inverse_dynamics(q, v, a, gravity=_NO_GRAVITY)
        rigid = self._without_passive.inverse_dynamics(q, v, a, gravity=_NO_GRAVITY)
        return np.asarray(tau + (with_passive - rigid), np.float64)

    def _mass(self, passive: bool, q: Array) -> Array:
        upper = np.triu(pin.crba(self._model, self._data, self._q_pin(q)))
        symmetric = upper + np.triu(upper, 1).T
        rigid: Array = symmetric[np.ix_(self._order_v, self._order_v)]
        return rigid + (self._robot.mass_matrix(q) - self._without_passive.mass_matrix(q)) if passive else rigid

    def _forward(self, passive: bool, q: Array, v: Array, tau: Array) -> Array:
        bias = self._inverse(passive, q, v, np.zeros_like(v))
        return np.asarray(np.linalg.solve(self._mass(passive, q), tau - bias), np.float64)

    def _computed_torque(
        self, passive: bool, q: Array, v: Array, q_ref: Array, v_ref: Array, a_ref: Array, kp: Array, kd: Array
    ) -> Array:
        return self._inverse(passive, q, v, a_ref + kd * (v_ref - v) + kp * (q_ref - q))

    def _q_pin(self, q: Array) -> Array:
        return to_pinocchio(self._robot.configuration, q, self._model)

    def _v_pin(self, v: Array) -> Array:
        v_pin = np.zeros(self._model.nv)
        v_pin[self._order_v] = v
        return v_pin


def _model(text: str, *, mimic: bool) -> Any | None:
    try:
        return pin.buildModelFromXML(text, mimic=mimic)
    except (ValueError, RuntimeError, TypeError):
        return None
