"""Reads SDFormat, the format of Gazebo and Drake (http://sdformat.org/spec).

reader  models, links, inertias, includes
frames  poses relative to named frames
"""
