# SPDX-License-Identifier: Apache-2.0
"""A checkpoint is a directory that holds the whole state three times, once in
each format, so that each one can be compared with the others."""
import logging
import os
import warnings

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp

# One process: DCP says so at every call.
warnings.filterwarnings("ignore")
logging.getLogger("torch.distributed").setLevel(logging.ERROR)


def save_torch(state, directory):
    torch.save(state, os.path.join(directory, "state.pt"))


def save_safetensors(state, directory):
    safetensors.torch.save_file(
        state, os.path.join(directory, "state.safetensors"))


def save_dcp(state, directory):
    # fsyncs each file.
    dcp.save(state, checkpoint_id=os.path.join(directory, "dcp"))


def load_torch(directory):
    return torch.load(os.path.join(directory, "state.pt"), mmap=True)


def load_safetensors(directory):
    return safetensors.torch.load_file(
        os.path.join(directory, "state.safetensors"))


def load_dcp(directory, like):
    state = {name: torch.empty_like(value) for name, value in like.items()}
    dcp.load(state, checkpoint_id=os.path.join(directory, "dcp"))
    return state


SAVERS = (("torch.save", save_torch), ("safetensors", save_safetensors),
          ("torch DCP", save_dcp))


def save(state, directory):
    os.makedirs(directory)
    # DCP fsyncs, which waits for all that was written before it: it goes
    # first, so that the others are seen in DRAM.
    for _, saver in reversed(SAVERS):
        saver(state, directory)


def load(directory):
    """The state, after checking that all three formats hold the same."""
    state = load_torch(directory)
    for other in load_safetensors(directory), load_dcp(directory, state):
        if other.keys() != state.keys():
            raise ValueError(f"{directory}: the formats differ in names")
        for name, value in state.items():
            if not torch.equal(value, other[name]):
                raise ValueError(f"{directory}: the formats differ in {name}")
    return state


def write_latest(root, name):
    """As DeepSpeed does it: in place, no fsync, no rename."""
    with open(os.path.join(root, "latest"), "w", encoding="ascii") as f:
        f.write(name)


def read_latest(root):
    with open(os.path.join(root, "latest"), encoding="ascii") as f:
        return f.read()
