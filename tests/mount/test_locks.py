# SPDX-License-Identifier: Apache-2.0
"""flock, fcntl and OFD locks, between processes and within one."""
import errno
import fcntl
import os

from calls import (F_OFD_GETLK, F_OFD_SETLK, fails, lock, opened, write)
from user import in_child


def tries(path, take):
    """Whether a new process could take the lock."""
    def child():
        with opened(path) as fd:
            try:
                take(fd)
                return True
            except OSError as e:
                assert e.errno in (errno.EAGAIN, errno.EACCES)
                return False
    return in_child(child)


def exclusive(fd):
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def shared(fd):
    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_flock(d):
    f = write(d / "f", b"x")
    with opened(f) as fd:
        exclusive(fd)
        assert not tries(f, exclusive) and not tries(f, shared)
        fcntl.flock(fd, fcntl.LOCK_SH)
        assert tries(f, shared) and not tries(f, exclusive)
        fcntl.flock(fd, fcntl.LOCK_UN)
        assert tries(f, exclusive)
        exclusive(fd)
    assert tries(f, exclusive), "close gave it back"


def test_flock_within_a_process(d):
    f = write(d / "f", b"x")
    with opened(f) as one, opened(f) as two:
        exclusive(one)
        with fails(errno.EAGAIN):
            exclusive(two)


def test_flock_of_a_directory(d):
    with opened(d, os.O_RDONLY) as one, opened(d, os.O_RDONLY) as two:
        exclusive(one)
        with fails(errno.EAGAIN):
            exclusive(two)


def test_flock_is_waited_for(d):
    """The next one gets it when it is given back, or its holder dies."""
    f = write(d / "f", b"")
    holder = os.open(f, os.O_RDWR)
    exclusive(holder)
    down, up = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(holder)
            with opened(f) as fd:
                os.write(up, b"w")
                fcntl.flock(fd, fcntl.LOCK_EX)
                os.write(up, b"got it")
        finally:
            os._exit(0)
    assert os.read(down, 1) == b"w"
    assert not tries(f, exclusive)
    os.close(holder)
    assert os.read(down, 10) == b"got it"
    os.waitpid(pid, 0)
    os.close(up)
    os.close(down)


def test_byte_ranges(d):
    f = write(d / "f", bytes(100))
    with opened(f) as fd:
        lock(fd, fcntl.F_SETLK, fcntl.F_WRLCK, 10, 10)
        lock(fd, fcntl.F_SETLK, fcntl.F_RDLCK, 50, 10)

        def at(kind, start, length):
            return lambda fd: lock(fd, fcntl.F_SETLK, kind, start, length)

        assert tries(f, at(fcntl.F_WRLCK, 0, 10))
        assert not tries(f, at(fcntl.F_RDLCK, 19, 1))
        assert tries(f, at(fcntl.F_WRLCK, 20, 30))
        assert tries(f, at(fcntl.F_RDLCK, 50, 10))
        assert not tries(f, at(fcntl.F_WRLCK, 55, 1))

        def who():
            with opened(f) as mine:
                return lock(mine, fcntl.F_GETLK, fcntl.F_WRLCK, 0, 100)

        assert in_child(who) == fcntl.F_WRLCK
        lock(fd, fcntl.F_SETLK, fcntl.F_UNLCK)
        assert in_child(who) == fcntl.F_UNLCK


def test_posix_locks_go_with_any_close(d):
    f = write(d / "f", bytes(10))
    with opened(f) as fd:
        lock(fd, fcntl.F_SETLK, fcntl.F_WRLCK)
        os.close(os.open(f, os.O_RDONLY))
        assert tries(f, lambda fd: lock(fd, fcntl.F_SETLK, fcntl.F_WRLCK))


def test_ofd_locks(d):
    """As Orbax and sqlite use: of the open file, not of the process."""
    f = write(d / "f", bytes(100))
    with opened(f) as one, opened(f) as two:
        lock(one, F_OFD_SETLK, fcntl.F_WRLCK, 0, 50)
        with fails(errno.EAGAIN, errno.EACCES):
            lock(two, F_OFD_SETLK, fcntl.F_WRLCK, 25, 50)
        lock(two, F_OFD_SETLK, fcntl.F_WRLCK, 50, 50)
        assert lock(two, F_OFD_GETLK, fcntl.F_RDLCK, 0, 10) == fcntl.F_WRLCK
        os.close(os.open(f, os.O_RDONLY))
        assert not tries(f, lambda fd: lock(fd, F_OFD_SETLK,
                                            fcntl.F_WRLCK, 0, 1))
        lock(one, F_OFD_SETLK, fcntl.F_UNLCK, 0, 50)
        lock(two, F_OFD_SETLK, fcntl.F_WRLCK, 0, 50)


def test_locks_do_not_hold_up_a_seal(d, m):
    f = d / "f"
    with opened(f, os.O_CREAT | os.O_RDWR) as fd:
        exclusive(fd)
        lock(fd, F_OFD_SETLK, fcntl.F_WRLCK, 0, 10)
        os.write(fd, b"locked")
        os.fsync(fd)
    m.wait("nvme", f)


def test_lock_file_protocol(d):
    """Forty processes count in one file under flock: none is lost."""
    f = write(d / "counter", b"0")
    pids = []
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            try:
                for _ in range(5):
                    with opened(d / "lock", os.O_CREAT | os.O_RDWR) as guard:
                        fcntl.flock(guard, fcntl.LOCK_EX)
                        with open(f, "rb") as old:
                            n = int(old.read())
                        write(f, str(n + 1).encode())
            finally:
                os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    with open(f, "rb") as result:
        assert result.read() == b"40"
