"""A participant of a DDS domain that writes and reads topics as ROS 2's nodes do.

    sensor_msgs/msg/JointState  <->  sensor_msgs::msg::dds_::JointState_
    topic /arm/joint_states     <->  rt/arm/joint_states

DDS types are made from the annotations of the message structs. Quality of service is ROS's default: reliable, keep
last; latched topics (`robot_description`, `tf_static`) are transient local. Readers accept reliable and best-effort
writers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from cyclonedds.core import DDSException, Policy, Qos
from cyclonedds.domain import Domain, DomainParticipant
from cyclonedds.idl import IdlStruct, make_idl_struct
from cyclonedds.idl import types as idl
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration

from dyn_service.errors import InvalidArgumentError, UnavailableError
from dyn_service.messages import Message, fields_of, ros_type
from dyn_service.messages.cdr import rihs01
from dyn_service.messages.fields import Field

Range = Literal["localhost", "subnet", "system"]
MAX_DOMAIN = 232
"""ROS 2's highest domain; DDS derives its ports from the domain, and beyond it they do not exist."""
_TAKE = 64
"""Maximum number of samples that one call takes."""
_COMPATIBLE = "<Compatibility><IgnoreTypeInformation>1.1,1.15,1.16</IgnoreTypeInformation></Compatibility>"
"""Types are matched by name only, for the vendors Connext, Fast DDS and Cyclone: Cyclone rejects the type information
that Fast DDS, ROS 2's default, sends for types with a list (eclipse-cyclonedds/cyclonedds, pull request 2333)."""
_SUBNET = f"""<CycloneDDS><Domain id="any">{_COMPATIBLE}</Domain></CycloneDDS>"""
_LOCALHOST = f"""<CycloneDDS><Domain id="any">{_COMPATIBLE}
  <General><Interfaces><NetworkInterface name="lo"/></Interfaces><AllowMulticast>false</AllowMulticast></General>
  <Discovery><ParticipantIndex>auto</ParticipantIndex><MaxAutoParticipantIndex>32</MaxAutoParticipantIndex>
    <Peers><Peer address="127.0.0.1"/></Peers></Discovery>
</Domain></CycloneDDS>"""


def domain_number(domain: int | None, environment: Mapping[str, str] = os.environ) -> int:
    """Returns the domain: the argument, else `$ROS_DOMAIN_ID`, else 0, as ROS 2 does."""
    text = environment.get("ROS_DOMAIN_ID", "") if domain is None else str(domain)
    number = text or "0"
    if not number.isascii() or not number.isdigit() or int(number) > MAX_DOMAIN:
        source = "domain" if domain is not None else "ROS_DOMAIN_ID"
        raise InvalidArgumentError(f"{source} is {text!r}: expected a number from 0 to {MAX_DOMAIN}")
    return int(number)


class Participant:
    """One participant; `close` ends it and all its writers and readers.

    domain: 0 to 232; see `domain_number`. reach: `localhost`: the loopback interface only; `subnet`: ROS 2's default;
    `system`: as `$CYCLONEDDS_URI` specifies.
    """

    def __init__(self, domain: int, reach: Range = "localhost") -> None:
        try:
            self._domain = _open_domain(domain, reach)
            self._participant = DomainParticipant(domain)
        except DDSException as error:
            raise UnavailableError(f"DDS domain {domain} cannot be opened: {error}") from None

    def writer(self, topic: str, kind: type[Message], *, latched: bool = False) -> Writer:
        """Returns a writer of messages of a type to a topic, such as `/joint_states`."""
        dds = dds_type(kind)
        qos = _qos(kind, latched=latched, reliable=True)
        return Writer(dds, DataWriter(self._participant, self._topic(topic, dds, qos), qos=qos))

    def reader(self, topic: str, kind: type[Message], *, latched: bool = False) -> Reader:
        """Returns a reader of messages of a type from a topic. latched: also receives the last earlier message."""
        dds = dds_type(kind)
        qos = _qos(kind, latched=latched, reliable=latched)
        return Reader(dds, DataReader(self._participant, self._topic(topic, dds, qos), qos=qos))

    def close(self) -> None:
        """Leaves the domain."""
        # Cyclone's objects end when they are collected; they have no method to close
        self._participant = self._domain = None

    def _topic(self, name: str, dds: DdsType, qos: Qos) -> Any:
        return Topic(self._participant, dds_topic(name), dds.idl, qos=qos)


class Writer:
    """Writes to one topic."""

    def __init__(self, kind: DdsType, writer: Any) -> None:
        self._kind, self._writer = kind, writer

    def write(self, message: Message) -> None:
        """Sends the message; does not wait for readers."""
        self._writer.write(self._kind.to_dds(message))


class Reader:
    """Reads one topic."""

    def __init__(self, kind: DdsType, reader: Any) -> None:
        self._kind, self._reader = kind, reader

    def take(self) -> Iterator[Message]:
        """Yields the messages received since the last call, oldest first."""
        for sample in self._reader.take(_TAKE):
            if isinstance(sample, self._kind.idl):
                yield self._kind.from_dds(sample)


@lru_cache
def _open_domain(domain: int, reach: Range) -> Domain | None:
    """Opens a domain with its settings; once per process."""
    if reach == "system":
        return None
    return Domain(domain, _LOCALHOST if reach == "localhost" else _SUBNET)


def _qos(kind: type[Message], *, latched: bool, reliable: bool) -> Qos:
    return Qos(
        # ROS 2's nodes read the hash of the type here
        Policy.Userdata(f"typehash={rihs01(kind)};".encode()),
        Policy.Reliability.Reliable(duration(milliseconds=100)) if reliable else Policy.Reliability.BestEffort,
        Policy.Durability.TransientLocal if latched else Policy.Durability.Volatile,
        Policy.History.KeepLast(1 if latched else 10),
        # plain CDR, the only representation that ROS 2 reads
        Policy.DataRepresentation(use_cdrv0_representation=True, use_xcdrv2_representation=False),
    )


_SCALARS: dict[str, Any] = {"bool": bool, "string": str, "byte": idl.uint8}
"""Cyclone's types of ROS's; those of other numbers have the same name in `cyclonedds.idl.types`."""
_FULL_NAME = re.compile(r"(/[A-Za-z_][A-Za-z0-9_]*)+", re.ASCII)
_LONGEST = 247
"""ROS 2's `RMW_TOPIC_MAX_NAME_LENGTH`."""


@dataclass(frozen=True)
class DdsType:
    """A message type on DDS. idl: Cyclone's type. to_dds, from_dds: conversions between struct and idl."""

    idl: type[IdlStruct]
    to_dds: Callable[[Message], IdlStruct]
    from_dds: Callable[[IdlStruct], Message]


def dds_topic(name: str) -> str:
    """Returns the name on DDS, `rt/arm/joint_states`; raises `InvalidArgumentError` if it is invalid in ROS 2."""
    if not _FULL_NAME.fullmatch(name) or len(name) > _LONGEST:
        raise InvalidArgumentError(
            f"topic {name!r} is not a valid ROS 2 name: expected parts of letters, digits and _, each after a / and "
            f"not beginning with a digit, at most {_LONGEST} characters in total"
        )
    return "rt" + name


@lru_cache(maxsize=256)
def dds_type(kind: type[Message]) -> DdsType:
    """Returns the DDS type of a message struct."""
    package, _, name = ros_type(kind).split("/")
    fields = fields_of(kind)
    idl_type = make_idl_struct(f"{name}_", f"{package}.msg.dds_.{name}_", {field.name: _idl(field) for field in fields})

    def to_dds(message: Message) -> IdlStruct:
        return idl_type(**{name: give(getattr(message, name)) for name, give, _ in steps})

    def from_dds(sample: IdlStruct) -> Message:
        return kind(**{name: take(getattr(sample, name)) for name, _, take in steps})

    steps = [(field.name, *_steps(field)) for field in fields]
    return DdsType(idl_type, to_dds, from_dds)


def _idl(field: Field) -> Any:
    if isinstance(field.kind, str):
        element = _SCALARS[field.kind] if field.kind in _SCALARS else getattr(idl, field.kind)
    else:
        element = dds_type(field.kind).idl
    if field.length is None:
        return element
    return idl.array[element, field.length] if field.length else idl.sequence[element]


def _steps(field: Field) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Returns the conversions of a field's value to DDS and from it."""
    if isinstance(field.kind, str):
        return (list, list) if field.length is not None else (_unchanged, _unchanged)
    inner = dds_type(field.kind)
    if field.length is None:
        return inner.to_dds, inner.from_dds
    return lambda items: list(map(inner.to_dds, items)), lambda items: list(map(inner.from_dds, items))


def _unchanged(value: Any) -> Any:
    return value
