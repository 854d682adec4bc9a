"""A server under load, compared with a bare echo: waiting times, and whether every answer is right.

The long version is a command, `python -m qa.load`; its last result is in `docs/reliability.md`. A short one is
in `test_load.py`, which counts and times nothing.
"""
