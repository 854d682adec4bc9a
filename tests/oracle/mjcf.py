"""Files of MJCF against MuJoCo: `python -m tests.oracle.mjcf FILE ..`; prints the errors, or why a file is not read."""

from __future__ import annotations

import sys
from pathlib import Path

import mujoco

from dyn_service.errors import DynError
from tests.oracle.mujoco_models import errors
from tests.oracle.test_pinocchio import TOLERANCE


def main(paths: list[str]) -> int:
    deviating = 0
    for path in paths:
        try:
            model = mujoco.MjModel.from_xml_path(path)
        except ValueError as fault:
            print(f"{path}: MuJoCo does not take it: {str(fault).splitlines()[0]}")
            continue
        try:
            worst_errors = errors(Path(path), model)
        except DynError as fault:
            print(fault)
            continue
        worst = max(worst_errors.values())
        deviating += not worst <= TOLERANCE
        print(f"{path}: {worst:.1e}  {', '.join(f'{name} {error:.1e}' for name, error in worst_errors.items())}")
    return 1 if deviating else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
