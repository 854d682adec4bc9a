"""Services, parameters and the lifecycle of nodes, with real sockets in one process."""

import itertools
import logging
import time
import typing
from typing import Annotated, Any, Literal

import msgspec
import pytest
import zmq
from msgspec import Meta

from dyn_service.errors import (
    DeadlineExceededError,
    DynError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from dyn_service.graph.middleware import services
from dyn_service.graph.middleware.dyn_service_srvs import (
    ChangeStateRequest,
    DescribeParametersRequest,
    DescribeParametersResponse,
    GetParametersRequest,
    GetParametersResponse,
    GetStateRequest,
    GetStateResponse,
    ListParametersRequest,
    ListParametersResponse,
    SetLogLevelRequest,
    SetParametersRequest,
)
from dyn_service.graph.middleware.graph import End, NodeEntry, Registration, new_token
from dyn_service.graph.middleware.node import Node, flat
from dyn_service.graph.middleware.services import Empty
from dyn_service.messages.diagnostic_msgs import DiagnosticArray, DiagnosticStatus
from dyn_service.messages.std_msgs import String
from dyn_service.support.parameter_descriptions import described, settable
from dyn_service.support.parameters import NoParameters
from tests.graph.in_process import Nodes
from tests.phrases import naming, unnamed


class AddRequest(msgspec.Struct, forbid_unknown_fields=True):
    a: int
    b: int = 0


class AddResponse(msgspec.Struct):
    sum: int


class Gains(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    kp: Annotated[float, Meta(gt=0, le=5000)] = 100.0
    kd: float = 20.0


class Parameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    robot: str = "panda"
    rate_hz: Annotated[float, Meta(gt=0)] = 500.0
    bias: Annotated[float, settable] = 0.0
    gains: Annotated[Gains, settable] = msgspec.field(default_factory=Gains)
    weights: Annotated[list[float], Meta(max_length=3), settable] = []
    mode: Annotated[Literal["fast", "slow"], settable] = "slow"
    offsets: dict[str, float] = {}
    limit: float | None = None


def ask(nodes: Nodes, client: services.ServiceClient[Any], request: msgspec.Struct, timeout_s: float = 30.0) -> Any:
    """Returns the response, while both nodes spin."""
    pending = client.begin(request, timeout_s)
    nodes.until(lambda: pending.done)
    return pending.result()


def add(request: AddRequest) -> AddResponse:
    if request.a < 0:
        raise InvalidArgumentError(f"a is {request.a}: expected none below 0", path="a")
    return AddResponse(request.a + request.b if request.a else 1 // 0)


def test_a_service_answers_and_errors_travel(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    server, asks = nodes.make("/arm/server"), nodes.make("/arm/asks")
    server.create_service("add", AddRequest, add)
    client = asks.create_client("add", AddResponse)
    assert ask(nodes, client, AddRequest(2, 3)) == AddResponse(5)
    with pytest.raises(InvalidArgumentError, match="a is -1: expected none below 0") as excinfo:
        ask(nodes, client, AddRequest(-1))
    assert excinfo.value.path == "a"
    with pytest.raises(InternalError, match="ZeroDivisionError"):
        ask(nodes, client, AddRequest(0))
    assert "Traceback" in caplog.text  # in the node's log, where its author looks
    for wrong, message in (
        (msgspec.defstruct("W", ["a"])("two"), "/arm/add: a: expected a whole number, found text"),
        (msgspec.defstruct("W", [])(), "/arm/add: missing key 'a'"),
        (msgspec.defstruct("W", ["a", "bb"])(1, 2), "/arm/add: bb: unknown key 'bb'; known here: a, b"),
    ):
        with pytest.raises(InvalidArgumentError) as fault:
            ask(nodes, client, wrong)
        assert str(fault.value) == message
    assert ask(nodes, client, AddRequest(2, 3)) == AddResponse(5)
    (end,) = [end for node in asks.graph.nodes() for end in node.services if end.name == "/arm/add"]
    assert end.type == "test_node/srv/Add"


def test_a_service_that_is_not_there_or_does_not_answer(nodes: Nodes) -> None:
    server, asks = nodes.make("/server"), nodes.make("/asks")
    server.create_service("add", AddRequest, add)
    missing = asks.create_client("ad", AddResponse)
    with pytest.raises(NotFoundError, match=naming("'/ad'", "'/add'")):
        missing.call(AddRequest(1))
    client = asks.create_client("/add", AddResponse)
    with pytest.raises(DeadlineExceededError, match=naming("'/add'", "in time")):
        client.call(AddRequest(1), 0.02)  # nobody turns the server
    pending = client.begin(AddRequest(1), 0.0)
    assert client.turn()  # its time is over at once, not later
    assert isinstance(pending.error, DeadlineExceededError)
    with pytest.raises(FailedPreconditionError, match="service '/add' is this node's own"):
        server.create_client("add", AddResponse).call(AddRequest(1))
    with pytest.raises(InvalidArgumentError, match="service '/add' already exists"):
        server.create_service("add", AddRequest, add)
    with pytest.raises(InvalidArgumentError, match=naming("/add", "1048576")):
        client.begin(msgspec.defstruct("W", ["x"])("x" * (1 << 20)))
    nodes.turns(3)
    assert ask(nodes, client, AddRequest(1, 1)) == AddResponse(2)  # what came too late is nobody's
    nodes.end(server)
    second = nodes.make("/server")
    second.create_service("add", AddRequest, lambda request: AddResponse(-1))
    assert ask(nodes, client, AddRequest(1, 1)) == AddResponse(-1)  # it has come back elsewhere


def test_a_service_said_to_be_nowhere_is_a_fault_in_words(nodes: Nodes) -> None:
    """Another node's file is not trusted."""
    asks = nodes.make("/asks")
    end = End("/stranger/add", "x/srv/Add", "nowhere")
    stranger = Registration(nodes.folder, NodeEntry("/stranger", 1, new_token(), services=(end,)))
    client = asks.create_client("/stranger/add", dict)
    for _ in range(2):
        with pytest.raises(UnavailableError, match=naming("'/stranger/add'", "'nowhere'", "Invalid argument")):
            client.call({})
    nodes.turns(3)
    stranger.close()


@pytest.mark.parametrize("name", ["a\nb", "a\x00b", "\x1b[2J", "\u202e"])
def test_names_can_be_seen(nodes: Nodes, name: str) -> None:
    """Others print them to a terminal, and files are called by them."""
    for make in (lambda: nodes.make(f"/{name}"), lambda: nodes.make("/fine").create_publisher(String, name)):
        with pytest.raises(InvalidArgumentError, match=naming("name", "printable")):
            make()


def test_garbage_and_floods_end_nothing(nodes: Nodes) -> None:
    server, asks = nodes.make("/server"), nodes.make("/asks")
    server.create_service("add", AddRequest, add)
    endpoint = server.services().endpoint
    pack = msgspec.msgpack.encode
    requests = {
        b"": "the request is not MessagePack",
        b"\xc1": "the request is not MessagePack",
        b"\x91" * 5000: "the request: expected a map, found a list",
        pack({"id": 1}): "the request: missing key 'service'",
        pack({"id": "x", "service": "/add"}): "the request: id: expected a whole number, found text",
        pack({"id": 2, "service": "/ad"}): "there is no service '/ad' here; did you mean '/add'?",
        pack({"id": 3, "service": "/add", "v": 9}): "v is 9, expected 1",
        pack({"id": 4, "service": "/add"}): "/add: missing key 'a'",
        pack({"id": 5, "service": "/add", "request": {"a": 2**63}}): None,
    }
    with nodes.context.socket(zmq.DEALER) as attacker:
        attacker.setsockopt(zmq.LINGER, 0)
        attacker.connect(endpoint)
        for frame, message in requests.items():
            attacker.send(frame)
            nodes.until(lambda: attacker.poll(1))
            reply = msgspec.msgpack.decode(attacker.recv())
            assert reply["v"] == 1
            if message is not None:
                assert (reply["ok"], reply["error"]["message"]) == (False, message)
        for k in range(50):  # of a burst, a turn answers a part
            attacker.send(pack({"id": k, "service": "/add", "request": {"a": 1}}))
        attacker.send_multipart([b"many", b"parts"])
        answered_before = server.services().answered
        nodes.until(lambda: server.services().answered > answered_before)
        assert server.services().answered - answered_before <= services.PER_TURN
        nodes.until(lambda: server.services().answered == answered_before + 50)
        nodes.until(lambda: server.services().malformed == 6)
    assert ask(nodes, asks.create_client("add", AddResponse), AddRequest(1, 1)) == AddResponse(2)


def test_a_turn_begins_no_request_once_its_time_is_over(nodes: Nodes) -> None:
    server, asks = nodes.make("/server"), nodes.make("/asks")
    server.create_service("slow", Empty, lambda request: time.sleep(2 * services.TURN_S))
    client = asks.create_client("/slow", Empty)
    pending = [client.begin(Empty(), 30.0) for _ in range(4)]
    counts = [0]
    while not all(call.done for call in pending):
        server.spin_once(0.001)
        asks.spin_once(0.001)
        counts.append(server.services().answered)
    assert max(later_count - count for count, later_count in itertools.pairwise(counts)) == 1


def test_no_request_describes_the_parameters_anew(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some 3 ms each time, in the node's own loop."""
    server, asks = nodes.make("/server", Parameters()), nodes.make("/asks")
    server.services()
    monkeypatch.setattr(typing, "get_type_hints", lambda *_, **__: pytest.fail("the struct's types were looked up"))
    for name, request in (
        ("get_parameters", GetParametersRequest()),
        ("list_parameters", ListParametersRequest()),
        ("describe_parameters", DescribeParametersRequest()),
        ("set_parameters", SetParametersRequest({"bias": 1.0})),
    ):
        ask(nodes, asks.create_client(f"/server/{name}", dict), request)
    assert server.parameters.bias == 1.0


def test_parameters_are_described(nodes: Nodes) -> None:
    rows = {
        descriptor.name: (descriptor.type, descriptor.range, descriptor.settable)
        for descriptor in described(Parameters)
    }
    assert rows == {
        "robot": ("text", "", False),
        "rate_hz": ("number", "above 0", False),
        "bias": ("number", "", True),
        "gains.kp": ("number", "above 0, at most 5000", True),
        "gains.kd": ("number", "", True),
        "weights": ("list of numbers", "", True),
        "mode": ("one of fast, slow", "", True),
        "offsets": ("map", "", False),
        "limit": ("number", "", False),
    }
    assert flat(Parameters(weights=[1.0]))["weights"] == [1.0]
    assert list(flat(Parameters())) == list(rows)


def test_parameters_over_services(nodes: Nodes) -> None:
    node, asks = nodes.make("/arm/c", Parameters()), nodes.make("/asks")
    node.services()
    client = lambda name, kind=Empty: asks.create_client(f"/arm/c/{name}", kind)
    names = ask(nodes, client("list_parameters", ListParametersResponse), ListParametersRequest()).names
    assert names == list(flat(Parameters()))
    read = client("get_parameters", GetParametersResponse)
    assert ask(nodes, read, GetParametersRequest(["gains.kp", "robot"])).values == {"gains.kp": 100.0, "robot": "panda"}
    assert list(ask(nodes, read, GetParametersRequest()).values) == names
    with pytest.raises(InvalidArgumentError, match=naming("'/arm/c'", "'gains.kpp'", "'gains.kp'")):
        ask(nodes, read, GetParametersRequest(["gains.kpp"]))
    answer = ask(
        nodes, client("describe_parameters", DescribeParametersResponse), DescribeParametersRequest(["gains.kp"])
    )
    assert answer.descriptors == [descriptor for descriptor in described(Parameters) if descriptor.name == "gains.kp"]
    write = client("set_parameters")
    parameters = node.parameters
    ask(nodes, write, SetParametersRequest({"gains.kp": 900, "bias": 1.5}))
    assert (node.parameters.gains, node.parameters.bias) == (Gains(kp=900.0), 1.5)
    assert type(node.parameters.gains.kp) is float
    assert (parameters.gains.kp, parameters.bias) == (
        100.0,
        0.0,
    )  # the struct is exchanged: a loop sees one or the other


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ({"gains.kp": -1.0}, InvalidArgumentError, "parameter 'gains.kp': expected a number above 0, found -1"),
        ({"gains.kp": 5001.0}, InvalidArgumentError, "parameter 'gains.kp': expected a number of at most 5000, found"),
        ({"gains.kp": "high"}, InvalidArgumentError, "parameter 'gains.kp': expected a number, found text"),
        ({"weights": [1.0, float("nan")]}, InvalidArgumentError, "parameter 'weights' is not finite"),
        ({"gains.kd": float("inf")}, InvalidArgumentError, "parameter 'gains.kd' is not finite"),
        ({"mode": "fats"}, InvalidArgumentError, "parameter 'mode': "),
        ({"rate_hz": 5.0}, FailedPreconditionError, "parameter 'rate_hz' of node '/n' is read-only while it runs"),
        ({"bia": 5.0}, InvalidArgumentError, "node '/n' has no parameter 'bia'; did you mean 'bias'?"),
        ({"gains": {"kp": 1.0}}, InvalidArgumentError, "node '/n' has no parameter 'gains'"),
        ({"mode": "fast"}, FailedPreconditionError, "not while it moves"),
    ],
)
def test_a_set_that_is_refused_changes_nothing(
    nodes: Nodes, values: dict[str, Any], kind: type[DynError], message: str
) -> None:
    node = nodes.make("/n", Parameters())
    checked: list[tuple[Any, Any]] = []

    def check(old: Parameters, new: Parameters) -> None:
        checked.append((old.bias, new.bias))
        if new.mode == "fast":
            raise FailedPreconditionError("not while it moves")

    node.on_set(check)
    parameters = node.parameters
    with pytest.raises(kind) as excinfo:
        node.set_parameters({"bias": 7.0} | values)
    assert str(excinfo.value).startswith(message)
    assert node.parameters is parameters
    assert node.parameters == Parameters()
    assert checked == ([(0.0, 7.0)] if "moves" in message else [])
    node.set_parameters({"bias": 7.0})
    assert node.parameters.bias == 7.0


class Talker(Node[Parameters]):
    """Records each of its transitions, and fails in a given one."""

    fails = ""

    def on_configure(self) -> None:
        self.out = self.create_publisher(String, "said")
        self.heard: list[str] = []
        self.ear = self.create_subscription(String, "told", lambda message: self.heard.append(message.data), queue=10)
        self.create_timer(0.001, lambda: self.out.publish(String("tick")))
        self.create_service("~/add", AddRequest, add)
        self.step("configure")

    def on_activate(self) -> None:
        self.step("activate")

    def on_deactivate(self) -> None:
        self.step("deactivate")

    def on_cleanup(self) -> None:
        self.step("cleanup")

    def step(self, name: str) -> None:
        self.steps = [*getattr(self, "steps", []), name]
        if self.fails == name:
            raise FailedPreconditionError(f"cannot {name}")


def state_of(nodes: Nodes, name: str) -> str:
    entry = next(entry for entry in nodes.all[-1].graph.read() if entry.name == name)
    return entry.state


def test_a_lifecycle(nodes: Nodes) -> None:
    talker, asks = nodes.make("/talker", Parameters(), Talker), nodes.make("/asks")
    talker.services()
    received: list[str] = []
    subscription = asks.create_subscription(String, "said", lambda message: received.append(message.data), queue=10)
    tells = asks.create_publisher(String, "told")
    change = asks.create_client("/talker/change_state", GetStateResponse)
    state = asks.create_client("/talker/get_state", GetStateResponse)
    assert ask(nodes, state, GetStateRequest()) == GetStateResponse("unconfigured", ["configure", "shutdown"])
    with pytest.raises(FailedPreconditionError) as excinfo:
        ask(nodes, change, ChangeStateRequest("activate"))
    assert unnamed(excinfo.value, "'/talker'", "unconfigured", "'activate'", "configure, shutdown") == []
    with pytest.raises(InvalidArgumentError, match=naming("'activte'", "'activate'")):
        ask(nodes, change, ChangeStateRequest("activte"))
    assert ask(nodes, change, ChangeStateRequest("configure")).state == "inactive" == state_of(nodes, "/talker")
    nodes.until(lambda: subscription.publishers == 1)
    nodes.until(lambda: tells.publish(String("while it rests")) and talker.ear.received > 3)
    nodes.until(lambda: max(talker.ear._counts.values()) == tells.sent)  # all that was sent has come
    assert not talker.out.publish(String("x"))
    assert (received, talker.heard) == ([], [])
    assert ask(nodes, change, ChangeStateRequest("activate")).transitions == ["deactivate", "shutdown"]
    nodes.until(lambda: received)
    nodes.until(lambda: tells.publish(String("at work")) and "at work" in talker.heard)
    assert "while it rests" not in talker.heard
    ask(nodes, change, ChangeStateRequest("deactivate"))
    count = talker.out.sent
    nodes.turns(20)
    assert talker.out.sent == count
    ask(nodes, change, ChangeStateRequest("cleanup"))
    entry = next(node_entry for node_entry in asks.graph.read() if node_entry.name == "/talker")
    assert (entry.state, entry.publishers, entry.subscriptions) == ("unconfigured", (), ())
    assert "/talker/add" not in [end.name for end in entry.services]
    ask(nodes, change, ChangeStateRequest("configure"))  # and once more from the beginning
    ask(nodes, change, ChangeStateRequest("activate"))
    assert ask(nodes, change, ChangeStateRequest("shutdown")) == GetStateResponse("finalized", [])
    assert talker.stop.requested
    assert talker.steps == ["configure", "activate", "deactivate", "cleanup"] * 2


@pytest.mark.parametrize(
    ("fails", "last_state", "left"),
    [
        ("configure", "unconfigured", 0),
        ("activate", "inactive", 1),
        ("deactivate", "active", 1),
        ("cleanup", "inactive", 1),
    ],
)
def test_a_transition_that_fails_leaves_the_state(nodes: Nodes, fails: str, last_state: str, left: int) -> None:
    talker = nodes.make("/talker", Parameters(), Talker)
    talker.fails = fails
    steps = ("configure", "activate", "deactivate", "cleanup")
    for transition in steps[: steps.index(fails)]:
        talker.change_state(transition)
    with pytest.raises(FailedPreconditionError, match=f"cannot {fails}"):
        talker.change_state(fails)
    assert (talker.state, state_of(nodes, "/talker")) == (last_state, last_state)
    assert len(talker.graph.read()[0].publishers) == left
    talker.fails = ""
    talker.change_state("shutdown")
    assert talker.state == "finalized"


def test_a_function_has_no_lifecycle(nodes: Nodes) -> None:
    node, asks = nodes.make("/n"), nodes.make("/asks")
    node.spin_once()
    state = ask(nodes, asks.create_client("/n/get_state", GetStateResponse), GetStateRequest())
    assert state == GetStateResponse("unconfigured", [])
    node.telemetry.before_ready = node.begin
    node.telemetry.ready()
    assert node.state == "active"
    with pytest.raises(FailedPreconditionError, match=naming("'/n'", "lifecycle")):
        ask(nodes, asks.create_client("/n/change_state", GetStateResponse), ChangeStateRequest("deactivate"))


def test_a_class_lives_from_configured_to_finalized(nodes: Nodes) -> None:
    class Brief(Talker):
        def on_activate(self) -> None:
            super().on_activate()
            self.create_timer(0.001, self.stop.request)

    brief = nodes.make("/brief", Parameters(), Brief)
    brief.run()
    assert brief.steps == ["configure", "activate", "deactivate", "cleanup"]
    assert brief.state == "finalized"


def test_log_levels(nodes: Nodes) -> None:
    node, asks = nodes.make("/n", NoParameters()), nodes.make("/asks")
    node.services()
    client = asks.create_client("/n/set_log_level", Empty)
    logger = logging.getLogger("of.this.test")
    ask(nodes, client, SetLogLevelRequest("debug", "of.this.test"))
    assert logger.level == logging.DEBUG
    with pytest.raises(InvalidArgumentError, match=naming("/n/set_log_level", "'loud'")):
        ask(nodes, client, msgspec.defstruct("W", ["level"])("loud"))


def test_a_node_says_how_it_does(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """On /diagnostics, as a node with a process of its own does."""
    monkeypatch.setattr("dyn_service.graph.middleware.node.PERIOD_S", 0.001)
    talker, asks = nodes.make("/talker", Parameters(), Talker), nodes.make("/asks")
    talker.diagnosed = True
    talker.change_state("configure")
    talker.telemetry.stats({"rate_hz": 499.99, "mode": "active", "steps": 12345678})
    subscription = asks.create_subscription(DiagnosticArray, "/diagnostics")
    talker.change_state("activate")
    diagnostics = nodes.until(subscription.take)
    assert diagnostics.header.stamp.sec > 1_700_000_000
    (status,) = diagnostics.status
    assert (status.level, status.name, status.message) == (DiagnosticStatus.OK, "/talker", "active")
    assert {key_value.key: key_value.value for key_value in status.values} == {
        "rate_hz": "499.99",
        "mode": "active",
        "steps": "12345678",
    }
