"""What a bag has for the viewer: whose joints moved how, and what the robot is, where it says so."""

from __future__ import annotations

from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.graph.bags.reader import BagReader
from dyn_service.messages import ros_type
from dyn_service.messages.sensor_msgs import JointState
from dyn_service.messages.std_msgs import String

STATES, TEXT = ros_type(JointState), ros_type(String)
DESCRIPTION = "robot_description"


def states_topic(bag: BagReader, named: str | None) -> str:
    """The topic of joint states that was named, or the only one there is.

    Raises:
        NotFoundError: There is no such topic, or none of joint states.
        InvalidArgumentError: It is of another type, or there are several and none is named, or it has no message.
    """
    types = {topic.name: topic.type for topic in bag.topics}
    found = [name for name, kind in types.items() if kind == STATES]
    if named is not None:
        bag.check([named])
        if types[named] != STATES:
            raise InvalidArgumentError(
                f"topic {named!r} of bag {str(bag.path)!r} is of {types[named]}, expected {STATES}"
            )
        chosen = named
    elif not found:
        has = f"; it has {', '.join(sorted(types))}" if types else ": it is empty"
        raise NotFoundError(f"bag {str(bag.path)!r} has no topic of joint states, {STATES}{has}")
    elif len(found) > 1:
        raise InvalidArgumentError(
            f"bag {str(bag.path)!r} has several topics of joint states, {', '.join(sorted(found))}: name one, --topic"
        )
    else:
        chosen = found[0]
    if not any(len(topic.times) for topic in bag.topics if topic.name == chosen):
        raise InvalidArgumentError(f"topic {chosen!r} of bag {str(bag.path)!r} has no message")
    return chosen


def description_in(bag: BagReader, states: str) -> tuple[str, str] | None:
    """The topic and the text of the robot whose joint states a topic has: its neighbour `robot_description`, or the
    only one there is; None where the bag has none.
    """
    found = [one.name for one in bag.topics if one.type == TEXT and one.name.rpartition("/")[2] == DESCRIPTION]
    beside = f"{states.rpartition('/')[0]}/{DESCRIPTION}"
    topic = beside if beside in found else found[0] if len(found) == 1 else None
    text = "" if topic is None else "".join(str(one.message.data) for one in list(bag.messages([topic]))[-1:])
    return (topic, text) if topic is not None and text else None
