# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with captures: state changed too early, cancelled, without
room, forked, ended. The file is there in whole or not at all, and whoever
must know is told with the file's name and what to do."""
import errno
import gc
import os
import subprocess
import sys
import weakref

import pytest

from states import (ckptfs, ended, model, names, place,  # noqa: F401
                    same, step, torch)

pytestmark = pytest.mark.modes("passthrough", "served")

# 20 MB at this rate: there is time to do wrong.
SLOW = 40e6


def state():
    torch.manual_seed(1)
    return {"w": torch.randn(2000, 1000), "v": torch.randn(3000, 1000)}


def slow_save(want, path):
    return ckptfs.save_async(want, path, device=ckptfs.SlowDevice(SLOW))


def changed(fence, words, place):
    with pytest.raises(ckptfs.ChangedError) as e:
        fence()
    assert e.value.errno == errno.ESTALE
    assert words in str(e.value) and "fence_before_step" in str(e.value)
    assert e.value.filename == str(place / "a.pt")
    assert names(place) == []
    ckptfs.fence()  # told once


def test_changed_before_the_fence(place):
    want = state()
    slow_save(want, place / "a.pt")
    want["v"].add_(1)
    changed(ckptfs.fence, "'v' was changed in place", place)


def test_changed_and_then_waited(place):
    want = {"layers": [state()]}
    capture = slow_save(want, place / "a.pt")
    want["layers"][0]["w"][5] = 0
    changed(capture.wait, "'layers.0.w' was changed", place)
    assert capture.done
    assert isinstance(capture.error, ckptfs.ChangedError)


def test_changed_in_a_safetensors_file(place):
    want = state()
    ckptfs.save_async(want, place / "a.safetensors",
                      device=ckptfs.SlowDevice(SLOW))
    want["v"].add_(1)
    with pytest.raises(ckptfs.ChangedError):
        ckptfs.fence()
    assert names(place) == []


@pytest.mark.parametrize("kind", [{}, {"foreach": True}, {"fused": True}])
def test_a_step_without_the_fence(place, kind):
    """It waits by itself: fused kernels count no version."""
    net, _ = model(width=1000)
    optimizer = torch.optim.AdamW(net.parameters(), **kind)
    step(net, optimizer, 0)
    want = {k: v.clone() for k, v in net.state_dict().items()}
    capture = slow_save({"model": dict(net.state_dict())}, place / "a.pt")
    optimizer.step()
    assert capture.stats.captured
    capture.wait("dram")
    assert same(torch.load(place / "a.pt")["model"], want)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_closure_runs_before_the_wait(place, by_name):
    net, optimizer = model(width=1000)
    step(net, optimizer, 0)
    want = {k: v.clone() for k, v in net.state_dict().items()}
    capture = slow_save(dict(net.state_dict()), place / "a.pt")
    meanwhile = []

    def closure():
        meanwhile.append(capture.stats.captured)
        return net(torch.ones(2, 64)).sum()

    loss = (optimizer.step(closure=closure) if by_name
            else optimizer.step(closure))
    assert isinstance(loss, torch.Tensor) and meanwhile == [None]
    assert capture.stats.captured
    capture.wait("dram")
    assert same(torch.load(place / "a.pt"), want)


def test_a_step_leaves_failures_to_the_fence(place):
    net, optimizer = model()
    for name in ("a", "b"):
        ckptfs.save_async(net.state_dict(), place / "none" / name)
        step(net, optimizer, 0)
    for name in ("a", "b"):
        with pytest.raises(ckptfs.CaptureError, match=f"none/{name}'"):
            ckptfs.fence()
    ckptfs.fence()


def test_the_hook_makes_it_right(place):
    net, optimizer = model(width=1000)
    handle = ckptfs.fence_before_step(optimizer)
    step(net, optimizer, 0)
    want = {k: v.clone() for k, v in net.state_dict().items()}
    capture = slow_save(dict(net.state_dict()), place / "a.pt")
    step(net, optimizer, 1)
    capture.wait("dram")
    assert same(torch.load(place / "a.pt"), want)
    handle.remove()


def test_a_failure_reaches_the_step(place):
    """The hook's error ends the step before anything is updated."""
    net, optimizer = model()
    ckptfs.fence_before_step(optimizer)
    step(net, optimizer, 0)
    before = {k: v.detach().clone() for k, v in net.named_parameters()}
    ckptfs.save_async(net.state_dict(), place / "none" / "a.pt")
    with pytest.raises(ckptfs.CaptureError, match="make its directory first"):
        step(net, optimizer, 1)
    assert same(before, {k: v.detach() for k, v in net.named_parameters()})
    step(net, optimizer, 1)


def test_freed_storage(place):
    want = state()
    slow_save(want, place / "a.pt")
    want["v"].untyped_storage().resize_(12_100_000)
    changed(ckptfs.fence, "freed or resized", place)


def test_nothing_to_save(place):
    freed = torch.randn(100_000)
    freed.untyped_storage().resize_(0)
    with pytest.raises(TypeError, match="no memory|no data"):
        freed.untyped_storage().resize_(0)
        ckptfs.save_async({"m": torch.empty(9, device="meta")},
                          place / "a.safetensors")
    assert names(place) == []


def test_cancelled(place):
    want = state()
    capture = slow_save(want, place / "a.pt")
    capture.cancel()
    want["w"].zero_()
    ckptfs.fence()
    with pytest.raises(ckptfs.CancelledError, match="a.pt"):
        capture.wait()
    assert capture.done and names(place) == []
    capture = ckptfs.save_async(want, place / "a.pt")
    capture.wait("dram")
    capture.cancel()  # too late: it stays
    assert names(place) == ["a.pt"] and capture.error is None
    ckptfs.fence()


def test_timeout(place):
    capture = slow_save(state(), place / "a.pt")
    with pytest.raises(TimeoutError):
        capture.wait("captured", timeout=0.01)
    with pytest.raises(TimeoutError):
        ckptfs.wait("dram", timeout=0)
    capture.wait("dram")
    with pytest.raises(ValueError, match="captured, dram, nvme, remote"):
        capture.wait("disk")


def test_no_remote(place):
    capture = ckptfs.save_async({"a": 1}, place / "a.pt")
    with pytest.raises(ckptfs.CaptureError) as e:
        capture.wait("remote")
    assert e.value.errno == errno.EOPNOTSUPP
    capture.wait("nvme")
    with pytest.raises(ckptfs.CaptureError):
        ckptfs.wait("remote")


def test_every_failure_is_told_by_one_fence(place):
    for i in range(2):
        ckptfs.save_async({"a": i}, place / f"no-{i}" / "a.pt")
    paths = set()
    for i in range(2):
        with pytest.raises(ckptfs.CaptureError) as e:
            ckptfs.fence()
        paths.add(e.value.filename)
    assert len(paths) == 2
    ckptfs.fence()


def test_a_name_that_is_taken_by_a_directory(place):
    (place / "a.pt").mkdir()
    with pytest.raises(ckptfs.CaptureError, match="a.pt"):
        ckptfs.save_async({"a": 1}, place / "a.pt").wait("dram")
    assert names(place) == ["a.pt"]


def test_wrong_arguments(place):
    with pytest.raises(ValueError, match="format"):
        ckptfs.save_async({}, place / "a", format="zip")
    with pytest.raises(ValueError, match="objects"):
        ckptfs.save_async({}, place / "a", objects="never")
    with pytest.raises(ValueError, match="4096"):
        ckptfs.configure(chunk=1000)
    with pytest.raises(ValueError, match="at_exit"):
        ckptfs.configure(at_exit="wait")
    with pytest.raises(Exception, match="pickle|local"):
        ckptfs.save_async({"f": lambda: 0}, place / "a.pt")
    assert names(place) == []


def test_chunks_and_staging(place):
    want = state()
    ckptfs.configure(chunk=4096 * 3, staging=4096 * 6)
    capture = ckptfs.save_async(want, place / "a.pt",
                                device=ckptfs.SlowDevice(4e9))
    capture.wait("dram")
    assert same(torch.load(place / "a.pt"), want)


def test_memory_is_given_back(place):
    want = state()
    alive = weakref.ref(want["w"])
    capture = ckptfs.save_async(want, place / "a.pt")
    del want
    capture.wait("captured")
    gc.collect()
    assert alive() is None


def test_closed(place):
    capture = ckptfs.save_async(state(), place / "a.pt")
    ckptfs.close()
    capture.wait("dram")
    assert capture.done and capture.stats.complete
    with pytest.raises(ckptfs.CaptureError, match="closed"):
        capture.wait("nvme")
    capture.cancel()
    ckptfs.save_async({"b": 1}, place / "b.pt").wait("dram")
    assert names(place) == ["a.pt", "b.pt"]


def test_fork(place):
    want = state()
    capture = slow_save(want, place / "a.pt")
    pid = os.fork()
    if pid == 0:
        try:
            code = in_child(capture, place)
        finally:
            os._exit(code)
    ckptfs.fence()
    capture.wait("dram")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert same(torch.load(place / "a.pt"), want)
    assert names(place) == ["a.pt", "child.pt"]


def in_child(capture, place):
    for call in (capture.wait, capture.cancel, lambda: capture.stats,
                 lambda: capture.done):
        try:
            call()
            return 1
        except ckptfs.CaptureError as e:
            if e.errno != errno.ECHILD or "forked" not in str(e):
                return 2
    ckptfs.fence()  # it has none
    ckptfs.save_async({"a": 1}, place / "child.pt").wait("dram")
    ckptfs.close()
    return 0


SCRIPT = """
import sys, torch, ckptfs
ckptfs.configure(at_exit=sys.argv[2])
want = {"w": torch.arange(5_000_000)}
ckptfs.save_async(want, sys.argv[1], device=ckptfs.SlowDevice(40e6))
if sys.argv[2] == "abort":
    raise SystemExit(3)
"""


@pytest.mark.parametrize("at_exit", ["drain", "abort"])
def test_at_exit(place, at_exit):
    r = subprocess.run([sys.executable, "-c", SCRIPT, place / "a.pt", at_exit],
                       capture_output=True, text=True, timeout=100)
    assert r.returncode == (3 if at_exit == "abort" else 0), r.stderr
    assert not r.stderr
    assert names(place) == (["a.pt"] if at_exit == "drain" else [])


def test_a_failure_at_exit_is_printed(place):
    r = subprocess.run([sys.executable, "-c", SCRIPT, place / "no" / "a.pt",
                        "drain"], capture_output=True, text=True, timeout=100)
    assert "ckptfs: cannot create" in r.stderr


CHILD = """
import multiprocessing, sys, torch, ckptfs
from ckptfs.dcp import save_async

def work(path):
    want = {"w": torch.arange(500_000)}
    with ckptfs.SlowDevice(10e6):
        if path.endswith("spawn"):
            save_async(want, path)  # a thread waits for it
        else:
            ckptfs.save_async(want, path)

if __name__ == "__main__":
    children = [multiprocessing.get_context(how).Process(
        target=work, args=(f"{sys.argv[1]}/{how}",))
        for how in ("fork", "forkserver", "spawn")]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0, 0]
"""


@pytest.mark.modes("passthrough")
@pytest.mark.limit(200)
def test_at_exit_of_a_child(d, tmp_path):
    """multiprocessing's end past atexit."""
    (tmp_path / "child.py").write_text(CHILD)
    r = subprocess.run([sys.executable, "-W", "ignore", tmp_path / "child.py",
                        d], capture_output=True, text=True, timeout=150)
    assert (r.returncode, r.stderr) == (0, "")
    assert names(d) == ["fork", "forkserver", "spawn"]
    assert names(d / "spawn") == [".metadata", "__0_0.distcp"]


def test_killed(place):
    """Nothing of that name; what is left is taken away by a save later."""
    code = SCRIPT + "\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    r = subprocess.run([sys.executable, "-c", code, place / "a.pt", "drain"],
                       timeout=100)
    assert r.returncode == -9
    left = names(place)
    assert "a.pt" not in left
    for name in left:
        os.utime(place / name, (1, 1))
    ckptfs.save_async({"a": 1}, place / "a.pt").wait("dram")
    assert names(place) == ["a.pt"]
