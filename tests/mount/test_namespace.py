# SPDX-License-Identifier: Apache-2.0
"""Names: making, finding and removing all kinds of things."""
import errno
import os
import socket
import stat

import pytest

from calls import describe, fails, opened, read, tick, write
from user import in_child


def test_create_exclusively(d):
    with opened(d / "f", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640):
        pass
    assert stat.S_IMODE(os.stat(d / "f").st_mode) == 0o640
    with fails(errno.EEXIST):
        os.open(d / "f", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    assert read(d / "f") == b""


def test_open_without_create(d):
    with fails(errno.ENOENT):
        os.open(d / "f", os.O_RDWR)
    with fails(errno.ENOENT):
        os.open(d / "no" / "f", os.O_RDWR | os.O_CREAT)


def test_a_file_is_no_directory(d):
    write(d / "f", b"x")
    with fails(errno.ENOTDIR):
        os.open(d / "f" / "g", os.O_RDWR | os.O_CREAT)
    with fails(errno.ENOTDIR):
        os.listdir(d / "f")
    with fails(errno.ENOTDIR):
        os.rmdir(d / "f")
    with fails(errno.ENOTDIR):
        os.open(d / "f", os.O_RDONLY | os.O_DIRECTORY)
    with fails(errno.ENOTDIR):
        os.stat(f"{d}/f/")


def test_a_directory_is_no_file(d):
    (d / "sub").mkdir()
    with fails(errno.EISDIR):
        os.open(d / "sub", os.O_RDWR)
    with fails(errno.EISDIR):
        os.open(d / "sub", os.O_WRONLY | os.O_CREAT)
    with fails(errno.EISDIR, errno.EPERM):
        os.unlink(d / "sub")
    with fails(errno.EISDIR):
        os.truncate(d / "sub", 0)


def test_mkdir_takes_a_name_once(d):
    (d / "sub").mkdir(0o700)
    assert stat.S_IMODE(os.stat(d / "sub").st_mode) == 0o700
    with fails(errno.EEXIST):
        os.mkdir(d / "sub")
    write(d / "f", b"")
    with fails(errno.EEXIST):
        os.mkdir(d / "f")
    os.symlink("nowhere", d / "link")
    with fails(errno.EEXIST):
        os.mkdir(d / "link")


def test_all_ranks_make_one_directory(d):
    """mkdir by everybody at once: one wins, for the others it is there."""
    workers = []
    for rank in range(8):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for step in range(50):
                    try:
                        os.mkdir(d / f"step-{step}")
                    except FileExistsError:
                        pass
                    assert stat.S_ISDIR(os.stat(d / f"step-{step}").st_mode)
                    write(d / f"step-{step}" / f"rank-{rank}", b"x")
                code = 0
            finally:
                os._exit(code)
        workers.append(pid)
    assert [os.waitpid(p, 0)[1] for p in workers] == [0] * 8
    assert len(os.listdir(d)) == 50
    for step in range(50):
        assert len(os.listdir(d / f"step-{step}")) == 8


def test_rmdir(d):
    (d / "a" / "b").mkdir(parents=True)
    with fails(errno.ENOTEMPTY, errno.EEXIST):
        os.rmdir(d / "a")
    os.rmdir(d / "a" / "b")
    os.rmdir(d / "a")
    with fails(errno.ENOENT):
        os.rmdir(d / "a")
    with fails(errno.EINVAL):
        os.rmdir(f"{d}/.")
    (d / "c").mkdir()
    with fails(errno.ENOTEMPTY, errno.EINVAL):
        os.rmdir(f"{d}/c/..")


def test_removed_directory_takes_no_more_names(d):
    (d / "a").mkdir()
    with opened(d / "a", os.O_RDONLY | os.O_DIRECTORY) as fd:
        os.rmdir(d / "a")
        assert os.fstat(fd).st_nlink in (0, 1)
        assert os.listdir(fd) == []
        with fails(errno.ENOENT):
            os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
        with fails(errno.ENOENT):
            os.mkdir("g", dir_fd=fd)


def test_unlink(d):
    write(d / "f", b"x")
    os.unlink(d / "f")
    for call in (os.unlink, os.stat, os.lstat):
        with fails(errno.ENOENT):
            call(d / "f")
    write(d / "f", b"again")
    assert read(d / "f") == b"again"


def test_hard_links(d):
    write(d / "f", b"one")
    os.link(d / "f", d / "g")
    (d / "sub").mkdir()
    os.link(d / "g", d / "sub" / "h")
    assert os.stat(d / "f").st_nlink == 3
    assert os.path.samefile(d / "f", d / "sub" / "h")
    write(d / "g", b"two")
    assert read(d / "sub" / "h") == b"two"
    os.unlink(d / "f")
    assert os.stat(d / "g").st_nlink == 2
    assert read(d / "g") == b"two"
    os.unlink(d / "g")
    os.unlink(d / "sub" / "h")
    assert os.listdir(d / "sub") == []


def test_link_errors(d):
    write(d / "f", b"")
    write(d / "g", b"")
    (d / "sub").mkdir()
    with fails(errno.EEXIST):
        os.link(d / "f", d / "g")
    with fails(errno.EEXIST):
        os.link(d / "f", d / "f")
    with fails(errno.EPERM):
        os.link(d / "sub", d / "sub2")
    with fails(errno.ENOENT):
        os.link(d / "nothing", d / "h")
    with fails(errno.EXDEV):
        os.link(d / "f", "/dev/shm/ckptfs-no-such-link")


def test_exclusive_create_by_link_and_unlink(d):
    """As HDF5 and GGUF writers lock: link() says who was first."""
    write(d / "mine", b"1")
    os.link(d / "mine", d / "lock")
    os.unlink(d / "mine")
    write(d / "mine", b"2")
    with fails(errno.EEXIST):
        os.link(d / "mine", d / "lock")
    assert read(d / "lock") == b"1"


def test_link_to_an_open_file(d):
    with opened(d / "f", os.O_RDWR | os.O_CREAT) as fd:
        os.write(fd, b"half")
        os.link(d / "f", d / "g")
        os.write(fd, b" and half")
        assert read(d / "g") == b"half and half"
    assert read(d / "g") == b"half and half"


def test_symlinks(d):
    write(d / "f", b"content")
    os.symlink("f", d / "relative")
    os.symlink(d / "f", d / "absolute")
    os.symlink("no/where", d / "dangling")
    assert os.readlink(d / "relative") == "f"
    assert read(d / "relative") == read(d / "absolute") == b"content"
    assert stat.S_ISLNK(os.lstat(d / "relative").st_mode)
    assert os.lstat(d / "dangling").st_size == len("no/where")
    with fails(errno.ENOENT):
        os.stat(d / "dangling")
    with fails(errno.EINVAL):
        os.readlink(d / "f")
    with fails(errno.EEXIST):
        os.symlink("x", d / "f")
    with fails(errno.ELOOP):
        os.open(d / "relative", os.O_RDONLY | os.O_NOFOLLOW)


def test_symlink_loop(d):
    os.symlink("b", d / "a")
    os.symlink("a", d / "b")
    with fails(errno.ELOOP):
        os.stat(d / "a")


def test_long_symlink(d):
    target = "x" * 200 + "/" + "y" * 3000
    os.symlink(target, d / "link")
    assert os.readlink(d / "link") == target


def test_last_symlink_is_replaced_by_rename(d):
    """Lightning's and others' "last": a new link renamed over the old."""
    for step in range(20):
        (d / f"step-{step}").mkdir()
        os.symlink(f"step-{step}", d / "last.tmp")
        os.rename(d / "last.tmp", d / "last")
        assert os.readlink(d / "last") == f"step-{step}"


def test_link_of_a_symlink(d):
    os.symlink("nowhere", d / "s")
    os.link(d / "s", d / "t", follow_symlinks=False)
    assert os.lstat(d / "s").st_nlink == 2
    os.unlink(d / "s")
    assert os.readlink(d / "t") == "nowhere"


def test_fifo(d):
    os.mkfifo(d / "p", 0o600)
    assert stat.S_ISFIFO(os.lstat(d / "p").st_mode)
    reader = os.open(d / "p", os.O_RDONLY | os.O_NONBLOCK)
    with opened(d / "p", os.O_WRONLY) as writer:
        os.write(writer, b"through")
        assert os.read(reader, 100) == b"through"
    os.close(reader)
    os.unlink(d / "p")


def test_socket(d):
    here = os.open(d, os.O_RDONLY)
    name = f"/proc/self/fd/{here}/s"  # a socket's path has 107 bytes at most
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(name)
        assert stat.S_ISSOCK(os.lstat(d / "s").st_mode)
        s.listen()
        with socket.socket(socket.AF_UNIX) as c:
            c.connect(name)
    os.close(here)
    os.unlink(d / "s")


def test_mknod_of_a_regular_file(d):
    os.mknod(d / "f", stat.S_IFREG | 0o604)
    s = os.stat(d / "f")
    assert s.st_mode == stat.S_IFREG | 0o604 and s.st_size == 0
    with fails(errno.EEXIST):
        os.mknod(d / "f", stat.S_IFREG | 0o600)
    write(d / "f", b"now")
    assert read(d / "f") == b"now"


@pytest.mark.root
def test_device_nodes(d):
    os.mknod(d / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(d / "disk", stat.S_IFBLK | 0o600, os.makedev(7, 200))
    assert describe(d / "null")["device"] == os.makedev(1, 3)
    assert describe(d / "disk")["device"] == os.makedev(7, 200)
    assert stat.S_ISBLK(os.stat(d / "disk").st_mode)


@pytest.mark.modes("user")
def test_device_nodes_are_not_for_everybody(d):
    with fails(errno.EPERM):
        os.mknod(d / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))


@pytest.mark.root
def test_setgid_directory(d):
    os.mkdir(d / "g")
    os.chown(d / "g", -1, 4321)
    os.chmod(d / "g", 0o2777)
    os.chmod(d, 0o777)

    def inside():
        os.umask(0)
        write(d / "g" / "f", b"")
        os.mkdir(d / "g" / "sub", 0o755)
        os.symlink("x", d / "g" / "link")
        return [os.lstat(d / "g" / n) for n in ("f", "sub", "link")]

    f, sub, link = in_child(inside, 1234)
    assert [s.st_gid for s in (f, sub, link)] == [4321] * 3
    assert [s.st_uid for s in (f, sub, link)] == [1234] * 3
    assert stat.S_IMODE(sub.st_mode) == 0o2755, "set-gid is inherited"
    assert stat.S_IMODE(f.st_mode) == 0o666


@pytest.mark.root
def test_owner_is_the_caller(d):
    os.chmod(d, 0o777)

    def inside():
        write(d / "f", b"")
        os.mkdir(d / "sub")
        os.mkfifo(d / "p")

    in_child(inside, 1234, 5678)
    for name in ("f", "sub", "p"):
        s = os.lstat(d / name)
        assert (s.st_uid, s.st_gid) == (1234, 5678), name


@pytest.mark.parametrize("mask", [0, 0o022, 0o077, 0o777])
def test_umask(d, mask):
    def inside():
        os.umask(mask)
        with opened(d / "f", os.O_CREAT | os.O_WRONLY, 0o777):
            pass
        os.mkdir(d / "sub", 0o777)
        os.mkfifo(d / "p", 0o777)
        os.mknod(d / "r", stat.S_IFREG | 0o777)

    in_child(inside)
    for name in ("f", "sub", "p", "r"):
        mode = stat.S_IMODE(os.lstat(d / name).st_mode)
        assert mode == 0o777 & ~mask, name


def test_cannot_write_to_a_file_made_read_only(d):
    """open(O_CREAT) with a mode that forbids writing: this one handle may."""
    with opened(d / "f", os.O_CREAT | os.O_WRONLY, 0o400) as fd:
        os.write(fd, b"once")
    assert read(d / "f") == b"once"
    assert stat.S_IMODE(os.stat(d / "f").st_mode) == 0o400


def test_a_name_comes_and_goes(d):
    """Nothing stale is seen, whatever the kernel keeps."""
    for i in range(200):
        assert not os.path.lexists(d / "x")
        if i % 3 == 0:
            write(d / "x", str(i).encode())
            assert read(d / "x") == str(i).encode()
            os.unlink(d / "x")
        elif i % 3 == 1:
            os.mkdir(d / "x")
            assert os.listdir(d / "x") == []
            os.rmdir(d / "x")
        else:
            os.symlink(str(i), d / "x")
            assert os.readlink(d / "x") == str(i)
            os.unlink(d / "x")


def test_dir_times_move_when_entries_do(d):
    steps = [lambda: write(d / "f", b""), lambda: os.mkdir(d / "sub"),
             lambda: os.symlink("x", d / "l"), lambda: os.mkfifo(d / "p"),
             lambda: os.link(d / "f", d / "g"),
             lambda: os.rename(d / "f", d / "h"),
             lambda: os.unlink(d / "h"), lambda: os.rmdir(d / "sub")]
    for step in steps:
        before = os.stat(d)
        tick()
        step()
        after = os.stat(d)
        assert after.st_mtime_ns > before.st_mtime_ns
        assert after.st_ctime_ns > before.st_ctime_ns


def test_o_tmpfile_works_or_is_refused(d):
    """Refused, programs fall back to a name; both are fine."""
    try:
        fd = os.open(d, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as e:
        assert e.errno in (errno.EOPNOTSUPP, errno.EISDIR)
        return
    os.write(fd, b"x")
    os.close(fd)
    assert os.listdir(d) == []
