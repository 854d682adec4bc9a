"""Large batches in several threads: the bits of one thread, its errors, and no threads where they do not pay."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from dyn_service import InvalidArgumentError, Robot, Wrench
from dyn_service.api.queries import QUERIES, Overlay, Payload, Query
from dyn_service.engine import bound_calls as calls
from dyn_service.kernels.jit import host
from tests.counting import calls_of
from tests.passive import small
from tests.phrases import naming

ROWS = [row for row in QUERIES.values() if not row.constant and row.required[0] == "q"]
STATES = 203  # no multiple of a vector of states


@pytest.fixture(scope="module")
def shared_arm() -> Robot:
    return small()


@pytest.fixture
def arm(shared_arm: Robot, monkeypatch: pytest.MonkeyPatch) -> Iterator[Robot]:
    """Any batch is large."""
    monkeypatch.setattr(calls, "PART_BYTES", 1)
    shared_arm.workers = 3
    yield shared_arm
    shared_arm.workers = 1


def given_to(robot: Robot, row: Query, states: int = STATES) -> list[Any]:
    rng, arguments = np.random.default_rng(0), []
    for name in row.required:
        spec = row.inputs[name]
        arguments.append(
            "pendulum" if spec.kind == "link" else 0.3 * rng.normal(size=(states, *spec.dims(robot.sizes)))
        )
    return arguments


def bits(answer: Any, row: Query) -> bytes:
    arrays = [answer] if row.result_type is None else [getattr(answer, name) for name in row.outputs]
    return b"".join(np.asarray(array).tobytes() for array in arrays)


def thread_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that grows by the number of parts of each call that takes several threads."""
    counts: list[int] = []
    in_threads = calls.in_threads

    def noted(compute: Any, states: int, parts: int) -> bool:
        counts.append(parts)
        return in_threads(compute, states, parts)

    monkeypatch.setattr(calls, "in_threads", noted)
    return counts


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_bits_of_one_thread(arm: Robot, row: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = dict(zip(row.required, given_to(arm, row), strict=True))
    ask = getattr(arm, row.name)
    arm.workers = 1
    expected = bits(ask(**arguments), row)
    arm.workers = 3
    counts = thread_counts(monkeypatch)
    result = ask(**arguments)
    assert bits(result, row) == expected
    assert counts == [3] * len(counts)
    assert counts
    # NaN, so that an entry that no thread wrote differs.
    out = result if row.output else tuple(np.full_like(getattr(result, name), np.nan) for name in row.outputs)
    assert bits(ask(**arguments, out=out), row) == expected
    assert bits(ask(**arguments, out=out, workers=1), row) == expected


def test_inputs_without_the_axis_and_options(arm: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    q, v, a = given_to(arm, QUERIES["inverse_dynamics"])
    gravity, forces = np.random.default_rng(1).normal(size=(2, STATES, 3))
    push, pushes = (Wrench("pendulum", force=force, point=(0.0, 0.1, 0.0)) for force in ((1.0, 2.0, 3.0), forces))
    heavier = Overlay(Payload("pendulum", 1.0))
    for arguments, options in (
        ((q, v[0], a[0]), {}),
        ((q, v, a), {"gravity": gravity}),
        ((q, v, a), {"gravity": gravity[0], "passive": False}),
        ((q.astype(np.float32), v.tolist(), a), {}),
        ((q, v, a), {"wrenches": push}),
        ((q, v, a), {"wrenches": [push, pushes], "gravity": gravity}),
        ((q, v, a), {"overlay": heavier}),
        ((q, v, a), {"overlay": heavier, "wrenches": (pushes,), "passive": False}),
    ):
        arm.workers = 1
        expected = arm.inverse_dynamics(*arguments, **options)
        counts = thread_counts(monkeypatch)
        assert arm.inverse_dynamics(*arguments, **options, workers=2).tobytes() == expected.tobytes()
        assert counts == [2]
        arm.workers = 3
        assert arm.inverse_dynamics(*arguments, **options).tobytes() == expected.tobytes()
        assert counts == [2, 3]
        assert arm.inverse_dynamics(*arguments, **options, workers=1).tobytes() == expected.tobytes()
        assert counts == [2, 3]
        # The counter goes, and with it the fixture's size of parts, which is set again.
        monkeypatch.undo()
        monkeypatch.setattr(calls, "PART_BYTES", 1)


def test_other_calls_take_one_thread(arm: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Single states, several leading axes, other numbers of states."""
    q, v, a = given_to(arm, QUERIES["inverse_dynamics"], 6)
    counts = thread_counts(monkeypatch)
    for arguments in (
        (q[0], v[0], a[0]),
        (q.reshape(2, 3, -1), v.reshape(2, 3, -1), a.reshape(2, 3, -1)),
        (q, v[:1], a),
        (q[:0], v[:0], a[:0]),
    ):
        arm.workers = 1
        expected = arm.inverse_dynamics(*arguments)
        arm.workers = 2
        for _ in range(2):
            assert arm.inverse_dynamics(*arguments).tobytes() == expected.tobytes()
    assert not counts
    with pytest.raises(InvalidArgumentError, match=r"q .*v|leading"):
        arm.inverse_dynamics(q, v[:4], a)


def test_small_batches_take_one_thread(panda: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = thread_counts(monkeypatch)
    panda.workers = 2
    try:
        for states in (64, 60_000):
            arguments = given_to(panda, QUERIES["inverse_dynamics"], states)
            for _ in range(2):
                panda.inverse_dynamics(*arguments)
            assert bool(counts) == (states > 64)
    finally:
        panda.workers = 1


def test_errors_are_handled_as_the_caller_chose(arm: Robot) -> None:
    q, v, a = given_to(arm, QUERIES["inverse_dynamics"])
    arm.inverse_dynamics(q, v, a)
    v[150, 1] = 1e200
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        arm.inverse_dynamics(q, v, a)
    with np.errstate(all="ignore"):
        assert not np.isfinite(arm.inverse_dynamics(q, v, a)[150]).all()


def test_no_thread_writes_after_an_error_of_the_callers_part() -> None:
    started, all_written = threading.Event(), threading.Event()

    def compute(part: slice) -> bool:
        if part.start:
            started.wait(10.0)
            raise FloatingPointError
        started.set()
        time.sleep(0.05)
        all_written.set()
        return True

    with pytest.raises(FloatingPointError):
        calls.in_threads(compute, 2 * host().lanes, 2)
    assert all_written.is_set()


@pytest.mark.parametrize(("states", "parts"), [(203, 3), (16, 2), (17, 2), (64, 5)])
def test_threads_get_whole_vectors(states: int, parts: int) -> None:
    parts_seen: list[slice] = []
    assert calls.in_threads(lambda part: parts_seen.append(part) is None, states, parts)
    parts_seen.sort(key=lambda part: part.start)
    assert len(parts_seen) <= parts
    assert [part.start for part in parts_seen] == [0, *(part.stop for part in parts_seen[:-1])]
    assert parts_seen[-1].stop == states
    assert not any(part.start % host().lanes for part in parts_seen)


def test_wrenches_of_fewer_states_are_an_error(arm: Robot) -> None:
    """The states of the first thread, or of each, have a wrench; nothing is written."""
    lanes = host().lanes
    arguments = given_to(arm, QUERIES["inverse_dynamics"], 3 * lanes)
    arm.inverse_dynamics(*arguments, wrenches=[Wrench("pendulum", force=np.ones((3 * lanes, 3)))])
    for states, workers in ((lanes, 3), (2 * lanes, 2)):
        wrenches, out = [Wrench("pendulum", force=np.ones((states, 3)))], np.full_like(arguments[0], np.nan)
        for tau_out in (None, out):
            with pytest.raises(InvalidArgumentError, match=naming(f"{states}", f"{3 * lanes}")):
                arm.inverse_dynamics(*arguments, wrenches=wrenches, out=tau_out, workers=workers)
        assert np.isnan(out).all()


def test_locked_joints_are_checked(arm: Robot) -> None:
    locked = arm.overlaid(Overlay(locked=["hinge"]))
    locked.workers = 2
    q, v, a = given_to(arm, QUERIES["inverse_dynamics"])
    locked_rates = v * locked.free, a * locked.free
    for _ in range(2):
        locked.inverse_dynamics(q, *locked_rates)
    with pytest.raises(InvalidArgumentError, match="'hinge'"):
        locked.inverse_dynamics(q, v, locked_rates[1])


@pytest.mark.parametrize("count", [0, -1, 257, 1.0, True, "2", None])
def test_invalid_numbers_of_threads(shared_arm: Robot, count: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=naming("workers", "1", "256")) as error:
        shared_arm.workers = count
    assert error.value.path == "workers"
    if count is not None:
        with pytest.raises(InvalidArgumentError, match=naming("workers", "1", "256")):
            shared_arm.gravity_forces(shared_arm.neutral(), workers=count)
    assert shared_arm.workers == 1


def test_threads_are_kept_and_end_with_the_process(arm: Robot) -> None:
    arguments = given_to(arm, QUERIES["inverse_dynamics"])
    for _ in range(20):
        arm.inverse_dynamics(*arguments)
    assert sum(thread.name.startswith("dyn_service") for thread in threading.enumerate()) <= 3 + 2  # other tests' two


def test_a_forked_process_has_threads_of_its_own(arm: Robot) -> None:
    arguments = given_to(arm, QUERIES["inverse_dynamics"])
    expected = arm.inverse_dynamics(*arguments).tobytes()
    arm.inverse_dynamics(*arguments)
    child = os.fork()
    if child == 0:
        # Without clean-up: the fixtures of this process are not the child's to end.
        os._exit(0 if arm.inverse_dynamics(*arguments).tobytes() == expected else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_workers_add_little_to_a_batch_too_small_for_them(shared_arm: Robot) -> None:
    arguments, out = given_to(shared_arm, QUERIES["inverse_dynamics"]), np.empty((STATES, shared_arm.nv))

    def count(workers: int) -> int:
        return calls_of(lambda: shared_arm.inverse_dynamics(*arguments, out=out, workers=workers))

    count(2)
    assert count(2) <= count(1) + 16  # 11; without the direct call 51


def test_no_thread_writes_after_a_call_that_could_not_start_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, or a system without another thread, while the parts are handed out."""
    starts: list[int] = []

    class Interrupted(ThreadPoolExecutor):
        def submit(self, *arguments: Any) -> Any:
            if self._threads:
                raise KeyboardInterrupt
            return super().submit(*arguments)

    def compute(part: slice) -> bool:
        time.sleep(0.05)
        starts.append(part.start)
        return True

    with Interrupted() as pool:
        monkeypatch.setattr(calls, "_threads", lambda process: pool)
        with pytest.raises(KeyboardInterrupt):
            calls.in_threads(compute, 3 * host().lanes, 3)
        assert starts == [0]
