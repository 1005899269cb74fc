# SPDX-License-Identifier: Apache-2.0
"""The tensors of a checkpoint, by name: ckptfs.open()."""
from __future__ import annotations

import errno
import importlib.util
import mmap
import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from . import _native

Framework = Literal["torch", "numpy"]


class Info(NamedTuple):
    """What a tensor is, without reading it."""

    name: str
    dtype: str  # as PyTorch calls it: "float32", "bfloat16", ...; "packed"
    shape: tuple[int, ...]
    nbytes: int
    stored_as: str  # what the format calls the type ("BF16", "Q4_K"), or ""
    shared: bool  # a tensor before it has some of its bytes
    mapped: bool  # reading it copies nothing


# What NumPy has no type for is shown as its bits, as in .npy files of ckptfs.
_NUMPY = {"bool": "?", "uint8": "u1", "int8": "i1", "uint16": "<u2",
          "int16": "<i2", "uint32": "<u4", "int32": "<i4", "uint64": "<u8",
          "int64": "<i8", "float16": "<f2", "float32": "<f4",
          "float64": "<f8", "complex64": "<c8", "complex128": "<c16",
          "bfloat16": "<u2", "complex32": "<u4", "packed": "u1"}


class Checkpoint(Mapping[str, Any]):
    """Names and tensors; ckptfs.open() makes them.

    Reading a tensor whose bytes lie together in a file, in order, maps it: no
    copy, no memory but the page cache. The mapping lives as long as a tensor
    that uses it. Others (views in torch files, sharded or compressed ones) are
    gathered into memory of their own.

    Threads: any.
    """

    def __init__(self, path: str, framework: Framework) -> None:
        folder, name = os.path.split(path)
        handle = _native.scan(os.fsencode(folder), os.fsencode(name))
        if isinstance(handle, int):
            raise _error(handle, path)
        self._handle = handle
        self._path = path
        self._framework = framework
        self._index: dict[str, int] = {}
        self._infos: list[Info] = []
        self._runs: list[tuple[bytes, int] | None] = []
        self._maps: dict[bytes, mmap.mmap] = {}
        for i, (name, dtype, called, shape, n, run, shared) in enumerate(
                _native.list(handle)):
            if run and run[1] % max(1, _alignment(dtype)):
                run = None
            self._index[name] = i
            self._runs.append(run)
            self._infos.append(Info(name, dtype, shape, n, called,
                                    bool(shared), run is not None))

    @property
    def path(self) -> str:
        """The file that was opened; absolute."""
        return self._path

    @property
    def format(self) -> str:
        """"torch", "safetensors", "npy", "npz", "gguf", "dcp", "index"."""
        return _native.format(self._handle)

    def __repr__(self) -> str:
        return (f"<ckptfs.Checkpoint {self._path!r}, {self.format}, "
                f"{len(self)} tensors>")

    def __len__(self) -> int:
        return len(self._index)

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def info(self, name: str) -> Info:
        """What a tensor is. Raises KeyError."""
        return self._infos[self._index[name]]

    def __getitem__(self, name: str) -> Any:
        i = self._index[name]
        info = self._infos[i]
        if info.dtype == "unknown":
            raise FileNotFoundError(
                errno.ENOENT, f"{name!r} lies in a file that is not there, or "
                "is broken, beside", self._path)
        buffer, at = self._bytes(i, info)
        make = _torch_tensor if self._framework == "torch" else _array
        return make(buffer, at, info)

    def _bytes(self, i: int, info: Info) -> tuple[Any, int]:
        run = self._runs[i]
        if run:
            return self._map(run[0]), run[1]
        buffer = bytearray(info.nbytes)
        if info.nbytes:
            r = _native.gather(self._handle, i, buffer)
            if r:
                raise _error(r, self._path)
        return buffer, 0

    def _map(self, name: bytes) -> mmap.mmap:
        """A private mapping: who writes to a tensor changes no file."""
        found = self._maps.get(name)
        if found is None:
            fd = _native.file(self._handle, name)
            if fd < 0:
                raise _error(fd, self._path)
            found = self._maps.setdefault(
                name, mmap.mmap(fd, 0, access=mmap.ACCESS_COPY))
        return found


def _alignment(dtype: str) -> int:
    bits = "".join(c for c in dtype.split("_")[0] if c.isdigit())
    width = int(bits) // 8 if bits else 1
    return width // 2 if dtype.startswith("complex") else width


def _error(number: int, path: str) -> OSError:
    words = {-errno.ENOMSG: "no checkpoint that ckptfs can read (torch zip, "
             "safetensors, .npy, .npz, GGUF, DCP), or a broken one",
             -errno.E2BIG: "too many tensors, or too large a header",
             -errno.EBADMSG: "it has changed or is broken"}
    return OSError(-number, words.get(number, os.strerror(-number)), path)


def _array(buffer: Any, at: int, info: Info) -> Any:
    import numpy
    dtype = numpy.dtype(_NUMPY.get(info.dtype, "u1"))
    shape = (info.nbytes,) if info.dtype == "packed" else info.shape
    if not info.nbytes:
        return numpy.empty(shape, dtype)
    array = numpy.frombuffer(buffer, dtype, info.nbytes // dtype.itemsize, at)
    array = array.reshape(shape)
    array.flags.writeable = False
    return array


def _torch_tensor(buffer: Any, at: int, info: Info) -> Any:
    import torch
    dtype = (torch.uint8 if info.dtype == "packed"
             else getattr(torch, info.dtype, None))
    if dtype is None:
        raise TypeError(f"this PyTorch has no type {info.dtype}, which "
                        f"{info.name!r} has: open it with framework='numpy'")
    shape = (info.nbytes,) if info.dtype == "packed" else info.shape
    if not info.nbytes:
        return torch.empty(shape, dtype=dtype)
    raw = torch.frombuffer(buffer, dtype=torch.uint8, count=info.nbytes,
                           offset=at)
    return raw.view(dtype).view(shape)


def _file_of(path: str) -> str:
    """The file to scan: of a directory, the one that says what is in it."""
    if not os.path.isdir(path):
        return path
    names = sorted(os.listdir(path))
    if ".metadata" in names:
        return os.path.join(path, ".metadata")
    for end in (".safetensors.index.json", ".bin.index.json"):
        found = [n for n in names if n.endswith(end)]
        if len(found) == 1:
            return os.path.join(path, found[0])
    raise IsADirectoryError(
        errno.EISDIR, "no checkpoint in several files (.metadata of DCP, or "
        "one *.index.json): name the file", path)


def open(path: str | os.PathLike[str], *,
         framework: Framework | None = None) -> Checkpoint:
    """The tensors of a checkpoint, as a mapping from their names.

        ckptfs.open("/ckpt/step-100.pt")["model.layer.0.weight"]

    path: a file of torch.save (zip), safetensors, .npy, .npz or GGUF; a folder
        of DCP, or its .metadata; the index of a checkpoint in several files
        (*.safetensors.index.json, *.bin.index.json), or the folder of one.
    framework: what tensors are: "torch" (dtype and shape as saved, on the CPU;
        written to, they change no file) or "numpy" (read-only; types that
        NumPy lacks as unsigned integers of that size). None: torch where it
        is installed.

    Only headers are read; nothing is unpickled. Names of nested dicts are
    joined with ".". A quantised tensor of GGUF is its bytes, one dimension.
    Raises OSError: ENOMSG for what is no checkpoint; TypeError where the
    framework lacks a type; a missing name is a KeyError.
    """
    if framework not in (None, "torch", "numpy"):
        raise ValueError(f"framework={framework!r}: 'torch' or 'numpy' is "
                         "wanted")
    if framework is None:
        framework = ("torch" if importlib.util.find_spec("torch")
                     else "numpy")
    return Checkpoint(_file_of(os.path.abspath(os.fspath(path))), framework)
