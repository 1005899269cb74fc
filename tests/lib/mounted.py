# SPDX-License-Identifier: Apache-2.0
"""A ckptfs mount of a test's own: its directories, its daemon, its end.

    with Mounted("served", dram="128M", remote=True) as m:
        (m.path / "a").write_bytes(b"x")
        m.wait("nvme")

Modes: `passthrough` and `served` as root; `user`, served for an ordinary user
(see user.py for how a test of root's becomes one); `plain`, a directory without
ckptfs, on which each test must pass too ($CKPTFS_TEST_PLAIN=1).

Needs $CKPTFS_BIN, the folder of ckptfs and ckptctl. $CKPTFS_TEST_DIR is where
the directories go (default /var/tmp: a disk, as the nvme tier wants one).
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import user

SANITIZED = bool(os.environ.get("CKPT_SANITIZE"))
PLAIN = bool(os.environ.get("CKPTFS_TEST_PLAIN"))
TEST_DIR = os.environ.get("CKPTFS_TEST_DIR", "/var/tmp")
# How much longer things may take than on an idle machine.
PATIENCE = 4 if SANITIZED else 1


class Missing(unittest.SkipTest):
    """What the machine lacks: skipped by people, a failure in CI."""


def missing(what):
    if os.environ.get("CI"):
        raise AssertionError(f"{what} (in CI this is a failure)")
    raise Missing(what)


def until(condition, seconds=30, every=0.01):
    """The first true value of condition(); AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds * PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds * PATIENCE} s in vain")
        time.sleep(every)


def programs():
    folder = os.environ.get("CKPTFS_BIN")
    if not folder:
        raise AssertionError("CKPTFS_BIN is not set: run by ctest, or "
                             "CKPTFS_BIN=build/bin tests/run FILE")
    return pathlib.Path(folder).absolute()


def modes():
    """The modes that whoever runs the tests can have."""
    if PLAIN:
        return ["plain"]
    if os.geteuid() != 0:
        return ["user"]
    return ["passthrough", "served", "user"]


def is_mountpoint(path):
    """Also of a dead mount, which os.path.ismount() takes for none."""
    with open("/proc/self/mountinfo") as f:
        return any(line.split()[4] == str(path) for line in f)


def drop(path):
    """Removes a tree that may hold anything, also without rights in it."""
    def again(function, name, _):
        try:
            os.chmod(os.path.dirname(name), 0o700)
            function(name)
        except OSError:
            pass
    shutil.rmtree(path, onerror=again)


def free_dram(folder):
    """Ends a DRAM tier whose daemon is dead, as a power cut does."""
    if not folder or not os.path.exists(folder):
        return
    inside = []
    with open("/proc/self/mountinfo") as f:
        for line in f:
            at = line.split()[4]
            if at == folder or at.startswith(folder + "/"):
                inside.append(at)
    for at in sorted(inside, reverse=True):
        subprocess.run(["umount", "-l", at], check=True)
    drop(folder)


class Mounted:
    live = []  # all of this process, for the watchdog

    def __init__(self, mode, remote=None, nvme=None, base=None, **options):
        """remote: True for a directory of its own, or what -o remote= takes.
        nvme: a directory, else one of its own. Options as -o takes them;
        None leaves one out."""
        self.mode = mode
        self.plain = mode == "plain"
        self.process = None
        self.dram_dir = None
        self.keep = []
        if not self.plain and not os.path.exists("/dev/fuse"):
            missing("no /dev/fuse")
        self.owns_base = base is None
        user.as_root(lambda: self._make(base))
        self.path = self.base / "mnt"
        self.nvme = pathlib.Path(nvme or self.base / "nvme")
        self.remote_dir = self.base / "remote"
        self.log = self.base / "log"
        self.options = {"dram": "128M", "nvme": self.nvme,
                        "io": "passthrough" if mode == "passthrough"
                              else "served"}
        if remote:
            self.options["remote"] = (f"dir:{self.remote_dir}"
                                      if remote is True else remote)
        self.options.update(options)
        Mounted.live.append(self)

    def _make(self, base):
        """The directories, and whose they are."""
        self.base = pathlib.Path(base or tempfile.mkdtemp(
            prefix="ckptfs-test-", dir=TEST_DIR))
        os.chmod(self.base, 0o755)
        for name in ("mnt", "remote", "home", "state", "run", "bin"):
            (self.base / name).mkdir(exist_ok=True)
        self._programs()
        if self._other_user():
            for path in [self.base, *self.base.iterdir()]:
                os.chown(path, user.UID, user.GID)

    def _programs(self):
        """Where an ordinary user can run them, too."""
        if self.plain:
            return
        self.bin = programs()
        if not self._other_user():
            return
        for name in ("ckptfs", "ckptctl"):
            if not (self.base / "bin" / name).exists():
                shutil.copy(self.bin / name, self.base / "bin" / name)
        self.bin = self.base / "bin"

    def _other_user(self):
        return self.mode == "user" and os.geteuid() == 0

    # ---- processes ----

    def environment(self):
        return dict(os.environ, HOME=str(self.base / "home"),
                    XDG_STATE_HOME=str(self.base / "state"),
                    XDG_RUNTIME_DIR=str(self.base / "run"), LC_ALL="C.UTF-8")

    def popen(self, command, **more):
        """A process of whoever owns the mount."""
        if self._other_user():
            more.update(user=user.UID, group=user.GID, extra_groups=[])
        return subprocess.Popen([str(c) for c in command],
                                env=self.environment(), **more)

    def run(self, command, check=True, timeout=120, **more):
        more.setdefault("stdout", subprocess.PIPE)
        more.setdefault("stderr", subprocess.PIPE)
        with self.popen(command, text=True, stdin=subprocess.DEVNULL,
                        **more) as p:
            try:
                out, err = p.communicate(timeout=timeout * PATIENCE)
            except subprocess.TimeoutExpired:
                p.kill()
                raise
        if check and p.returncode:
            raise AssertionError(f"{' '.join(str(c) for c in command)}: exit "
                                 f"{p.returncode}: {out}{err}")
        return subprocess.CompletedProcess(command, p.returncode, out, err)

    def command(self, foreground=True, **changed):
        """The command line of a mount."""
        options = dict(self.options, **changed)
        words = [k if v is True else f"{k}={v}" for k, v in options.items()
                 if v is not None]
        return [self.bin / "ckptfs", *(["-f"] if foreground else []), "none",
                self.path, "-o", ",".join(words)]

    # ---- up and down ----

    def start(self, **changed):
        """Mounts; options given here stay changed."""
        self.options.update(changed)
        if self.plain:
            return self
        with open(self.log, "ab") as log:
            self.process = self.popen(self.command(), stdin=subprocess.DEVNULL,
                                      stdout=log, stderr=log,
                                      start_new_session=True)
        until(self._is_up, 60)
        self.dram_dir = self.status()["dram_dir"]
        return self

    def _is_up(self):
        code = self.process.poll()
        if code is not None:
            raise AssertionError(f"ckptfs ended with {code}: {self.log_tail()}")
        # A dead mount may still be there, or just have been taken away.
        r = self.ctl("status", self.path, "--json", check=False)
        return r.returncode == 0 and \
            json.loads(r.stdout)["pid"] == self.process.pid

    def alive(self):
        return self.plain or (self.process is not None
                              and self.process.poll() is None)

    def unmount(self, lazy=False, check=True):
        if self.mode == "user":
            command = ["fusermount3", "-uz" if lazy else "-u", self.path]
        else:
            command = ["umount", *(["-l"] if lazy else []), self.path]
        self.run(command, check=check)

    def ended(self, seconds=60):
        """Waits for the daemon's end; its exit code."""
        try:
            return self.process.wait(seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError("the daemon did not end in "
                                 f"{seconds} s: {self.log_tail()}") from None

    def stop(self):
        """umount, and the daemon's drain; all is on NVMe then."""
        if self.plain or not self.process:
            return
        self.unmount()
        code = self.ended()
        self.process = None
        assert code == 0, f"ckptfs ended with {code}: {self.log_tail()}"

    def remount(self, **changed):
        self.stop()
        return self.start(**changed)

    def kill(self):
        """SIGKILL; the dead mount stays."""
        if self.plain:
            return
        self.process.kill()
        self.process.wait()
        self.process = None

    def lose_dram(self, **changed):
        """As a power cut, but for what the NVMe's page cache keeps: the daemon
        is killed, its DRAM freed, and it is mounted again."""
        if self.plain:
            return self
        self.kill()
        self.unmount(lazy=True)
        user.as_root(lambda: free_dram(self.dram_dir))
        return self.start(**changed)

    def abort(self):
        """Ends whatever hangs: requests fail, the daemon is killed."""
        try:
            device = None
            with open("/proc/self/mountinfo") as f:
                for line in f:
                    if line.split()[4] == str(self.path):
                        device = line.split()[2].split(":")[1]
            if device:
                abort = f"/sys/fs/fuse/connections/{device}/abort"
                pathlib.Path(abort).write_text("1")
        except OSError:
            pass
        if self.process:
            self.process.kill()

    def close(self):
        """Ends everything, whatever state it is in; removes everything."""
        if self in Mounted.live:
            Mounted.live.remove(self)
        trouble = None
        if self.process and self.process.poll() is None:
            self.unmount(lazy=True, check=False)
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60 * PATIENCE)
            except subprocess.TimeoutExpired:
                trouble = f"the daemon did not end: {self.log_tail()}"
                self.process.send_signal(signal.SIGKILL)
                self.process.wait()
        if not self.plain and is_mountpoint(self.path):
            self.unmount(lazy=True, check=False)
        free_dram(self.dram_dir)
        if self.owns_base:
            drop(self.base)
        if trouble:
            raise AssertionError(trouble)

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_):
        self.close()

    def log_tail(self, lines=40):
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    # ---- ckptctl ----

    def ctl(self, *words, check=True, timeout=120):
        if self.plain:
            raise unittest.SkipTest("a plain directory has no ckptctl")
        return self.run([self.bin / "ckptctl", *words], check=check,
                        timeout=timeout)

    def status(self, path=None):
        """ckptctl status --json, of the mount or of a path in it."""
        return json.loads(self.ctl("status", path or self.path,
                                   "--json").stdout)

    def wait(self, level, path=None, timeout=60):
        """What is under path has reached the level."""
        if not self.plain:
            self.ctl("wait", path or self.path, "--level", level,
                     "--timeout", str(timeout * PATIENCE),
                     timeout=timeout + 10)

    def evict(self, level="nvme", path=None):
        """Only the copies of that tier and slower ones stay."""
        if self.plain:
            return
        self.wait(level, path)
        self.ctl("evict", path or self.path, "--level", level)
