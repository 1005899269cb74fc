# SPDX-License-Identifier: Apache-2.0
"""cuda.py DIR [BYTES]: libckpt's CUDA provider on a real GPU, checked and
measured. DIR: a directory of a ckptfs mount (passthrough) or any other.

Prints, for one tensor of BYTES (default 4 GiB) and for many small ones:
  - are the bytes right
  - device to pinned host memory by one cudaMemcpyAsync: the ceiling
  - the same into the file by a capture, until captured: the ratio
  - what it costs to register the file's mapping, apart
  - how much of the capture a compute kernel hides, and what it loses by it

Needs torch with CUDA, and $CKPTFS_BUILD. Exit 1 if the bytes are wrong, or if
the ratio is under 0.9 or compute under a capture loses more than 10 %.
"""
import ctypes
import mmap
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
import torch  # noqa: E402

from libckpt import Engine, check, lib  # noqa: E402

ROUNDS = 5
lib.ckpt_cuda.restype = ctypes.c_int
lib.ckpt_cuda.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int,
                          ctypes.c_void_p, ctypes.c_void_p]


def provider(tensor):
    out = ctypes.c_void_p()
    check(lib.ckpt_cuda(tensor.data_ptr(), tensor.nbytes, tensor.device.index,
                        torch.cuda.current_stream().cuda_stream,
                        ctypes.byref(out)))
    return out


def capture(engine, path, tensors):
    """Seconds until captured; the file is complete when it returns."""
    torch.cuda.synchronize()
    cap = engine.begin(path)
    begin = time.perf_counter()
    for t in tensors:
        cap.add(provider(t))
    cap.submit()
    engine.fence()
    took = time.perf_counter() - begin
    cap.wait("dram")
    mapped = cap.stats().mapped
    cap.free()
    return took, mapped


def pinned_copy(tensor, host):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    host.copy_(tensor, non_blocking=True)
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def register_cost(path, length):
    """Seconds to register and unregister a fresh mapping of length bytes."""
    with open(path, "w+b") as f:
        os.posix_fallocate(f.fileno(), 0, length)
        m = mmap.mmap(f.fileno(), length)
        at = ctypes.addressof(ctypes.c_char.from_buffer(m))
        rt = torch.cuda.cudart()
        begin = time.perf_counter()
        bad = int(rt.cudaHostRegister(at, length, 0))
        took = time.perf_counter() - begin
        begin = time.perf_counter()
        if not bad:
            rt.cudaHostUnregister(at)
        return bad, took, time.perf_counter() - begin


def same(path, tensors):
    with open(path, "rb") as f:
        for t in tensors:
            want = t.cpu().view(torch.uint8).flatten()
            got = torch.frombuffer(bytearray(f.read(t.nbytes)),
                                   dtype=torch.uint8)
            if not torch.equal(got, want):
                return False
        return not f.read(1)


def compute(n):
    a = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(n):
        a = (a @ a).clamp_(-1, 1)
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def overlap(engine, path, tensors):
    alone = statistics.median(compute(200) for _ in range(3))
    with_it = []
    for _ in range(3):
        cap = engine.begin(path)
        for t in tensors:
            cap.add(provider(t))
        cap.submit()
        with_it.append(compute(200))
        engine.fence()
        cap.wait("dram")
        cap.free()
    return alone, statistics.median(with_it)


def main():
    folder, size = sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 4 << 30
    one = [torch.randint(0, 255, (size,), dtype=torch.uint8, device="cuda")]
    many = [torch.randn(1 + i * 37 % 5000, device="cuda")
            for i in range(2000)]
    path = os.path.join(folder, "cuda-bench")
    ok = True
    with Engine() as e:
        for name, tensors in ("one", one), ("many", many):
            took, mapped = capture(e, path, tensors)
            right = same(path, tensors)
            ok &= right
            print(f"{name}: {'right' if right else 'WRONG BYTES'}, "
                  f"{'mapped' if mapped else 'staged'}, {took:.3f} s")
        host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        copies, captures = [], []
        for _ in range(ROUNDS):
            copies.append(pinned_copy(one[0], host))
            captures.append(capture(e, path, one)[0])
        ceiling = size / statistics.median(copies) / 1e9
        speed = size / statistics.median(captures) / 1e9
        print(f"pinned copy {ceiling:.1f} GB/s, capture {speed:.1f} GB/s, "
              f"ratio {speed / ceiling:.2f} (aim 0.9)")
        bad, reg, unreg = register_cost(path, min(size, 1 << 30))
        print(f"register 1 GiB: {'error %d' % bad if bad else f'{reg:.3f} s'}"
              f", unregister {unreg:.3f} s")
        alone, with_it = overlap(e, path, one)
        print(f"compute alone {alone:.3f} s, under a capture {with_it:.3f} s, "
              f"loses {100 * (with_it / alone - 1):.1f} %")
        ok &= speed >= 0.9 * ceiling and with_it <= 1.1 * alone
    os.unlink(path)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
