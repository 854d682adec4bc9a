"""Overlays: changed numbers of a robot, checked and applied to its trees.

Only numbers of a tree change. The resulting trees have the leading axes of the overlay's numbers, one robot for each
entry. Only the bodies of the named links are recomputed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from dyn_service.api.arrays import Array, broadcast, found, found_instead, numbers
from dyn_service.api.queries import Inertial, JointNumbers, Overlay, Payload
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.model.building import too_large
from dyn_service.model.composite import Weld
from dyn_service.model.inertia import BodyInertia, eigenvalues_exceed, principal_moments
from dyn_service.model.passive import Passive
from dyn_service.model.tree import Tree
from dyn_service.support.suggestions import known_instead

MOMENTS = 1e-3
"""Share of the largest moment by which a moment may be negative, or larger than the sum of the others: the importer
reports larger deviations as uncertain, since files print three digits.
"""

_SYMMETRY = 1e-12
"""Largest asymmetry of an inertia, as a share of the largest moment: the rounding of printed and rotated matrices."""

COLUMNS = {
    "damping": "damping",
    "friction": "friction",
    "friction_width": "width",
    "armature": "armature",
    "stiffness": "stiffness",
    "rest": "rest",
}
"""Fields of `JointNumbers` -> fields of `Passive`."""


class AlteredTrees(NamedTuple):
    """A robot's trees with the numbers of an overlay. gravity: (..., 3) m/s^2; None: unchanged."""

    tree: Tree
    weld: Weld
    gravity: Array | None


def with_overlay(tree: Tree, weld: Weld, overlay: Any, path: str) -> AlteredTrees:
    """Returns the trees of a robot with the numbers of an overlay.

    Args:
        tree: The tree with one body per link.
        weld: The moving bodies of that tree.
        overlay: An `Overlay`.
        path: The path of the overlay, for errors.

    Raises:
        InvalidArgumentError: `overlay` is not an overlay, or a number has the wrong type, shape or value, or
            contradicts another.
        NotFoundError: The robot has no link or joint with one of the names.
    """
    if not isinstance(overlay, Overlay):
        hint = "; use Overlay(payloads=..)" if isinstance(overlay, Payload) else ""
        raise InvalidArgumentError(
            f"{_last_name(path)} must be an Overlay, found {found_instead('Overlay', overlay)}{hint}", path=path
        )
    reader = _Reader(tree, path)
    inertia, gravity = reader.inertia(overlay), None
    passive = reader.passive(overlay)
    if overlay.gravity is not None:
        gravity = reader.numbers(overlay.gravity, ".gravity", (3,))
    locked = reader.locked(overlay)
    of_links = tuple(inertia.get(i, body) for i, body in enumerate(tree.inertia))
    altered_tree = replace(tree, inertia=of_links, passive=passive).locked(locked)
    return AlteredTrees(altered_tree, weld.with_numbers(altered_tree, inertia), gravity)


def with_payload(tree: Tree, weld: Weld, payload: Any, path: str) -> AlteredTrees:
    """Returns the trees of a robot with a payload on a link; raises the errors of `with_overlay`.

    Args:
        tree: The tree with one body per link.
        weld: The moving bodies of that tree.
        payload: A `Payload`.
        path: The path of the payload, for errors.
    """
    if not isinstance(payload, Payload):
        description = found_instead("Payload", payload)
        raise InvalidArgumentError(f"{_last_name(path)} must be a Payload, found {description}", path=path)
    reader, inertia = _Reader(tree, path), dict[int, BodyInertia]()
    reader.add_payload(payload, inertia)
    altered_tree = replace(tree, inertia=tuple(inertia.get(i, body) for i, body in enumerate(tree.inertia)))
    return AlteredTrees(altered_tree, weld.with_numbers(altered_tree, inertia), None)


def overlay_to(original: AlteredTrees, other_robots: Sequence[AlteredTrees]) -> Overlay:
    """Returns the overlay that turns a robot into `other_robots`, which have the same links and joints.

    Numbers that differ have a leading axis, one entry per robot of `other_robots`. Limits are not part of an overlay,
    and are ignored.

    Args:
        original: The trees of the robot.
        other_robots: The trees of the other robots.

    Raises:
        InvalidArgumentError: One of `other_robots` has other links, joints, positions or locks, has leading axes, or
            has a link without mass that has mass in this robot; the message names it.
    """
    tree = original.tree
    for k, (other, _, _) in enumerate(other_robots):
        difference = _different(tree, other) or (_differently_locked(other_robots[0].tree, other) if k else "")
        if difference:
            raise InvalidArgumentError(
                f"robot '{other.name}' cannot be expressed as an overlay of robot '{tree.name}': its {difference}",
                path=f"others[{k}]",
            )
    trees = [other.tree for other in other_robots]
    locked = trees[0].locked_joints if trees else frozenset()
    return Overlay(
        links=_links_of(tree, trees),
        joints=_joints_of(tree, trees, locked),
        locked=[name for name in tree.movable_joints if name in locked - tree.locked_joints],
        gravity=_stacked(original.gravity, [other.gravity for other in other_robots]),
    )


def _links_of(tree: Tree, trees: Sequence[Tree]) -> dict[str, Inertial]:
    """Returns the inertias of other trees that differ from those of `tree`, by link."""
    links = {}
    for i, name in enumerate(tree.links):
        body, bodies = tree.inertia[i], [other.inertia[i] for other in trees]
        numbers_of_link = {
            "mass": _stacked(body.mass, [other.mass for other in bodies]),
            "com": _stacked(body.com, [other.com for other in bodies]),
            "inertia": _stacked(body.about_com, [other.about_com for other in bodies]),
        }
        if any(value is not None for value in numbers_of_link.values()):
            if any(other.mass == 0.0 for other in bodies):
                raise InvalidArgumentError(
                    f"link '{name}' of robot '{tree.name}' has no mass in some of the robots: an overlay cannot "
                    "remove mass",
                    path="others",
                )
            links[name] = Inertial(**numbers_of_link)
    return links


def _joints_of(tree: Tree, trees: Sequence[Tree], locked: frozenset[str]) -> dict[str, JointNumbers]:
    """Returns the passive properties of other trees that differ from those of `tree`, by joint. locked: theirs."""
    joints = {}
    for i in tree.movable:
        if tree.joints[tree.mimicked_body[i]] in locked:  # no passive forces
            continue
        part = tree.in_rates[i]
        offsets = [0.0 if (mimic := t.mimic[t.movable.index(i)]) is None else mimic.offset for t in (tree, *trees)]
        numbers_of_joint = {}
        for key, column in COLUMNS.items():
            rates = [getattr(t.passive, column)[..., part] for t in (tree, *trees)]
            if key == "rest":
                # A follower's rest position in a tree is relative to its position with the leader at zero.
                rates = [rest + offset for rest, offset in zip(rates, offsets, strict=True)]
            values = _stacked(rates[0], rates[1:])
            if values is not None and (values != values[..., :1]).any():
                raise InvalidArgumentError(
                    f"joint '{tree.joints[i]}' has several values of {key} in some of the others, and an overlay "
                    "contains one per joint",
                    path="others",
                )
            numbers_of_joint[key] = None if values is None else values[..., 0]
        if any(value is not None for value in numbers_of_joint.values()):
            joints[tree.joints[i]] = JointNumbers(**numbers_of_joint)
    return joints


def _stacked(original: Any, other_values: Sequence[Any]) -> Array | None:
    """Returns the numbers of `other_values` along a leading axis; None if all are equal to `original`."""
    return None if all(np.array_equal(original, other) for other in other_values) else np.stack(other_values)


def _different(tree: Tree, other: Tree) -> str:
    """Describes the first difference between two trees that an overlay cannot express; "" if they are equal."""
    if other.lead:
        return f"numbers have leading axes {other.lead}, expected none"
    names = (("links", tree.links, other.links), ("joints", tree.joints, other.joints))
    for kind, expected, actual in names:
        if expected != actual:
            return f"{kind} are {', '.join(filter(None, actual))}, expected {', '.join(filter(None, expected))}"
    for i, joint in enumerate(tree.inboard):
        label = f"joint '{tree.joints[i] or tree.links[i]}'"
        twin = other.inboard[i]
        if (tree.parent[i], joint.type, joint.ratio) != (other.parent[i], twin.type, twin.ratio):
            return f"{label} (type {twin.type}) has another type, parent link or mimic multiplier"
        pairs = zip(
            (*joint.numbers, tree.rotation[i], tree.origin[i]),
            (*twin.numbers, other.rotation[i], other.origin[i]),
            strict=True,
        )
        if not all(np.array_equal(x, y) for x, y in pairs):
            return f"{label} has another origin, axis, pitch or offset"
    unlocked = tree.locked_joints - other.locked_joints
    return f"joint '{min(unlocked)}' is not locked" if unlocked else ""


def _differently_locked(first: Tree, other: Tree) -> str:
    """Describes the first joint that is locked in only one of two trees; "" if the locks agree."""
    locked_in_one = first.locked_joints ^ other.locked_joints
    if not locked_in_one:
        return ""
    verb = "is" if min(locked_in_one) in other.locked_joints else "is not"
    return f"joint '{min(locked_in_one)}' {verb} locked, unlike that of '{first.name}'"


def _last_name(path: str) -> str:
    """Returns the last name of a path with dots."""
    return path.rpartition(".")[2]


class _Reader:
    """Checks and reads an overlay of a robot. The leading axes of its arrays must broadcast."""

    def __init__(self, tree: Tree, path: str) -> None:
        self._tree, self._path = tree, path
        self._links = {name: i for i, name in enumerate(tree.links)}
        self._joints = {tree.joints[i]: i for i in tree.movable}
        self._leads: dict[str, tuple[int, ...]] = {}

    def inertia(self, overlay: Overlay) -> dict[int, BodyInertia]:
        """Returns the changed inertias by link, payloads included."""
        inertias: dict[int, BodyInertia] = {}
        for name, inertial in overlay.links.items():
            link = self._link(name, f".links.{name}")
            inertias[link] = self._bounded(
                self._inertial(inertial, self._tree.inertia[link], f".links.{name}"), f".links.{name}"
            )
        if isinstance(overlay.payloads, Payload):
            self.add_payload(overlay.payloads, inertias, ".payloads")
        else:
            for k, payload in enumerate(overlay.payloads):
                self.add_payload(payload, inertias, f".payloads[{k}]")
        return inertias

    def add_payload(self, payload: Any, inertias: dict[int, BodyInertia], place: str = "") -> None:
        """Adds a payload to the inertia of its link."""
        link = self._link(payload.link, f"{place}.link")
        inertia = inertias.get(link, self._tree.inertia[link])
        # `_bounded` refuses what overflows, with an error that names the place.
        with np.errstate(over="ignore", invalid="ignore"):
            inertias[link] = self._bounded(inertia + self._payload_inertia(payload, place), place)

    def passive(self, overlay: Overlay) -> Passive:
        """Returns the passive joint properties."""
        tree, passive = self._tree, self._tree.passive
        columns: dict[str, Array] = {}
        for name, joint_numbers in overlay.joints.items():
            joint = self._joint(name, f".joints.{name}")
            part = tree.in_rates[joint]
            for field in fields(joint_numbers):
                value = getattr(joint_numbers, field.name)
                if value is None:
                    continue
                place, column = f".joints.{name}.{field.name}", COLUMNS[field.name]
                array = self._size(value, place, any_sign=field.name == "rest", zero=field.name != "friction_width")
                if (why := tree.inboard[joint].refused(field.name)) is not None:
                    raise self._refused(place, why)
                if field.name == "rest":
                    mimic = tree.mimic[tree.movable.index(joint)]
                    array = array - (mimic.offset if mimic is not None else 0.0)
                if column not in columns:
                    columns[column] = np.array(getattr(passive, column))
                columns[column] = _with(columns[column], part, array)
        return replace(passive, **columns) if columns else passive

    def locked(self, overlay: Overlay) -> list[str]:
        """Returns the names of the joints to lock."""
        tree, names = self._tree, overlay.locked
        for k, name in enumerate(names):
            place = f".locked[{k}]"
            joint = self._joint(name, place)
            # A follower has no entry in v that could be held at zero.
            leader = tree.joints[tree.mimicked_body[joint]]
            if leader != name:
                raise self._refused(place, f"joint '{name}' follows '{leader}': lock '{leader}' instead")
        locked = {*names, *tree.locked_joints}
        for name in overlay.joints:
            leader = tree.joints[tree.mimicked_body[self._joints[name]]]
            if leader in locked:
                reason = "is locked" if leader == name else f"follows '{leader}', which is locked"
                omitted = "its numbers or the lock" if leader in names else "its numbers"
                why = f"joint '{name}' {reason}, so its passive properties have no effect: omit {omitted}"
                raise self._refused(f".joints.{name}", why)
        return list(names)

    def numbers(self, value: Any, place: str, core: tuple[int, ...]) -> Array:
        """Returns numbers of an overlay, which has checked them, with core shape `core`."""
        array = numbers(value)
        if array is None:
            raise self._wrong(place, "must be numbers", value)
        lead = array.shape[: array.ndim - len(core)]
        if lead:
            if not self._leads and self._tree.lead:
                self._leads[f"robot '{self._tree.name}'"] = self._tree.lead
            self._leads[f"{_last_name(self._path)}{place}"] = lead
            broadcast(self._leads)
        return np.array(array)  # a copy: trees are read-only, and the caller may reuse the memory

    def _size(self, value: Any, place: str, *, any_sign: bool = False, zero: bool = True) -> Array:
        array = self.numbers(value, place, ())
        if not any_sign and not (array >= 0.0 if zero else array > 0.0).all():
            raise self._refused(place, f"must be {'at least' if zero else 'more than'} 0, found {array.min():g}")
        return array

    def _mass(self, value: Any, place: str, *, zero: bool = False) -> Any:
        array = self.numbers(value, place, ())
        if not (array >= 0.0 if zero else array > 0.0).all():
            expected = "a mass of at least 0 kg" if zero else "a positive mass in kg"
            raise self._refused(place, f"must be {expected}, found {array.min():g}")
        return float(array) if not array.ndim else array

    def _matrix(self, value: Any, place: str) -> Array:
        """Returns a physically possible inertia, (..., 3, 3)."""
        array = self.numbers(value, place, (3, 3))
        size = np.abs(array).max(axis=(-2, -1), initial=0.0)
        # Scaled, so that nothing leaves the range of doubles.
        unit_matrix = array / np.where(size == 0.0, 1.0, size)[..., None, None]
        if (np.abs(unit_matrix - unit_matrix.mT) > _SYMMETRY).any():
            raise self._refused(place, "must be symmetric, found an asymmetric matrix")
        # No second moment, tr(I) / 2 - I, is negative; then no moment, the sum of two of them, is either.
        half = np.trace(unit_matrix, axis1=-2, axis2=-1)[..., None, None] / 2 * np.eye(3)
        good = eigenvalues_exceed(half - unit_matrix, -MOMENTS) | (size == 0.0)
        if not good.all():
            worst, scale = (unit_matrix[~good][0], size[~good][0]) if array.ndim > 2 else (unit_matrix, size)
            a, b, c = (principal_moments(worst) * float(scale)).tolist()
            why = f"one of them is {a:g}" if a < 0.0 else "the largest exceeds the others' sum"
            raise self._refused(
                place, f"must be physically possible, found principal moments {a:.4g}, {b:.4g}, {c:.4g}: {why}"
            )
        return array

    def _inertial(self, inertial: Inertial, original: BodyInertia, place: str) -> BodyInertia:
        mass = original.mass if inertial.mass is None else self._mass(inertial.mass, f"{place}.mass")
        if not np.all(mass):
            raise self._refused(f"{place}.mass", "must be given, in kg: the link has no mass in the robot's file")
        com = original.com if inertial.com is None else self.numbers(inertial.com, f"{place}.com", (3,))
        _, axes, inertia = original.centre or (com, None, original.about_com)
        if inertial.inertia is not None:
            axes, inertia = None, self._matrix(inertial.inertia, f"{place}.inertia")
        with np.errstate(over="ignore", invalid="ignore"):
            return BodyInertia.from_com(mass, com, inertia, axes)

    def _bounded(self, body: BodyInertia, place: str) -> BodyInertia:
        """Returns the body; refuses one that is larger than the importer allows."""
        if large := too_large(body):
            raise self._refused(place, large)
        return body

    def _payload_inertia(self, payload: Payload, place: str) -> BodyInertia:
        return BodyInertia.from_com(
            self._mass(payload.mass, f"{place}.mass", zero=True),
            self.numbers(payload.com, f"{place}.com", (3,)),
            self._matrix(payload.inertia, f"{place}.inertia"),
        )

    def _link(self, name: Any, place: str) -> int:
        return self._named(name, place, "link", self._links)

    def _joint(self, name: Any, place: str) -> int:
        return self._named(name, place, "joint", self._joints)

    def _named(self, name: Any, place: str, kind: str, indices: Mapping[str, int]) -> int:
        if not isinstance(name, str):
            raise self._wrong(place, f"must be the name of a {kind}", name)
        if name not in indices:
            moving = " that moves" if kind == "joint" else ""
            raise NotFoundError(
                f"robot '{self._tree.name}' has no {kind} '{name}'{moving}"
                f"{known_instead(name, indices, f'its {kind}s are')}",
                path=f"{self._path}{place}",
            )
        return indices[name]

    def _wrong(self, place: str, expected: str, value: Any) -> InvalidArgumentError:
        """Returns the error for a wrong value."""
        return self._refused(place, f"{expected}, found {found(value)}")

    def _refused(self, place: str, why: str) -> InvalidArgumentError:
        separator = " " if why.startswith("must") else ": "
        text = f"{_last_name(self._path)}{place}{separator}{why}"
        return InvalidArgumentError(text, path=f"{self._path}{place}")


def _with(column: Array, part: slice, values: Array) -> Array:
    """Returns a column (..., nr) with changed entries in all degrees of freedom of one joint."""
    lead = np.broadcast_shapes(column.shape[:-1], values.shape)
    # A copy: a broadcast array has one memory for all robots, and cannot be written.
    changed_column = np.array(np.broadcast_to(column, (*lead, column.shape[-1])))
    changed_column[..., part] = values[..., None]
    return changed_column
