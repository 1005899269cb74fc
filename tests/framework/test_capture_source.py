# SPDX-License-Identifier: Apache-2.0
"""What a capture takes of a storage, and gives back where memory is short."""
import os
import shutil
import subprocess
import sys

import pytest

from states import ended, torch  # noqa: F401
from ckptfs._state import COPY_BELOW, Borrowed

pytestmark = pytest.mark.modes("passthrough")


class OnDevice:
    """A storage that says that it lies on a device."""
    device = torch.device("cuda", 0)

    def __init__(self, storage):
        self.storage = storage

    def __getattr__(self, name):
        return getattr(self.storage, name)

    def __getitem__(self, key):
        return self.storage[key]


@pytest.mark.parametrize("n", [1, 4096, COPY_BELOW])
def test_a_small_view_on_a_device_is_cloned_alone(monkeypatch, n):
    monkeypatch.setattr(torch.cuda, "current_stream",
                        lambda _: type("Stream", (), {"cuda_stream": 7}))
    flat = torch.randint(0, 256, (1 << 20,), dtype=torch.uint8)
    view = flat[5000:5000 + n]
    want = view.tolist()
    borrowed = Borrowed({})
    part = borrowed.source(OnDevice(flat.untyped_storage()), view.data_ptr(),
                           n, None)
    clone = borrowed.kept[-1]
    assert part == ("cuda", clone.data_ptr(), n, 0, 7)
    assert clone.nbytes() == n and clone.tolist() == want
    view.zero_()
    assert clone.tolist() == want


# The extension module's call of calloc() of that number, from now on, fails.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

extern void *__libc_calloc(size_t n, size_t size);
int calloc_fails_at;

void *calloc(size_t n, size_t size)
{
	Dl_info who;

	if (calloc_fails_at &&
	    dladdr(__builtin_return_address(0), &who) && who.dli_fname &&
	    strstr(who.dli_fname, "_native") && --calloc_fails_at == 0)
		return NULL;
	return __libc_calloc(n, size);
}
"""

SCRIPT = """
import ctypes, sys
from ckptfs import _native
at = ctypes.c_int.in_dll(ctypes.CDLL(None), "calloc_fails_at")
value = b"x" * 1000
call = lambda: value
failed = 0
for part in (("bytes", value), ("call", call), ("check", call),
             ("safetensors", [("a", "U8", (1000,), ("bytes", value))], []),
             ("torch", "root", [("0", ("bytes", value))], ("bytes", value))):
    count = sys.getrefcount(value), sys.getrefcount(call)
    for n in range(1, 20):
        at.value = n
        r = _native.length(("group", 1, [part]))
        failed += r == -12
        at.value = 0
        assert count == (sys.getrefcount(value), sys.getrefcount(call)), \
            (part[0], n)
assert failed >= 14, failed
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="no compiler")
def test_without_memory(tmp_path):
    shim = tmp_path / "shim.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o",
                    shim, "-ldl"], input=SHIM, text=True, check=True)
    r = subprocess.run([sys.executable, "-c", SCRIPT],
                       env=dict(os.environ, LD_PRELOAD=str(shim)),
                       capture_output=True, text=True, timeout=100)
    assert r.returncode == 0, r.stderr or r.returncode
