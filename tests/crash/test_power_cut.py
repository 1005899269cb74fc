# SPDX-License-Identifier: Apache-2.0
"""Power cuts: what is there afterwards is a prefix of what was done, every
path a whole version, and all that an fsync returned for is in it."""
import os
import random
import sys
import time

import pytest

import calls
import journal
import mounted
import oplist
import power
import team

pytestmark = [pytest.mark.modes("passthrough", "served"), pytest.mark.root]
TRIES = 4


def works_on(one):
    """After all that, the mount is one like any other."""
    m = one.m
    path = calls.write(m.path / "after", calls.noise(3 << 20, "after"))
    with calls.opened(path, os.O_RDONLY) as fd:
        os.fsync(fd)
    before = oplist.look(m.path)
    m.remount()
    assert not calls.difference(before, oplist.look(m.path))
    fsck(m)


def fsck(m):
    if "fsck" in m.run([m.bin / "ckptctl", "--help"], check=False).stdout:
        m.stop()
        m.run([m.bin / "ckptctl", "fsck", m.nvme])
        m.start()


def cut_once(one, seed):
    """One round; False: nothing was lost, so it proved nothing."""
    at, late, r = journal.moment(seed, 4000)
    work = journal.Work(one, seed)
    work.wait_for(at)
    time.sleep(late)
    cut_at = time.monotonic()
    one.cut(linger=r.choice((0, 0, 0.02, 0.3)))
    n = work.judge(one.m.path, cut_at)
    print(f"seed {seed}: done {work.done}, an fsync promised "
          f"{work.promised}, there is {n}")
    return n < work.last_change()


def rounds(mode, kind, name, **options):
    for seed in journal.seeds(f"{name}-{kind}-{mode}"):
        for again in range(TRIES):
            with power.Machine(mode, kind, **options) as one:
                lost = cut_once(one, f"{seed}.{again}" if again else seed)
                works_on(one)
            if lost:
                break
        else:
            raise AssertionError(f"in {TRIES} tries the cut threw nothing "
                                 "away: this did not test anything")


@pytest.mark.limit(120 * journal.ROUNDS)
@pytest.mark.parametrize("kind", ["xfs", "ext4"])
def test_one_writer(mode, kind):
    rounds(mode, kind, "one")


@pytest.mark.limit(120 * journal.ROUNDS)
def test_flush_is_behind(mode):
    """With a slow flush a target is always on its way."""
    rounds(mode, "xfs", "slow", flush_rate="25M")


@pytest.mark.limit(120 * journal.ROUNDS)
def test_little_dram(mode):
    """Files are spilled, copies evicted, all the time."""
    rounds(mode, "xfs", "little", dram="24M")


@pytest.mark.limit(120 * journal.ROUNDS)
def test_twice(mode):
    """The power goes again while the first cut is being recovered from."""
    for seed in journal.seeds(f"twice-{mode}"):
        with power.Machine(mode) as one:
            at, late, r = journal.moment(seed, 4000)
            work = journal.Work(one, seed)
            work.wait_for(at)
            cut_at = time.monotonic()
            one.power_off()
            for _ in range(2):
                one.image.mount()
                one.begin()
                time.sleep(r.random() * 0.25)
                one.power_off(starting=True)
            one.power_on()
            n = work.judge(one.m.path, cut_at)
            print(f"seed {seed}: done {work.done}, promised {work.promised}, "
                  f"there is {n}")
            works_on(one)


@pytest.mark.limit(120 * journal.ROUNDS)
def test_death_then_cut(mode):
    """What the next daemon carried on with is older than all that came then:
    also in what survives the power."""
    for seed in journal.seeds(f"both-{mode}", 2):
        r = random.Random(seed)
        with power.Machine(mode, flush_rate=r.choice((None, "40M"))) as one:
            before, work = die_and_go_on(one, seed, r)
            cut_at = time.monotonic()
            one.cut()
            if (one.m.path / "b").exists():
                work.judge(one.m.path / "b", cut_at)
                after = oplist.look(one.m.path / "a")
                assert not calls.difference(before, after)


def die_and_go_on(one, seed, r):
    """What is there after the death, and the work on the next mount."""
    m = one.m
    (m.path / "a").mkdir()
    first = journal.Work(one, f"{seed}-a", top=m.path / "a")
    first.wait_for(r.randrange(20, 300))
    m.kill()
    first.process.wait(30)
    m.start()
    assert "carried on" in m.status()["start"]
    before = oplist.look(m.path / "a")
    (m.path / "b").mkdir()
    second = journal.Work(one, f"{seed}-b", top=m.path / "b")
    second.wait_for(r.randrange(1, 100))
    return before, second


# ---- several writers ------------------------------------------------------

def member_files(top, member):
    """Numbers of a member's files; they must be the first ones."""
    have = sorted(int(n[1:]) for n in os.listdir(top / f"m{member}")
                  if n.startswith("f") and not n.endswith(".tmp"))
    assert have == list(range(len(have))), \
        f"member {member}: one is missing in between: {have}"
    return len(have)


def check_head(data, seed, have, where):
    member, number, counts = team.head_of(data)
    assert data == team.content(seed, member, number, counts), \
        f"{where} is no whole version"
    missing = [(k, n, have[k]) for k, n in enumerate(counts) if n > have[k]]
    assert not missing, f"{where} was written after files that are not " \
        f"there (member, count, there): {missing}"
    return number


def check_order(top, notes, seed, n):
    """How many files are there, for each member."""
    have = [member_files(top, k) if (top / f"m{k}").exists() else 0
            for k in range(n)]
    for k in range(n):
        folder = top / f"m{k}"
        for name in os.listdir(folder) if folder.exists() else ():
            number = check_head(calls.read(folder / name), seed, have,
                                folder / name)
            assert name != "latest" or number < have[k]
    for k in range(n):
        lines = (notes / f"promises-{k}").read_text().splitlines()
        for line in lines[-1:]:
            short = [(j, int(c)) for j, c in enumerate(line.split())
                     if int(c) > have[j]]
            assert not short, f"fsync promised {short}, there is {have}"
    return have


@pytest.mark.limit(120 * journal.ROUNDS)
@pytest.mark.parametrize("rate", [None, "20M"])
def test_writers_in_order(mode, rate):
    """What a surviving file says was there before it is there, too."""
    for seed in journal.seeds(f"order-{rate}-{mode}"):
        for again in range(TRIES):
            if order_round(mode, rate, f"{seed}.{again}"):
                break
        else:
            raise AssertionError("the cuts threw nothing away")


def order_round(mode, rate, seed):
    n, r = 4, random.Random(seed)
    with power.Machine(mode, flush_rate=rate) as one:
        notes = one.m.base / "notes"
        notes.mkdir()
        counts = team.Counts(notes, n)
        for k in range(n):
            one.spawn([sys.executable, team.__file__, "order", "--top",
                       one.m.path, "--notes", notes, "--member", k, "--of",
                       n, "--seed", seed])
        target = r.randrange(100, 900)
        mounted.until(lambda: sum(counts.all()) > target
                      or any(p.poll() for p in one.processes), 60, 0.005)
        assert not any(p.poll() for p in one.processes), "a writer failed"
        one.cut(linger=r.choice((0, 0.05)))
        done = counts.all()
        have = check_order(one.m.path, notes, seed, n)
        print(f"seed {seed}: closed {done}, there are {have}")
        works_on(one)
        return sum(have) < sum(done)


@pytest.mark.limit(120 * journal.ROUNDS)
def test_small_files(mode):
    """2000 small files fsynced by 8 threads, cut somewhere on the way."""
    for seed in journal.seeds(f"small-{mode}"):
        r = random.Random(seed)
        for _ in range(TRIES):
            if small_round(mode, r):
                break
        else:
            raise AssertionError("the cuts threw nothing away")


def small_round(mode, r):
    with power.Machine(mode) as one:
        notes = one.m.base / "notes"
        notes.mkdir()
        file = notes / "promises"
        file.touch()
        p = one.spawn([sys.executable, team.__file__, "small", "--top",
                       one.m.path, "--notes", notes])
        target = r.randrange(200, 1800)
        mounted.until(lambda: file.read_text().count("\n") >= target
                      or p.poll() is not None, 60, 0.005)
        assert "error" not in file.read_text(), file.read_text()
        one.cut()
        return check_small(one.m.path, file)


def check_small(top, file):
    """Did the cut throw something away?"""
    promised = [tuple(map(int, line.split()))
                for line in file.read_text().splitlines()
                if "error" not in line]
    lost = 0
    for member, number in promised:
        want = team.small_content(member, number)
        assert calls.read(top / f"m{member}" / f"s{number:05}") == want
        other = top / f"m{member}" / f"u{number:05}"
        if other.exists():
            assert calls.read(other) == want
        else:
            lost += 1
    print(f"{len(promised)} fsynced, {lost} others lost")
    return lost


# ---- right after a flush ----------------------------------------------------

@pytest.mark.limit(120 * journal.ROUNDS)
@pytest.mark.parametrize("kind", ["xfs", "ext4"])
@pytest.mark.parametrize("dram", ["256M", "24M"])
def test_right_after_a_flush(mode, kind, dram):
    """What `ckptctl wait` says is on NVMe is there, at that very moment."""
    with power.Machine(mode, kind, dram=dram) as one:
        for seed in journal.seeds(f"after-{kind}-{dram}-{mode}", 2):
            folder = one.m.path / seed
            folder.mkdir()
            r = random.Random(seed)
            for i in range(30):
                calls.write(folder / f"f{i}", calls.noise(
                    r.choice((10, 65536, 65537, r.randrange(9 << 20))), i))
            before = oplist.look(folder)
            one.m.wait("nvme")
            calls.write(folder / "late", calls.noise(1 << 20))
            one.cut()
            after = oplist.look(folder)
            after.pop("late", None)
            assert not calls.difference(before, after)
            mounted.drop(folder)


@pytest.mark.parametrize("kind", ["xfs", "ext4"])
def test_right_after_an_eviction(mode, kind):
    """The file's end may come to the disk without that of its record, by
    somebody else's fsync: it is read from the remote all the same."""
    with power.Machine(mode, kind, remote=True) as one:
        data = calls.noise(3 << 20, "evicted")
        file = calls.write(one.m.path / "model.pt", data)
        one.m.wait("remote")
        one.m.ctl("evict", file, "--level", "remote")
        with open(one.image.path / "somebody", "wb") as f:
            os.fsync(f.fileno())
        one.cut()
        assert calls.read(file) == data


# ---- overwritten while somebody reads ---------------------------------------

HELD_SIZES = (300, 70000, 200000, 700000, 1 << 20, 3 << 20)


@pytest.mark.limit(120 * journal.ROUNDS)
@pytest.mark.parametrize("rate", [None, "30M"])
def test_overwritten_while_held(mode, rate):
    """A reader holds the file, so that the new version is written in place of
    the old one: neither is ever seen mixed."""
    for seed in journal.seeds(f"held-{rate}-{mode}"):
        with power.Machine(mode, flush_rate=rate) as one:
            held_round(one, random.Random(seed))


def held_versions(name, size):
    """Contents of one file: each version is of one number throughout."""
    def version(n):
        length = size - size // 7 * (n % 3)
        return (b"%s %08d " % (name.encode(), n) * (length // 10))[:length]
    return version


def held_round(one, r):
    files = {f"h{size}": held_versions(f"h{size}", size)
             for size in HELD_SIZES}
    for name, version in files.items():
        calls.write(one.m.path / name, version(0))
    one.m.wait("nvme")
    holds = [open(one.m.path / name, "rb") for name in files]
    n_written = {name: 0 for name in files}
    end = time.monotonic() + 0.3 + r.random()
    while time.monotonic() < end:
        name = r.choice(list(files))
        n_written[name] += 1
        calls.write(one.m.path / name, files[name](n_written[name]))
    for f in holds:
        f.close()
    one.cut()
    for name, version in files.items():
        check_held(calls.read(one.m.path / name), name, version,
                   n_written[name])


def check_held(data, name, version, newest):
    assert data, f"{name} is empty: that is no version"
    number = int(data.split(b" ", 2)[1])
    assert number <= newest
    assert data == version(number), f"{name}: a mix of versions"


# ---- a long backlog ---------------------------------------------------------

@pytest.mark.limit(120 * journal.ROUNDS)
def test_backlog(mode):
    """What waited behind a slow flush is too much for one target: `latest` is
    right wherever the targets end."""
    lost = 0
    for seed in journal.seeds(f"backlog-{mode}", 2):
        with power.Machine(mode, flush_rate="5M") as one:
            backlog_round(one.m, random.Random(seed))
            one.cut()
            lost += check_backlog(one.m.path) < 2500
    assert lost, "the cuts threw nothing away"


def backlog_round(m, r):
    calls.write(m.path / "large", calls.noise(6 << 20))
    (m.path / "s").mkdir()
    first = m.status()["tiers"][0]["seq"]
    for i in range(2500):
        calls.write(m.path / "s" / f"{i:05}", backlog_content(i))
        calls.write(m.path / "latest", b"%05d" % i)
        if i == 1250:  # here the targets have to wait again
            calls.write(m.path / "large2", calls.noise(24 << 20, 2))
    mounted.until(lambda: m.status()["tiers"][1]["seq"] > first, 60, 0.001)
    time.sleep(r.random() * 0.1)


def backlog_content(i):
    return oplist.piece_bytes((i, 0, 60000))


def check_backlog(top):
    have = sorted(os.listdir(top / "s"))
    assert have == [f"{i:05}" for i in range(len(have))]
    for i, name in enumerate(have):
        assert calls.read(top / "s" / name) == backlog_content(i)
    print(f"{len(have)} of the backlog are there")
    if have:
        latest = int(calls.read(top / "latest"))
        assert latest in (len(have) - 1, len(have) - 2), \
            f"latest names {latest}, there are {len(have)}"
    return len(have)
