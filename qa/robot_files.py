"""Findings of `dyn check` in foreign robot files, by rule: `python -m qa.robot_files FOLDER`.

Prints each finding: file, line, element, text, repair; then for each rule the numbers of findings and of files. With
`--sample N` it prints N findings of each rule, evenly from all, to be judged by hand; docs/rules.md has the last
judgement. `--files N` takes N files evenly from all, because files of the same robot are alike. Files that are no robot
files by their root element are skipped; xacro files, which are programs, too.

With `--repair` it inserts mistakes into each file instead, all moments or masses or limits in another unit, runs the
repairs of `--fix`, and compares links and joints with the correct file: repaired, wrong (another number than before),
left. The copy with the mistake is next to the file, for its meshes, and is removed.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from dyn_service import Robot
from dyn_service.errors import DynError
from dyn_service.parsing.files import read_file, root_of
from dyn_service.parsing.linter import findings
from dyn_service.parsing.repairs import fix
from dyn_service.parsing.rules import RULES, location, repair_of, rule_of
from qa.default_steps import ENDINGS, verdicts

ROOTS = ("robot", "mujoco", "sdf")
Finding = tuple[str, str]
"""The name of a rule, and the text of the finding."""
_VALUE = r"""([-+.0-9eE\s]+)(?=["'<])"""
_MASS = r"""(<mass\b[^>]*?\bvalue\s*=\s*["']|<mass>|<inertial\b[^>]*?\bmass\s*=\s*["'])""" + _VALUE
_MOMENTS = r"""(\bi[xyz]{2}\s*=\s*["']|<i[xyz]{2}>|\b(?:diag|full)inertia\s*=\s*["'])""" + _VALUE
_LIMITS = r"""(\b(?:lower|upper)\s*=\s*["']|<(?:lower|upper)>|<joint\b[^>]*?\brange\s*=\s*["'])""" + _VALUE
TRAVEL = 0.1
"""Limits up to which a joint is taken for one that slides, in m."""
_MISTAKES: dict[str, tuple[tuple[str, ...], Callable[[float], float]]] = {
    "moments in g m^2": ((_MOMENTS,), lambda x: x * 1e3),
    "moments in kg mm^2": ((_MOMENTS,), lambda x: x * 1e6),
    "moments in t m^2": ((_MOMENTS,), lambda x: x * 1e-3),
    "masses in grams": ((_MASS, _MOMENTS), lambda x: x * 1e3),
    "limits in degrees": ((_LIMITS,), lambda x: round(math.degrees(x)) if abs(x) > TRAVEL else x),
}
"""Where numbers are in the three formats, and what they become."""
_HALF_DEGREE = 0.00873


def checked(path: Path, meshes: bool = True) -> tuple[str, list[Finding]]:
    """Returns the findings in a file; meshes: whether to open mesh files."""
    try:
        robot = Robot.from_file(path)
    except DynError as fault:
        return "read", [("unreadable", str(fault)[:300])]
    lines: list[Finding] = []
    for note in findings(robot.receipt.notes, robot.as_described, path.parent if meshes else None):
        if (rule := rule_of(note)) is not None:
            _, line, element = location(note, "")
            end = " [--fix]" if note.edits else ""
            lines.append((rule.name, f"{line}: {element}: {note.text}; repair: {repair_of(note)}{end}"))
    return "read", lines


def _numbers(path: Path, with_limits: bool) -> dict[str, np.ndarray]:
    """Returns mass and moments of each link, or the limits of each joint that turns."""
    description = read_file(path)
    if with_limits:
        turning = (x for x in description.joints if x.limit is not None and x.moves.angles == (True,))
        limits = ((x.name, x.limit) for x in turning if x.limit.lower is not None and x.limit.upper is not None)
        return {name: np.array([x.lower, x.upper], dtype=float) for name, x in limits}
    inertials = ((x.name, x.inertial) for x in description.links if x.inertial is not None)
    return {name: np.array([x.mass, *x.inertia.ravel()]) for name, x in inertials}


def repaired(path: Path, mistake: str) -> tuple[str, Counter[str]]:
    """Returns the numbers of elements with the mistake that `--fix` repairs, changes wrongly and leaves."""
    text, counts = path.read_text("utf-8", errors="replace"), Counter[str]()
    patterns, change = _MISTAKES[mistake]
    with_limits = patterns == (_LIMITS,)
    if with_limits and "<mujoco" in text and 'angle="radian"' not in text:  # it is in degrees
        return "read", counts
    broken = path.with_name(f"mistake_{path.name}")
    new_text = text
    for pattern in patterns:
        new_text = re.sub(pattern, lambda x: x[1] + " ".join(repr(change(float(v))) for v in x[2].split()), new_text)
    try:
        original = _numbers(path, with_limits)
        broken.write_text(new_text, "utf-8")
        mistaken = _numbers(broken, with_limits)
        try:
            fix(broken)
        except DynError as fault:
            print(f"{path}: {mistake}: {fault}"[:300], flush=True)
        answer = _numbers(broken, with_limits)
    except DynError:
        return "read", counts
    finally:
        broken.unlink(missing_ok=True)
    tolerance = {"rtol": 0.0, "atol": _HALF_DEGREE} if with_limits else {"rtol": 1e-9, "atol": 0.0}
    for name in (x for x in original if not np.allclose(original[x], mistaken[x], **tolerance)):
        left = np.array_equal(answer[name], mistaken[name])
        verdict = "repaired" if np.allclose(answer[name], original[name], **tolerance) else "left" if left else "wrong"
        counts[verdict] += 1
        if verdict == "wrong":
            print(f"wrong  {path}: {mistake}: {name}: {original[name]} -> {answer[name]}", flush=True)
    return "read", counts


def _print_repairs(paths: list[Path], seconds: int) -> None:
    for mistake in _MISTAKES:
        totals, files = Counter[str](), Counter[str]()
        for _, verdict, counts in verdicts(paths, seconds, partial(repaired, mistake=mistake)):
            totals += counts if verdict == "read" else Counter()
            files += Counter(dict.fromkeys(counts, 1)) if verdict == "read" else Counter([verdict])
        totals_text = ", ".join(f"{totals[x]} {x} in {files[x]} files" for x in ("repaired", "wrong", "left"))
        print(f"{mistake:<20} {totals_text}, unjudged files: {files['unjudged']}", flush=True)


def is_robot_file(path: Path) -> bool:
    """Whether a file is a robot's by its ending and root element."""
    if path.suffix not in ENDINGS or path.suffix == ".xacro" or not path.is_file():
        return False
    return root_of(path.read_text("utf-8", errors="replace")) in ROOTS


def main() -> int:
    """Checks the files of a folder."""
    parser = argparse.ArgumentParser(prog="python -m qa.robot_files")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=0, help="at most so many, evenly from all; 0: all")
    parser.add_argument("--sample", type=int, default=0, help="print at most so many findings of each rule; 0: all")
    parser.add_argument("--seconds", type=int, default=60, help="of processor time, for each file")
    parser.add_argument("--no-meshes", dest="meshes", action="store_false", help="open no mesh files, which is faster")
    parser.add_argument("--repair", action="store_true", help="insert mistakes, and judge their repairs")
    arguments = parser.parse_args()
    paths = sorted(filter(is_robot_file, arguments.folder.rglob("*")))
    paths = paths[:: max(1, len(paths) // arguments.files)] if arguments.files else paths
    if arguments.repair:
        _print_repairs(paths, arguments.seconds)
        return 0
    by_rule: dict[str, list[tuple[Path, str]]] = defaultdict(list)
    for path, verdict, lines in verdicts(paths, arguments.seconds, partial(checked, meshes=arguments.meshes)):
        if verdict != "read":
            print(f"{path.relative_to(arguments.folder)}: {verdict}: {lines}", flush=True)
            continue
        for rule, line in lines:
            by_rule[rule].append((path, line))
            if not arguments.sample:
                print(f"{rule}  {path.relative_to(arguments.folder)}:{line}", flush=True)
    for rule in RULES if arguments.sample else ():
        rows = by_rule[rule]
        for path, line in rows[:: max(1, len(rows) // arguments.sample)]:
            print(f"{rule}  {path.relative_to(arguments.folder)}:{line}")
    print(f"{len(paths)} files")
    for rule in RULES:
        if rows := by_rule[rule]:
            print(f"{RULES[rule].number}  {rule:<26}{len(rows):6d} in {len({path for path, _ in rows}):5d} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
