# SPDX-License-Identifier: Apache-2.0
"""ckptfs: checkpoints that are captured while training computes.

    import ckptfs

    ckptfs.fence_before_step(optimizer)       # once
    for step, batch in enumerate(batches):
        loss = model(batch)
        loss.backward()
        optimizer.step()                      # waits, if it must, in fence()
        if step % 100 == 0:
            ckptfs.save_async({"model": model.state_dict(),
                               "optimizer": optimizer.state_dict(),
                               "step": step}, f"/ckpt/step-{step}.pt")
    ckptfs.wait("nvme")

Parameters and optimizer state do not change during forward and backward. So
save_async() returns at once, the state is read while the next step computes,
and only the next update waits, in fence(), for what has not been read yet. The
files are those of torch.save and safetensors: `torch.load(path)` reads them
with no code of ours. On a ckptfs mount the bytes go straight into its DRAM
tier; on any other filesystem through a bounded pool into the file.

A file appears under its name when it is complete, never before; a checkpoint
that failed, was cancelled, or whose process died leaves nothing of that name.
The files of a process appear in the order of their save_async(): of two of one
name the last one stays.

Reading, of whatever framework saved it, without reading all of it:

    ckptfs.open("/ckpt/step-100.pt")["model.0.weight"]
"""
from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from ._capture import (CancelledError, Capture, CaptureError, ChangedError,
                       Stats)
from ._device import SlowDevice
from ._engine import (close, configure, fence, fence_before_step, start,
                      wait)
from ._read import Checkpoint, Info, open

__version__ = "0.1.0"
__all__ = ["CancelledError", "Capture", "CaptureError", "ChangedError",
           "Checkpoint", "Info", "SlowDevice", "Stats", "close", "configure",
           "fence", "fence_before_step", "open", "save_async", "wait"]

_FORMATS = ("torch", "safetensors")


def _format_of(path: str) -> str:
    return ("safetensors" if path.lower().endswith(".safetensors")
            else "torch")


def save_async(state_dict: Any, path: str | os.PathLike[str], *,
               format: Literal["torch", "safetensors"] | None = None,
               device: SlowDevice | None = None,
               objects: Literal["submit", "lazy"] = "submit",
               metadata: Mapping[str, str] | None = None) -> Capture:
    """Start to save state_dict as the file `path`; returns a Capture.

    It returns as soon as the structure has been walked: no tensor larger than
    16 KiB is copied. Until fence() has returned (or Capture.wait("captured")),
    the tensors must not be changed in place, freed by resize_(0), or written
    through NumPy; reading is fine. To delete or rebind names is fine, too: the
    memory is kept as long as it is needed. The steps of torch.optim's
    optimizers wait by themselves (for all captures, from the first save on).
    Other changes are noticed by the tensors' version counters, which torch
    moves after it has written: then fence() raises ChangedError, and the file
    does not appear. Not noticed is what counts no version: writes through
    `.data`, NumPy or other libraries, in-place collectives
    (torch.distributed.all_reduce, broadcast), fused kernels that are called
    past torch.optim; nor a write that is still under way when the last byte
    has been read. There only fence() helps.

    state_dict: for "torch" whatever torch.save takes, with what torch.save
        keeps: shared storages stay shared, each saved once and whole. For
        "safetensors" tensors in a dict of dicts, their names joined with ".";
        each is saved in full, and those that are not contiguous are copied
        before this returns.
    path: its directory must exist. A file of that name is replaced when the
        new one is complete.
    format: None: "safetensors" for *.safetensors, else "torch".
    device: an imitated device that the tensors are taken to lie on.
    objects: what is no tensor is pickled before this returns ("submit"), so
        it may change at once. "lazy": on another thread, while tensors are
        read; then dicts, lists and objects must not change until fence()
        returns either, and tensors must lie in dicts, lists and tuples. Worth
        it where pickling takes longer than the walk. "torch" only.
    metadata: of a safetensors file; None: {"format": "pt"}.

    CPU tensors are read where they are. CUDA tensors are copied by DMA on a
    stream of its own, after what is queued on the current stream. Storages up
    to 16 KiB are copied before this returns, so buffers that forward changes
    (BatchNorm's) are saved as they are now.

    Raises TypeError and ValueError for what the format cannot hold, whatever
    a pickler raises, CaptureError. What goes wrong later is told by fence()
    and by the Capture.
    """
    whole = os.path.abspath(os.fspath(path))
    kind = format or _format_of(whole)
    if kind not in _FORMATS:
        raise ValueError(f"format={kind!r}: one of {', '.join(_FORMATS)} is "
                         "wanted")
    if objects not in ("submit", "lazy"):
        raise ValueError(f"objects={objects!r}: 'submit' or 'lazy' is wanted")
    from . import _state
    capture = Capture(whole)
    part, borrowed = _state.make(
        state_dict, capture, kind, device or SlowDevice.current,
        objects == "lazy", {"format": "pt"} if metadata is None else metadata)
    start(capture, part, borrowed)
    return capture
