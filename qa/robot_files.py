"""Findings of `dyn check` in foreign robot files, by rule: `python -m qa.robot_files FOLDER`.

Prints each finding: file, line, element, text, repair; then for each rule the numbers of findings and of files. With
`--sample N` it prints N findings of each rule, evenly from all, to be judged by hand; docs/rules.md has the last
judgement. `--files N` takes N files evenly from all, because files of the same robot are alike. Files that are no robot
files by their root element are skipped; xacro files, which are programs, too.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path

from dyn_service import Robot
from dyn_service.errors import DynError
from dyn_service.parsing.files import root_of
from dyn_service.parsing.linter import findings
from dyn_service.parsing.rules import RULES, location, repair_of, rule_of
from qa.default_steps import ENDINGS, verdicts

ROOTS = ("robot", "mujoco", "sdf")
Finding = tuple[str, str]
"""The name of a rule, and the text of the finding."""


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
    arguments = parser.parse_args()
    paths = sorted(filter(is_robot_file, arguments.folder.rglob("*")))
    paths = paths[:: max(1, len(paths) // arguments.files)] if arguments.files else paths
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
