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
from tests.parsing.test_mjcf import MODELS
from tests.parsing.test_sdf import ELSEWHERE, WAYS

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
    found = {path.name: path.read_text() for path in (URDF / "ur5e.urdf", URDF / "upper_body.urdf")}
    found |= {name: (cassie / name).read_text() for name in ("cassie.sdf", "cassie_v2.sdf")}
    found |= {"ways.sdf": WAYS["in another frame"], "elsewhere.sdf": ELSEWHERE.format(kind="ball", height=0.4)}
    found |= {
        f"{name}.xml": MODELS[name] for name in ("what stands beside", "classes of frames", "actuators with rotors")
    }
    found["ur5e.xml"] = mjcf.write(read_file(URDF / "ur5e.urdf"))[0]
    found["two.urdf.xacro"] = XACRO
    return found


def changed(text: str, rng: random.Random) -> str:
    """The text with a few elements dropped, moved, doubled or swapped, words swapped and numbers changed, or cut."""
    root = ET.fromstring(text)
    for _ in range(rng.randint(1, 4)):
        inside = [(parent, child) for parent in root.iter() for child in parent]
        if not inside:
            break
        parent, child = rng.choice(inside)
        elements = list(root.iter())
        way = rng.choice(("drop", "twice", "move", "swap", "number", "word", "tag"))
        if way in ("drop", "move"):
            parent.remove(child)
        if way in ("twice", "move"):
            below = set(child.iter())
            holder = parent if way == "twice" else rng.choice([each for each in elements if each not in below])
            holder.insert(rng.randint(0, len(holder)), child)
        if way == "swap":
            rng.shuffle(parent)  # type: ignore[arg-type]
        if way == "tag":
            child.tag = rng.choice(elements).tag
        said = [(each, key) for each in elements for key in each.attrib]
        if said and way in ("number", "word"):
            (one, key), (other, its) = rng.choice(said), rng.choice(said)
            one.attrib[key] = rng.choice(NUMBERS) if way == "number" else other.attrib[its]
        spoken = [each for each in elements if each.text and each.text.strip()]
        if spoken and way in ("number", "word"):
            rng.choice(spoken).text = rng.choice(NUMBERS) if way == "number" else rng.choice(spoken).text
    text = ET.tostring(root, encoding="unicode")
    if rng.random() < 0.1:
        start = rng.randrange(len(text))
        text = text[:start] + text[start + rng.randint(1, 200) :]
    return re.sub(r"ns\d+:|:ns\d+", lambda found: "drake:" if found[0].endswith(":") else ":drake", text)


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
