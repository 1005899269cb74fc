# SPDX-License-Identifier: Apache-2.0
"""Being somebody else for a while.

Linux gives credentials to threads; only the C library makes them the whole
process's. So a test of root's becomes an ordinary user's in a thread that calls
the kernel directly: FUSE, files and child processes see that user, the rest of
pytest stays root.
"""
import concurrent.futures
import ctypes
import os
import pickle
import platform
import traceback

UID = GID = 65534  # in every passwd; fusermount3 wants a name
OTHER = 61234      # somebody without any rights

_NUMBERS = {"x86_64": (116, 119, 117), "aarch64": (159, 149, 147)}
_libc = ctypes.CDLL(None, use_errno=True)
PR_SET_DUMPABLE = 4


def _syscall(*arguments):
    if _libc.syscall(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _become():
    setgroups, setresgid, setresuid = _NUMBERS[platform.machine()]
    _syscall(setgroups, 0, None)
    _syscall(setresgid, GID, GID, GID)
    _syscall(setresuid, UID, UID, UID)
    _libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # /proc/self stays readable


def in_user_thread(function):
    """function() as the ordinary user; its result or exception."""
    with concurrent.futures.ThreadPoolExecutor(1, initializer=_become) as pool:
        return pool.submit(function).result()


_root = None


def keep_root():
    """Keeps a thread of root's, for as_root(). Called once, as root."""
    global _root
    if os.geteuid() == 0 and _root is None:
        _root = concurrent.futures.ThreadPoolExecutor(1)
        _root.submit(int).result()


def as_root(function):
    """What a test of an ordinary user's needs root for, if root began it."""
    if _root is None or os.geteuid() == 0:
        return function()
    return _root.submit(function).result()


def in_child(function, uid=None, gid=None, groups=()):
    """function() in a forked child, there as (uid, gid): what it returns or
    raises (pickled)."""
    down, up = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(down)
            if uid is not None:
                os.setgroups(list(groups))
                os.setresgid(*[uid if gid is None else gid] * 3)
                os.setresuid(uid, uid, uid)
            answer = (True, function())
        except BaseException as e:
            e.add_note("".join(traceback.format_exception(e)))
            answer = (False, e)
        try:
            with open(up, "wb") as f:
                f.write(pickle.dumps(answer))
        finally:
            os._exit(0)
    os.close(up)
    with open(down, "rb") as f:
        answer = f.read()
    _, status = os.waitpid(pid, 0)
    if not answer:
        raise AssertionError(f"the child died: {status:#x}")
    ok, value = pickle.loads(answer)
    if not ok:
        raise value
    return value
