# SPDX-License-Identifier: Apache-2.0
"""The training state of scripts/bench capture, and the imitated GPU it is on.

The shape is that of one rank of eight in a 7B run (ZeRO-1), scaled: one
optimizer file of three huge tensors and three tiny ones with 85.7 % of the
bytes, 16 layer files of six tensors, an embedding, and a file of Python objects
and many tiny tensors. {file: state dict}; all tensors lie on "the device",
which is host memory that may be read at the device's speed only.
"""
import argparse
import ctypes
import threading
import time

import torch

PIECE = 4 << 20
N_LAYERS = 16

_memmove = ctypes.CDLL(None).memmove  # lets other threads run meanwhile
_memmove.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class Device:
    """Copies at bytes_per_s, as one DMA engine that all threads share. What is
    copied is the caller's business; this one is for what has no CUDA here."""

    def __init__(self, bytes_per_s):
        self.bytes_per_s = bytes_per_s
        self.lock = threading.Lock()
        self.idle_at = 0.0  # guarded by lock
        self.n_users = 0  # guarded by lock

    def copy(self, dst, src, n):
        """n bytes from address src to address dst."""
        with self.lock:
            if not self.n_users:
                self.idle_at = max(self.idle_at, time.monotonic())
            self.n_users += 1
        for at in range(0, n, PIECE):
            piece = min(PIECE, n - at)
            _memmove(dst + at, src + at, piece)
            with self.lock:
                self.idle_at += piece / self.bytes_per_s
                left = self.idle_at - time.monotonic()
            if left > 5e-5:
                time.sleep(left)
        with self.lock:
            self.n_users -= 1

    def to_host(self, tensor, out=None):
        """A tensor's copy in host memory, fresh unless `out` is given."""
        if out is None:
            out = torch.empty(tensor.shape, dtype=tensor.dtype)
        self.copy(out.data_ptr(), tensor.data_ptr(), tensor.nbytes)
        return out


def to_host_all(device, state, out=None):
    """The same state with all tensors copied to the host; into the tensors of
    `out`, where given."""
    return {file: {name: device.to_host(v, out and out[file][name])
                   if isinstance(v, torch.Tensor) else v
                   for name, v in part.items()}
            for file, part in state.items()}


def tensors_of(state):
    return [v for part in state.values() for v in part.values()
            if isinstance(v, torch.Tensor)]


class _Maker:
    """Tensors full of numbers, made fast."""

    def __init__(self):
        self.pattern = torch.randn((64 << 20) // 4)

    def __call__(self, nbytes, dtype):
        n = int(nbytes) // dtype.itemsize
        t = torch.empty(n, dtype=dtype)
        for at in range(0, n, self.pattern.numel()):
            part = t[at:at + self.pattern.numel()]
            part.copy_(self.pattern[:part.numel()])
        return t


def make_state(total):
    """About `total` bytes of it."""
    make = _Maker()
    state = {}
    share = int(total * 0.857) // 3
    optimizer = {f"fp32_groups.{name}": make(share, torch.float32)
                 for name in ("param", "exp_avg", "exp_avg_sq")}
    optimizer.update({f"step.{i}": make(6144, torch.float32)
                      for i in range(3)})
    state["bf16_zero_pp_rank_0_optim_states.pt"] = optimizer
    layer = total * 0.134 / N_LAYERS
    for i in range(N_LAYERS):
        parts = {"qkv": 0.25, "dense": 0.08, "up": 0.445, "down": 0.225}
        tensors = {f"{k}.weight": make(layer * x, torch.bfloat16)
                   for k, x in parts.items()}
        tensors.update({f"norm_{k}.weight": make(8192, torch.bfloat16)
                        for k in ("in", "out")})
        state[f"layer_{i:02}-model_states.pt"] = tensors
    state["layer_16-model_states.pt"] = {
        "embedding.weight": make(total * 0.008, torch.bfloat16)}
    state["mp_rank_00_model_states.pt"] = {
        # One object, as a Megatron run's arguments are.
        "args": argparse.Namespace(**{f"argument_{i}": [i, str(i), float(i)]
                                      for i in range(8000)}),
        "step": 0, **{f"buffer_{i}": make(6144, torch.float32)
                      for i in range(58)}}
    state["layer_17-model_states.pt"] = {
        "norm.weight": make(8192, torch.bfloat16)}
    return state
