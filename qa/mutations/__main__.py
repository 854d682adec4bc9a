"""The command: see `qa.mutations`."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from qa.mutations import report
from qa.mutations.explained import explanations
from qa.mutations.operators import Mutant, mutants
from qa.mutations.plan import PACKAGE, PACKAGES_OF_PART, ROOT, Plan, plans
from qa.mutations.run import SURVIVED, BaselineError, Outcome, Runner

PAGE = ROOT / "docs" / "mutations.md"


def main(arguments: list[str] | None = None) -> int:
    """0 where all are caught or explained, 1 where some survive, 2 where it could not run, 130 where it was stopped."""
    options = _options(arguments)
    try:
        chosen_plans = plans(options.part)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.tests:
        chosen_plans = [replace(plan, stages=tuple(options.tests)) for plan in chosen_plans]
    mutants_of_plan = {plan: mutants(plan.path.read_text(), plan.module) for plan in chosen_plans}
    samples = {plan: _sample(plan_mutants, options) for plan, plan_mutants in mutants_of_plan.items()}
    work = [(plan, mutant) for plan, sample in samples.items() for mutant in sample]
    if not work:
        print("error: there is no such mutant", file=sys.stderr)
        return 2
    if options.list:
        for _, mutant in work:
            print(mutant)
        return 0
    outcomes: dict[Plan, list[Outcome]] = defaultdict(list)
    by_module = {plan.module: plan for plan in chosen_plans}
    try:
        with Runner(options.jobs) as runner:
            begun_s = time.monotonic()
            if not options.trust:
                runner.measure(chosen_plans, _show)
            for number, outcome in enumerate(runner.outcomes(work), start=1):
                outcomes[by_module[outcome.mutant.module]].append(outcome)
                if options.verbose or outcome.kind == SURVIVED:
                    _show("")
                    print(
                        f"{outcome.kind} {outcome.used_s:.1f} s: {outcome.mutant}  [{outcome.failing_test}]", flush=True
                    )
                _progress(number, len(work), time.monotonic() - begun_s, outcomes)
    except BaselineError as error:
        _show("")
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        _show("")
        print("stopped: nothing is written", file=sys.stderr)
        return 130
    _show("")
    survivor_count = _tell(mutants_of_plan, outcomes, options.page)
    return 1 if survivor_count else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m qa.mutations", description="One small fault at a time: which are caught?"
    )
    parser.add_argument(
        "--part", nargs="*", default=[], help=f"of {', '.join(PACKAGES_OF_PART)}, or a module such as model/tree.py"
    )
    parser.add_argument("--sample", type=int, help="this many mutants of each module, drawn at random; default all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample; default 0")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="trials at a time; default one per core")
    parser.add_argument("--function", help="only mutants in functions of this name")
    parser.add_argument("--containing", default="", help="only mutants in whose line, as printed, this stands")
    parser.add_argument("--tests", nargs="+", help="these test files instead of those of the plan")
    parser.add_argument(
        "--page", type=Path, help="what is written; default docs/mutations.md where nothing is filtered"
    )
    parser.add_argument("--trust", action="store_true", help="do not run the tests unmutated first: they are green")
    parser.add_argument("--list", action="store_true", help="print the mutants and try none")
    parser.add_argument("--verbose", action="store_true", help="print every outcome, not only survivors")
    options = parser.parse_args(arguments)
    if options.page is None and not (options.function or options.containing or options.tests):
        options.page = PAGE
    return options


def _sample(candidates: list[Mutant], options: argparse.Namespace) -> list[Mutant]:
    if options.function is not None:
        candidates = [
            mutant for mutant in candidates if options.function in (mutant.function, *mutant.function.split("."))
        ]
    candidates = [mutant for mutant in candidates if options.containing in str(mutant)]
    if options.sample is None or options.sample >= len(candidates):
        return candidates
    # Seeded by the module too, so that a module's sample does not depend on which others run.
    module = candidates[0].module
    indices = random.Random(f"{options.seed} {module}").sample(range(len(candidates)), options.sample)
    return [candidates[k] for k in sorted(indices)]


def _show(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _progress(number: int, total: int, took_s: float, outcomes: dict[Plan, list[Outcome]]) -> None:
    survivor_count = sum(outcome.kind == SURVIVED for plan_outcomes in outcomes.values() for outcome in plan_outcomes)
    left_s = took_s / number * (total - number)
    text = f"{number} of {total}, {survivor_count} survived, {took_s / number:.2f} s each, {left_s / 60:.0f} min left"
    _show(text)
    # A log gets a line for every twentieth of the work.
    if not sys.stderr.isatty() and 20 * number // total > 20 * (number - 1) // total:
        print(text, file=sys.stderr, flush=True)


def _tell(mutants_of_plan: dict[Plan, list[Mutant]], outcomes: dict[Plan, list[Outcome]], page: Path | None) -> int:
    """Writes the page, if one is asked for, and its rows; returns how many survive unexplained."""
    entries = explanations()
    rows = {} if page is None else report.read(page)
    survivors = 0
    for plan, plan_outcomes in outcomes.items():
        explained = {id(o.mutant) for o in plan_outcomes if any(entry.matches(o.mutant) for entry in entries)}
        left = [o.mutant for o in plan_outcomes if o.kind == SURVIVED and id(o.mutant) not in explained]
        survivors += len(left)
        line = report.row(
            f"`{plan.module}`",
            len(plan_outcomes),
            len(mutants_of_plan[plan]),
            report.outcome_counts(plan_outcomes, explained),
        )
        rows[plan.module] = (line, report.section(plan.module, sorted(left, key=lambda mutant: mutant.line)))
        print(line)
        for entry in entries:
            if entry.module == plan.module and not any(entry.matches(mutant) for mutant in mutants_of_plan[plan]):
                print(f"explained, but there is no such mutant any more: {entry}", file=sys.stderr)
    if page is not None:
        # A row of a file that is gone, after a move, would say that the module was tried.
        rows = {module: row for module, row in rows.items() if (PACKAGE / module).is_file()}
        report.write(page, rows, {plan.module for plan in plans([])} - rows.keys())
    return survivors


if __name__ == "__main__":
    sys.exit(main())
