"""Puts what stands at the top of a checkout, and is of use to whoever installs this, into the wheel: `share/`.

All else about the package stands in pyproject.toml. `dyn_service/support/shipped.py` finds these files in both places.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDERS = ("urdf", "config", "launch")


class BuildWithShare(build_py):
    """Copies the folders into the package that is built; an editable install uses those of the checkout."""

    def run(self) -> None:
        """Builds."""
        super().run()
        if self.editable_mode:
            return
        for source, target in self._shared():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """All that is built."""
        more = [] if self.editable_mode else [str(target) for _, target in self._shared()]
        return [*super().get_outputs(include_bytecode), *more]

    def _shared(self) -> list[tuple[Path, Path]]:
        share = Path(self.build_lib) / "dyn_service" / "share"
        files = (path for folder in FOLDERS for path in sorted(Path(folder).rglob("*")))
        return [(path, share / path) for path in files if path.is_file() and "__pycache__" not in path.parts]


setup(cmdclass={"build_py": BuildWithShare})
