"""Faults that are made on purpose, in real processes. Short versions are tests; long ones `python -m qa.faults`."""
