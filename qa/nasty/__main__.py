"""The long run: `python -m qa.nasty --trees 5000`, the worst error of every query and what certificates refused.

Every tree goes through inverse dynamics, forward dynamics and the mass matrix, and one other query in turn; with
`--all` through every query, which takes eight times as long. Two processes by default; progress on the terminal, the
table of docs/nasty.md on standard output.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from qa.nasty.robots import nasty_urdf
from qa.nasty.survey import IN_FRAMES, ON_LINKS, Finding, of_graphs

_MEASURED_QUERIES = (*IN_FRAMES, *ON_LINKS)
_MAIN = (("inverse_dynamics", False), ("forward_dynamics", False), ("mass_matrix", False))
_OTHERS = tuple(query for query in _MEASURED_QUERIES if query not in _MAIN)


def _findings_of_tree(task: tuple[int, int, bool]) -> tuple[int, list[Finding]]:
    seed, max_joints, all_queries = task
    queries = _MEASURED_QUERIES if all_queries else (*_MAIN, _OTHERS[seed % len(_OTHERS)])
    return seed, of_graphs(nasty_urdf(seed, max_joints=max_joints), seed, queries)


def table(findings_of_seed: dict[int, list[Finding]]) -> Iterator[str]:
    """Markdown: per query and method the worst errors, the worst ratio, and how many forms were refused."""
    yield "| query | method | worst error | as given | worst ratio (tree) | forms refused |"
    yield "|---|---|---|---|---|---|"
    rows: dict[tuple[str, str], list[tuple[int, Finding]]] = {}
    for seed, findings in findings_of_seed.items():
        for finding in findings:
            method = ", ".join(part for part in (finding.method, "wrenches" if finding.acted else "") if part)
            rows.setdefault((finding.query, method), []).append((seed, finding))
    for (query, method), entries in rows.items():
        seed, worst = max(entries, key=lambda entry: entry[1].ratio)
        refused_count = sum(finding.refused_figure is not None for _, finding in entries)
        yield (
            f"| `{query}` | {method} | {max(f.error for _, f in entries):.1e} | "
            f"{max(f.error_as_given for _, f in entries):.1e} "
            f"| {worst.ratio:.1f} ({seed}) | {refused_count} of {len(entries)} |"
        )


def main() -> None:
    """Runs the trees that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trees", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--most", type=int, default=120, help="most movable joints")
    parser.add_argument("--all", action="store_true", help="every query on every tree")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    start_time = time.monotonic()
    findings_of_seed: dict[int, list[Finding]] = {}
    tasks = [(seed, options.most, options.all) for seed in range(options.first, options.first + options.trees)]
    with ProcessPoolExecutor(options.jobs) as pool:
        try:
            for seed, findings in pool.map(_findings_of_tree, tasks, chunksize=4):
                findings_of_seed[seed] = findings
                if sys.stderr.isatty() or not len(findings_of_seed) % 100:
                    print(
                        f"{len(findings_of_seed)} of {len(tasks)} trees, {time.monotonic() - start_time:.0f} s",
                        file=sys.stderr,
                    )
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            print("interrupted: the table is of the trees so far", file=sys.stderr)
    # Ten times: what is left of the randomness of sixteen roundings, above which a form was rewritten wrongly.
    worse = sum(finding.ratio > 10.0 for findings in findings_of_seed.values() for finding in findings)
    print(
        f"{len(findings_of_seed)} trees, {sum(map(len, findings_of_seed.values()))} kernels, {worse} more than "
        "ten times as given"
    )
    print("\n".join(table(findings_of_seed)))


if __name__ == "__main__":
    main()
