"""A kernel's code lives exactly as long as what can call it, and what it took goes with it."""

from __future__ import annotations

import ctypes
import gc
import itertools
import pickle
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
from dyn_service.engine.robot import Robot
from dyn_service.kernels import gufunc, jit, single
from dyn_service.kernels.frames import simplest
from dyn_service.kernels.graph import trace
from dyn_service.kernels.jit import LoadedCode
from dyn_service.kernels.library import KernelLibrary
from dyn_service.kernels.lower import lower
from qa.soak import kernels as soak
from tests.conftest import ROOT, URDF
from tests.wide import wide

on_linux = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="counts what Linux tells of a process")
INVERSE_DYNAMICS = QUERIES["inverse_dynamics"]


def loaded(name: str = "scara") -> Robot:
    robot = Robot.from_urdf(URDF / f"{name}.urdf")
    robot.prepare(["inverse_dynamics", "gravity_forces"])
    return robot


def codes_of(robot: Robot) -> list[weakref.ref[LoadedCode]]:
    found = [made.code for made in robot._library._made.values()]
    return [weakref.ref(code) for code in found if code is not None]


@pytest.fixture
def no_collector() -> object:
    """What goes, goes by itself: a control process may have switched the collector of cycles off."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_code_goes_with_its_robot() -> None:
    robot = loaded()
    robot.inverse_dynamics(*np.zeros((3, robot.nv)))  # the general way, then the short way
    robot.inverse_dynamics(*np.zeros((3, robot.nv)))
    codes = codes_of(robot)
    assert len(codes) == 2
    gone = weakref.ref(robot)
    del robot
    assert gone() is None
    assert not any(code() for code in codes)


@on_linux
@pytest.mark.usefixtures("no_collector")
def test_its_memory_is_unmapped() -> None:
    def mapped(address: int) -> bool:
        lines = Path("/proc/self/maps").read_text().splitlines()
        spans = (line.split()[0].split("-") for line in lines)
        return any(int(begin, 16) <= address < int(end, 16) for begin, end in spans)

    robots = [loaded() for _ in range(20)]
    (code, *_) = (made.code for made in robots[0]._library._made.values())
    assert code is not None
    address = code.address("loop")
    assert mapped(address)
    maps = soak.Held.now().maps
    del robots, code
    assert soak.Held.now().maps <= maps - 20


@pytest.mark.parametrize("holder", ["ufunc", "single call"])
def test_what_can_call_it_keeps_it(holder: str) -> None:
    robot = loaded()
    signature = robot.signature(INVERSE_DYNAMICS, "")
    library = KernelLibrary(robot.tree)
    state = [*np.random.default_rng(0).normal(size=(3, robot.nv)), np.array([0.0, 0.0, -9.81])]
    expected = robot.inverse_dynamics(*state[:3])
    held = library.kernel(signature) if holder == "ufunc" else library.single_state(signature)
    code = weakref.ref(library._made[signature.name].code)
    del robot, library
    gc.collect()
    assert code() is not None
    for _ in range(100):
        np.testing.assert_array_equal(held(*state), expected)
    del held
    gc.collect()
    assert code() is None


def test_a_call_keeps_the_function_that_it_is() -> None:
    """That one is loaded once for all kernels; a process may load it again, and calls made before go on, and go."""
    calls = []
    for k in range(15):
        robot = loaded("pendulum")
        calls.append(robot._library.single_state(robot.signature(INVERSE_DYNAMICS, "")))
        single._method.cache_clear()
        if k % 3 == 0:
            calls.pop(k % len(calls))
        gc.collect()
    state = [np.array([0.3]), np.array([0.2]), np.array([0.1]), np.array([0.0, 0.0, -9.81])]
    assert len({call(*state).tobytes() for call in calls}) == 1


def test_a_ufunc_holds_its_code_where_numpy_looks_for_it() -> None:
    """In the slot of `numpy.frompyfunc`, which is counted and shown to the collector."""
    assert gufunc._slot_is_known()
    kernel = loaded()._kernel(loaded().signature(INVERSE_DYNAMICS, ""))
    (owned,) = [held for held in gc.get_referents(kernel) if isinstance(held, tuple)]
    assert any(isinstance(part, LoadedCode) for part in owned)
    assert sys.getrefcount(owned) == 3  # the ufunc's, ours, and the argument's
    assert not gufunc._KEPT


def test_another_layout_of_ufuncs_keeps_code_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is lost then, not answers."""
    monkeypatch.setattr(gufunc, "_slot_is_known", lambda: False)
    kept: list[object] = []
    monkeypatch.setattr(gufunc, "_KEPT", kept)
    robot = loaded()
    assert len(kept) == 2
    assert np.isfinite(robot.inverse_dynamics(*np.zeros((3, robot.nv)))).all()


def test_code_that_runs_is_not_freed() -> None:
    """The call in another thread is the last that holds it: as it would be when a robot is unloaded under a request."""
    expected = None
    batch = np.random.default_rng(0).normal(size=(3, 20_000, 8))
    with ThreadPoolExecutor(1) as pool:
        for _ in range(20):
            robot = loaded("panda")
            kernel = robot._kernel(robot.signature(INVERSE_DYNAMICS, ""))
            (code, *_) = codes_of(robot)
            running = pool.submit(kernel, *batch, np.array([0.0, 0.0, -9.81]))
            del robot, kernel
            found = running.result()
            expected = found if expected is None else expected
            np.testing.assert_array_equal(found, expected)
            del running
            pool.submit(gc.collect).result()  # the thread has let go of the call before
            assert code() is None


def test_nobody_waits_for_a_compiler_to_free_code() -> None:
    """LLVM does one thing at a time: what is dropped meanwhile is freed by the thread that compiles, when it has."""
    robot = loaded()
    (code, *_) = codes_of(robot)
    engine = code()._engine  # type: ignore[union-attr]
    compiles, done = threading.Event(), threading.Event()

    def compile_for_long() -> None:
        with pytest.MonkeyPatch.context() as patched:
            compiled = jit._compiled

            def slowly(text: str) -> bytes:
                compiles.set()
                assert done.wait(240)
                return compiled(text)

            patched.setattr(jit, "_compiled", slowly)
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
    """One kernel for all payloads, which goes with the last who can call it."""
    robot = loaded()
    codes = []
    for k in range(3):
        carrying = robot.with_payload(Payload(link=robot.link_names[-1], mass=1.0 + k))
        carrying.prepare(["inverse_dynamics"])
        codes.append(codes_of(carrying))
    assert [code() for code in codes[0]] == [code() for code in codes[2]]
    del robot
    gc.collect()
    assert all(code() is not None for code in codes[0])
    del carrying
    gc.collect()
    assert all(code() is None for code in codes[0])


@on_linux
@pytest.mark.parametrize("cycles", wide([150, 300], (150).__eq__))
def test_many_robots_leave_nothing(cycles: int) -> None:
    """The short run of `python -m qa.soak.kernels`: before, each of these left 0.3 MB and eight maps for ever."""
    done = subprocess.run(
        [sys.executable, "-m", "qa.soak.kernels", "--cycles", str(cycles)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_compiling_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM keeps every constant it has seen in a context, and llvmlite every pass manager: 60 kB a kernel and more.

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


def test_what_was_compiled_before_does_not_show() -> None:
    """The passes are made once, and what they have seen does not change what they do."""
    robot = Robot.from_urdf(URDF / "scara.urdf")
    rows = [QUERIES[name] for name in ("inverse_dynamics", "mass_matrix", "gravity_forces")]
    texts = [lower(trace(simplest(robot.tree), robot.signature(row, "")), jit.host().lanes, "loop") for row in rows]
    jit._passes.cache_clear()
    first = [jit.compile_ir(text) for text in texts]
    assert [jit.compile_ir(text) for text in reversed(texts)] == first[::-1]


def test_pickled_robots_know_what_was_found_out() -> None:
    """Whether a joint is massless takes the tracer to know: a process that has none to spare is told."""
    robot = Robot.from_urdf(URDF / "scara.urdf")
    assert "massless_joint" not in vars(pickle.loads(pickle.dumps(robot)))
    assert robot.massless_joint is None
    copy = pickle.loads(pickle.dumps(robot))
    assert vars(copy)["massless_joint"] is None
    assert copy.fingerprint == robot.fingerprint


def test_the_head_of_a_ufunc_is_as_the_abi_says() -> None:
    head = gufunc._UFuncHead.from_address(id(np.add))
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

    before = sys.gettrace()
    for at in itertools.count():
        left = itertools.count(at, -1)
        jit._DROPPED.append(jit.llvm.create_mcjit_compiler(jit.llvm.parse_assembly(""), jit._machine()))
        sys.settrace(trace)
        try:
            jit.compile_ir("") if compiles else jit._free_dropped()
        except KeyboardInterrupt:
            pass
        else:
            break
        finally:
            sys.settrace(before)
        assert not jit._COMPILING.locked(), at
    assert at > 10
    assert not jit._DROPPED
