# SPDX-License-Identifier: Apache-2.0
"""Long names, long paths, odd bytes."""
import errno
import os

import pytest

from calls import fails, read, write


def test_name_of_255_bytes(d):
    name = "n" * 255
    write(d / name, b"x")
    assert read(d / name) == b"x"
    assert os.listdir(d) == [name]
    os.rename(d / name, d / ("m" * 255))
    os.mkdir(d / name)
    os.symlink("x", d / ("s" * 255))
    assert len(os.listdir(d)) == 3


def test_name_of_256_bytes(d):
    name = "n" * 256
    write(d / "f", b"")
    for call in (lambda: write(d / name, b""), lambda: os.mkdir(d / name),
                 lambda: os.symlink("x", d / name),
                 lambda: os.link(d / "f", d / name),
                 lambda: os.rename(d / "f", d / name),
                 lambda: os.mkfifo(d / name), lambda: os.stat(d / name)):
        with fails(errno.ENAMETOOLONG):
            call()


def test_bytes_that_are_no_text(d):
    names = [b"\xff\xfe", b"new\nline", b"tab\t", b"\\back", b"a b", b"*?[]",
             "Übung-日本".encode(), b"-rf", b"\x01\x7f", b"%2e%2e", b"..."]
    top = os.fsencode(d)
    for n in names:
        write(os.path.join(top, n), n)
    assert sorted(os.listdir(top)) == sorted(names)
    for n in names:
        assert read(os.path.join(top, n)) == n


def test_case_matters(d):
    for name in ("a", "A", "á", "a\u0301"):
        write(d / name, name.encode())
    assert len(os.listdir(d)) == 4
    assert read(d / "A") == b"A"


def test_path_of_4095_bytes(d):
    path = str(d)
    while len(path) + 202 < 4095:
        path += "/" + "p" * 200
        os.mkdir(path)
    rest = 4095 - len(path) - 1
    assert 0 < rest <= 255
    path += "/" + "f" * rest
    write(path, b"deep")
    assert len(os.fsencode(path)) == 4095
    assert read(path) == b"deep"
    with fails(errno.ENAMETOOLONG):
        os.stat(path + "x")


def test_deeper_than_a_path_can_be(d):
    """By descriptors one gets there; and rm by descriptors gets out."""
    fd = os.open(d, os.O_RDONLY)
    for _ in range(40):
        os.mkdir("p" * 200, dir_fd=fd)
        below = os.open("p" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    f = os.open("f", os.O_CREAT | os.O_RDWR, dir_fd=fd)
    os.write(f, b"8 kB deep")
    assert os.pread(f, 100, 0) == b"8 kB deep"
    os.close(f)
    os.unlink("f", dir_fd=fd)
    for _ in range(40):
        above = os.open("..", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        os.rmdir("p" * 200, dir_fd=above)
        fd = above
    os.close(fd)
    assert os.listdir(d) == []


@pytest.mark.modes("passthrough", "served", "user")
def test_a_path_becomes_too_long(fresh):
    """No remote can hold it. What is written there is kept all the same, and
    what is closed after it goes on."""
    m = fresh(remote=True)
    top = os.open(m.path, os.O_RDONLY)
    os.mkdir("t", dir_fd=top)
    fd = os.open("t", os.O_RDONLY, dir_fd=top)
    for _ in range(16):
        os.mkdir("n" * 250, dir_fd=fd)
        below = os.open("n" * 250, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    path = f"/proc/self/fd/{fd}/f"
    write(path, b"old")
    os.rename("t", "T" * 255, src_dir_fd=top, dst_dir_fd=top)
    write(path, b"new")
    ino = os.stat(path).st_ino
    write(m.path / "after", b"x")
    os.close(fd)
    os.close(top)
    m.wait("remote")
    assert read(m.remote_dir / "after") == b"x"
    m.lose_dram()
    for _, _, files, at in os.fwalk(m.path):
        if "f" in files:
            f = os.open("f", os.O_RDONLY, dir_fd=at)
            assert os.fstat(f).st_ino == ino
            assert os.read(f, 10) == b"new"
            os.close(f)
            return
    assert False, "it is gone"


def test_deep_tree(d):
    path = d
    for i in range(300):
        path = path / "d"
        path.mkdir()
    write(path / "f", b"x")
    assert sum(len(files) for _, _, files in os.walk(d)) == 1
