"""One target under atheris, which does not come back: see `__main__`."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        import atheris
    except ImportError:
        raise SystemExit("fuzzing needs atheris: pip install --group fuzz") from None
    name, flags = sys.argv[1], sys.argv[2:]
    with atheris.instrument_imports(include=["dyn_service", "defusedxml"]):
        from qa.fuzz.targets import TARGETS
    target = TARGETS[name]()

    def mutated(data: bytes, longest: int, seed: int) -> bytes:
        mutation = target.mutated(data, seed)
        return bytes(atheris.Mutate(data, longest)) if mutation is None else mutation[:longest]

    atheris.Setup([sys.argv[0], *flags], target.try_one, custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
