"""`--help` of nodes: every parameter with its type, default, range and sentence, from one source; and log levels."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.middleware.node_kind import CommonParameters, NodeKind
from dyn_service.graph.nodes.registry import PACKAGE, Registry
from dyn_service.support import logs
from dyn_service.support.arguments import parse_arguments
from dyn_service.support.parameter_descriptions import ParameterDescriptor, described, on_topic, settable
from dyn_service.support.parameters import FilePath
from tests.phrases import naming


class Inner(msgspec.Struct, frozen=True):
    """Of a part.

    width: m.
    """

    width: Annotated[float, msgspec.Meta(gt=0, le=2)] = 0.5


class Base(msgspec.Struct, kw_only=True):
    """What all have. name: under which it is
    known. unit: of its readings.
    """

    name: str
    unit: Literal["m", "rad"] = "m"


class Parameters(Base, kw_only=True):
    """Parameters of a thing, such as `x: y`.

    Of files:

    files: where they are; none is nowhere. folder, other (both may lack): of `more`. They are
    read once.

    Of all the rest:

    topic: what it says. part: has its own. unit: of this one's readings.
    """

    files: list[FilePath] = []
    folder: FilePath = ""
    other: FilePath = "x"
    topic: Annotated[str, on_topic("publishes", "std_msgs/msg/String")] = "said"
    part: Annotated[Inner, settable] = Inner()
    counts: list[list[int]] | dict[str, int] = msgspec.field(default_factory=lambda: [[1]])


def test_what_a_struct_says_of_itself() -> None:
    assert list(described(Parameters)) == [
        ParameterDescriptor("name", "text", None, "", "under which it is known"),
        ParameterDescriptor("unit", "one of m, rad", "m", "", "of this one's readings"),
        ParameterDescriptor("files", "list of paths", "none", "", "where they are; none is nowhere"),
        ParameterDescriptor("folder", "path", "none", "", "of more. They are read once"),
        ParameterDescriptor("other", "path", "x", "", "of more. They are read once, both may lack"),
        ParameterDescriptor("topic", "text", "said", "", "what it says", "publishes std_msgs/msg/String"),
        ParameterDescriptor("part.width", "number", "0.5", "above 0, at most 2", "m", settable=True),
        ParameterDescriptor("counts", "list of lists of whole numbers or map", "[[1]]"),
    ]


KINDS = [(name, Registry().find(PACKAGE, name)) for name in Registry().names(PACKAGE)]


@pytest.mark.parametrize(("name", "kind"), [*KINDS, ("every node", NodeKind("", CommonParameters, lambda node: None))])
def test_no_parameter_lacks_its_sentence(name: str, kind: NodeKind[msgspec.Struct]) -> None:
    lacking = [descriptor.name for descriptor in described(kind.parameters) if not descriptor.about]
    assert lacking == [], (
        f"the docstring of {kind.parameters.__name__}, or of what it is made from, says nothing of these"
    )


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_help_of_every_node(name: str, kind: NodeKind[msgspec.Struct], capsys: pytest.CaptureFixture[str]) -> None:
    assert kind.run(["--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    text = " ".join(out.split())
    assert re.match(rf"{name}: .+ usage: ", text)
    for descriptor in [*described(kind.parameters), *described(CommonParameters)]:
        assert f"{descriptor.name} (" in text
        assert " ".join(descriptor.about.split()) in text
        assert not descriptor.topic or f"{descriptor.name} {descriptor.topic}" in text


def test_parameters_and_levels_on_a_command_line(tmp_path: Path) -> None:
    arguments = parse_arguments(["rate_hz:=5", "--ros-args", "-p", "n:=1", "--log-level", "WARNING"], default_name="n")
    assert (arguments.parameters.values, arguments.rest, arguments.log_level) == ({"rate_hz": 5, "n": 1}, [], "warning")
    with pytest.raises(InvalidArgumentError, match=naming("'warn'", "debug, info, warning, error")):
        parse_arguments(["--ros-args", "--log-level", "warn"], default_name="n")


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    root_logger = logging.getLogger()
    configuration = root_logger.handlers[:], root_logger.level
    yield root_logger
    root_logger.handlers[:], root_logger.level = configuration[0], configuration[1]


def test_the_nearest_word_on_a_level_counts(monkeypatch: pytest.MonkeyPatch, root: logging.Logger) -> None:
    levels = []
    for launcher_level, own_level in ((None, None), ("debug", None), ("debug", "error"), ("nonsense", None)):
        monkeypatch.delenv(logs.LEVEL, raising=False)
        if launcher_level is not None:
            monkeypatch.setenv(logs.LEVEL, launcher_level)
        logs.set_up("/n", level=own_level)  # type: ignore[arg-type]
        levels.append(logging.getLevelName(root.level))
    assert levels == ["INFO", "DEBUG", "ERROR", "INFO"]
