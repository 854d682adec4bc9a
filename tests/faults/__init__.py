"""Faults made on purpose, between real clients and real servers. The long runs: `python -m tests.faults NAME`."""
