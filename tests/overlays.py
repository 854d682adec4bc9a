"""Random changes of a robot, expressed both as an overlay and as an edited description.

The description is edited without `engine/altered_trees.py`, so that the two are independent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dyn_service.api.queries import QUERIES, Inertial, JointNumbers, Overlay, Payload, Query, Wrench
from dyn_service.api.spec import DIRECTIONS
from dyn_service.dynamics.structure import pairs
from dyn_service.engine.robot import Robot
from dyn_service.model import composite
from dyn_service.model import description as described
from dyn_service.model.description import Description

GRAVITY = np.array([0.7, -1.3, -9.81])


def body(rng: np.random.Generator, mass: float) -> np.ndarray:
    """An inertia that a body of that mass can have, full, (3, 3)."""
    turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    second = mass * rng.uniform(0.001, 0.02, 3)
    inertia = turn @ np.diag(second.sum() - second) @ turn.T
    return (inertia + inertia.T) / 2


@dataclass(frozen=True, eq=False)
class Edit:
    """The same change of a robot, as an overlay and as another description."""

    overlay: Overlay
    description: Description


def drawn(robot: Robot, seed: int, share: float = 0.6) -> Edit:
    """Changes at random: inertias of links, payloads on some of them and on others, what joints do by themselves."""
    rng = np.random.default_rng(seed)
    links = {link.name: link for link in robot.evaluator.model.description.links}
    joints = {joint.name: joint for joint in robot.evaluator.model.description.joints}
    inertials: dict[str, Inertial] = {}
    for name, link in links.items():
        if rng.random() > share:
            continue
        mass = float(rng.uniform(0.2, 4.0))
        inertial = link.inertial
        whole = Inertial(mass, rng.uniform(-0.2, 0.2, 3), body(rng, mass))
        if inertial is None or inertial.mass == 0.0 or rng.random() < 0.6:
            inertials[name] = whole
            links[name] = replace(link, inertial=described.Inertial(mass, whole.com, np.eye(3), whole.inertia))  # type: ignore[arg-type]
        elif rng.random() < 0.5:
            inertials[name] = Inertial(mass=mass)
            links[name] = replace(link, inertial=replace(inertial, mass=mass))
        else:
            inertials[name] = Inertial(com=whole.com)
            links[name] = replace(link, inertial=replace(inertial, com=np.asarray(whole.com)))
    payloads = []
    for name in rng.choice(sorted(links), 2):
        mass = float(rng.uniform(0.2, 4.0))
        payload = Payload(str(name), mass, rng.uniform(-0.3, 0.3, 3), body(rng, mass))
        payloads.append(payload)
        links[name] = replace(links[name], inertial=joined(links[name].inertial, payload))
    joint_numbers: dict[str, JointNumbers] = {}
    for name, joint in joints.items():
        if not joint.moves.nv or rng.random() > share:
            continue
        values = rng.uniform(0.1, 2.0, 5)
        numbers = dict(
            zip(("damping", "friction", "friction_width", "armature", "stiffness"), values.tolist(), strict=True)
        )
        numbers["rest"] = float(rng.uniform(-1.0, 1.0))
        numbers = {key: value for key, value in numbers.items() if rng.random() < 0.8}
        numbers = {key: value for key, value in numbers.items() if joint.moves.refused(key) is None}
        joint_numbers[name] = JointNumbers(**numbers)
        joints[name] = replace(joint, **numbers)
    edited = replace(robot.evaluator.model.description, links=tuple(links.values()), joints=tuple(joints.values()))
    return Edit(Overlay(payloads, inertials, joint_numbers, gravity=GRAVITY), edited)


def joined(inertial: described.Inertial | None, payload: Payload) -> described.Inertial:
    """Two bodies as one."""
    mass, com = float(payload.mass), np.asarray(payload.com)  # type: ignore[arg-type]
    payload_inertia = np.asarray(payload.inertia, dtype=float)
    if inertial is None or inertial.mass == 0.0:
        return described.Inertial(mass, com, np.eye(3), payload_inertia)
    total = inertial.mass + mass
    centre = (inertial.mass * inertial.com + mass * com) / total
    parts = (
        (inertial.mass, inertial.com, inertial.rotation @ inertial.inertia @ inertial.rotation.T),
        (mass, com, payload_inertia),
    )
    total_inertia = sum(I + m * (d @ d * np.eye(3) - np.outer(d, d)) for m, c, I in parts for d in (c - centre,))
    return described.Inertial(total, centre, np.eye(3), np.asarray(total_inertia))


def fixed(robot: Robot, q: np.ndarray, names: Sequence[str]) -> Description:
    """The robot's description with these joints and their mimic joints fixed at q."""
    tree, joints = robot.tree, []
    for joint in robot.evaluator.model.description.joints:
        body = tree.joints.index(joint.name)
        if not joint.moves.nv or tree.joints[tree.mimicked_body[body]] not in names:
            joints.append(joint)
            continue
        R, p = composite.pose(tree, body, q)
        joints.append(replace(joint, type="fixed", rotation=R, xyz=p, mimic=None))
    return replace(robot.evaluator.model.description, joints=tuple(joints))


ROWS = [row for row in QUERIES.values() if row.overlay is not None]
CASES = [(row, method) for row in ROWS for method in row.kernels if (row.name, method) != ("step_derivatives", "rk4")]
"""Derivatives of an RK4 step are traced as one graph here, of the same functions as those of the other steps."""


class State:
    """A state of a robot: inputs of every row, by their kinds."""

    def __init__(self, robot: Robot, seed: int = 0, locked: Sequence[str] = ()) -> None:
        rng = np.random.default_rng(seed)
        self.robot = robot
        self.free = np.array([name not in locked for name in robot.configuration.velocity_joints])
        self.q = np.array(robot.random_configuration(seed=seed))
        configuration = robot.configuration
        of_q = [
            (name, part.stop - part.start)
            for name, part in zip(configuration.names, configuration.q_slices, strict=True)
        ]
        self.moves = np.array([name not in locked for name, count in of_q for _ in range(count)])
        self.q_to = np.where(self.moves, configuration.integrate(self.q, 0.3 * rng.normal(size=robot.nv)), self.q)
        self._drawn = {
            kind: rng.normal(size=(2, robot.nv)) * (self.free if kind in ("velocity", "acceleration") else 1.0)
            for kind in ("velocity", "acceleration", "effort", "momentum")
        }
        self.push = Wrench(robot.link_names[-1], force=(3.0, -2.0, 1.0), torque=(0.5, 0.2, -0.1), point=(0, 0.1, 0))

        J = robot.point_motion(self.q, self.v, robot.link_names, point=(0.1, -0.2, 0.3)).jacobian * self.free
        speeds = np.linalg.norm(J, axis=-1)  # by link and direction
        fastest = np.unravel_index(np.argmax(speeds), speeds.shape)
        self.link, self.direction = robot.link_names[fastest[0]], DIRECTIONS[fastest[1]]

    @property
    def v(self) -> np.ndarray:
        return self._drawn["velocity"][0]

    @property
    def a(self) -> np.ndarray:
        return self._drawn["acceleration"][0]

    def without_locked(self, reduced: Robot) -> State:
        """The same state of the robot whose locked joints are fixed."""
        state = State.__new__(State)
        state.robot, state.push = reduced, self.push
        state.q, state.q_to = self.q[self.moves], self.q_to[self.moves]
        state.link, state.direction = self.link, self.direction
        state._drawn = {kind: x[:, self.free] for kind, x in self._drawn.items()}
        return state

    def inputs(self, row: Query) -> dict[str, Any]:
        """Optional inputs of a row, without overlay and gravity."""
        inputs: dict[str, Any] = {}
        seen: dict[str, int] = {}
        for name, spec in row.inputs.items():
            k = seen[spec.kind] = seen.get(spec.kind, -1) + 1
            if spec.kind == "position":
                inputs[name] = (self.q, self.q_to)[k]
            elif spec.kind in self._drawn:
                inputs[name] = self._drawn[spec.kind][k]
            elif spec.kind == "wrenches":
                inputs[name] = self.push
            elif spec.kind == "gain":
                inputs[name] = np.full(self.robot.nv, 3.0)
            elif spec.kind == "duration":
                inputs[name] = np.array([1e-3])
            elif spec.kind == "link":
                inputs[name] = self.link
            elif spec.kind == "directions":
                inputs[name] = [self.direction]
            elif spec.shape == ("nv",):  # weights of efforts or accelerations
                inputs[name] = self._drawn["momentum"][0]
            elif spec.kind == "plain":
                inputs[name] = np.array([0.1, -0.2, 0.3])
        return inputs


def options(row: Query, method: str) -> Iterator[dict[str, Any]]:
    """Those that choose a kernel, and the axes."""
    kernel_options = {row.kernel_option: method} if row.kernel_option else {}
    yield kernel_options
    if row.axes_option is not None:
        yield {**kernel_options, row.axes_option: "world"}


def numbers(outputs: dict[str, Any], row: Query) -> dict[str, np.ndarray]:
    """The arrays among the outputs."""
    return {name: np.asarray(outputs[name]) for name in row.outputs}


def apart(first: Any, second: Any) -> float:
    """The largest difference over the largest size of either."""
    first, second = np.asarray(first), np.asarray(second)
    assert first.shape == second.shape
    size = max(np.abs(first).max(initial=0.0), np.abs(second).max(initial=0.0))
    return float(np.abs(first - second).max(initial=0.0) / (size or 1.0))


def of_free(robot: Robot, reduced: Robot, row: Query, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Of a robot's answers the entries of the joints that a robot with some of them fixed has too."""
    labels = {
        "nq": (robot.configuration.position_names, reduced.configuration.position_names),
        "nv": (robot.configuration.velocity_names, reduced.configuration.velocity_names),
        "nm": (robot.tree.moving_joints, reduced.tree.moving_joints),
        "na": (pairs_of(robot), pairs_of(reduced)),
    }
    places = {symbol: [whole.index(name) for name in part] for symbol, (whole, part) in labels.items()}
    ways = [k for k, name in enumerate(robot.tree.rate_joints) if name in reduced.tree.moving_joints]
    places["nr"] = ways
    free_outputs = {}
    for name, array in outputs.items():
        shape = row.outputs[name].shape
        for axis, symbol in enumerate(shape, start=array.ndim - len(shape)):
            if symbol in places:
                array = np.take(array, places[symbol], axis=axis)
        free_outputs[name] = array
    return free_outputs


def pairs_of(robot: Robot) -> tuple[tuple[str, str], ...]:
    """The joints of the blocks of Psi."""
    moving = robot.bodies.tree
    return tuple((moving.joints[i], moving.joints[j]) for i, j in pairs(moving))
