"""A participant of a DDS domain that writes and reads topics as ROS 2's nodes do.

Qualities of service are ROS's defaults: reliable, the newest kept; what is latched (`robot_description`, `tf_static`)
is given to those who come later, too. Readers take what any writer sends, reliable or not.
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
"""ROS 2's highest domain: beyond it the ports that DDS derives from it do not exist."""
_TAKE = 64
"""Samples of a topic that are taken at once."""
_COMPATIBLE = "<Compatibility><IgnoreTypeInformation>1.1,1.15,1.16</IgnoreTypeInformation></Compatibility>"
"""Types are matched by name, whatever the DDS of ROS 2's side (by vendor: Connext, Fast DDS, Cyclone) says of their
fields: Cyclone finds invalid what Fast DDS, ROS 2's default, says of any type with a list in it, and would hear nothing
of it (eclipse-cyclonedds/cyclonedds, pull request 2333)."""
_SUBNET = f"""<CycloneDDS><Domain id="any">{_COMPATIBLE}</Domain></CycloneDDS>"""
_LOCALHOST = f"""<CycloneDDS><Domain id="any">{_COMPATIBLE}
  <General><Interfaces><NetworkInterface name="lo"/></Interfaces><AllowMulticast>false</AllowMulticast></General>
  <Discovery><ParticipantIndex>auto</ParticipantIndex><MaxAutoParticipantIndex>32</MaxAutoParticipantIndex>
    <Peers><Peer address="127.0.0.1"/></Peers></Discovery>
</Domain></CycloneDDS>"""


def domain_number(given: int | None, environment: Mapping[str, str] = os.environ) -> int:
    """The domain: as given, else `$ROS_DOMAIN_ID`, else 0, as ROS 2 has it.

    Raises:
        InvalidArgumentError: It is no number from 0 to 232.
    """
    said = environment.get("ROS_DOMAIN_ID", "") if given is None else str(given)
    number = said or "0"
    if not number.isascii() or not number.isdigit() or int(number) > MAX_DOMAIN:
        where = "domain" if given is not None else "ROS_DOMAIN_ID"
        raise InvalidArgumentError(f"{where} is {said!r}: expected a number from 0 to {MAX_DOMAIN}")
    return int(number)


class Participant:
    """One participant; `close` ends it and all its writers and readers.

    Args:
        domain: 0 to 232; see `domain_number`.
        reach: `localhost` speaks over the loopback interface alone, `subnet` as ROS 2 does by default, `system` as
            `$CYCLONEDDS_URI` says.

    Raises:
        UnavailableError: The domain cannot be opened.
    """

    def __init__(self, domain: int, reach: Range = "localhost") -> None:
        try:
            self._domain = _opened(domain, reach)
            self._participant = DomainParticipant(domain)
        except DDSException as error:
            raise UnavailableError(f"DDS domain {domain} cannot be opened: {error}") from None

    @staticmethod
    def check(topic: str) -> None:
        """Whether ROS 2's nodes could ask for a topic of that full name.

        Raises:
            InvalidArgumentError: They could not.
        """
        dds_topic(topic)

    def writer(self, topic: str, kind: type[Message], *, latched: bool = False) -> Writer:
        """What writes messages of that type to the topic, a name such as `/joint_states`.

        Raises:
            InvalidArgumentError: It is no name of a topic in ROS 2.
        """
        made = dds_type(kind)
        qos = _qos(kind, latched=latched, reliable=True)
        return Writer(made, DataWriter(self._participant, self._topic(topic, made, qos), qos=qos))

    def reader(self, topic: str, kind: type[Message], *, latched: bool = False) -> Reader:
        """What reads messages of that type from the topic. latched: the one sent before it came, too.

        Raises:
            InvalidArgumentError: It is no name of a topic in ROS 2.
        """
        made = dds_type(kind)
        qos = _qos(kind, latched=latched, reliable=latched)
        return Reader(made, DataReader(self._participant, self._topic(topic, made, qos), qos=qos))

    def close(self) -> None:
        """Leaves the domain."""
        self._participant = self._domain = None

    def _topic(self, name: str, made: DdsType, qos: Qos) -> Any:
        return Topic(self._participant, dds_topic(name), made.idl, qos=qos)


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
        """What came since, oldest first; a writer's end is no message."""
        for sample in self._reader.take(_TAKE):
            if isinstance(sample, self._kind.idl):
                yield self._kind.from_dds(sample)


@lru_cache
def _opened(domain: int, reach: Range) -> Domain | None:
    """The domain with its settings; a process opens one once, and keeps it."""
    if reach == "system":
        return None
    return Domain(domain, _LOCALHOST if reach == "localhost" else _SUBNET)


def _qos(kind: type[Message], *, latched: bool, reliable: bool) -> Qos:
    return Qos(
        # where ROS 2's nodes look for the hash of the type
        Policy.Userdata(f"typehash={rihs01(kind)};".encode()),
        Policy.Reliability.Reliable(duration(milliseconds=100)) if reliable else Policy.Reliability.BestEffort,
        Policy.Durability.TransientLocal if latched else Policy.Durability.Volatile,
        Policy.History.KeepLast(1 if latched else 10),
        # plain CDR, the only one that ROS 2 reads
        Policy.DataRepresentation(use_cdrv0_representation=True, use_xcdrv2_representation=False),
    )


_SCALARS: dict[str, Any] = {
    "bool": bool,
    "string": str,
    "byte": idl.uint8,
    "int8": idl.int8,
    "uint8": idl.uint8,
    "int16": idl.int16,
    "uint16": idl.uint16,
    "int32": idl.int32,
    "uint32": idl.uint32,
    "int64": idl.int64,
    "uint64": idl.uint64,
    "float32": idl.float32,
    "float64": idl.float64,
}

_FULL_NAME = re.compile(r"(/[A-Za-z_][A-Za-z0-9_]*)+", re.ASCII)
_LONGEST = 247
"""ROS 2's own, `RMW_TOPIC_MAX_NAME_LENGTH`."""


@dataclass(frozen=True)
class DdsType:
    """A message type on DDS. kind: ours. idl: Cyclone's. to_dds, from_dds: a message from one to the other."""

    kind: type[Message]
    idl: type[IdlStruct]
    to_dds: Callable[[Message], IdlStruct]
    from_dds: Callable[[IdlStruct], Message]


def dds_topic(name: str) -> str:
    """The topic's name on DDS: `rt/arm/joint_states` for `/arm/joint_states`.

    Raises:
        InvalidArgumentError: It is no full name of a topic in ROS 2, whose nodes could not ask for it.
    """
    if not _FULL_NAME.fullmatch(name) or len(name) > _LONGEST:
        raise InvalidArgumentError(
            f"topic {name!r} cannot be one of ROS 2: expected parts of letters, digits and _, each after a / and not "
            f"beginning with a digit, at most {_LONGEST} characters in all"
        )
    return "rt" + name


@lru_cache(maxsize=256)
def dds_type(kind: type[Message]) -> DdsType:
    """The message type on DDS."""
    package, _, name = ros_type(kind).split("/")
    fields = fields_of(kind)
    made = make_idl_struct(f"{name}_", f"{package}.msg.dds_.{name}_", {each.name: _idl(each) for each in fields})

    def to_dds(message: Message) -> IdlStruct:
        return made(**{name: give(getattr(message, name)) for name, give, _ in steps})

    def from_dds(sample: IdlStruct) -> Message:
        return kind(**{name: take(getattr(sample, name)) for name, _, take in steps})

    steps = [(each.name, *_steps(each)) for each in fields]
    return DdsType(kind, made, to_dds, from_dds)


def _idl(field: Field) -> Any:
    one = _SCALARS[field.kind] if isinstance(field.kind, str) else dds_type(field.kind).idl
    if field.length is None:
        return one
    return idl.array[one, field.length] if field.length else idl.sequence[one]


def _steps(field: Field) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """How the field's value goes to DDS, and comes from it."""
    if isinstance(field.kind, str):
        return (list, list) if field.length is not None else (_same, _same)
    inner = dds_type(field.kind)
    if field.length is None:
        return inner.to_dds, inner.from_dds
    return lambda items: list(map(inner.to_dds, items)), lambda items: list(map(inner.from_dds, items))


def _same(value: Any) -> Any:
    return value
