"""All cases by the module that provokes them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.golden import arguments, commands, descriptions, documents, requests
from tests.golden.collecting import made_of

PARTS = {
    "descriptions": descriptions.cases,
    "arguments": arguments.cases,
    "documents": documents.cases,
    "requests": requests.cases,
    "commands": commands.cases,
}


LENGTH = 80
"""Characters of the folder's path, whatever TMPDIR is: some sentences cut long paths, and sockets need short ones."""


def provoked(part: str) -> dict[str, str]:
    """Returns the text of each case of a part, provoked now."""
    with tempfile.TemporaryDirectory() as temporary:
        padding = "_" * (LENGTH - len(temporary) - len("//folder"))
        folder = Path(temporary) / padding / "folder"
        folder.mkdir(parents=True)
        made = made_of(PARTS[part](folder), folder)
    return {f"{part}: {name}": text for name, text in made.items()}
