"""Certificates of compiled kernels on shipped and real robots: `python -m tests.oracle.certificates --out FILE`.

Every row of the table, in every method and variant (plain, with external wrenches, with an overlay, with both), of
every robot in `urdf/` and every robot of example-robot-data, fixed and floating. A kernel on link frames has to be
compiled for this: interpreted, it and the function it is held against are the same graph.

The whole is 18,788 kernels, which take hours to days. So the parts rotate: in each round every robot and root makes one
part, each another one. The command appends one line of JSON for each kernel to FILE and skips those that FILE already
has for the same code, so it can be stopped and started again. It prints the tables of docs/oracle.md.

A warning kernel is judged at once: its answers and the reference are compared with the same graph in fifty digits.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from dyn_service.api.queries import QUERIES
from dyn_service.api.spec import Variant
from dyn_service.engine.refusals import refusal
from dyn_service.engine.robot import Robot
from dyn_service.errors import ResourceExhaustedError
from dyn_service.kernels import certify
from dyn_service.kernels.graph import Graph
from dyn_service.kernels.library import KernelLibrary
from dyn_service.kernels.store import COMPILER, provenance
from dyn_service.model.tree import Tree
from tests.conftest import ROBOTS
from tests.oracle.example_robots import SUPPORTED, path_of
from tests.oracle.fifty_digits import exactly

Record = dict[str, Any]
SHIPPED, EXAMPLES = "shipped", "example-robot-data"
STRIDE = 37
"""Parts between those that neighbouring robots make in one round; coprime to their number."""


class Part(NamedTuple):
    """One kernel that every robot can have."""

    row: str
    method: str
    wrenches: bool
    overlay: bool


class Case(NamedTuple):
    """One kernel of one robot."""

    group: str
    robot: str
    root: str
    part: Part


KERNELS = tuple(
    Part(row.name, method, wrenches, overlay)
    for overlay in (False, True)
    for wrenches in (False, True)
    for row in QUERIES.values()
    if not row.constant and (row.wrenches or not wrenches) and (row.overlay or not overlay)
    for method in row.kernels
)


def cases(group: str) -> Iterator[Case]:
    """All kernels of a group's robots, round by round."""
    names = [path.stem for path in ROBOTS] if group == SHIPPED else SUPPORTED
    robots = [(name, root) for root in ("fixed", "floating") for name in names]
    for number in range(len(KERNELS)):
        for k, (name, root) in enumerate(robots):
            yield Case(group, name, root, KERNELS[(number + STRIDE * k) % len(KERNELS)])


@cache
def _robot(group: str, name: str, root: Any) -> Robot:
    path = next(path for path in ROBOTS if path.stem == name) if group == SHIPPED else path_of(name)
    return Robot.from_urdf(path, root=root)


@cache
def _code_of(function: str) -> str:
    return provenance(f"dynamics.{function.partition('.')[0]}", *COMPILER)[:16]


def _version(case: Case) -> str:
    return _code_of(QUERIES[case.part.row].kernels[case.part.method])


def record_of(case: Case) -> Record:
    """Makes one kernel, and returns what its certificate says; `outcome` is made, warning, refused (too large)
    or none (the robot refuses the question: it has no answer).
    """
    robot, (name, method, *variant) = _robot(*case[:3]), case.part
    row = QUERIES[name]
    signature = robot.signature(row, method, Variant(*variant))
    record: Record = {**case._asdict(), "part": list(case.part), "version": _version(case)}
    if signature.empty or refusal(robot.evaluator.model, row, method, numbers=not case.part.overlay):
        return {**record, "outcome": "none"}
    start_s = time.process_time()
    try:
        kernel = KernelLibrary(robot.tree)._make(signature)
    except ResourceExhaustedError as error:
        return {**record, "outcome": "refused", "why": str(error)}
    certificate = kernel.certificate
    record |= {"outcome": "made" if certificate.holds else "warning", **certificate.to_dict()}
    record["cpu_s"] = round(time.process_time() - start_s, 2)
    if not certificate.holds:
        record |= {"massless": robot.massless_joint, "judged": judged(robot, signature)}
    return record


def judged(robot: Robot, signature: Any) -> list[Record]:
    """For each form and tree that doubts a kernel: the difference as a share of the bound, and the same of the
    kernel and of the reference from the graph in fifty digits.
    """
    judgements: list[Record] = []
    difference = certify.difference

    def recording(kernel: Callable[..., Any], graph: Graph, tree: Tree, *rounded: Any) -> certify.Difference:
        comparison = difference(kernel, graph, tree, *rounded)
        if comparison.error > 1.0:
            judgements.append({"share": comparison.error, **_against_fifty_digits(kernel, graph, tree)})
        return comparison

    # The comparisons happen within the making of a kernel, whose own answer is one certificate.
    with mock.patch.object(certify, "difference", recording):
        KernelLibrary(robot.tree)._make(signature)
    return judgements


def _against_fifty_digits(kernel: Callable[..., Any], graph: Graph, tree: Tree) -> Record:
    with np.errstate(all="ignore"):
        inputs, M = certify.drawn_states(graph.signature, tree)
        answers = kernel(*inputs)
        answers = answers if isinstance(answers, tuple) else (answers,)
        runs = certify.rounded_at_random(graph.program, inputs)
        worst: Record = {"kernel": 0.0, "reference": 0.0}
        for operand, answer, run, true in zip(
            graph.signature.outputs, answers, runs, exactly(graph.program, inputs), strict=True
        ):
            references = np.concatenate([true[..., None], run], axis=-1)
            of_kernel = certify.error_of(operand, answer, references, M)
            bare = np.concatenate([true[..., None], run[..., 1:]], axis=-1)
            of_reference = certify.error_of(operand, run[..., 0], bare, M)
            worst["reference"] = max(worst["reference"], of_reference)
            if of_kernel >= worst["kernel"]:
                differences = np.abs(answer.reshape(true.shape) - true)
                state, entry = np.unravel_index(np.nanargmax(differences), differences.shape)
                worst |= {"kernel": of_kernel, "output": operand.name, "state": int(state), "entry": int(entry)}
                worst |= {"apart": float(differences[state, entry]), "true": float(true[state, entry])}
        return worst


def survey(out: Path, groups: list[str], minutes: float, jobs: int) -> dict[Case, Record]:
    """Runs what is missing in the file until the time is over, and returns what it then holds of these groups."""
    records = read(out)
    missing = (case for group in groups for case in cases(group) if case not in records)
    end = time.monotonic() + 60.0 * minutes
    with ProcessPoolExecutor(jobs) as pool, out.open("a") as file:
        running: set[Future[Record]] = set()

        def add() -> None:
            if time.monotonic() < end:
                running.update(pool.submit(record_of, case) for case in islice(missing, 1))

        for _ in range(jobs):
            add()
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                file.write(json.dumps(future.result()) + "\n")
                # The survey is long: a record that was made is kept when it is interrupted.
                file.flush()
                add()
    return read(out)


def read(out: Path) -> dict[Case, Record]:
    """The records of a file that are of the code as it is now."""
    records = {}
    for line in out.read_text().splitlines() if out.exists() else ():
        record = json.loads(line)
        case = Case(record["group"], record["robot"], record["root"], Part(*record["part"]))
        if record["part"][0] in QUERIES and record["version"] == _version(case):
            records[case] = record
    return records


def tables(records: dict[Case, Record]) -> Iterator[str]:
    """Markdown: how much of the survey is done, the largest share of the bound for each row, and every doubt."""
    yield "| robots | of | robots and roots | kernels | made | warning | too large | no answer | as given |"
    yield "|---" * 9 + "|"
    for group in (SHIPPED, EXAMPLES):
        group_records = [(case, record) for case, record in records.items() if case.group == group]
        certified = [record for _, record in group_records if record["outcome"] in ("made", "warning")]
        whole = list(cases(group))
        count = {
            outcome: sum(record["outcome"] == outcome for _, record in group_records)
            for outcome in ("warning", "refused", "none")
        }
        roots = len({case[:3] for case, record in group_records if record["outcome"] != "none"})
        yield (
            f"| {group} | {len({case.robot for case, _ in group_records})} of "
            f"{len({case.robot for case in whole})} | {roots} "
            f"| {len(group_records) - count['none']} of {len(whole) - count['none']} at most | {len(certified)} | "
            f"{count['warning']} "
            f"| {count['refused']} | {count['none']} | {sum(record['refused'] is not None for record in certified)} |"
        )
    yield ""
    yield "| query | kernels | warning | largest share that holds | of |"
    yield "|---|---|---|---|---|"
    rows = defaultdict[str, list[tuple[Case, Record]]](list)
    for case, record in records.items():
        if record["outcome"] in ("made", "warning"):
            rows[case.part.row].append((case, record))
    for row in (row for row in QUERIES if row in rows):
        certified_cases = [case_and_record for case_and_record in rows[row] if case_and_record[1]["outcome"] == "made"]
        largest = " | "
        if certified_cases:
            case, record = max(certified_cases, key=lambda case_and_record: float(case_and_record[1]["error"]))
            largest = f"{record['error']:.2g} | {_name(case)}"
        yield f"| `{row}` | {len(rows[row])} | {len(rows[row]) - len(certified_cases)} | {largest} |"
    doubts = [(case, record) for case, record in records.items() if record["outcome"] == "warning"]
    yield f"\n{len(doubts)} warnings."
    if doubts:
        yield "\n| kernel | share | kernel's error | reference's error | reason |"
        yield "|---|---|---|---|---|"
    for case, record in doubts:
        worst: Record = max(record["judged"], key=lambda judgement: float(judgement["share"]), default={})
        figures = " | ".join(f"{worst[key]:.2g}" if key in worst else "" for key in ("share", "kernel", "reference"))
        yield f"| `{case.part.row}`, {_name(case)} | {figures} | {reason(case, record, worst)} |"


def _name(case: Case) -> str:
    _, method, wrenches, overlay = case.part
    labels = (method, "wrenches" if wrenches else "", "overlay" if overlay else "", case.root)
    return ", ".join(part for part in (case.robot, *labels) if part)


def reason(case: Case, record: Record, worst: Record) -> str:
    """Why a kernel is warning: it has no answers, or which side is further from fifty digits than the bound allows."""
    if record["massless"] and case.part.method in QUERIES[case.part.row].inverts_mass_matrix:
        joint = record["massless"]
        return f"M is singular (joint '{joint}' moves no inertia): refused but for overlays that give it some"
    if not record["states"]:
        return "no state has a finite answer"
    place = f"`{worst['output']}`[{worst['entry']}] is {worst['true']:.2g}, off by {worst['apart']:.1e}"
    if worst["kernel"] > 1.0:
        return f"the kernel is further off than the bound allows: {place}"
    return f"the kernel is right, and the reference is further off than its spread says: {place}"


def main() -> int:
    """Runs the survey and prints its tables; the status is 1 if a kernel is warning."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("certificates.jsonl"), help="the file of records")
    parser.add_argument("--minutes", type=float, default=30.0, help="no kernel is begun later; 0 only prints tables")
    parser.add_argument("--all", action="store_true", help="every kernel, however long it takes")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--robots", choices=(SHIPPED, EXAMPLES), action="append", help="both groups by default")
    options = parser.parse_args()
    os.environ["DYN_SERVICE_CACHE"] = ""  # each kernel is made, not loaded
    groups = options.robots or [SHIPPED, EXAMPLES]
    records = survey(options.out, groups, float("inf") if options.all else options.minutes, options.jobs)
    print("\n".join(tables(records)))
    return 1 if any(record["outcome"] == "warning" for record in records.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
