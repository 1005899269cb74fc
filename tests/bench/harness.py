# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: places to measure on, samples, and the report.

A figure is the median of samples taken in turn (A, B, A, B, ...) on the mount
and on its baseline in the same run, and their ratio, above 1 where ckptfs is
better. Only the ratio has a target: absolute values belong to the machine.
"""
import contextlib
import ctypes
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from mounted import Mounted, TEST_DIR, free_dram

MIB, GIB = 1 << 20, 1 << 30
PROGRAMS = pathlib.Path(os.environ["CKPTFS_BUILD"]) / "tests" / "bench"
FUSE_PREFIX = os.environ.get("CKPTFS_PREFIX", "/opt/ckptfs/fuse3")


def say(text):
    print(text, flush=True)


def program(name, *words):
    """Runs one of ours, which prints seconds."""
    p = subprocess.run([PROGRAMS / name, *map(str, words)], text=True,
                       check=True, stdout=subprocess.PIPE)
    return float(p.stdout)


def sync_filesystem(path):
    """All that is dirty there is on the disk, so that nobody pays for it."""
    fd = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd):
            raise OSError(ctypes.get_errno(), f"cannot sync {path}")
    finally:
        os.close(fd)


def fsync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def drop_slab():
    """The kernel forgets names and attributes: the next stat asks for them."""
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("2", encoding="ascii")


# ---- places ----------------------------------------------------------------

class Places:
    """A directory on the disk, and what is mounted below it for a while."""

    def __init__(self):
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="ckptfs-bench-",
                                                  dir=TEST_DIR))
        self.disk = self.base / "disk"
        self.disk.mkdir()
        self.shared = {}  # what figures share, ended by the stack
        self.stack = contextlib.ExitStack()

    def close(self):
        try:
            self.stack.close()
        finally:
            shutil.rmtree(self.base)

    @contextlib.contextmanager
    def ckptfs(self, io, dram, **options):
        """A mount whose reserve, if it has one, is full."""
        m = Mounted(io, base=self._fresh("ckptfs"), dram=dram, **options)
        try:
            m.start()
            wait_filled(m.dram_dir)
            yield m
            m.stop()
        finally:
            m.close()
            free_dram(m.dram_dir)
            shutil.rmtree(m.base, ignore_errors=True)

    @contextlib.contextmanager
    def tmpfs(self, size):
        """As the DRAM tier's own: same options, same size."""
        at = self._fresh("tmpfs")
        options = f"size={size},huge=within_size"
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options + ",noswap",
                           "none", at], check=False,
                          stderr=subprocess.DEVNULL).returncode:
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", at],
                           check=True)
        try:
            yield at
        finally:
            subprocess.run(["umount", "-l", at], check=True)
            at.rmdir()

    @contextlib.contextmanager
    def passthrough_hp(self, source):
        """libfuse's own example: FUSE as thin as it gets."""
        exe = pathlib.Path(FUSE_PREFIX) / "libexec" / "passthrough_hp"
        if not exe.exists():
            raise RuntimeError(f"no {exe}: run scripts/install-deps --dev")
        at = self._fresh("hp")
        p = subprocess.Popen([exe, "--foreground", source, at])
        try:
            while not os.path.ismount(at):
                if p.poll() is not None:
                    raise RuntimeError(f"{exe} ended with {p.returncode}")
                time.sleep(0.01)
            yield at
        finally:
            subprocess.run(["umount", "-l", at], check=False)
            try:
                p.wait(10)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
            at.rmdir()

    def _fresh(self, name):
        at = self.base / name
        at.mkdir()
        return at


def wait_filled(folder):
    """Until the ballast on a DRAM tier's tmpfs has stopped growing; `folder`
    is the mount's dram_dir."""
    folder = os.path.join(folder, "dram")
    used = still = -1
    while still < 10:
        time.sleep(0.1)
        st = os.statvfs(folder)
        now = (st.f_blocks - st.f_bfree) * st.f_frsize
        still = still + 1 if now == used else 0
        used = now


# ---- samples and figures ---------------------------------------------------

def in_turn(rounds, **sides):
    """Calls each side in turn; {side: [result of each round]}."""
    results = {name: [] for name in sides}
    for _ in range(rounds):
        for name, measure in sides.items():
            results[name].append(measure())
    return results


class Report:
    def __init__(self, name):
        self.name = name
        self.figures = []
        self.more = {}  # goes into the JSON, too
        self.began = time.time()
        say(f"{'':32}{'ckptfs':>11}{'baseline':>12}{'ratio':>8}  target")

    def ratio(self, name, unit, ours, base, target=None, baseline="",
              higher_is_better=True, at_most=False):
        """A figure and its baseline; samples in `unit`."""
        a, b = statistics.median(ours), statistics.median(base)
        ratio = a / b if higher_is_better else b / a
        self._add(name, unit, a, b, ratio, target, at_most,
                  dict(ckptfs=ours, baseline=base, baseline_is=baseline))

    def value(self, name, unit, samples, value, most):
        """A figure that has a limit of its own."""
        met = value < most
        self.figures.append(dict(name=name, unit=unit, samples=samples,
                                 value=value, limit=most, met=met))
        say(f"{name:32}{number(value):>7} {unit:<4}{'':19} < {number(most)} "
            f"{unit}  {verdict(met)}")

    def _add(self, name, unit, a, b, ratio, target, at_most, more):
        met = None if target is None else ratio >= target
        self.figures.append(dict(name=name, unit=unit, ckptfs=a, baseline=b,
                                 ratio=ratio, target=target, met=met,
                                 samples=more))
        aim = "" if target is None else f">= {target:g}"
        say(f"{name:32}{number(a):>7} {unit:<4}{number(b):>7} {unit:<4}"
            f"{ratio:8.2f}  {aim:8}{verdict(met)}".rstrip())

    def end(self, path):
        wanted = [f for f in self.figures if f["met"] is not None]
        n_met = sum(f["met"] for f in wanted)
        say(f"\n{n_met} of {len(wanted)} targets met; "
            f"{time.time() - self.began:.0f} s")
        if path:
            with open(path, "w", encoding="utf-8") as out:
                json.dump(dict(bench=self.name, machine=machine(),
                               figures=self.figures, **self.more),
                          out, indent=1)
                out.write("\n")
            say(f"raw samples: {path}")


def number(x):
    return f"{x:.0f}" if x >= 100 else f"{x:.2f}" if x < 10 else f"{x:.1f}"


def verdict(met):
    return "" if met is None else "met" if met else "NOT MET"


# ---- the machine -----------------------------------------------------------

def first_line(path, key):
    try:
        with open(path, encoding="utf-8") as f:
            return next((line.split(":", 1)[1].strip() for line in f
                         if line.startswith(key)), "")
    except OSError:
        return ""


def version():
    p = subprocess.run([os.path.join(os.environ["CKPTFS_BIN"], "ckptfs"),
                        "--version"], text=True, check=True,
                       stdout=subprocess.PIPE)
    return p.stdout.splitlines()


def filesystem_of(path):
    p = subprocess.run(["stat", "-f", "-c", "%T", path], text=True, check=True,
                       stdout=subprocess.PIPE)
    return p.stdout.strip()


def machine():
    return dict(time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                kernel=platform.release(), arch=platform.machine(),
                cpu=first_line("/proc/cpuinfo", "model name"),
                cores=os.cpu_count(),
                memory=first_line("/proc/meminfo", "MemTotal"),
                disk=filesystem_of(TEST_DIR), load=os.getloadavg(),
                ckptfs=version(), python=sys.version.split()[0])
