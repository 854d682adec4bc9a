"""Files of robots with loops: read, and compared with the equations of the loops in doubles, or refused with a reason.

The comparison uses poses and the dynamics of the tree alone: J_c from central differences of the poses of both frames,
J_c-dot v from second differences along v, and the saddle-point equations by least squares. Steps of 1e-4 leave 1e-7.

Folders of the kind `robot.urdf` and `robot.yaml` with `closed_loop` (pairs of links that coincide), `type` (3d or 6d)
and `name_mot` (motors), as of example-parallel-robots, are read with a joint file made of these.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml

from dyn_service import Robot
from dyn_service.errors import DynError
from dyn_service.model.description import Description, LoopJoint
from dyn_service.model.rotations import rotation_vector
from qa.mechanisms.peers import closed_position, own_scale_error
from tests.loops import Array
from tests.terms.interpreting import interpreted_robot

STEP, AGREES = 1e-4, 1e-5
PATTERN = re.compile(rb"<connect\b|<weld\b|polycoef|<constraint\b|drake:\w*constraint|<loop_joint|gearbox|<gazebo")
"""What a URDF or MJCF file with loops contains."""


def robot_of(path: Path) -> Robot:
    """Returns the robot of a file, with the loops of a `robot.yaml` beside it."""
    settings_file = path.with_suffix(".yaml")
    settings = yaml.safe_load(settings_file.read_text()) if settings_file.exists() else None
    if not isinstance(settings, dict) or "closed_loop" not in settings:
        return Robot.from_file(path)
    kinds = {"3d": "spherical", "6d": "fixed"}
    pairs = zip(settings["closed_loop"], settings["type"], strict=True)
    loops = {
        f"closing_{k}": {"type": kinds[kind.lower()], "parent": ends[0], "child": ends[1]}
        for k, (ends, kind) in enumerate(pairs)
    }
    text = path.read_text()
    joints = re.findall(r'<joint\s+name="([^"]+)"\s+type="(?!fixed)', text)
    motors = [name for name in joints if any(part in name for part in settings.get("name_mot", ()))]
    content = {"robot": Robot.from_file(path).description.name, "loops": loops}
    if motors:
        content["joints"] = {name: {"driven": True} for name in motors}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "joints.yaml"
        file.write_text(yaml.safe_dump(content))
        return Robot.from_urdf(path, joints=file)


def blocked_directions(joint: LoopJoint) -> Array:
    """(6, m): the directions of velocities [rotation; translation] in the frame on the child that a joint blocks."""
    n = joint.axis / np.linalg.norm(joint.axis)
    normals = np.linalg.svd(n[None])[2][1:].T
    zero, unit_axes = np.zeros((3, 3)), np.eye(3)
    turning = {
        "spherical": zero[:, :0], "revolute": normals, "continuous": normals, "cylindrical": normals, "planar": normals,
        "screw": normals, "prismatic": unit_axes, "fixed": unit_axes, "universal": zero[:, :0],
    }[joint.type]  # fmt: skip
    sliding = {
        "spherical": unit_axes, "revolute": unit_axes, "continuous": unit_axes, "cylindrical": normals,
        "planar": n[:, None],
        "screw": normals, "prismatic": normals, "fixed": unit_axes,
    }[joint.type]  # fmt: skip
    columns = [*(np.concatenate([x, np.zeros(3)]) for x in turning.T)]
    columns += [np.concatenate([np.zeros(3), x]) for x in sliding.T]
    if joint.type == "screw":
        columns.append(np.concatenate([-joint.pitch / (2.0 * np.pi) * n, n]))
    return np.array(columns).T


def dense_accelerations(robot: Robot, q: Array, v: Array, tau: Array) -> Array:
    """The accelerations under efforts from poses and the dynamics of the tree."""
    description = robot.as_described
    tree = Robot(replace(description, loop_joints=()))  # compiled, for the many poses
    units = np.eye(robot.nv)
    changes = STEP * np.concatenate([units, -units, [v, -v, 0.0 * v]])
    poses = tree.link_poses(tree.integrate(np.broadcast_to(q, (len(changes), len(q))), changes, 1.0))
    rows, right = [], []
    for joint in description.loop_joints:
        (R_P, p_P), (R_C, p_C) = (
            (poses.rotation[:, k] @ R, poses.position[:, k] + poses.rotation[:, k] @ p)
            for k, R, p in (
                (poses.links.index(joint.parent), joint.parent_rotation, joint.parent_xyz),
                (poses.links.index(joint.child), joint.child_rotation, joint.child_xyz),
            )
        )
        R = np.swapaxes(R_P, -1, -2) @ R_C
        p = np.einsum("kji,kj->ki", R_P, p_C - p_P)
        displacement = np.concatenate([rotation_vector(R[-1].T @ R), (p - p[-1]) @ R[-1]], axis=-1)
        basis = blocked_directions(joint)
        rows.append(basis.T @ (displacement[: robot.nv] - displacement[robot.nv : -3]).T / (2.0 * STEP))
        V = (displacement[-3] - displacement[-2]) / (2.0 * STEP)
        rate = (displacement[-3] + displacement[-2]) / STEP**2
        rate[3:] -= np.cross(V[:3], V[3:])  # C's axes turn
        right.append(-basis.T @ rate)
    J, b = np.concatenate(rows), np.concatenate(right)
    M, C = tree.mass_matrix(q), tree.inverse_dynamics(q, v, np.zeros(robot.nv))
    d = 1.0 / np.sqrt(np.diag(M))
    _, s, Vt = np.linalg.svd(J * d)
    rank = int((s > 1e-6 * s[0]).sum())
    least_a = d * (np.linalg.pinv(J * d, rcond=1e-6) @ b)
    N = d[:, None] * Vt[rank:].T
    return np.asarray(least_a + N @ np.linalg.solve(N.T @ M @ N, N.T @ (tau - C - M @ least_a)))


def agreement(description: Description) -> str:
    """Returns what a robot's loops leave free and how well its accelerations agree."""
    robot = interpreted_robot(Robot(description))
    loops = robot.evaluator.closed_loops
    q = closed_position(robot)
    freedom = loops.freedom
    free = "unknown" if freedom is None else f"{robot.nv - freedom.rank}, {freedom.redundant} redundant"
    tangent = loops.tangent(loops.joints.state(q, None))
    rng = np.random.default_rng(0)
    d = 1.0 / np.sqrt(np.diag(robot.mass_matrix(q)))
    v = tangent.basis @ (np.swapaxes(tangent.basis, -1, -2) @ (d * rng.normal(size=robot.nv)))
    v /= np.abs(v).max(initial=1.0)
    drive_mask = loops.driven
    tau = rng.normal(size=robot.nv) / d * (1.0 if drive_mask is None else drive_mask)
    a = robot.forward_dynamics(q, v, tau)
    error = own_scale_error(a, dense_accelerations(robot, q, v, tau), robot.mass_matrix(q))
    return f"{free} | {'agrees' if error <= AGREES else 'DIFFERS'}, {error:.0e}"


def verdict(path: Path) -> str | None:
    """Returns the cells of a file's row; None for a file without loops."""
    try:
        robot = robot_of(path)
    except DynError as refusal:
        return f"| | | not read: {refusal.message[:160]}"
    description = robot.as_described
    if description.unread_loops:
        return f"{robot.nv} | | | refused: {description.unread_loops[0].element} {description.unread_loops[0].text}"
    if not description.loop_joints:
        return None
    kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(x.type for x in description.loop_joints).items())
    try:
        return f"{robot.nv} | {kinds} | {agreement(description)}"
    except DynError as refusal:
        return f"{robot.nv} | {kinds} | | refused: {refusal.message[:200]}"


def table(folder: Path) -> Iterator[str]:
    """Yields a row for each file with loops."""
    yield "| file | velocities | loop joints | free | verdict |"
    yield "|---|---|---|---|---|"
    for path in sorted(p for p in folder.rglob("*") if p.suffix in (".urdf", ".xml", ".sdf") and p.is_file()):
        settings_file = path.with_suffix(".yaml").exists()
        if not settings_file and path.suffix != ".sdf" and not PATTERN.search(path.read_bytes()):
            continue
        cells: Any
        try:
            cells = verdict(path)
        except Exception as fault:
            cells = f"| | | fault: {type(fault).__name__}: {fault}"
        if cells is not None:
            yield f"| {path.relative_to(folder)} | {cells} |"
            if "DIFFERS" in cells or "fault:" in cells:
                yield f"above {AGREES:g}: {path.relative_to(folder)}"
