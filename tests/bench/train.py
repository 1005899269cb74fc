# SPDX-License-Identifier: Apache-2.0
"""The process that trains, for scripts/bench capture: see capture.py.

    train.py BYTES BYTES_PER_S

It makes its state, says so, and then does what it is told, a line of JSON each:
{"do": "train" | "first" | "read", ...}, answered by one line of JSON.
"""
import ctypes
import json
import mmap
import os
import queue
import shutil
import statistics
import sys
import threading
import time
import warnings

import torch

from savers import SAVERS, library, torchsnapshot_missing
from state import Device, make_state, tensors_of

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
MADV_HUGEPAGE, MADV_POPULATE_WRITE = 14, 23
KEPT = 2
now = time.monotonic


# ---- memory ----------------------------------------------------------------

class Warm:
    """Touched memory, in pieces of one checkpoint. A hypervisor takes back
    what is free for a while, and to touch it again is slow: nobody's figure.
    So what a checkpoint is going to take is held until then, and what a
    removed one gave back is held again. ckptfs does that by itself."""

    def __init__(self, size):
        self.size = size
        self.pieces = []
        self.changing = []  # one entry for each that is being touched or freed

    @property
    def held(self):
        return self.size * len(self.pieces)

    def take(self):
        self.changing.append(1)
        piece = mmap.mmap(-1, self.size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        at = ctypes.addressof(ctypes.c_char.from_buffer(piece))
        LIBC.madvise(at, self.size, MADV_HUGEPAGE)
        LIBC.madvise(at, self.size, MADV_POPULATE_WRITE)
        self.pieces.append(piece)
        self.changing.pop()

    def give(self, n=1):
        self.changing.append(1)
        for _ in range(min(n, len(self.pieces))):
            self.pieces.pop().close()
        self.changing.pop()

    def fill(self, n):
        while len(self.pieces) < n:
            self.take()
        self.give(len(self.pieces) - n)


def fields(path, *names):
    """Bytes, of a file of /proc with lines of kB."""
    found = dict.fromkeys(names, 0)
    with open(path, encoding="ascii") as f:
        for line in f:
            key, _, rest = line.partition(":")
            if key in found:
                found[key] = int(rest.split()[0]) * 1024
    return found


def allocated(path):
    try:
        return os.stat(path).st_blocks * 512
    except OSError:
        return 0


class Watch(threading.Thread):
    """Peaks of memory above what there was at the start, in bytes:
    own      anonymous memory of this process, less what is held warm
    daemon   anonymous memory of the mount's daemon
    cache    the machine's page cache without tmpfs
    tier     the DRAM tier's tmpfs less its reserve: the checkpoints in it
    """

    def __init__(self, warm, daemon, tier):
        super().__init__(daemon=True)
        self.warm, self.pid, self.tier = warm, daemon, tier
        self.over = threading.Event()
        self.base = self.sample()
        self.peak = dict.fromkeys(self.base, 0)
        self.start()

    def sample(self):
        own = fields("/proc/self/status", "RssAnon")["RssAnon"]
        machine = fields("/proc/meminfo", "Cached", "Shmem")
        daemon = tier = 0
        if self.pid:
            daemon = fields(f"/proc/{self.pid}/status", "RssAnon")["RssAnon"]
        if self.tier:
            st = os.statvfs(os.path.join(self.tier, "dram"))
            tier = ((st.f_blocks - st.f_bfree) * st.f_frsize -
                    allocated(os.path.join(self.tier, "dram", "ballast")))
        return dict(own=own - self.warm.held, daemon=daemon,
                    cache=machine["Cached"] - machine["Shmem"], tier=tier)

    def run(self):
        while not self.over.wait(0.05):
            held, changing = self.warm.held, bool(self.warm.changing)
            got = self.sample()
            if changing or self.warm.changing or self.warm.held != held:
                continue  # what is held changes meanwhile
            for k, v in got.items():
                self.peak[k] = max(self.peak[k], v - self.base[k])

    def end(self):
        self.over.set()
        self.join()
        return self.peak


# ---- checkpoints -----------------------------------------------------------

class Keeper(threading.Thread):
    """Waits until each checkpoint is durable, and removes old ones."""

    def __init__(self, warm):
        super().__init__(daemon=True)
        self.warm = warm
        self.saved = queue.Queue()
        self.seconds = []
        self.durable_at = []
        self.kept = []
        self.error = None
        self.start()

    def run(self):
        while (item := self.saved.get()) is not None:
            directory, durable, submitted = item
            try:
                durable()
            except BaseException as e:
                self.error = self.error or e
                continue
            self.durable_at.append(now())
            self.seconds.append(now() - submitted)
            self.kept.append(directory)
            if len(self.kept) > KEPT:
                self.remove()

    def remove(self):
        shutil.rmtree(self.kept.pop(0))
        if self.warm:
            self.warm.take()

    def end(self):
        """When all are durable."""
        self.saved.put(None)
        self.join()
        if self.error:
            raise self.error


# ---- training --------------------------------------------------------------

class Compute:
    """Forward and backward: the GPU is busy and the CPU idle, or one thread
    of the CPU is busy, for as many products as take so long undisturbed."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.a = torch.randn(512, 512)
        self.n = 0

    def calibrate(self):
        samples = []
        for _ in range(20):
            began = now()
            self.products(4)
            samples.append((now() - began) / 4)
        self.n = max(1, round(self.seconds / statistics.median(samples)))

    def products(self, n):
        for _ in range(n):
            torch.mm(self.a, self.a)

    def __call__(self, on):
        if on == "cpu":
            self.products(self.n)
        else:
            time.sleep(self.seconds)


class Trainer:
    def __init__(self, total, bytes_per_s):
        # A second thread of an update would wait for whoever has its core.
        torch.set_num_threads(1)
        self.state = make_state(total)
        self.tensors = tensors_of(self.state)
        self.size = sum(t.nbytes for t in self.tensors)
        self.device = Device(bytes_per_s)
        self.copy_s = self.size / bytes_per_s
        self.compute = Compute(1.3 * self.copy_s)
        self.warm = Warm(self.size)
        self.compute.calibrate()

    def update(self):
        torch._foreach_add_(self.tensors, 1e-3)
        self.state["mp_rank_00_model_states.pt"]["step"] += 1

    def train(self, method, root, every, iterations, on="sleep", warm=0,
              daemon=None, tier=None):
        """One run. `warm`: checkpoints' worth of memory held at its start."""
        LIBC.malloc_trim(0)
        self.warm.fill(warm)
        saver = SAVERS[method](self.state, self.device)
        watch = None
        try:
            if not warm:  # the first save of a mount is nobody's figure
                self.save_once(saver, os.path.join(root, "first"))
            watch = Watch(self.warm, daemon, tier)
            return self.timed(saver, root, every, iterations, on, bool(warm),
                              watch)
        finally:
            if watch:
                watch.end()
            saver.close()

    def save_once(self, saver, directory):
        durable = saver.save(directory)
        saver.before_update()
        durable()
        shutil.rmtree(directory)

    def timed(self, saver, root, every, iterations, on, warm, watch):
        keeper = Keeper(self.warm if warm else None)
        called, waited, computed, updated = [], [], [], []
        began, first = now(), None
        for i in range(1, iterations + 1):
            t = now()
            self.compute(on)
            computed.append(now() - t)
            t = now()
            saver.before_update()
            if len(waited) < len(called):
                waited.append(now() - t)
            t = now()
            self.update()
            updated.append(now() - t)
            if i % every:
                continue
            # Host copies take as much as the page cache, but once only.
            self.warm.give(1 if called else 2)
            directory = os.path.join(root, f"global_step{i}")
            t = now()
            first = first or t
            durable = saver.save(directory)
            called.append(now() - t)
            keeper.saved.put((directory, durable, t))
        looped = now() - began
        saver.before_update()
        keeper.end()
        total = now() - began
        peak = watch.end()
        for directory in keeper.kept:
            shutil.rmtree(directory)
        return dict(called=called, waited=waited, computed=computed,
                    updated=updated, looped=looped, total=total,
                    durable=keeper.seconds,
                    writing=keeper.durable_at[-1] - first, peak=peak,
                    staged=saver.staged(), bytes=self.size)

    def rest(self):
        """Holds no more memory than its state: somebody else needs it."""
        self.warm.fill(0)
        LIBC.malloc_trim(0)
        return {}

    # ---- one tensor ----

    def first(self, path, size):
        """Submits one tensor; answers when, by the clock of all processes."""
        tensor = torch.zeros(size, dtype=torch.uint8)
        lib = library(self.device.bytes_per_s)
        try:
            t = now()
            capture = lib.save({"weight": tensor}, path)
            lib.fence()
            lib.wait(capture)
        finally:
            lib.close()
        return dict(submitted=t, durable=now() - t)

    def read(self, root, rounds):
        """Seconds to read the largest tensor of a checkpoint, by name, and its
        bytes."""
        import ckptfs
        saver = SAVERS["library"](self.state, self.device)
        directory = os.path.join(root, "read")
        name, part = next(iter(self.state.items()))
        try:
            durable = saver.save(directory)
            saver.before_update()
            durable()
            path = os.path.join(directory, name)
            return self.read_both(ckptfs, path, part, rounds)
        finally:
            saver.close()
            shutil.rmtree(directory, ignore_errors=True)

    def read_both(self, ckptfs, path, part, rounds):
        key, tensor = next(iter(part.items()))
        out = torch.zeros_like(tensor)
        into = memoryview(out.view(torch.uint8).numpy())
        named, raw = [], []
        at = place_of(ckptfs.open(path)[key], path)
        for _ in range(rounds):
            t = now()
            out.copy_(ckptfs.open(path)[key])
            named.append(now() - t)
            assert torch.equal(out, tensor)
            t = now()
            read_raw(path, into, at)
            raw.append(now() - t)
            assert torch.equal(out, tensor)
        return dict(named=named, raw=raw, bytes=tensor.nbytes)


def place_of(tensor, path):
    """Where in its file a mapped tensor begins."""
    wanted = bytes(tensor[:64].view(torch.uint8).numpy())
    with open(path, "rb") as f, \
            mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
        at = m.find(wanted)
    if at < 0:
        raise RuntimeError(f"the tensor is not in {path} as it is")
    return at


def can_open():
    try:
        import ckptfs
        return hasattr(ckptfs, "open")
    except ImportError:
        return False


def read_raw(path, into, at):
    fd = os.open(path, os.O_RDONLY)
    try:
        while into:
            n = os.preadv(fd, [into[:1 << 30]], at)
            into, at = into[n:], at + n
    finally:
        os.close(fd)


def main():
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no answer
    warnings.filterwarnings("ignore", "torch.distributed is disabled")

    def answer(**what):
        print(json.dumps(what), file=out, flush=True)

    trainer = Trainer(int(sys.argv[1]), int(float(sys.argv[2])))
    lib = library(trainer.device.bytes_per_s)
    lib.close()
    answer(bytes=trainer.size, copy_s=trainer.copy_s,
           compute_s=trainer.compute.seconds, files=len(trainer.state),
           tensors=len(trainer.tensors), torch=torch.__version__,
           library=type(lib).__name__, opens=can_open(),
           missing=torchsnapshot_missing)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer(**getattr(trainer, job.pop("do"))(**job))
        except Exception as e:
            answer(error=f"{type(e).__name__}: {e}")


if __name__ == "__main__":
    main()
