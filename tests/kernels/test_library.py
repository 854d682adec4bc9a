"""A robot's kernels: loaded from the store without compiling; refused early, and once, if too large."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dyn_service import ResourceExhaustedError
from dyn_service.api.queries import QUERIES
from dyn_service.api.spec import WITH_WRENCHES, WITHOUT_WRENCHES, Variant
from dyn_service.engine.evaluator import Evaluator
from dyn_service.engine.robot import Robot
from dyn_service.kernels import budget, certify, compiling, frames, graph, jit, library, lower, rolled, store
from tests.conftest import URDF
from tests.passive import restless
from tests.phrases import unnamed
from tests.random_robots import random_urdf

INVERSE_DYNAMICS, FORWARD_DYNAMICS = QUERIES["inverse_dynamics"], QUERIES["forward_dynamics"]


@pytest.fixture
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "kernels"
    monkeypatch.setenv("DYN_SERVICE_CACHE", str(folder))
    return folder


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(text: str, **_: bool) -> bytes:
        raise AssertionError("the compiler was asked")

    monkeypatch.setattr(compiling, "compile_ir", compiled)


def pendulum() -> Robot:
    return Robot.from_urdf(URDF / "pendulum.urdf")


# Loading, never compiling.


@pytest.mark.usefixtures("no_compiler")
def test_a_kernel_that_was_never_compiled_is_not_loaded(own_store: Path) -> None:
    robot = pendulum()
    assert not robot.evaluator.load_kernel(INVERSE_DYNAMICS)
    assert not robot.evaluator.load_kernel(INVERSE_DYNAMICS, "", WITH_WRENCHES)
    assert not robot.certificates
    assert not own_store.exists()


def test_a_kernel_compiled_by_another_process_is_loaded(own_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that was missing is found after another process compiled it, without a new robot."""
    robot = pendulum()
    assert not robot.evaluator.load_kernel(FORWARD_DYNAMICS, "articulated")
    other_robot = pendulum()
    other_robot.prepare(["forward_dynamics"])
    expected = other_robot.forward_dynamics([0.3], [0.2], [0.1])
    monkeypatch.setattr(compiling, "compile_ir", None)
    assert robot.evaluator.load_kernel(FORWARD_DYNAMICS, "articulated")
    assert robot.evaluator.load_kernel(FORWARD_DYNAMICS, "mass_matrix")
    assert not robot.evaluator.load_kernel(FORWARD_DYNAMICS, "articulated", WITH_WRENCHES)
    assert robot.certificates == other_robot.certificates
    assert robot.forward_dynamics([0.3], [0.2], [0.1]) == expected


def test_first_state_after_loading_takes_the_fast_path(own_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After loading, as after preparing, the first call is not slower than later ones."""
    prepared_robot = pendulum()
    prepared_robot.prepare(["inverse_dynamics"])
    loaded_robot = pendulum()
    assert loaded_robot.evaluator.load_kernel(INVERSE_DYNAMICS)
    monkeypatch.setattr(Evaluator, "answer", None)  # all forms but the direct one
    state = np.array([0.3]), np.array([0.2]), np.array([0.1])
    assert loaded_robot.inverse_dynamics(*state) == prepared_robot.inverse_dynamics(*state)


def test_a_singular_mass_matrix_installs_no_fast_path(own_store: Path) -> None:
    """The refusal needs no kernel and no compiler."""
    massless = (
        '<robot name="m"><link name="a"/><link name="b"/><joint name="j" type="continuous"><parent link="a"/>'
        '<child link="b"/><axis xyz="0 0 1"/></joint></robot>'
    )
    for warm in ("prepare", "load"):
        robot = Robot.from_urdf(massless)
        if warm == "prepare":
            robot.prepare(["forward_dynamics"])
        else:
            assert robot.evaluator.load_kernel(FORWARD_DYNAMICS, "articulated")
        for _ in range(2):
            with pytest.raises(Exception, match="no inertia along it"):
                robot.forward_dynamics([0.0], [0.0], [1.0])


@pytest.mark.usefixtures("own_store", "no_compiler")
def test_queries_without_a_kernel_are_always_available() -> None:
    constant = next(row for row in QUERIES.values() if row.constant)
    assert pendulum().evaluator.load_kernel(constant)
    immobile = Robot.from_urdf('<robot name="still"><link name="base"/></robot>')
    assert immobile.evaluator.load_kernel(INVERSE_DYNAMICS)


def test_loading_does_not_wait_for_a_compiler(own_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another thread compiles another kernel of the same robot."""
    pendulum().prepare(["inverse_dynamics"])
    robot = pendulum()
    compiles, done = threading.Event(), threading.Event()
    compiled = compiling.compile_ir

    def slowly(text: str, **options: bool) -> bytes:
        compiles.set()
        assert done.wait(240)
        return compiled(text, **options)

    monkeypatch.setattr(compiling, "compile_ir", slowly)
    thread = threading.Thread(target=robot.prepare, args=(["mass_matrix"],))
    thread.start()
    assert compiles.wait(240)
    assert robot.evaluator.load_kernel(INVERSE_DYNAMICS)
    assert not robot.evaluator.load_kernel(QUERIES["mass_matrix"])
    assert np.isfinite(robot.inverse_dynamics([0.3], [0.2], [0.1])).all()
    done.set()
    thread.join(240)
    assert robot.evaluator.load_kernel(QUERIES["mass_matrix"])


def test_threads_that_load_the_same_kernel_share_it(own_store: Path) -> None:
    pendulum().prepare(["inverse_dynamics"])
    robot = pendulum()
    start = threading.Barrier(8)
    kernels: list[object] = []

    def load() -> None:
        start.wait(240)
        assert robot.evaluator.load_kernel(INVERSE_DYNAMICS)
        kernels.append(robot.evaluator.library.kernel(robot.signature(INVERSE_DYNAMICS, "")))

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert len(kernels) == 8
    assert len(set(map(id, kernels))) == 1


def test_loading_needs_no_tracer(own_store: Path) -> None:
    pendulum().prepare(["inverse_dynamics"])
    program = (
        "import sys; from dyn_service import Robot, QUERIES;"
        f"r = Robot.from_urdf({str(URDF / 'pendulum.urdf')!r});"
        "print(r.evaluator.load_kernel(QUERIES['inverse_dynamics']), 'dyn_service.dynamics.expressions' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


@pytest.mark.usefixtures("own_store")
def test_a_kernel_does_not_wait_for_another_of_the_robot(monkeypatch: pytest.MonkeyPatch) -> None:
    robot, caller = pendulum(), threading.current_thread()
    compiles, done = threading.Event(), threading.Event()
    compiled = compiling.compile_ir

    def slowly(text: str, **options: bool) -> bytes:
        if threading.current_thread() is not caller:
            compiles.set()
            assert done.wait(240)
        return compiled(text, **options)

    monkeypatch.setattr(compiling, "compile_ir", slowly)
    thread = threading.Thread(target=robot.prepare, args=(["mass_matrix"],))
    thread.start()
    assert compiles.wait(240)
    assert np.isfinite(robot.gravity_forces([0.1])).all()
    assert list(robot.certificates) == ["gravity_forces"]
    done.set()
    thread.join()
    assert set(robot.certificates) == {"gravity_forces", "mass_matrix"}


@pytest.mark.usefixtures("own_store")
@pytest.mark.parametrize("processors", [1, 2])
def test_a_second_thread_makes_kernels(processors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first kernel, whose frames the others use; LLVM generates the code of both kernels at the same time."""
    pendulum().prepare(["inverse_dynamics"])  # compiles the code that all kernels share
    robot, barrier, threads = pendulum(), threading.Barrier(processors), set()
    emit = jit._unlocked_emit()

    def together(*arguments: Any) -> Any:
        if robot.evaluator.library.certificates:
            barrier.wait(240)
            threads.add(threading.get_ident())
        return emit(*arguments)

    monkeypatch.setattr(library, "_processors", lambda: processors)
    monkeypatch.setattr(jit, "_unlocked_emit", lambda: together)
    robot.prepare(["bias_forces", "gravity_forces", "mass_matrix"])
    assert len(threads) == processors
    assert len(robot.certificates) == 3


def test_code_is_generated_without_the_lock_of_llvmlite(monkeypatch: pytest.MonkeyPatch) -> None:
    emit, is_generating, is_locked, is_done = (
        jit._unlocked_emit(),
        threading.Event(),
        threading.Event(),
        threading.Event(),
    )

    def slowly(*arguments: Any) -> Any:
        is_generating.set()
        assert is_locked.wait(240)
        code = emit(*arguments)
        is_done.set()
        return code

    monkeypatch.setattr(jit, "_unlocked_emit", lambda: slowly)
    thread = threading.Thread(target=jit.compile_ir, args=("define void @f() { ret void }",))
    thread.start()
    assert is_generating.wait(240)
    with jit.llvm.ffi.lib._lock:
        is_locked.set()
        assert is_done.wait(240)
    thread.join(240)


# Refusing.


@pytest.fixture
def small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also, all kernels are straight-line code, as those of a robot with many planar joints."""
    monkeypatch.setattr(budget, "MAX_OPERATIONS", 20_000)
    monkeypatch.setattr(rolled, "MAX_KINDS", 0)


def chain(joints: int) -> Robot:
    return Robot.from_urdf(random_urdf(5, movable=joints, bushy=0.0))


class Traced:
    """Records the numbers of bodies that were traced, and the number of operations."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bodies: list[int] = []
        self.operations = 0
        trace = graph.trace

        def noted(model: frames.KernelTree, *args: object, **options: object) -> graph.Graph:
            traced_graph = trace(model, *args, **options)  # type: ignore[arg-type]
            self.bodies.append(len(model.tree))
            self.operations += traced_graph.operations
            return traced_graph

        monkeypatch.setattr(budget, "trace", noted)
        monkeypatch.setattr(certify, "trace", noted)


REFUSED = ["equation_terms", "mass_matrix_steps", "influence_operators", "branch_inertias"]
"""Queries whose operations grow by different powers of the number of bodies."""


@pytest.mark.usefixtures("own_store", "small_budget")
@pytest.mark.parametrize("query", REFUSED)
def test_a_refusal_traces_only_slightly_more_than_the_limit(query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a long chain and any power with which the operations grow."""
    robot = chain(110)
    tracer = Traced(monkeypatch)
    row = QUERIES[query]
    signature = robot.signature(row, next(iter(row.kernels)))
    with pytest.raises(ResourceExhaustedError) as error:
        robot.evaluator.library.kernel(signature)
    assert (
        unnamed(
            error.value, signature.name, "'random_5'", "20000", f"{len(robot.tree) if row.bodies == 'links' else 110}"
        )
        == []
    )
    assert tracer.operations <= 3 * 20_000
    assert max(tracer.bodies) < len(robot.tree)


@pytest.mark.usefixtures("own_store")
@pytest.mark.parametrize("query", REFUSED)
def test_the_first_bodies_take_no_more_operations_than_all(query: str) -> None:
    """So a prediction from the first bodies holds for the robot; for all bodies it equals the traced operations."""
    robot = Robot.from_urdf(random_urdf(3, movable=16, bushy=0.6))
    row = QUERIES[query]
    signature = robot.signature(row, next(iter(row.kernels)))
    model = frames.kernel_tree(robot.tree, signature.bodies)
    counts = [budget.operation_count(model, signature, bodies) for bodies in range(4, len(model.tree) + 1, 4)]
    counts.append(budget.operation_count(model, signature, len(model.tree)))
    assert counts == sorted(counts)
    whole = graph.trace(model, signature).operations
    assert counts[-1] == whole


@pytest.mark.usefixtures("own_store")
def test_prediction_covers_all_variants_and_floating_roots() -> None:
    robot = restless(
        random_urdf(3, movable=10, bushy=0.3), root="floating"
    )  # so that the query of passive forces has operations
    for row in QUERIES.values():
        for method in row.kernels if not row.constant else ():
            first = method == next(iter(row.kernels))  # the others differ in one function, in all variants alike
            for variant in (WITHOUT_WRENCHES, WITH_WRENCHES, Variant(overlay=True)):
                if (variant == WITH_WRENCHES and row.wrenches is None) or not (first or variant == WITHOUT_WRENCHES):
                    continue
                signature = robot.signature(row, method, variant)
                model = frames.kernel_tree(robot.tree, signature.bodies)
                assert 0 < budget.operation_count(model, signature, 2) <= budget.operation_count(model, signature, 3)


def test_a_refusal_is_stored(own_store: Path, small_budget: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the robot, and on disk for other robots and processes, so that none traces it again."""
    row = QUERIES["equation_terms"]
    robot = chain(40)
    state = np.zeros((3, robot.nv))
    messages = []

    def ask(robot: Robot) -> None:
        with pytest.raises(ResourceExhaustedError) as error:
            robot.equation_terms(*state)
        messages.append(str(error.value))

    ask(robot)
    tracer = Traced(monkeypatch)
    ask(robot)
    assert len(list(own_store.iterdir())) == 1
    ask(chain(40))
    with pytest.raises(ResourceExhaustedError, match="too many for this query"):
        chain(40).evaluator.load_kernel(row)
    monkeypatch.setenv("DYN_SERVICE_CACHE", "")
    ask(robot)  # from memory
    assert tracer.bodies == []
    assert len(set(messages)) == 1


def test_the_size_of_the_compiled_graph_is_limited_too(own_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size is not predicted for few bodies, nor for the form in link frames that replaces an inexact kernel."""
    monkeypatch.setattr(budget, "MAX_OPERATIONS", 500)
    monkeypatch.setattr(lower, "lower", None)
    robot = Robot.from_urdf(URDF / "panda.urdf")
    with pytest.raises(ResourceExhaustedError, match="its 9 bodies are too many"):
        robot.inverse_dynamics(*np.zeros((3, robot.nv)))


def test_a_kernel_within_the_limit_is_compiled(own_store: Path) -> None:
    robot = chain(30)
    v = np.random.default_rng(0).normal(size=robot.nv)
    assert np.isfinite(robot.gravity_forces(v)).all()


def test_a_damaged_refusal_is_determined_again(own_store: Path, small_budget: None) -> None:
    robot = chain(40)
    state = np.zeros((3, robot.nv))
    with pytest.raises(ResourceExhaustedError):
        robot.equation_terms(*state)
    (kernel_file,) = own_store.iterdir()
    kernel_file.write_bytes(os.urandom(100))
    with pytest.raises(ResourceExhaustedError):
        chain(40).equation_terms(*state)
    assert store.load(kernel_file.name) is not None
