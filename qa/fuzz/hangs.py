"""What takes too long: an input must not cost more than 0.2 s of an idle machine."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time

HANG_S = 0.2
"""s, of an idle machine. No operation on an input may take longer than this and than `DICTIONARY_STEPS` steps of a
dictionary, since a busy machine is slower. The first input of its kind may have to make a kernel.
"""

DICTIONARY_STEPS = 1_400_000
"""Some 0.2 s: twice the reading of the longest seed, an MJCF file with 43 bodies."""


def pace_s() -> float:
    """Returns the time in which this thread does `DICTIONARY_STEPS` steps now, measured with a part of them."""
    begin_s, steps = thread_time(), {}
    # Measured when an input is slow, not at the start: the machine may be slower by then.
    for k in range(DICTIONARY_STEPS // 40):
        steps[k & 1023] = k
    return 40 * (thread_time() - begin_s)


def check_time(operation: Callable[[], None]) -> None:
    """Raises `TimeoutError` if the operation takes too long three times: the first call may compile a kernel, and a
    busy machine may delay another.
    """
    durations_s: list[float] = []
    for _ in range(3):
        begin_s = thread_time()
        operation()
        durations_s.append(thread_time() - begin_s)
        if durations_s[-1] < HANG_S or durations_s[-1] < pace_s():
            return
    raise TimeoutError(f"an input took {min(durations_s):.2f} s of work, allowed {max(HANG_S, pace_s()):.2f} s")
