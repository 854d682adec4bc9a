"""Processes around a robot: the simulated plant, its controller, the server; each also runs by itself.

    python -m dyn_service.nodes.plant --ros-args --params-file config/panda_plant.yaml

A node takes ROS 2's node arguments, speaks over topics, and tells a launcher how it does, if there is one.
"""

MODULES = {
    "server": "dyn_service.nodes.server",
    "plant": "dyn_service.nodes.plant",
    "controller": "dyn_service.nodes.controller",
    "gravity_compensation": "dyn_service.nodes.gravity_compensation",
    "joint_impedance": "dyn_service.nodes.joint_impedance",
}
"""The nodes of this package; each module declares its node as `NODE`. Also entry points in pyproject.toml."""
