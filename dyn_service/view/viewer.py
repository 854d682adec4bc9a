"""The viewer: a scene and what moves it, in the browser, by viser. Thin: what is shown is decided in `scene.py`.

The page is served to this machine only unless another host is asked for: who can reach it can move the sliders.
"""

from __future__ import annotations

import html
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import rich
import viser

from dyn_service.api.queries import Array
from dyn_service.view.scene import Looks, Scene, Shape, Snapshot, colours, meshes_of, quaternions
from dyn_service.view.web_proxy import WebProxy

FRAME_S = 1.0 / 30.0
"""Between two pictures."""
MIN_EFFORT = 1e-9
"""N m | N: what is smaller is rounding."""
# The robot looks solid, and joint loads inside it still show.
OPACITY = 0.85
"""Opacity of the links."""
# Not white: many robots are.
BACKGROUND = (232, 235, 240)
# With `AMBIENT` the light does not saturate white, so that white robots have shading.
LIGHTS = {"sun": (1.7, (0.5, -1.0, 2.0)), "fill": (0.85, (1.0, 1.5, 0.7))}
"""Intensity and direction of each light."""
AMBIENT = 0.7
GHOST = (255, 176, 46)
GHOST_OPACITY = 0.25
CENTRE = (225, 60, 160)
CONTACT = np.array([[40, 110, 230]], dtype=np.uint8)
_SHAFT, _HEAD, _HEAD_LENGTH = 0.015, 0.034, 0.06
"""Of the robot's size: radii and length of an arrow."""


class Viewer:
    """A robot in the browser.

    first: The robot at the beginning, at which one looks. floor: How high the floor is drawn, m. port: Of it; 0 takes a
    free one. origins: Pages of other servers that may connect. say: Told of pages that may not.
    """

    def __init__(
        self,
        scene: Scene,
        looks: Looks,
        first: Snapshot,
        floor: float,
        host: str = "127.0.0.1",
        port: int = 8080,
        origins: Sequence[str] = (),
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.scene = scene
        self._lock = threading.Lock()
        self._proxy = WebProxy("the viewer", host, port, origins, say)
        with _silent():
            inner_host, inner_port = self._proxy.inner
            self.server = viser.ViserServer(inner_host, inner_port, label=scene.robot.description.name, verbose=False)
        self.url = f"http://{host}:{self._proxy.port}"
        self.server.scene.set_up_direction("+z")
        self.server.gui.configure_theme(show_logo=False, show_share_button=False)
        self.server.gui.main_panel.dock_right()
        self._add_lights()
        size = scene.size
        self.server.scene.add_grid(
            "/floor",
            width=8 * size,
            height=8 * size,
            cell_size=0.25 * size,
            section_size=size,
            position=(0.0, 0.0, floor),
        )
        middle = 0.5 * (first.position.min(axis=0) + first.position.max(axis=0))
        self.server.initial_camera.position = middle + size * np.array([1.1, -1.45, 0.65])
        self.server.initial_camera.look_at = middle
        self._bodies: list[Any] = []
        self._links = self._add_robot("robot", looks, None)
        self._ghost = self._add_robot("ghost", looks, GHOST)
        self._axes = [
            self.server.scene.add_frame(f"/axes/{k}", axes_length=0.12 * size, axes_radius=0.006 * size, visible=False)
            for k in range(len(scene.links))
        ]
        add_label = self.server.scene.add_label
        self._names = [add_label(f"/names/{k}", name, visible=False) for k, name in enumerate(scene.links)]
        self._centre = self.server.scene.add_icosphere("/centre", radius=0.04 * size, color=CENTRE)
        self._arrows: dict[str, Any] = {}
        self._visible = {"loads": True, "contacts": True, "axes": False, "names": False}
        self._efforts: Any = None
        self._last: Snapshot | None = None
        self.show_ghost(None)
        self.show(first)

    def close(self) -> None:
        """Ends the page and its server."""
        with _silent():
            self.server.stop()
        self._proxy.close()

    def options(self) -> None:
        """Adds what can be shown or hidden, and the table of efforts."""
        gui = self.server.gui
        with gui.add_folder("Show"):
            kinds = [("loads", "joint loads"), ("axes", "link frames"), ("names", "link names")]
            if self.scene.stands:
                kinds.insert(1, ("contacts", "contact forces"))
            for name, label in kinds:
                box = gui.add_checkbox(label, self._visible[name])
                box.on_update(partial(self._choose, name))
            body = gui.add_slider("links' opacity", 0.0, 1.0, step=0.05, initial_value=OPACITY)
            body.on_update(lambda event: self._fade(float(event.target.value)))
            centre = gui.add_checkbox("centre of mass", True)
            centre.on_update(lambda event: self._set_visible([self._centre], event.target.value))
        with gui.add_folder("Efforts and their share of the limit"):
            self._efforts = gui.add_html("")
        if self._last is not None:
            self.show(self._last)

    def show(self, snapshot: Snapshot) -> None:
        """Shows the robot in this state."""
        with self._lock, self.server.atomic():
            self._last = snapshot
            wxyz_of_links = quaternions(snapshot.rotation)
            for handles in (self._links, self._axes, self._names):
                for handle, position, wxyz in zip(handles, snapshot.position, wxyz_of_links, strict=True):
                    handle.position, handle.wxyz = position, wxyz
            self._centre.position = snapshot.centre
            self._show_loads(snapshot)
            if self._efforts is not None:
                self._efforts.content = efforts_table(self.scene, snapshot)

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
        """Adds a slider for each independent joint, by which the robot is moved; it is shown held still."""
        scene, gui = self.scene, self.server.gui
        names = [scene.configuration.velocity_names[k] for k in scene.independent]
        turns = scene.configuration.turns[scene.independent]
        lower, upper, first = (x[scene.independent] for x in (*scene.ranges(), scene.numbers_of(scene.first)))
        # Multiples of a power of ten, so that a value fits its field; a limit of 2.8973 is rounded inwards to 2.897.
        steps = [10.0 ** math.floor(math.log10((high - low) / 1000.0)) for low, high in zip(lower, upper, strict=True)]
        units = " | ".join(unit for unit, mask in (("rad", turns), ("m", ~turns)) if mask.any())
        with gui.add_folder(f"Joints [{units}]"):
            sliders: list[Any] = [
                gui.add_slider(
                    name,
                    _multiple(math.ceil(low / step - 1e-9), step),
                    _multiple(math.floor(high / step + 1e-9), step),
                    step=step,
                    initial_value=_multiple(round(start / step), step),
                )
                for name, low, high, step, start in zip(names, lower, upper, steps, first, strict=True)
            ]
            back = gui.add_button("back to the start")

        # Each position of a robot with loops begins at the last one, which determines the branch.
        q = scene.first

        def moved(_: object = None) -> None:
            nonlocal q
            q = scene.moved(q, np.array([slider.value for slider in sliders]))
            self.show(scene.still(q))

        starts = [slider.value for slider in sliders]

        def again(_: object) -> None:
            nonlocal q
            q = scene.first
            for slider, start in zip(sliders, starts, strict=True):
                slider.value = start
            moved()

        for slider in sliders:
            slider.on_update(moved)
        back.on_click(again)
        moved()

    def _choose(self, name: str, event: Any) -> None:
        visible = self._visible[name] = bool(event.target.value)
        if name == "axes":
            self._set_visible(self._axes, visible)
        elif name == "names":
            self._set_visible(self._names, visible)
        elif self._last is not None:
            with self._lock:
                self._show_loads(self._last)

    def _fade(self, opacity: float) -> None:
        with self.server.atomic():
            for handle in self._bodies:
                handle.opacity, handle.visible = opacity, opacity > 0.0

    def _set_visible(self, handles: Sequence[Any], visible: bool) -> None:
        with self.server.atomic():
            for handle in handles:
                handle.visible = visible

    def _show_loads(self, snapshot: Snapshot) -> None:
        self._show_arrows("loads", snapshot.loads, snapshot.colours)
        pushing = snapshot.contact_force > 0.0
        self._show_arrows("contacts", snapshot.contacts[pushing], np.tile(CONTACT, (int(pushing.sum()), 1)))

    def _show_arrows(self, name: str, ends: Array, colour: Any) -> None:
        """Arrows between the ends (k, 2, 3) in the colours (k, 3), in place of those of that name."""
        arrows = self._arrows.get(name)
        if not len(ends) or not self._visible[name]:
            if arrows is not None:
                arrows.visible = False
        elif arrows is not None and len(arrows.points) == len(ends):
            arrows.points, arrows.colors, arrows.visible = ends.astype(np.float32), colour, True
        else:
            # A page that gets another number of points before their colours draws no arrow, so new ones are created.
            if arrows is not None:
                arrows.remove()
            size = self.scene.size
            self._arrows[name] = self.server.scene.add_arrows(
                f"/{name}",
                ends.astype(np.float32),
                colour,
                shaft_radius=_SHAFT * size,
                head_radius=_HEAD * size,
                head_length=_HEAD_LENGTH * size,
            )

    def _add_lights(self) -> None:
        add = self.server.scene
        add.set_background_image(np.full((2, 2, 3), BACKGROUND, dtype=np.uint8))
        add.configure_environment_map(None)
        add.configure_default_lights(enabled=False)
        add.add_light_ambient("/lights/ambient", intensity=AMBIENT)
        for name, (intensity, position) in LIGHTS.items():
            is_sun = name == "sun"
            add.add_light_directional(f"/lights/{name}", intensity=intensity, position=position, cast_shadow=is_sun)

    def _add_robot(self, name: str, looks: Looks, tint: tuple[int, int, int] | None) -> list[Any]:
        handles = []
        for k, link in enumerate(self.scene.links):
            handles.append(self.server.scene.add_frame(f"/{name}/{k}", show_axes=False))
            for n, shape in enumerate(looks.shapes.get(link, ())):
                self._add_shape(f"/{name}/{k}/{n}", shape, tint)
        return handles

    def _add_shape(self, name: str, shape: Shape, tint: tuple[int, int, int] | None) -> None:
        add = self.server.scene
        place = {"position": shape.xyz, "wxyz": quaternions(shape.rotation[None])[0]}
        look: dict[str, Any] = {"color": tint or shape.colour, "opacity": OPACITY if tint is None else GHOST_OPACITY}
        look["cast_shadow"] = tint is None
        handles: list[Any] = []
        if shape.kind == "box":
            handles = [add.add_box(name, dimensions=(shape.size[0], shape.size[1], shape.size[2]), **look, **place)]
        elif shape.kind == "cylinder":
            handles = [add.add_cylinder(name, radius=shape.size[0], height=shape.size[1], **look, **place)]
        elif shape.kind == "sphere":
            handles = [add.add_icosphere(name, radius=shape.size[0], **look, **place)]
        elif shape.kind == "ellipsoid":
            axes = shape.size[0], shape.size[1], shape.size[2]
            handles = [add.add_icosphere(name, radius=1.0, scale=axes, **look, **place)]
        elif shape.mesh is not None:
            for k, mesh in enumerate(meshes_of(shape.mesh, shape.size)):
                mesh_look = {**look, "color": tint or mesh.colour or shape.colour}
                handles.append(add.add_mesh_simple(f"{name}/{k}", mesh.vertices, mesh.faces, **mesh_look, **place))
        if tint is None:
            self._bodies.extend(handles)


def _multiple(count: int, step: float) -> float:
    """`count` steps, without the digits that rounding leaves: 3 steps of 0.1 are 0.3."""
    return float(f"{count * step:.12g}")


def efforts_table(scene: Scene, snapshot: Snapshot) -> str:
    """A row for each effort: its joint, its value, and a bar of its share of the limit in the colour of its arrow."""
    rows = []
    shares = snapshot.share.tolist()
    for name, turns, tau, share, colour in zip(
        scene.configuration.velocity_names,
        scene.configuration.turns,
        snapshot.tau.tolist(),
        shares,
        colours(shares).tolist(),
        strict=True,
    ):
        has_limit = math.isfinite(share)
        width = 100.0 * min(share, 1.0) if has_limit else 0.0
        share_text = f"{100.0 * share:.0f} %" if has_limit else "no limit"
        tau = 0.0 if abs(tau) <= MIN_EFFORT else tau
        bar = f'<div style="width:{width:.0f}%;height:5px;background:rgb({colour[0]},{colour[1]},{colour[2]})"></div>'
        value = "unknown" if math.isnan(tau) else f"{tau:.3g} {'N m' if turns else 'N'}"
        rows.append(
            f'<div style="display:flex;justify-content:space-between;gap:0.5em"><span>{html.escape(name)}</span>'
            f'<span style="white-space:nowrap">{value}, {share_text}</span></div>'
            f'<div style="background:rgba(128,128,128,0.25);margin-bottom:4px">{bar}</div>'
        )
    return f'<div style="font-size:0.75em;padding:0 0.9em 0.6em">{"".join(rows)}</div>'


def run(tick: Callable[[float], None] | None, stop: threading.Event) -> None:
    """Waits until it is asked to stop. tick: is called for each picture with the time since the last, s."""
    last = time.monotonic()
    while not stop.wait(FRAME_S):
        now = time.monotonic()
        if tick is not None:
            tick(now - last)
        last = now


@contextmanager
def _silent() -> Iterator[None]:
    """viser draws a box around its address, and says when it stops: both are said by us, or not at all."""
    console = rich.get_console()
    was_quiet, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = was_quiet
