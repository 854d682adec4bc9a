"""Rheonomic systems: robots with prescribed joints.

systems  equations, and simulation with functions of time
parts    simulation over a socket, in several requests
"""
