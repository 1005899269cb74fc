# SPDX-License-Identifier: Apache-2.0
"""Mounting: its forms, what is refused and how, dead mounts, leftovers."""
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

import user
from user import OTHER
from calls import errno_of, noise, opened, read, write
from mounted import Mounted, PATIENCE, is_mountpoint, missing, until

MB = 1 << 20


@pytest.fixture(autouse=True)
def not_plain(mode):
    if mode == "plain":
        pytest.skip("a plain directory is not mounted")


@pytest.fixture
def one(mode):
    """Directories and options, nothing mounted yet."""
    made = Mounted(mode)
    yield made
    made.close()


def leftovers(m):
    return {e["base"] for e in json.loads(m.ctl("leftovers", "--json").stdout)}


def of_another_test(m, base):
    """Tests run side by side; theirs come and go."""
    try:
        with open(f"{base}/owner") as f:
            return f"nvme {m.base}/" not in f.read()
    except FileNotFoundError:
        return not os.path.exists(base)


def daemons(m):
    """Processes of ours that have the mount point in their command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                words = f.read().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"ckptfs") and os.fsencode(m.path) in words:
            found.append(int(pid))
    return found


def start_in_background(m, command=None):
    """Mounts as a user would; m can end it."""
    m.run(command or m.command(foreground=False))
    status = m.status()
    m.dram_dir = status["dram_dir"]
    return status["pid"]


# ---- forms ----


def test_in_the_background(one):
    """The command returns when the mount can be used; umount ends it all."""
    pid = start_in_background(one)
    assert is_mountpoint(one.path)
    write(one.path / "f", b"x")
    assert daemons(one) == [pid]
    os.chdir("/")
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    one.unmount()
    until(lambda: not daemons(one))
    start_in_background(one)
    assert read(one.path / "f") == b"x"
    one.unmount()
    until(lambda: not daemons(one))


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_without_standard_descriptors(mode, one, closed):
    """What the daemon opens must not be taken for one of them: they go to
    nothing once it is up, and with them went the lock of its state."""
    words = one.command(foreground=False)
    one.run(["sh", "-c", f'exec "$@" {closed}', "sh", *words], timeout=20)
    status = one.status()
    one.dram_dir = status["dram_dir"]
    for fd in range(3):
        assert os.readlink(f"/proc/{status['pid']}/fd/{fd}") == "/dev/null"
    two = Mounted(mode, nvme=one.nvme)
    try:
        refused(two, two.command(), "in use")
    finally:
        two.close()
    one.unmount()
    until(lambda: not daemons(one))


def test_keeps_nothing_of_its_callers(one):
    """`( flock 9; ckptfs ... ) 9>lock`: the lock is not the mount's."""
    with opened(one.base / "home" / "lock", os.O_CREAT | os.O_RDWR) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        one.run(one.command(foreground=False), pass_fds=[fd])
    one.dram_dir = one.status()["dram_dir"]
    with opened(one.base / "home" / "lock", os.O_RDWR) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    one.unmount()
    until(lambda: not daemons(one))


def test_mounts_fast(one):
    begin = time.monotonic()
    start_in_background(one)
    took = time.monotonic() - begin
    one.unmount()
    until(lambda: not daemons(one))
    assert took < 2 * PATIENCE


def test_without_options(one):
    """DRAM a quarter of RAM, state in the user's own directory."""
    if os.geteuid() == 0:
        pytest.skip("/var/lib is not a test's")
    command = [one.bin / "ckptfs", one.path]
    start_in_background(one, command)
    s = one.status()
    assert s["nvme_dir"].startswith(str(one.base / "state" / "ckptfs"))
    assert s["tiers"][0]["size"] > 16 * MB
    assert s["io"] == "served" and "root" in s["io_note"]
    write(one.path / "f", b"x")
    one.unmount()
    until(lambda: not daemons(one))


@pytest.mark.modes("passthrough")
def test_io_auto_takes_passthrough(one):
    start_in_background(one, [w if not str(w).startswith("dram=") else
                              str(w).replace("io=passthrough", "io=auto")
                              for w in one.command(foreground=False)])
    assert one.status()["io"] == "passthrough"
    one.unmount()
    until(lambda: not daemons(one))


@pytest.mark.root
def test_mount_helper(one):
    """What mount(8) runs for fuse.ckptfs in fstab."""
    helper = one.base / "bin" / "mount.fuse.ckptfs"
    os.symlink(one.bin / "ckptfs", helper)
    options = one.command()[-1]
    words = [helper, "none", one.path, "-n", "-o",
             f"rw,noatime,_netdev,nofail,x-systemd.automount,{options}"]
    assert one.run([helper, "none", one.path, "-f", "-o",
                    options]).returncode == 0
    assert not is_mountpoint(one.path), "-f is fake there"
    pid = start_in_background(one, words)
    assert pid in daemons(one) or pid > 0
    with open("/proc/self/mountinfo") as f:
        line = next(x for x in f if x.split()[4] == str(one.path))
    assert " fuse.ckptfs none " in line and "noatime" in line
    write(one.path / "f", b"x")
    one.unmount()
    until(lambda: not os.path.exists(f"/proc/{pid}"))


def test_help_and_version(one):
    text = one.run([one.bin / "ckptfs", "--help"]).stdout
    assert text.count("\n") <= 24 and "usage: ckptfs" in text
    assert max(map(len, text.splitlines())) <= 80
    text = one.run([one.bin / "ckptfs", "--version"]).stdout
    for word in ("libfuse", "RocksDB", "passthrough", "io_uring", "S3",
                 "CUDA"):
        assert word in text


def test_log_option(one):
    log = one.base / "home" / "ckptfs.log"
    command = one.command(foreground=False, log=log)
    start_in_background(one, command)
    one.unmount()
    until(lambda: not daemons(one))
    assert str(one.path) in log.read_text()


def test_sizes(one):
    for words, size in ((dict(dram="48M"), 48 * MB),
                        (dict(dram="65536K"), 64 * MB)):
        start_in_background(one, one.command(foreground=False, **words))
        assert one.status()["tiers"][0]["size"] == size
        one.unmount()
        until(lambda: not daemons(one))


def test_read_only(one):
    start_in_background(one)
    write(one.path / "f", b"x")
    one.unmount()
    until(lambda: not daemons(one))
    start_in_background(one, one.command(foreground=False, ro=True))
    assert read(one.path / "f") == b"x"
    assert errno_of(write, one.path / "g", b"") == 30
    one.unmount()
    until(lambda: not daemons(one))


# ---- what is refused ----

BAD = {
    "unknown option": (dict(drams="1G"), "drams"),
    "misspelt option": (dict(fsnc="nvme"), "fsnc"),
    "option without its value": (dict(dram=True), "dram"),
    "empty value": (dict(dram=""), "dram"),
    "no size": (dict(dram="lots"), "lots"),
    "negative size": (dict(dram="-1G"), "-1G"),
    "size too small": (dict(dram="1K"), "1K"),
    "size of the sky": (dict(dram="99999999T"), "99999999T"),
    "more than all": (dict(dram="150%"), "150%"),
    "unknown level": (dict(fsync="disk"), "disk"),
    "unknown io mode": (dict(io="fast"), "fast"),
    "unknown remote kind": (dict(remote="ftp://host/x"), "ftp"),
    "remote without a path": (dict(remote="dir:"), "dir:"),
    "remote that is not there": (dict(remote="dir:/no/such/place"),
                                 "/no/such/place"),
    "relative remote": (dict(remote="dir:relative"), "relative"),
    "fsync=remote without one": (dict(fsync="remote"), "remote"),
    "reserve": (dict(reserve="maybe"), "maybe"),
    "flush_rate": (dict(flush_rate="fast"), "fast"),
    "log in no folder": (dict(log="/no/such/folder/log"),
                         "/no/such/folder/log"),
    "nvme below a file": (dict(nvme="/proc/version/x"), "/proc/version"),
    "nvme that cannot be made": (dict(nvme="/proc/ckptfs"), "/proc/ckptfs"),
}


def refused(m, command, *words, code=None):
    """One clear line, an exit code, and nothing half done."""
    before = leftovers(m)
    r = m.run(command, check=False, timeout=60)
    assert r.returncode != 0, "it mounted"
    if code:
        assert r.returncode == code
    lines = [x for x in r.stderr.splitlines()
             if not x.startswith("ckptfs: warning: ")]
    assert len(lines) == 1, r.stderr
    assert lines[0].startswith("ckptfs: error: ")
    for word in words:
        assert word in lines[0]
    assert not is_mountpoint(m.path)
    assert daemons(m) == []
    assert [b for b in leftovers(m) - before
            if not of_another_test(m, b)] == []


@pytest.mark.parametrize("foreground", [True, False])
@pytest.mark.parametrize("what", BAD)
def test_bad_option(one, what, foreground):
    options, word = BAD[what]
    refused(one, one.command(foreground=foreground, **options), word)


def test_mount_point_that_is_not_there(one):
    command = one.command()
    one.path.rmdir()
    refused(one, command, str(one.path), "mkdir")


def test_mount_point_that_is_a_file(one):
    command = one.command()
    one.path.rmdir()
    one.path.write_bytes(b"")
    refused(one, command, str(one.path), "directory")


def test_no_mount_point(one):
    refused(one, [one.bin / "ckptfs"], "mount point")
    refused(one, [one.bin / "ckptfs", "none", one.path, "three"], "three")
    refused(one, [one.bin / "ckptfs", "-x", one.path], "-x")


@pytest.mark.modes("user")
def test_not_ones_own(one):
    """What an ordinary user may not."""
    user.as_root(lambda: os.chown(one.path, 0, 0))
    refused(one, one.command(), str(one.path))
    user.as_root(lambda: os.chown(one.path, os.stat(one.base).st_uid, -1))
    refused(one, one.command(io="passthrough"), "passthrough")
    if not os.path.exists("/etc/fuse.conf") or not any(
            line.startswith("user_allow_other")
            for line in open("/etc/fuse.conf")):
        refused(one, one.command(allow_other=True), "allow_other")


def test_nvme_directory_that_is_a_file(one):
    file = one.base / "home" / "file"
    file.write_bytes(b"")
    refused(one, one.command(nvme=file), str(file))


def test_nvme_directory_that_cannot_be_written(one, mode):
    """Read-only filesystem for root, no right for others."""
    if mode == "user":
        os.mkdir(one.base / "home" / "n", 0o500)
        refused(one, one.command(nvme=one.base / "home" / "n"), "/home/n")
        return
    place = one.base / "readonly"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", place],
                   check=True)
    try:
        refused(one, one.command(nvme=place / "n"), str(place))
    finally:
        subprocess.run(["umount", place], check=True)


def test_nvme_directory_with_other_things(one):
    """Somebody's home, by mistake: nothing in it is touched."""
    home = one.base / "home"
    (home / "thesis.tex").write_bytes(b"precious")
    r = one.run(one.command(foreground=False, nvme=home), check=False)
    if r.returncode == 0:
        one.dram_dir = one.status()["dram_dir"]
        one.unmount()
        until(lambda: not daemons(one))
    assert (home / "thesis.tex").read_bytes() == b"precious"


def test_nvme_directory_without_its_database(fresh, mode):
    """A copy that was cut short, a mistake: the files are not called litter."""
    one = fresh()
    write(one.path / "model.pt", b"m" * (3 << 20))
    one.wait("nvme")
    one.stop()
    before = sorted(os.listdir(one.nvme / "files"))
    assert before
    os.rename(one.nvme / "metadata", one.base / "away")
    for _ in range(2):
        refused(one, one.command(), str(one.nvme / "metadata"))
    assert sorted(os.listdir(one.nvme / "files")) == before
    shutil.rmtree(one.nvme / "metadata", ignore_errors=True)
    os.rename(one.base / "away", one.nvme / "metadata")
    one.start()
    assert read(one.path / "model.pt") == b"m" * (3 << 20)


def test_nvme_directory_in_use(one, mode):
    start_in_background(one)
    two = Mounted(mode, nvme=one.nvme)
    try:
        refused(two, two.command(), str(one.nvme))
    finally:
        two.close()
    write(one.path / "f", b"x")
    assert read(one.path / "f") == b"x"
    one.unmount()
    until(lambda: not daemons(one))


def test_lock_of_a_long_mount_point(one):
    """It says where, all of it and nothing else."""
    for _ in range(3):
        one.path /= "d" * 150
    one.path.mkdir(parents=True)
    one.start()
    assert (one.nvme / "lock").read_bytes() == os.fsencode(
        f"mounted {one.process.pid} {one.path}\n")
    one.stop()


def test_nvme_on_tmpfs_is_warned_of(one):
    if not os.path.ismount("/dev/shm"):
        missing("no /dev/shm")
    place = f"/dev/shm/ckptfs-test-nvme-{os.getpid()}"
    try:
        r = one.run(one.command(foreground=False, nvme=place))
        assert place in r.stderr and "warning" in r.stderr
        one.dram_dir = one.status()["dram_dir"]
        one.unmount()
        until(lambda: not daemons(one))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def test_places_in_each_other(one):
    """A daemon that waits for itself; state that is published."""
    inside, remote = one.path / "sub", one.remote_dir
    refused(one, one.command(nvme=inside), str(inside))
    refused(one, one.command(nvme=one.path), str(one.path))
    refused(one, one.command(log=inside), str(inside))
    refused(one, one.command(remote=f"dir:{one.path}"), str(one.path))
    refused(one, one.command(remote=f"dir:{inside}"), str(inside))
    refused(one, one.command(nvme=remote, remote=f"dir:{remote}"),
            str(remote))
    refused(one, one.command(nvme=remote / "deep" / "n",
                             remote=f"dir:{remote}"), str(remote))
    link = one.base / "home" / "link"
    link.symlink_to(one.path)
    refused(one, one.command(nvme=link / "n"), str(link))


def test_log_that_will_lie_in_the_mount(one):
    """Where it leads to is seen only when it is made: that comes before the
    mount, of which a daemon that does not serve yet must ask nothing."""
    link = one.base / "home" / "log"
    link.symlink_to(one.path / "log")
    start_in_background(one, one.command(foreground=False, log=link))
    assert os.listdir(one.path) == []
    one.unmount()
    until(lambda: not daemons(one))
    assert b"mounted" in read(one.path / "log")


def test_remote_with_files_for_a_state_with_files(mode, fresh):
    """Neither may overwrite the other."""
    m = fresh(remote=True)
    write(m.path / "f", b"the remote's")
    m.wait("remote")
    two = Mounted(mode)
    try:
        two.start()
        write(two.path / "f", b"local")
        two.stop()
        refused(two, two.command(remote=f"dir:{m.remote_dir}"),
                str(m.remote_dir), str(two.nvme))
        two.options["remote"] = f"dir:{two.remote_dir}"  # an empty one
        two.start()
        two.wait("remote")
        assert read(two.path / "f") == b"local"
        two.stop()
    finally:
        two.close()
    assert read(m.remote_dir / "f") == b"the remote's"


def test_another_remote_than_before(mode, fresh):
    m = fresh(remote=True)
    write(m.path / "f", b"x")
    m.wait("remote")
    other = fresh(remote=True)
    m.stop()
    refused(m, m.command(remote=f"dir:{other.remote_dir}"), "another remote")
    m.start()
    assert read(m.path / "f") == b"x"


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_remote_that_comes_later(mode, how):
    """All that was there before gets there, too; both are one from then on."""
    m = Mounted(mode, flush_rate="5M")
    try:
        m.start()
        (m.path / "dir").mkdir()
        write(m.path / "dir" / "f", noise(MB))
        m.kill() if how == "killed" else m.stop()
        m.options["remote"] = f"dir:{m.remote_dir}"
        m.start()
        m.wait("remote")
        assert read(m.remote_dir / "dir" / "f") == noise(MB)
        m.remount()
        assert read(m.path / "dir" / "f") == noise(MB)
    finally:
        m.close()


def test_remote_that_is_a_file(one):
    file = one.base / "remote" / "file"
    file.write_bytes(b"")
    refused(one, one.command(remote=f"dir:{file}"), str(file))


def test_remote_that_cannot_be_written(one, mode):
    if mode == "user":
        os.chmod(one.remote_dir, 0o500)
        refused(one, one.command(remote=f"dir:{one.remote_dir}"),
                str(one.remote_dir))
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none",
                    one.remote_dir], check=True)
    try:
        refused(one, one.command(remote=f"dir:{one.remote_dir}"),
                str(one.remote_dir))
    finally:
        subprocess.run(["umount", one.remote_dir], check=True)


@pytest.mark.root
def test_no_dev_fuse(one):
    """In a mount namespace whose /dev has none."""
    command = " ".join(str(c) for c in one.command())
    script = f"""
        set -e
        mount --make-rprivate /
        mkdir {one.base}/dev
        mount -t tmpfs none {one.base}/dev
        mkdir {one.base}/dev/shm
        for n in null urandom random zero; do
            touch {one.base}/dev/$n
            mount --bind /dev/$n {one.base}/dev/$n
        done
        mount --rbind {one.base}/dev /dev
        exec {command}
    """
    refused(one, ["unshare", "-m", "sh", "-c", script], "/dev/fuse",
            "modprobe fuse")


def test_newer_format(one):
    """State of a later version is left alone."""
    start_in_background(one)
    write(one.path / "f", b"x")
    one.unmount()
    until(lambda: not daemons(one))
    marker = one.nvme / "format"
    if not marker.exists():
        pytest.skip("no format marker to change")
    old = marker.read_bytes()
    marker.write_bytes(old.replace(b"1", b"9999", 1))
    refused(one, one.command(), "newer")
    marker.write_bytes(old)
    start_in_background(one)
    assert read(one.path / "f") == b"x"
    one.unmount()
    until(lambda: not daemons(one))


def test_mounted_already(one):
    start_in_background(one)
    r = one.run(one.command(), check=False)
    assert r.returncode != 0
    assert r.stderr.count("\n") == 1 and str(one.path) in r.stderr
    assert is_mountpoint(one.path)
    write(one.path / "f", b"x")
    one.unmount()
    until(lambda: not daemons(one))
    assert not is_mountpoint(one.path)


def test_secrets_are_not_shown(one):
    """user:password@ of a remote stays out of messages and /proc/mounts."""
    r = one.run(one.command(remote="s3://key:verysecret@host/bucket"),
                check=False)
    assert r.returncode != 0
    assert "verysecret" not in r.stderr + r.stdout


# ---- dead mounts and leftovers ----


def test_dead_mount_is_replaced(fresh):
    m = fresh()
    write(m.path / "f", noise(MB))
    m.kill()
    assert errno_of(os.stat, m.path) == 107  # ENOTCONN
    assert is_mountpoint(m.path)
    m.start()
    assert read(m.path / "f") == noise(MB)
    m.stop()
    assert not is_mountpoint(m.path), "not one below the other"


def test_several_dead_mounts(fresh):
    m = fresh()
    write(m.path / "f", b"x")
    for _ in range(3):
        m.kill()
        m.start()
    assert read(m.path / "f") == b"x"
    m.stop()
    assert not is_mountpoint(m.path)


def test_leftovers_are_named_and_freed(fresh):
    m = fresh()
    write(m.path / "f", noise(MB))
    m.wait("nvme")
    base = m.dram_dir
    assert base not in leftovers(m)
    r = m.ctl("leftovers", "--free", base, check=False)
    assert r.returncode == 1 and "lives" in r.stderr
    m.kill()
    m.unmount(lazy=True)
    assert base in leftovers(m)
    assert base in m.ctl("leftovers").stdout
    assert str(m.nvme) in m.ctl("leftovers").stdout
    m.ctl("leftovers", "--free", base)
    assert base not in leftovers(m)
    assert not os.path.exists(base)
    r = m.ctl("leftovers", "--free", base, check=False)
    assert r.returncode == 1 and r.stderr.count("\n") == 1
    m.start()
    assert read(m.path / "f") == noise(MB)


def test_leftovers_spares_other_things(fresh):
    m = fresh()
    for place in ("/", "/dev/shm", "/run", str(m.base), "/dev/shm/x", ""):
        r = m.ctl("leftovers", "--free", place, check=False)
        assert r.returncode == 1, place
    assert os.path.isdir(m.base)


def test_leftovers_spares_other_pid_namespaces(one, mode):
    """A container whose daemon lives; it shares /run with the host."""
    if mode == "user":
        pytest.skip("needs root's unshare")

    def place():
        for owner in pathlib.Path("/run/ckptfs").glob("*/owner"):
            if not of_another_test(one, owner.parent):
                return str(owner.parent)
        return None
    words = ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child",
             *one.command()]
    with open(one.log, "ab") as log:
        one.process = one.popen(words, stdout=log, stderr=log)
    try:
        one.dram_dir = until(place)
        assert one.dram_dir not in leftovers(one)
        r = one.ctl("leftovers", "--free", one.dram_dir, check=False)
        assert r.returncode == 1 and "lives" in r.stderr
    finally:
        one.kill()
    until(lambda: one.dram_dir in leftovers(one))


@pytest.fixture
def squatter(mode):
    """makes(name) makes that directory in /dev/shm as somebody else."""
    if mode == "user":
        pytest.skip("needs two users")
    made = []

    def makes(name, inside):
        path = f"/dev/shm/ckptfs-{os.geteuid()}-{name}"
        made.append(path)

        def work():
            os.mkdir(path)
            inside(path + "/owner")
        user.in_child(work, uid=OTHER)
        return path
    yield makes
    for path in made:
        shutil.rmtree(path)


def test_what_others_put_into_dev_shm(fresh, squatter):
    """It stops neither a mount nor ckptctl."""
    m = fresh()
    write(m.path / "f", b"x")
    m.stop()
    fake = squatter(os.path.basename(m.dram_dir),
                    lambda owner: open(owner, "w").close())
    m.start()
    assert read(m.path / "f") == b"x"
    assert m.dram_dir != fake and os.path.exists(fake)
    fifo = squatter(f"test-{os.getpid()}", os.mkfifo)
    r = m.ctl("leftovers", "--json", timeout=20)
    assert not {fake, fifo} & {e["base"] for e in json.loads(r.stdout)}


def test_odd_names_of_leftovers(fresh):
    m = fresh()
    path = f"/dev/shm/ckptfs-{os.geteuid()}-{os.getpid()}\"\x1b[31mX"
    os.mkdir(path)
    try:
        assert path in leftovers(m)
        text = m.ctl("leftovers").stdout
        assert "\x1b" not in text and path.replace("\x1b", "?") in text
        m.ctl("leftovers", "--free", path)
        assert not os.path.exists(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def test_ended_cleanly_leaves_nothing(fresh):
    m = fresh()
    write(m.path / "f", noise(2 * MB))
    base = m.dram_dir
    assert os.path.isdir(base)
    m.stop()
    assert not os.path.exists(base)
    assert base not in leftovers(m)


def test_open_directory_does_not_stop_the_next(fresh, mode):
    """umount -l with something still open: the next mount waits or works."""
    if mode == "user":
        pytest.skip("needs root's umount -l")
    m = fresh()
    with opened(m.path / "f", os.O_CREAT | os.O_RDWR) as fd:
        os.write(fd, b"held")
        m.unmount(lazy=True)
        os.write(fd, b" on")
    m.ended()
    m.process = None
    m.start()
    assert read(m.path / "f") == b"held on"


def test_killed_while_starting(one):
    """SIGKILL at random moments of a start; the next one always works."""
    for i in range(12):
        p = one.popen(one.command(), stdout=subprocess.DEVNULL,
                      stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            p.wait(0.01 * i)
        except subprocess.TimeoutExpired:
            p.send_signal(signal.SIGKILL)
            p.wait()
    one.start()
    write(one.path / "f", b"x")
    one.remount()
    assert read(one.path / "f") == b"x"
