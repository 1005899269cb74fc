# SPDX-License-Identifier: Apache-2.0
"""scripts/bench save: large files, the idle machine, the flush, and memory."""
import json
import os
import statistics
import subprocess
import time

from harness import (GIB, MIB, PROGRAMS, fsync, in_turn, program,
                     sync_filesystem, wait_filled)
from mounted import until

SIZE = 2 * GIB
CALL = 16 * MIB
DRAM = 5 * GIB
IDLE_S = 30
ROUNDS = 5


def rate(seconds, size=SIZE):
    return [size / s / 1e9 for s in seconds]


def write(root, held=SIZE):
    """Seconds until close has returned; the file stays."""
    return program("stream", "write", os.path.join(root, "file"), SIZE, CALL,
                   held)


def remove(root):
    os.unlink(os.path.join(root, "file"))


def write_through(root, held=SIZE):
    """Seconds until close has returned, and until it is durable too."""
    perceived = write(root, held)
    began = time.monotonic()
    fsync(os.path.join(root, "file"))
    fsync(root)
    durable = perceived + time.monotonic() - began
    remove(root)
    sync_filesystem(os.path.dirname(root))
    return perceived, durable


def write_and_remove(root, held=SIZE):
    perceived = write(root, held)
    remove(root)
    return perceived


def perceived(samples):
    return rate([p for p, _ in samples])


def durable(samples):
    return rate([d for _, d in samples])


# ---- figures ---------------------------------------------------------------

def writes(report, places, io, tmpfs_target):
    with places.ckptfs(io, DRAM) as m, places.tmpfs(DRAM) as bare:
        write_through(m.path)  # the first save of a mount is nobody's figure
        wait_filled(m.dram_dir)
        got = in_turn(ROUNDS, ckptfs=lambda: write_through(m.path),
                      tmpfs=lambda: write_and_remove(bare),
                      disk=lambda: write_through(places.disk))
    ours = perceived(got["ckptfs"])
    report.ratio(f"write, {io}: tmpfs", "GB/s", ours, rate(got["tmpfs"]),
                 tmpfs_target, "tmpfs with the same options")
    report.ratio("  disk, perceived", "GB/s", ours, perceived(got["disk"]),
                 1 if io == "passthrough" else None, "disk, buffered")
    report.ratio("  disk, durable", "GB/s", durable(got["ckptfs"]),
                 durable(got["disk"]), None, "disk, with fsync")


def write_passthrough(report, places):
    writes(report, places, "passthrough", 0.85)


def write_served(report, places):
    writes(report, places, "served", 0.22)


def reads(report, places):
    with places.ckptfs("passthrough", DRAM) as m, places.tmpfs(DRAM) as bare:
        for root in m.path, bare:
            write(root)
        m.wait("nvme")
        for how, name in ("read", "warm read"), ("mmap", "warm mmap read"):
            def timed(root):
                return program("stream", how, os.path.join(root, "file"),
                               SIZE, CALL, 0)
            for root in m.path, bare:
                timed(root)
            got = in_turn(ROUNDS + 2, ckptfs=lambda: timed(m.path),
                          tmpfs=lambda: timed(bare))
            report.ratio(f"{name}: tmpfs", "GB/s", rate(got["ckptfs"]),
                         rate(got["tmpfs"]), 0.85,
                         "tmpfs with the same options")


def idle(report, places):
    def after_idle(measure, root):
        time.sleep(IDLE_S)
        return measure(root, held=0)

    with places.ckptfs("passthrough", DRAM) as m, places.tmpfs(DRAM) as bare:
        write_through(m.path)
        wait_filled(m.dram_dir)
        warm = [write_and_remove(bare) for _ in range(3)]

        def ours():
            seconds = after_idle(write_through, m.path)[0]
            wait_filled(m.dram_dir)
            return seconds

        got = in_turn(3, ckptfs=ours,
                      tmpfs=lambda: after_idle(write_and_remove, bare))
    # A hypervisor that takes free memory back shows in the bare tmpfs.
    taken = (statistics.median(got["tmpfs"]) > 2 * statistics.median(warm))
    report.ratio(f"write {IDLE_S} s later: tmpfs", "GB/s",
                 rate(got["ckptfs"]), rate(got["tmpfs"]), 4 if taken else 1,
                 "tmpfs, free memory taken back meanwhile" if taken
                 else "tmpfs, free memory kept meanwhile")


def wait_deleted(m):
    """Until no large file is left on the NVMe tier: to give a disk back its
    blocks is work that nobody else should pay for."""
    until(lambda: not any(f.stat().st_size >= MIB
                          for f in (m.nvme / "files").iterdir()))


def fio(directory):
    """Seconds of the same work as a flush, done by fio."""
    p = subprocess.run(
        ["fio", "--name=flush", f"--directory={directory}", "--rw=write",
         f"--size={SIZE}", "--bs=4M", "--direct=1", "--iodepth=8",
         "--ioengine=io_uring", "--fallocate=posix", "--end_fsync=1",
         "--unlink=1", "--output-format=json"],
        text=True, check=True, stdout=subprocess.PIPE)
    job = json.loads(p.stdout)["jobs"][0]
    if job["error"]:
        raise RuntimeError(f"fio failed with error {job['error']}")
    return job["write"]["runtime"] / 1e3


def flush(report, places):
    with places.ckptfs("passthrough", DRAM) as m:
        def ours():
            write(m.path)
            began = time.monotonic()
            fsync(m.path)
            seconds = time.monotonic() - began
            remove(m.path)
            wait_deleted(m)
            sync_filesystem(places.disk)
            return seconds

        def theirs():
            seconds = fio(places.disk)
            sync_filesystem(places.disk)
            return seconds

        ours()
        got = in_turn(ROUNDS, ckptfs=ours, fio=theirs)
    report.ratio("flush to NVMe: fio", "GB/s", rate(got["ckptfs"]),
                 rate(got["fio"]), 0.9, "fio, O_DIRECT, depth 8, 4 MiB")


# ---- memory ----------------------------------------------------------------

def anonymous_mb(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        for line in f:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"process {pid} tells no RssAnon")


def watch_anonymous(pid, process):
    """Samples until the process is over."""
    samples = []
    while process.poll() is None:
        samples.append(anonymous_mb(pid))
        time.sleep(0.02)
    return samples


def memory_at_work(report, places, io):
    with places.ckptfs(io, 6 * GIB) as m:
        (m.path / "many").mkdir()
        with subprocess.Popen([PROGRAMS / "names", "create", m.path / "many",
                               "100000"], stdout=subprocess.DEVNULL) as p:
            samples = watch_anonymous(m.process.pid, p)
        with subprocess.Popen([PROGRAMS / "stream", "write", m.path / "file",
                               str(4 * GIB), str(CALL), "0"],
                              stdout=subprocess.DEVNULL) as p:
            samples += watch_anonymous(m.process.pid, p)
        with subprocess.Popen([m.bin / "ckptctl", "drain", m.path],
                              stdout=subprocess.DEVNULL) as p:
            samples += watch_anonymous(m.process.pid, p)
    report.value(f"memory, {io}, 100,000 files", "MB", samples, max(samples),
                 150)


def memory(report, places):
    memory_at_work(report, places, "passthrough")
    memory_at_work(report, places, "served")


def one_save(m, i):
    """A checkpoint of 64 MiB and 20 small files; the last two are kept."""
    step = m.path / f"step-{i}"
    step.mkdir()
    program("stream", "write", step / "file", 64 * MIB, CALL, 0)
    program("names", "create", step, 20)
    (m.path / "latest").write_text(step.name)
    if i >= 2:
        old = m.path / f"step-{i - 2}"
        for f in old.iterdir():
            f.unlink()
        old.rmdir()
    m.wait("nvme")


def growth(report, places):
    n, part = 50, 10
    with places.ckptfs("passthrough", GIB) as m:
        # RocksDB's buffers fill up to their limit first.
        program("names", "create", m.path, 30000)
        program("names", "unlink", m.path, 30000)
        samples = []
        for i in range(n):
            one_save(m, i)
            samples.append(anonymous_mb(m.process.pid))
    # From the first saves on: caches have filled by then.
    early = statistics.median(samples[part:2 * part])
    late = statistics.median(samples[-part:])
    report.value(f"memory growth over {n} saves", "MB", samples,
                 max(late - early, 0), 4)


FIGURES = dict(write=write_passthrough, served=write_served, read=reads,
               idle=idle, flush=flush, memory=memory, growth=growth)
