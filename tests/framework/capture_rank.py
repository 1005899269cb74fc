# SPDX-License-Identifier: Apache-2.0
"""One of two ranks: RANK STORE FOLDER STEP good|bad. Saves by ckptfs.dcp; a bad one
changes its state too early. Ends with 5 where the checkpoint failed."""
import os
import pathlib
import sys

import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "lib"))

from states import ckptfs  # noqa: E402
from ckptfs.dcp import save_async  # noqa: E402

rank, store, folder, step, how = int(sys.argv[1]), *sys.argv[2:]
dist.init_process_group("gloo", rank=rank, world_size=2,
                        store=dist.FileStore(store, 2))
own = dist.new_group(backend="gloo")
state = {f"both.{rank}": torch.full((40_000,), float(step) + rank)}
with ckptfs.SlowDevice(400e3):
    pending = save_async(state, folder, process_group=own)
if how == "bad":
    state[f"both.{rank}"].zero_()
code = 0
try:
    pending.wait()
except (ckptfs.ChangedError, RuntimeError) as e:
    print(e, file=sys.stderr)
    code = 5
dist.barrier()
dist.destroy_process_group()
sys.stderr.flush()
os._exit(code)  # gloo's threads may still end, and abort in a usual exit
