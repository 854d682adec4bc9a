"""Files that are replaced as a whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dyn_service.support.files import replacement


def test_a_reader_finds_the_old_content_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with replacement(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [OSError, ValueError, KeyboardInterrupt])
def test_a_failed_block_leaves_the_old_content_alone(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def fail() -> None:
        with replacement(path) as file:
            file.write(b"new")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_missing_folder_is_the_error_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacement(tmp_path / "none" / "a"):
        pytest.fail("the block runs without a file")


def test_only_files_are_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="no file can replace"), replacement(pipe):
        pytest.fail("the block runs for a pipe")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_two_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with replacement(path) as first, replacement(path) as second:
        first.write(b"first")
        second.write(b"second")
    assert path.read_bytes() == b"first"  # the outer block ends last
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize(("mode", "expected"), [(None, 0o640), (0o600, 0o600), (0o664, 0o664)])
def test_permissions_are_those_of_a_new_file_or_exactly_the_mode(
    tmp_path: Path, mode: int | None, expected: int
) -> None:
    umask = os.umask(0o027)
    try:
        with replacement(tmp_path / "a", mode) as file:
            while_written = os.fstat(file.fileno()).st_mode
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == stat.S_IMODE(while_written) == expected


def test_a_link_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    target, path = tmp_path / "target", tmp_path / "a"
    target.write_bytes(b"old")
    path.symlink_to(target)
    with replacement(path) as file:
        file.write(b"new")
    assert target.read_bytes() == b"old"
    assert not path.is_symlink()
