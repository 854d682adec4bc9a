"""The targets of fuzzing. No input may cause a crash, a hang, INTERNAL, or an invalid reply."""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Protocol

import msgpack
import numpy as np

from dyn_service import Robot
from dyn_service.api.queries import COMPUTATIONS, QUERIES, JointNumbers
from dyn_service.api.spec import Row
from dyn_service.errors import DynError
from dyn_service.model.description import Description, rooted
from dyn_service.parsing.conversion import WRITERS
from dyn_service.parsing.files import read_text
from dyn_service.parsing.joint_files import with_joint_file
from dyn_service.parsing.xml_elements import ReadLimits
from dyn_service.sensors import Sensors
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.answering.plan import SLOW_BYTES
from dyn_service.service.server.answering.service import Service
from qa.fuzz.connections import ForgedPeers, Streams
from qa.fuzz.hangs import HANG_S, check_time
from tests.conftest import URDF
from tests.parsing.test_joint_files import FAULTS as _JOINT_FAULTS
from tests.parsing.test_mjcf import MODELS
from tests.parsing.test_sdf import WAYS
from tests.sensors.test_sensor_files import FAULTS as _SENSOR_FAULTS
from tests.service.conftest import array
from tests.service.server import bad_inputs

CONFIG = URDF.parent / "config"


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


HAND = """<robot name="hand">
<link name="palm"/>
<link name="finger"><inertial><origin xyz="0 0 0.1"/><mass value="0.5"/>
<inertia ixx="0.01" ixy="0" ixz="0" iyy="0.01" iyz="0" izz="0.01"/></inertial></link>
<link name="tip"><inertial><origin xyz="0 0 0.05"/><mass value="0.2"/>
<inertia ixx="0.001" ixy="0" ixz="0" iyy="0.001" iyz="0" izz="0.001"/></inertial></link>
<link name="thumb"><inertial><origin xyz="0 0 0.05"/><mass value="0.3"/>
<inertia ixx="0.002" ixy="0" ixz="0" iyy="0.002" iyz="0" izz="0.002"/></inertial></link>
<joint name="knuckle" type="revolute"><parent link="palm"/><child link="finger"/><axis xyz="0 1 0"/>
<limit lower="-2" upper="2" effort="5" velocity="3"/><dynamics damping="0.1" friction="0.2"/></joint>
<joint name="last" type="revolute"><parent link="finger"/><child link="tip"/><origin xyz="0 0 0.2"/><axis xyz="0 1 0"/>
<limit lower="-2" upper="2" effort="5" velocity="3"/><mimic joint="knuckle" multiplier="0.7" offset="0.1"/></joint>
<joint name="opposite" type="prismatic"><parent link="palm"/><child link="thumb"/><axis xyz="1 0 0"/>
<limit lower="-1" upper="1" effort="5" velocity="3"/></joint>
</robot>"""
"""Small, with joints that rub, one that follows and one of another kind."""

_OF_THE_HAND = ("inverse_dynamics", "forward_dynamics", "mass_matrix", "force_torque", "contact_dynamics",
                "ground_reactions", "simulate")  # fmt: skip


class Decoder:
    """A request's bytes, by the fast path and the slow path: all that a client can make a server read."""

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
        "overlay",
        "payloads",
        "joints",
        "locked",
        "contacts",
        "names",
        "passive",
    )

    def __init__(self) -> None:
        # Predicted costs must be right within a factor of four, or an input takes longer than `HANG_S`.
        limits = RequestLimits(max_reply_bytes=1 << 20, max_memory_bytes=64 << 20, max_work_s=HANG_S / 4)
        self._hand = Robot.from_urdf(HAND)
        robots = [self._hand, Robot.from_urdf(URDF / f"{bad_inputs.ROBOT}.urdf")]
        self._service = Service(robots, limits=limits)

    def seeds(self) -> Iterator[bytes]:
        # One valid request of each row, so that mutations begin behind the checks that noise never passes.
        for row in (*QUERIES.values(), *COMPUTATIONS.values()):
            inputs, options = bad_inputs.good(row)
            yield bad_inputs.asked(row, inputs, options)
            all_inputs = {name: bad_inputs.good_value(spec) for name, spec in row.inputs.items()}
            yield bad_inputs.asked(row, inputs | all_inputs, options)
        for name in _OF_THE_HAND:
            yield self._of_the_hand(QUERIES.get(name) or COMPUTATIONS[name])
        yield from (case.payload for case in bad_inputs.committed()[::7])

    def _of_the_hand(self, row: Row) -> bytes:
        """What joints do by themselves, one that follows, an overlay and an order of names, all in one request."""
        sizes = {name: getattr(self._hand.sizes, name) for name in self._hand.sizes.__struct_fields__}
        overlay = {
            "payloads": {"link": "tip", "mass": 0.1, "com": [0.0, 0.0, 0.1]},
            "joints": {"knuckle": {"damping": 0.2, "friction": 0.1, "stiffness": 1.0, "rest": 0.2}},
            "gravity": [0.0, 0.0, -1.6],
        }
        maps = {
            "overlay": overlay,
            "wrenches": {"link": "tip", "force": [1.0, 0.0, 0.0], "frame": "palm"},
            "contacts": {"link": "tip", "point": [0.0, 0.0, 0.1], "friction": 0.5},
            "link": ["tip", "palm"],
            "directions": ["x", "rz"],
        }
        inputs: dict[str, Any] = {
            name: maps[spec.kind] if spec.kind in maps else array(np.full(spec.dims(sizes), 0.5))
            for name, spec in row.inputs.items()
            if name in row.required or spec.kind in maps
        }
        inputs["names"] = list(self._hand.joint_names[::-1])
        _, options = bad_inputs.good(row)
        options |= {"passive": True} if "passive" in row.options else {}
        return bad_inputs.asked(row, inputs, options, robot="hand")

    def try_one(self, data: bytes) -> None:
        replies: list[bytes] = []

        def ask() -> None:
            with np.errstate(all="ignore"):
                short = self._service.answer_single_state(data, perf_counter_ns()) if len(data) <= SLOW_BYTES else None
                replies[:] = [short or self._service.handle(data, perf_counter_ns())]

        check_time(ask)
        reply = msgpack.unpackb(replies[0])
        assert reply["v"] == 1
        _check(reply)

    def mutated(self, data: bytes, seed: int) -> bytes | None:
        """One value somewhere in the message becomes another, goes, or is there twice."""
        return _revalued(data, seed)


class Overlaid:
    """Messages that have a server serve a robot once more, otherwise."""

    longest = 4096
    words = ("overlay_robot", "overlay", "name", "payloads", "links", "joints", "locked", "gravity", "mass", "com",
             "inertia", "damping", "friction", "friction_width", "armature", "stiffness", "rest", "expires_s", "hand",
             "finger", "tip", "thumb", "knuckle", "last", "opposite")  # fmt: skip

    def __init__(self) -> None:
        limits = RequestLimits(max_reply_bytes=1 << 20, max_memory_bytes=64 << 20, max_work_s=HANG_S / 4)
        self._robot = Robot.from_urdf(HAND)
        self._service = Service([self._robot], limits=limits, allow_load=True)

    def seeds(self) -> Iterator[bytes]:
        for overlay in self._overlays():
            for options in (None, {"expires_s": 60.0}):
                yield self._request({"name": "other", "overlay": overlay}, options)
        for name in ("hand", "", 5, None, "x" * 500):
            yield self._request({"name": name, "overlay": {}}, None)
        for expires_s in (0, -1, 1e308, float("nan"), "soon", True):
            yield self._request({"name": "other", "overlay": {}}, {"expires_s": expires_s})

    @staticmethod
    def _overlays() -> Iterator[Any]:
        yield {}
        for mass in (1.0, 1e-300, 1e300, array(2.0), [1.0, 2.0]):
            yield {"payloads": [{"link": "tip", "mass": mass, "com": [0.1, 0.0, 0.0]}]}
            yield {"links": {"finger": {"mass": mass, "inertia": (0.01 * np.eye(3)).tolist()}}}
        yield from ({"joints": {joint: {key: 0.5}}} for joint in ("knuckle", "last", "opposite") for key in _NUMBERS)
        yield from ({"locked": [joint]} for joint in ("knuckle", "last", "opposite"))
        yield {"locked": ["knuckle"], "joints": {"opposite": {"damping": 1.0}}, "gravity": [0.0, 0.0, -1.6]}
        yield {"payloads": {"link": "thumb", "mass": 1.0, "inertia": array(0.1 * np.eye(3))}}

    @staticmethod
    def _request(inputs: dict[str, Any], options: dict[str, Any] | None) -> bytes:
        message = {"v": 1, "id": 7, "query": "overlay_robot", "robot": "hand", "inputs": inputs}
        payload: bytes = msgpack.packb(message if options is None else {**message, "options": options})
        return payload

    def try_one(self, data: bytes) -> None:
        replies: list[bytes] = []
        check_time(lambda: replies.append(self._served(data)))
        _check(msgpack.unpackb(replies[-1]))

    def _served(self, data: bytes) -> bytes:
        """Returns the reply; checks that a robot which it loaded answers with finite numbers, and unloads it."""
        with np.errstate(all="ignore"):
            reply = self._service.handle(data, perf_counter_ns())
            for name in {*self._service.robots} - {"hand"}:
                for rate in (0.1, 0.0):  # one that is locked stands still
                    self._ask(name, "inverse_dynamics", q=0.3, v=rate, a=rate)
                    self._ask(name, "forward_dynamics", q=0.3, v=rate, tau=1.0)
                self._service.registry.remove(name)
            if "hand" not in self._service.robots:
                self._service.registry.add(self._robot)
        return reply

    def _ask(self, robot: str, query: str, **inputs: float) -> None:
        states = {name: [x, x] for name, x in inputs.items()}
        payload = msgpack.packb({"v": 1, "id": 8, "query": query, "robot": robot, "inputs": states})
        _check(msgpack.unpackb(self._service.handle(payload, perf_counter_ns())))

    def mutated(self, data: bytes, seed: int) -> bytes | None:
        """One value somewhere in the message becomes another, goes, or is there twice."""
        return _revalued(data, seed)


def _check(reply: dict[str, Any]) -> None:
    """Fails for INTERNAL, and for an answer with a number that is not finite."""
    assert reply["ok"] or reply["error"]["code"] != "INTERNAL", reply
    for output in reply.get("outputs", {}).values():
        if isinstance(output, dict) and output.get("dtype") == "<f8":
            assert np.isfinite(np.frombuffer(output["data"])).all(), reply


_NUMBERS = tuple(field.name for field in fields(JointNumbers))

_ODD: tuple[Any, ...] = (
    None, True, 0, 1, -1, 2, 7, 255, 20_000, 2**31, 2**63, 2**64 - 1, 0.0, 0.5, -1e-3, 1e-300, 1e3, 1e200, 1.7e308,
    float("nan"), float("inf"), "", "rk4", "adaptive", "implicit_midpoint", "mass_matrix", "matrix", "world", "<f8",
    "|i1", "tool0", "tip", "hand", "knuckle", b"", bytes(8), bytes(32), [], [[]], [0.5], [0.5] * 4, [1, 2, 3], {},
)  # fmt: skip


def _revalued(data: bytes, seed: int) -> bytes | None:
    """The message with one of its values another, gone, or there twice; None: change its bytes."""
    choose = random.Random(seed)
    if choose.random() < 0.3:
        return None
    try:
        message = msgpack.unpackb(data, strict_map_key=False)
        packed: bytes = msgpack.packb(_mutated_value(message, choose))
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
        return None
    return packed


def _mutated_value(value: Any, choose: random.Random) -> Any:
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
        return {**value, key: _mutated_value(value[key], choose)}
    if isinstance(value, list) and value and choose.random() < 0.8:
        index = choose.randrange(len(value))
        return [*value[:index], _mutated_value(value[index], choose), *value[index + (choose.random() < 0.9) :]]
    if isinstance(value, bytes) and len(value) >= 8 and choose.random() < 0.8:  # numbers
        numbers = np.frombuffer(value[: len(value) // 8 * 8]).copy()
        numbers[choose.randrange(len(numbers))] = choose.choice((0.0, 1.0, -3.0, 1e8, 1e80, -1e300, 1e-320, np.nan))
        return numbers.tobytes()
    return choose.choice(_ODD)


class RobotFile:
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
        text = (b"<" + data.lstrip(b"<")).decode(errors="replace")  # text, not a path
        for root in ("fixed", "floating"):
            self._try_root(text, root)

    def _try_root(self, text: str, root: str) -> None:
        read: list[Description] = []
        check_time(lambda: read.extend(self._read(text, root)))
        if read:
            check_time(lambda: self._write(read[-1]))

    def _read(self, text: str, root: str) -> list[Description]:
        try:
            description = rooted(read_text(text, limits=self._limits), root)  # type: ignore[arg-type]
            robot = Robot(description)
        except DynError:
            return []
        assert robot.description.to_dict()
        assert robot.receipt
        assert all(np.isfinite(array).all() for array in robot.tree.passive.arrays), robot.tree.passive
        return [description]

    def _write(self, description: Description) -> None:
        for write in WRITERS.values():
            with suppress(DynError):
                assert write(description)[0]

    def mutated(self, data: bytes, seed: int) -> bytes | None:
        """A piece between two brackets or quotes goes, is there twice, or trades places with another."""
        return _pieced(data, seed, (b"<", b'"', b" ", b"\n"), (b"0 0 0", b"base_link", b"1 1 1"))


class Files:
    """Joint files and sensor files: read, put on a robot, and asked what joints do and sensors read."""

    longest = 4096
    words = (
        "robot:", "joints:", "force_torque:", "imus:", "encoders:", "seed:", "hand", "finger", "tip", "palm", "knuckle",
        "last", "opposite", *(f"{name}:" for name in _NUMBERS), "rotor_inertia:", "gear_ratio:", "link:", "joint:",
        "rate_hz:", "latency_s:", "filter:", "cutoff_hz:", "order:", "force:", "torque:", "accelerometer:",
        "gyroscope:", "bias:", "bias_spread:", "bias_walk:", "noise_density:", "range:", "step:", "xyz:", "rpy:",
        "counts_per_turn:", "velocity_filter:", ".nan", ".inf", "1e308", "1e-308", "{", "}", "[", "]", "&a", "*a", "<<",
    )  # fmt: skip

    def __init__(self) -> None:
        self._read = read_text(HAND)
        self._robot = Robot(self._read)

    def seeds(self) -> Iterator[bytes]:
        for _, text, *_ in _JOINT_FAULTS:
            yield ("robot: hand\njoints:\n" + _ours(text)).encode()
        for text in _SENSOR_FAULTS:
            yield _ours(text).encode()
        yield _ours((CONFIG / "ur5e_sensors.yaml").read_text()).encode()
        yield _ours((CONFIG / "panda_joints.yaml").read_text()).encode()
        for key in (*_NUMBERS, "rotor_inertia"):
            yield f"robot: hand\njoints:\n  knuckle:\n    {key}: 0.5\n    gear_ratio: 3\n".encode()
            yield f"robot: hand\njoints:\n  opposite: {{{key}: 0.5}}\n".encode()

    def try_one(self, data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file.yaml"
            path.write_bytes(data)
            check_time(lambda: self._joints(path))
            check_time(lambda: self._sensors(path))

    def _joints(self, path: Path) -> None:
        with suppress(DynError):
            robot = Robot(with_joint_file(self._read, path))
            assert robot.receipt
            assert all(np.isfinite(array).all() for array in robot.tree.passive.arrays)
            assert (robot.tree.passive.width > 0.0).all()

    def _sensors(self, path: Path) -> None:
        q, v, a = 0.3, 0.1, 1.0
        with suppress(DynError), np.errstate(all="ignore"):
            sensors = Sensors.from_file(self._robot, path)
            for k in range(3):
                for reading in sensors.read(0.5 * k, *(np.full(2, x) for x in (q, v, a))).values():
                    assert np.isfinite(reading.value).all(), reading

    def mutated(self, data: bytes, seed: int) -> bytes | None:
        """A piece between two marks goes, is there twice, or trades places with another."""
        return _pieced(data, seed, (b"\n", b" ", b": ", b","), (b".inf", b"knuckle", b"[1, 2, 3]", b"1.0e+200"))


def _ours(text: str) -> str:
    """A file for other robots, as one for the hand."""
    for names, name_of_hand in (
        (("ur5e", "panda", "arm"), "hand"),
        (("tool0_joint", "tool_joint", "shoulder_pan_joint", "panda_joint1", "hinge"), "knuckle"),
        (("elbow_joint", "panda_joint2", "rail"), "opposite"),
        (("tool0", "forearm_link"), "tip"),
    ):
        for name in names:
            text = re.sub(rf"\b{name}\b", name_of_hand, text)
    return text


def _pieced(data: bytes, seed: int, marks: Sequence[bytes], words: Sequence[bytes]) -> bytes | None:
    """The text with a piece between two marks gone, there twice, elsewhere, or another; None: change its bytes."""
    choose = random.Random(seed)
    mark = choose.choice(marks)
    pieces = data.split(mark)
    if choose.random() < 0.4 or len(pieces) < 3:
        return None
    index, other_index = choose.randrange(len(pieces)), choose.randrange(len(pieces))
    kind = choose.randrange(4)
    if kind == 0:
        del pieces[index]
    elif kind == 1:
        pieces.insert(index, pieces[other_index])
    elif kind == 2:
        pieces[index], pieces[other_index] = pieces[other_index], pieces[index]
    else:
        pieces[index] = choose.choice((b"", b"0", b"-1", b"nan", b"1e308", b"1e-308", *words))
    return mark.join(pieces)


TARGETS: dict[str, type[Target]] = {
    "curve": ForgedPeers,
    "decoder": Decoder,
    "files": Files,
    "overlays": Overlaid,
    "urdf": RobotFile,
    "zmtp": Streams,
}
