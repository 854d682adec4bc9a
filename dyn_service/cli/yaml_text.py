"""Values as YAML, as people type and read them."""

from __future__ import annotations

from typing import Any

import yaml

from dyn_service.cli.usage import UsageError
from dyn_service.config.documents import ConfigurationError, parse_document

_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def parsed(text: str, name: str) -> Any:
    """The value that the text is.

    Raises:
        UsageError: It is no YAML.
    """
    try:
        return parse_document(text, name).value
    except ConfigurationError as error:
        raise UsageError(f"{name}: {error.message}") from None


def flow(value: Any) -> str:
    """The value on one line."""
    text: str = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=1 << 30)
    return text.removesuffix("\n").removesuffix("\n...")


def block(value: Any) -> str:
    """The value over several lines, with the last one's end."""
    text: str = yaml.dump(value, Dumper=_Dumper, default_flow_style=False, sort_keys=False, allow_unicode=True)
    return text.removesuffix("...\n")
