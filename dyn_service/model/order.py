"""Joint order: converts arrays between a caller's order of the joints and the robot's.

A caller names the movable joints in its own order. The entries of a joint stay together, in q and in v. All inputs and
outputs with an axis of positions, velocities or moving joints (nq, nv, nm, nr in the table, nf for the free joints in
`simulate_rheonomic`) are reordered, and their row names too. Mimic joints have no entries and are not named; their rows
come last, in the robot's order. Rows of links or of all URDF joints have their own names and are not reordered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from dyn_service.api.description import LimitsDescription, RobotDescription
from dyn_service.api.spec import Computation, Row, Spec
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.model.configuration import Configuration
from dyn_service.support.suggestions import did_you_mean

NAMES = "names"
"""Name of the input with the caller's joint names, in every row that is `ordered`."""

PATH = f"inputs.{NAMES}"

_KEPT = 64

_OF_Q = frozenset({"position"})
"""Kinds of inputs and outputs whose axis has the entries of q."""


class Order:
    """A caller's order of a robot's movable joints.

    names: all joints, in the caller's order. rate_joints: the joint of each rate, as `Tree.rate_joints`, mimic joints
    included; None if the robot has no mimic joints.

    Raises:
        NotFoundError: A name is not that of a movable joint; `path` says which one.
        InvalidArgumentError: `names` is not a list of names, or a joint is named twice or is missing.
    """

    def __init__(self, configuration: Configuration, names: Any, rate_joints: Sequence[str] | None = None) -> None:
        _check(configuration, names)
        self._robots = configuration
        self.at, in_q, in_v = configuration.chosen(names)
        of_joint: dict[str, list[int]] = {}
        for k, name in enumerate(configuration.velocity_joints if rate_joints is None else rate_joints):
            of_joint.setdefault(name, []).append(k)
        row = {name: k for k, name in enumerate(of_joint)}
        moving = dict.fromkeys((*names, *row))  # mimic joints come last
        places = {
            "nq": in_q,
            "nv": in_v,
            "nm": [row[name] for name in moving],
            "nr": [k for name in moving for k in of_joint[name]],
        }
        self._out = {symbol: np.array(entries, dtype=np.intp) for symbol, entries in places.items()}
        # The inverse permutation.
        self._into = {symbol: np.argsort(entries) for symbol, entries in self._out.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The joints in the caller's order."""
        return self.at.names

    def inward(self, spec: Spec, value: Any, free: Order | None = None) -> Any:
        """Converts an input to the robot's order; `free`: the order of the free joints, if others are prescribed.

        Invalid values are returned unchanged; the robot reports the error.
        """
        if not isinstance(value, np.ndarray):
            return value
        return _reordered(value, spec, self._into, None if free is None else free._into)

    def outward(self, row: Row, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Converts outputs and the names of their rows to the caller's order."""
        specs = _specs(row)
        converted: dict[str, Any] = {}
        for name, value in outputs.items():
            spec, label = specs.get(name), row.labels.get(name)
            if spec is not None and isinstance(value, np.ndarray):
                value = _reordered(value, spec, self._out, None)
            elif label is not None and label.dimension in self._out:
                value = tuple(value[k] for k in self._out[label.dimension])
            converted[name] = value
        return converted

    def place(self, row: Row, output: str, index: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the index of a number in an output in the robot's order, from its index in the caller's."""
        spec = _specs(row).get(output)
        core = () if spec is None else spec.shape
        place = list(index)
        for axis, symbol in enumerate(core, start=len(index) - len(core)):
            if symbol in self._out:
                place[axis] = int(self._out[symbol][index[axis]])
        return tuple(place)

    def described(self, description: RobotDescription) -> RobotDescription:
        """Returns the robot's description with joints and limits in the caller's order."""
        limits = description.limits
        types = dict(zip(description.joint_names, description.joint_types, strict=True))
        q, v = (self._out[symbol].tolist() for symbol in ("nq", "nv"))
        return msgspec.structs.replace(
            description,
            joint_names=self.names,
            joint_types=tuple(types[name] for name in self.names),
            limits=LimitsDescription(
                lower=[limits.lower[k] for k in q],
                upper=[limits.upper[k] for k in q],
                velocity=[limits.velocity[k] for k in v],
                effort=[limits.effort[k] for k in v],
                acceleration=[limits.acceleration[k] for k in v if limits.acceleration],
                jerk=[limits.jerk[k] for k in v if limits.jerk],
            ),
        )

    def without(self, prescribed: Sequence[str]) -> Order:
        """Returns the order of the joints whose motion is not prescribed."""
        free, *_ = self._robots.chosen([name for name in self._robots.names if name not in prescribed])
        return Order(free, [name for name in self.names if name not in prescribed])


class Orders:
    """A cache of the most recent callers' orders for one robot."""

    def __init__(self, configuration: Configuration, rate_joints: Sequence[str]) -> None:
        self._at = configuration
        self._orders = lru_cache(maxsize=_KEPT)(lambda names: Order(configuration, names, rate_joints))

    def of(self, names: Any) -> Order:
        """Returns the order with these names."""
        if not isinstance(names, list | tuple) or not all(type(name) is str for name in names):
            return Order(self._at, names)  # raises
        return self._orders(tuple(names))

    def split(self, row: Row, raw: Mapping[str, Any]) -> tuple[Mapping[str, Any], Order | None]:
        """Separates the joint names from the inputs of a request; returns the other inputs, and the order or None."""
        if not row.has_joint_order:
            return raw, None
        names = raw[NAMES]
        inputs = {name: value for name, value in raw.items() if name != NAMES}
        return inputs, None if names is None else self.of(names)


def _reordered(array: Any, spec: Spec, entries: Mapping[str, Any], free: Mapping[str, Any] | None) -> Any:
    """Returns an array with its axes of entries of q and v reordered."""
    for axis, symbol in enumerate(spec.shape, start=-len(spec.shape)):
        places = entries.get(symbol)  # type: ignore[arg-type]
        if symbol == "nf" and free is not None:
            places = free["nq" if spec.kind in _OF_Q else "nv"]
        if places is not None and array.ndim >= -axis and array.shape[axis] == len(places):
            array = np.take(array, places, axis=axis)
    return array


def _specs(row: Row) -> Mapping[str, Spec]:
    return {**row.outputs, **row.intermediate_outputs} if isinstance(row, Computation) else row.outputs


def _check(configuration: Configuration, names: Any) -> None:
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        text = f"{NAMES} must be a list of the movable joints' names, which are {', '.join(configuration.names)}"
        raise InvalidArgumentError(text, path=PATH)
    joint_names, seen = frozenset(configuration.names), dict[str, int]()
    parts = frozenset((*configuration.position_names, *configuration.velocity_names)) - joint_names
    for k, name in enumerate(names):
        path = f"{PATH}[{k}]"
        if name in parts:
            joint = name.rpartition(".")[0]
            text = f"a part of joint '{joint}': the entries of a joint stay together, so name the joint"
            raise InvalidArgumentError(f"{NAMES}[{k}] is '{name}', {text}", path=path)
        if name not in joint_names:
            all_names, suggestion = ", ".join(configuration.names), did_you_mean(name, configuration.names)
            text = f"and the robot has no such movable joint; they are {all_names}{suggestion}"
            raise NotFoundError(f"{NAMES}[{k}] is '{name}', {text}", path=path)
        if name in seen:
            text = f"{NAMES} must have each movable joint once, found '{name}' at {seen[name]} and at {k}"
            raise InvalidArgumentError(text, path=path)
        seen[name] = k
    missing = [name for name in configuration.names if name not in seen]
    if missing:
        text = f"{NAMES} must have all {len(joint_names)} movable joints, found no {', '.join(map(repr, missing))}"
        raise InvalidArgumentError(text, path=PATH)
