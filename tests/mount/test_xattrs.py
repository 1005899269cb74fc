# SPDX-License-Identifier: Apache-2.0
"""Extended attributes, the user's and ours."""
import errno
import os

import pytest

from calls import fails, noise, opened, read, write


def test_set_get_list_remove(d):
    f = write(d / "f", b"")
    assert os.listxattr(f) == []
    os.setxattr(f, "user.a", b"1")
    os.setxattr(f, "user.b", b"\0binary\xff")
    os.setxattr(f, "user.empty", b"")
    assert sorted(os.listxattr(f)) == ["user.a", "user.b", "user.empty"]
    assert os.getxattr(f, "user.b") == b"\0binary\xff"
    assert os.getxattr(f, "user.empty") == b""
    os.setxattr(f, "user.a", b"longer than before")
    assert os.getxattr(f, "user.a") == b"longer than before"
    os.removexattr(f, "user.a")
    assert sorted(os.listxattr(f)) == ["user.b", "user.empty"]


def test_errors(d):
    f = write(d / "f", b"")
    with fails(errno.ENODATA):
        os.getxattr(f, "user.none")
    with fails(errno.ENODATA):
        os.removexattr(f, "user.none")
    with fails(errno.ENODATA):
        os.setxattr(f, "user.none", b"", os.XATTR_REPLACE)
    os.setxattr(f, "user.a", b"1", os.XATTR_CREATE)
    with fails(errno.EEXIST):
        os.setxattr(f, "user.a", b"2", os.XATTR_CREATE)
    os.setxattr(f, "user.a", b"3", os.XATTR_REPLACE)
    assert os.getxattr(f, "user.a") == b"3"
    with fails(errno.EOPNOTSUPP, errno.EPERM):
        os.setxattr(f, "nosuchspace.a", b"1")
    with fails(errno.ERANGE, errno.ENAMETOOLONG):
        os.setxattr(f, "user." + "n" * 300, b"1")


def test_on_directories(d):
    os.setxattr(d, "user.dir", b"yes")
    assert os.getxattr(d, "user.dir") == b"yes"
    os.rename(d, f"{d}-moved")
    assert os.getxattr(f"{d}-moved", "user.dir") == b"yes"


def test_large_value(d, mode):
    f = write(d / "f", b"")
    size = 65536 if mode != "plain" else 1024
    os.setxattr(f, "user.large", noise(size))
    assert os.getxattr(f, "user.large") == noise(size)
    with fails(errno.E2BIG, errno.ENOSPC):
        os.setxattr(f, "user.larger", noise(65537))


def test_many(d, mode):
    f = write(d / "f", b"")
    n = 500 if mode != "plain" else 20
    for i in range(n):
        os.setxattr(f, f"user.{i:04}", str(i).encode())
    assert sorted(os.listxattr(f)) == [f"user.{i:04}" for i in range(n)]
    assert os.getxattr(f, f"user.{n - 1:04}") == str(n - 1).encode()


def test_belong_to_the_inode(d):
    f = write(d / "f", b"one")
    os.setxattr(f, "user.a", b"1")
    os.link(f, d / "g")
    os.unlink(f)
    write(d / "g", b"two")  # truncated and rewritten
    assert os.getxattr(d / "g", "user.a") == b"1"
    os.unlink(d / "g")
    write(f, b"")
    assert os.listxattr(f) == []


def test_of_an_open_file(d):
    with opened(d / "f", os.O_CREAT | os.O_RDWR) as fd:
        os.write(fd, b"x")
        os.setxattr(fd, "user.a", b"1")
        os.unlink(d / "f")
        assert os.getxattr(fd, "user.a") == b"1"


@pytest.mark.root
def test_other_spaces(d):
    f = write(d / "f", b"")
    os.setxattr(f, "trusted.a", b"root's")
    assert os.listxattr(f) == ["trusted.a"]
    os.symlink("f", d / "l")
    os.setxattr(d / "l", "trusted.l", b"x", follow_symlinks=False)
    assert os.listxattr(d / "l", follow_symlinks=False) == ["trusted.l"]


@pytest.mark.modes("passthrough", "served", "user")
def test_acls_are_refused_in_words_that_cp_knows(d, mode):
    if mode == "plain":
        pytest.skip("a disk has ACLs")
    f = write(d / "f", b"")
    acl = bytes.fromhex("0200000001000600ffffffff04000400ffffffff"
                        "20000400ffffffff")
    with fails(errno.EOPNOTSUPP):
        os.setxattr(f, "system.posix_acl_access", acl)
    with fails(errno.EOPNOTSUPP, errno.ENODATA):
        os.getxattr(f, "system.posix_acl_access")


def test_ours_are_read_but_not_listed(d, m, mode):
    if mode == "plain":
        pytest.skip("a plain directory has no levels")
    f = write(d / "f", noise(100_000))
    (d / "sub").mkdir()
    for path in (f, d / "sub", m.path):
        assert os.getxattr(path, "user.ckpt.state") in (b"dram", b"nvme")
        assert int(os.getxattr(path, "user.ckpt.seq")) > 0
        assert os.listxattr(path) == []
    with fails(errno.ENODATA):
        os.getxattr(f, "user.ckpt.other")


def test_ours_cannot_be_set(d, mode):
    if mode == "plain":
        pytest.skip("a plain directory has no levels")
    f = write(d / "f", b"")
    with fails(errno.EPERM):
        os.setxattr(f, "user.ckpt.state", b"remote")
    with fails(errno.EPERM):
        os.removexattr(f, "user.ckpt.seq")


def test_survive_a_remount(fresh):
    m = fresh()
    f = write(m.path / "f", b"")
    os.setxattr(f, "user.a", noise(3000))
    os.setxattr(m.path, "user.root", b"of all")
    m.remount()
    assert os.getxattr(f, "user.a") == noise(3000)
    assert os.getxattr(m.path, "user.root") == b"of all"
    assert read(f) == b""
