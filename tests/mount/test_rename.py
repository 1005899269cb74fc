# SPDX-License-Identifier: Apache-2.0
"""rename in every form."""
import errno
import os
import stat

import pytest

from calls import (RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT, fails,
                   noise, opened, read, rename2, tick, write)


def test_file_over_file(d):
    write(d / "a", b"new")
    write(d / "b", b"old")
    number = os.stat(d / "a").st_ino
    os.rename(d / "a", d / "b")
    assert os.listdir(d) == ["b"]
    assert read(d / "b") == b"new"
    assert os.stat(d / "b").st_ino == number


def test_between_directories(d):
    (d / "one").mkdir()
    (d / "two").mkdir()
    write(d / "one" / "f", b"x")
    os.rename(d / "one" / "f", d / "two" / "g")
    assert os.listdir(d / "one") == []
    assert read(d / "two" / "g") == b"x"


def test_directory_with_all_below(d):
    (d / "tmp" / "deep" / "er").mkdir(parents=True)
    write(d / "tmp" / "deep" / "er" / "f", b"x")
    os.rename(d / "tmp", d / "step-1")
    assert read(d / "step-1" / "deep" / "er" / "f") == b"x"
    assert not os.path.exists(d / "tmp")
    os.rename(d / "step-1" / "deep", d / "out")
    assert os.listdir(d / "step-1") == []
    assert read(d / "out" / "er" / "f") == b"x"
    with opened(d / "out", os.O_RDONLY) as fd:
        assert os.stat("..", dir_fd=fd).st_ino == os.stat(d).st_ino


def test_directory_over_empty_directory(d):
    (d / "a").mkdir()
    write(d / "a" / "f", b"x")
    (d / "b").mkdir()
    os.rename(d / "a", d / "b")
    assert os.listdir(d / "b") == ["f"]


def test_errors(d):
    (d / "dir").mkdir()
    (d / "full").mkdir()
    write(d / "full" / "x", b"")
    write(d / "file", b"")
    with fails(errno.ENOENT):
        os.rename(d / "nothing", d / "x")
    with fails(errno.ENOENT):
        os.rename(d / "file", d / "no" / "x")
    with fails(errno.EISDIR):
        os.rename(d / "file", d / "dir")
    with fails(errno.ENOTDIR):
        os.rename(d / "dir", d / "file")
    with fails(errno.ENOTEMPTY, errno.EEXIST):
        os.rename(d / "dir", d / "full")
    with fails(errno.EINVAL):
        os.rename(d / "full", d / "full" / "in")
    with fails(errno.ENOTEMPTY, errno.EBUSY, errno.EINVAL):
        os.rename(d / "full" / "x", f"{d}/full/..")
    with fails(errno.EXDEV):
        os.rename(d / "file", "/dev/shm/ckptfs-no-such-file")
    assert sorted(os.listdir(d)) == ["dir", "file", "full"]


def test_to_itself(d):
    write(d / "f", b"x")
    os.rename(d / "f", d / "f")
    os.link(d / "f", d / "g")
    os.rename(d / "f", d / "g")  # POSIX: both names stay
    assert sorted(os.listdir(d)) == ["f", "g"]
    assert os.stat(d / "f").st_nlink == 2


def test_noreplace(d):
    write(d / "a", b"a")
    write(d / "b", b"b")
    with fails(errno.EEXIST):
        rename2(d / "a", d / "b", RENAME_NOREPLACE)
    assert (read(d / "a"), read(d / "b")) == (b"a", b"b")
    rename2(d / "a", d / "c", RENAME_NOREPLACE)
    assert sorted(os.listdir(d)) == ["b", "c"]


def test_exchange(d):
    write(d / "a", b"a")
    (d / "dir").mkdir()
    write(d / "dir" / "in", b"in")
    rename2(d / "a", d / "dir", RENAME_EXCHANGE)
    assert read(d / "dir") == b"a"
    assert read(d / "a" / "in") == b"in"
    with fails(errno.ENOENT):
        rename2(d / "a", d / "nothing", RENAME_EXCHANGE)
    with fails(errno.EINVAL):
        rename2(d / "a", d / "a" / "in", RENAME_EXCHANGE)
    with fails(errno.EINVAL):
        rename2(d / "a", d / "dir", RENAME_EXCHANGE | RENAME_NOREPLACE)


def test_exchange_between_directories(d):
    for name in ("one", "two"):
        (d / name / "sub").mkdir(parents=True)
        write(d / name / "sub" / "f", name.encode())
    rename2(d / "one" / "sub", d / "two" / "sub", RENAME_EXCHANGE)
    assert read(d / "one" / "sub" / "f") == b"two"
    with opened(d / "one" / "sub", os.O_RDONLY) as fd:
        assert os.stat("..", dir_fd=fd).st_ino == os.stat(d / "one").st_ino


def test_whiteout_is_refused(d):
    write(d / "a", b"")
    with fails(errno.EINVAL, errno.EPERM):
        rename2(d / "a", d / "b", 8 | RENAME_WHITEOUT)
    assert os.listdir(d) == ["a"]


def test_over_an_open_file(d):
    """Whoever has the replaced file open keeps it."""
    write(d / "old", noise(100_000, "old"))
    write(d / "new", noise(50_000, "new"))
    with opened(d / "old") as fd:
        os.rename(d / "new", d / "old")
        assert os.pread(fd, 200_000, 0) == noise(100_000, "old")
        assert os.fstat(fd).st_nlink == 0
        os.pwrite(fd, b"still mine", 0)
        assert os.pread(fd, 10, 0) == b"still mine"
    assert read(d / "old") == noise(50_000, "new")


def test_of_an_open_file(d):
    with opened(d / "tmp", os.O_CREAT | os.O_RDWR) as fd:
        os.write(fd, b"one ")
        os.rename(d / "tmp", d / "final")
        os.write(fd, b"two")
        assert read(d / "final") == b"one two"
        assert os.stat(d / "final").st_size == 7
    assert read(d / "final") == b"one two"


def test_over_a_hard_link(d):
    write(d / "a", b"a")
    os.link(d / "a", d / "a2")
    write(d / "b", b"b")
    os.rename(d / "b", d / "a")
    assert os.stat(d / "a2").st_nlink == 1
    assert read(d / "a2") == b"a" and read(d / "a") == b"b"


def test_ctime_of_what_moved(d):
    write(d / "f", b"")
    (d / "dir").mkdir()
    for name in ("f", "dir"):
        before = os.stat(d / name)
        tick()
        os.rename(d / name, d / "x")
        after = os.stat(d / "x")
        assert after.st_ctime_ns > before.st_ctime_ns
        assert after.st_mtime_ns == before.st_mtime_ns
        os.rename(d / "x", d / name)


def test_of_special_files_and_symlinks(d):
    os.mkfifo(d / "p")
    os.symlink("p", d / "l")
    os.rename(d / "l", d / "l2")
    os.rename(d / "p", d / "p2")
    assert os.readlink(d / "l2") == "p"
    assert stat.S_ISFIFO(os.lstat(d / "p2").st_mode)
    os.rename(d / "p2", d / "l2")  # replaces the link itself
    assert os.listdir(d) == ["l2"]


@pytest.mark.parametrize("keep_open", [False, True])
def test_write_rename_over_and_over(d, keep_open):
    """The loop of every careful writer, also with readers of the old one."""
    held = []
    for i in range(60):
        write(d / "tmp", noise(3000 + i, i))
        os.rename(d / "tmp", d / "latest")
        assert read(d / "latest") == noise(3000 + i, i)
        if keep_open:
            held.append(os.open(d / "latest", os.O_RDONLY))
    for i, fd in enumerate(held):
        assert os.pread(fd, 10_000, 0) == noise(3000 + i, i)
        os.close(fd)
    assert os.listdir(d) == ["latest"]
