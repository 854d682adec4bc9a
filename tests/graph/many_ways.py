"""A robot with a joint of every kind that has several ways to move, to be read with a floating root."""

from __future__ import annotations

LINK = """
  <link name="{name}"><inertial><origin xyz="{com}"/><mass value="{mass}"/>
    <inertia ixx="{inertia}" iyy="{inertia}" izz="{inertia}" ixy="0" ixz="0" iyz="0"/></inertial></link>"""

JOINT = """
  <joint name="{name}" type="{type}"><parent link="{parent}"/><child link="{child}"/>
    <origin xyz="{xyz}"/>{axis}{limit}</joint>"""

_LINKS = (
    ("hull", "0 0 0.05", 5.0, 0.08),
    ("sled", "0.02 0 0.03", 2.0, 0.02),
    ("mast", "0 0 0.2", 1.0, 0.01),
    ("boom", "0.1 0 0", 0.5, 0.004),
    ("hook", "0 0 -0.1", 0.4, 0.003),
)
_JOINTS = (
    ("rails", "planar", "hull", "sled", "0 0 0.1", "0 0 1", ""),
    ("ball", "spherical", "sled", "mast", "0.05 0 0.1", "", ""),
    (
        "swing",
        "revolute",
        "mast",
        "boom",
        "0 0 0.4",
        "0 1 0",
        '<limit lower="-1.5" upper="2" velocity="4" effort="50"/>',
    ),
    (
        "hoist",
        "prismatic",
        "boom",
        "hook",
        "0.3 0 0",
        "0 0 1",
        '<limit lower="-0.4" upper="0" velocity="1" effort="80"/>',
    ),
)

MANY_WAYS = (
    '<robot name="many_ways">'
    + "".join(LINK.format(name=name, com=com, mass=mass, inertia=inertia) for name, com, mass, inertia in _LINKS)
    + "".join(
        JOINT.format(
            name=name,
            type=kind,
            parent=parent,
            child=child,
            xyz=xyz,
            axis=f'<axis xyz="{axis}"/>' if axis else "",
            limit=limit,
        )
        for name, kind, parent, child, xyz, axis, limit in _JOINTS
    )
    + "\n</robot>\n"
)
"""A hull that floats, on it a sled that moves in a plane, a mast on a ball, a boom that swings, a hook on a hoist."""
