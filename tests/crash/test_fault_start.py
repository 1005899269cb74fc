# SPDX-License-Identifier: Apache-2.0
"""The daemon fails, or dies, at each fault point of a start: one that carries
on, one after a power cut, one on a fresh node. It comes up or says why not, and
the next start has all that was promised."""
import os
import time

import pytest

import calls
import journal
import mounted
import oplist
import steps
import sweep

pytestmark = [pytest.mark.modes("passthrough", "served"), pytest.mark.root]
N = 5


def left_behind(mode):
    """A mount whose daemon died with work to do: what was written."""
    m = sweep.Faulty(mode, remote=True, flush_rate="20M")
    try:
        m.start()
        work = sweep.Errors(m)
        for op in sweep.SCRIPT[:20]:  # up to a file that is open
            work.hand.do(op)
            work.apply(op)
        m.kill()
        work.hand.let_go()
        return m, work
    except BaseException:
        m.close()
        raise


def power_cut(m):
    m.unmount(lazy=True)
    mounted.free_dram(m.dram_dir)


def judge(m, work, cut):
    done = 19
    if cut:
        found = oplist.look(m.path)
        assert oplist.matches(sweep.SCRIPT, found, done), \
            "this is no state that ever was"
        assert max(oplist.matches(sweep.SCRIPT, found, done)) >= 18
    else:
        work.check("after it carried on")


def again(m, check):
    """The point may be passed only now: what fails works the second time,
    with the next daemon if this one died."""
    try:
        check()
        return
    except (OSError, AssertionError) as e:
        if not m.fired():
            raise
        # The mount of one that dies is gone a moment before its process.
        until = time.monotonic() + (2 if isinstance(e, AssertionError) else
                                    0.05)
        while m.alive() and time.monotonic() < until:
            time.sleep(0.01)
        if m.alive() and isinstance(e, AssertionError):
            raise
    if not m.alive():
        m.kill()
        m.start()
    check()


def start_with(mode, fault, cut):
    m, work = left_behind(mode)
    try:
        if cut:
            power_cut(m)
        m.options.pop("flush_rate")
        if not m.begin(fault):
            assert m.fired() or "kill" in fault, \
                f"it ended ({m.code}): {m.log_tail()}"
            # Whoever mounts is told (a death is all the parent can tell).
            assert "kill" in fault or "ckptfs: error: " in m.log_tail(3)
            m.start()
        again(m, lambda: judge(m, work, cut))
        again(m, lambda: sweep.goes_on(m))
        return m.fired()
    except BaseException as e:
        e.add_note(f"CKPTFS_FAULT={fault} mode {mode} cut {cut}\n"
                   f"{m.log_tail()}")
        raise
    finally:
        m.close()


def passes(mode, cut):
    m, _ = left_behind(mode)
    try:
        if cut:
            power_cut(m)
        m.options.pop("flush_rate")
        before = len(m.log.read_text())
        m.begin("log")
        text = m.log.read_text()[before:]
        both = sweep.count(text[:text.index("mounted '")])
        # The publisher's thread is on its way by then.
        return [{name: n for name, n in c.items()
                 if not name.startswith(("publish.", "remote.", "sidecar."))}
                for c in both]
    finally:
        m.close()


def all_of(faults, run):
    n_fired, wrong = 0, []
    for fault in faults:
        try:
            n_fired += run(fault)
        except AssertionError as e:
            wrong.append("\n".join([str(e), *getattr(e, "__notes__", [])]))
    print(f"{n_fired} of {len(faults)} fired")
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.limit(3600 if sweep.FULL else 240)
@pytest.mark.parametrize("cut", [False, True], ids=["death", "cut"])
def test_start(mode, cut):
    sweep.need_faults()
    errors, deaths = passes(mode, cut)
    seed = journal.seeds(f"start-{mode}-{cut}")[0]
    all_of(sweep.sample(errors, seed, N)
           + [f"{x}:kill" for x in sweep.sample(deaths, seed, N)],
           lambda fault: start_with(mode, fault, cut))


@pytest.mark.parametrize("fault", ["open.state:1", "start.step:2"])
def test_start_that_fails_keeps_the_dram(mode, fault):
    """What the dead daemon had not flushed is all there is of it."""
    sweep.need_faults()
    assert start_with(mode, fault, False)


# ---- a fresh node -----------------------------------------------------------

def read_all(m):
    for folder, _, files in os.walk(m.path):
        for name in files:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                calls.read(path)


def restore_with(mode, fault, there):
    m = sweep.Faulty(mode, remote=f"dir:{there}")
    try:
        if not m.begin(fault):
            assert m.fired() or "kill" in fault, \
                f"it ended ({m.code}): {m.log_tail()}"
            m.start()
        again(m, lambda: read_all(m))
        steps.same_as_remote(m.path, there)
        m.wait("remote")
        m.lose_dram()
        steps.same_as_remote(m.path, there)
        return m.fired()
    except BaseException as e:
        e.add_note(f"CKPTFS_FAULT={fault} mode {mode}\n{m.log_tail()}")
        raise
    finally:
        m.close()


@pytest.mark.limit(3600 if sweep.FULL else 240)
def test_fresh_node(mode):
    sweep.need_faults()
    first = sweep.Faulty(mode, remote=True)
    try:
        first.start()
        work = sweep.Errors(first)
        work.run()
        work.finish()
        first.wait("remote")
        first.stop()
        m = sweep.Faulty(mode, remote=f"dir:{first.remote_dir}")
        try:
            m.begin("log")
            read_all(m)
            m.wait("remote")
            errors, deaths = m.passed()
        finally:
            m.close()
        seed = journal.seeds(f"fresh-{mode}")[0]
        all_of(sweep.sample(errors, seed, N)
               + [f"{x}:kill" for x in sweep.sample(deaths, seed, N)],
               lambda fault: restore_with(mode, fault, first.remote_dir))
    finally:
        first.close()
