# SPDX-License-Identifier: Apache-2.0
"""The ways to save that scripts/bench capture compares.

Each is a class: save(directory) saves the state there and returns as soon as
that way lets training go on; what it returns is called on another thread, and
returns when the checkpoint is durable. before_update() waits for what must not
change yet. All but the library read "the device" through Device, in the way in
which they read a GPU: the comment says how.

Those that have a host copy of their own write one checkpoint at a time, as
trainers that use them do (save() waits for the one before): else their copies
would fill the memory.
"""
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import filesystem as dcp_files
from torch.distributed.checkpoint.staging import AsyncStager

from state import to_host_all

torchsnapshot = None
torchsnapshot_missing = ""
try:
    import torchsnapshot
except Exception as e:  # whatever it raises with a torch that it is too old for
    torchsnapshot_missing = f"{type(e).__name__}: {e}"


def sync_tree(directory):
    """fsync of all files and directories there."""
    for at, _, names in os.walk(directory):
        for path in [*(os.path.join(at, n) for n in names), at]:
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
    fd = os.open(os.path.dirname(directory), os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Saver:
    def __init__(self, state, device):
        self.state = state
        self.device = device

    def save(self, directory):
        raise NotImplementedError

    def before_update(self):
        pass

    def close(self):
        pass

    def staged(self):
        """Most bytes of a staging pool in use, where it has one."""
        return 0


# ---- torch.save ------------------------------------------------------------

def save_files(state, directory):
    os.mkdir(directory)
    for name, part in state.items():
        torch.save(part, os.path.join(directory, name))


class TorchSave(Saver):
    """Blocking. torch.save calls storage.cpu() for each storage in turn, and
    writes it then: here its zip writer does."""

    def __init__(self, state, device):
        super().__init__(state, device)
        self.writer = torch._C.PyTorchFileWriter

        class Writer(self.writer):
            def write_record(self, name, data, n):
                if isinstance(data, torch.UntypedStorage):
                    host = torch.UntypedStorage(n)
                    device.copy(host.data_ptr(), data.data_ptr(), n)
                    data = host
                super().write_record(name, data, n)

        torch._C.PyTorchFileWriter = Writer

    def save(self, directory):
        save_files(self.state, directory)
        return lambda: sync_tree(directory)

    def close(self):
        torch._C.PyTorchFileWriter = self.writer


class CopyThenFlush(Saver):
    """The state is copied to fresh host memory, then a thread runs
    torch.save()."""

    def __init__(self, state, device):
        super().__init__(state, device)
        self.thread = ThreadPoolExecutor(1)
        self.last = None

    def save(self, directory):
        if self.last:
            self.last.result()
        host = to_host_all(self.device, self.state)
        flushed = self.last = self.thread.submit(save_files, host, directory)

        def durable():
            flushed.result()
            sync_tree(directory)
        return durable

    def close(self):
        self.thread.shutdown()


# ---- DCP -------------------------------------------------------------------

def dcp_writer(directory):
    # fsync is left to whoever waits for durability, as with the others.
    return dcp.FileSystemWriter(directory, sync_files=False)


class DcpSave(Saver):
    """Blocking. On a GPU its loader copies the next tensors while one is
    written (_OverlappingCpuLoader): one ahead here."""

    def __init__(self, state, device):
        super().__init__(state, device)
        self.loader = dcp_files._SerialCpuLoader
        self.thread = thread = ThreadPoolExecutor(1)

        class Loader(self.loader):
            def values(self):
                def fetch(item):
                    return device.to_host(self.resolve_fun(item).detach())
                items = [item for _, item in self.items]
                ahead = thread.submit(fetch, items[0]) if items else None
                for i, item in enumerate(items):
                    tensor = ahead.result()
                    if i + 1 < len(items):
                        ahead = thread.submit(fetch, items[i + 1])
                    yield tensor, item

        dcp_files._SerialCpuLoader = Loader

    def save(self, directory):
        dcp.save(self.state, storage_writer=dcp_writer(directory),
                 no_dist=True)
        return lambda: sync_tree(directory)

    def close(self):
        dcp_files._SerialCpuLoader = self.loader
        self.thread.shutdown()


class _Stager(AsyncStager):
    """As DCP's default one: fresh host memory, blocking."""
    _synchronize_after_execute = False

    def __init__(self, device):
        self.device = device

    def stage(self, state_dict):
        return to_host_all(self.device, state_dict)

    def close(self):
        pass


class DcpAsync(Saver):
    """async_save() with its defaults: staged in the call, written by a
    thread."""

    def __init__(self, state, device):
        super().__init__(state, device)
        self.stager = self.make_stager()
        self.last = None

    def make_stager(self):
        return _Stager(self.device)

    def save(self, directory):
        if self.last:
            self.last.result()
        self.last = written = self.start(directory)

        def durable():
            written.result()
            sync_tree(directory)
        return durable

    def start(self, directory):
        return dcp.async_save(self.state, async_stager=self.stager,
                              storage_writer=dcp_writer(directory),
                              no_dist=True)


class _ThreadStager(_Stager):
    """As DefaultStager with use_async_staging and its cached host memory."""

    def __init__(self, device):
        super().__init__(device)
        self.thread = ThreadPoolExecutor(1)
        self.host = None

    def stage(self, state_dict):
        def copy():
            self.host = to_host_all(self.device, state_dict, self.host)
            return self.host
        return self.thread.submit(copy)

    def close(self):
        self.thread.shutdown()


class DcpAsyncStaged(DcpAsync):
    """async_save() with its option to stage on a thread (it needs CUDA): the
    update waits for that, and the next save for the writing."""

    def make_stager(self):
        self.staged_by = None
        return _ThreadStager(self.device)

    def start(self, directory):
        response = super().start(directory)
        self.staged_by = response.staging_completion
        return response.upload_completion

    def before_update(self):
        if self.staged_by:
            self.staged_by.result()
            self.staged_by = None

    def close(self):
        self.stager.close()


# ---- torchsnapshot ---------------------------------------------------------

class TorchSnapshot(Saver):
    """async_take(): returns when all is staged, while four threads copy from
    the device, small tensors together into slabs, and writing has begun."""

    def __init__(self, state, device):
        super().__init__(state, device)
        if not torchsnapshot:
            raise RuntimeError(torchsnapshot_missing)
        from torchsnapshot import batcher
        from torchsnapshot.io_preparers import tensor as tensors
        self.last = None
        self.app_state = {k: torchsnapshot.StateDict(**v)
                          for k, v in self.state.items()}
        self.patched = [(tensors.TensorBufferStager, tensors.TensorBufferStager.
                         stage_buffer),
                        (batcher.BatchedBufferStager, batcher.
                         BatchedBufferStager.stage_buffer)]

        async def one(stager, executor=None):
            host = await tensors._run_in_executor(
                executor, device.to_host, stager.tensor.detach())
            return tensors.tensor_as_memoryview(host)

        def fill(slab, parts):
            for (start, end), stager in parts.items():
                device.copy(slab.data_ptr() + start, stager.tensor.data_ptr(),
                            end - start)

        async def many(stager, executor=None):
            slab = torch.empty(stager.slab_sz_bytes, dtype=torch.uint8)
            await tensors._run_in_executor(
                executor, lambda s: fill(
                    s, stager.byte_range_to_buffer_stager), slab)
            return memoryview(slab.numpy())

        tensors.TensorBufferStager.stage_buffer = one
        batcher.BatchedBufferStager.stage_buffer = many

    def save(self, directory):
        if self.last:
            self.last.wait()
        self.last = pending = torchsnapshot.Snapshot.async_take(
            directory, self.app_state)

        def durable():
            pending.wait()
            sync_tree(directory)
        return durable

    def close(self):
        for owner, method in self.patched:
            owner.stage_buffer = method


# ---- the library -----------------------------------------------------------

class Package:
    """The Python package: one file in torch's format for each part."""

    def __init__(self, bytes_per_s):
        import ckptfs
        self.ckptfs = ckptfs
        self.device = ckptfs.SlowDevice(bytes_per_s)

    def save(self, part, path):
        return self.ckptfs.save_async(part, path, device=self.device)

    def fence(self):
        self.ckptfs.fence()

    def wait(self, capture):
        capture.wait("nvme")

    def staged(self, capture):
        return capture.stats.staged_bytes_max

    def close(self):
        self.ckptfs.close()


class Binding:
    """libckpt without the package: the same bytes, in no format."""

    def __init__(self, bytes_per_s):
        import libckpt
        self.lib = libckpt.lib
        self.engine = libckpt.Engine()
        self.device = libckpt.Device(bytes_per_s)

    def save(self, part, path):
        capture = self.engine.begin(path)
        objects = {}
        for name, value in part.items():
            if isinstance(value, torch.Tensor):
                capture.add(self.lib.ckpt_slow(
                    self.device.p, value.data_ptr(), value.nbytes))
            else:
                objects[name] = value
        data = pickle.dumps(objects)
        capture.add(self.lib.ckpt_memory_copied(data, len(data)))
        capture.submit()
        return capture

    def fence(self):
        self.engine.fence()

    def wait(self, capture):
        capture.wait("nvme")

    def staged(self, capture):
        return capture.stats().staged_max

    def close(self):
        self.engine.close()
        self.device.__exit__()


def library(bytes_per_s):
    try:
        return Package(bytes_per_s)
    except ImportError:
        return Binding(bytes_per_s)


class Library(Saver):
    """save_async(), fence(), wait("nvme")."""

    def __init__(self, state, device):
        super().__init__(state, device)
        self.library = library(device.bytes_per_s)
        self.staged_max = 0

    def save(self, directory):
        os.mkdir(directory)
        captures = [self.library.save(part, os.path.join(directory, name))
                    for name, part in self.state.items()]

        def durable():
            for capture in captures:
                self.library.wait(capture)
                self.staged_max = max(self.staged_max,
                                      self.library.staged(capture))
        return durable

    def before_update(self):
        self.library.fence()

    def close(self):
        self.library.close()

    def staged(self):
        return self.staged_max


SAVERS = {"torch.save": TorchSave, "DCP save": DcpSave,
          "DCP async_save": DcpAsync, "DCP async staging": DcpAsyncStaged,
          "torchsnapshot": TorchSnapshot, "copy, then flush": CopyThenFlush,
          "library": Library}
