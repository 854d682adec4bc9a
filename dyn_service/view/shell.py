"""The viewer: a scene and what moves it, in the browser, by viser. Thin: what is shown is decided in `scene.py`.

The page is served to this machine only unless another host is asked for: who can reach it can move the sliders.
"""

from __future__ import annotations

import html
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import rich
import viser
from viser import uplot

from dyn_service.api.queries import Array
from dyn_service.errors import UnavailableError
from dyn_service.view.meshes import mesh_of
from dyn_service.view.motions import Motion
from dyn_service.view.scene import Scene, Snapshot, colours, quaternions
from dyn_service.view.shapes import Looks, Shape

FRAME_S = 1.0 / 30.0
"""Between two pictures."""
PLOT_S = 0.2
"""Between two drawings of the place in a plot."""
PLOT_POINTS = 1500
LEAST_EFFORT = 1e-9
"""N m | N: what is smaller is rounding."""
OPACITY = 0.5
"""Of the links: what the joints carry shows through."""
GHOST = (255, 176, 46)
GHOST_OPACITY = 0.25
CENTRE = (225, 60, 160)
_SHAFT, _HEAD, _HEAD_LENGTH = 0.018, 0.042, 0.08
"""Of the robot's size: radii and length of an arrow."""


class Viewer:
    """A robot in the browser.

    Args:
        scene: What is shown.
        looks: What its links look like.
        host: Where the page is served.
        port: Of it; 0 takes a free one.

    Raises:
        UnavailableError: The port is taken.
    """

    def __init__(self, scene: Scene, looks: Looks, host: str = "127.0.0.1", port: int = 8080) -> None:
        self.scene = scene
        self._lock = threading.Lock()
        self.server = _serve(host, port, scene.robot.description.name)
        self.url = f"http://{host}:{self.server.get_port()}"
        self.server.scene.set_up_direction("+z")
        self.server.gui.configure_theme(control_layout="collapsible", show_logo=False, show_share_button=False)
        size = scene.size
        floor = (0.0, 0.0, scene.floor)
        self.server.scene.add_grid(
            "/floor", width=8 * size, height=8 * size, cell_size=0.25 * size, section_size=size, position=floor
        )
        self.server.initial_camera.position = (1.2 * size, -1.5 * size, 1.35 * size + scene.floor)
        self.server.initial_camera.look_at = (0.0, 0.0, 0.6 * size + scene.floor)
        self._bodies: list[Any] = []
        self._links = self._robot("robot", looks, None)
        self._ghost = self._robot("ghost", looks, GHOST)
        self._axes = [
            self.server.scene.add_frame(f"/axes/{k}", axes_length=0.12 * size, axes_radius=0.006 * size, visible=False)
            for k in range(len(scene.links))
        ]
        self._names = [
            self.server.scene.add_label(f"/names/{k}", name, visible=False) for k, name in enumerate(scene.links)
        ]
        self._centre = self.server.scene.add_icosphere("/centre", radius=0.04 * size, color=CENTRE)
        self._arrows: Any = None
        self._shown = {"loads": True, "axes": False, "names": False}
        self._said: Any = None
        self._last: Snapshot | None = None
        self.show_ghost(None)

    def close(self) -> None:
        """Ends the page and its server."""
        with _silent():
            self.server.stop()

    def options(self) -> None:
        """Adds what can be shown or hidden, and the table of efforts."""
        gui = self.server.gui
        with gui.add_folder("Show"):
            for name, label in (("loads", "joint loads"), ("axes", "link frames"), ("names", "link names")):
                box = gui.add_checkbox(label, self._shown[name])
                box.on_update(partial(self._choose, name))
            body = gui.add_slider("links' opacity", 0.0, 1.0, step=0.05, initial_value=OPACITY)
            body.on_update(lambda event: self._fade(float(event.target.value)))
            centre = gui.add_checkbox("centre of mass", True)
            centre.on_update(lambda event: self._each([self._centre], event.target.value))
        with gui.add_folder("Efforts and their share of the limit"):
            self._said = gui.add_html("")
        if self._last is not None:
            self.show(self._last)

    def show(self, snapshot: Snapshot) -> None:
        """Shows the robot in this state."""
        with self._lock, self.server.atomic():
            self._last = snapshot
            turned = quaternions(snapshot.rotation)
            for handles in (self._links, self._axes, self._names):
                for handle, position, wxyz in zip(handles, snapshot.position, turned, strict=True):
                    handle.position, handle.wxyz = position, wxyz
            self._centre.position = snapshot.centre
            self._show_loads(snapshot)
            if self._said is not None:
                self._said.content = efforts_table(self.scene, snapshot)

    def show_ghost(self, snapshot: Snapshot | None) -> None:
        """Shows the robot where it should be, translucent; None hides that."""
        with self.server.atomic():
            for handle in self._ghost:
                handle.visible = snapshot is not None
            if snapshot is not None:
                for handle, position, wxyz in zip(
                    self._ghost, snapshot.position, quaternions(snapshot.rotation), strict=True
                ):
                    handle.position, handle.wxyz = position, wxyz

    def sliders(self) -> None:
        """Adds a slider for each joint, by which the robot is moved; it is shown held still."""
        scene, gui = self.scene, self.server.gui
        lower, upper = scene.ranges()
        middle = scene.start()
        with gui.add_folder("Joints"):
            sliders: list[Any] = [
                gui.add_slider(
                    name, float(low), float(high), step=float(f"{(high - low) / 1000.0:.1g}"), initial_value=float(at)
                )
                for name, low, high, at in zip(scene.at.velocity_names, lower, upper, middle, strict=True)
            ]
            back = gui.add_button("back to the start")

        def moved(_: object = None) -> None:
            self.show(scene.still(scene.position_of(np.array([slider.value for slider in sliders]))))

        def again(_: object) -> None:
            for slider, at in zip(sliders, middle, strict=True):
                slider.value = float(at)
            moved()

        for slider in sliders:
            slider.on_update(moved)
        back.on_click(again)
        moved()

    def _choose(self, name: str, event: Any) -> None:
        visible = self._shown[name] = bool(event.target.value)
        if name == "axes":
            self._each(self._axes, visible)
        elif name == "names":
            self._each(self._names, visible)
        elif self._last is not None:
            with self._lock:
                self._show_loads(self._last)

    def _fade(self, opacity: float) -> None:
        with self.server.atomic():
            for handle in self._bodies:
                handle.opacity, handle.visible = opacity, opacity > 0.0

    def _each(self, handles: Sequence[Any], visible: bool) -> None:
        with self.server.atomic():
            for handle in handles:
                handle.visible = visible

    def _show_loads(self, snapshot: Snapshot) -> None:
        if not len(snapshot.loads) or not self._shown["loads"]:
            if self._arrows is not None:
                self._arrows.visible = False
            return
        size = self.scene.size
        if self._arrows is None:
            self._arrows = self.server.scene.add_arrows(
                "/loads",
                snapshot.loads.astype(np.float32),
                snapshot.colours,
                shaft_radius=_SHAFT * size,
                head_radius=_HEAD * size,
                head_length=_HEAD_LENGTH * size,
            )
        else:
            self._arrows.points, self._arrows.colors = snapshot.loads.astype(np.float32), snapshot.colours
            self._arrows.visible = True

    def _robot(self, name: str, looks: Looks, tint: tuple[int, int, int] | None) -> list[Any]:
        """A frame for each link with its shapes below it."""
        handles = []
        for k, link in enumerate(self.scene.links):
            handles.append(self.server.scene.add_frame(f"/{name}/{k}", show_axes=False))
            for n, shape in enumerate(looks.shapes.get(link, ())):
                self._add(f"/{name}/{k}/{n}", shape, tint)
        return handles

    def _add(self, name: str, shape: Shape, tint: tuple[int, int, int] | None) -> None:
        add = self.server.scene
        place = {"position": shape.xyz, "wxyz": quaternions(shape.rotation[None])[0]}
        look: dict[str, Any] = {"color": tint or shape.colour, "opacity": OPACITY if tint is None else GHOST_OPACITY}
        look["cast_shadow"] = tint is None
        handle: Any = None
        if shape.kind == "box":
            handle = add.add_box(name, dimensions=(shape.size[0], shape.size[1], shape.size[2]), **look, **place)
        elif shape.kind == "cylinder":
            handle = add.add_cylinder(name, radius=shape.size[0], height=shape.size[1], **look, **place)
        elif shape.kind == "sphere":
            handle = add.add_icosphere(name, radius=shape.size[0], **look, **place)
        elif shape.kind == "ellipsoid":
            axes = shape.size[0], shape.size[1], shape.size[2]
            handle = add.add_icosphere(name, radius=1.0, scale=axes, **look, **place)
        elif shape.mesh is not None:
            mesh = mesh_of(shape.mesh, shape.size)
            if mesh is not None:
                handle = add.add_mesh_simple(name, mesh.vertices, mesh.faces, **look, **place)
        if handle is not None and tint is None:
            self._bodies.append(handle)


class Player:
    """Plays a motion in a viewer: a scrub bar, a button, a speed, the robot that was to be followed, and plots."""

    def __init__(self, viewer: Viewer, motion: Motion) -> None:
        self.viewer, self.motion = viewer, motion
        gui = viewer.server.gui
        begin, end = float(motion.t[0]), float(motion.t[-1])
        self._playing, self._time = False, begin
        self._drawn, self._plotted_s = -1, 0.0
        self._followed = bool(np.isfinite(motion.reference).all(axis=1).any())
        with gui.add_folder("Motion"):
            self._bar: Any = gui.add_slider("time [s]", begin, max(end, begin + 1e-3), step=1e-3, initial_value=begin)
            self._button = gui.add_button("play")
            self._speed = gui.add_dropdown("speed", ("0.1", "0.25", "0.5", "1", "2", "4"), initial_value="1")
            self._ghost = gui.add_checkbox("reference", self._followed, visible=self._followed)
        with gui.add_folder("Plot"):
            self._joint = gui.add_dropdown("joint", viewer.scene.at.velocity_names)
            self._plots = [self._plot(*lines) for lines in self._lines()]
        self._setting = False
        self._bar.on_update(self._scrubbed)
        self._button.on_click(lambda _: self.play(not self._playing))
        self._ghost.on_update(lambda _: self._draw(force=True))
        self._joint.on_update(lambda _: self._replot())
        self._draw(force=True)

    def play(self, playing: bool) -> None:
        """Plays, from the begin where the end was reached, or stands still."""
        if playing and self._time >= self.motion.t[-1]:
            self._time = float(self.motion.t[0])
        self._playing = playing
        self._button.label = "pause" if playing else "play"

    def tick(self, elapsed_s: float) -> None:
        """Goes on by so much wall time, if it plays."""
        if not self._playing:
            return
        self._time = min(float(self.motion.t[-1]), self._time + elapsed_s * float(self._speed.value))
        self._setting = True
        self._bar.value = round(self._time, 3)
        self._setting = False
        self._draw()
        if self._time >= self.motion.t[-1]:
            self.play(False)

    def _scrubbed(self, event: Any) -> None:
        if not self._setting and event.client is not None:
            self._time = float(self._bar.value)
            self._draw(force=True)

    def _draw(self, *, force: bool = False) -> None:
        row = self.motion.at(self._time)
        if row == self._drawn and not force:
            return
        self._drawn = row
        motion, scene = self.motion, self.viewer.scene
        self.viewer.show(scene.moving(motion.q[row], motion.v[row], motion.tau[row]))
        followed = self._ghost.value and bool(np.isfinite(motion.reference[row]).all())
        self.viewer.show_ghost(scene.still(motion.reference[row]) if followed else None)
        now = time.monotonic()
        if force or now - self._plotted_s > PLOT_S:
            self._plotted_s = now
            self._replot()

    def _lines(self) -> list[tuple[str, list[tuple[str, str, Array]]]]:
        """What the plots show of the chosen joint: their titles, and each line's name, colour and values."""
        at, motion = self.viewer.scene.at, self.motion
        n = at.velocity_names.index(self._joint.value)
        chosen = slice(None, None, max(1, len(motion.t) // PLOT_POINTS))
        lines = []
        if self._joint.value in at.position_names:
            m = at.position_names.index(self._joint.value)
            position = [("measured", "#1b5e9b", motion.q[chosen, m])]
            if self._followed:
                position.insert(0, ("reference", "#f0a830", motion.reference[chosen, m]))
            lines.append(("position [rad | m]", position))
        else:
            lines.append(("velocity [rad/s | m/s]", [("measured", "#1b5e9b", motion.v[chosen, n])]))
        lines.append(("effort [N m | N]", [("effort", "#12806a", motion.tau[chosen, n])]))
        return lines

    def _data(self, lines: list[tuple[str, str, Array]]) -> tuple[Array, ...]:
        """Of a plot: times, the lines, and the present moment as an upright line."""
        chosen = slice(None, None, max(1, len(self.motion.t) // PLOT_POINTS))
        t = self.motion.t[chosen]
        place = np.full(len(t), np.nan)
        k = max(0, int(np.searchsorted(t, self._time, side="right")) - 1)
        low, high = _bounds(lines)
        place[k] = high
        if k:
            place[k - 1] = low
        return (t, *(values for _, _, values in lines), place)

    def _scales(self, lines: list[tuple[str, str, Array]]) -> dict[str, uplot.Scale]:
        """Written out: a plot does not find its own where values are lacking."""
        begin, end = float(self.motion.t[0]), float(self.motion.t[-1])
        return {
            "x": uplot.Scale(time=False, auto=False, range=(begin, max(end, begin + 1e-3))),
            "y": uplot.Scale(auto=False, range=_bounds(lines)),
        }

    def _plot(self, title: str, lines: list[tuple[str, str, Array]]) -> Any:
        series = [uplot.Series(label="t")]
        series += [uplot.Series(label=name, stroke=colour, width=2) for name, colour, _ in lines]
        series.append(uplot.Series(label="now", stroke="#c0392b", width=2))
        return self.viewer.server.gui.add_uplot(
            self._data(lines), tuple(series), title=title, scales=self._scales(lines), aspect=1.7
        )

    def _replot(self) -> None:
        for plot, (_, lines) in zip(self._plots, self._lines(), strict=True):
            plot.data, plot.scales = self._data(lines), self._scales(lines)


def _bounds(lines: Sequence[tuple[str, str, Array]]) -> tuple[float, float]:
    """The least and largest value of lines that may lack some, and a little more."""
    values = np.concatenate([values for _, _, values in lines])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    pad = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - pad, high + pad


def efforts_table(scene: Scene, snapshot: Snapshot) -> str:
    """A row for each effort: its joint, its value, and a bar of its share of the limit in the colour of its arrow."""
    rows = []
    shares = snapshot.share.tolist()
    for name, turns, tau, share, colour in zip(
        scene.at.velocity_names, scene.at.turns, snapshot.tau.tolist(), shares, colours(shares).tolist(), strict=True
    ):
        known = math.isfinite(share)
        width = 100.0 * min(share, 1.0) if known else 0.0
        said = f"{100.0 * share:.0f} %" if known else "no limit"
        tau = tau if abs(tau) > LEAST_EFFORT else 0.0
        bar = f'<div style="width:{width:.0f}%;height:5px;background:rgb({colour[0]},{colour[1]},{colour[2]})"></div>'
        unit = "N m" if turns else "N"
        rows.append(
            f'<div style="display:flex;justify-content:space-between;gap:0.5em"><span>{html.escape(name)}</span>'
            f'<span style="white-space:nowrap">{tau:.3g} {unit}, {said}</span></div>'
            f'<div style="background:rgba(128,128,128,0.25);margin-bottom:4px">{bar}</div>'
        )
    return f'<div style="font-size:0.75em;padding:0 0.9em 0.6em">{"".join(rows)}</div>'


def run(viewer: Viewer, tick: Callable[[float], None] | None, stop: threading.Event) -> None:
    """Serves until it is asked to stop. tick: is called for each picture with the time since the last, s."""
    last = time.monotonic()
    try:
        while not stop.wait(FRAME_S):
            now = time.monotonic()
            if tick is not None:
                tick(now - last)
            last = now
    finally:
        viewer.close()


def _serve(host: str, port: int, label: str) -> viser.ViserServer:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UnavailableError(f"the viewer cannot listen on {host}:{port}: {error.strerror}; try --port") from None
        port = int(probe.getsockname()[1])
    with _silent():
        return viser.ViserServer(host=host, port=port, label=label, verbose=False)


@contextmanager
def _silent() -> Iterator[None]:
    """viser draws a box around its address, and says when it stops: both are said by us, or not at all."""
    console = rich.get_console()
    before, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = before
