# SPDX-License-Identifier: Apache-2.0
"""Random operations on the mount and on a plain directory side by side: the
same results, the same errors, the same tree; also after remounts, kills and
evictions.

$CKPTFS_MODEL_EXAMPLES is how many sequences each test makes (more by hand, to
search longer)."""
import dataclasses
import errno
import os
import shutil
import stat
import time

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import mounted
from calls import (KEEP_SIZE, PUNCH_HOLE, RENAME_EXCHANGE, RENAME_NOREPLACE,
                   fallocate, noise, rename2, xattrs)

EXAMPLES = int(os.environ.get("CKPTFS_MODEL_EXAMPLES",
                              8 if mounted.SANITIZED else 30))

pytestmark = pytest.mark.limit(280)

names = st.sampled_from(["a", "b", "c"])
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
sizes = st.one_of(st.integers(0, 100), st.sampled_from([4095, 4096, 65536,
                                                        65537, 300_000]))
places = st.one_of(st.integers(0, 200), st.sampled_from([4096, 50_000,
                                                         200_000]))
slots = st.integers(0, 2)
modes = st.sampled_from([0o600, 0o644, 0o755, 0o700])
seeds = st.integers(0, 255)
flags = st.sampled_from([
    os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT,
    os.O_RDWR | os.O_CREAT | os.O_TRUNC, os.O_WRONLY | os.O_TRUNC,
    os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_WRONLY | os.O_APPEND,
    os.O_RDWR | os.O_CREAT | os.O_APPEND])
stamps = st.integers(1, 2_000_000_000_999_999_999)

operations = st.one_of(
    st.tuples(st.just("save"), paths, sizes, seeds),
    st.tuples(st.just("open"), slots, paths, flags, modes),
    st.tuples(st.just("close"), slots),
    st.tuples(st.just("write"), slots, places, sizes, seeds),
    st.tuples(st.just("append"), slots, sizes, seeds),
    st.tuples(st.just("read"), slots, places, sizes),
    st.tuples(st.just("ftruncate"), slots, sizes),
    st.tuples(st.just("punch"), slots, places, sizes),
    st.tuples(st.just("allocate"), slots, places, sizes),
    st.tuples(st.just("copy"), slots, slots, places, places, sizes),
    st.tuples(st.just("fsync"), slots),
    st.tuples(st.just("truncate"), paths, sizes),
    st.tuples(st.just("mkdir"), paths, modes),
    st.tuples(st.just("rmdir"), paths),
    st.tuples(st.just("unlink"), paths),
    st.tuples(st.just("rename"), paths, paths,
              st.sampled_from([0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE])),
    st.tuples(st.just("link"), paths, paths),
    st.tuples(st.just("symlink"), st.sampled_from(["a", "b/c", "nowhere"]),
              paths),
    st.tuples(st.just("mkfifo"), paths),
    st.tuples(st.just("mknod"), paths, modes),
    st.tuples(st.just("chmod"), paths, modes),
    st.tuples(st.just("utime"), paths, stamps),
    st.tuples(st.just("futime"), slots, stamps),
    st.tuples(st.just("setxattr"), paths, names, seeds),
    st.tuples(st.just("removexattr"), paths, names),
    st.tuples(st.just("load"), paths),
    st.tuples(st.just("list"), paths),
    st.tuples(st.just("rmtree"), paths),
)


@dataclasses.dataclass
class Side:
    """One of the two trees, with its open files."""
    top: str
    fds: dict = dataclasses.field(default_factory=dict)

    def do(self, operation):
        """What it gave, or the errno."""
        name, *arguments = operation
        try:
            return getattr(self, "op_" + name)(*arguments)
        except OSError as e:
            return errno.errorcode[e.errno]

    def at(self, path):
        return os.path.join(self.top, path)

    def fd(self, slot):
        if slot not in self.fds:
            raise OSError(errno.EBADF, "")
        return self.fds[slot]

    def close_all(self):
        for slot in list(self.fds):
            self.op_close(slot)

    def op_open(self, slot, path, how, mode):
        fifo = os.path.exists(self.at(path)) and \
            stat.S_ISFIFO(os.stat(self.at(path)).st_mode)
        if fifo:  # would wait for the other end
            return "fifo"
        fd = os.open(self.at(path), how, mode)
        if slot in self.fds:
            os.close(self.fds[slot])
        self.fds[slot] = fd

    def op_close(self, slot):
        os.close(self.fds.pop(slot, -1))

    def op_save(self, path, size, seed):
        if stat.S_ISFIFO(self.kind(path)):
            return "fifo"
        with open(self.at(path), "wb") as f:
            f.write(noise(size, seed))

    def kind(self, path):
        try:
            return os.stat(self.at(path)).st_mode
        except OSError:
            return 0

    def op_load(self, path):
        if stat.S_ISFIFO(self.kind(path)):
            return "fifo"
        with open(self.at(path), "rb") as f:
            return f.read()

    def op_write(self, slot, place, size, seed):
        return os.pwrite(self.fd(slot), noise(size, seed), place)

    def op_append(self, slot, size, seed):
        return os.write(self.fd(slot), noise(size, seed))

    def op_read(self, slot, place, size):
        return os.pread(self.fd(slot), size, place)

    def op_ftruncate(self, slot, size):
        os.ftruncate(self.fd(slot), size)

    def op_punch(self, slot, place, size):
        fallocate(self.fd(slot), PUNCH_HOLE | KEEP_SIZE, place, size)

    def op_allocate(self, slot, place, size):
        fallocate(self.fd(slot), 0, place, size)

    def op_copy(self, source, target, at, to, size):
        s, t = self.fd(source), self.fd(target)
        done = 0
        while done < size:
            n = os.copy_file_range(s, t, size - done, at + done, to + done)
            if n == 0:
                break
            done += n
        return done

    def op_fsync(self, slot):
        os.fsync(self.fd(slot))

    def op_truncate(self, path, size):
        if stat.S_ISFIFO(self.kind(path)):
            return "fifo"
        os.truncate(self.at(path), size)

    def op_mkdir(self, path, mode):
        os.mkdir(self.at(path), mode)

    def op_rmdir(self, path):
        os.rmdir(self.at(path))

    def op_unlink(self, path):
        os.unlink(self.at(path))

    def op_rename(self, old, new, how):
        rename2(self.at(old), self.at(new), how)

    def op_link(self, old, new):
        os.link(self.at(old), self.at(new), follow_symlinks=False)

    def op_symlink(self, target, path):
        os.symlink(target, self.at(path))

    def op_mkfifo(self, path):
        os.mkfifo(self.at(path))

    def op_mknod(self, path, mode):
        os.mknod(self.at(path), stat.S_IFREG | mode)

    def op_chmod(self, path, mode):
        os.chmod(self.at(path), mode)

    def op_utime(self, path, stamp):
        os.utime(self.at(path), ns=(stamp, stamp), follow_symlinks=False)

    def op_futime(self, slot, stamp):
        os.utime(self.fd(slot), ns=(stamp, stamp))

    def op_setxattr(self, path, name, seed):
        os.setxattr(self.at(path), "user." + name, noise(seed, seed))

    def op_removexattr(self, path, name):
        os.removexattr(self.at(path), "user." + name)

    def op_list(self, path):
        return sorted(os.listdir(self.at(path)))

    def op_rmtree(self, path):
        if stat.S_ISDIR(os.lstat(self.at(path)).st_mode):
            shutil.rmtree(self.at(path))  # opens even a fifo, and waits

    def tree(self):
        """All there is, times only where a test set them long ago."""
        found = {}
        for folder, folders, files in os.walk(self.top):
            for name in folders + files:
                path = os.path.join(folder, name)
                s = os.lstat(path)
                what = [oct(s.st_mode)]
                if not stat.S_ISDIR(s.st_mode):
                    what += [s.st_nlink, s.st_size]
                if stat.S_ISREG(s.st_mode):
                    with open(path, "rb") as f:
                        what.append(f.read())
                if stat.S_ISLNK(s.st_mode):
                    what.append(os.readlink(path))
                else:
                    what.append(xattrs(path))
                found[os.path.relpath(path, self.top)] = what
        return found

    def sizes(self):
        return {slot: os.fstat(fd).st_size for slot, fd in self.fds.items()}


def times(side):
    """mtimes that were set by utime (those of now differ by moments)."""
    found = {}
    for folder, folders, files in os.walk(side.top):
        for name in folders + files:
            path = os.path.join(folder, name)
            stamp = os.lstat(path).st_mtime_ns
            recent = abs(stamp - time.time_ns()) < 600e9
            found[os.path.relpath(path, side.top)] = \
                "now" if recent else stamp
    return found


class Pair:
    """The mount's directory and the plain one."""
    n = 0

    def __init__(self, m, plain):
        Pair.n += 1
        self.m = m
        self.ours = Side(str(m.path / f"x{Pair.n}"))
        self.model = Side(str(plain / f"x{Pair.n}"))
        for side in (self.ours, self.model):
            os.mkdir(side.top)

    def run(self, operations):
        for operation in operations:
            got, want = (s.do(operation) for s in (self.ours, self.model))
            note(f"{operation} -> {_short(want)}")
            assert got == want, operation
            assert self.ours.sizes() == self.model.sizes(), operation

    def compare(self, when):
        ours, model = self.ours.tree(), self.model.tree()
        if ours != model:
            for path in sorted(set(ours) | set(model)):
                if ours.get(path) != model.get(path):
                    note(f"{when}: {path}: {_short(ours.get(path))} instead "
                         f"of {_short(model.get(path))}")
        assert ours == model, when
        assert times(self.ours) == times(self.model), when

    def close_files(self):
        for side in (self.ours, self.model):
            side.close_all()

    def forget(self):
        self.close_files()
        for side in (self.ours, self.model):
            for folder, folders, _ in os.walk(side.top):
                for name in folders:
                    if not os.path.islink(os.path.join(folder, name)):
                        os.chmod(os.path.join(folder, name), 0o700)
            shutil.rmtree(side.top)


def _short(value):
    text = repr(value)
    return text if len(text) < 200 else text[:200] + "…"


def sequences(examples, max_size=40):
    def wrap(function):
        return settings(
            max_examples=max(1, examples), deadline=None, database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        )(given(data=st.lists(operations, min_size=1, max_size=max_size))(
            function))
    return wrap


def test_side_by_side(m, plain):
    @sequences(EXAMPLES * 4, 60)
    def check(data):
        pair = Pair(m, plain)
        try:
            pair.run(data)
            pair.compare("at the end")
            pair.close_files()
            pair.compare("after closing")
        finally:
            pair.forget()

    check()


def test_from_nvme(m, plain):
    """In between, all DRAM copies are dropped."""
    @sequences(EXAMPLES)
    def check(data):
        pair = Pair(m, plain)
        try:
            for at in range(0, len(data), 8):
                pair.run(data[at:at + 8])
                m.evict("nvme")
                pair.compare("after eviction")
        finally:
            pair.forget()

    check()


def _with(fresh, plain, examples, change, keep_open=False, **options):
    m = fresh(**options)

    @sequences(examples)
    def check(data):
        pair = Pair(m, plain)
        half = len(data) // 2
        try:
            for part in (data[:half], data[half:]):
                pair.run(part)
                if not keep_open:
                    pair.close_files()
                change(m)
                for side in (pair.ours, pair.model):
                    side.fds = _lost(side.fds)
                pair.compare("after the change")
        finally:
            pair.forget()

    check()


def _lost(fds):
    """The descriptors of a mount that is gone: closed, whatever that says."""
    for fd in fds.values():
        try:
            os.close(fd)
        except OSError:
            pass
    return {}


def test_across_remounts(fresh, plain):
    _with(fresh, plain, EXAMPLES // 2, lambda m: m.remount())


def test_across_kills(fresh, plain):
    """Also with files open and half written."""
    def kill(m):
        m.kill()
        m.start()

    _with(fresh, plain, EXAMPLES // 2, kill, keep_open=True)


def test_across_power_cuts(fresh, plain):
    """After `wait nvme`, all of it."""
    def cut(m):
        m.wait("nvme")
        m.lose_dram()

    _with(fresh, plain, EXAMPLES // 2, cut)


def test_across_machines(mode, fresh, plain):
    """After `wait remote`, on another one; not what stays local."""
    if mode == "plain":
        pytest.skip("a plain directory has no remote")
    m = fresh(remote=True)

    @sequences(EXAMPLES // 3)
    def check(data):
        pair = Pair(m, plain)
        try:
            pair.run(o for o in data if o[0] not in ("mkfifo", "link"))
            pair.close_files()
            pair.compare("before")
            m.wait("remote")
            m.kill()
            m.unmount(lazy=True)
            mounted.user.as_root(lambda: mounted.free_dram(m.dram_dir))
            shutil.rmtree(m.nvme)
            m.start()
            pair.compare("on another machine")
        finally:
            pair.forget()

    check()
