"""Real files of every format, cut, shuffled and changed: a robot or an error of ours, never another exception."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dyn_service.errors import DynError
from dyn_service.model.description import Description
from dyn_service.parsing.files import read_file, read_text
from dyn_service.parsing.writing import mjcf
from tests.conftest import URDF
from tests.oracle.example_robots import path_of
from tests.parsing.test_loops import AXES, CONSTRAINT, EQUALITIES, FOUR_BAR, GAZEBO
from tests.parsing.test_loops import MJCF as LOOPS_OF_BODIES
from tests.parsing.test_mjcf import MODELS
from tests.parsing.test_sdf import ELSEWHERE, WAYS

GAZEBO_BALL = GAZEBO.format("ball", "<pose>0 0 1 0 0 0</pose>").replace('"pin"', '"ball"')

ROUNDS = 60
"""Changed texts of each file; a third of them where it is large."""
LARGE = 20_000

NUMBERS = ("0", "-1", "1e308", "nan", "-inf", "1 2", "", "1e-320", "0 0 0", "x")
XACRO = """<robot name="two" xmlns:xacro="http://wiki.ros.org/xacro"><xacro:arg name="n" default="2"/>
<xacro:property name="m" value="3"/><xacro:macro name="part" params="i parent"><link name="l${i}"><inertial>
<mass value="${m * i}"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="j${i}" type="revolute"><parent link="${parent}"/><child link="l${i}"/><axis xyz="0 0 1"/></joint>
</xacro:macro><link name="base"/><xacro:part i="1" parent="base"/><xacro:if value="$(arg n)"><xacro:part i="2"
parent="l1"/></xacro:if></robot>"""


@cache
def texts() -> dict[str, str]:
    cassie = path_of("panda_description/urdf/panda.urdf").parents[2] / "cassie_description" / "robots"
    text_by_name = {path.name: path.read_text() for path in (URDF / "ur5e.urdf", URDF / "upper_body.urdf")}
    text_by_name |= {name: (cassie / name).read_text() for name in ("cassie.sdf", "cassie_v2.sdf")}
    text_by_name |= {"ways.sdf": WAYS["in another frame"], "elsewhere.sdf": ELSEWHERE.format(kind="ball", height=0.4)}
    text_by_name |= {
        f"{name}.xml": MODELS[name] for name in ("what stands beside", "classes of frames", "actuators with rotors")
    }
    text_by_name["ur5e.xml"] = mjcf.write(read_file(URDF / "ur5e.urdf"))[0]
    text_by_name["two.urdf.xacro"] = XACRO
    text_by_name["loops.xml"] = LOOPS_OF_BODIES.format("", EQUALITIES[4] + EQUALITIES[12])
    text_by_name["loops.urdf"] = FOUR_BAR.format(CONSTRAINT.format(kind="revolute", axes=AXES.format(1)) + GAZEBO_BALL)
    return text_by_name


def changed(text: str, rng: random.Random) -> str:
    """The text with a few elements dropped, moved, doubled or swapped, words swapped and numbers changed, or cut."""
    root = ET.fromstring(text)
    for _ in range(rng.randint(1, 4)):
        pairs = [(parent, child) for parent in root.iter() for child in parent]
        if not pairs:
            break
        parent, child = rng.choice(pairs)
        elements = list(root.iter())
        way = rng.choice(("drop", "twice", "move", "swap", "number", "word", "tag"))
        if way in ("drop", "move"):
            parent.remove(child)
        if way in ("twice", "move"):
            descendants = set(child.iter())
            holder = (
                parent
                if way == "twice"
                else rng.choice([element for element in elements if element not in descendants])
            )
            holder.insert(rng.randint(0, len(holder)), child)
        if way == "swap":
            rng.shuffle(parent)  # type: ignore[arg-type]
        if way == "tag":
            child.tag = rng.choice(elements).tag
        attributes = [(element, key) for element in elements for key in element.attrib]
        if attributes and way in ("number", "word"):
            (target, key), (other, other_key) = rng.choice(attributes), rng.choice(attributes)
            target.attrib[key] = rng.choice(NUMBERS) if way == "number" else other.attrib[other_key]
        with_text = [element for element in elements if element.text and element.text.strip()]
        if with_text and way in ("number", "word"):
            rng.choice(with_text).text = rng.choice(NUMBERS) if way == "number" else rng.choice(with_text).text
    text = ET.tostring(root, encoding="unicode")
    if rng.random() < 0.1:
        start = rng.randrange(len(text))
        text = text[:start] + text[start + rng.randint(1, 200) :]
    return re.sub(r"ns\d+:|:ns\d+", lambda match: "drake:" if match[0].endswith(":") else ":drake", text)


def described(name: str, text: str, folder: Path) -> Description:
    if not name.endswith(".xacro"):
        return read_text(text)
    path = folder / name
    path.write_text(text.replace("drake:", "xacro:").replace(":drake", ":xacro"))
    return read_file(path)


@pytest.mark.parametrize("name", texts())
def test_a_robot_or_our_error(name: str, tmp_path: Path) -> None:
    rng, read = random.Random(name), 0
    for _ in range(ROUNDS if len(texts()[name]) < LARGE else ROUNDS // 3):
        text = changed(texts()[name], rng)
        try:
            robot = described(name, text, tmp_path)
        except DynError:
            continue
        except Exception as fault:
            raise AssertionError(f"{fault!r} of\n{text}") from fault
        read += 1
        assert len(robot.joints) == len(robot.links) - 1
        assert all(np.isfinite(joint.xyz).all() for joint in robot.joints)
    assert read, "not one of them was still a robot's"
