"""A server under load, compared with a bare echo: who waits for whom, and that every answer is the right one.

The long version is a command, `python -m qa.load`; its last result stands in `docs/reliability.md`. A short one is
in `test_load.py`, which counts and times nothing.
"""
