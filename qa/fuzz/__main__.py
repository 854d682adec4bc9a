"""python -m qa.fuzz {curve,decoder,files,overlays,urdf,zmtp} [--minutes M] [--keep FOLDER] [--again FILE]

Runs one target under atheris (libFuzzer) for M minutes (default: 10), starting from the committed inputs, and reports
the number of inputs. Exit status 1, with the path of the input, at the first input that breaks a promise of `targets`
or `connections`. --keep: folder of inputs that reached new code; a later run continues from them. --again: tries the
input of this file.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from qa.fuzz.targets import TARGETS

INTERRUPTED = 72
"""Exit status of libFuzzer after SIGINT or SIGTERM."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m qa.fuzz", description="Coverage-guided fuzzing.")
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--again", type=Path)
    options = parser.parse_args()
    if options.again is not None:
        TARGETS[options.target]().try_one(options.again.read_bytes())
        return 0
    with tempfile.TemporaryDirectory() as folder:
        corpus = options.keep or Path(folder)
        corpus.mkdir(parents=True, exist_ok=True)
        target = TARGETS[options.target]()
        for number, seed in enumerate(target.seeds()):
            (corpus / f"seed-{number}").write_bytes(seed)
        words = Path(folder) / "words"
        words.write_text("".join(f'"{word}"\n' for word in target.words))
        flags = [f"-max_total_time={round(60 * options.minutes)}", f"-max_len={target.longest}", "-rss_limit_mb=4096"]
        # wall time of a machine that may be busy: `hangs.check_time` measures the work
        flags += ["-timeout=300", f"-dict={words}", f"-artifact_prefix={Path.cwd()}/fuzz-", "-print_final_stats=1"]
        command = [sys.executable, "-m", "qa.fuzz.run", options.target, *flags, str(corpus)]
        started_s = time.monotonic()
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        minutes = (time.monotonic() - started_s) / 60.0
    unit_count = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    covered = re.findall(r" cov: (\d+) ft: (\d+) corp: (\d+)", done.stderr)
    outcome = {0: "no fault", INTERRUPTED: "no fault before an interrupt"}.get(done.returncode, "a fault")
    if outcome == "a fault":
        print(done.stderr[-4000:], file=sys.stderr)
    print(
        f"{options.target}: {unit_count[1] if unit_count else '?'} inputs in {minutes:.1f} of {options.minutes:g} "
        f"minutes, edges, features and kept inputs {covered[-1] if covered else '?'}, {outcome}"
    )
    return 1 if done.returncode else 0


if __name__ == "__main__":
    raise SystemExit(main())
