# SPDX-License-Identifier: Apache-2.0
"""close() while it is disturbed: by a signal, by threads that wait, by what
close() of libckpt says. The end of the process does what is left to do."""
import errno
import os
import subprocess
import sys

import pytest

from states import ckptfs, ended, names, place, torch  # noqa: F401

pytestmark = pytest.mark.modes("passthrough")


def run(code, *args):
    # What is freed is overwritten, so that nobody reads it unnoticed.
    env = dict(os.environ, MALLOC_PERTURB_="165")
    return subprocess.run([sys.executable, "-X", "faulthandler", "-c", code,
                           *map(str, args)],
                          capture_output=True, text=True, timeout=100, env=env)


INTERRUPTED = """
import atexit, signal, sys, torch, ckptfs

def interrupt(*_):
    raise KeyboardInterrupt

def soon():
    signal.setitimer(signal.ITIMER_REAL, 0.2)

signal.signal(signal.SIGALRM, interrupt)
want = {"w": torch.arange(5_000_000)}
ckptfs.save_async(want, sys.argv[1], device=ckptfs.SlowDevice(20e6))
if sys.argv[2] == "twice":
    atexit.register(soon)  # runs just before ours
try:
    soon()
    ckptfs.close()
except KeyboardInterrupt:
    print("interrupted")
"""


def test_interrupted(place):
    """The end of the process drains, then."""
    r = run(INTERRUPTED, place / "a.pt", "once")
    assert (r.returncode, r.stdout, r.stderr) == (0, "interrupted\n", "")
    assert names(place) == ["a.pt"]


def test_interrupted_twice(place):
    """Whoever ends it twice does not want to wait."""
    r = run(INTERRUPTED, place / "a.pt", "twice")
    assert (r.returncode, r.stdout) == (0, "interrupted\n"), r.stderr
    assert r.stderr.startswith("ckptfs: interrupted") and \
        r.stderr.count("\n") == 1
    assert names(place) == []


def test_closed_after_an_interruption(place, monkeypatch):
    capture = ckptfs.save_async({"a": 1}, place / "a.pt")
    real = ckptfs.Capture._wait

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ckptfs.Capture, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ckptfs.close()
    monkeypatch.setattr(ckptfs.Capture, "_wait", real)
    ckptfs.save_async({"b": 1}, place / "b.pt")
    ckptfs.close()
    assert capture.done
    assert names(place) == ["a.pt", "b.pt"]


WAITERS = """
import sys, threading, torch, ckptfs

def wait(capture):
    for _ in range(2):
        try:
            capture.wait("nvme")
            said.append("durable")
        except ckptfs.CaptureError as e:
            said.append(str(e))

said = []
captures = [ckptfs.save_async({"w": torch.arange(100_000)},
                              f"{sys.argv[1]}/{i}.pt") for i in range(4)]
for capture in captures:
    capture.wait("dram")
threads = [threading.Thread(target=wait, args=[c]) for c in captures]
for thread in threads:
    thread.start()
getattr(ckptfs, sys.argv[2])()
for thread in threads:
    thread.join()
assert len(said) == 8 and all("closed" in text for text in said), said
"""


@pytest.mark.parametrize("call", ["close", "configure"])
def test_others_wait_meanwhile(fresh, call):
    """They are told, and what they use is freed after that."""
    m = fresh(faulty="write:delay=2000ms")
    r = run(WAITERS, m.path, call)
    assert r.returncode == 0, r.stderr


@pytest.mark.parametrize("what", ["wait", "error", "stats", "cancel"])
def test_closed_just_before_the_call(place, monkeypatch, what):
    """After the last look at whether it is closed."""
    capture = ckptfs.save_async({"a": 1}, place / "a.pt")
    ckptfs.fence()
    real = getattr(ckptfs._capture._native, what)

    def late(*args):
        monkeypatch.setattr(ckptfs._capture._native, what, real)
        ckptfs.close()
        return real(*args)

    monkeypatch.setattr(ckptfs._capture._native, what, late)
    if what == "wait":
        with pytest.raises(ckptfs.CaptureError, match="closed") as e:
            capture.wait("nvme")
        assert e.value.errno == errno.EINVAL
    elif what == "cancel":
        capture.cancel()
    else:
        assert capture.error is None and capture.stats.complete
    assert names(place) == ["a.pt"]


def test_a_failure_that_only_libckpt_knows(place, monkeypatch):
    real = ckptfs._capture._native.close

    def close(engine):
        real(engine)
        return -errno.EDQUOT

    ckptfs.save_async({"a": 1}, place / "a.pt").wait("dram")
    monkeypatch.setattr(ckptfs._capture._native, "close", close)
    with pytest.raises(ckptfs.CaptureError) as e:
        ckptfs.close()
    assert e.value.errno == errno.EDQUOT
    monkeypatch.setattr(ckptfs._capture._native, "close", real)
    ckptfs.close()


def test_cancelled_after_it_failed(place):
    """Who cancels knows: it is told nowhere else."""
    capture = ckptfs.save_async({"a": 1}, place / "none" / "a.pt")
    while not capture.done:
        pass
    capture.cancel()
    del capture
    ckptfs.fence()
    ckptfs.close()


def test_a_save_does_not_ask_for_old_ones(place, monkeypatch):
    asked = []
    real = ckptfs._capture._native.wait

    def wait(handle, level, ms):
        asked.append(level)
        return real(handle, level, ms)

    for i in range(66):
        ckptfs.save_async({"a": i}, place / f"{i}.pt").wait("dram")
    monkeypatch.setattr(ckptfs._capture._native, "wait", wait)
    ckptfs.save_async({"a": 66}, place / "66.pt")
    ckptfs.fence()
    assert set(asked) == {0}
    del asked[:]
    ckptfs.wait("nvme")
    assert set(asked) == {2} and len(asked) >= 64
    assert len(asked) <= 2 * 65  # of the last ones; a slice may end early


def test_a_file_that_the_mount_has_lost(place, monkeypatch):
    """No state was changed: another error."""
    capture = ckptfs.save_async({"a": 1}, place / "a.pt")
    capture.wait("dram")
    monkeypatch.setattr("ckptfs._native.wait", lambda *_: -errno.ESTALE)
    with pytest.raises(ckptfs.CaptureError, match="cannot wait") as e:
        capture.wait("nvme")
    assert e.value.errno == errno.ESTALE
    assert not isinstance(e.value, ckptfs.ChangedError)
