"""Queries as C functions: the bits of `Robot`, CasADi's functions, symbols, the same bytes again, other processors."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dyn_service import JointNumbers, Overlay, Payload, Robot, Wrench
from dyn_service.api.lists import row_of
from dyn_service.api.queries import QUERIES
from dyn_service.api.spec import Variant
from dyn_service.dynamics.expressions import INPUT
from dyn_service.engine.export.inputs import ExtraInputs
from dyn_service.errors import (
    DynError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnimplementedError,
)
from dyn_service.kernels import budget
from dyn_service.kernels.export import TARGETS, target_of
from dyn_service.kernels.frames import kernel_tree
from dyn_service.kernels.graph import trace
from dyn_service.model.description import RootType
from dyn_service.model.parameters import BODIES, JOINTS, OF_RATE
from tests.conftest import ROOT, URDF

VALUES = ("inverse_dynamics", "forward_dynamics")
ROWS = (*VALUES, "inverse_dynamics_derivatives", "forward_dynamics_derivatives")


def link(name: str) -> str:
    return f"""<link name="{name}"><inertial><origin xyz="0.1 0.2 -0.1"/><mass value="1.5"/>
        <inertia ixx="1" iyy="1.2" izz="0.9" ixy="0.1" ixz="0" iyz="-0.1"/></inertial></link>"""


ARM = f"""<robot name="arm">{link("base")}{link("arm")}<joint name="j" type="continuous">
    <parent link="base"/><child link="arm"/><axis xyz="0 0 1"/><origin xyz="0 0.1 0.3"/></joint></robot>"""

ROBOTS: dict[str, tuple[str | Path, RootType]] = {
    "scara": (URDF / "scara.urdf", "fixed"),
    "arm": (ARM, "floating"),
    "panda": (URDF / "panda.urdf", "fixed"),  # one finger mimics the other
}

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler is installed: cc, gcc or clang")


@pytest.fixture(scope="module", params=ROBOTS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Robot, Path]:
    """A robot, and the folder of its functions."""
    source, root = ROBOTS[request.param]
    robot = Robot.from_urdf(source, root=root)
    folder = tmp_path_factory.mktemp(request.param)
    robot.export(ROWS, folder)
    return robot, folder


def self_test(folder: Path, name: str, *, linked: Sequence[str] = (), compiler: str | None = COMPILER) -> str:
    """Compiles the self-test with the object file, without a warning; returns the path of the program."""
    assert compiler is not None
    program = str(folder / "selftest")
    sources = [str(folder / f"{name}_selftest.c"), str(folder / f"{name}.o")]
    subprocess.run([compiler, "-Wall", "-Wextra", "-Werror", *sources, "-o", program, *linked], check=True)
    return program


@needs_compiler
def test_golden_numbers_have_the_same_bits_without_python(exported: tuple[Robot, Path]) -> None:
    robot, folder = exported
    program = self_test(folder, robot.name)
    done = subprocess.run([program], capture_output=True, text=True, check=True, env={})
    functions = re.findall(r"int (\w+)_eval\(", (folder / f"{robot.name}.h").read_text())
    assert len(functions) == 4
    assert done.stdout.splitlines() == [f"{name}: 4 states, good: same bits" for name in functions]


@needs_compiler
def test_self_test_finds_another_last_bit(exported: tuple[Robot, Path], tmp_path: Path) -> None:
    robot, folder = exported
    source = (folder / f"{robot.name}_selftest.c").read_text()
    array = re.search(rf"{robot.name}_inverse_dynamics_tau\[4\].*?0x1\.[0-9a-f]*?([0-9a-f])p", source, re.DOTALL)
    assert array is not None
    position = array.start(1)
    changed_source = source[:position] + f"{int(source[position], 16) ^ 1:x}" + source[position + 1 :]
    (tmp_path / f"{robot.name}_selftest.c").write_text(changed_source)
    for ending in (".h", ".o"):
        shutil.copy(folder / f"{robot.name}{ending}", tmp_path)
    done = subprocess.run([self_test(tmp_path, robot.name)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "inverse_dynamics: 4 states, WRONG: largest difference" in done.stdout


@needs_compiler
def test_states_beyond_the_golden_ones(exported: tuple[Robot, Path]) -> None:
    robot, folder = exported
    (library,) = folder.glob("lib*")
    rng = np.random.default_rng(0)
    loaded = ctypes.CDLL(str(library))
    name = f"{robot.name}_inverse_dynamics_derivatives"
    header = (folder / f"{robot.name}.h").read_text()
    size = re.search(rf"define {name.upper()}_W (\d+)", header)
    assert size is not None
    sizes = (ctypes.c_longlong * 4)(*[-1] * 4)
    assert loaded[f"{name}_work"](*(ctypes.byref(sizes, 8 * k) for k in range(4))) == 0
    assert [*sizes] == [3, 4, 0, int(size[1])], "inputs, outputs, integers, workspace"
    n, null = robot.nv, ctypes.c_void_p(None)
    for k in range(50):
        q = robot.configuration.normalised(rng.normal(size=robot.nq) * 10.0 ** rng.uniform(-3, 3))
        v, a, gravity = rng.normal(size=n), rng.normal(size=n), rng.normal(size=3)
        outputs = [np.full(n, np.nan), *np.full((3, n, n), np.nan)]
        # The first double of an odd workspace is not aligned for vectors.
        arrays = [q, v, a, gravity, *outputs, np.full(int(size[1]) + 1, np.nan)[k % 2 :][: int(size[1])]]
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
        pointers[3], pointers[5] = (null, null) if k % 3 == 0 else (pointers[3], pointers[5])
        assert loaded[f"{name}_eval"](*pointers) == 0
        expected = robot.inverse_dynamics_derivatives(q, v, a, gravity=None if k % 3 == 0 else gravity)
        if k % 3 == 0:
            assert np.isnan(outputs[1]).all(), "an output that is NULL is not written"
            outputs[1] = expected.dtau_dq
        for array, part in zip(outputs, ("tau", "dtau_dq", "dtau_dv", "dtau_da"), strict=True):
            assert array.tobytes() == getattr(expected, part).tobytes()


def test_no_function_of_another_library_is_called(exported: tuple[Robot, Path]) -> None:
    if shutil.which("nm") is None:
        pytest.skip("nm of binutils is not installed")
    robot, folder = exported
    symbols = subprocess.run(["nm", folder / f"{robot.name}.o"], capture_output=True, text=True, check=True).stdout
    kinds = {line.split()[-1]: line.split()[-2] for line in symbols.splitlines()}
    assert {name for name, kind in kinds.items() if kind == "U"} == set()
    assert not [kind for kind in kinds.values() if kind in "BbDdC"], "variables: calls have no state in common"
    assert kinds[f"{robot.name}_inverse_dynamics"] == "T"


@pytest.fixture(scope="module")
def casadi() -> ModuleType:
    return pytest.importorskip("casadi")


@needs_compiler
def test_casadi_loads_values_and_jacobians(exported: tuple[Robot, Path], casadi: ModuleType) -> None:
    robot, folder = exported
    (library,) = map(str, folder.glob("lib*"))
    rng = np.random.default_rng(1)
    q, (v, x) = robot.configuration.normalised(rng.normal(size=robot.nq)), rng.normal(size=(2, robot.nv))
    for row in VALUES:
        function = casadi.external(f"{robot.name}_{row}", library)
        assert np.array(function(q, v, x)).ravel().tobytes() == getattr(robot, row)(q, v, x).tobytes()
        if robot.nq != robot.nv:
            header = (folder / f"{robot.name}.h").read_text()
            assert "jac_" not in header, "changes of q are not changes of its entries"
            continue
        symbols = [casadi.MX.sym(name, robot.nv) for name in function.name_in()]
        answer = function(*symbols)
        jacobians = casadi.Function("J", symbols, [casadi.jacobian(answer, symbol) for symbol in symbols])
        derivatives = getattr(robot, f"{row}_derivatives")(q, v, x)
        (result,) = function.name_out()
        for name, block in zip(function.name_in(), jacobians(q, v, x), strict=True):
            expected = getattr(derivatives, f"d{result}_d{name}")
            assert np.array(block).tobytes() == (expected + 0.0).tobytes()
            if row == "inverse_dynamics" and robot.name == "panda":
                assert (block.sparsity().nnz() < expected.size) == (name != "q"), "entries that are always 0"


@needs_compiler
def test_code_generated_by_casadi_calls_the_object(tmp_path: Path, casadi: ModuleType) -> None:
    """As acados does, with its 32-bit integers."""
    robot = Robot.from_urdf(URDF / "scara.urdf")
    robot.export(ROWS[:3:2], tmp_path)
    f = casadi.external("scara_inverse_dynamics", str(next(tmp_path.glob("lib*"))))
    symbols = [casadi.MX.sym(name, robot.nv) for name in "qva"]
    outer = casadi.Function("outer", symbols, [2.0 * f(*symbols), casadi.jacobian(f(*symbols), symbols[0])])
    outer.generate("outer.c", {"casadi_int": "int"})
    shutil.move("outer.c", tmp_path)
    library, source = str(tmp_path / "outer.so"), str(tmp_path / "outer.c")
    assert COMPILER is not None
    command = [COMPILER, "-shared", "-fPIC", source, str(tmp_path / "scara.o"), "-o", library, "-lm"]
    subprocess.run(command, check=True)
    q, v, a = np.random.default_rng(2).normal(size=(3, robot.nv))
    arg = (ctypes.c_void_p * 64)(*(x.ctypes.data for x in (q, v, a)))
    tau, jacobian, work, whole = np.zeros(robot.nv), np.zeros(16), np.zeros(2000), np.zeros(2000)
    res = (ctypes.c_void_p * 64)(tau.ctypes.data, jacobian.ctypes.data)
    assert ctypes.CDLL(library).outer(arg, res, *(ctypes.c_void_p(x.ctypes.data) for x in (whole, work)), 0) == 0
    assert (tau == 2.0 * robot.inverse_dynamics(q, v, a)).all()


def test_same_bytes_in_another_process(tmp_path: Path) -> None:
    file = URDF / "pendulum.urdf"
    Robot.from_urdf(file).export(["inverse_dynamics", "energy"], tmp_path / "one")
    command = (
        f"from dyn_service import Robot; Robot.from_urdf({str(file)!r}).export(['inverse_dynamics', 'energy'], 'two')"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", command], check=True, cwd=tmp_path, env=environment)
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two")]
    assert files[0] == files[1]
    assert {"pendulum.o", "pendulum.h", "pendulum_selftest.c", "CMakeLists.txt"} <= files[0].keys()


@needs_compiler
def test_loops_and_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_SERVICE_CACHE", "")
    robot = Robot.from_urdf(URDF / "double_pendulum.urdf")
    monkeypatch.setattr(budget, "FIRST_PROBE", 1)
    monkeypatch.setattr(budget, "MAX_UNROLLED", 0)  # each kernel is a loop over the bodies
    robot.export(["step:rk4", "inverse_dynamics", "jacobians"], tmp_path)
    (graph,) = robot.evaluator.library.graphs(robot.signature(QUERIES["inverse_dynamics"], ""))
    assert graph.is_rolled
    done = subprocess.run([self_test(tmp_path, robot.name)], capture_output=True, text=True)
    assert done.stdout.count("good: same bits") == 3, done.stdout
    (library,), q = tmp_path.glob("lib*"), np.array([0.3, -0.4])
    expected = robot.jacobians(q).rotation
    rotation = np.full(expected.shape, np.nan)
    call(library, "double_pendulum_jacobians", 2000, q, None, rotation)  # the workspace is NaN
    assert (expected == 0.0).any()
    assert rotation.tobytes() == expected.tobytes()


@needs_compiler
def test_lists_of_loops_call_the_kernels_of_their_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_SERVICE_CACHE", "")
    robot = Robot.from_urdf(URDF / "double_pendulum.urdf")
    monkeypatch.setattr(budget, "FIRST_PROBE", 1)
    monkeypatch.setattr(budget, "MAX_UNROLLED", 0)
    link = robot.link_names[-1]
    names = ["mass_matrix", "step", "integrate"]
    robot.export(["+".join(names), "whole_body_terms"], tmp_path, wrenches=link, payload=link)
    done = subprocess.run([self_test(tmp_path, robot.name)], capture_output=True, text=True)
    assert done.stdout.count("good: same bits") == 2, done.stdout
    q, v, tau, dt = np.array([0.3, -0.4]), np.array([1.0, 2.0]), np.array([0.5, 0.1]), np.array(0.01)
    expected = robot.evaluate(names, q=q, v=v, tau=tau, dt=dt)
    assert len(robot.evaluator.library.graphs(robot.signature(row_of("+".join(names)), "rk4"))) == 3
    outputs = [np.full(2, np.nan) for _ in range(3)]
    inputs = (q, v, dt, tau, None, None, None)  # wrenches, payload, gravity
    (library,) = tmp_path.glob("lib*")
    call(library, "double_pendulum_mass_matrix_and_integrate_and_step", 4000, *inputs, None, *outputs)
    for x, y in zip(outputs, (expected["integrate"], expected["step"].q, expected["step"].v), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-14)


@pytest.mark.parametrize("target", TARGETS[1:])
def test_other_processors(target: str, tmp_path: Path) -> None:
    robot = Robot.from_urdf(URDF / "pendulum.urdf")
    files = robot.export(["inverse_dynamics"], tmp_path, target=target)
    code = files[0].read_bytes()
    machines = {"aarch64": 183, "cortex-m7": 40}
    if target == "wasm32":
        assert code[:4] == b"\0asm"
        assert b"fma" not in code
    else:
        assert int.from_bytes(code[18:20], "little") == machines.get(target, 62), "e_machine of ELF"
    header, source = (tmp_path / f"pendulum{ending}" for ending in (".h", "_selftest.c"))
    exact = target_of(target).has_host_bits()
    assert f"#define EXACT {int(exact)} " in source.read_text()
    assert "for " + target + ", " in header.read_text()


@needs_compiler
@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3", "aarch64"])
def test_other_processors_run(target: str, tmp_path: Path) -> None:
    robot = Robot.from_urdf(URDF / "scara.urdf")
    robot.export(VALUES, tmp_path, target=target)
    host, compiler, runner = target_of("host"), COMPILER, []
    if target_of(target).processor != host.processor:
        compiler, emulator = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
        if target != "aarch64" or compiler is None or emulator is None:
            pytest.skip("aarch64-linux-gnu-gcc and qemu-aarch64 are not installed")
        runner = [emulator]
    elif not host.fuses and target == "x86-64-v3":
        pytest.skip("this processor has no AVX2")
    program = self_test(tmp_path, "scara", linked=["-static"] if runner else [], compiler=compiler)
    done = subprocess.run([*runner, program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("good") == 2


BARE_METAL = """
extern void _start(void);
static void reset(void)
{
    *(volatile unsigned *)0xE000ED88 |= 0xFu << 20; /* the coprocessor access register: the FPU is on */
    __asm volatile("dsb; isb");
    _start();
}
__attribute__((section(".vectors"), used)) static void *const vectors[] = {(void *)0x20400000, (void *)reset};
"""
PLACES = """
SECTIONS
{
    . = 0;
    .text : { KEEP(*(.vectors)) *(.text*) KEEP(*(.init)) KEEP(*(.fini)) *(.rodata*) }
    .ARM.exidx : { *(.ARM.exidx*) }
    . = 0x20000000;
    .data : { *(.data*) }
    __bss_start__ = .;
    .bss : { *(.bss* COMMON) }
    __bss_end__ = .;
    __end__ = .;
    end = .;
}
"""


def test_cortex_m7_runs_without_an_operating_system(tmp_path: Path) -> None:
    """On QEMU's mps2-an500; the program prints by semihosting."""
    compiler, emulator = shutil.which("arm-none-eabi-gcc"), shutil.which("qemu-system-arm")
    if compiler is None or emulator is None:
        pytest.skip("arm-none-eabi-gcc and qemu-system-arm are not installed")
    names = ["inverse_dynamics", "forward_dynamics_derivatives", "step:semi_implicit_euler"]
    Robot.from_urdf(URDF / "scara.urdf").export(names, tmp_path, target="cortex-m7")
    (tmp_path / "start.c").write_text(BARE_METAL)
    (tmp_path / "places.ld").write_text(PLACES)
    options = ["-mcpu=cortex-m7", "-mfpu=fpv5-d16", "-mfloat-abi=hard", "-mthumb", "--specs=rdimon.specs"]
    files = ["-T", "places.ld", "start.c", "scara_selftest.c", "scara.o", "-o", "selftest"]
    subprocess.run([compiler, *options, *files], check=True, cwd=tmp_path, capture_output=True)
    machine = ["-M", "mps2-an500", "-nographic", "-semihosting-config", "enable=on,target=native"]
    command = [emulator, *machine, "-kernel", str(tmp_path / "selftest")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("good") == 3, done.stdout


WASM = """
const fs = require("fs"), [file, name, ...sizes] = process.argv.slice(2);
WebAssembly.instantiate(fs.readFileSync(file), {}).then(({instance: {exports}}) => {
    let at = 65536 * exports.memory.grow(4);
    const inputs = JSON.parse(fs.readFileSync(0)), places = inputs.map(x => {
        const place = at;
        if (x) { new Float64Array(exports.memory.buffer, at, x.length).set(x); at += 8 * x.length; }
        return x ? place : 0;
    });
    const out = at;
    exports[name](...places, out, out + 8 * sizes[0]);
    console.log(JSON.stringify(Array.from(new Float64Array(exports.memory.buffer, out, sizes[0]))));
});
"""


def test_wasm_runs_in_node(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None or shutil.which("wasm-ld") is None:
        pytest.skip("node and wasm-ld are not installed")
    robot = Robot.from_urdf(URDF / "scara.urdf")
    library = robot.export(["forward_dynamics"], tmp_path, target="wasm32")[-1]
    (tmp_path / "run.js").write_text(WASM)
    rng = np.random.default_rng(7)
    for k in range(2):
        q, v, tau = rng.normal(size=(3, robot.nv))
        command = [node, str(tmp_path / "run.js"), str(library), "scara_forward_dynamics_eval", str(robot.nv)]
        request = json.dumps([*(x.tolist() for x in (q, v, tau)), [0.0, 0.0, -1.6] if k else None])
        done = subprocess.run(command, input=request, capture_output=True, text=True, check=True)
        expected = robot.forward_dynamics(q, v, tau, gravity=[0.0, 0.0, -1.6] if k else None)
        np.testing.assert_allclose(json.loads(done.stdout), expected, rtol=0, atol=1e-12 * np.abs(expected).max())


HARNESS = """
#include <stdlib.h>
#include "scara.h"
int main(void)
{
    double *q = malloc(8 * N), *v = malloc(8 * N), *a = malloc(8 * N), *w = malloc(8 * WORK);
    double *out[OUTPUTS], sum = 0.0;
    int k, i;
    for (k = 0; k < N; k++)
        q[k] = 0.1 * k, v[k] = 0.2, a[k] = -0.3;
    for (k = 0; k < OUTPUTS; k++)
        out[k] = malloc(8 * (k ? N * N : N));
    if (EVAL(q, v, a, 0, out[0], out[1], out[2], out[3], w))
        return 2;
    for (k = 0; k < OUTPUTS; k++)
        for (i = 0; i < (k ? N * N : N); i++)
            sum += out[k][i];
    return sum == 0.0;
}
"""


@needs_compiler
def test_valgrind_finds_no_error_and_no_allocation(tmp_path: Path) -> None:
    """The arrays are on the heap, and as large as they must be; the workspace is not set."""
    valgrind, host = shutil.which("valgrind"), target_of("host")
    if valgrind is None:
        pytest.skip("valgrind is not installed")
    if host.processor == "x86_64" and not host.fuses:
        pytest.skip("this processor has no AVX2")
    robot = Robot.from_urdf(URDF / "scara.urdf")
    target = "x86-64-v3" if host.processor == "x86_64" else "host"  # valgrind has no AVX-512
    robot.export(["inverse_dynamics_derivatives"], tmp_path, target=target)
    (tmp_path / "harness.c").write_text(HARNESS)
    name = "scara_inverse_dynamics_derivatives"
    sizes = {"EVAL": f"{name}_eval", "WORK": f"{name.upper()}_W", "N": str(robot.nv), "OUTPUTS": "4"}
    options = ["-g", *(f"-D{key}={value}" for key, value in sizes.items())]
    assert COMPILER is not None
    subprocess.run([COMPILER, *options, "harness.c", "scara.o", "-o", "harness"], check=True, cwd=tmp_path)
    command = [valgrind, "--error-exitcode=9", "--leak-check=no", "./harness"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "total heap usage: 8 allocs" in done.stderr


@needs_compiler
def test_sine_without_fused_products_has_the_same_bits(tmp_path: Path) -> None:
    """Link poses of a joint about z: entries are sine and cosine alone."""
    robot = Robot.from_urdf(ARM)
    if target_of("host").processor != "x86_64":
        pytest.skip("needs an x86-64 processor")
    robot.export(["link_poses"], tmp_path, target="x86-64-v2")
    library = str(tmp_path / "arm.so")
    assert COMPILER is not None
    subprocess.run([COMPILER, "-shared", str(tmp_path / "arm.o"), "-o", library], check=True)
    call = ctypes.CDLL(library).arm_link_poses_eval
    rng = np.random.default_rng(3)
    angles = rng.normal(size=600) * 10.0 ** rng.uniform(-20.0, 13.0, 600)
    multiples = np.arange(1, 200) * (np.pi / 2)
    rotation, position, w = np.zeros((2, 3, 3)), np.zeros((2, 3)), np.zeros(200)
    for angle in [*angles, *multiples, *np.nextafter(multiples, 0.0), 2.0**45, 0.0, np.inf, np.nan]:
        q = np.array([angle])
        outputs = {"position": position, "rotation": rotation}
        names = re.findall(r"double \*(\w+)", _prototype(tmp_path / "arm.h", "arm_link_poses_eval"))
        arrays = [q, *(outputs[name] for name in names[1:-1]), w]
        call(*(ctypes.c_void_p(x.ctypes.data) for x in arrays))
        assert np.array_equal(rotation, robot.link_poses(q).rotation, equal_nan=True)


def _prototype(header: Path, name: str) -> str:
    prototype = re.search(rf"int {name}\(.*?\);", header.read_text())
    assert prototype is not None
    return prototype[0]


def test_header_has_units_shapes_and_order(tmp_path: Path) -> None:
    scara = Robot.from_urdf(URDF / "scara.urdf")
    scara.export(["point_motion:local"], tmp_path, name="arm")
    text = (tmp_path / "arm.h").read_text()
    assert all(f" {k} {name}" in text for k, name in enumerate(scara.joint_names))
    assert " * q: (4), rad | m; joint positions\n" in text
    assert re.search(r" \* link: \(\d+\); name of the point's link.*; 1 at the link, 0 elsewhere\n", text)
    assert "optional point: (3), m; " in text
    assert "Passive joint forces in the robot's file: none." in text
    assert "Gravity: (0, 0, -9.81) m/s^2 by default" in text
    assert f"links:\n *    0 {scara.link_names[0]}, 1 " in text
    follower = f"""{link("tool")}<joint name="k" type="continuous"><parent link="arm"/><child link="tool"/>
        <axis xyz="0 0 1"/><mimic joint="j" multiplier="-2" offset="0.5"/></joint></robot>"""
    floating = Robot.from_urdf(ARM.replace("</robot>", follower), root="floating")
    floating.export(["link_poses"], tmp_path, force=True)
    listing = " ".join((tmp_path / "arm.h").read_text().replace("\n *", "\n").split())
    for title, names in (("q (8):", "position_names"), ("v (7):", "velocity_names")):
        names_text = ", ".join(f"{k} {x}" for k, x in enumerate(getattr(floating.configuration, names)))
        assert f"{title} {names_text} " in listing
    assert "links, the names of the rows: 0 base, 1 arm, 2 tool " in listing
    assert "efforts: 0 k = -2 j + 0.5 " in listing
    panda = Robot.from_urdf(URDF / "panda.urdf", joints=ROOT / "config" / "panda_joints.yaml")
    panda.export(["inverse_dynamics", "mass_matrix", "link_poses"], tmp_path, force=True)
    acts = re.findall(r"Passive joint forces that act: (.*)\.", (tmp_path / "panda.h").read_text())
    assert acts == ["friction, armature", "armature", "none"]
    assert "0 panda_finger_joint2 = 1 panda_finger_joint1 + 0" in (tmp_path / "panda.h").read_text()
    assert "int arm_point_motion_local_eval(const double *q, " in text


def call(library: Path, name: str, size: int, *arrays: Any) -> None:
    """Calls NAME_eval; None is NULL."""
    w = np.full(size, np.nan)
    pointers = [ctypes.c_void_p(None if array is None else array.ctypes.data) for array in (*arrays, w)]
    assert ctypes.CDLL(str(library))[f"{name}_eval"](*pointers) == 0


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Robot, Path]:
    """The Panda, whose functions take two wrenches, a payload on a fixed link, and friction."""
    robot = Robot.from_urdf(URDF / "panda.urdf")
    folder = tmp_path_factory.mktemp("pushed")
    names = ["inverse_dynamics", "inverse_dynamics_derivatives", "forward_dynamics+mass_matrix+constraint_forces"]
    robot.export(names, folder, wrenches=PUSHED, payload=["panda_hand", "panda_link0"], friction=True)
    return robot, folder


PUSHED = ["panda_hand", "panda_link0", "panda_link3"]  # the first is fixed to a moving link, the second never moves
BODY = (2.0, 0.1, -0.2, 0.3, 0.03, 0.001, -0.002, 0.04, 0.003, 0.05)
INERTIA = np.array([[0.03, 0.001, -0.002], [0.001, 0.04, 0.003], [-0.002, 0.003, 0.05]])


@needs_compiler
def test_wrenches_payload_and_friction_are_inputs(pushed: tuple[Robot, Path]) -> None:
    robot, folder = pushed
    done = subprocess.run([self_test(folder, robot.name)], capture_output=True, text=True, check=True)
    assert done.stdout.count("good: same bits") == 3
    header = (folder / "panda.h").read_text()
    assert "optional wrenches: (3, 6), N m | N; [torque; force] on each link, at its origin in its axes:" in header
    assert f"   0 {PUSHED[0]}, 1 {PUSHED[1]}, 2 {PUSHED[2]}\n" in header
    assert "optional payload: (2, 10), kg | m | kg m^2; " in header
    assert "optional damping: (9), N m s/rad | N s/m; " in header
    assert "optional friction: (9), N m | N; " in header
    assert "Passive joint forces that act: damping, friction." in header
    (library,) = folder.glob("lib*")
    rng = np.random.default_rng(5)
    q, v, a = rng.normal(size=(3, robot.nv))
    wrenches, damping, friction = rng.normal(size=(3, 6)), *rng.uniform(0.1, 2.0, (2, robot.sizes["nr"]))
    payload, tau = np.array([BODY, BODY]), np.zeros(robot.nv)
    pairs = zip(robot.evaluator.model.rows.rates, damping, friction, strict=True)
    joints = {name: JointNumbers(damping=d, friction=f) for name, d, f in pairs}
    wrench_objects = [Wrench(link, W[:3], W[3:], frame=link) for link, W in zip(PUSHED, wrenches, strict=True)]
    payloads = [Payload("panda_hand", 2.0, BODY[1:4], INERTIA)]
    for only in range(5):  # all, then each input alone
        w, p, d, f = (x if only in (0, k) else None for k, x in enumerate((wrenches, payload, damping, friction), 1))
        numbers = {
            n: replace(x, **{k: None for k, y in (("damping", d), ("friction", f)) if y is None})
            for n, x in joints.items()
        }
        overlay = Overlay(payloads=() if p is None else payloads, joints=numbers)
        expected = robot.inverse_dynamics(q, v, a, wrenches=None if w is None else wrench_objects, overlay=overlay)
        call(library, "panda_inverse_dynamics", 700, q, v, a, w, p, d, f, None, tau)
        np.testing.assert_allclose(tau, expected, rtol=0, atol=1e-14 * np.abs(expected).max())


def test_payload_damping_and_friction_are_inputs_of_the_rows_that_read_them() -> None:
    """Of those whose kernels do, which take the numbers of every body and joint."""
    robot = Robot.from_urdf(URDF / "cart_pendulum.urdf")
    row_names = set()
    for row, method in ((x, method) for x in QUERIES.values() if x.overlay for method in x.kernels):
        signature = robot.signature(row, method, Variant(overlay=True))
        program = trace(kernel_tree(robot.tree, signature.bodies), signature).program
        inputs = [
            (signature.inputs[operand].name, entry) for code, operand, entry in program.instructions if code == INPUT
        ]
        read = {entry % OF_RATE for name, entry in inputs if name.endswith(f".{JOINTS}")}
        extra = ExtraInputs(payload=("cart",), friction=True)
        assert bool(extra.loaded(row, method)) == any(name.endswith(f".{BODIES}") for name, _ in inputs), row.name
        inputs_of_joints = extra.of_joints(row, method)
        assert inputs_of_joints == [name for place, name in enumerate(("damping", "friction")) if place in read], (
            row.name
        )
        row_names |= {row.name} if inputs_of_joints else set()
    assert {"step", "passive_forces"} <= row_names
    assert not {"mass_matrix", "energy", "force_torque"} & row_names
    with pytest.raises(InvalidArgumentError, match="none of the queries takes friction: omit it"):
        robot.export(["mass_matrix"], "nowhere", friction=True)
    with pytest.raises(InvalidArgumentError, match="none of the queries takes payload: omit it"):
        robot.export(["passive_forces", "influence_operators"], "nowhere", payload="cart")


def test_functions_take_only_what_has_an_effect(tmp_path: Path) -> None:
    robot = Robot.from_urdf(URDF / "cart_pendulum.urdf")
    rows = ["mass_matrix", "inverse_dynamics"]
    robot.export([*rows, "passive_forces"], tmp_path / "all", friction=True, payload="cart")
    robot.export(["mass_matrix"], tmp_path / "one", payload="cart")
    headers = [(tmp_path / folder / "cart_pendulum.h").read_text() for folder in ("all", "one")]
    optional_inputs = [
        name for name in ("payload", "damping", "friction") for _ in re.findall(f"optional {name}: ", headers[0])
    ]
    assert optional_inputs == ["payload", "payload", "damping", "damping", "friction", "friction"], headers[0]
    assert "int cart_pendulum_passive_forces_eval(const double *q, const double *v, const double *damping" in headers[0]
    assert "(const double *q, const double *payload, double *mass_matrix, double *w);" in headers[0]
    sizes = [re.findall(r"MASS_MATRIX_W \d+", header) for header in headers]
    assert sizes[0] == sizes[1], "the same function"


@needs_compiler
def test_two_links_of_one_body_and_the_friction_of_the_file(tmp_path: Path) -> None:
    """Wrenches and payloads of both links act; damping and friction that are NULL are the robot's own."""
    tool = f"""{link("tool")}<joint name="fixed" type="fixed"><parent link="arm"/><child link="tool"/>
        <origin xyz="0.3 0.1 0.2" rpy="0.4 0.5 0.6"/></joint></robot>"""
    text = ARM.replace("</joint></robot>", '<dynamics damping="0.3" friction="0.2"/></joint>' + tool)
    robot, links = Robot.from_text(text, root="floating"), ["tool", "arm"]
    robot.export(["inverse_dynamics"], tmp_path, wrenches=links, payload=links, friction=True)
    (library,) = tmp_path.glob("lib*")
    rng = np.random.default_rng(9)
    q, (v, a) = robot.configuration.normalised(rng.normal(size=robot.nq)), rng.normal(size=(2, robot.nv))
    W, bodies, tau = rng.normal(size=(2, 6)), np.array([BODY, (3.0, *BODY[1:])]), np.zeros(robot.nv)
    wrenches = [Wrench(name, w[:3], w[3:], frame=name) for name, w in zip(links, W, strict=True)]
    payloads = [Payload(name, x[0], x[1:4], INERTIA) for name, x in zip(links, bodies, strict=True)]
    for wrench_array, acting_wrenches, acting_payloads in ((None, [], []), (W, wrenches, payloads)):
        expected = robot.inverse_dynamics(q, v, a, wrenches=acting_wrenches, overlay=Overlay(payloads=acting_payloads))
        call(
            library,
            "arm_inverse_dynamics",
            700,
            q,
            v,
            a,
            wrench_array,
            bodies if acting_payloads else None,
            None,
            None,
            None,
            tau,
        )
        np.testing.assert_allclose(tau, expected, rtol=0, atol=1e-14 * np.abs(expected).max())
    Robot.from_text(ARM.replace(link("arm"), '<link name="arm"/>')).export(
        ["inverse_dynamics"], tmp_path / "light", payload="arm"
    )
    (library,) = (tmp_path / "light").glob("lib*")
    call(library, "arm_inverse_dynamics", 200, q, v, a, None, None, tau)
    assert tau[0] == 0.0, "no payload on a body without mass"


@needs_compiler
def test_casadi_gives_wrenches_but_no_derivatives_of_them(pushed: tuple[Robot, Path], casadi: ModuleType) -> None:
    robot, folder = pushed
    (library,) = map(str, folder.glob("lib*"))
    f = casadi.external("panda_inverse_dynamics", library)
    assert f.name_in() == ["q", "v", "a", "wrenches", "payload", "damping", "friction"]
    assert [f.is_diff_in(k) for k in range(f.n_in())] == [True] * 3 + [False] * 4
    n, rates = robot.nv, robot.sizes["nr"]
    rng = np.random.default_rng(6)
    q, v, a = rng.normal(size=(3, n))
    inputs = [q, v, a, rng.normal(size=(6, 3)), np.zeros((10, 2)), *np.zeros((2, rates))]
    symbols = [casadi.MX.sym(f.name_in(k), *f.size_in(k)) for k in range(f.n_in())]
    J = casadi.Function("J", symbols, [f(*symbols), casadi.jacobian(f(*symbols), symbols[1])])
    wrenches = [Wrench(link, W[:3], W[3:], frame=link) for link, W in zip(PUSHED, inputs[3].T, strict=True)]
    tau, by_v = J(*inputs)
    expected = robot.inverse_dynamics_derivatives(q, v, a, wrenches=wrenches)
    np.testing.assert_allclose(np.array(tau).ravel(), expected.tau, rtol=1e-13)
    np.testing.assert_allclose(np.array(by_v), expected.dtau_dv, rtol=0, atol=1e-13)


@needs_compiler
def test_lists_are_one_function(tmp_path: Path) -> None:
    robot = Robot.from_urdf(URDF / "scara.urdf")
    robot.export(["whole_body_terms", "step+energy:semi_implicit_euler"], tmp_path)
    done = subprocess.run([self_test(tmp_path, "scara")], capture_output=True, text=True, check=True)
    names = ["scara_whole_body_terms", "scara_energy_and_step_semi_implicit_euler"]
    assert done.stdout.splitlines() == [f"{name}: 4 states, good: same bits" for name in names]


@needs_compiler
def test_robot_without_moving_joints(tmp_path: Path) -> None:
    robot = Robot.from_text(ARM.replace("continuous", "fixed"))
    robot.export(["point_motion", "link_poses+inverse_dynamics"], tmp_path)
    done = subprocess.run([self_test(tmp_path, "arm")], capture_output=True, text=True, check=True)
    assert done.stdout.count("good: same bits") == 2
    assert "jacobian" not in _prototype(tmp_path / "arm.h", "arm_point_motion_eval")
    with pytest.raises(FailedPreconditionError, match="inverse_dynamics has no results"):
        robot.export(["inverse_dynamics"], tmp_path / "other")


def test_overlay_is_exported_as_its_numbers(tmp_path: Path) -> None:
    scara = Robot.from_urdf(URDF / "scara.urdf")
    heavy = scara.with_payload(Payload(scara.link_names[-1], 2.0))
    scara_code, heavy_code = (
        robot.export(["gravity_forces"], tmp_path / name)[2].read_text()
        for robot, name in ((scara, "own"), (heavy, "heavy"))
    )
    assert scara_code != heavy_code
    locked = scara.overlaid(Overlay(locked=[scara.joint_names[0]]))
    with pytest.raises(UnimplementedError, match="locked cannot be exported"):
        locked.export(["gravity_forces"], tmp_path / "locked")
    with pytest.raises(UnimplementedError, match="a gravity for each state cannot be exported"):
        scara.overlaid(Overlay(gravity=np.ones((2, 3)))).export(["gravity_forces"], tmp_path / "many")


ERRORS: dict[str, tuple[dict[str, object], type[DynError], str]] = {
    "number": ({"queries": [3]}, InvalidArgumentError, "must be names of queries, found 3"),
    "nothing": ({"queries": None}, InvalidArgumentError, "must be names of queries, found None"),
    "header": ({"name": "Time"}, InvalidArgumentError, "C or CMake use this name"),
    "keyword of CMake": ({"name": "debug"}, InvalidArgumentError, "C or CMake use this name"),
    "name of another type": ({"name": 7}, InvalidArgumentError, "name must begin with a letter, .* found 7"),
    "links": ({"wrenches": 3}, InvalidArgumentError, "wrenches must be names of links, found int 3"),
    "no links": ({"payload": None}, InvalidArgumentError, "payload must be names of links, found NoneType None"),
    "flag": ({"friction": "no"}, InvalidArgumentError, "friction must be true or false, found str 'no'"),
    "other flag": ({"force": 1}, InvalidArgumentError, "force must be true or false, found int 1"),
    "path": ({"folder": None}, InvalidArgumentError, "folder must be a path, found NoneType None"),
    "no path": ({"folder": "a\0b"}, InvalidArgumentError, r"folder must be a path, found str 'a\\x00b'"),
    "query": ({"queries": ["inverse_dynamic"]}, UnimplementedError, "did you mean 'inverse_dynamics'"),
    "computation": ({"queries": ["simulate"]}, UnimplementedError, "simulate is a computation"),
    "list": ({"queries": ["energy+topology"]}, InvalidArgumentError, "topology has no inputs"),
    "link": ({"wrenches": ["lin"]}, NotFoundError, "has no link 'lin'"),
    "twice": ({"queries": ["inverse_dynamics"], "payload": ["base", "base"]}, InvalidArgumentError, "twice"),
    "not taken": ({"wrenches": "base"}, InvalidArgumentError, "none of the queries takes wrenches: omit it"),
    "array": (
        {"wrenches": np.array(["base", "pendulum"])},
        InvalidArgumentError,
        "none of the queries takes wrenches: omit it",
    ),
    "none": ({"queries": []}, InvalidArgumentError, "at least one query"),
    "method": (
        {"queries": ["forward_dynamics:x"]},
        InvalidArgumentError,
        "its choices of method are articulated, mass",
    ),
    "no method": ({"queries": ["inverse_dynamics:"]}, InvalidArgumentError, "it has no choices"),
    "constant": ({"queries": ["topology"]}, InvalidArgumentError, "has the same answer at every state"),
    "target": ({"target": "arch64"}, InvalidArgumentError, "did you mean 'aarch64'"),
    "name": ({"name": "7 arms"}, InvalidArgumentError, "name must begin with a letter"),
}


@pytest.mark.parametrize("wrong", ERRORS)
def test_errors(wrong: str, tmp_path: Path) -> None:
    options_of_case, kind, message = ERRORS[wrong]
    options: dict[str, Any] = {"queries": ["energy"], "folder": tmp_path / "c", **options_of_case}
    with pytest.raises(kind, match=message):
        Robot.from_urdf(URDF / "pendulum.urdf").export(**options)
    assert not [*tmp_path.iterdir()]


def test_files_are_kept_and_folders_must_be_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    robot = Robot.from_urdf(URDF / "pendulum.urdf")
    header = tmp_path / "pendulum.h"
    header.write_text("mine")
    with pytest.raises(InvalidArgumentError, match=r"pendulum\.h already exists: set force=True"):
        robot.export(["energy"], tmp_path)
    assert header.read_text() == "mine"
    files = robot.export(["energy", "energy"], tmp_path, force=True)  # a query given twice is one function
    assert header.read_text().count("pendulum_energy_eval(") == 1
    assert sorted(files) == sorted(tmp_path.iterdir())
    monkeypatch.setenv("PATH", str(tmp_path))  # no linker
    assert len(robot.export(["energy"], tmp_path, force=True)) == len([*tmp_path.iterdir()]) == 4, "no old library"
    with pytest.raises(InvalidArgumentError, match=r"pendulum\.h.* cannot be created"):
        robot.export(["energy"], header / "below")


def test_there_is_never_a_part_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    robot = Robot.from_urdf(URDF / "pendulum.urdf")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "pendulum.h").symlink_to("nowhere")
    with pytest.raises(InvalidArgumentError, match="already exists"):
        robot.export(["energy"], tmp_path / "a")
    (tmp_path / "b" / "pendulum_selftest.c").mkdir(parents=True)
    with pytest.raises(InvalidArgumentError, match="is a folder"):
        robot.export(["energy"], tmp_path / "b", force=True)
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["pendulum_selftest.c"]
    replace_file = os.replace
    full, interrupt = OSError(28, "No space left on device"), KeyboardInterrupt("at once")
    for error, kind, message in (
        (full, InvalidArgumentError, "cannot be written: No space"),
        (interrupt, KeyboardInterrupt, "once"),
    ):

        def failing(source: Path, target: Path, error: BaseException = error) -> None:
            if target.name == "CMakeLists.txt":
                raise error
            replace_file(source, target)

        monkeypatch.setattr(os, "replace", failing)
        with pytest.raises(kind, match=message):
            robot.export(["energy"], tmp_path / "c" / "d")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@needs_compiler
def test_names_of_robots_do_not_break_the_build(tmp_path: Path) -> None:
    for name, prefix in (("time", "robot_time"), ("PRIVATE", "robot_PRIVATE"), ("a*/b/*c", "a__b__c")):
        Robot.from_text(ARM.replace('robot name="arm"', f'robot name="{name}"')).export(["energy"], tmp_path)
        done = subprocess.run([self_test(tmp_path, prefix)], capture_output=True, text=True)
        assert "good: same bits" in done.stdout
        (tmp_path / "CMakeLists.txt").unlink()


@needs_compiler
def test_tolerance_is_a_share_of_the_largest_entry_of_all_outputs(tmp_path: Path) -> None:
    """An output that is 0 has rounding errors; a result that is no number is wrong, also before others."""
    robot = Robot.from_urdf(URDF / "pendulum.urdf")
    robot.export(["link_poses"], tmp_path)
    source = tmp_path / "pendulum_selftest.c"
    text = source.read_text().replace("#define EXACT 1", "#define EXACT 0")
    assert "EXACT 0" in text
    head, zeros, rest = re.split(r"(_position\[4\]\[\d+\] = \{\n    \{)[^,]*", text, maxsplit=1)
    for number, word in (("1e-12", "good: largest difference"), ("1e-6", "WRONG"), ('__builtin_nan("")', "WRONG")):
        source.write_text(f"{head}{zeros}{number}{rest}")
        done = subprocess.run([self_test(tmp_path, "pendulum")], capture_output=True, text=True)
        assert word in done.stdout, done.stdout


@needs_compiler
def test_cmake_builds_the_library_and_tests_it(tmp_path: Path) -> None:
    cmake, ctest = shutil.which("cmake"), shutil.which("ctest")
    if cmake is None or ctest is None or not (shutil.which("ninja") or shutil.which("make")):
        pytest.skip("cmake, ctest, and ninja or make are not installed")
    Robot.from_urdf(URDF / "pendulum.urdf", root="floating").export(["difference"], tmp_path / "a b")  # needs libm
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    build = tmp_path / "build"
    configure = [cmake, *generator, "-DBUILD_SHARED_LIBS=ON", "-S", tmp_path / "a b", "-B", build]
    for command in (configure, [cmake, "--build", build]):
        subprocess.run(command, check=True, capture_output=True)
    done = subprocess.run([ctest, "--test-dir", build], check=True, capture_output=True, text=True)
    assert "100% tests passed" in done.stdout
    assert "Passed" in done.stdout
    assert [*build.glob("libpendulum.*")]


def test_row_without_answer_for_mimic_joints(tmp_path: Path) -> None:
    with pytest.raises(FailedPreconditionError, match="requires independent joints"):
        Robot.from_urdf(URDF / "panda.urdf").export(["branch_inertias"], tmp_path)


def test_row_without_answer(tmp_path: Path) -> None:
    robot = Robot.from_urdf(URDF / "double_pendulum.urdf", root="floating")
    with pytest.raises(FailedPreconditionError, match="the branch of joint 'root_joint' has no inertia"):
        robot.export(["forward_dynamics"], tmp_path)


@needs_compiler
def test_distance_of_floating_bases_needs_atan2_of_the_c_library(tmp_path: Path) -> None:
    robot = Robot.from_urdf(URDF / "pendulum.urdf", root="floating")
    files = robot.export(["difference"], tmp_path)
    assert "External symbols: atan2, of the C library." in files[1].read_text()
    assert sys.platform != "linux" or b"libm.so" in files[-1].read_bytes()
    call = ctypes.CDLL(str(files[-1])).pendulum_difference_eval
    rng = np.random.default_rng(4)
    q, q_goal = robot.configuration.normalised(rng.normal(size=(2, robot.nq)))
    distance, w = np.zeros(robot.nv), np.zeros(200)
    assert call(*(ctypes.c_void_p(x.ctypes.data) for x in (q, q_goal, distance, w))) == 0
    assert distance.tobytes() == robot.difference(q, q_goal).tobytes()
