"""python -m qa.interop [LIBRARY ...]: each library, both roles, NULL and CURVE; the table of docs/reliability.md.

Libraries: libzmq, libzmq-4.2 (pip), npm (node), jeromq (JDK, pip), zmq.rs (cargo); all by default. Absent ones are
reported with the reason. DYN_JEROMQ names another JeroMQ than the default. Ends with 1 if a case fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from qa.interop.cases import CASES, Scale, Security, applies
from qa.interop.libraries import LIBRARIES, AbsentError, Library


def run(library: Library, mechanism: str) -> list[tuple[str, str, str, bool]]:
    """Returns a row per case: name, mechanism, result, whether it passed."""
    rows = []
    for name, case in CASES.items():
        if not applies(name, library, mechanism):
            continue
        start_s = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                result, success = case(library, Security.new(mechanism, Path(folder) / "keys"), Scale()), True
            except Exception as error:  # the other cases run too
                result, success = f"FAILED: {type(error).__name__}: {error}", False
        rows.append((name, mechanism, result, success))
        seconds = time.monotonic() - start_s
        print(f"{library.name}, {mechanism}, {name}: {result}, {seconds:.0f} s", file=sys.stderr, flush=True)
    return rows


def main() -> int:
    """Runs the libraries that the arguments name; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="*", help=", ".join(LIBRARIES))
    names = parser.parse_args().libraries or [*LIBRARIES]
    if unknown := [name for name in names if name not in LIBRARIES]:
        parser.error(f"unknown libraries {', '.join(unknown)}; there are {', '.join(LIBRARIES)}")
    status = 0
    print("| library | case | NULL | CURVE |\n|---|---|---|---|")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            try:
                library = LIBRARIES[name](Path(folder))
            except AbsentError as absent:
                print(f"| {name} | absent: {absent} | | |", flush=True)
                continue
            rows = [row for mechanism in library.mechanisms for row in run(library, mechanism)]
            for case in CASES:
                results = {mechanism: result for row_case, mechanism, result, _ in rows if row_case == case}
                if results:
                    cells = " | ".join(results.get(mechanism, "") for mechanism in ("NULL", "CURVE"))
                    print(f"| {library.name} | {case} | {cells} |", flush=True)
            status |= not all(success for *_, success in rows)
    return status


if __name__ == "__main__":
    sys.exit(main())
