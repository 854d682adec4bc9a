"""What is fuzzed, and what no input may bring about: a crash, a hang, an INTERNAL, a reply that is none."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import perf_counter_ns, thread_time
from typing import Any, Protocol

import msgpack
import numpy as np

from dyn_service import Robot
from dyn_service.api.queries import COMPUTATIONS, QUERIES
from dyn_service.errors import DynError
from dyn_service.formats.converting import WRITERS
from dyn_service.formats.reading import read_text
from dyn_service.model.description import rooted
from dyn_service.protocol.limits import RequestLimits
from dyn_service.server.plan import SLOW_BYTES
from dyn_service.server.service import Service
from dyn_service.urdf.markup import ReadLimits
from tests.conftest import URDF
from tests.oracle.test_mjcf import MODELS
from tests.service import bad_inputs
from tests.unit.test_sdf import WAYS

HANG_S = 0.2
"""No input may take longer, beside the first of its kind, which may have to make a kernel."""


class Target(Protocol):
    """longest: bytes of an input. words: what libFuzzer may put in."""

    longest: int
    words: tuple[str, ...]

    def seeds(self) -> Iterator[bytes]:
        """What it begins from."""

    def try_one(self, data: bytes) -> None:
        """Raises if the input breaks a promise."""

    def mutated(self, data: bytes, seed: int) -> bytes | None:
        """The input changed along its structure; None: change its bytes."""


def held(ask: Callable[[], None]) -> None:
    """Fails what takes too long each time: the first may have made a kernel, and a machine may be busy."""
    took = []
    for _ in range(3):
        began = thread_time()
        ask()
        took.append(thread_time() - began)
        if took[-1] < HANG_S:
            return
    raise TimeoutError(f"an input took {min(took):.2f} s of work, at most {HANG_S} s are allowed")


class Decoder:
    """A request's bytes, from the short way and from the general one: all that a client can make a server read."""

    longest = 4096
    words = (
        "inputs",
        "options",
        "query",
        "robot",
        "model",
        "deadline_ms",
        "dtype",
        "shape",
        "data",
        "verify",
        "wrenches",
    )

    def __init__(self) -> None:
        # What is foretold has to be right within a factor of four, or an input takes longer than it may.
        limits = RequestLimits(max_reply_bytes=1 << 20, max_memory_bytes=64 << 20, max_work_s=HANG_S / 4)
        robots = [Robot.from_urdf(URDF / "pendulum.urdf"), Robot.from_urdf(URDF / f"{bad_inputs.ROBOT}.urdf")]
        self._service = Service(robots, limits=limits)

    def seeds(self) -> Iterator[bytes]:
        for row in (*QUERIES.values(), *COMPUTATIONS.values()):
            inputs, options = bad_inputs.good(row)
            yield bad_inputs.asked(row, inputs, options)
            every = {name: bad_inputs.good_value(spec) for name, spec in row.inputs.items()}
            yield bad_inputs.asked(row, inputs | every, options)
        yield from (case.payload for case in bad_inputs.committed()[::7])

    def try_one(self, data: bytes) -> None:
        replies: list[bytes] = []

        def ask() -> None:
            with np.errstate(all="ignore"):
                short = self._service.answer_single_state(data, perf_counter_ns()) if len(data) <= SLOW_BYTES else None
                replies[:] = [short or self._service.handle(data, perf_counter_ns())]

        held(ask)
        reply = msgpack.unpackb(replies[0])
        assert reply["v"] == 1
        assert reply["ok"] or reply["error"]["code"] != "INTERNAL", reply

    def mutated(self, data: bytes, seed: int) -> bytes | None:
        """One value somewhere in the message becomes another, goes, or is there twice."""
        choose = random.Random(seed)
        if choose.random() < 0.3:
            return None
        try:
            message = msgpack.unpackb(data, strict_map_key=False)
            packed: bytes = msgpack.packb(_changed(message, choose))
        except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
            return None
        return packed


_ODD: tuple[Any, ...] = (
    None, True, 0, 1, -1, 2, 7, 255, 20_000, 2**31, 2**63, 2**64 - 1, 0.0, 0.5, -1e-3, 1e-300, 1e3, 1e200, 1.7e308,
    float("nan"), float("inf"), "", "rk4", "adaptive", "implicit_midpoint", "mass_matrix", "matrix", "world", "<f8",
    "|i1", "tool0", b"", bytes(8), bytes(32), [], [[]], [0.5], [0.5] * 4, [1, 2, 3], {},
)  # fmt: skip


def _changed(value: Any, choose: random.Random) -> Any:
    """The value with one of its parts changed."""
    if isinstance(value, dict) and value and choose.random() < 0.9:
        key = choose.choice(list(value))
        kind = choose.random()
        if kind < 0.08:
            return {name: part for name, part in value.items() if name != key}
        if kind < 0.16:
            return {**value, choose.choice(list(value)): value[key]}
        if kind < 0.2 and key == "shape":
            return {**value, "shape": [choose.choice((0, 1, 2, 3, 300, 1 << 20)), *value["shape"]]}
        if key == "query" and kind < 0.5:
            return {**value, "query": choose.choice([*QUERIES, *COMPUTATIONS, "stats", "describe_robot", "load_robot"])}
        return {**value, key: _changed(value[key], choose)}
    if isinstance(value, list) and value and choose.random() < 0.8:
        at = choose.randrange(len(value))
        return [*value[:at], _changed(value[at], choose), *value[at + (choose.random() < 0.9) :]]
    if isinstance(value, bytes) and len(value) >= 8 and choose.random() < 0.8:  # numbers
        numbers = np.frombuffer(value[: len(value) // 8 * 8]).copy()
        numbers[choose.randrange(len(numbers))] = choose.choice((0.0, 1.0, -3.0, 1e8, 1e80, -1e300, 1e-320, np.nan))
        return numbers.tobytes()
    return choose.choice(_ODD)


class Description:
    """The text of a URDF, MJCF or SDFormat: read, made a tree, described, and written as each of them, as for a client
    that loads it, and for who converts it.
    """

    longest = 1 << 14
    words = (
        "<robot", "<link", "<joint", "<parent", "<child", "<origin", "<axis", "<limit", "<dynamics", "<mimic", "<mass",
        "<inertial", "<inertia", "<visual", "<!--", "-->", "</", "/>", "<?", "<![CDATA[", "<!DOCTYPE", "&#", "&lt;",
        "xyz=", "rpy=", "quat_xyzw=", "name=", "type=", "link=", "value=", "version=", "world", "floating", "planar",
        "spherical", "continuous", "prismatic", "fixed", "drake:joint", "1e999", "nan", "-0", "1_0", "0x1p3",
        "<mujoco", "<worldbody", "<body", "<geom", "<freejoint", "<default", "<frame", "<compiler", "<equality",
        "<actuator",
        "class=", "childclass=", "quat=", "euler=", "fromto=", "size=", "mass=", "ref=", "range=", "armature=", "pos=",
        "<sdf", "<model", "<pose", "relative_to=", "attached_to=", "expressed_in=", "<axis2", "<include", "::",
        "__model__",
    )  # fmt: skip

    def __init__(self) -> None:
        self._limits = ReadLimits(size=self.longest)

    def seeds(self) -> Iterator[bytes]:
        yield from (path.read_bytes()[: self.longest] for path in sorted(URDF.glob("*.urdf")))
        for case in bad_inputs.of_descriptions():
            yield msgpack.unpackb(case.payload)["inputs"]["urdf"].encode()
        yield from (text.encode() for text in (*MODELS.values(), *WAYS.values()))

    def try_one(self, data: bytes) -> None:
        held(lambda: self._read(data))

    def _read(self, data: bytes) -> None:
        text = b"<" + data.lstrip(b"<")  # text, not a path
        for root in ("fixed", "floating"):
            try:
                description = rooted(read_text(text.decode(errors="replace"), limits=self._limits), root)  # type: ignore[arg-type]
                robot = Robot(description)
            except DynError:
                continue
            assert robot.description.to_dict()
            assert robot.receipt
            for write in WRITERS.values():
                with suppress(DynError):
                    assert write(description)[0]

    def mutated(self, data: bytes, seed: int) -> bytes | None:
        """A piece between two brackets or quotes goes, is there twice, or trades places with another."""
        choose = random.Random(seed)
        mark = choose.choice((b"<", b'"', b" ", b"\n"))
        pieces = data.split(mark)
        if choose.random() < 0.4 or len(pieces) < 3:
            return None
        one, other = choose.randrange(len(pieces)), choose.randrange(len(pieces))
        kind = choose.randrange(4)
        if kind == 0:
            del pieces[one]
        elif kind == 1:
            pieces.insert(one, pieces[other])
        elif kind == 2:
            pieces[one], pieces[other] = pieces[other], pieces[one]
        else:
            pieces[one] = choose.choice(
                (b"", b"0", b"-1", b"nan", b"1e308", b"1e-308", b"0 0 0", b"base_link", b"1 1 1")
            )
        return mark.join(pieces)


TARGETS: dict[str, type[Target]] = {"decoder": Decoder, "urdf": Description}
