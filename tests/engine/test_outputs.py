"""`out`: results in the caller's arrays, to the same bits; and the memory of large results, which is reused."""

from __future__ import annotations

import gc
import os
import resource
import sys
import threading
import tracemalloc
import weakref
from typing import Any

import numpy as np
import pytest

from dyn_service import InvalidArgumentError, Robot, Wrench
from dyn_service.api.queries import QUERIES, Overlay, Payload
from dyn_service.api.results import LinkPoses
from dyn_service.support import buffers
from tests.conftest import URDF
from tests.counting import calls_of
from tests.phrases import naming

LINK = "lower_bar"
MANY = 16384
"""States whose mass matrices are a large result, 512 kB."""


@pytest.fixture(scope="module")
def arm() -> Robot:
    robot = Robot.from_urdf(URDF / "double_pendulum.urdf")
    assert LINK in robot.link_names
    robot.mass_matrix(np.zeros(robot.nv))  # a first call of a row is evaluated, without the memory that is reused
    return robot


def states(arm: Robot, *lead: int) -> tuple[Any, Any, Any]:
    q, v, a = np.random.default_rng(0).normal(size=(3, *lead, arm.nv))
    return q, v, a


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gravity": {"gravity": (0.0, 0.0, -1.0)},
    "wrenches": {"wrenches": [Wrench(LINK, force=(1.0, 2.0, 3.0))]},
    "overlay": {"overlay": Overlay(Payload(LINK, 1.0))},
    "overlay and wrenches": {"overlay": Overlay(Payload(LINK, 2.0)), "wrenches": Wrench(LINK, torque=(1.0, 2.0, 3.0))},
}


@pytest.mark.parametrize("lead", [(), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_bits_without(arm: Robot, lead: tuple[int, ...], options: dict[str, Any]) -> None:
    """Contiguous, strided, reversed, and an array that is an input too; at the first call and later ones."""
    q, v, a = states(arm, *lead)
    expected = Robot.from_urdf(URDF / "double_pendulum.urdf").inverse_dynamics(q, v, a, **options).tobytes()
    for _ in range(2):
        whole = np.full((*lead, 2 * arm.nv), np.nan)
        # A kernel writes by the strides of `out`: contiguous, with gaps, in Fortran's order, backwards.
        for out in (np.empty(q.shape), whole[..., ::2], np.empty(q.shape[::-1]).T, whole[..., ::-2]):
            out = out if out.shape == q.shape else np.empty(q.shape)
            assert arm.inverse_dynamics(q, v, a, **options, out=out) is out
            assert out.tobytes() == expected
        for overlapping in range(3):
            arguments = [q.copy(), v.copy(), a.copy()]
            out = arguments[overlapping]
            assert arm.inverse_dynamics(*arguments, **options, out=out) is out
            assert out.tobytes() == expected


def test_overlap_that_is_shifted(arm: Robot) -> None:
    """Some states of an input are the places of others' results; also in the force of a wrench."""
    q, v, a = states(arm, 40)
    forces = np.random.default_rng(1).normal(size=(40, 3))
    expected = arm.inverse_dynamics(q, v, a, wrenches=Wrench(LINK, force=forces))
    for _ in range(2):
        memory = np.zeros((48, arm.nv))
        memory[8:] = a
        assert arm.inverse_dynamics(q, v, memory[8:], out=memory[:40]).tobytes() == (
            arm.inverse_dynamics(q, v, a).tobytes()
        )
        for first, place in ((8, 0), (0, 30)):  # results before and after the forces of later states
            memory = np.zeros(40 * 3 + 8)
            pushed = memory[first : first + 40 * 3].reshape(40, 3)
            pushed[...] = forces
            out = memory[place : place + 40 * arm.nv].reshape(40, arm.nv)
            assert arm.inverse_dynamics(q, v, a, wrenches=Wrench(LINK, force=pushed), out=out) is out
            assert out.tobytes() == expected.tobytes()


def test_results_with_several_outputs(arm: Robot) -> None:
    """A tuple of arrays, some of them None, or a result of an earlier call."""
    q, v, a = states(arm, 5)
    expected = arm.link_poses(q)
    place, rotation = np.empty((5, *expected.position.shape[1:])), np.empty(expected.rotation.shape)
    for _ in range(2):
        poses = arm.link_poses(q, out=(None, place))
        assert poses.position is place
        assert (poses.rotation.tobytes(), place.tobytes()) == (expected.rotation.tobytes(), expected.position.tobytes())
        poses = arm.link_poses(-q, out=[rotation, place])
        assert (poses.rotation, poses.position, poses.links) == (rotation, place, expected.links)
        reused = arm.link_poses(q, out=poses)
        assert reused.rotation is rotation
        assert rotation.tobytes() == expected.rotation.tobytes()
        # Rows and axes are chosen after the kernel.
        motion = arm.link_motion(q, v, a, frame="world")
        empty = tuple(np.empty_like(getattr(motion, name)) for name in QUERIES["link_motion"].outputs)
        motion_into = arm.link_motion(q, v, a, frame="world", out=empty)
        assert motion_into.load is empty[2]
        assert motion_into.load.tobytes() == motion.load.tobytes()
        joint = arm.constraint_forces(q, v, a, joints=[arm.joint_names[1]])
        joint_into = arm.constraint_forces(-q, v, a, joints=[arm.joint_names[1]], out=joint)
        assert joint_into.wrench is joint.wrench
        assert joint_into.wrench.tobytes() == arm.constraint_forces(-q, v, a).wrench[:, 1:2].tobytes()


@pytest.mark.parametrize("lead", [(), (5,), (2, 3)], ids=str)
def test_selected_rows(arm: Robot, lead: tuple[int, ...]) -> None:
    """The bits of a call for all rows; with wrenches, in any order, repeated, none; into given arrays."""
    q, v, a = states(arm, *lead)
    push = [Wrench(LINK, force=(1.0, 2.0, 3.0))]
    whole, pushed = arm.jacobians(q), arm.constraint_forces(q, v, a, wrenches=push)
    names = arm.link_names
    for links in ([LINK], [names[2], names[0], names[2]], list(names), []):
        rows = [names.index(link) for link in links]
        for _ in range(3):
            rows_of_links = arm.jacobians(q, links=links)
            assert rows_of_links.links == tuple(links)
            assert rows_of_links.translation.shape == (*lead, len(rows), 3, arm.nv)
            assert rows_of_links.translation.tobytes() == whole.translation[..., rows, :, :].tobytes()
            assert rows_of_links.rotation.tobytes() == whole.rotation[..., rows, :, :].tobytes()
            strided = np.zeros((2, *rows_of_links.rotation.shape[::-1])).T[..., 0]
            assert arm.jacobians(q, links=links, out=(rows_of_links.translation, strided)).rotation is strided
            assert strided.tobytes() == rows_of_links.rotation.tobytes()
    for _ in range(3):
        joint = arm.constraint_forces(q, v, a, joints=[arm.joint_names[1]], wrenches=push)
        row = pushed.joints.index(arm.joint_names[1])
        assert joint.actuation.tobytes() == pushed.actuation[..., [row]].tobytes()
        assert joint.wrench.tobytes() == pushed.wrench[..., [row], :].tobytes()


def test_only_selected_rows_are_written(arm: Robot) -> None:
    q, _, _ = states(arm, 3000)
    for _ in range(2):
        arm.jacobians(q, links=[LINK])
    tracemalloc.start()
    try:
        jacobians = arm.jacobians(q, links=[LINK])
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The arrays of all rows would be several times as large.
    assert peak_bytes < 1.1 * (jacobians.translation.nbytes + jacobians.rotation.nbytes)


def test_numbers_and_constants(arm: Robot) -> None:
    q, v, _ = states(arm)
    expected = arm.energy(q, v)
    out = tuple(np.zeros(()) for _ in range(4))
    for _ in range(2):
        assert arm.energy(q, v, out=out).total is out[2]
        assert out[2] == expected.total
    values = np.ones(arm.nq)
    assert arm.neutral(out=values) is values
    assert not values.any()


class Marked(np.ndarray):
    """A subclass."""


def test_arrays_of_subclasses(arm: Robot) -> None:
    q, v, a = states(arm, 4)
    expected = arm.inverse_dynamics(q, v, a)
    for out in (np.empty((4, 2)).view(Marked), np.ma.masked_all((4, 2))):
        for _ in range(2):
            assert arm.inverse_dynamics(q, v, a, out=out) is out
            assert np.asarray(out).tobytes() == expected.tobytes()


def test_invalid_arrays(arm: Robot) -> None:
    q, v, a = states(arm, 4)
    fixed = np.empty((4, 2))
    fixed.flags.writeable = False
    for _ in range(2):
        for out, path, words in (
            (np.empty((4, 3)), "out", ("(4, 3)", "(4, 2)")),
            (np.empty((1, 4, 2)), "out", ("(1, 4, 2)", "(4, 2)")),
            (np.empty((4, 2), np.float32), "out", ("writable", "float64", "float32")),
            (np.empty((4, 2), ">f8"), "out", ("float64", ">f8")),
            (fixed, "out", ("writable", "read-only")),
            ([[0.0, 0.0]] * 4, "out", ("inverse_dynamics", "array")),
            ((np.empty((4, 2)),) * 2, "out", ("an array", "tau")),
            (3.0, "out", ("an array", "3.0")),
        ):
            with pytest.raises(InvalidArgumentError, match=naming(*words)) as error:
                arm.inverse_dynamics(q, v, a, out=out)
            assert error.value.path == path
        poses = arm.link_poses(q)
        rotation_before = poses.rotation.copy()
        with pytest.raises(InvalidArgumentError, match=naming("shape", "position")) as error:
            arm.link_poses(-q, out=(poses.rotation, np.empty((4, 1))))
        assert error.value.path == "out[1]"
        assert poses.rotation.tobytes() == rotation_before.tobytes()
        with pytest.raises(InvalidArgumentError, match=naming("LinkPoses", "rotation, position")):
            arm.link_poses(q, out=np.empty((4, 3, 3)))
        with pytest.raises(InvalidArgumentError, match=naming("out[0]", "float64", "int 1")):
            arm.link_poses(q, out=LinkPoses((), 1, None))  # type: ignore[arg-type]


def test_floating_point_errors_are_those_of_numpy(arm: Robot) -> None:
    q, v, a = states(arm, 4)
    out = np.empty((4, 2))
    arm.inverse_dynamics(q, v, a, out=out)
    v[2] = 1e200
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        arm.inverse_dynamics(q, v, a, out=out)
    with np.errstate(all="ignore"):
        arm.inverse_dynamics(q, v, a, out=out)
    assert np.isfinite(out[0]).all()
    assert not np.isfinite(out[2]).all()


def test_floating_point_errors_of_large_results_are_those_of_numpy(arm: Robot) -> None:
    q, v, a = states(arm, 2 * MANY)
    assert arm.inverse_dynamics(q, v, a).nbytes >= buffers.LARGE_BYTES
    v[2] = 1e200
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        arm.inverse_dynamics(q, v, a)
    with np.errstate(all="ignore"):
        tau = arm.inverse_dynamics(q, v, a)
    assert np.isfinite(tau[0]).all()
    assert not np.isfinite(tau[2]).all()


def test_no_array_is_allocated(arm: Robot) -> None:
    q, v, a = states(arm, 2000)
    out, places = np.empty((2000, 2)), arm.link_poses(q)
    for lead in (slice(None), 0):
        arguments, tau_out = (q[lead], v[lead], a[lead]), out[lead]
        poses = tuple(np.ascontiguousarray(x[lead]) for x in (places.rotation, places.position))
        for _ in range(3):
            arm.inverse_dynamics(*arguments, out=tau_out), arm.link_poses(q[lead], out=poses)
        tracemalloc.start()
        try:
            arm.inverse_dynamics(*arguments, out=tau_out)
            arm.link_poses(q[lead], out=poses)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        # What Python needs for the calls; one result would be 32 kB.
        assert peak_bytes < 4000


def test_arrays_of_wrenches_add_few_calls(arm: Robot) -> None:
    """Their overlap with the result is checked here; everything else by the direct call."""
    q, v, a = states(arm)
    out, force = np.empty(arm.nv), np.array([1.0, 2.0, 3.0])

    def count(**options: Any) -> int:
        for _ in range(3):
            arm.inverse_dynamics(q, v, a, **options)
        return calls_of(lambda: arm.inverse_dynamics(q, v, a, **options))

    plain = count(out=out)
    # Counts of functions, not times: the same on a busy machine.
    assert count(out=out, wrenches=[Wrench(LINK, force=force.tolist())]) <= plain + 14
    assert count(out=out, wrenches=[Wrench(LINK, force=force)]) <= plain + 18  # 360 where these are evaluated
    assert count(workers=2) <= plain + 14
    assert count(workers=2, wrenches=[Wrench(LINK, force=force)]) <= plain + 16


@pytest.fixture
def empty_pool() -> None:
    gc.collect()
    buffers.FREE.clear()


@pytest.mark.usefixtures("empty_pool")
def test_memory_of_large_results_is_reused(arm: Robot) -> None:
    """Only the first results fault their pages in; the memory of an array in use is not reused."""
    q, _, _ = states(arm, 2 * MANY)
    size = 8 * 4 * 2 * MANY
    for _ in range(3):
        M = arm.mass_matrix(q)
        M_bytes, other = M.tobytes(), arm.mass_matrix(2.0 * q)
    del other
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        arm.mass_matrix(2.0 * q)
    # Less than the pages of one result in twenty calls.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults < size // 4096
    assert M.tobytes() == M_bytes
    # A line of the cache: stores of vectors do not straddle two.
    assert M.ctypes.data % 64 == 0
    assert M.flags.writeable
    assert not M.flags.owndata


@pytest.mark.usefixtures("empty_pool")
def test_a_large_result_takes_few_calls(arm: Robot) -> None:
    """Their code is not in the cache after a kernel that writes a large result."""
    q, _, _ = states(arm, MANY)
    for _ in range(3):
        arm.mass_matrix(q)
    assert calls_of(lambda: arm.mass_matrix(q)) <= 30


@pytest.mark.usefixtures("empty_pool")
def test_memory_returns_with_the_last_view(arm: Robot) -> None:
    """Also in another thread, and if an exception holds the array."""
    q, _, _ = states(arm, MANY)
    M = arm.mass_matrix(q)
    row, place = M[7, 1:], M.ctypes.data
    del M
    assert not buffers.FREE
    other = threading.Thread(target=lambda holder: holder.clear(), args=([row],))
    del row
    other.start()
    other.join()
    del other
    assert len(buffers.FREE) == 1

    def fail() -> None:
        M = arm.mass_matrix(q)
        assert (M.ctypes.data, len(buffers.FREE)) == (place, 0)
        raise KeyError

    with pytest.raises(KeyError) as error:
        fail()
    assert not buffers.FREE
    # The exception holds the frame, and the frame the array, in a cycle that only the collector ends.
    del error
    gc.collect()
    assert len(buffers.FREE) == 1


@pytest.mark.usefixtures("empty_pool")
def test_the_pool_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (64, 1024)
    size = 8 * 64 * 1024
    monkeypatch.setattr(buffers, "MAX_BYTES", 3 * size)
    arrays = [buffers.empty(shape) for _ in range(5)]
    assert len({array.ctypes.data for array in arrays}) == 5
    arrays.clear()
    assert len(buffers.FREE) == 3
    # A buffer that no array needs is freed.
    memory = weakref.ref(buffers.FREE[0][2])
    # Each request passes over the free buffers of other sizes; one that was passed over too often is freed.
    for _ in range(buffers.MAX_UNUSED + 2):
        buffers.empty((128, 1024 - 200))
    assert memory() is None
    assert len(buffers.FREE) == 1


@pytest.mark.usefixtures("empty_pool")
def test_a_forked_process_has_a_pool_of_its_own(arm: Robot) -> None:
    q, _, _ = states(arm, MANY)
    M, second_M = arm.mass_matrix(q), arm.mass_matrix(q)
    M_bytes = M.tobytes()
    del second_M
    child = os.fork()
    if child == 0:
        wrong = arm.mass_matrix(2.0 * q).tobytes() == M_bytes or M.tobytes() != M_bytes
        # Without clean-up: the fixtures of this process are not the child's to end.
        os._exit(int(wrong))
    assert arm.mass_matrix(q).tobytes() == M_bytes
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.usefixtures("empty_pool")
def test_threads_share_the_pool(arm: Robot) -> None:
    q, _, _ = states(arm, MANY)
    expected = [arm.mass_matrix(k * q).tobytes() for k in range(4)]
    wrong: list[int] = []

    def ask(k: int) -> None:
        for _ in range(30):
            M, other_M = arm.mass_matrix(k * q), arm.mass_matrix(-2.0 * k * q)
            if M.tobytes() != expected[k]:
                wrong.append(k)
            del M, other_M

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert 1 <= len(buffers.FREE) <= 8


@pytest.mark.usefixtures("empty_pool")
def test_threads_that_need_new_sizes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "SIZES", [])
    buffers.owner_class.cache_clear()
    sizes = range(1 << 20, (1 << 20) + 1200)
    faults: list[Exception] = []

    def ask(own_sizes: range) -> None:
        try:
            for size in own_sizes:
                buffers.owner_class(size)
        except IndexError as error:
            faults.append(error)

    interval = sys.getswitchinterval()
    threads = [threading.Thread(target=ask, args=(sizes[k::4],)) for k in range(4)]
    # Threads change within some bytecodes, so that a race shows among 1200 sizes.
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
        buffers.owner_class.cache_clear()
    assert not faults
    assert [*sizes] == buffers.SIZES


@pytest.mark.usefixtures("empty_pool")
def test_a_lack_of_memory_is_the_only_fault() -> None:
    """Not one that occurred while the search of the empty pool was handled."""
    with pytest.raises(MemoryError) as error:
        buffers.empty((1 << 59,))
    assert error.value.__context__ is None
