"""Error replies to malformed requests: code, path and message of each."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

import msgpack
import numpy as np
import pytest

from dyn_service import Robot, Server
from dyn_service.service.protocol.arrays import DTYPES
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.answering.service import Service
from dyn_service.support.suggestions import MAX_LISTED
from tests.service.conftest import Bare, array, request

INVALID = "INVALID_ARGUMENT"
EXHAUSTED = "RESOURCE_EXHAUSTED"
ALL_DTYPES = ", ".join(DTYPES)
BIG = np.zeros((1, 3)).tobytes()


def q(value: Any) -> dict[str, Any]:
    return request(inputs={"q": value})


def wrench(value: Any, robot: str = "pendulum") -> dict[str, Any]:
    state = array([0.5])
    inputs = {"q": state, "v": state, "a": state, "wrenches": value}
    return request("inverse_dynamics", robot, inputs=inputs)


def constraint(**options: Any) -> dict[str, Any]:
    state = array([0.5])
    return request("constraint_forces", inputs={"q": state, "v": state, "tau": state}, options=options)


def nested(depth: int) -> Any:
    value: Any = [1.0]
    for _ in range(depth - 1):
        value = [value]
    return value


QUERIES_TEXT = "<queries>"
"""Placeholder in messages for the list of queries."""

# fmt: off
# name: payload or message, id in the reply, code, path, message
CASES: dict[str, tuple[Any, int | None, str, str | None, str]] = {
    # Whole messages
    "empty": (b"", None, INVALID, None, "the message is empty, expected a MessagePack map"),
    "not MessagePack": (b"\xc1", None, INVALID, None,
        "the message is not MessagePack: invalid first byte of an object"),
    "truncated": (msgpack.packb(request())[:-1], 7, INVALID, None, "the message is not MessagePack: incomplete input"),
    "extra bytes": (msgpack.packb(request()) + b"\x00\x00", 7, INVALID, None,
        "the message has 2 extra bytes after its MessagePack object"),
    "string that is not UTF-8": (b"\x81\xa1v\xa2\xff\xfe", None, INVALID, None,
        "the message is not MessagePack: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    "JSON": (b'{"v": 1}', None, INVALID, None, "the message has 7 extra bytes after its MessagePack object"),
    "a list": ([1, 2], None, INVALID, None, "the message must be a map, found a list"),
    "an integer": (7, None, INVALID, None, "the message must be a map, found an integer"),
    "nil": (None, None, INVALID, None, "the message must be a map, found nil"),
    "a key that is an integer": ({**request(), 5: 1}, 7, INVALID, None,
        "the message is not MessagePack: int is not allowed for map key when strict_map_key=True"),
    "a key that is bytes": ({**request(), b"q": 1}, 7, INVALID, None, "the keys of the request must be strings"),
    "too deep": (b"\x91" * 2000 + b"\x01", None, EXHAUSTED, None, "lists and maps are nested deeper than 64 levels"),
    "a list with too large a length": (b"\x81\xa1v\xdd\xff\xff\xff\xff", None, EXHAUSTED, None,
        "a list of 4294967295 entries is over the limit of 4096"),
    "a map with too large a length": (b"\xdf\xff\xff\xff\xff", None, EXHAUSTED, None,
        "a map of 4294967295 entries is over the limit of 256"),
    "a mebibyte of empty maps": (request(extra=[[{}] * 4000] * 262), 7, EXHAUSTED, None,
        "the message's lists and maps have more than 65536 entries in total"),
    # Version and id
    "no version": (request(v=...), 7, INVALID, "v", "the request must have 'v'"),
    "version 2": (request(v=2), 7, "UNIMPLEMENTED", "v", "v must be 1, found version 2"),
    "version 0": (request(v=0), 7, "UNIMPLEMENTED", "v", "v must be 1, found version 0"),
    "version before other errors": ({"v": 3, "id": 9, "query": 5, "robot": []}, 9, "UNIMPLEMENTED", "v",
        "v must be 1, found version 3"),
    "version as a string": (request(v="1"), 7, INVALID, "v", "v must be the integer 1, found a string"),
    "version as a boolean": (request(v=True), 7, INVALID, "v", "v must be the integer 1, found a boolean"),
    "version as a float": (request(v=1.0), 7, INVALID, "v", "v must be the integer 1, found a float"),
    "no id": (request(id=...), None, INVALID, "id", "the request must have 'id'"),
    "negative id": (request(id=-1), None, INVALID, "id", "id must be an unsigned integer, found -1"),
    "id as a string": (request(id="a"), None, INVALID, "id", "id must be an unsigned integer, found 'a'"),
    "id as a float": (request(id=1.5), None, INVALID, "id", "id must be an unsigned integer, found 1.5"),
    "id as nil": (request(id=None), None, INVALID, "id", "id must be an unsigned integer, found nil"),
    # Query and robot
    "no query": (request(query=...), 7, INVALID, "query", "the request must have 'query'"),
    "query as an integer": (request(query=3), 7, INVALID, "query", "query must be the name of a query, found 3"),
    "unknown query": (request("divination"), 7, "UNIMPLEMENTED", "query",
        f"there is no query 'divination'; the queries are {QUERIES_TEXT}"),
    "no robot": (request(robot=...), 7, INVALID, "robot", "robot must be the name of a robot, found nothing"),
    "robot as a list": (request(robot=["pendulum"]), 7, INVALID, "robot",
        "robot must be the name of a robot, found a list"),
    "unknown robot": (request(robot="r2d2"), 7, "NOT_FOUND", "robot",
        "there is no robot 'r2d2'; the robots are panda, pendulum"),
    "another model": (request(model="0" * 32), 7, "FAILED_PRECONDITION", "model",
        f"robot 'pendulum' has fingerprint <fingerprint>, the request was made for {'0' * 32}"),
    "model as an integer": (request(model=5), 7, INVALID, "model", "model must be the fingerprint of a robot, found 5"),
    # Deadlines
    **{
        f"{key} {value!r}": (
            request(**{key: value}),
            7,
            INVALID,
            key,
            f"{key} must be a positive, finite number of milliseconds, found {description}",
        )
        for key in ("deadline_ms", "compile_wait_ms")
        for value, description in [
            (0, "0"),
            (-5.0, "-5.0"),
            (float("nan"), "nan"),
            (float("inf"), "inf"),
            ("soon", "'soon'"),
            (True, "a boolean"),
        ]
    },
    # Inputs
    "inputs as a list": (request(inputs=[1]), 7, INVALID, "inputs",
        "inputs must be a map of inputs by name, found a list"),
    "a key of inputs that is bytes": (request(inputs={b"q": array([0.5])}), 7, INVALID, "inputs",
        "the keys of inputs must be strings"),
    "no inputs": (request(inputs=...), 7, INVALID, "inputs.q", "gravity_forces needs the input 'q'"),
    "input as nil": (q(None), 7, INVALID, "inputs.q", "gravity_forces needs the input 'q'"),
    "unknown input": (request(inputs={"q": array([0.5]), "qdd": array([0.5])}), 7, INVALID, "inputs.qdd",
        "gravity_forces has no input 'qdd'; its inputs are q, gravity, overlay"),
    "wrong shape": (q(array([0.5, 0.5])), 7, INVALID, "inputs.q",
        "q has shape (2,), expected (..., 1) (1 movable joint)"),
    "no axis": (q(1.0), 7, INVALID, "inputs.q", "q has shape (), expected (..., 1) (1 movable joint)"),
    "wrong gravity": (request(inputs={"q": array([0.5]), "gravity": array([9.81])}), 7, INVALID, "inputs.gravity",
        "gravity has shape (1,), expected (..., 3) in m/s^2, such as (0, 0, -9.81)"),
    "axes that do not broadcast": (
        request("bias_forces", inputs={"q": array(np.zeros((3, 1))), "v": array(np.zeros((4, 1)))}),
        7,
        INVALID,
        "inputs",
        "the leading axes of q (3,) and v (4,) do not broadcast against each other",
    ),
    # Arrays as maps
    "array without dtype": (q({"shape": [1], "data": bytes(8)}), 7, INVALID, "inputs.q",
        "q must have dtype, shape and data, found no 'dtype'"),
    "array without shape": (q({"dtype": "<f8", "data": bytes(8)}), 7, INVALID, "inputs.q",
        "q must have dtype, shape and data, found no 'shape'"),
    "array without data": (q({"dtype": "<f8", "shape": [1]}), 7, INVALID, "inputs.q",
        "q must have dtype, shape and data, found no 'data'"),
    **{
        f"dtype {dtype!r}": (
            q({"dtype": dtype, "shape": [1], "data": bytes(8)}),
            7,
            INVALID,
            "inputs.q",
            f"q must have a dtype of {ALL_DTYPES}, found {dtype!r}",
        )
        for dtype in ["|O", ">f8", "|b1", "<U2", "float64", "", 8]
    },
    "shape as an integer": (q({"dtype": "<f8", "shape": 1, "data": bytes(8)}), 7, INVALID, "inputs.q",
        "q must have a list of lengths as shape, found 1"),
    "negative shape": (q({"dtype": "<f8", "shape": [-1], "data": bytes(8)}), 7, INVALID, "inputs.q",
        "q must have a list of lengths as shape, found [-1]"),
    "shape of floats": (q({"dtype": "<f8", "shape": [1.0], "data": bytes(8)}), 7, INVALID, "inputs.q",
        "q must have a list of lengths as shape, found [1.0]"),
    "shape of booleans": (q({"dtype": "<f8", "shape": [True], "data": bytes(8)}), 7, INVALID, "inputs.q",
        "q must have a list of lengths as shape, found [True]"),
    "too many dimensions": (q({"dtype": "<f8", "shape": [1] * 17, "data": bytes(8)}), 7, EXHAUSTED, "inputs.q",
        "q must have at most 16 dimensions, found 17 or more"),
    "data as a string": (q({"dtype": "<f8", "shape": [1], "data": "abcdefgh"}), 7, INVALID, "inputs.q",
        "q must have binary data, found a string"),
    "data too short": (q({"dtype": "<f8", "shape": [1], "data": bytes(7)}), 7, INVALID, "inputs.q",
        "q must have 8 bytes of data for shape [1] of <f8, found 7"),
    "data too long": (q({"dtype": "<f4", "shape": [1], "data": bytes(8)}), 7, INVALID, "inputs.q",
        "q must have 4 bytes of data for shape [1] of <f4, found 8"),
    "a shape whose product overflows 64 bits": (
        q({"dtype": "<f8", "shape": [2**32, 2**32], "data": b""}), 7, INVALID, "inputs.q",
        "q must have 147573952589676412928 bytes of data for shape [4294967296, 4294967296] of <f8, found 0"),
    "an empty array of huge axes": (
        q({"dtype": "<f8", "shape": [0, 2**62, 2**62], "data": b""}), 7, INVALID, "inputs.q",
        "q must have a shape of at most 67108864 entries, found [0, 4611686018427387904, 4611686018427387904]"),
    "NaN": (q(array([np.nan])), 7, INVALID, "inputs.q", "q must be finite, found nan at [0]"),
    "infinity": (q(array([-np.inf])), 7, INVALID, "inputs.q", "q must be finite, found -inf at [0]"),
    "NaN in a batch": (q(array([[0.0], [1.0], [np.nan]])), 7, INVALID, "inputs.q",
        "q must be finite, found nan at [2, 0]"),
    "single precision infinity": (
        q({"dtype": "<f4", "shape": [1], "data": np.float32(np.inf).tobytes()}), 7, INVALID, "inputs.q",
        "q must be finite, found inf at [0]"),
    # Arrays as lists
    "list of strings": (q(["0.5"]), 7, INVALID, "inputs.q", "q must be real numbers, found a string"),
    "list with nil": (q([None]), 7, INVALID, "inputs.q", "q must be real numbers, found nil"),
    "list of booleans": (q([True]), 7, INVALID, "inputs.q", "q must be real numbers, found a boolean"),
    "list of maps": (q([{}]), 7, INVALID, "inputs.q", "q must be real numbers, found a map"),
    "a string": (q("0.5"), 7, INVALID, "inputs.q", "q must be real numbers, found a string"),
    "bytes": (q(bytes(8)), 7, INVALID, "inputs.q", "q must be real numbers, found binary data"),
    "extension type": (q(msgpack.ExtType(5, b"abc")), 7, INVALID, "inputs.q",
        "q must be real numbers, found an extension type"),
    "list with NaN": (q([float("nan")]), 7, INVALID, "inputs.q", "q must be finite, found nan at [0]"),
    "a number that is NaN": (q(float("nan")), 7, INVALID, "inputs.q", "q must be finite, found nan"),
    "ragged list": (q([[1.0], [1.0, 2.0]]), 7, INVALID, "inputs.q",
        "q must be rectangular, found a list of 2 next to a list of 1"),
    "list next to a number": (q([[1.0], 2.0]), 7, INVALID, "inputs.q",
        "q must be rectangular, found a float next to a list of 1"),
    "list of 17 levels": (q(nested(17)), 7, EXHAUSTED, "inputs.q",
        "q must have at most 16 dimensions, found 17 or more"),
    "list of 5000 numbers": (q([0.0] * 5000), 7, EXHAUSTED, "inputs.q",
        "q has a list of 5000 entries, the limit is 4096: send it as binary data"),
    # Options
    "options as a list": (request(options=[1]), 7, INVALID, "options",
        "options must be a map of options by name, found a list"),
    "unknown option": (constraint(colour="red"), 7, INVALID, "options.colour",
        "constraint_forces has no option 'colour'; its options are joints, frame, passive"),
    "option of a query without options": (request(options={"method": "articulated"}), 7, INVALID, "options.method",
        "gravity_forces has no option 'method'; its options are passive"),
    "unknown choice": (constraint(frame="moon"), 7, INVALID, "options.frame",
        "frame must be 'joint' or 'world', found 'moon'"),
    "choice as an integer": (constraint(frame=1), 7, INVALID, "options.frame",
        "frame must be 'joint' or 'world', found 1"),
    "choice as a map": (constraint(frame={"a": 1}), 7, INVALID, "options.frame",
        "frame must be 'joint' or 'world', found {'a': 1}"),
    "names as a string": (constraint(joints="pivot"), 7, INVALID, "options.joints",
        "joints must be a list of names, found str 'pivot'"),
    "names with an integer": (constraint(joints=["pivot", 3]), 7, INVALID, "options.joints",
        "joints must be a list of names, found list ['pivot', 3]"),
    "unknown joint": (constraint(joints=["elbow"]), 7, "NOT_FOUND", "options.joints[0]",
        "robot 'pendulum' has no joint 'elbow'; its joints are <joints>"),
    # Wrenches
    "wrenches as a number": (wrench(5), 7, INVALID, "inputs.wrenches",
        "wrenches must be a map with link, torque and force, found an integer"),
    "wrench as a string": (wrench(["rod"]), 7, INVALID, "inputs.wrenches[0]",
        "wrenches[0] must be a map with link, torque and force, found a string"),
    "wrench without link": (wrench([{"force": [0, 0, 1]}]), 7, INVALID, "inputs.wrenches[0]",
        "wrenches[0] needs the link it acts on"),
    "wrench with an unknown key": (wrench([{"link": "rod", "moment": [0, 0, 1]}]), 7, INVALID, "inputs.wrenches[0]",
        "wrenches[0] has no 'moment'; its keys are link, torque, force, point, frame"),
    "link as an integer": (wrench([{"link": 3}]), 7, INVALID, "inputs.wrenches[0].link",
        "wrenches[0].link must be a name, found an integer"),
    "frame as an integer": (wrench([{"link": "rod", "frame": 5}]), 7, INVALID, "inputs.wrenches[0].frame",
        "wrenches[0].frame must be a name, found an integer"),
    "link as nil": (wrench([{"link": None}]), 7, INVALID, "inputs.wrenches[0]",
        "wrenches[0] needs the link it acts on"),
    "unknown link": (wrench([{"link": "tail"}]), 7, "NOT_FOUND", "inputs.wrenches[0].link",
        "robot 'pendulum' has no link 'tail'; its links are <links>"),
    "NaN in a wrench": (
        wrench([{"link": "tail"}, {"link": "tail", "force": [0.0, float("nan"), 0.0]}]),
        7,
        INVALID,
        "inputs.wrenches[1].force",
        "wrenches[1].force must be finite, found nan at [1]",
    ),
    "force of two numbers": (
        wrench([{"link": "rod"}, {"link": "rod", "force": [0.0, 1.0]}]),
        7,
        INVALID,
        "inputs.wrenches[1].force",
        "wrenches[1].force must be numbers of shape (..., 3), found shape (2,) of float64",
    ),
    "infinity in a wrench": (
        wrench({"link": "tail", "point": array([0.0, np.inf, 0.0])}), 7, INVALID, "inputs.wrenches.point",
        "wrenches.point must be finite, found inf at [1]"),
    # Answers over the limit
    "an answer that is too long": (
        request("mass_matrix", "panda", inputs={"q": array(np.zeros((1700, 9)))}), 7, EXHAUSTED, "inputs",
        "mass_matrix asks for 1700 states: the answer takes 1101600 bytes, the limit is 1048576: at most 1618 states "
        "fit into one request"),
    "an answer made too long by broadcasting": (
        request("bias_forces", inputs={"q": array(np.zeros((400, 1, 1))), "v": array(np.zeros((1, 400, 1)))}),
        7,
        EXHAUSTED,
        "inputs",
        "bias_forces asks for 400 x 400 states: the answer takes 1280000 bytes, the limit is 1048576: at most 131072 "
        "states fit into one request",
    ),
    "an answer made too long by naming a joint often": (
        request(
            "constraint_forces",
            inputs={"q": array(np.zeros((20, 1))), "v": array([0.0]), "tau": array([0.0])},
            options={"joints": ["pivot"] * 4000},
        ),
        7,
        EXHAUSTED,
        "inputs",
        "constraint_forces asks for 20 states: the answer takes 8320000 bytes, the limit is 1048576: at most 2 states "
        "fit into one request",
    ),
    # Queries about the server
    "load_robot without urdf": ({"v": 1, "id": 7, "query": "load_robot"}, 7, INVALID, "inputs.urdf",
        "urdf must be the content of a robot's file, found nil"),
    "load_robot with a path": (
        {"v": 1, "id": 7, "query": "load_robot", "inputs": {"urdf": "/etc/passwd"}}, 7, INVALID, "inputs.urdf",
        "urdf must be the content of a robot's file, found no XML"),
    "load_robot with another document": (
        {"v": 1, "id": 7, "query": "load_robot", "inputs": {"urdf": "<html/>"}}, 7, INVALID, None,
        "<urdf fault>"),
    "unload_robot of an unknown robot": (
        {"v": 1, "id": 7, "query": "unload_robot", "robot": "r2d2"}, 7, "NOT_FOUND", "robot",
        "there is no robot 'r2d2'; the robots are panda, pendulum"),
    "describe_robot without robot": ({"v": 1, "id": 7, "query": "describe_robot"}, 7, INVALID, "robot",
        "robot must be the name of a robot, found nothing"),
}
# fmt: on


@pytest.fixture(scope="module")
def service(panda: Robot, pendulum: Robot) -> Service:
    return Service([panda, pendulum], limits=RequestLimits(max_reply_bytes=1 << 20), allow_load=True)


def expected_message(message: str, pendulum: Robot) -> str:
    from dyn_service.api.queries import COMPUTATIONS, QUERIES
    from dyn_service.service.protocol.messages import ADMINISTRATION

    queries = (*QUERIES, *COMPUTATIONS, *ADMINISTRATION)
    fill = {
        QUERIES_TEXT: f"{', '.join(queries[:MAX_LISTED])} and {len(queries) - MAX_LISTED} more",
        "<fingerprint>": pendulum.fingerprint,
        "<joints>": ", ".join(pendulum.all_joint_names),
        "<links>": ", ".join(pendulum.link_names),
    }
    for mark, text in fill.items():
        message = message.replace(mark, text)
    return message


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 45


@pytest.mark.parametrize("name", CASES)
def test_refusal(service: Service, pendulum: Robot, name: str) -> None:
    payload, request_id, code, path, message = CASES[name]
    payload = payload if isinstance(payload, bytes) else msgpack.packb(payload)
    for _ in range(2):
        reply = msgpack.unpackb(service.handle(payload, perf_counter_ns()))
        assert (reply["v"], reply["id"], reply["ok"]) == (1, request_id, False)
        error = reply["error"]
        if message != "<urdf fault>":
            assert error["message"] == expected_message(message, pendulum)
        assert (error["code"], error.get("path")) == (code, path)


def test_refusals_over_a_socket_leave_the_server_well(tcp_server: Server, pendulum: Robot, bare: Any) -> None:
    socket: Bare = bare(tcp_server.endpoints[0])
    for name, (payload, request_id, code, path, _) in CASES.items():
        if name.startswith("an answer"):
            continue
        reply = socket.ask(payload if isinstance(payload, bytes) else msgpack.packb(payload))
        assert not reply["ok"], (name, reply)
        assert (reply["id"], reply["ok"], reply["error"]["code"]) == (request_id, False, code), name
        assert reply["error"].get("path") == path, name
    reply = socket.ask(request())
    assert reply["ok"]
    forces = np.frombuffer(reply["outputs"]["forces"]["data"])
    assert forces.tobytes() == pendulum.gravity_forces([0.5]).tobytes()


def test_what_may_be_left_out_or_added(service: Service) -> None:
    """Unknown keys and keys that are nil change nothing, in a request and in an array."""
    plain = msgpack.unpackb(service.handle(msgpack.packb(request()), perf_counter_ns()))["outputs"]
    odd = {**array([0.5]), "unit": "rad"}
    for message in (
        request(future={"deep": [1, {}]}, trace="abc"),
        request(options=None, model=None, deadline_ms=None, compile_wait_ms=None),
        request(options={}),
        request(inputs={"q": odd}),
        request(inputs={"q": [0.5], "gravity": None}),
        request(inputs={"q": {"dtype": "<f4", "shape": [1], "data": np.float32(0.5).tobytes()}}),
        request(id=2**64 - 1),
        request(deadline_ms=1e300),
    ):
        reply = msgpack.unpackb(service.handle(msgpack.packb(message), perf_counter_ns()))
        assert reply["ok"], reply
        assert reply["outputs"] == plain


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_read(service: Service, pendulum: Robot, dtype: str) -> None:
    value = np.array([[1], [2], [3]]).astype(dtype)
    message = q({"dtype": dtype, "shape": [3, 1], "data": value.tobytes()})
    reply = msgpack.unpackb(service.handle(msgpack.packb(message), perf_counter_ns()))
    forces = reply["outputs"]["forces"]
    assert (forces["dtype"], forces["shape"]) == ("<f8", [3, 1])
    assert forces["data"] == pendulum.gravity_forces(value.astype(float)).tobytes()


def test_lists_of_numbers_are_read(service: Service, pendulum: Robot) -> None:
    for value in ([1], [[1], [2.5]], [[[1]], [[2]]], [[]], [], 3):
        reply = msgpack.unpackb(service.handle(msgpack.packb(q(value)), perf_counter_ns()))
        expected = np.array(value, dtype=float)
        if expected.shape[-1:] == (1,):
            assert reply["outputs"]["forces"]["data"] == pendulum.gravity_forces(expected).tobytes()
        else:
            assert reply["error"]["path"] == "inputs.q"
