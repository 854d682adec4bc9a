"""Motion in the viewer: playback of a recording, or the live state of a plant.

Recorded motions come from the report of a launch or from a bag, in the order of the robot's joints.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from viser import uplot

from dyn_service.api.queries import Array
from dyn_service.control.joint_states import MULTI_DOF, ReceivedJointStates
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.graph.bags.motions import Motion
from dyn_service.graph.middleware.discovery import Discovery, full
from dyn_service.graph.middleware.node import LOOK_S
from dyn_service.graph.middleware.pubsub import RawSubscription
from dyn_service.graph.middleware.topic_tools import listening
from dyn_service.graph.report.charts import running_time
from dyn_service.messages import Message, decode, ros_type
from dyn_service.messages.sensor_msgs import JointState, MultiDOFJointState
from dyn_service.messages.std_msgs import String
from dyn_service.model.configuration import Configuration
from dyn_service.view.viewer import Viewer

if TYPE_CHECKING:
    from dyn_service.graph.bags.reader import BagReader  # mcap, an extra of its own

# A page gets the whole plot with each mark, so marks move less often than the robot.
PLOT_S = 0.2
"""Seconds between updates of the time mark in plots."""
PLOT_POINTS = 1500
SILENT_S = 1.0
"""Seconds without a message after which a banner is shown."""
BANNER = '<div style="margin:0.4em;padding:0.5em;border-radius:4px;background:#b3261e;color:#fff">{}</div>'


class Player:
    """Plays a motion in a viewer, with a scrub bar, a button, a speed, a ghost of the reference, and plots."""

    def __init__(self, viewer: Viewer, motion: Motion) -> None:
        self.viewer, self.motion = viewer, motion
        gui = viewer.server.gui
        begin, end = float(motion.t[0]), float(motion.t[-1])
        self._playing, self._time = False, begin
        self._drawn_row, self._plotted_s = -1, 0.0
        followed = bool(np.isfinite(motion.reference).all(axis=1).any())
        with gui.add_folder("Motion"):
            self._bar: Any = gui.add_slider("time [s]", begin, max(end, begin + 1e-3), step=1e-3, initial_value=begin)
            self._button = gui.add_button("play")
            self._speed = gui.add_dropdown("speed", ("0.1", "0.25", "0.5", "1", "2", "4"), initial_value="1")
            self._ghost = gui.add_checkbox("reference", followed, visible=followed)
        self._plots = Plots(viewer, motion, followed=followed)
        self._setting = False
        self._bar.on_update(self._scrubbed)
        self._button.on_click(lambda _: self.play(not self._playing))
        self._ghost.on_update(lambda _: self._draw(force=True))
        self._draw(force=True)

    def play(self, playing: bool) -> None:
        """Starts playback, from the start if the end was reached, or pauses it."""
        if playing and self._time >= self.motion.t[-1]:
            self._time = float(self.motion.t[0])
        self._playing = playing
        self._button.label = "pause" if playing else "play"

    def tick(self, elapsed_s: float) -> None:
        """Advances by wall time while playing."""
        if not self._playing:
            return
        self._time = min(float(self.motion.t[-1]), self._time + elapsed_s * float(self._speed.value))
        # Setting the bar calls `_scrubbed`, as a move by the user does.
        self._setting = True
        self._bar.value = round(self._time, 3)
        self._setting = False
        is_over = self._time >= self.motion.t[-1]
        self._draw(force=is_over)
        if is_over:
            self.play(False)

    def _scrubbed(self, event: Any) -> None:
        if not self._setting and event.client is not None:
            self._time = float(self._bar.value)
            self._draw(force=True)

    def _draw(self, *, force: bool = False) -> None:
        row = self.motion.at(self._time)
        if row == self._drawn_row and not force:
            return
        self._drawn_row = row
        motion, scene = self.motion, self.viewer.scene
        self.viewer.show(scene.moving(motion.q[row], motion.v[row], motion.tau[row]))
        followed = self._ghost.value and bool(np.isfinite(motion.reference[row]).all())
        self.viewer.show_ghost(scene.still(motion.reference[row]) if followed else None)
        now = time.monotonic()
        if force or now - self._plotted_s > PLOT_S:
            self._plotted_s = now
            self._plots.show(motion, self._time)


class Watcher:
    """Shows a running plant: its newest joint states, and plots of the last seconds."""

    def __init__(self, viewer: Viewer, live: Live) -> None:
        self.viewer, self.live = viewer, live
        self._status = viewer.server.gui.add_html("")
        self._plots: Plots | None = None
        self._plotted_s = 0.0
        self._last_message_s = time.monotonic()
        self._last_t: float | None = None

    def tick(self, elapsed_s: float) -> None:
        """Shows new messages, if any."""
        now = time.monotonic()
        newest = self.live.take()
        if newest is not None:
            self._last_message_s, self._last_t = now, newest.t
            self.viewer.show(self.viewer.scene.moving(newest.q, newest.v, newest.tau))
            if now - self._plotted_s > PLOT_S:
                self._plotted_s = now
                recent = self.live.recent()
                if self._plots is None:
                    self._plots = Plots(self.viewer, recent, followed=False)
                self._plots.show(recent, newest.t)
                self._set_status(f'<div style="margin:0.4em">{escape(self.live.topic)}, {newest.t:.1f} s</div>')
        elif now - self._last_message_s > SILENT_S:
            last_state_note = "" if self._last_t is None else f" The robot is shown as it was at {self._last_t:.1f} s."
            silent = f"No message on {escape(self.live.topic)} for {now - self._last_message_s:.0f} s.{last_state_note}"
            self._set_status(BANNER.format(silent))

    def _set_status(self, content: str) -> None:
        if content != self._status.content:
            self._status.content = content


class Plots:
    """Plots of position and effort of a chosen joint."""

    def __init__(self, viewer: Viewer, motion: Motion, *, followed: bool) -> None:
        self._configuration, self._followed = viewer.scene.configuration, followed
        self._last = motion, float(motion.t[0])
        gui = viewer.server.gui
        with gui.add_folder("Plot"):
            self._joint = gui.add_dropdown("joint", self._configuration.velocity_names)
            self._plots = [gui.add_uplot(**plot, aspect=1.7) for plot in self._contents()]
        self._joint.on_update(lambda _: self.show(*self._last))

    def show(self, motion: Motion, time_s: float) -> None:
        """Draws the motion with a time mark."""
        self._last = motion, time_s
        for plot, content in zip(self._plots, self._contents(), strict=True):
            plot.title, plot.data, plot.scales = content["title"], content["data"], content["scales"]

    def _contents(self) -> list[dict[str, Any]]:
        configuration, (motion, _) = self._configuration, self._last
        n, rows = configuration.velocity_names.index(self._joint.value), self._rows()
        unit, of_effort = ("rad", "N m") if configuration.turns[n] else ("m", "N")
        if self._joint.value in configuration.position_names:
            m = configuration.position_names.index(self._joint.value)
            title, first = f"position [{unit}]", [("measured", "#1b5e9b", motion.q[rows, m])]
        else:  # joints with several degrees of freedom have no single position
            m, title, first = -1, f"velocity [{unit}/s]", [("measured", "#1b5e9b", motion.v[rows, n])]
        if self._followed:
            reference = motion.reference[rows, m] if m >= 0 else np.full_like(motion.t[rows], np.nan)
            first.insert(0, ("reference", "#f0a830", reference))
        effort = [("effort", "#12806a", motion.tau[rows, n])]
        return [self._plot(title, first), self._plot(f"effort [{of_effort}]", effort)]

    def _plot(self, title: str, lines: list[tuple[str, str, Array]]) -> dict[str, Any]:
        """Returns a plot. lines: names, colours and values. The mark is a step between values outside the range; the
        scales are explicit, because the plot cannot find them if values are missing.
        """
        motion, time_s = self._last
        t, begin, end = motion.t[self._rows()], float(motion.t[0]), float(motion.t[-1])
        values = np.concatenate([values for _, _, values in lines])
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        pad = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
        low, high = low - pad, high + pad
        mark = np.where(t < time_s, 2.0 * low - high, 2.0 * high - low)
        widths = ((name, colour, 5 if name == "reference" else 2) for name, colour, _ in lines)
        series = [uplot.Series(label=name, stroke=colour, width=width) for name, colour, width in widths]
        return {
            "title": title,
            "data": (t, *(values for _, _, values in lines), mark),
            "series": (uplot.Series(label="t"), *series, uplot.Series(label="now", stroke="#c0392b", width=2)),
            "scales": {
                "x": uplot.Scale(time=False, auto=False, range=(begin, max(end, begin + 1e-3))),
                "y": uplot.Scale(auto=False, range=(low, high)),
            },
        }

    def _rows(self) -> slice:
        return slice(None, None, max(1, len(self._last[0].t) // PLOT_POINTS))


MAX_STATES = 600
"""Maximum number of recent states, some 20 s."""


class Live:
    """The newest messages of a topic of joint states, and of the one for joints with several degrees of freedom. topic:
    full name or endpoint. say: called with each problem, once, and with the launch that publishes the topic.
    """

    def __init__(
        self,
        topic: str,
        configuration: Configuration,
        subscriptions: Mapping[type[Message], RawSubscription],
        discovery: Discovery,
        say: Callable[[str], None],
    ) -> None:
        self.topic = topic
        self._configuration, self._subscriptions = configuration, subscriptions
        self._discovery, self._say = discovery, say
        self._states = ReceivedJointStates(configuration)
        self._recent_states: deque[State] = deque(maxlen=MAX_STATES)
        self._next_look_s = 0.0
        self._launch: Path | None = None
        self._has_reported = False

    def take(self) -> State | None:
        """Returns the newest state since the last call, or None."""
        if time.monotonic() >= self._next_look_s:
            for subscription in self._subscriptions.values():
                subscription.look(self._discovery.entries(subscription.topic))
            launch = None if "://" in self.topic else self._discovery.launch_of(self.topic)
            if launch not in (None, self._launch):
                self._launch = launch
                self._say(f"topic {self.topic} of {launch}")
            self._next_look_s = time.monotonic() + LOOK_S
        try:
            newest = (_newest(kind, subscription) for kind, subscription in self._subscriptions.items())
            messages = [message for message in newest if message is not None]
            if not messages:
                return None
            # Time that does not advance is that of a new run.
            if self._recent_states and max(map(stamp_of, messages)) <= self._recent_states[-1].t:
                self._recent_states.clear()
                self._states = ReceivedJointStates(self._configuration)
            state = state_after(self._states, messages)
            fault = "its states name no joint of the robot"
        except InvalidArgumentError as error:
            state, fault = None, str(error)
        if state is None:
            if not self._has_reported:
                self._has_reported = True
                self._say(f"topic {self.topic!r}: {fault}")
            return None
        self._recent_states.append(state)
        return state

    def recent(self) -> Motion:
        """Returns the motion of recent states, of which there is at least one."""
        return of_states(list(self._recent_states))


@contextmanager
def live(topic: str, configuration: Configuration, say: Callable[[str], None]) -> Iterator[Live]:
    """Opens the joint states of a topic or endpoint, for a robot with these joints."""
    name, discovery = full(topic), Discovery()
    other = companion(name) if has_multi_dof(configuration) else None
    with ExitStack() as stack:
        topics: dict[type[Message], str] = {JointState: name} | ({MultiDOFJointState: other} if other else {})
        subscriptions = {
            kind: stack.enter_context(listening(topic_name, ros_type(kind), discovery, say))
            for kind, topic_name in topics.items()
        }
        yield Live(name, configuration, subscriptions, discovery, say)


def _newest(kind: type[Message], subscription: RawSubscription) -> Message | None:
    newest = None
    while (frame := subscription.take_frame()) is not None:
        newest = bytes(frame)
    return None if newest is None else decode(kind, newest)


@dataclass(frozen=True, eq=False)
class State:
    """A robot's state at time t s: q (nq,), v, tau (nv,). Unknown values are neutral or zero."""

    t: float
    q: Array
    v: Array
    tau: Array


def state_after(received: ReceivedJointStates, messages: Iterable[Any]) -> State | None:
    """Returns the state after messages of about one time; None if they contain no joint of the robot."""
    stamps = [stamp_of(message) for message in messages if received.take(message)]
    return State(max(stamps), received.q.copy(), received.v.copy(), received.tau.copy()) if stamps else None


def of_joint_states(messages: Iterable[Any], configuration: Configuration, source: str) -> Motion:
    """Returns the motion of joint state messages, with time from the first; messages of one time form one state."""
    states, joint_names = list[State](), dict[str, None]()
    received, received_run = ReceivedJointStates(configuration), 0
    for (run, _), group in groupby(sorted(_by_run(messages), key=itemgetter(0, 1)), itemgetter(0, 1)):
        if run != received_run:
            received, received_run = ReceivedJointStates(configuration), run
        simultaneous = [message for *_, message in group]
        state = state_after(received, simultaneous)
        if state is not None:
            states.append(state)
        elif not states:
            for message in simultaneous:
                joint_names.update(dict.fromkeys(message.name if hasattr(message, "name") else message.joint_names))
    if not states:
        raise InvalidArgumentError(
            f"{source} names no joint of the robot, which has {', '.join(configuration.names)}: "
            f"found {', '.join(joint_names) or 'none'}"
        )
    motion = of_states(states)
    return replace(motion, t=running_time(motion.t - motion.t[0]))


def _by_run(messages: Iterable[Any]) -> Iterator[tuple[int, float, Any]]:
    """Yields messages with their time and the index of the run; a new run starts if the time of one type goes back.
    Messages of one type are in order, those of two types may not be.
    """
    last: dict[type, tuple[int, float]] = {}
    for message in messages:
        t = stamp_of(message)
        run, previous_t = last.get(type(message), (0, t))
        last[type(message)] = (run + (t < previous_t), t)
        yield *last[type(message)], message


def has_multi_dof(configuration: Configuration) -> bool:
    """Returns whether a joint of the robot has several degrees of freedom, which have messages of their own."""
    return any(joint.nv > 1 for joint in configuration.joints)


def companion(topic: str) -> str | None:
    """Returns the topic of joints with several degrees of freedom for a topic of joint states; None for an endpoint."""
    return None if "://" in topic else f"{topic.rpartition('/')[0]}/{MULTI_DOF}"


def stamp_of(message: Any) -> float:
    """Returns the header's stamp, s."""
    stamp = message.header.stamp
    return float(stamp.sec + 1e-9 * stamp.nanosec)


def of_states(states: Sequence[State]) -> Motion:
    """Returns the motion of at least one state."""
    q, v, tau = (np.array(rows) for rows in zip(*((state.q, state.v, state.tau) for state in states), strict=True))
    return Motion(np.array([state.t for state in states]), q, v, tau, np.full_like(q, np.nan))


STATES, TEXT = ros_type(JointState), ros_type(String)
DESCRIPTION = "robot_description"


def states_topic(bag: BagReader, topic_name: str | None) -> str:
    """Returns the given topic of joint states, or the only one of a bag.

    Raises:
        NotFoundError: The topic does not exist, or there are no joint states.
        InvalidArgumentError: It has another type or no messages, or there are several and none is given.
    """
    types = {topic.name: topic.type for topic in bag.topics}
    candidates = [name for name, kind in types.items() if kind == STATES]
    if topic_name is not None:
        bag.check([topic_name])
        if types[topic_name] != STATES:
            raise InvalidArgumentError(
                f"topic {topic_name!r} of bag {str(bag.path)!r} is of {types[topic_name]}, expected {STATES}"
            )
        states_name = topic_name
    elif not candidates:
        has = f"; it has {', '.join(sorted(types))}" if types else ": it is empty"
        raise NotFoundError(f"bag {str(bag.path)!r} has no topic of joint states, {STATES}{has}")
    elif len(candidates) > 1:
        raise InvalidArgumentError(
            f"bag {str(bag.path)!r} has several topics of joint states, {', '.join(sorted(candidates))}: "
            "name one, --topic"
        )
    else:
        states_name = candidates[0]
    if not any(len(topic.times) for topic in bag.topics if topic.name == states_name):
        raise InvalidArgumentError(f"topic {states_name!r} of bag {str(bag.path)!r} has no message")
    return states_name


def description_in(bag: BagReader, states: str) -> tuple[str, str] | None:
    """Returns the topic and text of the robot description for a topic of joint states: the `robot_description` in the
    same namespace, or the only one; None if the bag has none.
    """
    topics = [entry.name for entry in bag.topics if entry.type == TEXT and entry.name.rpartition("/")[2] == DESCRIPTION]
    companion_topic = f"{states.rpartition('/')[0]}/{DESCRIPTION}"
    topic = companion_topic if companion_topic in topics else topics[0] if len(topics) == 1 else None
    text = "" if topic is None else "".join(str(entry.message.data) for entry in list(bag.messages([topic]))[-1:])
    return (topic, text) if topic is not None and text else None
