# SPDX-License-Identifier: Apache-2.0
"""libckpt by ctypes: for tests of the mount that need its ioctls and the
imitated device, and nothing of the Python package.

    with Engine() as e, Device(2e9) as d:
        cap = e.begin(m.path / "f")
        cap.add(d.provider(buf))
        cap.submit()
        e.fence()
        cap.wait("nvme")

Errors are OSError with what ckpt_error() says. Threads: any.
"""
import ctypes
import mmap
import os
import pathlib
import time

LEVELS = {"captured": 0, "dram": 1, "nvme": 2, "remote": 3}
P = ctypes.c_void_p


class Stats(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint64 * 4), ("file_len", ctypes.c_uint64),
                ("submitted_ns", ctypes.c_int64),
                ("first_filled_ns", ctypes.c_int64),
                ("captured_ns", ctypes.c_int64),
                ("complete_ns", ctypes.c_int64),
                ("staged_max", ctypes.c_uint64),
                ("on_ckptfs", ctypes.c_int), ("mapped", ctypes.c_int)]


class Options(ctypes.Structure):
    _fields_ = [("options_len", ctypes.c_size_t),
                ("chunk_len", ctypes.c_size_t),
                ("staging_len", ctypes.c_size_t),
                ("budget_len", ctypes.c_uint64), ("at_exit", ctypes.c_int)]


def _load():
    build = os.environ.get("CKPTFS_BUILD")
    if not build:
        build = pathlib.Path(os.environ["CKPTFS_BIN"]).parent
    lib = ctypes.CDLL(str(pathlib.Path(build) / "libckpt.so"))
    size, i = ctypes.c_size_t, ctypes.c_int
    for name, result, *args in [
            ("ckpt_open", i, P, P), ("ckpt_close", i, P),
            ("ckpt_begin", i, P, ctypes.c_char_p, P), ("ckpt_add", i, P, P),
            ("ckpt_submit", i, P), ("ckpt_fence", i, P),
            ("ckpt_wait", i, P, i, i), ("ckpt_cancel", None, P),
            ("ckpt_error", ctypes.c_char_p, P),
            ("ckpt_get_stats", None, P, P), ("ckpt_capture_free", None, P),
            ("ckpt_memory", P, P, size),
            ("ckpt_memory_copied", P, P, size),
            ("ckpt_object", P, P, P, P),
            ("ckpt_slow_device_new", i, ctypes.c_uint64, P),
            ("ckpt_slow_device_free", None, P),
            ("ckpt_slow", P, P, P, size)]:
        f = getattr(lib, name)
        f.restype, f.argtypes = result, args
    return lib


lib = _load()


def memory(data):
    """Touched anonymous memory that holds data (bytes)."""
    m = mmap.mmap(-1, max(len(data), 1))
    m[:len(data)] = data
    return m


def address(buf):
    return ctypes.addressof(ctypes.c_char.from_buffer(buf))


SERIALISE = ctypes.CFUNCTYPE(ctypes.c_int, P, ctypes.POINTER(P),
                             ctypes.POINTER(ctypes.c_size_t))


class Capture:
    def __init__(self, engine, path):
        self.p = P()
        self.kept = []
        check(lib.ckpt_begin(engine.p, os.fsencode(path), ctypes.byref(self.p)))

    def add(self, provider):
        check(lib.ckpt_add(self.p, provider))

    def add_memory(self, buf, length=None):
        self.kept.append(buf)
        self.add(lib.ckpt_memory(address(buf),
                                 len(buf) if length is None else length))

    def add_object(self, data, pause=0):
        """bytes, whose length the engine does not know before; it takes
        `pause` seconds to make them."""
        buf = memory(data)

        @SERIALISE
        def serialise(_, out, length):
            time.sleep(pause)
            out[0] = address(buf)
            length[0] = len(data)
            return 0

        self.kept += [buf, serialise]
        self.add(lib.ckpt_object(serialise, None, None))

    def submit(self):
        check(lib.ckpt_submit(self.p))

    def wait(self, level, timeout=60):
        check(lib.ckpt_wait(self.p, LEVELS[level], int(timeout * 1000)),
              self.error())

    def cancel(self):
        lib.ckpt_cancel(self.p)

    def error(self):
        return lib.ckpt_error(self.p).decode()

    def stats(self):
        s = Stats()
        lib.ckpt_get_stats(self.p, ctypes.byref(s))
        return s

    def free(self):
        lib.ckpt_capture_free(self.p)


def check(r, text=""):
    if r < 0:
        raise OSError(-r, text or os.strerror(-r))


class Engine:
    def __init__(self, chunk=0, staging=0, budget=0, abort=False):
        self.p = P()
        o = Options(ctypes.sizeof(Options), chunk, staging, budget, int(abort))
        check(lib.ckpt_open(ctypes.byref(o), ctypes.byref(self.p)))

    def begin(self, path):
        return Capture(self, path)

    def fence(self):
        check(lib.ckpt_fence(self.p))

    def close(self):
        p, self.p = self.p, None
        check(lib.ckpt_close(p))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.close()
        elif self.p:
            lib.ckpt_close(self.p)


class Device:
    """bytes_per_s; keeps what its providers borrow until it is freed."""

    def __init__(self, bytes_per_s):
        self.p = P()
        self.kept = []
        check(lib.ckpt_slow_device_new(int(bytes_per_s), ctypes.byref(self.p)))

    def provider(self, buf, length=None):
        self.kept.append(buf)
        return lib.ckpt_slow(self.p, address(buf),
                             len(buf) if length is None else length)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        lib.ckpt_slow_device_free(self.p)
