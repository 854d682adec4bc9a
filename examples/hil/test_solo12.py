"""A Solo12 on its feet: it stands, and it walks in place. Its base has no motor; the ground carries it."""

import pytest


@pytest.mark.hil(launch="solo12")
def test_it_stands_where_it_was_put(run):
    """Without a stop, its trunk where it was."""
    one = run(1.0)
    one.check.stops().at_most(0)
    one.check.effort().within_limits(share=0.9)
    assert one.record.signal("position", "root_joint.z").values.min() > 0.225


@pytest.mark.hil(launch="solo12", arguments={"motion": "walk"})
def test_it_walks_in_place(run):
    """Without a stop, within two centimetres."""
    one = run(1.5)
    one.check.stops().at_most(0)
    assert one.record.signal("position", "root_joint.z").values.min() > 0.215
    assert abs(one.record.signal("position", "root_joint.x").values).max() < 0.02
