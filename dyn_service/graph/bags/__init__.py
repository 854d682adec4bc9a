"""Bags: recordings of topics and of requests, as MCAP files with ROS 2's schemas. See `docs/bags.md`.

motions       recorded motions as q, v, a and tau: of reports of launches, bags, files of NumPy
mcap_records  records of an MCAP file; `dyn bag repair`
playing       plays a bag
plotting      plots of signals
reader        reads bags, also for `dyn bag info`
writer        writes bags
topic_recorder  records topics
requests      records requests to a server; repeats them, also with Pinocchio, and compares the replies
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dyn_service.support.lazy_names import lazy_names

if TYPE_CHECKING:
    from dyn_service.graph.bags.motions import recording
    from dyn_service.graph.bags.plotting import plot, signals
    from dyn_service.graph.bags.reader import BagReader, lines, summary
    from dyn_service.graph.bags.requests import REPLIES, REQUESTS, replay, report, verify
    from dyn_service.graph.bags.writer import BagWriter

__all__ = [
    "BagReader",
    "BagWriter",
    "REPLIES",
    "REQUESTS",
    "lines",
    "plot",
    "recording",
    "replay",
    "report",
    "signals",
    "summary",
    "verify",
]

__getattr__ = lazy_names(
    __name__,
    {
        "dyn_service.graph.bags.motions": "recording",
        "dyn_service.graph.bags.plotting": "plot signals",
        "dyn_service.graph.bags.reader": "BagReader lines summary",
        "dyn_service.graph.bags.requests": "REPLIES REQUESTS replay report verify",
        "dyn_service.graph.bags.writer": "BagWriter",
    },
)
