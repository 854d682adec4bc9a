"""The counts of `python -m qa.load.period_cost`; the whole run is a command."""

from __future__ import annotations

import os

from qa.load.period_cost import Cost, calls_and_bytes, table, usage

TRACE = """\
13235 getpid( <unfinished ...>
13239 sendto(21, ""..., 609, 0, NULL, 0) = 609
13235 <... getpid resumed>)             = 13235
13235 recvfrom(22,  <unfinished ...>
13239 write(14, ""..., 8)               = 8
13235 <... recvfrom resumed>""..., 8192, 0, NULL, NULL) = 379
13235 recvfrom(22, 0x7f, 8192, 0, NULL, NULL) = -1 EAGAIN (Resource temporarily unavailable)
13235 --- SIGINT {si_signo=SIGINT, si_code=SI_USER} ---
13235 poll([...], 1, 0)                 = 0 (Timeout)
"""


def test_system_calls_of_interrupted_threads_count_once() -> None:
    assert calls_and_bytes(TRACE.splitlines()) == (6, 609 + 8 + 379)


def test_the_usage_of_a_process_grows() -> None:
    first = usage(os.getpid())
    while usage(os.getpid())[0] == first[0]:
        sum(range(1000))
    assert all(now >= earlier for now, earlier in zip(usage(os.getpid()), first, strict=True))


def test_a_figure_that_was_not_measured_is_a_dash() -> None:
    lines = table({"plant": Cost(python_calls=52.0), "server": Cost(system_calls=3.75)}).splitlines()
    assert lines[0] == "| per period | plant | server |"
    assert "| calls of Python functions | 52.0 | 0.0 |" in lines
    assert "| system calls | - | 3.8 |" in lines
