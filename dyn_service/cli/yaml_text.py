"""Values as YAML text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from dyn_service.cli.console import UsageError
from dyn_service.support.documents import ConfigurationError, parse_document
from dyn_service.support.validation import Place, dotted

_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def parsed(text: str, name: str) -> Any:
    """Returns the value of a YAML text, or raises `UsageError`; `name` is the argument, for the error."""
    try:
        return parse_document(text, name).value
    except ConfigurationError as error:
        raise UsageError(f"{name}: {error.message}") from None


def flow(value: Any) -> str:
    """Returns the value as YAML on one line."""
    text: str = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=1 << 30)
    return text.removesuffix("\n").removesuffix("\n...")


def block(value: Any) -> str:
    """Returns the value as YAML over several lines, with a line end."""
    text: str = yaml.dump(value, Dumper=_Dumper, default_flow_style=False, sort_keys=False, allow_unicode=True)
    return text.removesuffix("...\n")


def edited(text: str, file: str, values: Mapping[Place, Any]) -> str:
    """Returns the text with these values replaced; comments, order and spaces are kept.

    Raises:
        ConfigurationError: A value cannot be changed alone, because it is merged or has an alias.
    """
    new_value, root, spans = parse_document(text, file).value, yaml.compose(text, Loader=yaml.SafeLoader), []
    for place, value in values.items():
        node, table = root, new_value
        for k, step in enumerate(place):
            table = table[place[k - 1]] if k else table
            node = {key.value: child for key, child in getattr(node, "value", ())}.get(step)
        table[place[-1]] = value
        spans += list(_spans(node, value))
    new_text = text
    # from the end, so that the positions before it stay valid
    for begin, end, replacement in sorted(spans, reverse=True):
        new_text = new_text[:begin] + replacement + new_text[end:]
    # merge keys and aliases repeat values of other places, which the positions do not show
    if parse_document(new_text, file).value != new_value:
        names = ", ".join(map(dotted, values))
        raise ConfigurationError(f"{names}: cannot be changed in place: edit the file by hand", file=file)
    return new_text


def _spans(node: Any, value: Any) -> Iterator[tuple[int, int, str]]:
    """Yields start, end and replacement of the value's parts in the text; nothing if the value is not there."""
    if isinstance(node, yaml.SequenceNode) and isinstance(value, list) and len(value) == len(node.value):
        for item_node, item in zip(node.value, value, strict=True):
            yield from _spans(item_node, item)
    elif isinstance(node, yaml.ScalarNode) or getattr(node, "flow_style", False):
        yield node.start_mark.index, node.end_mark.index, flow(value)
