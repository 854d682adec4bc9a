"""For which share of time each joint and motor of a plant was at one of its limits, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dyn_service.graph.middleware.node_kind import Stats, number
from dyn_service.graph.middleware.telemetry_store import NodeBoard
from dyn_service.graph.nodes.plant.recording import BY_JOINT

_WORDS: Mapping[str, tuple[str, str]] = {
    "saturated": ("commands cut to the effort limit", "of the time under command"),
    "held_back": ("efforts held back by their rate", "of the time under command"),
    "beyond": ("commands cut to the limits of position or velocity", "of the time under command"),
    "too_far": ("commanded positions too far away", "of the time under command"),
    "motor_saturated": ("motors at their own limit", "of the time"),
    "out_of_range": ("positions beyond their limits", "of the time"),
}
_BRIEF = {
    "saturated": "cut",
    "held_back": "held back",
    "beyond": "beyond",
    "too_far": "too far",
    "motor_saturated": "motor at its limit",
    "out_of_range": "out",
}
"""Of the live table, where there is room for a word."""
_UNDER_COMMAND = ("saturated", "held_back", "beyond", "too_far")
_NAMED = 4
"""So many joints are named, the worst first."""


def shares(plant: NodeBoard) -> dict[str, dict[str, float]]:
    """By kind and joint, the share of steps in which it was so, over all runs of the plant; those of 0 left out.

    Of what commands and efforts came up against it is the share of the steps under command.
    """
    names = dict.fromkeys(name for life in plant.lives.values() for name in life if name.partition(".")[0] in BY_JOINT)
    counts = {name: plant.total(name) for name in names}
    return _shares(counts, plant.total("active_steps"), plant.total("steps"))


def lines(found: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A line for each kind that there was, with the joints."""
    said = []
    for kind, joints in found.items():
        what, of = _WORDS[kind]
        named = [f"{name} {percent(share)}" for name, share in list(joints.items())[:_NAMED]]
        more = f" and {len(joints) - _NAMED} more" if len(joints) > _NAMED else ""
        said.append(f"{what}: {', '.join(named)}{more} {of}")
    return said


def briefly(stats: Stats) -> list[str]:
    """The worst joint of each kind, from the numbers of the moment."""
    counts = {name: int(number(stats, name) or 0) for name in stats if name.partition(".")[0] in BY_JOINT}
    found = _shares(counts, int(number(stats, "active_steps") or 0), int(number(stats, "steps") or 0))
    said = []
    for kind, joints in found.items():
        name, share = next(iter(joints.items()))
        said.append(f"{name} {_BRIEF[kind]} {percent(share)}{f' +{len(joints) - 1}' if len(joints) > 1 else ''}")
    return said


def _shares(counts: Mapping[str, int], active: int, steps: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for kind in BY_JOINT:
        of = max(1, active if kind in _UNDER_COMMAND else steps)
        joints = {name.removeprefix(f"{kind}."): n / of for name, n in counts.items() if name.startswith(f"{kind}.")}
        if joints := {name: share for name, share in joints.items() if share}:
            found[kind] = dict(sorted(joints.items(), key=_by_share))
    return found


def _by_share(entry: tuple[str, Any]) -> tuple[float, str]:
    name, share = entry
    return -share, name


def percent(share: float) -> str:
    """A share as one says it."""
    return "under 0.1 %" if share < 1e-3 else f"{100.0 * share:.1f} %"
