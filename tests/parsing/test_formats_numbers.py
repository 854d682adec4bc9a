"""Numbers no file should have, in MJCF and SDFormat: a typed error or a robot, never a warning, a crash or a NaN."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

from dyn_service.errors import DynError
from dyn_service.parsing.files import read_text
from tests.parsing.test_mjcf import MODELS
from tests.parsing.test_sdf import WAYS
from tests.wide import wide

ODD = ("1e308", "1e-320", "0", "-0", "1e200", "1e154", "5e-324")
NEGATIVE = "-1e308"
TEXTS = {
    name: text
    for name, text in {**MODELS, **WAYS}.items()
    if name in ("euler XYZ", "fullinertia", "ref and pos", "fromto", "shells", "balanceinertia", "settotalmass",
                "boundmass", "xyaxes", "zaxis", "axisangle", "slides and a ball", "actuators with rotors", "springs",
                "in the joint",
                "degrees", "in another frame")
}  # fmt: skip


@pytest.mark.parametrize("rest", wide([0, 1], (0).__eq__))
@pytest.mark.parametrize("name", TEXTS)
def test_every_number_in_its_turn(name: str, rest: int) -> None:
    """In each place `NEGATIVE` and every other number of `ODD`, in the next place those between."""
    text = TEXTS[name]
    places = [match.span() for match in re.finditer(r"(?<=[\" >])-?[0-9]*\.?[0-9]+(?=[\" <])", text)]
    assert len(places) > 5
    error_count = 0
    changes = ((span, odd) for k, span in enumerate(places) for odd in (NEGATIVE, *ODD[(k + rest) % 2 :: 2]))
    for (start, end), odd in changes:
        changed_text = text[:start] + odd + text[end:]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                description = read_text(changed_text)
            except DynError:
                error_count += 1
                continue
        for link in description.links:
            inertial = link.inertial
            assert inertial is None or all(
                np.isfinite(x).all() for x in (inertial.mass, inertial.com, inertial.rotation, inertial.inertia)
            )
        for joint in description.joints:
            assert all(
                np.isfinite(x).all() for x in (joint.xyz, joint.rotation, joint.axis, joint.armature, joint.damping)
            )
    assert error_count
