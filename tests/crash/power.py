# SPDX-License-Identifier: Apache-2.0
"""A machine that can lose its power: an NVMe tier on an image of its own.

    with Machine(mode, "xfs") as one:
        ... one.m.path ...
        one.cut()        # what was not synced is gone; mounted again

The image's filesystem is shut down by the ioctl that XFS and ext4 share: it
forgets all that is not on the device, log included. Then the daemon is killed
and its DRAM freed.
"""
import fcntl
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
import time

import mounted

SHUTDOWN = 0x8004587D  # XFS_IOC_GOINGDOWN, FS_IOC_SHUTDOWN
NO_LOG_FLUSH = 2
FILESYSTEMS = {"xfs": ["mkfs.xfs", "-q", "-f"],
               "ext4": ["mkfs.ext4", "-q", "-F", "-E",
                        "lazy_itable_init=0,lazy_journal_init=0"]}


class Image:
    """A filesystem in a sparse file, mounted through loop."""

    def __init__(self, folder, kind, size):
        if not shutil.which(FILESYSTEMS[kind][0]):
            mounted.missing(f"no {FILESYSTEMS[kind][0]}")
        self.kind = kind
        self.file = pathlib.Path(folder) / "image"
        self.path = pathlib.Path(folder) / "disk"
        self.path.mkdir()
        with open(self.file, "wb") as f:
            f.truncate(size)
        subprocess.run([*FILESYSTEMS[kind], self.file], check=True)
        self.mount()

    def mount(self):
        subprocess.run(["mount", "-t", self.kind, "-o", "loop", self.file,
                        self.path], check=True)

    def is_mounted(self):
        return mounted.is_mountpoint(self.path)

    def shutdown(self):
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def umount(self):
        """Waits for whoever is still dying."""
        mounted.until(lambda: subprocess.run(
            ["umount", self.path], stderr=subprocess.DEVNULL)
            .returncode == 0 or not self.is_mounted(), 20, 0.02)

    def close(self):
        if self.is_mounted():
            try:
                self.umount()
            except AssertionError:
                subprocess.run(["umount", "-l", self.path])
                raise


class Machine:
    def __init__(self, mode, kind="xfs", size=2 << 30, **options):
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="ckptfs-crash-",
                                                  dir=mounted.TEST_DIR))
        self.image = self.m = None
        self.processes = []
        try:
            self.image = Image(self.base, kind, size)
            options = {"dram": "256M", **options}
            self.m = mounted.Mounted(mode, nvme=self.image.path / "nvme",
                                     **options)
            self.m.start()
        except BaseException:
            self.close()
            raise

    def spawn(self, command):
        p = subprocess.Popen([str(c) for c in command],
                             stdin=subprocess.DEVNULL)
        self.processes.append(p)
        return p

    def end_processes(self):
        for p in self.processes:
            p.kill()
            p.wait()
        self.processes.clear()

    def power_off(self, linger=0, starting=False):
        """linger: how long the daemon lives on after its disk has gone."""
        self.image.shutdown()
        time.sleep(linger)
        if not starting:
            assert self.m.alive(), \
                f"it died of its disk: {self.m.log_tail()}"
        self.m.kill()
        self.end_processes()
        if mounted.is_mountpoint(self.m.path):
            self.m.unmount(lazy=True)
        mounted.free_dram(self.m.dram_dir)
        self.image.umount()

    def power_on(self, **changed):
        self.image.mount()
        self.m.start(**changed)
        start = self.m.status()["start"]
        assert "carried on" not in start, start
        return self

    def begin(self):
        """Starts the daemon, and does not wait until it is up."""
        m = self.m
        with open(m.log, "ab") as log:
            m.process = m.popen(m.command(), stdin=subprocess.DEVNULL,
                                stdout=log, stderr=log)

    def cut(self, linger=0, **changed):
        self.power_off(linger)
        return self.power_on(**changed)

    def close(self):
        try:
            self.end_processes()
            if self.m:
                self.m.close()
        finally:
            try:
                if self.image:
                    self.image.close()
            finally:
                mounted.drop(self.base)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

