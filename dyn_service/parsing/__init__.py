"""Robots in other files than URDF, and from one sort of file to another: MuJoCo's MJCF, SDFormat, xacro.

Every reader ends where that of URDF ends, in a `Description` that `parsing/structure.py` has checked; from there on
nothing knows what a robot was written in. Shared with URDF: XML (`parsing/xml_elements.py`), places, numbers,
structure, doubts.
"""
