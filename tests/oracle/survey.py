"""Foreign files against the engines they are written for: `python -m tests.oracle.survey FOLDER ..`.

Each file of MJCF is compared with MuJoCo, each of SDFormat with Drake where it is installed. Prints a line for each
that is refused, differs or crashes, then how many there are of each outcome; the status is 1 if one differs or crashes.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from dyn_service.errors import DynError
from dyn_service.parsing.files import read_file, root_of
from dyn_service.parsing.mjcf.reader import ROOTS as MJCF
from dyn_service.parsing.sdf.reader import ROOTS as SDF
from tests.oracle.test_pinocchio import TOLERANCE

SUFFIXES = (".xml", ".mjcf", ".sdf", ".world", ".urdf")
INCLUDED_ROOTS = ("mujocoinclude",)
"""Root elements of files that are no robots by themselves."""

FAILURES = ("apart", "crash")


def robot_files(folders: list[Path]) -> Iterator[Path]:
    """Files of MJCF and SDFormat, whatever their name ends in."""
    for folder in folders:
        # The root element says what a file is; its suffix does not, as .xml may be anything.
        for path in sorted(file for file in folder.rglob("*") if file.suffix in SUFFIXES and file.is_file()):
            if root_of(path.read_text("utf-8", errors="replace")) in {*MJCF, *SDF}.difference(INCLUDED_ROOTS):
                yield path


def outcome(path: Path) -> tuple[Path, str, str]:
    """What becomes of a file, and why: agrees, apart, read (no engine takes it), refused, crash."""
    try:
        read_file(path)
    except DynError as fault:
        return path, "refused", str(fault)
    except Exception as fault:  # that none does is what is to be shown
        return path, "crash", repr(fault)
    try:
        worst = _compared(path)
    except _Refused as fault:
        return path, "read", f"not compared: {fault}"
    except Exception as fault:
        return path, "crash", f"while comparing: {fault!r}"
    return path, "agrees" if worst <= TOLERANCE else "apart", f"{worst:.1e}"


class _Refused(Exception):
    """The engine does not take the file, or is not there."""


def _compared(path: Path) -> float:
    if root_of(path.read_text("utf-8", errors="replace")) in MJCF:
        import mujoco

        from tests.oracle import mujoco_models

        model = _taken(lambda: mujoco.MjModel.from_xml_path(str(path)), ValueError)
        return max(mujoco_models.errors(path, model, states=2).values()) if model.nv else 0.0
    if find_spec("pydrake") is None:
        raise _Refused("Drake is not installed")
    from tests.oracle import sdf

    return max(_taken(lambda: sdf.errors(path, states=2), RuntimeError, ValueError).values())


def _taken(make: Callable[[], object], *faults: type[Exception]) -> object:
    try:
        return make()
    except faults as fault:
        raise _Refused(str(fault).strip().splitlines()[0][:200]) from None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    paths = list(robot_files(options.folders))
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    start_s = time.monotonic()
    with ProcessPoolExecutor(options.jobs) as pool:
        for done, (path, verdict, why) in enumerate(pool.map(outcome, paths), start=1):
            counts[verdict] += 1
            if verdict != "agrees":
                print(f"{verdict:<8} {path}: {why}", flush=True)
                reasons[f"{verdict}: {re.sub(chr(39) + '.*?' + chr(39) + r'|[0-9.:]+|.*/', '', why)[:70]}"] += 1
            if not done % 50:
                print(f"{done} of {len(paths)} files, {time.monotonic() - start_s:.0f} s", file=sys.stderr)
    for reason, count in reasons.most_common():
        print(f"{count:>5}  {reason}")
    print(f"{len(paths)} files: {', '.join(f'{count} {verdict}' for verdict, count in counts.most_common())}")
    return 1 if any(counts[verdict] for verdict in FAILURES) else 0


if __name__ == "__main__":
    sys.exit(main())
