"""Numbers that are finite one by one, and whose sums or products are beyond all doubles: refused, in every format."""

from __future__ import annotations

import numpy as np
import pytest

from dyn_service.errors import UrdfError
from dyn_service.parsing.files import read_text

BODY = '<mujoco><worldbody><body name="b"><joint name="j"/>{}</body></worldbody></mujoco>'
BALL = '<geom size="0.1" mass="1"/>'
BLOCK = """<sdf version="1.11"><model name="m"><link name="b"><inertial auto="true"><density>1e300</density></inertial>
<collision name="c"><geometry><box><size>1e9 1e9 1e9</size></box></geometry></collision></link></model></sdf>"""
HEAVY = "link 'b' inertial: its mass, centre of mass"


@pytest.mark.parametrize(
    "text",
    [BODY.format(2 * BALL.replace('"1"', '"1e308"')), BODY.format('<geom size="1e150" density="1e300"/>'), BLOCK],
    ids=["a sum of masses", "a volume", "a box of SDFormat"],
)
def test_what_numbers_make_together(text: str) -> None:
    with np.errstate(all="ignore"), pytest.raises(UrdfError, match=HEAVY) as excinfo:
        read_text(text)
    assert excinfo.value.message.endswith("is too large for a double")


def test_a_place_that_offsets_make_together() -> None:
    """Its other numbers, the turn and the axis, are finite."""
    body = f'<body name="b"><joint name="j"/>{BALL}</body>'
    body_far_away = 2 * '<frame pos="1e308 0 0">' + body + 2 * "</frame>"
    text = f"<mujoco><worldbody>{body_far_away}</worldbody></mujoco>"
    with np.errstate(all="ignore"), pytest.raises(UrdfError, match=r"^<text>:1: joint 'j': .* too large for a double$"):
        read_text(text)
