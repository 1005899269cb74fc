# SPDX-License-Identifier: Apache-2.0
"""The process's engine, started by the first save, and the captures that
fence(), wait() and close() must know.

A capture is live until it is complete or its failure was told, then kept for
wait() if it is complete. What its user does with it (waits, cancels) is noted
in the Capture, and seen here by the next _prune().

Threads: everything here, from any thread. `_lock` is held while close() waits
for the engine, whose threads take no lock of Python's.
"""
from __future__ import annotations

import atexit
import errno
import multiprocessing.util
import os
import signal
import sys
import threading
import time
import weakref
from typing import Any, Literal

from . import _native
from ._capture import (LEVELS, CancelledError, Capture, CaptureError, Level,
                       Watch, level_of, make_error)

# Complete captures that wait() still covers.
_KEPT_MAX = 64

_lock = threading.RLock()
_engine: Any = None  # guarded by _lock
_live: list[Capture] = []  # not complete; guarded by _lock
_kept: list[Capture] = []  # complete, for wait(); guarded by _lock
_all: weakref.WeakSet[Capture] = weakref.WeakSet()  # guarded by _lock
_options: dict[str, Any] = {"at_exit": "drain", "staging": 0, "budget": 0,
                            "chunk": 0}  # guarded by _lock
_ending = False  # guarded by _lock
_finalizer: Any = None  # of this process; guarded by _lock


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

    Ends the engine, as close() does, and raises what that raises; ValueError.
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
    global _engine, _finalizer
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
        if _finalizer is None:  # the last one: others may still save
            _finalizer = multiprocessing.util.Finalize(
                None, _at_exit_of_child, exitpriority=-1000)
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


def _is_complete(capture: Capture) -> bool:
    return bool(_native.stats(capture._handle)[8])


def _prune() -> None:
    """Under _lock. What is complete needs no fence, but wait() covers it."""
    done = [c for c in _live if not c._told and _is_complete(c)]
    _live[:] = [c for c in _live if not c._told and c not in done]
    _kept[:] = [c for c in _kept + done
                if c._reached < LEVELS["remote"]][-_KEPT_MAX:]


def _wait_captured() -> list[tuple[Capture, CaptureError]]:
    """Until all that was submitted so far is captured, or has failed: the
    failures that were not told, which the caller must tell."""
    if not _live:
        return []
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
    return failures


def _tell_later(failures: list[tuple[Capture, CaptureError]]) -> None:
    """By the fences that follow."""
    with _lock:
        _prune()
        for capture, _ in failures:
            capture._told = False
            _live.append(capture)


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
    failures = _wait_captured()
    _tell_later(failures[1:])
    if failures:
        raise failures[0][1]


def wait(level: Level = "nvme", timeout: float | None = None) -> None:
    """Wait until everything that this process has captured has reached a level;
    see Capture.wait(). Raises the first failure.

    Of complete captures it asks for the last 64 only: on one mount, a level of
    a later one implies that of those before it. Where that is no ckptfs, or
    where there are several, call Capture.wait() for all that must last.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    number = level_of(level)
    with _lock:
        captures = _kept + _live
    for capture in captures:
        try:
            if not capture._told and capture._reached < number:
                capture._wait(number, deadline)
        except CancelledError:
            pass
    with _lock:
        _prune()


def close() -> None:
    """End the engine, as `configure(at_exit=...)` says: drain or abort. The
    next save starts a new one. Raises the first failure that was not told.

    Threads that wait for "nvme" or "remote" are told that it was closed. If
    it is interrupted (Ctrl-C), the engine stays, and close() may be called
    again; the end of the process does.
    """
    global _engine
    with _lock:
        if _engine is None:
            return
        failures = _end_all()
        for capture in list(_all):
            capture._settle()
        r = _native.close(_engine)
        _engine = None
        _live.clear()
        _kept.clear()
        _all.clear()
    if failures:
        raise failures[0]
    if r not in (0, -errno.ECANCELED):  # of a capture that nobody holds
        raise CaptureError(-r, f"a capture has failed: {os.strerror(-r)}")


def _end_all() -> list[CaptureError]:
    """Under _lock. The failures that were not told."""
    failures = []
    for capture in _live:
        told = capture._told
        if _options["at_exit"] == "abort":
            _native.cancel(capture._handle)
        try:
            capture._wait(LEVELS["dram"], None)
        except CancelledError:
            pass
        except CaptureError as e:
            if not told:
                failures.append(e)
    return failures


def _close_at_exit() -> None:
    """It must be closed: at the exit of C no thread of the engine could take
    the GIL any more."""
    try:
        close()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("ckptfs: interrupted: what is not complete is cancelled",
              file=sys.stderr)
        with _lock:
            _options["at_exit"] = "abort"
        close()


def _at_exit() -> None:
    """No save may start an engine behind this one's close()."""
    global _ending
    with _lock:
        _ending = True
        try:
            _close_at_exit()
        except CaptureError as e:
            print(f"ckptfs: {e}", file=sys.stderr)


def _in_child() -> None:
    """Of fork(): the parent's captures are the parent's."""
    global _engine, _finalizer, _lock
    _lock = threading.RLock()
    _engine = _finalizer = None
    _live.clear()
    _kept.clear()
    _all.clear()


def _at_exit_of_child() -> None:
    """multiprocessing's children end by os._exit(), past atexit, and join their
    threads only when this has run: those may still wait for captures."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    _at_exit()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_child)


def fence_before_step(optimizer: Any) -> Any:
    """Call fence() before every step of an optimizer: one of torch, or of
    whoever else has register_step_pre_hook().

    The steps of torch's own wait in any case; this makes them raise what has
    failed, too. Returns the handle of the hook: handle.remove() ends it.
    """
    def hook(*_: Any) -> None:
        fence()

    return optimizer.register_step_pre_hook(hook)


def before_any_step(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
                    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """torch's hook before the step of any optimizer of torch: the update waits
    for what is not captured. Counters would not do: fused updates count no
    version. What has failed is for the next fence.

    A closure (`step(closure)`) comes before the update: it is not held up.
    """
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not callable(closure):
        _tell_later(_wait_captured())
        return None

    def closure_then_wait() -> Any:
        loss = closure()
        _tell_later(_wait_captured())
        return loss

    if "closure" in kwargs:
        return args, {**kwargs, "closure": closure_then_wait}
    return (args[0], closure_then_wait, *args[2:]), kwargs
