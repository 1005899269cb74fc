# SPDX-License-Identifier: Apache-2.0
"""System calls that Python's os lacks, and small things tests share."""
import concurrent.futures
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import stat
import struct
import threading
import time

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate64.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong,
                              ctypes.c_longlong]
_libc.renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int,
                            ctypes.c_char_p, ctypes.c_uint]

AT_FDCWD = -100
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
RENAME_WHITEOUT = 4

KEEP_SIZE = 1
PUNCH_HOLE = 2
COLLAPSE_RANGE = 8
ZERO_RANGE = 16

F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38


_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int,
                       ctypes.c_int, ctypes.c_int, ctypes.c_longlong]
for _call in (_libc.munmap, _libc.msync):
    _call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def _check(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


@contextlib.contextmanager
def coming_and_going(folder, make, n=50):
    """Meanwhile make(path) makes files there, n at a time, which go again."""
    over = threading.Event()

    def work():
        while not over.is_set():
            for i in range(n):
                make(folder / f"passing-{i}")
            for i in range(n):
                os.unlink(folder / f"passing-{i}")

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(work)
        try:
            yield
        finally:
            over.set()
        job.result()


CONTROL_PATH_STATE, CONTROL_SEAL, CONTROL_REACHED = 2, 3, 4
CONTROL_WAIT = 0x100
_CONTROL = struct.Struct("=IIiI5Q8192s")
_CONTROL_NAMES = ("version", "op", "err", "len", "ino", "seq", "arg", "offset",
                  "total", "text")
_libc.ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p]


def control(fd, op, ino=0, seq=0, arg=0):
    """What ckptctl asks the daemon (fs/control.h): the answer, by name."""
    buf = ctypes.create_string_buffer(
        _CONTROL.pack(2, op, 0, 0, ino, seq, arg, 0, 0, b""), _CONTROL.size)
    _check(_libc.ioctl(fd, 3 << 30 | _CONTROL.size << 16 | ord("C") << 8 | 1,
                       buf))
    answer = dict(zip(_CONTROL_NAMES, _CONTROL.unpack(buf.raw)))
    answer["text"] = answer["text"][:answer["len"]]
    return answer


def rename2(old, new, flags=0):
    _check(_libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD,
                           os.fsencode(new), flags))


def fallocate(fd, mode, offset, length):
    _check(_libc.fallocate64(fd, mode, offset, length))


class Mapping:
    """A shared writable mapping that needs no descriptor: Python's own mmap
    keeps a duplicate, and so never outlives it."""

    def __init__(self, fd, size):
        self.size = size
        self.at = _libc.mmap(None, size, 3, 1, fd, 0)
        if self.at == ctypes.c_void_p(-1).value:
            _check(-1)
        self.bytes = memoryview((ctypes.c_char * size).from_address(
            self.at)).cast("B")

    def __getitem__(self, where):
        return bytes(self.bytes[where])

    def __setitem__(self, where, data):
        self.bytes[where] = data

    def flush(self):
        _check(_libc.msync(self.at, self.size, 4))

    def close(self):
        self.bytes = None
        _check(_libc.munmap(self.at, self.size))


def lock(fd, command, kind, start=0, length=0):
    """fcntl's byte-range locks in the kernel's struct, also OFD ones. With
    the GETLK commands: the kind of lock in the way."""
    flock = struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)
    return struct.unpack("hhqqi4x", fcntl.fcntl(fd, command, flock))[0]


@contextlib.contextmanager
def fails(*codes):
    """The block fails with one of these errno values."""
    wanted = " or ".join(errno.errorcode[c] for c in codes)
    try:
        yield
    except OSError as e:
        if e.errno not in codes:
            raise AssertionError(f"{wanted} was wanted") from e
    else:
        raise AssertionError(f"it worked; {wanted} was wanted")


def errno_of(function, *arguments, **more):
    """0, or the errno with which it fails."""
    try:
        function(*arguments, **more)
    except OSError as e:
        return e.errno
    return 0


def noise(n, seed=0):
    """n bytes that look random, the same ones for the same seed."""
    return hashlib.shake_128(repr(seed).encode()).digest(n)


def write(path, data, mode=0o666):
    """As `with open(path, "wb")` would; the path is returned."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        write_all(fd, data)
    finally:
        os.close(fd)
    return path


def write_all(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]


def read(path):
    with open(path, "rb", buffering=0) as f:
        return f.readall()


@contextlib.contextmanager
def opened(path, flags=os.O_RDWR, mode=0o666):
    fd = os.open(path, flags, mode)
    try:
        yield fd
    finally:
        close_dead(fd)


def close_dead(*fds):
    """Closes descriptors of a mount that may be dead: close(2) then tells."""
    for fd in fds:
        try:
            os.close(fd)
        except OSError as e:
            if e.errno != errno.ENOTCONN:
                raise


def digest(path):
    return hashlib.sha256(read(path)).hexdigest()


def xattrs(path):
    return {name: os.getxattr(path, name, follow_symlinks=False)
            for name in sorted(os.listxattr(path, follow_symlinks=False))}


def describe(path, times=True, owner=True):
    """All that must survive of one file, of whatever kind."""
    s = os.lstat(path)
    kind = stat.S_IFMT(s.st_mode)
    what = {"mode": oct(s.st_mode)}
    if times:
        what["mtime"] = s.st_mtime_ns
    if owner:
        what["owner"] = (s.st_uid, s.st_gid)
    if kind == stat.S_IFREG:
        what["size"] = s.st_size
        what["sha256"] = digest(path)
    if kind == stat.S_IFLNK:
        what["target"] = os.readlink(path)
    if kind in (stat.S_IFBLK, stat.S_IFCHR):
        what["device"] = s.st_rdev
    if kind in (stat.S_IFREG, stat.S_IFDIR):
        what["xattrs"] = xattrs(path)
    return what


def tree(top, **how):
    """Everything below top: {relative name: describe()}."""
    found = {}
    for folder, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(folder, name)
            found[os.path.relpath(path, top)] = describe(path, **how)
    return found


def difference(one, other):
    """What two tree()s differ in, to be read by people; empty if nothing."""
    lines = []
    for name in sorted(set(one) | set(other)):
        if one.get(name) != other.get(name):
            lines.append(f"{name}: {one.get(name)} / {other.get(name)}")
    return "\n".join(lines)


def tick():
    """Waits until the clock that stamps files has moved on: the coarse one,
    past the fine one, which stamps what was looked at."""
    start = time.time_ns()
    while time.clock_gettime_ns(5) <= start:  # CLOCK_REALTIME_COARSE
        time.sleep(0.001)


def blocks(fd):
    """The (start, end) ranges of an open file that are not holes."""
    ranges, at = [], 0
    while True:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as e:
            if e.errno == errno.ENXIO:
                return ranges
            raise
        at = os.lseek(fd, start, os.SEEK_HOLE)
        ranges.append((start, at))
