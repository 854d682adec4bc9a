"""Line drawings of these pages, as SVG text: a body, trees, free-body diagrams, the simulation loop.

    python -m docs.theory.make_plots drawings

Each function of `DRAWINGS` returns the text of one file under img/. tests/docs holds the files against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape

INK, BLUE, ORANGE, GREEN, RED, GREY = "#222222", "#1f5fa8", "#d9741a", "#2e8b57", "#b03a3a", "#777777"
Point = tuple[float, float]


_SYMBOLS = {
    "theta": "\u03b8",
    "alpha": "\u03b1",
    "beta": "\u03b2",
    "omega": "\u03c9",
    "eta": "\u03b7",
    "tau": "\u03c4",
    "-ddot": "\u0308",  # combining diaeresis, dot and macron
    "-dot": "\u0307",
    "-bar": "\u0304",
    " x ": " \u00d7 ",
    "<=": "\u2264",
}


class Drawing:
    """Shapes on a white sheet, in pixels, y downwards."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size, self._title = (width, height), title
        self._shapes: list[str] = []

    def line(self, *points: Point, colour: str = INK, width: float = 1.5, dashes: str = "") -> None:
        """A line through the points."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        extra = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._shapes.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"{extra}/>'
        )

    def arrow(
        self, begin: Point, end: Point, label: str = "", at: Point = (0, 0), *, colour: str = BLUE, width: float = 1.8
    ) -> None:
        """An arrow, and its label shifted by `at` from its middle."""
        (x, y), (X, Y) = begin, end
        length = ((X - x) ** 2 + (Y - y) ** 2) ** 0.5
        u, w = (X - x) / length, (Y - y) / length
        base = (X - 9 * u, Y - 9 * w)
        self.line(begin, base, colour=colour, width=width)
        corners = [end, (base[0] - 4 * w, base[1] + 4 * u), (base[0] + 4 * w, base[1] - 4 * u)]
        self._shapes.append(f'<polygon points="{_points(corners)}" fill="{colour}"/>')
        if label:
            self.text(((x + X) / 2 + at[0], (y + Y) / 2 + at[1]), label, colour=colour)

    def turn(self, centre: Point, radius: float, label: str, at: Point, *, colour: str = ORANGE) -> None:
        """A torque or a rate: three quarters of a circle with a head, and its label at `at` from the centre."""
        (x, y), r = centre, radius
        self._shapes.append(
            f'<path d="M {x:g},{y + r:g} A {r:g},{r:g} 0 1 1 {x + r:g},{y:g}" fill="none" stroke="{colour}" '
            'stroke-width="1.8"/>'
        )
        self._shapes.append(
            f'<polygon points="{_points([(x + r, y + 7), (x + r - 5, y - 3), (x + r + 5, y - 3)])}" fill="{colour}"/>'
        )
        self.text((x + at[0], y + at[1]), label, colour=colour)

    def body(self, *corners: Point) -> None:
        """A closed smooth outline through the middles of the sides of a polygon."""
        middles = [
            ((x + X) / 2, (y + Y) / 2) for (x, y), (X, Y) in zip(corners, corners[1:] + corners[:1], strict=True)
        ]
        path = f"M {middles[-1][0]:g},{middles[-1][1]:g} " + " ".join(
            f"Q {x:g},{y:g} {X:g},{Y:g}" for (x, y), (X, Y) in zip(corners, middles, strict=True)
        )
        self._shapes.append(f'<path d="{path} Z" fill="#eef2f7" stroke="{INK}" stroke-width="1.3"/>')

    def box(self, corner: Point, size: Point, *lines: str, fill: str = "#eef2f7") -> None:
        """A rectangle with lines of text in its middle."""
        (x, y), (width, height) = corner, size
        self._shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{fill}" stroke="{INK}" '
            'stroke-width="1.2"/>'
        )
        for k, text in enumerate(lines):
            self.text((x + width / 2, y + height / 2 + 5 + 18 * (k - (len(lines) - 1) / 2)), text, colour=INK)

    def joint(self, centre: Point) -> None:
        """A joint: a small circle."""
        self._shapes.append(_circle(centre, 5, "#ffffff", INK))

    def centre(self, centre: Point) -> None:
        """A centre of mass: a filled dot with a ring."""
        self._shapes += [_circle(centre, 7, "#ffffff", INK), _circle(centre, 3, INK, INK)]

    def node(self, centre: Point, label: str, fill: str = "#eef2f7") -> None:
        """A numbered body of a tree."""
        self._shapes.append(_circle(centre, 16, fill, INK))
        self.text((centre[0], centre[1] + 5), label, colour=INK)

    def ground(self, left: Point, width: float) -> None:
        """Hatched ground below a line."""
        x, y = left
        self.line((x, y), (x + width, y))
        for k in range(int(width // 12)):
            self.line((x + 12 * k + 12, y), (x + 12 * k + 4, y + 8), width=1)

    def text(self, at: Point, words: str, *, colour: str = INK, anchor: str = "middle", size: int = 15) -> None:
        """Text; `_x` or `_{xy}` lowers letters, and Greek letters, `-dot` and `-bar` are written as symbols."""
        for name, symbol in _SYMBOLS.items():
            words = words.replace(name, symbol)
        parts, rest = [], words
        while "_" in rest:
            before, _, rest = rest.partition("_")
            low, rest = rest[1:].split("}", 1) if rest.startswith("{") else (rest[:1], rest[1:])
            parts.append(
                f'{escape(before)}<tspan dy="4" font-size="11">{escape(low)}</tspan><tspan dy="-4">&#8203;</tspan>'
            )
        body = "".join([*parts, escape(rest)])
        self._shapes.append(
            f'<text x="{at[0]:g}" y="{at[1]:g}" fill="{colour}" font-size="{size}" text-anchor="{anchor}">{body}</text>'
        )

    def svg(self) -> str:
        """The file's text."""
        width, height = self._size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'font-family="sans-serif" role="img">\n<title>{escape(self._title)}</title>\n'
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        )
        return head + "\n".join(self._shapes) + "\n</svg>\n"


def _points(points: Iterable[Point]) -> str:
    return " ".join(f"{x:.4g},{y:.4g}" for x, y in points)


def _circle(centre: Point, radius: float, fill: str, colour: str) -> str:
    x, y = centre
    return f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{fill}" stroke="{colour}" stroke-width="1.3"/>'


def body() -> str:
    """A body, its parent, and the vectors d, s, y, eta, r."""
    d = Drawing(760, 420, "A body, its parent and the vectors between joints, centre of mass and loads")
    d.body((90, 330), (60, 230), (170, 170), (330, 190), (350, 270), (220, 300), (150, 370))
    d.body((300, 270), (290, 190), (390, 110), (560, 60), (690, 100), (680, 190), (520, 210), (400, 290))
    parent, own, cm, push, child = (125.0, 305.0), (320.0, 232.0), (500.0, 145.0), (588.0, 195.0), (650.0, 110.0)
    origin = (180.0, 400.0)
    d.arrow(origin, (230, 400), "x", (32, 5), colour=GREY)
    d.arrow(origin, (180, 350), "z", (-12, -8), colour=GREY)
    d.text((150, 408), "world", colour=GREY)
    d.arrow(origin, own, "eta_i", (-22, 6), colour=GREY)
    d.arrow(origin, cm, "r_i", (34, 22), colour=GREY)
    d.arrow(parent, own, "d_i", (-4, -10), colour=GREEN)
    d.arrow(own, cm, "s_i", (-6, -12), colour=GREEN)
    d.arrow(own, push, "y_i", (50, 24), colour=GREEN)
    d.arrow(push, (668, 262), "f-bar_i", (26, -12), colour=RED)
    d.turn((560, 110), 16, "tau-bar_i", (-2, -24), colour=RED)
    d.arrow(own, (300, 150), "g_i", (-2, -48), colour=ORANGE)
    d.turn((440, 150), 13, "omega_i", (-8, -20), colour=ORANGE)
    for at in (parent, own, child):
        d.joint(at)
    d.centre(cm)
    d.text((116, 275), "joint_{ip}")
    d.text((268, 236), "joint_i")
    d.text((690, 60), "joint of a child", size=13)
    d.line((675, 66), (653, 103), colour=GREY, width=1, dashes="3 3")
    d.text((500, 176), "cm_i")
    d.text((160, 225), "b_{ip}")
    d.text((610, 150), "b_i")
    return d.svg()


def ten_body_tree() -> str:
    """The tree of Fig. 2 with a chain, a branch and the children of a body."""
    d = Drawing(640, 390, "The tree of ten bodies: chain, branch and children")
    at = {1: (300, 320), 2: (120, 240), 3: (300, 240), 9: (480, 240), 4: (220, 160), 5: (380, 160), 10: (480, 160)}
    at |= {7: (220, 95), 8: (220, 30), 6: (380, 95)}
    parents = {2: 1, 3: 1, 9: 1, 4: 3, 5: 3, 7: 4, 8: 7, 6: 5, 10: 9}
    d.ground((250, 365), 100)
    d.line((300, 365), at[1], width=2)
    for child, parent in parents.items():
        d.line(at[parent], at[child], width=4 if child in (3, 5, 6) else 2, colour=RED if child in (3, 5, 6) else INK)
    d.line((190, 8), (250, 8), (250, 185), (190, 185), (190, 8), colour=BLUE, dashes="6 4")
    for k, place in at.items():
        d.node(place, str(k), "#fbe3e3" if k in (1, 3, 5, 6) else "#eef2f7")
    d.text((180, 110), "branch_4 = {4, 7, 8}", colour=BLUE, anchor="end")
    d.text((405, 62), "{j <= 6} = {6, 5, 3, 1}", colour=RED, anchor="start")
    d.text((330, 325), "children of 1: {2, 3, 9}", anchor="start")
    d.text((330, 262), "parent of 3: 1", anchor="start", size=13)
    d.text((520, 100), "longest chain", size=13)
    d.text((520, 118), "1, 3, 4, 7, 8: m = 5", size=13)
    return d.svg()


def free_body() -> str:
    """Body i cut free: loads at its joints, weight, an external load, and what they produce."""
    d = Drawing(760, 330, "Free-body diagram of body i")
    d.body((70, 240), (60, 150), (190, 80), (330, 70), (400, 120), (370, 220), (230, 270))
    own, cm, push, child = (95.0, 205.0), (230.0, 165.0), (300.0, 235.0), (370.0, 125.0)
    d.arrow((20, 290), own, "f_i", (-22, -4), colour=BLUE)
    d.turn((70, 150), 16, "tau_i", (-32, -14), colour=BLUE)
    d.arrow((445, 70), child, "-f_{alpha}", (40, 10), colour=BLUE)
    d.turn((350, 75), 14, "-tau_{alpha}", (4, -22), colour=BLUE)
    d.arrow(cm, (230, 300), "m_i g", (26, 40), colour=RED)
    d.arrow((375, 300), push, "f-bar_i", (38, 12), colour=RED)
    d.turn((160, 115), 14, "tau-bar_i", (0, -22), colour=RED)
    d.joint(own)
    d.joint(child)
    d.centre(cm)
    d.text((425, 170), "=", size=26)
    d.body((500, 240), (490, 150), (620, 80), (710, 90), (740, 150), (700, 240), (600, 270))
    d.centre((615, 170))
    d.arrow((615, 170), (690, 128), "m_i r-ddot_i", (-14, -22), colour=GREEN)
    d.turn((590, 205), 20, "I_i omega-dot_i + omega_i x I_i omega_i", (10, 100), colour=GREEN)
    return d.svg()


def cart_and_pendulum() -> str:
    """The two free-body diagrams of the worked example."""
    d = Drawing(700, 360, "Free-body diagrams of cart and bar")
    d.ground((40, 230), 250)
    d.box((90, 160), (140, 60), "cart, m_1")
    d.arrow((30, 190), (90, 190), "f", (0, -10), colour=ORANGE)
    d.line((160, 160), (160, 130), width=4)
    d.arrow((125, 220), (125, 320), "m_1 g", (-30, 20), colour=RED)
    d.arrow((195, 330), (195, 222), "rail", (28, 20), colour=BLUE)
    d.arrow((160, 50), (160, 125), "-f_{2z}", (28, -8), colour=BLUE)
    d.arrow((155, 130), (75, 130), "-f_{2x}", (-12, -10), colour=BLUE)
    d.joint((160, 130))
    hinge, end = (460.0, 90.0), (560.0, 300.0)
    cm = ((hinge[0] + end[0]) / 2, (hinge[1] + end[1]) / 2)
    d.line(hinge, end, width=9, colour="#b9c4d2")
    d.line(hinge, (460, 300), colour=GREY, dashes="5 4")
    d.text((436, 240), "theta", colour=GREY)
    d.line((454, 236), (482, 200), colour=GREY, width=1, dashes="3 3")
    d.arrow(hinge, (460, 20), "f_{2z}", (-26, -4), colour=BLUE)
    d.arrow(hinge, (540, 90), "f_{2x}", (12, -10), colour=BLUE)
    d.arrow(cm, (cm[0], cm[1] + 110), "m_2 g", (-24, 36), colour=RED)
    d.joint(hinge)
    d.centre(cm)
    d.text((560, 190), "s_2 = L along the bar", anchor="start", size=13)
    d.arrow((610, 60), (670, 60), "x", (0, -8), colour=GREY)
    d.arrow((610, 60), (610, 10), "z", (-12, 0), colour=GREY)
    return d.svg()


def foot_and_shank() -> str:
    """The free-body diagrams of the gait: each load appears twice, with opposite signs."""
    d = Drawing(720, 400, "Free-body diagrams of foot and shank")
    d.ground((40, 350), 270)
    d.body((90, 335), (80, 270), (130, 245), (200, 290), (280, 310), (280, 340))
    ankle, cop, cm = (120.0, 270.0), (200.0, 335.0), (165.0, 308.0)
    d.arrow(ankle, (120, 190), "F_A", (20, -14), colour=BLUE)
    d.turn((75, 225), 15, "M_A", (-4, -24), colour=BLUE)
    d.arrow((235, 395), cop, "GRF", (34, 14), colour=RED)
    d.arrow(cm, (165, 390), "m_F g", (-30, 22), colour=RED)
    d.joint(ankle)
    d.centre(cm)
    d.text((230, 225), "foot: segment 1")
    d.body((425, 300), (410, 160), (430, 60), (500, 60), (500, 170), (470, 300))
    knee, low, middle = (462.0, 78.0), (450.0, 272.0), (455.0, 165.0)
    d.arrow(knee, (462, 10), "F_K", (-24, 4), colour=BLUE)
    d.turn((525, 50), 15, "M_K", (36, -8), colour=BLUE)
    d.arrow(low, (450, 350), "-F_A", (-30, 12), colour=BLUE)
    d.turn((515, 300), 15, "-M_A", (38, 0), colour=BLUE)
    d.arrow(middle, (455, 250), "m_S g", (-68, 30), colour=RED)
    for at in (knee, low):
        d.joint(at)
    d.centre(middle)
    d.text((600, 200), "shank: segment 2")
    d.text((330, 120), "knee", size=13)
    d.line((350, 116), (452, 80), colour=GREY, width=1, dashes="3 3")
    d.text((330, 270), "ankle", size=13)
    d.line((352, 266), (443, 272), colour=GREY, width=1, dashes="3 3")
    d.line((308, 266), (128, 270), colour=GREY, width=1, dashes="3 3")
    return d.svg()


def simulation_loop() -> str:
    """The loop of the O(N) solution: Steps 1a-f and 2."""
    d = Drawing(760, 430, "The simulation loop")
    d.box((30, 20), (200, 40), "state q, v at t_k", fill="#fdf3e7")
    rows = (
        ("1a, b", "rotations; D, G, S, M of every body", "outward"),
        ("1c, e", "velocities v_i; A_i, B_i", "outward"),
        ("1d", "efforts f, external loads F-bar", "controller, springs, contacts"),
    )
    for k, (step, what, how) in enumerate(rows):
        y = 90 + 66 * k
        d.box((30, y), (470, 46), what)
        d.text((515, y + 20), f"Step {step}", anchor="start")
        d.text((515, y + 39), how, anchor="start", size=12, colour=GREY)
        d.arrow((130, y - 30 if k == 0 else y - 20), (130, y), colour=INK)
    d.box((30, 292), (225, 52), "option 1: M, L^T L = M", "(19a), O(N^3)")
    d.box((275, 292), (225, 52), "option 2: J, R, K, beta", "(19b), O(N)")
    d.text((515, 322), "Step 1f", anchor="start")
    d.arrow((130, 268), (130, 292), colour=INK)
    d.arrow((390, 268), (390, 292), colour=INK)
    d.box((130, 372), (270, 40), "Step 2: integrate to t_{k+1}", fill="#fdf3e7")
    d.arrow((200, 344), (200, 372), "a", (-12, 4), colour=INK)
    d.arrow((330, 344), (330, 372), "a", (12, 4), colour=INK)
    d.line((400, 392), (740, 392), (740, 40), (240, 40))
    d.arrow((260, 40), (230, 40), colour=INK)
    d.text((640, 30), "next step", size=13)
    return d.svg()


DRAWINGS: dict[str, Callable[[], str]] = {
    "body": body,
    "ten_body_tree": ten_body_tree,
    "free_body": free_body,
    "cart_and_pendulum": cart_and_pendulum,
    "foot_and_shank": foot_and_shank,
    "simulation_loop": simulation_loop,
}
"""By the name of the file under img/."""
