# SPDX-License-Identifier: Apache-2.0
"""The daemon dies at each fault point, in a script that passes all of them.
The next one carries on (or, every other time, finds the DRAM lost as after a
power cut), and every promise is compared with what the script had been told.
$CKPTFS_FAULT_FULL=1: at every pass of every point."""
import random

import pytest

import journal
import sweep
from test_fault_errors import counts

pytestmark = [pytest.mark.modes("passthrough", "served"), pytest.mark.root]
N = 24


@pytest.mark.limit(3600 if sweep.FULL else 240)
def test_it_dies_at_each(mode):
    sweep.need_faults()
    _, passed = counts(mode)
    seed = journal.seeds(f"deaths-{mode}")[0]
    cut = random.Random(seed).random() < 0.5
    n_fired, wrong = 0, []
    for fault in sweep.sample(passed, seed, N):
        cut = not cut
        for lost in (False, True) if sweep.FULL else (cut,):
            try:
                n_fired += sweep.one_death(mode, fault, lost)
            except AssertionError as e:
                wrong.append("\n".join([str(e), *e.__notes__]))
    print(f"{n_fired} fired, {len(wrong)} went wrong")
    assert not wrong, "\n\n".join(wrong)
    assert n_fired >= len(passed) // 2, "hardly any fired"
