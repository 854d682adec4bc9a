"""Prints the first fenced `sh` block under a second-level heading of a Markdown file.

The gate runs what the README says, so the README cannot drift from what works.
"""

import re
import sys
from pathlib import Path

path, heading = sys.argv[1:]
section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", Path(path).read_text(), re.MULTILINE | re.DOTALL)
block = section and re.match(r"\s*```sh\n(.*?)```", section.group(1), re.DOTALL)
if not block:
    sys.exit(f"{path}: the heading '## {heading}' must open with a fenced sh block")
print(block.group(1), end="")
