"""A kernel's code and its memory live exactly as long as the objects that can call it."""

from __future__ import annotations

import ctypes
import gc
import itertools
import pickle
import platform
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from dyn_service import Payload
from dyn_service.api.queries import QUERIES
from dyn_service.dynamics import expressions as ex
from dyn_service.engine.robot import Robot
from dyn_service.kernels import direct, jit, library
from dyn_service.kernels.direct import Arguments
from dyn_service.kernels.frames import cheapest_frames
from dyn_service.kernels.graph import Graph, trace
from dyn_service.kernels.jit import LoadedCode, Loop
from dyn_service.kernels.library import KernelLibrary
from dyn_service.kernels.loop import BODY
from dyn_service.kernels.lower import lower
from qa.soak import kernels as soak
from tests.conftest import ROOT, URDF
from tests.wide import wide

on_linux = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")
INVERSE_DYNAMICS = QUERIES["inverse_dynamics"]


def loaded(name: str = "scara") -> Robot:
    robot = Robot.from_urdf(URDF / f"{name}.urdf")
    robot.prepare(["inverse_dynamics", "gravity_forces"])
    return robot


def codes_of(library: KernelLibrary) -> list[weakref.ref[LoadedCode]]:
    return [weakref.ref(kernel.loop.code) for kernel in library._kernels.values() if kernel.loop is not None]


@pytest.fixture
def no_collector() -> object:
    """Switches garbage collection off, as a control process may do: objects are freed by reference counts."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_code_is_freed_with_its_robot() -> None:
    robot = loaded()
    robot.inverse_dynamics(*np.zeros((3, robot.nv)))  # the slow path, then the fast path
    robot.inverse_dynamics(*np.zeros((3, robot.nv)))
    codes = codes_of(robot.evaluator.library)
    assert len(codes) == 2
    robot_reference = weakref.ref(robot)
    del robot
    assert robot_reference() is None
    assert not any(code() for code in codes)


@on_linux
@pytest.mark.usefixtures("no_collector")
def test_memory_of_freed_code_is_unmapped() -> None:
    def mapped(address: int) -> bool:
        lines = Path("/proc/self/maps").read_text().splitlines()
        spans = (line.split()[0].split("-") for line in lines)
        return any(int(begin, 16) <= address < int(end, 16) for begin, end in spans)

    robots = [loaded() for _ in range(20)]
    (kernel, *_) = robots[0].evaluator.library._kernels.values()
    assert kernel.loop is not None
    code = kernel.loop.code
    address = code.address(BODY)
    assert mapped(address)
    maps = soak.Resources.now().maps
    del robots, kernel, code
    assert soak.Resources.now().maps <= maps - 20


@pytest.mark.parametrize("holder", ["ufunc", "direct call"])
def test_everything_that_can_call_code_keeps_it(holder: str) -> None:
    robot = loaded()
    signature = robot.signature(INVERSE_DYNAMICS, "")
    library = KernelLibrary(robot.tree)
    state = [*np.random.default_rng(0).normal(size=(3, robot.nv)), np.array([0.0, 0.0, -9.81])]
    expected = robot.inverse_dynamics(*state[:3])
    caller: Any = library.kernel(signature) if holder == "ufunc" else library.direct_call(signature, Arguments())
    arguments = state if holder == "ufunc" else (tuple(state), ())
    (code,) = codes_of(library)
    del robot, library
    gc.collect()
    assert code() is not None
    for _ in range(100):
        np.testing.assert_array_equal(caller(*arguments), expected)
    del caller
    gc.collect()
    assert code() is None


def test_a_call_keeps_its_compiled_function() -> None:
    """A process loads this function once for all kernels. If it is loaded again, earlier calls keep working."""
    calls = []
    for k in range(7):
        robot = loaded("pendulum")
        calls.append(robot.evaluator.library.direct_call(robot.signature(INVERSE_DYNAMICS, ""), Arguments()))
        direct._method.cache_clear()
        if k % 3 == 0:
            calls.pop(k % len(calls))
        gc.collect()
    state = [np.array([0.3]), np.array([0.2]), np.array([0.1]), np.array([0.0, 0.0, -9.81])]
    assert len({call(tuple(state), ()).tobytes() for call in calls}) == 1


def test_a_ufunc_owns_its_code_in_the_slot_of_frompyfunc() -> None:
    """In the slot of `numpy.frompyfunc`, which is reference-counted and visible to the garbage collector."""
    assert jit._slot_is_known()
    kernel = loaded().evaluator.library.kernel(loaded().signature(INVERSE_DYNAMICS, ""))
    (owned,) = [referent for referent in gc.get_referents(kernel) if isinstance(referent, tuple)]
    assert any(isinstance(part, Loop) for part in owned)
    assert sys.getrefcount(owned) == 3  # references of the ufunc, this test and the argument
    assert not jit._PERMANENT


def test_code_is_kept_if_the_layout_of_ufuncs_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then memory is leaked, and results are correct."""
    monkeypatch.setattr(jit, "_slot_is_known", lambda: False)
    permanent: list[object] = []
    monkeypatch.setattr(jit, "_PERMANENT", permanent)
    robot = loaded()
    assert len(permanent) == 2
    assert np.isfinite(robot.inverse_dynamics(*np.zeros((3, robot.nv)))).all()


def test_running_code_is_not_freed() -> None:
    """A call in another thread holds the last reference, as when a robot is unloaded during a request."""
    expected = None
    batch = np.random.default_rng(0).normal(size=(3, 20_000, 8))
    with ThreadPoolExecutor(1) as pool:
        for _ in range(8):
            robot = loaded("panda")
            kernel = robot.evaluator.library.kernel(robot.signature(INVERSE_DYNAMICS, ""))
            (code, *_) = codes_of(robot.evaluator.library)
            running = pool.submit(kernel, *batch, np.array([0.0, 0.0, -9.81]))
            del robot, kernel
            result = running.result()
            expected = result if expected is None else expected
            np.testing.assert_array_equal(result, expected)
            del running
            pool.submit(gc.collect).result()  # the thread has dropped its previous call
            assert code() is None


def test_freeing_code_does_not_wait_for_the_compiler() -> None:
    """LLVM runs one call at a time: code dropped during a compilation is freed by the compiling thread afterwards."""
    robot = loaded()
    (code, *_) = codes_of(robot.evaluator.library)
    engine = code()._engine  # type: ignore[union-attr]
    compiles, done = threading.Event(), threading.Event()

    def compile_for_long() -> None:
        with pytest.MonkeyPatch.context() as patched:
            optimise = jit._optimise

            def slowly(*arguments: Any) -> None:
                compiles.set()
                assert done.wait(240)
                optimise(*arguments)

            patched.setattr(jit, "_optimise", slowly)
            jit.compile_ir("define void @f() { ret void }")

    thread = threading.Thread(target=compile_for_long)
    thread.start()
    assert compiles.wait(240)
    del robot  # returns, though the compiler is busy until `done`
    gc.collect()
    assert code() is None
    assert not engine.closed
    done.set()
    thread.join(240)
    assert engine.closed
    assert not jit._DROPPED


def test_robots_with_a_payload_share_their_kernels() -> None:
    """One kernel for all payloads, freed with the last object that can call it."""
    robot = loaded()
    codes = []
    for k in range(3):
        carrying = robot.with_payload(Payload(link=robot.link_names[-1], mass=1.0 + k))
        carrying.prepare(["inverse_dynamics"])
        codes.append(codes_of(carrying.evaluator.library))
    assert [code() for code in codes[0]] == [code() for code in codes[2]]
    del robot
    gc.collect()
    assert all(code() is not None for code in codes[0])
    del carrying
    gc.collect()
    assert all(code() is None for code in codes[0])


@on_linux
@pytest.mark.parametrize("cycles", wide([40, 150, 300], (40).__eq__))
def test_many_robots_leak_nothing(cycles: int) -> None:
    """The short run of `python -m qa.soak.kernels`: without freeing, each robot leaks 0.3 MB and eight maps."""
    done = subprocess.run(
        [sys.executable, "-m", "qa.soak.kernels", "--cycles", str(cycles)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


_RESERVING = """
import ctypes, sys
import numpy as np
from dyn_service import Robot

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def reserve(size):
    place = libc.mmap(None, size, 0, 0x4022, -1, 0)  # MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE
    assert place not in (None, ctypes.c_void_p(-1).value)
    return place


def loaded():
    robot, z = Robot.from_urdf(sys.argv[1]), np.zeros(8)
    return [getattr(robot, query)(*[z] * count) for query, count in (("mass_matrix", 1), ("inverse_dynamics", 3))]


before = loaded()  # with all imports; the kernels are in the store now
hole, below = reserve(8192), reserve(8 << 30)
for size in (1 << 30, 1 << 26, 1 << 22, 1 << 18, 1 << 14, 1 << 12):  # all free places above
    while (place := reserve(size)) > below:
        pass
    libc.munmap(place, size)
libc.munmap(hole, 8192)
print(all((x == y).all() for x, y in zip(before, loaded(), strict=True)))
"""


@on_linux
def test_code_and_its_constants_stay_together_beside_libraries_that_reserve_gigabytes() -> None:
    """With a hole for the code alone and the next free place 8 GiB below it, as beside JAX with PyTorch.

    Code reaches its constants by 32 bits, and LLVM ended the process.
    """
    command = [sys.executable, "-c", _RESERVING, str(URDF / "panda.urdf")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


_WITHOUT_FUSED = """
import ctypes
from dyn_service.kernels import jit

here = jit.host()
jit.host = lambda: jit.Host(here.triple, "x86-64-v2", "", 2)
text = '''
declare double @llvm.fma.f64(double, double, double)
define double @f(double %x, double %y) {
  %b = call double @llvm.fma.f64(double %x, double %y, double %y)
  ret double %b
}
'''
code = jit.LoadedCode(jit.compile_ir(text))
kind = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_double)
print(kind(code.address("f"))(3.0, 2.0))
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names an x86-64 processor")
def test_code_that_calls_the_c_library_is_loaded() -> None:
    """Such as that of processors without fused products: LLVM ended the process where it had no place for addresses."""
    command = [sys.executable, "-c", _WITHOUT_FUSED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "8.0\n"), done.stderr


def test_compiling_leaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An LLVM context keeps all its constants, and llvmlite every pass manager: 60 kB per kernel and more.

    What that comes to in memory: `python -m qa.soak.kernels --compile`.
    """
    jit.compile_ir("define void @f() { ret void }")
    contexts: list[Any] = []
    create = jit.llvm.create_context
    monkeypatch.setattr(jit.llvm, "create_context", lambda: contexts.append(create()) or contexts[-1])
    monkeypatch.setattr(jit.llvm, "create_new_module_pass_manager", None)
    monkeypatch.setattr(jit.llvm, "create_pass_builder", None)
    jit.compile_ir("define void @f() { ret void }")
    (context,) = contexts
    assert context.closed


def test_compiling_keeps_no_graph_and_returns_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each kernel that is compiled, and after none from the store."""
    monkeypatch.setenv("DYN_SERVICE_CACHE", str(tmp_path))
    released: list[int] = []
    monkeypatch.setattr(library, "release_freed_memory", lambda: released.append(len(graphs())))
    gc.collect()
    initial_count = len(graphs())
    for _ in range(2):
        robot = Robot.from_urdf(URDF / "scara.urdf")
        robot.prepare(["inverse_dynamics", "mass_matrix"])
        gc.collect()
        assert len(graphs()) == initial_count
        assert len(released) == 2


def graphs() -> list[Any]:
    """Traced graphs, and expressions of CasADi, that exist."""
    return [graph for graph in gc.get_objects() if isinstance(graph, Graph | ex.Node | ex.Program)]


def test_memory_is_returned_where_the_system_can() -> None:
    jit.release_freed_memory()
    assert (jit._trim() is None) == (sys.platform != "linux" or "glibc" not in " ".join(platform.libc_ver()))


def test_earlier_compilations_do_not_affect_the_code() -> None:
    """The passes are created once; earlier modules do not affect their output."""
    robot = Robot.from_urdf(URDF / "scara.urdf")
    rows = [QUERIES[name] for name in ("inverse_dynamics", "mass_matrix", "gravity_forces")]
    texts = [lower(trace(cheapest_frames(robot.tree), robot.signature(row, "")), jit.host().lanes) for row in rows]
    jit._passes.cache_clear()
    first = [jit.compile_ir(text) for text in texts]
    assert [jit.compile_ir(text) for text in reversed(texts)] == first[::-1]


def test_pickled_robots_include_computed_properties() -> None:
    """Finding a massless joint needs the tracer, so the pickle contains the result."""
    robot = Robot.from_urdf(URDF / "scara.urdf")
    assert "massless_joint" not in vars(pickle.loads(pickle.dumps(robot)).evaluator.model)
    assert robot.massless_joint is None
    copy = pickle.loads(pickle.dumps(robot))
    assert vars(copy.evaluator.model)["massless_joint"] is None
    assert copy.fingerprint == robot.fingerprint


def test_the_head_of_a_ufunc_has_the_layout_of_the_abi() -> None:
    head = jit._UFuncHead.from_address(id(np.add))
    assert (head.nin, head.nout, head.nargs, head.ntypes) == (2, 1, 3, np.add.ntypes)
    assert ctypes.string_at(head.name) == b"add"


@pytest.mark.parametrize("compiles", [True, False])
def test_an_interrupt_while_code_is_freed_does_not_block_the_next_compilation(compiles: bool) -> None:
    """An interrupt before any bytecode of `_free_dropped`, as Ctrl-C raises it in a finalizer or in a compilation."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is not jit._free_dropped.__code__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and next(left) == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    tracer = sys.gettrace()
    for event_count in itertools.count():
        left = itertools.count(event_count, -1)
        jit._DROPPED.append(jit.llvm.create_mcjit_compiler(jit.llvm.parse_assembly(""), jit._machine()))
        sys.settrace(trace)
        try:
            jit.compile_ir("") if compiles else jit._free_dropped()
        except KeyboardInterrupt:
            pass
        else:
            break
        finally:
            sys.settrace(tracer)
        assert not jit._COMPILING.locked(), event_count
    assert event_count > 10
    assert not jit._DROPPED
