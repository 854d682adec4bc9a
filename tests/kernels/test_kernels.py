"""From equation to machine code: sine and cosine, the size of kernels, floating-point flags, the store on disk."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from dyn_service.api.queries import QUERIES, Query
from dyn_service.api.spec import Variant
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError, PermissionDeniedError
from dyn_service.kernels import jit, loop, store
from dyn_service.kernels.compiling import compiled
from dyn_service.kernels.frames import KernelTree, cheapest_frames, kernel_tree
from dyn_service.kernels.graph import trace
from dyn_service.kernels.jit import LoadedCode, compile_ir, host, make_gufunc
from dyn_service.kernels.loop import loop_of
from dyn_service.kernels.lower import lower
from dyn_service.kernels.staged import has_stages, staged
from dyn_service.kernels.trig import ERROR, LIMIT
from tests.conftest import URDF
from tests.phrases import unnamed
from tests.random_robots import random_urdf
from tests.tables import entry


@pytest.fixture(scope="module")
def turn() -> Robot:
    """One joint about z: the entries of its link's rotation are cosine and sine of q."""
    return Robot.from_urdf(
        '<robot name="turn"><link name="base"/><link name="arm"><inertial><mass value="1"/>'
        '<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>'
        '<joint name="j" type="continuous"><parent link="base"/><child link="arm"/><axis xyz="0 0 1"/></joint></robot>'
    )


def ulps(values: np.ndarray, exact: np.ndarray) -> float:
    """Returns the largest error in units of the last place of the double nearest to the exact value."""
    nearest = np.abs(exact.astype(np.float64))
    return float(np.max(np.abs(values - exact) / np.spacing(np.maximum(nearest, 2.0**-1022))))


def angles() -> dict[str, np.ndarray]:
    """Angles that are hard for sine and cosine, and random ones."""
    rng = np.random.default_rng(0)
    small_multiples = np.arange(1.0, 50_000.0)
    large_multiples = rng.integers(1, int(LIMIT * 2 / np.pi), 50_000).astype(float)  # multiples up to the last
    sets = {f"up to {size:g}": rng.uniform(-size, size, 50_000) for size in (0.7, 10.0, 1e3, 1e6, 1e9, 1e13, LIMIT)}
    sets["of any size"] = np.exp2(rng.uniform(-1074.0, 45.0, 50_000)) * rng.choice([-1.0, 1.0], 50_000)
    sets["subnormal"] = np.concatenate([small_multiples * 5e-324, 2.0**-1022 - small_multiples * 5e-324, [0.0, -0.0]])
    sets["where halves are"] = rng.uniform(0.5, np.pi / 6, 50_000)
    for part in (2, 4, 6):
        multiples = np.concatenate([small_multiples, large_multiples]) * (np.pi / part)
        multiples = multiples[multiples < LIMIT]
        sets[f"near pi/{part}"] = np.concatenate(
            [multiples, np.nextafter(multiples, 0.0), np.nextafter(multiples, LIMIT)]
        )
    sets["the last"] = np.array([LIMIT, -LIMIT, np.nextafter(LIMIT, 0.0)])
    return sets


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="there is nothing more exact to compare with")
@pytest.mark.parametrize("q", angles().values(), ids=angles())
def test_sine_and_cosine(turn: Robot, q: np.ndarray) -> None:
    """Within 1.7 units in the last place, `kernels.trig.ERROR`, for all angles up to `LIMIT`."""
    rotation = turn.link_poses(q[:, None]).rotation[:, 1]
    assert ulps(rotation[:, 1, 0], np.sin(q.astype(np.longdouble))) <= ERROR
    assert ulps(rotation[:, 0, 0], np.cos(q.astype(np.longdouble))) <= ERROR


def test_the_reference_sine_is_exact() -> None:
    """The long double sine against python-flint with 200 bits, at hard angles."""
    flint = pytest.importorskip("flint")
    q = np.concatenate([array[:40] for array in angles().values()])
    with flint.ctx.workprec(200):
        for x, long in zip(q, np.sin(q.astype(np.longdouble)), strict=True):
            exact = flint.arb(float(x)).sin()
            high = float(long)
            rest = float(long - np.longdouble(high))
            error = abs(float((exact - flint.arb(high) - flint.arb(rest)).mid()))
            assert error <= 0.001 * np.spacing(max(abs(high), 2.0**-1022))


@pytest.mark.parametrize("angle", [np.nan, np.inf, -np.inf, 2.0**45 * 1.001, 1e300])
def test_angles_without_a_sine_give_nan_and_no_warning(turn: Robot, angle: float) -> None:
    """Warnings are errors here: a kernel that raised the invalid flag would fail."""
    rotation = turn.link_poses([[angle], [0.5]]).rotation[:, 1]
    assert np.isnan(rotation[0, 0, 0])
    assert rotation[1, 0, 0] == pytest.approx(math.cos(0.5), abs=1e-15)


def model_of(robot: Robot, row: Query) -> KernelTree:
    """Returns the tree that a kernel is traced on."""
    return kernel_tree(robot.tree, row.bodies)


OPERATIONS = {
    "inverse_dynamics": 808,
    "forward_dynamics-articulated": 1774,
    "forward_dynamics-mass_matrix": 2009,
    "mass_matrix": 870,
    "bias_forces": 785,
    "gravity_forces": 208,
    "constraint_forces": 2777,
    "force_torque-parent_on_child": 1655,
    "force_torque-child_on_parent": 1721,
    "imu": 936,
    "computed_torque": 862,
    "link_poses": 202,
    "point_motion-world_aligned": 1503,
    "point_motion-local": 1662,
    "point_motion-world": 1277,
    "operational_space-world_aligned": 3592,
    "operational_space-local": 3046,
    "operational_space-world": 3729,
    "link_motion": 1366,
    "branch_inertias": 1068,
    "influence_operators-D": 1069,
    "influence_operators-beta": 3915,
    "newton_euler_blocks": 864,
    "mass_matrix_steps": 2988,
    "passive_forces": 0,
    "momentum": 372,
    "velocity_from_momentum-articulated": 999,
    "velocity_from_momentum-mass_matrix": 1234,
    "momentum_rate": 1581,
    "system_momentum": 1111,
    "system_momentum_rate": 2855,
    "energy": 832,
    "hamiltonian": 1545,
    "equation_terms": 3392,
    "jacobians": 719,
    "bias_accelerations": 525,
    "body_recursion": 1269,
    "hamiltonian_flow-articulated": 1581,
    "hamiltonian_flow-mass_matrix": 1820,
    "momentum_derivative": 898,
    "integrate": 18,
    "difference": 9,
    "step-rk4": 7407,
    "step-semi_implicit_euler": 1810,
    "step-explicit_euler": 1810,
    "inverse_dynamics_derivatives": 4173,
    "forward_dynamics_derivatives": 7827,
    "joint_wrench_derivatives": 12733,
    "inverse_dynamics_hessian": 7116,
    "forward_dynamics_hessian": 12694,
    "step_derivatives-rk4": 62210,
    "step_derivatives-semi_implicit_euler": 8348,
    "step_derivatives-explicit_euler": 8075,
    "step_derivatives-implicit_midpoint": 36100,
    "momentum_derivatives": 1553,
    "energy_derivatives": 1318,
    "centroidal_derivatives": 5172,
    "point_motion_derivatives-world_aligned": 2836,
    "point_motion_derivatives-local": 3134,
    "point_motion_derivatives-world": 2880,
    "coriolis_matrix": 3429,
    "inverse_dynamics_regressor": 3757,
    "joint_wrench_regressor": 4584,
    "momentum_regressor": 2784,
    "energy_regressor": 832,
}
"""Operations in the code for the Panda, the same on all machines. A change that adds operations must change these."""


@pytest.mark.parametrize("query", [name for name, row in QUERIES.items() if not row.constant])
def test_operation_counts(query: str, panda: Robot) -> None:
    """Mimic joints and passive forces add no operations to robots without them."""
    row = QUERIES[query]
    for method in row.kernels:
        signature, model = panda.signature(row, method), model_of(panda, row)
        if has_stages(signature, as_loops=False):
            graph = staged(signature, model.tree, lambda part, model=model: trace(model, part))
        else:
            graph = trace(model, signature)
        line = f'"{signature.name}": {graph.operations}'
        limit = entry(OPERATIONS, signature.name, "OPERATIONS in tests/kernels/test_kernels.py", line)
        assert graph.operations <= limit, f"more operations; if they are needed: {line}"


PARAMETRIC = {
    "inverse_dynamics": 1471,
    "forward_dynamics-articulated": 2959,
    "forward_dynamics-mass_matrix": 3192,
    "mass_matrix": 1506,
    "step-rk4": 10992,
    "constraint_forces": 4036,
    "inverse_dynamics_derivatives": 6216,
    "forward_dynamics_derivatives": 10393,
    "joint_wrench_derivatives": 17310,
    "inverse_dynamics_hessian": 10513,
    "momentum_derivatives": 2560,
    "centroidal_derivatives": 6860,
}
"""Operations of kernels with the numbers of bodies and joints as inputs, of which none is folded."""


@pytest.mark.parametrize("name", PARAMETRIC)
def test_operation_counts_of_parametric_kernels(name: str, panda: Robot) -> None:
    query, _, method = name.partition("-")
    signature = panda.signature(QUERIES[query], method, Variant(overlay=True))
    assert trace(kernel_tree(panda.tree, signature.bodies), signature).operations <= PARAMETRIC[name]


CLOSING_AS_ONE = {
    "inverse_dynamics": 800,
    "forward_dynamics-articulated": 1917,
    "mass_matrix": 860,
    "constraint_forces": 3071,
    "step-rk4": 7862,
    "inverse_dynamics_derivatives": 4178,
    "forward_dynamics_derivatives": 7013,
    "joint_wrench_derivatives": 12514,
    "inverse_dynamics_hessian": 7122,
    "momentum_derivatives": 1556,
    "centroidal_derivatives": 5113,
}
"""Operations with mimicking fingers, 8 entries of v: forward dynamics then uses the mass matrix."""


@pytest.mark.parametrize("name", CLOSING_AS_ONE)
def test_operation_counts_with_mimic_joints(name: str) -> None:
    robot = Robot.from_urdf(URDF / "panda.urdf")
    query, _, method = name.partition("-")
    row = QUERIES[query]
    assert trace(model_of(robot, row), robot.signature(row, method)).operations <= CLOSING_AS_ONE[name]


def test_operations_grow_linearly_with_the_chain() -> None:
    """O(N): twice the bodies, twice the operations. The mass matrix of a chain is O(N^2)."""

    def count(query: str, bodies: int) -> int:
        robot = Robot.from_urdf(random_urdf(5, movable=bodies, bushy=0.0))
        row = QUERIES[query]
        return trace(cheapest_frames(robot.tree), robot.signature(row, next(iter(row.kernels)))).operations

    for query in ("inverse_dynamics", "forward_dynamics"):
        count_5, count_10 = count(query, 5), count(query, 10)
        count_15 = count(query, 15)
        assert (count_15 - count_10) == pytest.approx(count_10 - count_5, rel=0.2)
    small, medium, large = (count("mass_matrix", bodies) for bodies in (8, 16, 24))
    assert large - medium > 1.3 * (medium - small)


@pytest.mark.parametrize("lanes", [2, 4, 8])
def test_every_vector_width_gives_the_same_answer(lanes: int) -> None:
    """Machines without AVX-512 use narrower vectors; LLVM splits vectors that are wider than the host's."""
    robot = Robot.from_urdf(URDF / "scara.urdf")
    rng = np.random.default_rng(0)
    q, v, tau = rng.normal(size=(3, 21, robot.nv))
    for query in ("forward_dynamics", "constraint_forces"):
        row = QUERIES[query]
        signature = robot.signature(row, next(iter(row.kernels)))
        graph = trace(model_of(robot, row), signature)
        kernel = make_gufunc(signature, loop_of(signature, LoadedCode(compile_ir(lower(graph, lanes)))))
        answers, expected = kernel(q, v, tau, [0, 0, -9.81]), robot.evaluate(query, {"q": q, "v": v, "tau": tau})
        answers = answers if isinstance(answers, tuple) else (answers,)
        for name, array in zip(row.outputs, answers, strict=True):
            # Products may be fused differently: rounding times the condition of the mass matrix.
            np.testing.assert_allclose(array, expected[name], rtol=1e-10, atol=1e-10 * np.abs(expected[name]).max())


def test_zeros_do_not_depend_on_earlier_contents_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of the mass matrix that are 0 are read from a vector that the loop clears."""
    monkeypatch.setattr(loop, "MAX_STACK_BYTES", 0)
    robot = Robot.from_urdf(URDF / "ten_body_tree.urdf")
    signature = robot.signature(QUERIES["mass_matrix"], "")
    kernel, loop_of_kernel, _ = compiled(trace(cheapest_frames(robot.tree), signature))
    assert loop_of_kernel.allocates
    body = loop.Body.of(loop_of_kernel.code)
    q = np.random.default_rng(0).normal(size=(3, robot.nq))
    expected = robot.mass_matrix(q)
    places = (ctypes.c_int32 * body.results).from_address(body.places)
    assert [*places].count(-1) == np.count_nonzero(expected[0] == 0.0) > 0
    size = 8 * host().lanes * (sum(operand.size for operand in (*signature.inputs, *signature.outputs)) + 2)
    out = np.zeros_like(expected)
    arrays = (ctypes.c_void_p * 2)(q.ctypes.data, out.ctypes.data)
    strides = (ctypes.c_int64 * 5)(q.strides[0], out.strides[0], q.strides[1], *out.strides[1:])
    count = ctypes.c_int64(len(q))
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(loop_of_kernel.address)
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    for _ in range(3):
        earlier = [libc.malloc(size) for _ in range(8)]
        for place in earlier:
            ctypes.memset(place, 0xFF, size)  # NaN
        for place in earlier:
            libc.free(place)
        call(
            ctypes.addressof(arrays),
            ctypes.addressof(count),
            ctypes.addressof(strides),
            ctypes.addressof(loop_of_kernel.plan),
        )
        np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(kernel(q), expected)


def test_operands_of_any_layout() -> None:
    """`out=` arrays with any strides are filled."""
    robot = Robot.from_urdf(URDF / "ten_body_tree.urdf")
    q = np.random.default_rng(0).normal(size=(19, robot.nq))
    expected = robot.mass_matrix(q)
    signature = robot.signature(QUERIES["mass_matrix"], "")
    graph = trace(cheapest_frames(robot.tree), signature)
    kernel = compiled(graph)[0]
    for out in (
        np.zeros((19, 10, 10)),
        np.zeros((19, 10, 10)).swapaxes(1, 2),
        np.zeros((19, 30, 10))[:, ::3],
        np.zeros((10, 10, 19)).T,
        np.zeros((19, 10, 10))[::-1],
    ):
        kernel(q, out=out)
        np.testing.assert_array_equal(out, expected)


@pytest.fixture
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "kernels"
    monkeypatch.setenv("DYN_SERVICE_CACHE", str(folder))
    return folder


def answer() -> float:
    robot = Robot.from_urdf(URDF / "pendulum.urdf")
    return float(robot.inverse_dynamics([0.3], [0.2], [0.1])[0])


def test_stored_kernels_are_readable_by_their_owner_only(own_store: Path) -> None:
    expected = answer()
    (kernel_file,) = own_store.iterdir()
    assert own_store.stat().st_mode & 0o777 == 0o700
    assert kernel_file.stat().st_mode & 0o077 == 0
    content = kernel_file.read_bytes()
    assert answer() == expected
    assert kernel_file.read_bytes() == content


def test_damaged_kernel_is_compiled_again(own_store: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = answer()
    (kernel_file,) = own_store.iterdir()
    whole = kernel_file.read_bytes()
    for damage in (whole[:-100], whole[:40], b"", whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]):
        kernel_file.write_bytes(damage)
        assert answer() == expected
        assert kernel_file.read_bytes() == whole
    assert "damaged" in caplog.text


def test_kernels_under_each_others_names_are_compiled_again(own_store: Path) -> None:
    """Each pair swapped. With another robot's kernel an answer was wrong, or the process ended."""
    q = np.full(2, 0.3)
    robots = ("cart_pendulum", "double_pendulum")

    def answers() -> list[bytes]:
        read = [Robot.from_urdf(URDF / f"{name}.urdf") for name in robots]
        return [
            answer.tobytes() for robot in read for answer in (robot.inverse_dynamics(q, q, q), robot.mass_matrix(q))
        ]

    expected = answers()
    names = [file.name for file in own_store.iterdir()]
    assert len(names) == 4
    contents = {name: (own_store / name).read_bytes() for name in names}
    for first, second in itertools.combinations(names, 2):
        (own_store / first).write_bytes(contents[second])
        (own_store / second).write_bytes(contents[first])
        assert [name for name in names if store.load(name) is None] == [
            name for name in names if name in (first, second)
        ]
        assert answers() == expected
        assert {name: (own_store / name).read_bytes() for name in names} == contents


def test_folder_others_can_write_is_refused(own_store: Path) -> None:
    answer()
    own_store.chmod(0o777)
    with pytest.raises(PermissionDeniedError) as error:
        answer()
    assert unnamed(error.value, f"'{own_store}'", "0777", f"chmod go-w '{own_store}'", "DYN_SERVICE_CACHE") == []


def test_file_others_can_write_is_refused(own_store: Path) -> None:
    answer()
    (kernel_file,) = own_store.iterdir()
    kernel_file.chmod(0o622)
    with pytest.raises(PermissionDeniedError, match="mode 0622"):
        answer()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away")
def test_file_of_another_user_is_refused(own_store: Path) -> None:
    answer()
    (kernel_file,) = own_store.iterdir()
    os.chown(kernel_file, 12345, 12345)
    with pytest.raises(PermissionDeniedError, match="belongs to user 12345"):
        answer()


def test_link_in_place_of_a_kernel_is_not_followed(own_store: Path, tmp_path: Path) -> None:
    expected = answer()
    (kernel_file,) = own_store.iterdir()
    target = tmp_path / "elsewhere"
    kernel_file.rename(target)
    kernel_file.symlink_to(target)
    assert answer() == expected
    assert not kernel_file.is_symlink()


def test_folder_that_cannot_be_created_only_costs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DYN_SERVICE_CACHE", str(tmp_path / "file" / "kernels"))
    assert answer() == pytest.approx(answer())
    assert "kernels are not kept" in caplog.text


def test_store_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_SERVICE_CACHE", "")
    assert store.folder() is None
    answer()


def taken(folder: Path) -> int:
    return sum(store._on_disk(path.stat().st_size) for path in folder.iterdir())


def test_least_recently_used_kernels_are_deleted(own_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is in bytes of whole blocks."""
    monkeypatch.setenv("DYN_SERVICE_CACHE_BYTES", str(64 * 4096))
    code = bytes(4096 - 32)
    for k in range(63):
        store.save(f"{k:040}", code)
        os.utime(own_store / f"{k:040}", (k, k))
    assert len(list(own_store.iterdir())) == 63
    assert store.load(f"{0:040}") == code  # now the most recently used
    for k in (63, 64):
        store.save(f"{k:040}", code)
    names = sorted(path.name for path in own_store.iterdir())
    assert names == [f"{k:040}" for k in (0, *range(6, 65))]  # a sixteenth of the limit is free


def test_the_store_never_exceeds_its_limit(own_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the size is measured only sometimes, and other processes add and delete files."""
    limit = 4096 * 1024
    monkeypatch.setenv("DYN_SERVICE_CACHE_BYTES", str(limit))
    own_store.mkdir(mode=0o700, parents=True, exist_ok=True)
    (own_store / "letters.txt").write_bytes(bytes(100_000))  # a file of the user, the oldest one
    os.utime(own_store / "letters.txt", (0, 0))
    looks = []
    look = os.scandir
    monkeypatch.setattr(store.os, "scandir", lambda place: looks.append(place) or look(place))
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 60_000, 400)
    for k, size in enumerate(sizes):
        store.save(f"{k:040}", bytes(int(size)))
        assert taken(own_store) - 102_400 <= limit  # without the user's file: 25 blocks
    assert taken(own_store) > limit // 2
    assert (own_store / "letters.txt").stat().st_size == 100_000
    assert len(looks) < len(sizes) // 2


def test_a_kernel_larger_than_the_limit_is_not_stored(own_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_SERVICE_CACHE_BYTES", "0")
    assert answer() == pytest.approx(answer())
    assert not own_store.exists()


def test_the_default_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DYN_SERVICE_CACHE_BYTES", raising=False)
    assert store.limit() == store.MAX_BYTES == 512 << 20


@pytest.mark.parametrize("text", ["", "-1", "1e9", "512 MB", "\u0663"])
def test_an_invalid_limit_is_refused(own_store: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("DYN_SERVICE_CACHE_BYTES", text)
    with pytest.raises(InvalidArgumentError) as error:
        answer()
    assert unnamed(error.value, "DYN_SERVICE_CACHE_BYTES", f"{text!r}") == []
    assert error.value.path == "DYN_SERVICE_CACHE_BYTES"


def test_a_full_disk_does_not_prevent_an_answer(own_store: Path) -> None:
    """Writes fail after 1 kB, as on a full disk: the result is correct, and no partial file remains.

    -B: Python's own cache of modules would be cut short too, and break later runs.
    """
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024));"
        "from dyn_service import Robot;"
        f"r = Robot.from_urdf({str(URDF / 'pendulum.urdf')!r});"
        "print(float(r.inverse_dynamics([0.3], [0.2], [0.1])[0]))"
    )
    done = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True, check=True)
    assert "kernels are not kept: [Errno 27]" in done.stderr
    assert list(own_store.iterdir()) == []
    assert done.stdout.split() == [repr(answer())]


def test_start_from_the_store_needs_no_tracer(own_store: Path) -> None:
    """CasADi, which takes most of a cold start, is not imported."""
    answer()
    program = (
        "import sys; from dyn_service import Robot;"
        f"r = Robot.from_urdf({str(URDF / 'pendulum.urdf')!r});"
        "print(float(r.inverse_dynamics([0.3], [0.2], [0.1])[0]), 'casadi' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [repr(answer()), "False"]


def test_host_lanes_are_a_power_of_two() -> None:
    assert host().lanes in (2, 4, 8)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="reads the assembly of x86-64")
@pytest.mark.parametrize(("lanes", "processor"), [(4, "x86-64-v3"), (8, "x86-64-v4")])
def test_vectors_on_the_stack_do_not_cross_cache_lines(lanes: int, processor: str) -> None:
    """Every move of a vector from or to the stack is an aligned one: 846 in a step of the Panda with four lanes.

    LLVM aligns the stack to 16 bytes unless a function requires more. Then vectors of 32 or 64 bytes cross lines, and
    the caller's stack decides how many.
    """
    robot = Robot.from_urdf(URDF / "panda.urdf")
    signature = robot.signature(QUERIES["step"], "semi_implicit_euler")
    text = lower(trace(kernel_tree(robot.tree, signature.bodies), signature), lanes)
    jit._machine()  # registers the code generator
    with llvm.create_context() as context, llvm.parse_assembly(text, context) as module:
        module.triple = "x86_64-unknown-linux-gnu"
        machine = llvm.Target.from_triple(module.triple).create_target_machine(cpu=processor, opt=2, reloc="pic")
        assembly = machine.emit_assembly(module)
    moves = re.findall(r"\tvmov(\w+)\s.*\(%rsp\)", assembly)
    assert len(moves) > 200
    assert not [move for move in moves if move.startswith(("up", "dqu"))]
