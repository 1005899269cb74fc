# SPDX-License-Identifier: Apache-2.0
"""Who may do what: checked by the kernel, with our modes and owners."""
import errno
import mmap
import os
import shutil
import stat
import struct
import subprocess

import pytest

from calls import (CONTROL_PATH_STATE, CONTROL_SEAL, control, errno_of,
                   opened, read, write)
from user import OTHER, as_root, in_child

A, B = 1001, OTHER  # two users; the tests are root's


@pytest.fixture
def shared_dir(d):
    os.chmod(d, 0o777)
    return d


def by(uid, function, *arguments, **more):
    return in_child(lambda: errno_of(function, *arguments, **more), uid)


@pytest.mark.root
def test_files_of_others(shared_dir):
    d = shared_dir
    in_child(lambda: write(d / "f", b"a's", 0o600) and None, A)
    assert by(B, read, d / "f") == errno.EACCES
    assert by(B, write, d / "f", b"b's") == errno.EACCES
    assert by(B, os.truncate, d / "f", 0) == errno.EACCES
    assert by(B, os.chmod, d / "f", 0o777) == errno.EPERM
    assert by(B, os.utime, d / "f", ns=(1, 1)) == errno.EPERM
    assert by(B, os.utime, d / "f") == errno.EACCES
    assert by(B, os.chown, d / "f", B, B) == errno.EPERM
    assert by(A, os.chown, d / "f", B, -1) == errno.EPERM
    assert by(B, os.setxattr, d / "f", "user.a", b"") == errno.EACCES
    assert by(A, os.setxattr, d / "f", "user.a", b"") == 0
    assert by(B, os.stat, d / "f") == 0
    os.chmod(d / "f", 0o644)
    assert in_child(lambda: read(d / "f"), B) == b"a's"
    assert by(B, write, d / "f", b"b's") == errno.EACCES
    assert by(B, os.utime, d / "f") == errno.EACCES
    os.chmod(d / "f", 0o666)
    assert by(B, write, d / "f", b"b's") == 0
    assert by(B, os.utime, d / "f") == 0
    assert os.stat(d / "f").st_uid == A


@pytest.mark.root
def test_directories_of_others(shared_dir):
    d = shared_dir
    in_child(lambda: os.mkdir(d / "dir", 0o755), A)
    in_child(lambda: write(d / "dir" / "f", b"x") and None, A)
    for number in (by(B, write, d / "dir" / "g", b""),
                   by(B, os.mkdir, d / "dir" / "sub"),
                   by(B, os.unlink, d / "dir" / "f"),
                   by(B, os.rename, d / "dir" / "f", d / "dir" / "g"),
                   by(B, os.symlink, "x", d / "dir" / "l"),
                   by(B, os.link, d / "dir" / "f", d / "dir" / "h")):
        assert number in (errno.EACCES, errno.EPERM)
    os.chmod(d / "dir", 0o711)
    assert by(B, os.listdir, d / "dir") == errno.EACCES
    assert by(B, read, d / "dir" / "f") == 0
    os.chmod(d / "dir", 0o744)
    assert by(B, os.listdir, d / "dir") == 0
    assert by(B, read, d / "dir" / "f") == errno.EACCES
    os.chmod(d / "dir", 0o700)
    assert by(A, os.listdir, d / "dir") == 0


@pytest.mark.root
def test_sticky_directory(shared_dir):
    d = shared_dir
    os.chmod(d, 0o1777)
    in_child(lambda: write(d / "f", b"x", 0o666) and None, A)
    assert by(B, os.unlink, d / "f") == errno.EPERM
    assert by(B, os.rename, d / "f", d / "g") == errno.EPERM
    assert by(B, write, d / "mine", b"") == 0
    assert by(B, os.rename, d / "mine", d / "f") == errno.EPERM
    assert by(A, os.unlink, d / "f") == 0


@pytest.mark.root
def test_groups(shared_dir):
    d = shared_dir
    write(d / "f", b"x")
    os.chown(d / "f", A, 777)
    os.chmod(d / "f", 0o640)
    assert in_child(lambda: errno_of(read, d / "f"), B, 777) == 0
    assert in_child(lambda: errno_of(read, d / "f"), B, B, [777]) == 0
    assert in_child(lambda: errno_of(read, d / "f"), B, B) == errno.EACCES
    assert in_child(lambda: errno_of(os.chown, d / "f", -1, 777), A, A,
                    [777]) == 0
    assert by(A, os.chown, d / "f", -1, 778) == errno.EPERM


@pytest.mark.root
def test_setgid_bit_is_not_for_strangers(shared_dir):
    """chmod by somebody who is not in the group takes it."""
    d = shared_dir
    write(d / "f", b"x")
    os.chown(d / "f", A, 777)
    in_child(lambda: os.chmod(d / "f", 0o2755), A, A)
    assert stat.S_IMODE(os.stat(d / "f").st_mode) == 0o755


CAPS = struct.pack("<5I", 0x02000001, 1 << 7, 0, 0, 0)  # cap_setuid+ep


def touched_by_open(path):
    os.close(os.open(path, os.O_RDWR))


def touched_by_write(path):
    with opened(path, os.O_WRONLY) as fd:
        os.write(fd, b"other")


def touched_by_truncate(path):
    os.truncate(path, 1)


TOUCHES = (touched_by_open, touched_by_write, touched_by_truncate)


@pytest.mark.root
@pytest.mark.parametrize("touch", TOUCHES)
def test_set_id_bits_go_at_once(shared_dir, mode, touch):
    """With the writer's OPEN, also for a kernel that keeps attributes: the
    program he may have stored through a mapping must not run as its owner."""
    if mode == "plain" and touch is touched_by_open:
        pytest.skip("elsewhere they go with the first write")
    f = write(shared_dir / "f", b"theirs")
    os.chmod(f, 0o6777)
    assert stat.S_IMODE(os.stat(f).st_mode) == 0o6777
    assert by(B, touch, f) == 0
    assert stat.S_IMODE(os.stat(f).st_mode) == 0o777
    os.chmod(f, 0o6777)
    touch(f)
    assert stat.S_IMODE(os.stat(f).st_mode) == 0o6777, "root may"


@pytest.mark.root
@pytest.mark.parametrize("uid", (0, B))
@pytest.mark.parametrize("touch", TOUCHES)
def test_file_capabilities_go(shared_dir, mode, touch, uid):
    """Whoever changes it."""
    if mode == "plain" and touch is touched_by_open:
        pytest.skip("elsewhere they go with the first write")
    f = write(shared_dir / "f", b"theirs")
    os.chmod(f, 0o777)
    os.setxattr(f, "security.capability", CAPS)
    before = os.stat(f).st_ctime_ns
    assert by(uid, touch, f) == 0
    assert "security.capability" not in os.listxattr(f)
    assert os.stat(f).st_ctime_ns > before


@pytest.mark.root
@pytest.mark.modes("passthrough", "served")
def test_exec_of_an_overwritten_program(fresh):
    """It runs as who runs it, here also where it was written by stores."""
    m = fresh(suid=True)
    if m.plain:
        pytest.skip("elsewhere it does not")
    program = m.path / "id"
    os.chmod(m.path, 0o777)
    shutil.copy("/usr/bin/true", program)
    os.truncate(program, os.stat("/usr/bin/id").st_size)
    os.chmod(program, 0o4777)
    os.stat(program)

    def child():
        with open("/usr/bin/id", "rb") as f, \
                opened(program, os.O_RDWR) as fd:
            text = f.read()
            with mmap.mmap(fd, len(text)) as m:
                m[:] = text
        return subprocess.check_output([program, "-u"])

    assert int(in_child(child, B)) == B


@pytest.mark.root
def test_open_handles_keep_their_rights(shared_dir):
    d = shared_dir

    def child():
        with opened(d / "f", os.O_CREAT | os.O_RDWR, 0o600) as fd:
            os.fchmod(fd, 0)
            os.write(fd, b"still")
            os.ftruncate(fd, 3)
            os.fsync(fd)
            return os.pread(fd, 10, 0), errno_of(read, d / "f")

    assert in_child(child, A) == (b"sti", errno.EACCES)


@pytest.mark.root
def test_access_and_execute(shared_dir):
    d = shared_dir
    write(d / "script", b"#!/bin/sh\nexit 7\n")
    assert not os.access(d / "script", os.X_OK)
    os.chmod(d / "script", 0o755)
    assert os.access(d / "script", os.X_OK)
    assert subprocess.run([d / "script"], check=False).returncode == 7


def test_read_only_for_its_owner(d):
    """Root may write to it; nobody else, owner or not."""
    f = write(d / "f", b"x")
    os.chmod(f, 0o400)
    number = errno_of(write, f, b"y")
    assert number == (0 if os.geteuid() == 0 else errno.EACCES)
    os.chmod(d, 0o500)
    number = errno_of(write, d / "g", b"y")
    assert number == (0 if os.geteuid() == 0 else errno.EACCES)
    os.chmod(d, 0o700)


@pytest.mark.modes("user")
def test_others_cannot_see_a_users_mount(m):
    """Not even root, where allow_other was not asked for."""
    if as_root(os.geteuid) != 0:
        pytest.skip("only root can try")
    assert as_root(lambda: errno_of(os.listdir, m.path)) == errno.EACCES


def test_local_copies_are_private(m, d, mode):
    """Others on this machine read nothing past the mount."""
    if mode == "plain":
        pytest.skip("a plain directory has none")
    write(d / "f", b"x" * 100_000, 0o644)
    m.wait("nvme", d / "f")
    for top in (m.nvme, m.dram_dir):
        assert stat.S_IMODE(os.lstat(top).st_mode) & 0o077 == 0
        for folder, folders, files in os.walk(top):
            for name in folders + files:
                try:
                    bits = os.lstat(os.path.join(folder, name)).st_mode
                except FileNotFoundError:
                    continue  # it was not needed any more
                if stat.S_ISREG(bits):
                    assert bits & 0o077 == 0, f"{folder}/{name}: {bits:o}"


@pytest.mark.root
def test_control_is_for_owner_and_root(m, mode, d):
    if mode == "plain":
        pytest.skip("a plain directory has none")

    def ctl(*words):
        return subprocess.run([m.bin / "ckptctl", *words],
                              capture_output=True, text=True)

    def child():
        return [ctl("status", m.path, "--json").returncode,
                ctl("wait", d, "--level", "dram").returncode,
                ctl("evict", d).returncode, ctl("drain", d).returncode]

    assert in_child(child, B) == [0, 0, 1, 1]


@pytest.mark.root
def test_control_tells_what_may_be_listed(m, mode, d):
    """Inode numbers are easy to guess."""
    if mode == "plain":
        pytest.skip("a plain directory has none")
    for name, bits in (("private", 0o700), ("public", 0o755)):
        (d / name / "sub").mkdir(parents=True)
        write(d / name / "f", b"x" * 12345)
        os.chmod(d / name, bits)
    inos = {p: os.stat(p).st_ino for p in d.rglob("*")}

    def child():
        told = set()
        for folder in (m.path, d, d / "public", d / "public" / "sub"):
            fd = os.open(folder, os.O_RDONLY)
            assert control(fd, CONTROL_PATH_STATE)["err"] == 0
            for path, ino in inos.items():
                for op in (CONTROL_PATH_STATE, CONTROL_SEAL):
                    answer = control(fd, op, ino=ino)
                    if answer["err"] == 0:
                        told.add((folder, path))
                    else:
                        assert answer["err"] == -errno.ENOENT
            os.close(fd)
        return told

    public = d / "public"
    assert in_child(child, B) == {(public, public), (public, public / "f"),
                                  (public / "sub", public / "sub")}


@pytest.mark.root
def test_ctl_where_the_root_cannot_be_listed(m, mode, d):
    if mode == "plain":
        pytest.skip("a plain directory has none")

    def ctl(*words):
        return subprocess.run([m.bin / "ckptctl", *words],
                              capture_output=True, text=True)

    def child():
        write(d / "mine" / "f", b"x")
        return [ctl(*words).returncode for words in (
            ("status", d / "mine"), ("status", d / "mine" / "f", "--json"),
            ("wait", d / "mine" / "f"), ("tensors", d / "mine"),
            ("status", m.path), ("status", d))]

    for name in ("mine", "locked"):
        (d / name).mkdir()
    os.chown(d / "mine", B, B)
    os.chmod(d / "locked", 0o700)
    before = os.stat(m.path).st_mode & 0o7777
    os.chmod(m.path, 0o711)
    try:
        # No tensors are in it; the root is not his; one row is missing.
        assert in_child(child, B) == [0, 0, 0, 1, 1, 1]
        r = in_child(lambda: ctl("status", d), B)
        assert "locked" in r.stderr and "mine" in r.stdout
    finally:
        os.chmod(m.path, before)
