# SPDX-License-Identifier: Apache-2.0
"""One of several ranks: dcp_rank.py save|async|load RANK WORLD STORE FOLDER.

Saves, or loads and compares, a state that is sharded over the ranks."""
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


def main():
    what, rank, world, store, folder = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=int(rank), world_size=int(world),
                            store=dist.FileStore(store, int(world)))
    mesh = init_device_mesh("cpu", (int(world),))
    if what == "save":
        dcp.save(state(mesh, 3), checkpoint_id=folder)
    elif what == "async":
        dcp.async_save(state(mesh, 3), checkpoint_id=folder).result()
    else:
        got = state(mesh, 0)
        dcp.load(got, checkpoint_id=folder)
        want = state(mesh, 3)
        for key in ("w", "b"):
            assert torch.equal(got[key].to_local(), want[key].to_local()), key
        assert int(got["step"]) == 3
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
