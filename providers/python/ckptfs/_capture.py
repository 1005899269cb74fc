# SPDX-License-Identifier: Apache-2.0
"""Captures as Python sees them: one engine a process, started by the first save.

Order of things in a capture: submitted, captured (all bytes have been read and
the check below has passed), complete (the file has its name), then durable.

What the engine reads is borrowed: a capture keeps the tensors alive until it is
captured, and notes their version counters. The engine asks `Capture._check`
when the last byte has been read and before fence() returns; if a counter has
moved by then, somebody changed a tensor while it was read, and the file never
gets its name.

Threads: everything here, from any thread. `_check` runs on a thread of the
engine, with the GIL, and takes no lock: a caller may hold `_lock` and wait for
the engine.
"""
from __future__ import annotations

import atexit
import errno
import os
import sys
import threading
import time
import weakref
from typing import Any, Literal, NamedTuple, Protocol

from . import _native

Level = Literal["captured", "dram", "nvme", "remote"]
LEVELS: dict[str, int] = {"captured": 0, "dram": 1, "nvme": 2, "remote": 3}

# How long one call of libckpt waits, so that Ctrl-C is seen. Milliseconds.
_SLICE_MS = 100
# Complete captures that wait() still covers. Each holds a descriptor.
_KEPT_MAX = 64


class CaptureError(OSError):
    """A capture failed; its file does not appear.

    `errno`, and `filename` (the path that was asked for). str() has it in
    words, with what to do about it.
    """

    def __str__(self) -> str:
        return str(self.strerror)


class ChangedError(CaptureError):
    """State was changed before it was captured (errno ESTALE).

    The update did not wait in fence(): see fence_before_step().
    """


class CancelledError(CaptureError):
    """The capture was cancelled (errno ECANCELED)."""


class Stats(NamedTuple):
    """How far a capture is. Bytes; seconds of time.monotonic(), None: not yet."""

    device_bytes: int  # captured so far, from devices
    host_bytes: int  # from host memory
    object_bytes: int  # serialised
    trailer_bytes: int  # headers with checksums
    file_bytes: int  # length of the file; 0: not known yet
    submitted: float | None
    first_filled: float | None  # the first chunk was in the file
    captured: float | None
    complete: float | None
    staged_bytes_max: int  # most of the staging pool in use at once
    on_ckptfs: bool  # the file lies on a ckptfs mount
    mapped: bool  # devices copied straight into the file


class Watch(Protocol):
    """What a capture borrows: it keeps that alive, and knows if it changed."""

    def changed(self) -> str | None:
        """What was changed, in words; None: nothing."""


_lock = threading.RLock()
_engine: Any = None  # guarded by _lock
_live: list[Capture] = []  # not complete; guarded by _lock
_kept: list[Capture] = []  # complete, for wait(); guarded by _lock
_all: weakref.WeakSet[Capture] = weakref.WeakSet()  # guarded by _lock
_options: dict[str, Any] = {"at_exit": "drain", "staging": 0, "budget": 0,
                            "chunk": 0}  # guarded by _lock
_ending = False


def _seconds(ns: int) -> float | None:
    return ns / 1e9 if ns else None


def make_error(number: int, path: str, text: str = "") -> CaptureError:
    """The exception for -errno."""
    kind = {-errno.ESTALE: ChangedError,
            -errno.ECANCELED: CancelledError}.get(number, CaptureError)
    if not text:
        text = f"cannot capture '{path}': {os.strerror(-number)}"
    return kind(-number, text, path)


class Capture:
    """One file that is being captured; save_async() makes them.

    Threads: any. To drop the object is fine: the capture goes on, and fence()
    tells if it failed.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._pid = os.getpid()
        self._handle: Any = None
        self._watch: Watch | None = None
        self._what: str | None = None  # was changed
        self._cause: BaseException | None = None  # raised by a pickler
        self._told = False
        self._last: tuple[Stats, CaptureError | None] | None = None

    @property
    def path(self) -> str:
        """Where the file appears; absolute."""
        return self._path

    def __repr__(self) -> str:
        return f"<ckptfs.Capture {self._path!r}>"

    # ---- for the engine ----

    def _check(self) -> int:
        watch = self._watch
        self._what = watch.changed() if watch else None
        self._watch = None  # nothing of it is read any more
        return -errno.ESTALE if self._what else 0

    # ---- the file ----

    def _mine(self) -> Any:
        if self._pid != os.getpid():
            raise make_error(
                -errno.ECHILD, self._path,
                f"the capture of '{self._path}' belongs to process "
                f"{self._pid}, which forked this one: wait for it there")
        return self._handle

    def _make_error(self, number: int) -> CaptureError:
        text = _native.error(self._handle)
        if self._what:
            text = (f"cannot complete '{self._path}': {self._what} before it "
                    "was captured: call ckptfs.fence() before the update "
                    "(ckptfs.fence_before_step(optimizer) does)")
        error = make_error(number, self._path, text)
        error.__cause__ = self._cause
        return error

    def _wait(self, level: int, deadline: float | None) -> None:
        """Raises what ckpt_wait() says; TimeoutError."""
        if self._last:
            return self._wait_settled(level)
        while True:
            ms = _SLICE_MS
            if deadline is not None:
                left = int((deadline - time.monotonic()) * 1000) + 1
                ms = max(0, min(ms, left))
            r = _native.wait(self._mine(), level, ms)
            if r == 0:
                return
            if r != -errno.ETIMEDOUT:
                raise self._failed(r)
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(errno.ETIMEDOUT,
                                   "the capture is not that far yet",
                                   self._path)

    def _wait_settled(self, level: int) -> None:
        if self._last and self._last[1]:
            self._told = True
            raise self._last[1]
        if level > LEVELS["dram"]:
            raise make_error(-errno.EINVAL, self._path,
                             f"cannot wait for '{self._path}': ckptfs was "
                             "closed")

    def _failed(self, number: int) -> CaptureError:
        """It, or what is behind it."""
        if not _native.error(self._handle):
            why = os.strerror(-number)
            if number == -errno.EOPNOTSUPP:
                why = ("it is on no ckptfs mount that has a remote: mount with "
                       "remote=, or wait for 'nvme'")
            return make_error(number, self._path,
                              f"cannot wait for '{self._path}': {why}")
        if number == -errno.EFAULT and self._watch and not self._what:
            self._what = self._watch.changed()  # freed under the engine
        # What it borrows may still be read until it has ended.
        _native.cancel(self._handle)
        self._watch = None
        self._told = True
        return self._make_error(number)

    def wait(self, level: Level = "nvme", timeout: float | None = None) -> None:
        """Wait until the file has reached a level.

        level: "captured" (the state may change again), "dram" (the file is
        there under its name), "nvme" (it survives power loss of this host;
        without ckptfs: an fsync of file and directory) or "remote" (it
        survives loss of this host).
        timeout: seconds; None: as long as it takes.

        Raises CaptureError, TimeoutError; EOPNOTSUPP for "remote" where there
        is none.
        """
        number = _level(level)
        deadline = None if timeout is None else time.monotonic() + timeout
        self._mine()
        self._wait(number, deadline)
        if number >= LEVELS["nvme"]:
            with _lock:
                _forget([self])

    @property
    def done(self) -> bool:
        """True: the file is there, or never will be (see `error`)."""
        return self.stats.complete is not None or self.error is not None

    @property
    def error(self) -> CaptureError | None:
        """What went wrong, or None. fence() still tells it."""
        self._mine()
        if self._last:
            return self._last[1]
        if not _native.error(self._handle):
            return None
        number = _native.wait(self._handle, LEVELS["captured"], 0)
        return self._make_error(number)

    @property
    def stats(self) -> Stats:
        """How far it is, as of now."""
        self._mine()
        if self._last:
            return self._last[0]
        s = _native.stats(self._handle)
        at = [_seconds(ns) for ns in s[5:9]]
        return Stats(s[0], s[1], s[2], s[3], s[4], at[0], at[1], at[2], at[3],
                     s[9], bool(s[10]), bool(s[11]))

    def cancel(self) -> None:
        """Give it up, if it is not complete: the file does not appear, and
        the state may change at once. What is complete stays."""
        self._mine()
        if self._last:
            return
        _native.cancel(self._handle)
        self._watch = None
        self._told = True
        with _lock:
            if self in _live and not self.stats.complete:
                _live.remove(self)

    def _settle(self) -> None:
        """Its engine ends: keep what was known in the end."""
        self._last = (self.stats, self.error)
        self._watch = None
        _native.free(self._handle)


def _level(name: str) -> int:
    try:
        return LEVELS[name]
    except KeyError:
        raise ValueError(f"{name!r} is no level: one of "
                         f"{', '.join(LEVELS)} is") from None


# ---- the engine ------------------------------------------------------------

def configure(*, at_exit: Literal["drain", "abort"] | None = None,
              staging: int | None = None, budget: int | None = None,
              chunk: int | None = None) -> None:
    """Set options; those left out stay as they are.

    at_exit: what the end of the process (and close()) does with captures that
        are not complete: "drain" (the default) ends them, "abort" cancels.
    staging: bytes of this process's staging pool, used where a file cannot be
        mapped; 0: 256 MiB.
    budget: bytes that all processes of this user on this node stage together;
        0: an eighth of the RAM.
    chunk: bytes captured at a time, a multiple of 4096, at most 64 MiB;
        0: 8 MiB.

    Waits for what is being captured, as close() does. Raises ValueError.
    A capture that fails at the end of the process is told on stderr, but does
    not change the exit status: call close() before, which raises.
    """
    if at_exit not in (None, "drain", "abort"):
        raise ValueError(f"at_exit={at_exit!r}: 'drain' or 'abort' is wanted")
    given = {"staging": staging, "budget": budget, "chunk": chunk}
    for name, value in given.items():
        if value is not None and (not isinstance(value, int) or value < 0):
            raise ValueError(f"{name}={value!r}: a number of bytes is wanted")
    if chunk and (chunk % 4096 or chunk > 64 << 20):
        raise ValueError(f"chunk={chunk}: a multiple of 4096 up to 64 MiB is "
                         "wanted")
    _check_sizes(chunk, staging)
    with _lock:
        close()
        if at_exit is not None:
            _options["at_exit"] = at_exit
        _options.update({k: v for k, v in given.items() if v is not None})


def _check_sizes(chunk: int | None, staging: int | None) -> None:
    """A buffer of the pool is a chunk."""
    one = (_options["chunk"] if chunk is None else chunk) or 8 << 20
    pool = (_options["staging"] if staging is None else staging) or 256 << 20
    if pool < one:
        raise ValueError(f"staging={pool}: not less than a chunk ({one} bytes) "
                         "is wanted")


def _open_engine() -> Any:
    """Under _lock."""
    global _engine
    if _ending:
        raise RuntimeError("the interpreter is ending: nothing can be captured")
    if _engine is None:
        engine = _native.open(_options["chunk"], _options["staging"],
                              _options["budget"],
                              _options["at_exit"] == "abort")
        if isinstance(engine, int):
            raise OSError(-engine, f"cannot start to capture: "
                          f"{os.strerror(-engine)} (see ckptfs.configure)")
        _engine = engine
    return _engine


def start(capture: Capture, part: tuple[Any, ...], watch: Watch | None) -> None:
    """Submit part as the file of a capture."""
    path = capture.path
    with _lock:
        engine = _open_engine()
        handle = _native.begin(engine, os.fsencode(path),
                               ("group", 1, [("check", capture._check), part]))
        if isinstance(handle, int):
            raise make_error(handle, path)
        capture._handle = handle
        capture._watch = watch
        _prune()
        r = _native.submit(handle)
        if r:
            raise make_error(r, path)
        _live.append(capture)
        _all.add(capture)


def _forget(captures: list[Capture]) -> None:
    """Under _lock. wait() need not ask for these again."""
    _kept[:] = [c for c in _kept if c not in captures]
    _live[:] = [c for c in _live if c not in captures]


def _is_complete(capture: Capture) -> bool:
    return bool(_native.stats(capture._handle)[8])


def _prune() -> None:
    """Under _lock. What is complete needs no fence, but wait() covers it."""
    for capture in [c for c in _live if _is_complete(c)]:
        _live.remove(capture)
        _kept.append(capture)
    for capture in _kept[:max(0, len(_kept) - _KEPT_MAX)]:
        if _native.wait(capture._handle, LEVELS["nvme"], 0) == 0:
            _kept.remove(capture)


def fence() -> None:
    """Before the update: waits until all captures submitted so far are
    captured, so that the state may change.

    Raises CaptureError if one has failed since the last fence: that checkpoint
    will not appear, but the state may change. Each failure is told by one
    fence, unless wait() told it before. With nothing to wait for it costs
    less than a microsecond.
    """
    if not _live:
        return
    with _lock:
        captures = list(_live)
    failures = []
    for capture in captures:
        told = capture._told
        try:
            capture._wait(LEVELS["captured"], None)
        except CancelledError:
            pass  # who cancelled it knows
        except CaptureError as e:
            if not told:
                failures.append((capture, e))
    with _lock:
        _prune()
        _live[:] = [c for c in _live if not c._told]
        for capture, _ in failures[1:]:  # for the fences that follow
            capture._told = False
            _live.append(capture)
    if failures:
        raise failures[0][1]


def wait(level: Level = "nvme", timeout: float | None = None) -> None:
    """Wait until everything that this process has captured has reached a level;
    see Capture.wait(). Raises the first failure. (Of captures older than the
    last 64 only failures are known; they are on nvme.)"""
    deadline = None if timeout is None else time.monotonic() + timeout
    number = _level(level)
    with _lock:
        captures = _kept + _live
    for capture in captures:
        try:
            if not capture._told:
                capture._wait(number, deadline)
        except CancelledError:
            pass
    with _lock:
        _prune()
        if number >= LEVELS["remote"]:
            _forget(captures)


def close() -> None:
    """End the engine, as `configure(at_exit=...)` says: drain or abort. The
    next save starts a new one. Raises the first failure that was not told."""
    global _engine
    with _lock:
        engine, _engine = _engine, None
        if engine is None:
            return
        failures = _end_all()
        for capture in list(_all):
            capture._settle()
        _live.clear()
        _kept.clear()
        _all.clear()
        _native.close(engine)
    if failures:
        raise failures[0]


def _end_all() -> list[CaptureError]:
    """Under _lock. The failures that were not told."""
    failures = []
    for capture in _live:
        told = capture._told
        if _options["at_exit"] == "abort":
            _native.cancel(capture._handle)
            continue
        try:
            capture._wait(LEVELS["dram"], None)
        except CaptureError as e:
            if not told:
                failures.append(e)
    return failures


def _at_exit() -> None:
    global _ending
    try:
        close()
    except CaptureError as e:
        print(f"ckptfs: {e}", file=sys.stderr)
    _ending = True


def _in_child() -> None:
    """Of fork(): the parent's captures are the parent's."""
    global _engine, _lock
    _lock = threading.RLock()
    _engine = None
    _live.clear()
    _kept.clear()
    _all.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_child)


# ---- around it -------------------------------------------------------------

class SlowDevice:
    """An imitated device, for tests and benchmarks without a GPU: what is
    saved from it is copied by a thread of its own, at bytes_per_s.

    Pass it to save_async(device=...), or use it as a context: within it every
    tensor (of the CPU) is captured as if it lay on that device. It lives as
    long as the process.
    """

    current: SlowDevice | None = None

    def __init__(self, bytes_per_s: float) -> None:
        handle = _native.device(int(bytes_per_s))
        if isinstance(handle, int):
            raise OSError(-handle, os.strerror(-handle))
        self.handle = handle
        self._before: list[SlowDevice | None] = []

    def __enter__(self) -> SlowDevice:
        self._before.append(SlowDevice.current)
        SlowDevice.current = self
        return self

    def __exit__(self, *_: object) -> None:
        SlowDevice.current = self._before.pop()


def fence_before_step(optimizer: Any) -> Any:
    """Call fence() before every step of a torch optimizer.

    Returns the handle of the hook: handle.remove() ends it.
    """
    def hook(*_: Any) -> None:
        fence()

    return optimizer.register_step_pre_hook(hook)
