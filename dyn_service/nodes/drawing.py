"""What the plots of a run have in common: their style, a grid of panels, legends, axes. Nothing here needs a screen.

It imports matplotlib: import it where a plot is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

DPI = 100
POINTS = 1500
"""Points of a line at most: what a panel has in pixels, and some."""
STYLE: Any = {
    "font.size": 10.0,
    "axes.titlesize": 10.5,
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "legend.frameon": False,
    "figure.facecolor": "white",
}
REFERENCE, MEASURED, ERROR, LIMIT, TORQUE = "#f5b041", "#1b4f72", "#922b21", "#b03a2e", "#117864"
ENTRIES = (MEASURED, "#c0392b", TORQUE, "#8e44ad")
"""The entries of a joint that has several, such as x, y, z and w; that of any other is the first."""
_COLUMNS = 3
PREFIXES = ((1.0, ""), (1e3, "m"), (1e6, "\N{MICRO SIGN}"), (1e9, "n"))


def grid(count: int, heading: str, *, panel_height: int) -> tuple[Figure, list[SubFigure]]:
    """A figure with a panel per joint, three in a row, at least 1600 x 1000 pixels."""
    columns = min(count, _COLUMNS)
    rows = math.ceil(count / columns)
    height = max(1000, rows * panel_height + 70)
    figure = Figure(figsize=(16.0, height / DPI), dpi=DPI, layout="constrained")
    figure.suptitle(heading, x=0.01, ha="left", fontsize=13.0)
    cells = np.atleast_1d(figure.subfigures(rows, columns, squeeze=False)).ravel()
    return figure, list(cells[:count])


def time_label(axes: Axes, k: int, panels: Sequence[SubFigure]) -> None:
    """Labels the time axis of the k-th panel, if it is the last of its column."""
    columns = min(len(panels), _COLUMNS)
    if k + columns >= len(panels):
        axes.set_xlabel("time [s]")


def legend(figure: Figure, *panels: SubFigure) -> None:
    """One legend in the upper right corner of the figure, beside the heading."""
    found: dict[str, Any] = {}
    for axes in _axes(panels):
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(list(found.values()), list(found), loc="upper right", ncols=len(found), bbox_to_anchor=(0.995, 1.0))


def name_entries(axes: Axes, names: Sequence[str]) -> None:
    """Names the lines of a panel that are a joint's entries, in their colours `ENTRIES`, where there are several."""
    if len(names) > 1:
        axes.legend(
            [Line2D([], [], alpha=0.0)] * len(names),
            names,
            labelcolor=list(ENTRIES[: len(names)]),
            loc="best",
            ncols=len(names),
            fontsize=9.0,
            handlelength=0.0,
            handletextpad=0.0,
            columnspacing=0.8,
            borderpad=0.2,
        )


def prefix(size: float) -> tuple[float, str]:
    """The factor and prefix in which a size reads as a number of at least 1."""
    return next(((factor, name) for factor, name in PREFIXES if size * factor >= 1.0), PREFIXES[-1])


def plain_decades(axis: Axis) -> None:
    """Labels a logarithmic axis 100, 200, 500, 1000, ..."""
    axis.set_major_locator(LogLocator(10.0, subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(ScalarFormatter())
    axis.set_minor_formatter(NullFormatter())


def mark(axes: Axes, x: float, text: str, height: float, colour: str) -> None:
    """A vertical line with its label to its right, or to its left near the right end."""
    axes.axvline(x, color=colour, lw=1.1, ls=(0, (6, 3)))
    low, high = (math.log10(value) for value in axes.get_xlim())
    right = (math.log10(x) - low) / (high - low) < 0.8
    axes.annotate(
        text,
        (x, height),
        xycoords=("data", "axes fraction"),
        xytext=(5 if right else -5, 0),
        textcoords="offset points",
        ha="left" if right else "right",
        va="center",
        color=colour,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
    )


def _axes(panels: Sequence[SubFigure]) -> Iterator[Axes]:
    for panel in panels:
        yield from panel.axes
