# SPDX-License-Identifier: Apache-2.0
"""One of several ranks: dcp_rank.py RANK WORLD STORE FOLDER.

Saves a state that is sharded over the ranks to FOLDER/save and FOLDER/async,
says so, and when it gets a line loads both and compares."""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def state(mesh, factor):
    whole = torch.arange(4096 * 64, dtype=torch.float32).reshape(4096, 64)
    bias = torch.arange(4096, dtype=torch.float32)
    return {"w": distribute_tensor(whole * factor, mesh, [Shard(0)]),
            "b": distribute_tensor(bias * factor, mesh, [Shard(0)]),
            "step": torch.tensor(int(factor))}


def load(mesh, folder):
    got, want = state(mesh, 0), state(mesh, 3)
    dcp.load(got, checkpoint_id=folder)
    for key in ("w", "b"):
        assert torch.equal(got[key].to_local(), want[key].to_local()), key
    assert int(got["step"]) == 3


def main():
    rank, world, store, folder = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=int(rank), world_size=int(world),
                            store=dist.FileStore(store, int(world)))
    mesh = init_device_mesh("cpu", (int(world),))
    dcp.save(state(mesh, 3), checkpoint_id=folder + "/save")
    dcp.async_save(state(mesh, 3), checkpoint_id=folder + "/async").result()
    dist.barrier()
    print("saved", flush=True)
    sys.stdin.readline()
    for name in ("/save", "/async"):
        load(mesh, folder + name)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads may still end, and abort in a usual exit


if __name__ == "__main__":
    main()
