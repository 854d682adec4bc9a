"""The long runs: `python -m qa.faults NAME [options]`, where NAME is a module of this folder with a `main`."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import qa.faults

names = [module.name for module in pkgutil.iter_modules(qa.faults.__path__) if not module.name.startswith("_")]
if len(sys.argv) < 2 or sys.argv[1] not in names:
    sys.exit(f"usage: python -m qa.faults {{{','.join(names)}}} [options]")
name = sys.argv.pop(1)
sys.exit(importlib.import_module(f"qa.faults.{name}").main())
