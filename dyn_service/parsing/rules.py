"""The rules of `dyn check`: every warning of a robot file has one.

A rule's number is stable: it is in suppressions and in results that CI systems keep, so a number is never used again.
`docs/rules.md` has a section for each rule.

    1xx masses and inertias    2xx units    3xx joints    4xx names, loops, root    5xx files    6xx kernels
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from dyn_service.errors import InvalidArgumentError
from dyn_service.model.description import Note
from dyn_service.support.suggestions import known_instead


@dataclass(frozen=True)
class Rule:
    """A rule: number, such as DYN101, name, what it finds, how to repair it, and whether `--fix` can do so."""

    number: str
    name: str
    summary: str
    repair: str
    level: Literal["error", "warning"] = "warning"
    fixable: bool = False


def _rule(number: int, name: str, summary: str, repair: str, *marks: str) -> Rule:
    level: Literal["error", "warning"] = "error" if "error" in marks else "warning"
    return Rule(f"DYN{number}", name, summary, repair, level, "fix" in marks)


_ALL = (
    _rule(101, "impossible-inertia", "Principal moments that no body has: negative, or one above the others' sum.",
          "Export the inertia again, or correct the moment that differs on the other side.", "error", "fix"),
    _rule(102, "point-mass", "A mass without inertia.", "Add moments of inertia that fit the link's shape."),
    _rule(103, "inertia-without-mass", "Moments of inertia, and a mass of 0.", "Add the mass, or remove the inertia."),
    _rule(104, "stand-in-inertial", "1 kg and unit inertia, which urdfpy and urchin write for a missing inertial.",
          "Remove the inertial if the link has none."),
    _rule(105, "implausible-mass", "A mass below 1e-6 kg or above 1e5 kg.",
          "Write the mass in kg, or remove the inertial of a link without mass."),
    _rule(106, "far-centre", "A centre of mass more than 10 m from the link's origin.",
          "Write the centre of mass in m, in the link's frame."),
    _rule(107, "too-much-inertia", "A radius of gyration far beyond the distances between joints.",
          "Write moments of inertia in kg m^2, about the centre of mass.", "fix"),
    _rule(108, "too-little-inertia", "Less inertia than a ball of osmium of the same mass.",
          "Write moments of inertia in kg m^2, and masses in kg.", "fix"),
    _rule(109, "inertia-beyond-shapes", "More inertia than a body within the link's shapes and meshes can have.",
          "Write moments of inertia in kg m^2, about the centre of mass.", "fix"),
    _rule(110, "inertia-below-shapes", "Far less inertia than the link's shapes and meshes show.",
          "Write moments of inertia that fit the link's shape.", "fix"),
    _rule(111, "massless-link", "A joint moves a link without mass.", "Add an inertial, or make the joint fixed."),
    _rule(112, "mass-beyond-shapes", "A mass denser than osmium, or thinner than hydrogen, in the box of its shapes.",
          "Write the mass in kg, and lengths in m."),
    _rule(113, "asymmetric-mass", "Links called left and right with masses or moments a decimal point apart.",
          "Correct the link that differs from the file's own pattern."),
    _rule(114, "claimed-mass", "A total mass that differs by more than 5 % from that of --mass.",
          "Add the missing masses, or weigh the robot."),
    _rule(115, "centre-outside-shapes", "A centre of mass far outside the link's shapes and meshes.",
          "Write the centre of mass in m, in the link's frame."),
    _rule(116, "unmirrored-link", "Links called left and right that are no mirror images, though most others are.",
          "Correct the side that is wrong, or rename links that shall differ."),
    _rule(201, "lengths-in-millimetres", "Most of the mass would be thinner than air.", "Write lengths in m."),
    _rule(202, "masses-in-grams", "Most of the mass would be denser than steel.", "Write masses in kg.", "fix"),
    _rule(203, "limits-in-degrees", "Limits of a revolute joint beyond two turns.", "Write limits in rad.", "fix"),
    _rule(204, "travel-in-millimetres", "Limits of a prismatic joint far beyond the robot's size.",
          "Write limits in m.", "fix"),
    _rule(205, "rpy-in-degrees", "Roll, pitch or yaw of more than a turn.", "Write angles in rad.", "fix"),
    _rule(206, "mesh-in-millimetres", "A mesh a hundred times longer than the robot.",
          'Add scale="0.001 0.001 0.001" to the mesh.'),
    _rule(207, "far-joint", "A joint a hundred times farther from its parent than the others.", "Write lengths in m."),
    _rule(208, "velocity-in-degrees", "A velocity limit of 90 to 720 rad/s at a joint with stops.",
          "Write velocity limits in rad/s."),
    _rule(301, "negative-friction", "Damping or friction below 0, which adds energy.", "Write the positive number."),
    _rule(302, "crossed-limits", "A lower limit above the upper one.", "Exchange the limits."),
    _rule(303, "locked-joint", "Equal lower and upper limits.", "Make the joint fixed, or write its range."),
    _rule(304, "negative-limit", "A limit of effort, velocity, acceleration or jerk below 0.",
          "Write the positive number, or remove a limit that is unknown."),
    _rule(305, "zero-limit", "A limit of effort, velocity, acceleration or jerk of 0.",
          "Write the limit, or remove one that is unknown."),
    _rule(306, "friction-beyond-effort", "Friction of at least the effort limit.",
          "Write the joint's friction, or remove what held the arm in a simulator."),
    _rule(307, "unfollowed-mimic", "A mimic of a joint that is fixed or does not exist.",
          "Write the name of a joint that moves."),
    _rule(308, "still-mimic", "A mimic with multiplier 0.", "Write the multiplier, or make the joint fixed."),
    _rule(309, "disjoint-mimic", "A mimic joint whose range does not overlap that of the joint it follows.",
          "Write the range, multiplier and offset so that both joints can move."),
    _rule(310, "unused-rotor", "A transmission whose rotor inertia or reduction cannot be used.",
          "Write a transmission with one joint that moves and one actuator."),
    _rule(401, "misspelt-name", "An unknown element or attribute that resembles a known one.",
          "Write the known name."),
    _rule(402, "unexpanded-xacro", "A xacro element in a file that is not expanded.", "Run xacro first."),
    _rule(403, "fixed-legged-base", "A walking robot whose root is fixed in the world.",
          'Read the robot with root="floating".'),
    _rule(404, "commented-floating-joint", "A floating joint in a comment.", 'Read the robot with root="floating".'),
    _rule(405, "unheld-root", "No joint holds an SDFormat model to the world, so it floats there.",
          'Read the robot with root="floating", or add a fixed joint.'),
    _rule(406, "unread-loop", "An element closes a loop and is no loop joint.",
          "Describe the loop by a loop joint in a joint file."),
    _rule(407, "open-loop", "A loop that closes in no random configuration.",
          "Correct the frames of the joint that closes it."),
    _rule(408, "unread-loop-file", "A file .loops.yaml next to the robot's file that is not read.",
          "Add --joints with this file."),
    _rule(409, "unknown-controller-joint", "A joint of the controllers' YAML that the robot does not have.",
          "Write the robot's name of the joint."),
    _rule(410, "unknown-reference", "A transmission, actuator, ros2_control or gazebo element names no joint or link.",
          "Write the name of a joint or link of the robot, or remove the element."),
    _rule(501, "unreadable", "The file cannot be read as a robot.", "Correct the element that the message names.",
          "error"),
    _rule(502, "missing-mesh", "A mesh file that does not exist, in a folder that does.",
          "Correct the path of the mesh, or add the file."),
    _rule(601, "uncompared-kernel", "A kernel without finite answers at the test states.",
          "Check answers at your states with verify."),
    _rule(602, "inexact-kernel", "A kernel with errors above the rounding bound.",
          "Check answers at your states with verify."),
)  # fmt: skip

RULES = {rule.name: rule for rule in _ALL}
"""The rules by name, in the order of their numbers."""

_OF_KIND = {"loop": "unread-loop"}
"""The rule of all notes of a kind."""

_DISTANT = re.compile(r"(?P<file>.+):(?P<line>[0-9]+): (?P<element>.*)", re.DOTALL)
"""The element of a note on another file (`quantities.Elsewhere`)."""


def rule_of(note: Note) -> Rule | None:
    """Returns the rule of a note; None for notes that are no findings."""
    return RULES.get(note.rule or _OF_KIND.get(note.kind, ""))


def repair_of(note: Note) -> str:
    """Returns the repair of a finding: its own, or its rule's."""
    rule = rule_of(note)
    return note.repair or ("" if rule is None else rule.repair)


def location(note: Note, source: str) -> tuple[str, int, str]:
    """Returns file, line (0: unknown) and element of a note. source: the robot's main file."""
    match = _DISTANT.fullmatch(note.element)
    return (match["file"], int(match["line"]), match["element"]) if match else (source, note.line, note.element)


def selection(select: Iterable[str], ignore: Iterable[str]) -> Callable[[Note], bool]:
    """Returns the filter of notes: those of `select` (all if empty) without those of `ignore`, each the name of a rule,
    its number, or the start of numbers such as DYN1; notes that are no findings pass.

    Raises:
        InvalidArgumentError: An entry fits no rule.
    """
    selected_rules, ignored_rules = _matching("select", select), _matching("ignore", ignore)

    def passes(note: Note) -> bool:
        rule = rule_of(note)
        return rule is None or ((rule in selected_rules or not selected_rules) and rule not in ignored_rules)

    return passes


def _matching(option: str, entries: Iterable[str]) -> set[Rule]:
    rules: set[Rule] = set()
    for entry in entries:
        matching = {rule for rule in _ALL if entry == rule.name or (entry and rule.number.startswith(entry.upper()))}
        if not matching:
            names = known_instead(entry, RULES, "the rules are")
            raise InvalidArgumentError(f"--{option} {entry!r} is no rule{names}", path=option)
        rules |= matching
    return rules
