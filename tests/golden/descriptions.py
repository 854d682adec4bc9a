"""Files of robots that are refused, and notes of those that are not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dyn_service import Robot
from dyn_service.model.building import tree_of
from dyn_service.parsing.files import read_file, read_text
from dyn_service.parsing.joint_files import with_joint_file
from dyn_service.parsing.urdf import reader
from tests.golden.collecting import Case, of_notes, raised, rows
from tests.model import test_mimic, test_tree
from tests.parsing import test_joint_files, test_mjcf_faults, test_sdf_faults
from tests.parsing.urdf import test_faults, test_habits, test_loaded_objects, test_warnings


def cases(folder: Path) -> Iterator[Case]:
    yield from refused_texts()
    yield from refused_files(folder)
    yield from refused_joint_files(folder)
    yield from noted()


def refused_texts() -> Iterator[Case]:
    for name, source, *_ in test_faults.FAULTS:
        yield raised(f"urdf: {name}", reader.read_text, source)
    for name, source, _ in test_habits.REFUSED:
        yield raised(f"urdf: {name}", reader.read_text, source)
    for name, changes, *_ in test_loaded_objects.FAULTS:
        yield raised(f"a URDF object: {name}", reader.read, test_loaded_objects.fake(**changes))
    for text in test_sdf_faults.FAULTS:
        yield raised(f"sdf: {text}", read_text, text)
    for text in test_mjcf_faults.FAULTS:
        yield raised(f"mjcf: {text}", read_text, text)
    for text, *_ in rows(test_mimic.test_impossible_chains):
        yield raised(f"a mimic: {text}", Robot.from_urdf, text)
    for mass, com, ixx, found in rows(test_tree.test_inertia_beyond_the_range_of_doubles_is_refused):
        if found is not None:
            described = read_text(test_tree.one_link(mass, com, ixx))
            yield raised(f"an inertia: mass {mass}, centre at {com}, ixx {ixx}", tree_of, described)


def refused_files(folder: Path) -> Iterator[Case]:
    for test, main in ((test_sdf_faults, "main.sdf"), (test_mjcf_faults, "main.xml")):
        for files, _ in rows(test.test_faults_across_files):
            for name, text in files.items():
                (folder / name).write_text(text)
            yield raised(f"{main}: {files[main]}", read_file, folder / main)
            for name in files:
                (folder / name).unlink()
    yield raised("a robot's file: none", read_file, folder / "none.urdf")
    yield raised("a robot's file: a folder", read_file, folder)
    yield raised("a robot's name: misspelt", Robot.from_file, "pnda")


def refused_joint_files(folder: Path) -> Iterator[Case]:
    for name, text, *_ in test_joint_files.FAULTS:
        yield raised(f"a joint file: {name}", test_joint_files.arm, folder, text)
    for text, _ in rows(test_joint_files.test_files_that_are_none):
        path = test_joint_files.file(folder, text)
        yield raised(f"a joint file: {text}", with_joint_file, read_text(test_joint_files.ARM.format(more="")), path)


def noted() -> Iterator[Case]:
    for name, text, notes in test_habits.NOTED:
        if notes:
            yield from of_notes(f"urdf: {name}", read_text(text).notes)
    for mass, inertia, _ in rows(test_warnings.test_inertial):
        inertial = f'<inertial><origin/><mass value="{mass}"/>{inertia}</inertial>'
        yield from of_notes(f"urdf: {inertial}", test_warnings.two_links(test_warnings.PLAIN, inertial=inertial).notes)
    for inner, _ in rows(test_warnings.test_joint):
        text = f'<origin/><axis xyz="1 0 0"/>{inner}'
        yield from of_notes(f"urdf: {inner}", test_warnings.two_links(text).notes)
    for test in (test_sdf_faults, test_mjcf_faults):
        for text in test.TOLD:
            yield from of_notes(f"{text}", read_text(text).notes)
