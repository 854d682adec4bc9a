"""python -m tests.golden --write"""

from __future__ import annotations

import sys

from tests.golden.collecting import FILE, written
from tests.golden.everything import PARTS, provoked


def main() -> None:
    if sys.argv[1:] != ["--write"]:
        sys.exit(f"expected --write, found {sys.argv[1:]}: python -m tests.golden --write rewrites {FILE.name}")
    texts = {name: text for part in PARTS for name, text in provoked(part).items()}
    FILE.write_text(written(texts), "utf-8")
    print(f"{len(texts)} sentences")


if __name__ == "__main__":
    main()
