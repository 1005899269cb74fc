# SPDX-License-Identifier: Apache-2.0
"""A device for those who have none."""
from __future__ import annotations

import os

from . import _native


class SlowDevice:
    """An imitated device, for tests and benchmarks without a GPU: what is
    saved from it is copied by a thread of its own, at bytes_per_s.

    Pass it to save_async(device=...), or use it as a context: within it every
    tensor (of the CPU) is captured as if it lay on that device. It lives as
    long as the process.
    """

    current: SlowDevice | None = None

    def __init__(self, bytes_per_s: float) -> None:
        handle = _native.device(int(bytes_per_s))
        if isinstance(handle, int):
            raise OSError(-handle, os.strerror(-handle))
        self.handle = handle
        self._before: list[SlowDevice | None] = []

    def __enter__(self) -> SlowDevice:
        self._before.append(SlowDevice.current)
        SlowDevice.current = self
        return self

    def __exit__(self, *_: object) -> None:
        SlowDevice.current = self._before.pop()
