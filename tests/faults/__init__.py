"""Faults put into real processes: nodes and servers that are killed, suspended, silent or wrong."""
