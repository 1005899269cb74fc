# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint on captures.

        from ckptfs.dcp import Reader, Writer, save_async

    dcp.save(state, storage_writer=Writer("/ckpt/step-100"))
    dcp.load(state, storage_reader=Reader("/ckpt/step-100"))

    pending = save_async(state, "/ckpt/step-200")  # all ranks
    ...                                            # forward, backward
    ckptfs.fence()                                 # before the update
    ...
    pending.wait()

The folder is what torch's own FileSystemWriter makes: FileSystemReader reads it
with no code of ours, and Reader reads what FileSystemWriter wrote. Writer reads
shards where they are (no copy on the host), Reader copies from a mapping of the
files, only the slices that are asked for.

Needs torch.
"""
from __future__ import annotations

import contextlib
import dataclasses
import glob
import io
import mmap
import os
import threading
import time
import zipfile
from collections import OrderedDict
from typing import Any

import torch
import torch.distributed as dist
from torch._weights_only_unpickler import Unpickler
from torch.distributed.checkpoint.filesystem import (FileSystem,
                                                     FileSystemReader,
                                                     FileSystemWriter,
                                                     _StorageInfo,
                                                     _StoragePrefix)
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import (LoadItemType, LoadPlan,
                                                  LoadPlanner, ReadItem,
                                                  SavePlan, SavePlanner,
                                                  WriteItem, WriteItemType)
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.futures import Future
from torch.storage import _new_dtypes

from . import _native
from ._capture import Capture, Level, make_error
from ._device import SlowDevice
from ._engine import start
from ._state import (_LEGACY, Borrowed, Part, _is_plain, _pickled, _Ref,
                     _Storages)

__all__ = ["Pending", "Reader", "Writer", "save_async"]

# Items begin at multiples of this, as storages do within them.
_ALIGN = 64
_SPACER: Part = ("bytes", b"")  # ends at such a place


class _Shard:
    """A tensor's own bytes as a torch file of one storage."""

    def __init__(self, tensor: torch.Tensor, borrowed: Borrowed) -> None:
        self.tensor = tensor.detach()
        if not self.tensor.is_contiguous() or self.tensor.is_conj() \
                or self.tensor.is_neg():
            self.tensor = (self.tensor.resolve_conj().resolve_neg()
                           .contiguous())
        else:
            borrowed.note(tensor, tensor.numel() * tensor.element_size())
        self.borrowed = borrowed

    def part(self) -> Part:
        """For _native."""
        t = self.tensor
        n = t.numel() * t.element_size()
        storages = _Storages(self.borrowed, SlowDevice.current)
        if not _is_plain(t) and t.dtype not in _new_dtypes():
            if t.untyped_storage().nbytes() != n:
                t = t.clone()  # else the storage is saved whole
            data = _pickled(t, storages)
            return ("torch", "archive", storages.parts, ("bytes", data))
        source = self.borrowed.source(t.untyped_storage(), t.data_ptr(), n,
                                      storages.device)
        data = _pickled(self._reduced(n), storages)
        return ("torch", "archive", [("0", source)], ("bytes", data))

    def _reduced(self, n: int) -> _Reduced:
        """As a tensor of a storage that has its n bytes and no others."""
        t = self.tensor
        where = torch.serialization.location_tag(t.untyped_storage())
        more: tuple[Any, ...] = ()
        if t.dtype in _LEGACY:
            function: Any = torch._utils._rebuild_tensor_v2
            kind, n = _LEGACY[t.dtype], t.numel()
        else:
            function = torch._utils._rebuild_tensor_v3
            kind = torch.UntypedStorage
            more = (t.dtype,)
        ref = _Ref(("storage", kind, "0", where, n))
        return _Reduced(function, (ref, 0, tuple(t.size()), t.stride(), False,
                                   OrderedDict(), *more))


class _Reduced:
    """Is pickled as the call of a function."""

    def __init__(self, function: Any, arguments: tuple[Any, ...]) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def _length(part: Part, path: str) -> int:
    n = _native.length(part)
    if n < 0:
        raise make_error(n, path)
    return n


class _FileSystem(FileSystem):
    """torch removes .metadata and then gives its name to the new one: that
    alone does it, with no moment in between that has none."""

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        """Not needed."""


class Writer(FileSystemWriter):
    """A StorageWriter that captures.

    path: the checkpoint's folder; it is made.
    sync_files: wait until the files are durable ("nvme"), as torch's own does;
        else until they are there.
    Others as FileSystemWriter's; those that say how it copies mean nothing.

    dcp.save() returns when the checkpoint is complete. Device memory is copied
    straight into the files, host memory written from where it is.

    A checkpoint that is in the folder stays whole, and can be loaded, until
    the new .metadata takes the place of its own; then its shards are removed,
    and those that a failed one has left. So two may need room at once. Only
    one at a time may be saved into a folder.
    """

    def __init__(self, path: str | os.PathLike[str], *,
                 single_file_per_rank: bool = True, sync_files: bool = True,
                 overwrite: bool = True) -> None:
        super().__init__(path, single_file_per_rank=single_file_per_rank,
                         sync_files=sync_files, overwrite=overwrite)
        self.fs = _FileSystem()
        self._deferred = False
        self._old: list[str] = []  # shards of those before
        self._captures: list[Capture] = []
        self._finish: tuple[Metadata, list[list[WriteResult]]] | None = None

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Name the files (called by dcp, on the coordinator, before anybody
        writes): not as those that are there."""
        plans = super().prepare_global_plan(plans)
        rank = "*" if self.use_collectives else self.rank
        self._old = glob.glob(os.path.join(glob.escape(str(self.path)),
                                           f"__{rank}_*.distcp"))
        if not self._old:
            return plans
        return [dataclasses.replace(plan, storage_data=_StoragePrefix(
            f"{plan.storage_data.prefix}{self.save_id[:8]}_"))
            for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner
                   ) -> Future[list[WriteResult]]:
        """Capture this rank's items (called by dcp)."""
        prefix = plan.storage_data.prefix
        groups = ([plan.items] if self.single_file_per_rank
                  else [[item] for item in plan.items])
        results: list[WriteResult] = []
        self._captures = []
        for i, items in enumerate(g for g in groups if g):
            results += self._capture(f"{prefix}{i}.distcp", items, planner)
        if not self._deferred:
            self._wait()
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def _capture(self, name: str, items: list[WriteItem],
                 planner: SavePlanner) -> list[WriteResult]:
        path = os.path.abspath(os.path.join(self.path, name))
        state: dict[str, torch.Tensor] = {}
        borrowed = Borrowed(state)
        parts: list[Part] = []
        results = []
        at = 0
        for item in items:
            part = self._part(item, planner, borrowed, state)
            n = _length(part, path)
            at = (at + _ALIGN - 1) // _ALIGN * _ALIGN
            parts += [_SPACER, part]
            results.append(WriteResult(
                index=item.index, size_in_bytes=n,
                storage_data=_StorageInfo(name, at, n)))
            at += n
        capture = Capture(path)
        start(capture, ("group", _ALIGN, parts), borrowed)
        self._captures.append(capture)
        return results

    @staticmethod
    def _part(item: WriteItem, planner: SavePlanner, borrowed: Borrowed,
              state: dict[str, torch.Tensor]) -> Part:
        data: Any = planner.resolve_data(item)
        if item.type == WriteItemType.BYTE_IO:
            return ("bytes", data.getvalue())
        state[item.index.fqn] = data
        return _Shard(data, borrowed).part()

    def _wait(self) -> None:
        for capture in self._captures:
            capture.wait("nvme" if self.sync_files else "dram")

    def finish(self, metadata: Metadata,
               results: list[list[WriteResult]]) -> None:
        """Write .metadata (called by dcp, on the coordinator, last)."""
        if self._deferred:
            self._finish = metadata, results
            return
        super().finish(metadata, results)
        if self.sync_files:
            self._sync_metadata("nvme")
        self._remove_old()

    def _publish(self, level: Level) -> None:
        """What finish() has left; nothing if another rank does it."""
        if not self._finish:
            return
        super().finish(*self._finish)
        if level in ("nvme", "remote"):
            self._sync_metadata(level)
        self._remove_old()

    def _remove_old(self) -> None:
        """No .metadata names them any more."""
        for path in self._old:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        self._old = []

    def _sync_metadata(self, level: Level) -> None:
        """torch syncs .metadata as fsync of the mount goes; a level beyond
        that is reached by what is captured after it."""
        path = os.path.join(self.path, ".metadata")
        with open(path, "rb") as f:
            os.fsync(f.fileno())
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        if level == "remote":
            _wait_remote(path)

    def stage(self, state_dict: Any) -> Any:
        """For dcp.async_save(), which knows no fence: a copy on the host.
        ckptfs.dcp.save_async() makes none."""
        return super().stage(state_dict)


def _wait_remote(path: str) -> None:
    """Until a file on a ckptfs mount is on its remote, as its xattr says."""
    pause = 0.001
    while os.getxattr(path, "user.ckpt.state") != b"remote":
        time.sleep(pause)
        pause = min(2 * pause, 0.1)


class Pending:
    """A checkpoint of save_async(): complete when all ranks' files are."""

    def __init__(self, writer: Writer, level: Level, group: Any) -> None:
        self._writer = writer
        self._level = level
        self._group = group
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="ckptfs-dcp")
        self._thread.start()

    @property
    def captures(self) -> list[Capture]:
        """This rank's."""
        return list(self._writer._captures)

    def _main(self) -> None:
        try:
            error = None
            try:
                for capture in self._writer._captures:
                    capture.wait(self._level)
            except Exception as e:
                error = e
            self._agree(error)
            self._writer._publish(self._level)
        except BaseException as e:
            self._error = e

    def _agree(self, error: Exception | None) -> None:
        """Nobody publishes unless all ranks have their files."""
        said = [str(error) if error else None]
        if self._group is not None:
            said = [None] * dist.get_world_size(self._group)
            dist.all_gather_object(said, str(error) if error else None,
                                   group=self._group)
        if error:
            raise error
        for rank, text in enumerate(said):
            if text:
                raise RuntimeError(f"rank {rank} failed: {text}")

    def wait(self, timeout: float | None = None) -> None:
        """Until .metadata is there and has reached the level (on the
        coordinator; elsewhere until all ranks' files have). Seconds. Raises what went wrong on any rank,
        TimeoutError."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError("the checkpoint is not complete yet")
        if self._error:
            raise self._error

    @property
    def done(self) -> bool:
        """True: complete, or failed."""
        return not self._thread.is_alive()


def save_async(state_dict: dict[str, Any], path: str | os.PathLike[str], *,
               process_group: Any = None, level: Level = "nvme") -> Pending:
    """Start to save a distributed checkpoint; all ranks call it.

    It plans as dcp.save() does (with its collectives), submits this rank's
    captures and returns; tensors must not change until ckptfs.fence(). On a
    thread, the ranks wait until their files have reached `level`, agree, and
    the coordinator writes .metadata.

    process_group: of a backend for the CPU (gloo), used by nobody else until
        the checkpoint is complete. None: the only process.

    Raises what dcp.save() raises. The files of a checkpoint that failed may
    be there, but no .metadata names them: the one that was there before, if
    any, still loads (see Writer).
    """
    if process_group is None and dist.is_initialized() and \
            dist.get_world_size() > 1:
        raise ValueError("save_async of several ranks needs a process_group "
                         "of its own: torch.distributed.new_group("
                         "backend='gloo')")
    writer = Writer(path)
    writer._deferred = True
    save(state_dict, storage_writer=writer, process_group=process_group,
         no_dist=process_group is None)
    return Pending(writer, level, process_group)


# ---- reading ---------------------------------------------------------------

class _Slice(io.RawIOBase):
    """Bytes [at, at + n) of a mapping, as a file."""

    def __init__(self, mapping: mmap.mmap, at: int, n: int) -> None:
        self._bytes = memoryview(mapping)[at:at + n]
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, len(self._bytes))[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        part = self._bytes[self._at:self._at + len(buffer)]
        buffer[:len(part)] = part
        self._at += len(part)
        return len(part)


class _Mapped:
    """A file of shards."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as f:
            self.mapping = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        # As torch.load(mmap=True): a mapping of its own, copied on write.
        self.storage = torch.UntypedStorage.from_file(path, False,
                                                      len(self.mapping))

    def bytes(self, info: _StorageInfo) -> io.BytesIO:
        return io.BytesIO(self.mapping[info.offset:info.offset + info.length])

    def tensor(self, info: _StorageInfo) -> torch.Tensor:
        """A view of the mapping."""
        file = io.BufferedReader(_Slice(self.mapping, info.offset,
                                        info.length))
        with zipfile.ZipFile(file) as z:
            where = {i.filename.split("/", 1)[1]: i for i in z.infolist()}
            unpickler: Any = Unpickler(io.BytesIO(z.read(where["data.pkl"])))
            unpickler.persistent_load = lambda pid: self._storage(
                info.offset, where[f"data/{pid[2]}"], pid)
            tensor: torch.Tensor = unpickler.load()
            return tensor

    def _storage(self, base: int, entry: zipfile.ZipInfo,
                 pid: tuple[Any, ...]) -> Any:
        at = base + entry.header_offset
        head = self.mapping[at + 26:at + 30]
        at += 30 + int.from_bytes(head[:2], "little") + \
            int.from_bytes(head[2:], "little")
        dtype = torch.uint8 if pid[1] is torch.UntypedStorage else pid[1].dtype
        typed: Any = torch.storage.TypedStorage
        return typed(
            wrap_storage=self.storage[at:at + entry.file_size], dtype=dtype,
            _internal=True)


class Reader(FileSystemReader):
    """A StorageReader that maps the files: bytes go from the page cache into
    the target tensors, those of the slices that are loaded and no others.

    path: the checkpoint's folder, written by Writer or FileSystemWriter.
    """

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill the planner's tensors (called by dcp)."""
        files: dict[str, list[ReadItem]] = {}
        others = []
        for item in plan.items:
            info = self.storage_data[item.storage_index]
            if getattr(info, "transform_descriptors", None):
                others.append(item)
            else:
                files.setdefault(info.relative_path, []).append(item)
        for name, items in files.items():
            mapped = _Mapped(os.path.join(self.path, name))
            for item in items:
                self._read(item, mapped, planner)
        if others:
            super().read_data(LoadPlan(others), planner)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _read(self, item: ReadItem, mapped: _Mapped,
              planner: LoadPlanner) -> None:
        info = self.storage_data[item.storage_index]
        if item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(item, mapped.bytes(info))
            return
        tensor = narrow_tensor_by_index(mapped.tensor(info),
                                        item.storage_offsets, item.lengths)
        target = planner.resolve_tensor(item).detach()
        if target.size() != tensor.size():
            raise ValueError(f"{item.storage_index} is {tuple(tensor.size())} "
                             f"in the checkpoint, not {tuple(target.size())}")
        target.copy_(tensor)
        planner.commit_tensor(item, target)
