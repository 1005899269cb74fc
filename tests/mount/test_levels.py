# SPDX-License-Identifier: Apache-2.0
"""dram, nvme, remote: how far a thing has come, and waiting for it."""
import errno
import json
import os
import threading
import time

import pytest

from calls import (CONTROL_REACHED, CONTROL_WAIT, coming_and_going, control,
                   noise, opened, read, write, write_all)
from mounted import PATIENCE, until

MB = 1 << 20
pytestmark = pytest.mark.modes("passthrough", "served", "user")


@pytest.fixture(autouse=True)
def not_plain(mode):
    if mode == "plain":
        pytest.skip("a plain directory has no levels")


def state(path):
    return os.getxattr(path, "user.ckpt.state").decode()


def test_status_of_a_mount(fresh, mode):
    m = fresh(remote=True)
    s = m.status()
    assert s["io"] == ("passthrough" if mode == "passthrough" else "served")
    assert [t["name"] for t in s["tiers"]] == ["dram", "nvme", "remote"]
    dram, nvme, _ = s["tiers"]
    assert dram["size"] == 128 * MB
    assert nvme["size"] > 0
    assert s["pid"] == m.process.pid
    assert s["mountpoint"] == str(m.path)
    assert s["nvme_dir"] == str(m.nvme)
    assert s["remote"].endswith(str(m.remote_dir))
    assert s["fsync"] == "nvme"
    assert all(t["error"] == "" for t in s["tiers"])
    text = m.ctl("status", m.path).stdout
    for word in ("dram", "nvme", "remote", str(m.path)):
        assert word in text


def test_without_a_path(fresh, mode):
    """The only mount there is, whatever is in its name."""
    if mode == "user":
        pytest.skip("needs root's unshare")
    m = fresh()
    m.stop()
    m.path = m.base / "a b"
    m.path.mkdir()
    m.start()
    (m.path / "d").mkdir()
    only = """
        mapfile -t lines </proc/self/mountinfo
        for line in "${lines[@]}"; do
            read -r _ _ _ _ point _ <<<"$line"
            case $line in
            *a\\\\040b\\ *) ;;
            *\\ -\\ fuse.ckptfs\\ *) umount -l "$point" ;;
            esac
        done
        cd "$1" && exec "$2" status --json"""
    for folder, key, value in (("/", "mountpoint", str(m.path)),
                               (m.path / "d", "type", "tree")):
        r = m.run(["unshare", "-m", "bash", "-c", only, "-", folder,
                   m.bin / "ckptctl"])
        assert json.loads(r.stdout)[key] == value


def test_watermarks_are_ordered_and_move(fresh):
    m = fresh(remote=True)
    last = [0, 0, 0]
    for i in range(5):
        write(m.path / f"f{i}", noise(MB, i))
        now = [t["seq"] for t in m.status()["tiers"]]
        assert now[0] >= now[1] >= now[2]
        assert all(a >= b for a, b in zip(now, last))
        last = now
    m.wait("remote")
    s = m.status()
    assert s["tiers"][2]["seq"] >= last[0]
    assert s["tiers"][1]["behind_bytes"] == 0
    assert s["counts"]["unflushed"] == 0


def test_levels_of_a_file(fresh):
    m = fresh(remote=True)
    fd = os.open(m.path / "f", os.O_CREAT | os.O_WRONLY)
    write_all(fd, noise(MB))
    assert state(m.path / "f") == "writing"
    assert m.status(m.path / "f")["writing"] is True
    os.close(fd)
    assert state(m.path / "f") in ("dram", "nvme", "remote")
    m.wait("nvme", m.path / "f")
    assert state(m.path / "f") in ("nvme", "remote")
    m.wait("remote", m.path / "f")
    assert state(m.path / "f") == "remote"
    s = m.status(m.path / "f")
    assert s["level"] == "remote" and s["size"] == MB
    assert s["on_nvme"] and s["on_remote"] and not s["writing"]


def test_level_goes_back_when_written_again(fresh):
    m = fresh(remote=True, flush_rate="1M")
    f = write(m.path / "f", b"one")
    m.wait("remote")
    write(f, noise(8 * MB))
    assert state(f) == "dram"
    assert read(f) == noise(8 * MB)


def test_levels_of_a_tree(fresh):
    m = fresh(remote=True)
    (m.path / "step-1" / "sub").mkdir(parents=True)
    for i in range(10):
        write(m.path / "step-1" / "sub" / f"f{i}", noise(100_000, i))
    write(m.path / "step-1" / "meta", b"x")
    m.wait("remote", m.path / "step-1")
    s = m.status(m.path / "step-1")
    assert (s["files"], s["dirs"], s["bytes"]) == (11, 2, 1_000_001)
    assert s["levels"]["remote"] == {"files": 11, "bytes": 1_000_001}
    assert state(m.path / "step-1") == "remote"
    with opened(m.path / "step-1" / "new", os.O_CREAT | os.O_WRONLY):
        assert m.status(m.path / "step-1")["writing"] == 1
        assert state(m.path / "step-1") == "writing"
    text = m.ctl("status", m.path / "step-1").stdout
    assert "sub" in text and "meta" in text


def test_status_of_a_directory_in_use(fresh):
    """What goes while it is listed is not in the list, and no error."""
    m = fresh()
    d = m.path / "d"
    d.mkdir()
    for i in range(200):
        write(d / f"stays-{i}", b"x")
    with coming_and_going(d, lambda path: write(path, b"")):
        for _ in range(6):
            text = m.ctl("status", d).stdout
            assert text.count("stays-") == 200


def test_a_path_that_a_rename_above_made(fresh):
    """What is on the remote under another name is not at this one yet."""
    m = fresh(remote=True, flush_rate="4M")
    (m.path / "tmp" / "sub").mkdir(parents=True)
    write(m.path / "tmp" / "sub" / "model", b"x")
    m.wait("remote")
    final = m.path / "final"
    write(m.path / "big", noise(12 * MB))  # the log is kept in order
    os.rename(m.path / "tmp", final)
    for path in (final / "sub" / "model", final / "sub", final):
        assert state(path) == m.status(path)["level"] == "dram"
        r = m.ctl("wait", path, "--level", "nvme", "--timeout", "0",
                  check=False)
        assert r.returncode == 3
    m.wait("remote", final / "sub" / "model")
    assert (m.remote_dir / "final" / "sub" / "model").exists()
    assert state(final) == "remote"

    write(m.path / "big", noise(12 * MB, 2))
    write(final / "sub" / "beside", b"x")
    assert state(final / "sub" / "model") == "remote"
    assert state(final / "sub") == m.status(final)["level"] == "dram"


def test_level_of_a_directory_counts(fresh):
    """Also where a file in it is further: what was unlinked is still there."""
    m = fresh(flush_rate="4M")
    (m.path / "d").mkdir()
    write(m.path / "d" / "kept", b"x")
    write(m.path / "d" / "gone", b"x")
    m.wait("nvme")
    write(m.path / "big", noise(12 * MB))
    os.unlink(m.path / "d" / "gone")
    assert state(m.path / "d") == m.status(m.path / "d")["level"] == "dram"
    assert state(m.path / "d" / "kept") == "nvme"
    m.wait("nvme", m.path / "d")
    assert state(m.path / "d") == "nvme"


def test_wait_is_for_what_was_sealed_then(fresh):
    """It does not run after a job that goes on writing."""
    m = fresh()
    write(m.path / "f", noise(MB))
    with opened(m.path / "g", os.O_CREAT | os.O_WRONLY) as fd:
        write_all(fd, noise(MB))
        m.wait("nvme", timeout=20)
        assert state(m.path / "f") == "nvme"


def test_many_wait(fresh):
    """None is sent away, nor anybody else, because others wait already."""
    m = fresh(flush_rate="1M")
    write(m.path / "f", noise(6 * MB))
    seq = m.status()["tiers"][0]["seq"]
    fd = os.open(m.path, os.O_RDONLY)
    over = time.monotonic() + 1
    answers = []

    def wait():
        while time.monotonic() < over:
            answers.append(control(fd, CONTROL_REACHED, seq=seq,
                                   arg=CONTROL_WAIT | 1)["err"])
            if answers[-1]:
                time.sleep(0.05)
    threads = [threading.Thread(target=wait) for _ in range(40)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    os.close(fd)
    assert set(answers) <= {0, -errno.EAGAIN}
    assert len(answers) >= 40
    assert answers.count(-errno.EAGAIN) < len(answers) / 10


def test_wait_says_when_time_is_over(fresh):
    m = fresh(flush_rate="64K")
    write(m.path / "f", noise(8 * MB))
    begin = time.monotonic()
    r = m.ctl("wait", m.path / "f", "--level", "nvme", "--timeout", "0.5",
              check=False)
    assert r.returncode == 3
    assert 0.4 < time.monotonic() - begin < 10 * PATIENCE
    assert r.stderr.count("\n") == 1 and "nvme" in r.stderr
    r = m.ctl("wait", m.path / "f", "--level", "nvme", "--timeout", "0",
              "--json", check=False)
    assert r.returncode == 3 and json.loads(r.stdout)["reached"] is False
    m.ctl("wait", m.path / "f", "--level", "dram")
    r = m.ctl("drain", "--timeout", "0.2", m.path, check=False)
    assert r.returncode == 3
    m.abort()  # at that rate it would not end


def test_wait_for_a_remote_that_is_not_there(fresh):
    m = fresh()
    write(m.path / "f", b"x")
    r = m.ctl("wait", m.path, "--level", "remote", check=False)
    assert r.returncode == 1
    assert "remote" in r.stderr and r.stderr.count("\n") == 1


def test_drain(fresh):
    m = fresh(remote=True)
    for i in range(20):
        write(m.path / f"f{i}", noise(200_000, i))
    m.ctl("drain", m.path, "--level", "remote", "--timeout", "60")
    assert all(state(m.path / f"f{i}") == "remote" for i in range(20))
    assert sorted(os.listdir(m.remote_dir))[-1] == "f9"


def test_wrong_usage(fresh):
    m = fresh()
    for words in (["wait"], ["nonsense"], ["wait", m.path, "--level", "x"],
                  ["wait", m.path, "--timeout", "x"], ["status", "a", "b"],
                  ["evict", m.path, "--level", "dram"], []):
        r = m.ctl(*words, check=False)
        assert r.returncode == 2, words
        assert r.stderr
    for path in (m.base, m.path / "nothing"):
        r = m.ctl("status", path, check=False)
        assert r.returncode == 1
        assert r.stderr.count("\n") == 1 and str(path) in r.stderr
    assert "usage" in m.ctl("--help").stdout
    assert m.ctl("--version").stdout.startswith("ckptctl ")


def test_fsync_promises_nvme(fresh):
    m = fresh(fsync="nvme")
    with opened(m.path / "f", os.O_CREAT | os.O_RDWR) as fd:
        write_all(fd, noise(3 * MB))
        os.fsync(fd)
        m.lose_dram()
        assert read(m.path / "f") == noise(3 * MB)


def test_fsync_of_a_directory_promises_all_before(fresh):
    m = fresh()
    write(m.path / "shard", noise(2 * MB))
    (m.path / "dir").mkdir()
    write(m.path / "dir" / "small", b"s")
    os.rename(m.path / "shard", m.path / "dir" / "shard")
    with opened(m.path / "dir", os.O_RDONLY) as fd:
        os.fsync(fd)
    m.lose_dram()
    assert read(m.path / "dir" / "shard") == noise(2 * MB)
    assert read(m.path / "dir" / "small") == b"s"


def test_fsync_promises_remote(fresh):
    m = fresh(fsync="remote", remote=True)
    with opened(m.path / "f", os.O_CREAT | os.O_RDWR) as fd:
        write_all(fd, noise(MB))
        os.fsync(fd)
        assert read(m.remote_dir / "f") == noise(MB)


def test_fsync_promises_dram(fresh):
    """Returns although nothing can go to NVMe fast."""
    m = fresh(fsync="dram", flush_rate="1M")
    begin = time.monotonic()
    with opened(m.path / "f", os.O_CREAT | os.O_RDWR) as fd:
        write_all(fd, noise(6 * MB))
        os.fsync(fd)
    assert time.monotonic() - begin < 3 * PATIENCE
    assert state(m.path / "f") == "dram"


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC])
def test_a_synchronous_write_is_an_fsync(fresh, flag):
    m = fresh()
    with opened(m.path / "f", os.O_CREAT | os.O_RDWR | flag) as fd:
        os.write(fd, noise(100_000))
        os.pwrite(fd, b"again", 50)
        m.lose_dram()
    want = bytearray(noise(100_000))
    want[50:55] = b"again"
    assert read(m.path / "f") == want


def test_close_promises_dram_only(fresh):
    """And is not held up by a slow NVMe."""
    m = fresh(flush_rate="1M")
    begin = time.monotonic()
    for i in range(10):
        write(m.path / f"f{i}", noise(MB, i))
    assert time.monotonic() - begin < 4 * PATIENCE
    assert m.status()["tiers"][1]["behind_bytes"] > 0


def test_flush_rate(fresh):
    m = fresh(flush_rate="4M")
    write(m.path / "f", noise(MB) * 12)
    begin = time.monotonic()
    m.wait("nvme")
    assert time.monotonic() - begin > 1.5


def test_wait_in_the_order_of_the_log(fresh):
    """What is written after something large comes after it, even if small."""
    m = fresh(flush_rate="8M")
    write(m.path / "shard", noise(MB) * 16)
    write(m.path / "latest", b"shard")
    until(lambda: state(m.path / "latest") == "nvme", 60)
    assert state(m.path / "shard") == "nvme"


def test_evict_frees_dram(fresh):
    m = fresh(reserve="no")
    data = noise(MB) * 20
    write(m.path / "f", data)
    m.wait("nvme")
    used = m.status()["tiers"][0]["used"]
    r = json.loads(m.ctl("evict", m.path / "f", "--json").stdout)
    assert r["files"] == 1 and r["bytes"] >= 20 * MB
    assert m.status()["tiers"][0]["used"] <= used - 19 * MB
    s = m.status(m.path / "f")
    assert not s["in_dram"] and s["on_nvme"]
    assert read(m.path / "f") == data
    assert json.loads(m.ctl("evict", m.path, "--json").stdout)["bytes"] == 0


def test_evict_spares_what_is_not_safe(fresh):
    m = fresh(flush_rate="1M")
    data = noise(MB) * 8
    write(m.path / "f", data)
    r = json.loads(m.ctl("evict", m.path, "--json").stdout)
    assert r["bytes"] == 0
    assert read(m.path / "f") == data


def test_evict_to_remote_and_back(fresh):
    m = fresh(remote=True)
    files = {f"f{i}": noise(700_000 * i + 10, i) for i in range(6)}
    for name, data in files.items():
        write(m.path / name, data)
    m.evict("remote")
    s = m.status(m.path / "f5")
    assert not s["in_dram"] and not s["on_nvme"] and s["on_remote"]
    times = {n: os.stat(m.path / n).st_mtime_ns for n in files}
    for name, data in files.items():
        assert read(m.path / name) == data
        assert os.stat(m.path / name).st_mtime_ns == times[name]
    assert m.status()["counts"]["fetched"] > 0
    for name in files:
        with opened(m.path / name) as fd:
            os.pwrite(fd, b"!", 3)
    m.evict("remote")
    for name, data in files.items():
        assert read(m.path / name) == data[:3] + b"!" + data[4:]


def test_write_after_dropping_to_remote(fresh):
    m = fresh(remote=True)
    for name in ("append", "trunc", "cut", "hole"):
        write(m.path / name, noise(2 * MB, name))
    m.evict("remote")
    with opened(m.path / "append", os.O_WRONLY | os.O_APPEND) as fd:
        os.write(fd, b"tail")
    write(m.path / "trunc", b"new")
    os.truncate(m.path / "cut", MB)
    os.truncate(m.path / "hole", 3 * MB)
    want = {"append": noise(2 * MB, "append") + b"tail", "trunc": b"new",
            "cut": noise(2 * MB, "cut")[:MB],
            "hole": noise(2 * MB, "hole") + bytes(MB)}
    for step in (lambda: None, lambda: m.evict("remote"), m.remount):
        step()
        for name, data in want.items():
            assert read(m.path / name) == data, name


def test_metrics_agree_with_the_status(fresh):
    m = fresh()
    write(m.path / "f", noise(MB))
    m.wait("nvme")
    lines = (m.path / ".ckptfs" / "metrics").read_text().splitlines()
    types = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types)) > 5
    names = {line.split("{")[0].split()[0] for line in lines
             if not line.startswith("#")}
    assert all(n.startswith("ckptfs_") for n in names)
