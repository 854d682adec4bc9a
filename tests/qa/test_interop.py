"""Libraries of other languages at our servers and clients: the short version of `python -m qa.interop`.

Each needs its toolchain and package: node with npm, a JDK and PyPI (or DYN_JEROMQ), cargo with its registry. libzmq
comes with pyzmq; `tests/service/protocol/test_libzmq.py` checks it in more detail.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from qa.interop.cases import CASES, Scale, Security, applies
from qa.interop.libraries import LIBRARIES, AbsentError, Library

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SHORT = Scale((0, 1, 255, 256, 32768, 32769, 5_000_000), (1, 2, 10_000), kills=1, heartbeats=3)


@pytest.fixture(scope="module", params=LIBRARIES)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    try:
        return LIBRARIES[request.param](tmp_path_factory.mktemp("peer"))
    except AbsentError as absent:
        pytest.skip(f"{request.param}: {absent}")


@pytest.mark.parametrize("mechanism", ["NULL", "CURVE"])
@pytest.mark.parametrize("case", CASES)
def test_messages_keys_and_restarts(library: Library, mechanism: str, case: str, tmp_path: Path) -> None:
    if not applies(case, library, mechanism):
        pytest.skip(f"{library.name} has no such case: {case}, {mechanism}")
    assert CASES[case](library, Security.new(mechanism, tmp_path / "keys"), SHORT)
