# SPDX-License-Identifier: Apache-2.0
"""Each fault point fails once, in a script that passes all of them. The daemon
lives, what failed left no trace and works when it is done again, all that an
fsync promised is there when the DRAM is lost, the remote converges, and fsck
finds nothing. $CKPTFS_FAULT_FULL=1: at every pass of every point."""
import pytest

import journal
import mounted
import sweep

pytestmark = [pytest.mark.modes("passthrough", "served"), pytest.mark.root]
N = 32


def counts(mode):
    """How often the script passes each point."""
    m = sweep.Faulty(mode, remote=True)
    try:
        m.begin("log")
        work = sweep.Errors(m)
        work.run()
        work.finish()
        m.wait("remote")
        assert not work.failed
        return m.passed()
    finally:
        m.close()


@pytest.mark.limit(3600 if sweep.FULL else 240)
def test_each_fails_once(mode):
    sweep.need_faults()
    passed, _ = counts(mode)
    n_fired, wrong = 0, []
    for fault in sweep.sample(passed, journal.seeds(f"errors-{mode}")[0], N):
        try:
            fired, failed = sweep.one_error(mode, fault)
        except AssertionError as e:
            wrong.append("\n".join([str(e), *e.__notes__]))
            continue
        n_fired += fired
        for op, error in failed:
            print(f"{fault}: {op}: {error}")
    print(f"{n_fired} fired, {len(wrong)} went wrong")
    assert not wrong, "\n\n".join(wrong)
    assert n_fired >= len(passed) // 2, "hardly any fired"
