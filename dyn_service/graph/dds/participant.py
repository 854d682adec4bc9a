"""A participant of a DDS domain that writes and reads topics as ROS 2's nodes do.

Qualities of service are ROS's defaults: reliable, the newest kept; what is latched (`robot_description`, `tf_static`)
is given to those who come later, too. Readers take what any writer sends, reliable or not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal

from cyclonedds.core import DDSException, Policy, Qos
from cyclonedds.domain import Domain, DomainParticipant
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration

from dyn_service.errors import InvalidArgumentError, UnavailableError
from dyn_service.graph.dds.types import DdsType, dds_topic, dds_type
from dyn_service.messages import Message
from dyn_service.messages.cdr import rihs01

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
