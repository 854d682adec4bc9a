"""The report of an import: what was kept, merged, defaulted, changed and dropped, warnings, masses before and after.

`render` returns text for a terminal, `to_dict` plain data. Total mass and centre of mass of the file and of the tree
must agree; otherwise mass was lost.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from msgspec import to_builtins

from dyn_service.api.arguments import DEFAULT_GRAVITY
from dyn_service.api.description import LoopFreedom
from dyn_service.model.arrays import Vector
from dyn_service.model.description import ROOT_JOINT, Description, LoopJoint, Note, RootType
from dyn_service.model.joints import FIXED, JOINT_TYPES
from dyn_service.model.mimic import followers_by_leader, moved_by_a_turn, narrowed_limits, resolved_mimics, rule
from dyn_service.model.passive import widths
from dyn_service.parsing.quantities import counted, listed
from dyn_service.parsing.rules import repair_of, rule_of
from dyn_service.parsing.structure import is_left, other_side
from dyn_service.support.logs import printable

KINDS = {
    "warning": "kept as written, but probably a mistake",
    "loop": "closes a loop and is no loop joint: no efforts and accelerations, unless loops are cut",
    "reported": "read, and ignored",
    "acting": "passive joint forces, included in every answer unless passive=False",
    "following": "joints that mimic others: they have no entries in q, v and tau",
    "changed": "converted or corrected",
    "defaulted": "missing, a default was used",
    "merged": "links welded to another link",
    "dropped": "not used",
}
"""Kinds of notes in the order in which they are shown, with their meanings."""


@dataclass(frozen=True, eq=False)
class MassSummary:
    """mass: kg, of the robot. com: (3,) m, its centre of mass at q = 0 in the root link's frame."""

    mass: float
    com: Vector

    def to_dict(self) -> dict[str, Any]:
        """Returns it as plain types; numbers that are not finite become None."""
        mass, *com = (float(x) if math.isfinite(x) else None for x in (self.mass, *self.com))
        return {"mass_kg": mass, "com_m": com}


@dataclass(frozen=True)
class SideMass:
    """The links of one side with a namesake on the other side: their number, and their mass, kg."""

    links: int
    mass_kg: float


@dataclass(frozen=True, eq=False)
class Receipt:
    """The report of an import.

    robot, source: its name and origin. fingerprint: digest of all that answers depend on ("" if none). links: number of
    links. joints: number of joints of each type. movable: names of the joints with entries in q, in order. bodies:
    number of moving bodies. before, after: masses in the file and in the tree. notes: all notes, by line. certificates:
    results of the comparison of each compiled kernel with the tree as given, as plain values. root: how the root link
    moves in the world. gravity: m/s^2, world axes, for calls that do not specify one. loop_joints: what closes loops.
    driven: names of the joints with a motor; None if the files name none. freedom: what closed loops leave free, if
    known. sides: `left` and `right`, for a robot whose links have such names.
    """

    robot: str
    source: str
    fingerprint: str
    links: int
    joints: dict[str, int]
    movable: tuple[str, ...]
    bodies: int
    before: MassSummary
    after: MassSummary
    notes: tuple[Note, ...]
    certificates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    root: RootType = "fixed"
    gravity: tuple[float, float, float] = DEFAULT_GRAVITY
    loop_joints: tuple[LoopJoint, ...] = ()
    driven: tuple[str, ...] | None = None
    freedom: LoopFreedom | None = None
    sides: Mapping[str, SideMass] | None = None

    def with_certificates(self, certificates: Mapping[str, Mapping[str, Any]], notes: Iterable[Note]) -> Receipt:
        """Returns the report with the certificates of kernels."""
        return replace(self, certificates=certificates, notes=(*self.notes, *notes))

    def with_freedom(self, freedom: LoopFreedom | None, note: Note | None) -> Receipt:
        """Returns the report with what closed loops leave free, or a warning that they do not close."""
        notes = self.notes if note is None else tuple(sorted((*self.notes, note), key=lambda x: x.line))
        return replace(self, freedom=freedom, notes=notes)

    def of_kind(self, *kinds: str) -> tuple[Note, ...]:
        """Returns the notes of these kinds, by line."""
        return tuple(note for note in self.notes if note.kind in kinds)

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain types for JSON; numbers that are not finite become None."""
        return {
            "robot": self.robot,
            "source": self.source,
            "fingerprint": self.fingerprint,
            "root": self.root,
            "gravity": list(self.gravity),
            "links": self.links,
            "joints": dict(self.joints),
            "movable": list(self.movable),
            "loops": [
                {"joint": x.name, "type": x.type, "parent": x.parent, "child": x.child, "line": x.line or None}
                for x in self.loop_joints
            ],
            "driven": None if self.driven is None else list(self.driven),
            "freedom": None if self.freedom is None else to_builtins(self.freedom),
            "bodies": self.bodies,
            "certificates": {name: dict(certificate) for name, certificate in self.certificates.items()},
            "mass": {"before": self.before.to_dict(), "after": self.after.to_dict()},
            "sides": None if self.sides is None else {name: asdict(side) for name, side in self.sides.items()},
            "notes": list(map(_plain, self.notes)),
        }

    def render(self) -> str:
        """Returns the report as text: a head line, masses, and notes by kind with their lines. No newline at the
        end.
        """
        lines = [self._head(), "", *self._facts(), "", *self._masses(), *self._sections()]
        return "\n".join(map(printable, lines))

    def _head(self) -> str:
        moving = {kind: count for kind, count in self.joints.items() if kind != FIXED.type and count}
        parts = []
        if moving:
            kinds = ", ".join(f"{count} {kind}" for kind, count in moving.items())
            parts.append(f"{sum(moving.values())} movable: {kinds}")
        if self.joints.get(FIXED.type):
            parts.append(f"{self.joints[FIXED.type]} fixed")
        detail = f" ({'; '.join(parts)})" if parts else ""
        return f"{self.robot}: {counted(self.links, 'link')}, {counted(sum(self.joints.values()), 'joint')}{detail}"

    def _facts(self) -> list[str]:
        facts = {"source": self.source, "fingerprint": self.fingerprint or "-", "moving bodies": str(self.bodies)}
        if following := self.of_kind("following"):
            facts["following"] = f"{counted(len(following), 'joint')}, without entries in q, v and tau"
        if self.driven is not None:
            facts["driven"] = f"{counted(len(self.driven), 'joint')}: {listed(list(self.driven)) or '-'}"
        if (free := self.freedom) is not None:
            rows = counted(free.rank + free.redundant, "row")
            facts["loops"] = f"closed in random configurations: rank {free.rank} of {rows}, {free.redundant} redundant"
            facts["freedom"] = f"{counted(free.freedom, 'degree')} of freedom: {listed(list(free.independent)) or '-'}"
            if free.undetermined:
                facts["undetermined"] = f"{listed(list(free.undetermined))}: passive, and move while motors stand still"
        if self.root != "fixed":
            facts["root"] = f"{self.root}, by joint '{ROOT_JOINT}'"
        if self.gravity != DEFAULT_GRAVITY:
            x, y, z = self.gravity
            facts["gravity"] = f"({x:g}, {y:g}, {z:g}) m/s^2, from its file, if a call specifies none"
        counts = [f"{len(self.of_kind(kind))} {kind}" for kind in KINDS if self.of_kind(kind)]
        facts["notes"] = ", ".join(counts) or "none"
        if self.certificates:
            refused_count = sum(certificate["refused"] is not None for certificate in self.certificates.values())
            largest_error = max(certificate["error"] for certificate in self.certificates.values())
            summary = f"{len(self.certificates)} certified, errors at most {largest_error:.2g} of the rounding bound"
            facts["kernels"] = summary + (f"; {refused_count} made from the tree as given" if refused_count else "")
        width = max(map(len, facts))
        return [f"  {name:<{width}}  {value}" for name, value in facts.items()]

    def _masses(self) -> list[str]:
        head = f"  {'mass':<11}  {'kg':>13}  {'centre of mass x':>16}  {'y':>11}  {'z':>11}  m, root frame, q = 0"
        rows = [head]
        for name, summary in (("as written", self.before), ("as computed", self.after)):
            x, y, z = summary.com
            rows.append(f"  {name:<11}  {summary.mass:>13.6f}  {x:>16.6f}  {y:>11.6f}  {z:>11.6f}")
        for name, side in (self.sides or {}).items():
            rows.append(f"  {name:<11}  {side.mass_kg:>13.6f}  in {counted(side.links, 'link')}")
        return rows

    def _sections(self) -> list[str]:
        lines: list[str] = []
        if self.loop_joints:
            # not of kind loop: these loops are read, and no finding
            joints = (
                Note("reported", f"joint '{x.name}'", f"{x.type}, from '{x.parent}' to '{x.child}'", x.line)
                for x in self.loop_joints
            )
            lines += [
                "",
                f"loops ({len(self.loop_joints)}): closed by joints without entries in q, v and tau",
                *table(joints),
            ]
        for kind, meaning in KINDS.items():
            notes = self.of_kind(kind)
            if notes:
                lines += ["", f"{kind} ({len(notes)}): {meaning}", *table(notes)]
        rules = {rule.number: rule for note in self.notes if (rule := rule_of(note)) is not None}
        if rules:
            rows = [(number, rules[number].name, rules[number].repair) for number in sorted(rules)]
            width = max(len(name) for _, name, _ in rows)
            lines += ["", f"rules ({len(rules)}): what repairs a warning, if it does not name its own repair"]
            lines += [f"  {number}  {name:<{width}}  {repair}" for number, name, repair in rows]
        return lines


def _plain(note: Note) -> dict[str, Any]:
    """Returns a note as plain types; a finding has its rule and repair too."""
    plain = {"kind": note.kind, "element": note.element, "text": note.text, "line": note.line or None}
    if (rule := rule_of(note)) is not None:
        plain |= {"rule": rule.number, "name": rule.name, "level": rule.level}
        plain |= {"repair": repair_of(note), "fix": bool(note.edits)}
    return plain


def build_receipt(
    description: Description,
    *,
    before: MassSummary,
    after: MassSummary,
    movable: tuple[str, ...],
    bodies: int,
    merged: tuple[Note, ...] = (),
    fingerprint: str = "",
) -> Receipt:
    """Returns the report of an import. A note of the tree without a line gets the line of its link or joint."""
    types = Counter(joint.type for joint in description.joints)
    lines = {f"link '{link.name}'": link.line for link in description.links}
    lines |= {f"joint '{joint.name}'": joint.line for joint in description.joints}
    located = [note if note.line else replace(note, line=lines.get(note.element, 0)) for note in merged]
    notes = [*description.notes, *_acting(description), *_following(description), *located]
    with_motors = any(joint.driven is not None for joint in description.joints)
    return Receipt(
        robot=description.name,
        source=description.source,
        fingerprint=fingerprint,
        links=len(description.links),
        joints={kind: types[kind] for kind in JOINT_TYPES if types[kind]},
        movable=tuple(movable),
        bodies=bodies,
        before=before,
        after=after,
        # Sorting is stable: notes with the same line, and without lines, keep their order.
        notes=tuple(sorted(notes, key=lambda note: note.line)),
        root=description.root,
        gravity=description.gravity,
        loop_joints=description.loop_joints,
        driven=tuple(x.name for x in description.joints if x.driven) if with_motors else None,
        sides=_side_masses(description),
    )


def _side_masses(description: Description) -> dict[str, SideMass] | None:
    """Returns the masses of the links whose names differ in left and right; None if there are none."""
    links = {link.name: link for link in description.links}
    left = [name for name in links if other_side(name) != name and other_side(name) in links and is_left(name)]
    if not left:
        return None

    def side(names: list[str]) -> SideMass:
        inertials = (links[name].inertial for name in names)
        return SideMass(len(names), sum(inertial.mass for inertial in inertials if inertial is not None))

    return {"left": side(left), "right": side([other_side(name) for name in left])}


def _acting(description: Description) -> Iterator[Note]:
    """Returns a note on each joint with passive forces."""
    for joint in description.joints:
        moves = joint.moves
        if not moves.nv:
            continue
        units = (("N m", "rad") if column[:3].any() else ("N", "m") for column in moves.subspace.T)
        # Two for joints that rotate and translate, with the same numbers.
        widths_by_unit = dict(zip(units, widths(moves), strict=True))
        (force, length), specified_width = next(iter(widths_by_unit)), joint.friction_width
        inertia = "kg" if force == "N" else "kg m^2"
        damping_units = " and ".join(f"{f} s/{x}" for f, x in widths_by_unit)
        friction_units = " and ".join(f for f, _ in widths_by_unit)
        smoothing = " and ".join(
            f"{width if specified_width is None else specified_width:g} {x}/s"
            for (_, x), width in widths_by_unit.items()
        )
        parts = (
            (joint.damping, f"damping {joint.damping:g} {damping_units}"),
            (joint.friction, f"friction {joint.friction:g} {friction_units}, smoothed over {smoothing}"),
            (joint.armature, f"armature {joint.armature:g} {inertia}"),
            (joint.stiffness, f"a spring of {joint.stiffness:g} {force}/{length} to {joint.rest:g} {length}"),
        )
        summary = "; ".join(text for value, text in parts if value)
        if summary:
            yield Note("acting", f"joint '{joint.name}'", summary, joint.line)


def _following(description: Description) -> Iterator[Note]:
    """Returns a note on each mimic joint, and on each leader with the limits it keeps for its followers."""
    mimics = resolved_mimics(description.joints)
    following = followers_by_leader(description.joints, mimics)
    for joint in description.joints:
        element = f"joint '{joint.name}'"
        if joint.mimic is not None and joint.name in mimics:
            first, mimic = rule(joint.mimic), mimics[joint.name]
            resolution = "" if mimic == joint.mimic else f": {rule(mimic)}"
            yield Note("following", element, f"follows {first}{resolution}", joint.line)
        elif joint.mimic is not None and not joint.moves.nv:
            text = f"the mimic of '{joint.mimic.joint}' is ignored: the joint is fixed"
            yield Note("dropped", element, text, joint.line)
        if moved_joints := moved_by_a_turn(joint, following.get(joint.name, ())):
            text = (
                f"is revolute instead of continuous, because a whole turn changes the pose of {listed(moved_joints, 4)}"
            )
            yield Note("changed", element, text, joint.line)
        keeps = narrowed_limits(joint, following.get(joint.name, ()))
        if keeps.narrowed_by:
            narrowed = [
                f"{name} {file_bound:g} -> {narrowed_bound:g}"
                for name, file_bound, narrowed_bound in zip(
                    keeps.own_bounds._fields, keeps.own_bounds, keeps.bounds, strict=True
                )
                if file_bound != narrowed_bound
            ]
            text = f"keeps the limits of {listed(list(keeps.narrowed_by), 4)} too: {', '.join(narrowed)}"
            yield Note("changed", element, text, joint.line)
        for name in keeps.disjoint:
            text = f"its range does not overlap that of '{name}', which follows it: the range of '{name}' is ignored"
            yield Note("warning", element, text, joint.line, "disjoint-mimic")


def table(notes: Iterable[Note]) -> list[str]:
    """Returns one line per note: its line in the file, its element, its text; a second line for its own repair."""
    rows = []
    for note in notes:
        rule = rule_of(note)
        text = note.text if rule is None else f"{rule.number} {note.text}"
        rows.append((f"line {note.line}" if note.line else "", note.element, text))
        if note.repair:
            rows.append(("", "", f"        {note.repair}{' [--fix]' if note.edits else ''}"))
    first, second = (max((len(row[i]) for row in rows), default=0) for i in (0, 1))
    margin = f"{{:>{first}}}  " if first else ""
    return [f"  {margin.format(line)}{element:<{second}}  {text}" for line, element, text in rows]
