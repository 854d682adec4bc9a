"""Labelled and lazy arrays against the plain calls, for every row of the table."""

from __future__ import annotations

import pickle
import re
import sys
from typing import Any

import numpy as np
import pytest

from dyn_service import Overlay, Payload, PDLaw, Robot, Wrench
from dyn_service.api.arrays import numbers
from dyn_service.api.queries import QUERIES, Query
from dyn_service.errors import DynError, InvalidArgumentError, NotFoundError
from dyn_service.service.client.sync import Client
from dyn_service.service.server.app import Server
from tests.phrases import naming

da = pytest.importorskip("dask.array", reason="the extra `studies` is not installed: pip install '.[studies]'")
xr = pytest.importorskip("xarray", reason="the extra `studies` is not installed: pip install '.[studies]'")


@pytest.fixture(scope="module")
def panda() -> Robot:
    return Robot.from_urdf("urdf/panda.urdf")


@pytest.fixture(scope="module")
def floating() -> Robot:
    body = '<inertial><mass value="1"/><inertia ixx="1" iyy="2" izz="2.5" ixy="0" ixz="0" iyz="0"/></inertial>'
    return Robot.from_text(
        f'<robot name="satellite"><link name="base">{body}</link><link name="arm">{body}</link>'
        '<joint name="hinge" type="revolute"><parent link="base"/><child link="arm"/><origin xyz="1 0 0"/>'
        '<axis xyz="0 0 1"/><limit lower="-2" upper="2" effort="9" velocity="3"/></joint></robot>',
        root="floating",
    )


def some(robot: Robot, row: Query, lead: tuple[int, ...]) -> dict[str, Any]:
    """Returns numbers for the required inputs."""
    rng = np.random.default_rng(3)
    arguments: dict[str, Any] = {}
    for name in row.required:
        spec = row.inputs[name]
        if spec.kind == "link":
            arguments[name] = robot.link_names[-1]
        elif spec.kind == "position":
            q = rng.normal(size=(*lead, robot.nq))
            arguments[name] = robot.configuration.normalised(q)
        else:
            arguments[name] = rng.uniform(0.1, 1.0, size=(*lead, *spec.dims(robot.sizes)))
    return arguments


def test_a_dataset_unpacks_to_names_and_its_values_to_arrays(panda: Robot) -> None:
    row = QUERIES["step"]
    plain = some(panda, row, (2,))
    result = panda.step(**labelled(panda, row, plain, ("pose",)))
    assert list(result) == ["q", "v"]
    for x, expected in zip(result.values(), panda.step(**plain), strict=True):
        assert np.array_equal(x.transpose("pose", "joint"), expected)


def labelled(
    robot: Robot, row: Query, arguments: dict[str, Any], dims: tuple[str, ...], *, permuted: bool = True
) -> Any:
    """Returns them as DataArrays, with the entries of q and v in another order."""
    labelled_arguments = {}
    for name, x in arguments.items():
        spec = row.inputs[name]
        if isinstance(x, str) or (spec.scalar and spec.shape == (1,)):
            labelled_arguments[name] = x if isinstance(x, str) else xr.DataArray(x[..., 0], dims=dims)
            continue
        names = robot.configuration.position_names if spec.shape == ("nq",) else robot.configuration.velocity_names
        order = list(reversed(range(len(names)))) if permuted else list(range(len(names)))
        labelled_arguments[name] = xr.DataArray(
            x[..., order], dims=(*dims, "joint"), coords={"joint": [names[k] for k in order]}
        ).transpose("joint", ...)
    return labelled_arguments


@pytest.mark.parametrize("name", [name for name, row in QUERIES.items() if row.inputs])
def test_every_row(floating: Robot, name: str) -> None:
    row = QUERIES[name]
    arguments = some(floating, row, (3, 2))
    want = row.outputs_of(getattr(floating, name)(**arguments))
    eager = labelled(floating, row, arguments, ("run", "time"))
    result = getattr(floating, name)(**eager)
    assert isinstance(result, xr.Dataset)
    assert result.attrs["equation"] == row.equation
    lazy = {n: x.chunk({"run": 2}) if hasattr(x, "chunk") else x for n, x in eager.items()}
    graph = getattr(floating, name)(**lazy)
    for key, spec in row.outputs.items():
        assert result[key].dims[:2] == ("run", "time")
        assert np.array_equal(result[key].values, want[key], equal_nan=True), key
        assert result[key].attrs["units"] == spec.unit
        assert graph[key].chunks[:2] == ((2, 1), (2,))
        assert graph[key].dims == result[key].dims
        for dimension in set(result[key].dims) & set(result.indexes):
            assert list(graph.indexes[dimension]) == list(result.indexes[dimension])
    materialised = graph.compute(scheduler="sync")
    assert all(np.array_equal(materialised[key].values, want[key], equal_nan=True) for key in row.outputs)
    for label in row.labels:
        if row.labels[label].of == "row" and row.labels[label].dimension == "nl":
            assert list(result.indexes["link"]) == list(want[label])


def test_names_not_positions(panda: Robot) -> None:
    rng = np.random.default_rng(0)
    q, v, a = rng.normal(size=(3, 8))
    want = panda.inverse_dynamics(q, v, a)
    names = list(panda.joint_names)
    order = [3, 1, 0, 2, 7, 6, 5, 4]
    x, y, z = (xr.DataArray(n[order], dims="joint", coords={"joint": [names[k] for k in order]}) for n in (q, v, a))
    tau = panda.inverse_dynamics(x, xr.DataArray(v, dims="joint", coords={"joint": names}), z).tau
    assert np.array_equal(tau.sel(joint=names).values, want)
    assert tau.attrs["units"] == "N m | N"
    back = tau.sel(joint=[names[k] for k in order])
    assert np.array_equal(panda.forward_dynamics(x, y, back).a.values, panda.forward_dynamics(q, v, want))
    for wrong, error, words in (
        (x.isel(joint=slice(7)), InvalidArgumentError, ("no entry", names[4])),
        (x.assign_coords(joint=["panda_jiont1", *x.joint.values[1:]]), NotFoundError, ("panda_jiont1", "panda_joint1")),
        (x.assign_coords(joint=[x.joint.values[1], *x.joint.values[1:]]), InvalidArgumentError, ("two entries",)),
        (x.drop_vars("joint"), InvalidArgumentError, ("needs a coordinate 'joint'",)),
        (x.rename(joint="axle"), InvalidArgumentError, ("dimension 'joint'", "'axle'")),
        (x.astype(str), InvalidArgumentError, ("real numbers",)),
    ):
        with pytest.raises(error, match=naming(*words)):
            panda.gravity_forces(wrong)


def test_dimensions_broadcast_by_name(panda: Robot) -> None:
    rng = np.random.default_rng(0)
    joints = {"joint": list(panda.joint_names)}
    q = xr.DataArray(rng.normal(size=(3, 8)), dims=("pose", "joint"), coords=joints)
    v = xr.DataArray(rng.normal(size=(8, 2)), dims=("joint", "speed"), coords=joints | {"speed": [0.5, 1.0]})
    masses = xr.DataArray([0.0 + 1e-9, 2.0], dims="mass", coords={"mass": [0.0, 2.0]})
    overlay = Overlay(payloads=Payload("panda_hand", masses))
    wrench = Wrench("panda_hand", force=xr.DataArray(rng.normal(size=(3, 3)), dims=("pose", "axis")))
    tau = panda.inverse_dynamics(q, v, 0.0 * v, overlay=overlay, wrenches=wrench).tau
    assert tau.sizes == {"pose": 3, "speed": 2, "mass": 2, "joint": 8}
    assert list(tau.indexes["mass"]) == [0.0, 2.0]
    for k, m in np.ndindex(3, 2):
        single = panda.inverse_dynamics(
            q.values[k],
            v.values[:, 1],
            np.zeros(8),
            overlay=Overlay(payloads=Payload("panda_hand", float(masses[m]))),
            wrenches=Wrench("panda_hand", force=wrench.force.values[k]),
        )
        assert np.array_equal(tau.isel(pose=k, speed=1, mass=m).values, single)
    lazy = panda.inverse_dynamics(q.chunk(pose=1), v, 0.0 * v, overlay=overlay, wrenches=wrench).tau
    assert lazy.chunks is not None
    assert np.array_equal(lazy.values, tau.values)
    with pytest.raises(InvalidArgumentError, match="without names"):
        panda.bias_forces(q, np.zeros((3, 8)))
    with pytest.raises(InvalidArgumentError, match="labels of the arrays differ"):
        panda.bias_forces(q.assign_coords(pose=[0, 1, 2]), q.assign_coords(pose=[0, 1, 3]))


def test_lists_computations_and_options(panda: Robot) -> None:
    rng = np.random.default_rng(0)
    joints = {"joint": list(panda.joint_names)}
    q = xr.DataArray(rng.normal(size=(2, 8)), dims=("run", "joint"), coords=joints)
    v = xr.zeros_like(q)
    whole = panda.evaluate(["gravity_forces", "energy"], q=q, v=v)
    plain = panda.evaluate(["gravity_forces", "energy"], q=q.values, v=v.values)
    assert np.array_equal(whole["gravity_forces"].forces.values, plain["gravity_forces"])
    assert np.array_equal(whole["energy"].kinetic.values, plain["energy"].kinetic)
    loads = panda.constraint_forces(q, v, v, joints=["panda_joint3", "panda_joint1"])
    assert list(loads.indexes["urdf_joint"]) == ["panda_joint3", "panda_joint1"]
    assert loads.wrench.dims == ("run", "urdf_joint", "component")
    law = PDLaw(q_ref=q, kp=100.0, kd=10.0)
    motion = panda.simulate(q * 0.9, v, law, dt=1e-3, steps=20, every=10)
    want = panda.simulate(
        q.values * 0.9, v.values, PDLaw(q_ref=q.values[:, None], kp=100.0, kd=10.0), dt=1e-3, steps=20, every=10
    )
    assert motion.q.dims == ("run", "time", "joint")
    assert np.array_equal(motion.q.values, want.q)
    assert np.allclose(motion.time.values, [0.0, 0.01, 0.02])
    lazy = panda.simulate(q.chunk(run=1), v, dt=1e-3, steps=20, every=10)
    assert lazy.q.chunks == ((1, 1), (3,), (8,))
    assert np.array_equal(lazy.q.values, panda.simulate(q.values, v.values, dt=1e-3, steps=20, every=10).q)
    residuals = panda.verify(q, v, v)
    assert all(x.dims == ("run",) for x in residuals.values())


class Counted:
    """An array that counts how often it is read."""

    shape, dtype, ndim = (6, 8), np.dtype(float), 2

    def __init__(self) -> None:
        self.reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return np.zeros(self.shape)[index]


@pytest.mark.parametrize(
    ("query", "dim", "size", "role"),
    [
        ("link_poses", "axis", 3, "a dimension of an output"),
        ("link_poses", "link", 11, "a dimension of an output"),
        ("link_poses", "position", 2, "an output"),
        ("mass_matrix", "joint_column", 8, "a dimension of an output"),
        ("mass_matrix", "joint_column", 4, "a dimension of an output"),
        ("gravity_forces", "forces", 2, "an output"),
    ],
)
def test_names_that_the_result_needs(panda: Robot, query: str, dim: str, size: int, role: str) -> None:
    """As a leading dimension, or as a coordinate of one, which silently took the place of the output."""
    coords = {"joint": list(panda.joint_names), "names": ("state", np.arange(size))}
    q = xr.DataArray(np.zeros((size, panda.nq)), dims=("state", "joint"), coords=coords)
    for argument, kind in ((q.rename(state=dim), "dimension"), (q.rename(names=dim), "coordinate")):
        with pytest.raises(InvalidArgumentError, match=f"the {kind} '{dim}' has the name of {role} of {query}: rename"):
            getattr(panda, query)(argument)
    assert getattr(panda, query)(q).sizes["state"] == size


def test_a_coordinate_of_a_selected_entry_stays(panda: Robot) -> None:
    """`poses.sel(link="panda_hand")` leaves the scalar coordinate `link`."""
    q = xr.DataArray(np.zeros(panda.nq), dims="joint", coords={"joint": list(panda.joint_names), "link": "panda_hand"})
    assert panda.link_poses(q).sizes["link"] == len(panda.link_names)


def test_nothing_is_loaded_silently(panda: Robot) -> None:
    source = Counted()
    x = da.from_array(source, chunks=(2, 8), asarray=False, meta=np.empty((0, 0)))
    result = panda.inverse_dynamics(x, x, x)
    assert isinstance(result, da.Array)
    assert (source.reads, result.chunks) == (0, ((2, 2, 2), (8,)))
    assert np.array_equal(result[2:4].compute(scheduler="sync"), panda.inverse_dynamics(*np.zeros((3, 2, 8))))
    assert 1 <= source.reads <= 3  # one chunk, not three
    energy = panda.energy(x, np.ones((6, 8)))
    assert isinstance(energy.kinetic, da.Array)
    assert np.array_equal(energy.kinetic.compute(), panda.energy(np.zeros((6, 8)), np.ones((6, 8))).kinetic)
    assert numbers(x) is None
    assert numbers([x, x]) is None
    reads_before = source.reads
    for call in (
        lambda: panda.configuration.integrate(x, x),
        lambda: panda.gravity_forces([x[0, 0]] * 8),
        lambda: panda.overlaid(Overlay(gravity=x[0, :3])),
        lambda: panda.inverse_dynamics(x, x, x, out=np.empty((6, 8))),
        lambda: panda.simulate(np.zeros(8), np.zeros(8), lambda t, q, v: x[0], dt=1e-3, steps=2),
    ):
        with pytest.raises(DynError):
            call()
    assert source.reads == reads_before
    assert np.array_equal(result.compute(), pickle.loads(pickle.dumps(result)).compute())


def test_a_remote_robot(panda: Robot, tcp_server: Server) -> None:
    with Client(tcp_server.endpoints[0]) as client:
        robot = client.robot("panda")
        q = xr.DataArray(np.ones((2, 8)), dims=("run", "joint"), coords={"joint": list(panda.joint_names)[::-1]})
        assert np.array_equal(robot.gravity_forces(q).forces.values, panda.gravity_forces(q.values))
        with pytest.raises(DynError, match="compute"):
            robot.gravity_forces(q.chunk())


def test_errors_say_how_to_convert_arrays(panda: Robot) -> None:
    q = np.zeros(8)
    for wrong, how in (
        (xr.DataArray(q), "xarray (DataArray): convert it with `.to_numpy()`"),
        (da.from_array(q), "dask (Array): load it with `.compute()`"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"{re.escape(how)}$"):
            panda.configuration.integrate(wrong, q)


def test_the_plain_call_imports_nothing() -> None:
    import subprocess

    code = (
        "import sys, numpy as np, dyn_service; r = dyn_service.Robot.from_urdf('urdf/pendulum.urdf');"
        "r.gravity_forces([0.0] * r.nq); print({'xarray', 'dask', 'zarr', 'pandas'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
