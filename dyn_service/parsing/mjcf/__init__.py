"""Reads MuJoCo's MJCF (https://mujoco.readthedocs.io/en/stable/XMLreference.html).

reader     the tree of `<worldbody>`, includes, frames, replicates
joints     joints, actuators, equalities, options
motors     motors and effort limits of actuators
loops      equalities that close loops
inertials  inertias, also of shapes
values     attributes with the defaults of their classes
"""
