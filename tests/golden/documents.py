"""Launch files, parameters, messages and bags that are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dyn_service.cli.view import _bag
from dyn_service.graph.launch.planner import LaunchPlan, make_plan
from dyn_service.graph.launch.schema import read_launch_file
from dyn_service.graph.launch.substitutions import substitute
from dyn_service.graph.middleware.node_kind import typed
from dyn_service.graph.nodes.plant.factory import PlantParameters
from dyn_service.messages import decode, encode, ros_type
from dyn_service.service.server.settings import ServerSettings
from dyn_service.support.arguments import parse_arguments
from dyn_service.support.documents import Document, dotted, parse_document
from dyn_service.support.parameters import Parameters
from dyn_service.support.validation import explain
from tests.golden.collecting import Case, raised, rows
from tests.graph.launch import test_launch_files, test_start_faults, test_substitutions
from tests.messages import test_messages
from tests.support import test_parameters, test_realtime, test_validation
from tests.view import test_bags

SLOW = 3000
"""Texts of more characters take long to refuse."""


def cases(folder: Path) -> Iterator[Case]:
    yield from launch_files(folder)
    yield from parameters()
    yield from messages()
    yield from bags(folder)


def planned(folder: Path, text: str) -> LaunchPlan:
    path = folder / "test.launch.yaml"
    path.write_text(text)
    return make_plan(read_launch_file(path), {}, environment={"HOME": "/home/arm"}, folder=folder)


def launch_files(folder: Path) -> Iterator[Case]:
    for text, _ in rows(test_launch_files.test_fault):
        yield raised(f"a launch file: {text}", planned, folder, text)
    for text, _ in rows(test_substitutions.test_fault):
        yield raised(f"a substitution: {text}", substitute, text, test_substitutions.SCOPE)
    for file, text, _ in rows(test_start_faults.test_faults_of_parameter_files):
        test_start_faults.write_launch(folder)
        (folder / file).write_text(text)
        yield raised(f"a launch's {file}: {text}", lambda: make_plan(read_launch_file(folder / "a.launch.yaml"), {}))


def parameters() -> Iterator[Case]:
    for text, _ in rows(test_parameters.test_file_faults):
        yield raised(f"parameters: {text}", test_parameters.merged, text, "/n")
    for text, _ in rows(test_parameters.test_parameters_are_finite):
        yield raised(f"parameters: {text}", of_a_plant, text)
    for argv, _ in rows(test_parameters.test_command_line_faults):
        yield raised(f"a node's arguments: {' '.join(argv)}", parse_arguments, argv, default_name="plant")
    for text, _ in rows(test_parameters.test_what_would_grow_beyond_its_bytes):
        if len(text) < SLOW:
            yield raised(f"yaml: {text}", parse_document, text, "p.yaml")
    for given, _ in rows(test_realtime.test_nonsense_is_refused_when_it_is_read):
        read = Parameters()
        read.set("realtime", given, Document("a.yaml", None, {}), ())
        yield raised(f"realtime: {given}", typed, read, ServerSettings)
    for value, _ in rows(test_validation.test_every_fault_is_in_our_words):
        yield explained(value)


def of_a_plant(text: str) -> PlantParameters:
    read = Parameters()
    read.merge_file(parse_document(f"/n: {{ros__parameters: {text}}}", "p.yaml"), "/n")
    return read.to(PlantParameters)


def explained(value: Any) -> Case:
    """Returns what is said of a value that is not of its type."""
    try:
        msgspec.convert(value, test_validation.Everything, strict=True)
    except msgspec.ValidationError as error:
        message, place = explain(error, test_validation.Everything, value)
        return Case(f"a value: {value}", "explanation", dotted(place), message)
    raise AssertionError(value)


def messages() -> Iterator[Case]:
    for kind, frame, _ in test_messages.FAULTS:
        yield raised(f"a {ros_type(kind)}: {frame!r}", decode, kind, frame)
    for message, _ in rows(test_messages.test_what_cannot_be_sent_is_said):
        yield raised(f"to send: {type(message).__name__}", encode, message)


def bags(folder: Path) -> Iterator[Case]:
    for topics, texts, topic, _ in rows(test_bags.test_what_cannot_be_shown_is_said):
        file = test_bags.bag(folder, *topics, texts=texts)
        yield raised(f"a bag: {topics} {list(texts)}, topic {topic}", _bag, file, None, topic, None)
        file.unlink()
