"""python -m qa.fuzz {decoder,files,overlays,urdf} [--minutes M] [--keep FOLDER] [--again FILE]

Runs one target under atheris (libFuzzer) for so long, from the committed inputs on, and says how many inputs it tried.
It ends with status 1, and the path of the input, at the first that breaks what `targets` promises. --keep: where the
inputs that reached something new stay, to go on from. --again: tries one input and shows what happens.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from qa.fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m qa.fuzz", description="Coverage-guided fuzzing.")
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--again", type=Path)
    asked = parser.parse_args()
    if asked.again is not None:
        TARGETS[asked.target]().try_one(asked.again.read_bytes())
        return 0
    with tempfile.TemporaryDirectory() as folder:
        corpus = asked.keep or Path(folder)
        corpus.mkdir(parents=True, exist_ok=True)
        target = TARGETS[asked.target]()
        for number, seed in enumerate(target.seeds()):
            (corpus / f"seed-{number}").write_bytes(seed)
        words = Path(folder) / "words"
        words.write_text("".join(f'"{word}"\n' for word in target.words))
        flags = [f"-max_total_time={round(60 * asked.minutes)}", f"-max_len={target.longest}", "-rss_limit_mb=4096"]
        flags += ["-timeout=20", f"-dict={words}", f"-artifact_prefix={Path.cwd()}/fuzz-", "-print_final_stats=1"]
        command = [sys.executable, "-m", "qa.fuzz.run", asked.target, *flags, str(corpus)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    tried = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    covered = re.findall(r" cov: (\d+) ft: (\d+) corp: (\d+)", done.stderr)
    if done.returncode:
        print(done.stderr[-4000:], file=sys.stderr)
    print(
        f"{asked.target}: {tried[1] if tried else '?'} inputs in {asked.minutes:g} minutes, edges, features and kept "
        f"inputs {covered[-1] if covered else '?'}, {'a fault' if done.returncode else 'no fault'}"
    )
    return 1 if done.returncode else 0


if __name__ == "__main__":
    raise SystemExit(main())
