"""Numbers that are finite one by one, and whose sums or products are beyond all doubles: refused, in every format."""

from __future__ import annotations

import numpy as np
import pytest

from dyn_service.errors import UrdfError
from dyn_service.formats.reading import read_text

BODY = '<mujoco><worldbody><body name="b"><joint name="j" {joint}/>{shapes}</body></worldbody>{more}</mujoco>'
BALL = '<geom size="0.1" mass="1"/>'
BLOCK = """<sdf version="1.11"><model name="m"><link name="b"><inertial auto="true"><density>1e300</density></inertial>
<collision name="c"><geometry><box><size>1e9 1e9 1e9</size></box></geometry></collision></link></model></sdf>"""
HEAVY, STRONG = "link 'b' inertial: its mass, centre of mass", "joint 'j': where it stands, or what it does by itself"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BODY.format(joint="", shapes=2 * BALL.replace('"1"', '"1e308"'), more=""), HEAVY),
        (BODY.format(joint="", shapes='<geom size="1e150" density="1e300"/>', more=""), HEAVY),
        (BLOCK, HEAVY),
        (
            BODY.format(
                joint='armature="1"',
                shapes=BALL,
                more='<actuator><motor joint="j" gear="1e10" armature="1e300"/></actuator>',
            ),
            STRONG,
        ),
    ],
    ids=["a sum of masses", "a volume", "a box of SDFormat", "a gear"],
)
def test_what_numbers_make_together(text: str, message: str) -> None:
    with np.errstate(all="ignore"), pytest.raises(UrdfError, match=message) as caught:
        read_text(text)
    assert caught.value.message.endswith("is too large for a double")
