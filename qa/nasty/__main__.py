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

_ALL = (*IN_FRAMES, *ON_LINKS)
_MAIN = (("inverse_dynamics", False), ("forward_dynamics", False), ("mass_matrix", False))
_OTHERS = tuple(asked for asked in _ALL if asked not in _MAIN)


def _one(task: tuple[int, int, bool]) -> tuple[int, list[Finding]]:
    seed, most, all_queries = task
    asked = _ALL if all_queries else (*_MAIN, _OTHERS[seed % len(_OTHERS)])
    return seed, of_graphs(nasty_urdf(seed, most=most), seed, asked)


def table(found: dict[int, list[Finding]]) -> Iterator[str]:
    """Markdown: per query and method the worst errors, the worst ratio, and how many forms were refused."""
    yield "| query | method | worst error | as given | worst ratio (tree) | forms refused |"
    yield "|---|---|---|---|---|---|"
    rows: dict[tuple[str, str], list[tuple[int, Finding]]] = {}
    for seed, findings in found.items():
        for finding in findings:
            method = ", ".join(part for part in (finding.method, "wrenches" if finding.acted else "") if part)
            rows.setdefault((finding.query, method), []).append((seed, finding))
    for (query, method), entries in rows.items():
        seed, worst = max(entries, key=lambda entry: entry[1].ratio)
        refused = sum(finding.refused is not None for _, finding in entries)
        yield (
            f"| `{query}` | {method} | {max(f.error for _, f in entries):.1e} | {max(f.given for _, f in entries):.1e} "
            f"| {worst.ratio:.1f} ({seed}) | {refused} of {len(entries)} |"
        )


def main() -> None:
    """Runs the trees that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trees", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--most", type=int, default=120, help="most movable joints")
    parser.add_argument("--all", action="store_true", help="every query on every tree")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    begun = time.monotonic()
    found: dict[int, list[Finding]] = {}
    tasks = [(seed, given.most, given.all) for seed in range(given.first, given.first + given.trees)]
    with ProcessPoolExecutor(given.jobs) as pool:
        try:
            for seed, findings in pool.map(_one, tasks, chunksize=4):
                found[seed] = findings
                if sys.stderr.isatty() or not len(found) % 100:
                    print(f"{len(found)} of {len(tasks)} trees, {time.monotonic() - begun:.0f} s", file=sys.stderr)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            print("interrupted: the table is of the trees so far", file=sys.stderr)
    worse = sum(finding.ratio > 10.0 for findings in found.values() for finding in findings)
    print(f"{len(found)} trees, {sum(map(len, found.values()))} kernels, {worse} more than ten times as given")
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
