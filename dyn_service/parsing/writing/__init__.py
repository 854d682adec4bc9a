"""Writes a `Description` as URDF, MJCF or SDFormat, with a note on each thing that the format cannot express.

mjcf  writes MJCF
sdf   writes SDFormat
urdf  writes URDF
text  XML output
"""
