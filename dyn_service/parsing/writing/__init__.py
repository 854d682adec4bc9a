"""Writes a `Description` as URDF, MJCF or SDFormat, with a note on each thing that the format cannot express.

mjcf  sdf  urdf    one writer per format
text               XML output
"""
