# SPDX-License-Identifier: Apache-2.0
"""A capture as its user holds it: one file, how far it is, what went wrong.

Order of things in a capture: submitted, captured (all bytes have been read and
the check below has passed), complete (the file has its name), then durable.

What the engine reads is borrowed: a capture keeps the tensors alive until it is
captured, and notes their version counters. The engine asks `Capture._check`
when the last byte has been read and before fence() returns; if a counter has
moved by then, somebody changed a tensor while it was read, and the file never
gets its name.

Threads: everything here, from any thread. `_check` runs on a thread of the
engine, with the GIL, and takes no lock: a caller may hold one and wait for the
engine. close() may end the engine at any moment, also while we wait in
_native: what was known in the end is in `_last` before _native says Closed.
"""
from __future__ import annotations

import errno
import os
import time
from typing import Any, Literal, NamedTuple, Protocol

from . import _native

Level = Literal["captured", "dram", "nvme", "remote"]
LEVELS: dict[str, int] = {"captured": 0, "dram": 1, "nvme": 2, "remote": 3}

# How long one call of libckpt waits, so that Ctrl-C is seen. Milliseconds.
_SLICE_MS = 100


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


def _seconds(ns: int) -> float | None:
    return ns / 1e9 if ns else None


def make_error(number: int, path: str, text: str = "",
               kind: type[CaptureError] = CaptureError) -> CaptureError:
    """The exception for -errno."""
    if not text:
        text = f"cannot capture '{path}': {os.strerror(-number)}"
    return kind(-number, text, path)


# Of a capture that has failed. Waiting may say ESTALE for other reasons: the
# mount has lost a file that was complete.
_KINDS = {-errno.ESTALE: ChangedError, -errno.ECANCELED: CancelledError}


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
        # To be told nowhere else: by an exception it was, or it is cancelled.
        self._told = False
        self._reached = -1  # the highest level that was waited for
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
        error = make_error(number, self._path, text,
                           _KINDS.get(number, CaptureError))
        error.__cause__ = self._cause
        return error

    def _wait(self, level: int, deadline: float | None) -> None:
        """Raises what ckpt_wait() says; TimeoutError."""
        try:
            self._wait_open(level, deadline)
            self._reached = max(self._reached, level)
            return
        except _native.Closed:
            pass  # not the context of what is raised now
        self._wait_closed(level)

    def _wait_open(self, level: int, deadline: float | None) -> None:
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

    def _closed(self) -> tuple[Stats, CaptureError | None]:
        assert self._last
        return self._last

    def _wait_closed(self, level: int) -> None:
        error = self._closed()[1]
        if error:
            self._told = True
            raise error
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
        is none; EINVAL if ckptfs.close() or configure() has ended the engine
        before "nvme" or "remote" was reached, also while this waits.
        """
        number = level_of(level)
        deadline = None if timeout is None else time.monotonic() + timeout
        self._mine()
        self._wait(number, deadline)

    @property
    def done(self) -> bool:
        """True: the file is there, or never will be (see `error`)."""
        return self.stats.complete is not None or self.error is not None

    @property
    def error(self) -> CaptureError | None:
        """What went wrong, or None. fence() still tells it."""
        self._mine()
        try:
            if not _native.error(self._handle):
                return None
            number = _native.wait(self._handle, LEVELS["captured"], 0)
            return self._make_error(number)
        except _native.Closed:
            return self._closed()[1]

    @property
    def stats(self) -> Stats:
        """How far it is, as of now."""
        self._mine()
        try:
            s = _native.stats(self._handle)
        except _native.Closed:
            return self._closed()[0]
        at = [_seconds(ns) for ns in s[5:9]]
        return Stats(s[0], s[1], s[2], s[3], s[4], at[0], at[1], at[2], at[3],
                     s[9], bool(s[10]), bool(s[11]))

    def cancel(self) -> None:
        """Give it up, if it is not complete: the file does not appear, and
        the state may change at once. What is complete stays."""
        self._mine()
        try:
            _native.cancel(self._handle)
        except _native.Closed:
            return
        self._watch = None
        self._told = self.error is not None

    def _settle(self) -> None:
        """Its engine is about to be closed: keep what is known in the end."""
        self._last = (self.stats, self.error)
        self._watch = None


def level_of(name: str) -> int:
    try:
        return LEVELS[name]
    except KeyError:
        raise ValueError(f"{name!r} is no level: one of "
                         f"{', '.join(LEVELS)} is") from None
