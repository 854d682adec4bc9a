"""The command `dyn`, and `python -m dyn_service`."""

from __future__ import annotations

from typing import NoReturn

from dyn_service.support.interrupts import end_at_once


def main() -> NoReturn:
    """Runs the command; Ctrl-C ends it without a traceback from its first import on."""
    end_at_once()
    from dyn_service.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
