# SPDX-License-Identifier: Apache-2.0
"""What a state dict is made of: parts for _native, and what they borrow.

For torch's format everything but the storages' bytes is pickled as torch.save
does, with the same names and the same sharing: a storage is saved once and
whole, however many tensors view it. A tensor of the common kind is reduced
here, without the detour through Tensor.__reduce_ex__; all others take it.

Needs torch.
"""
from __future__ import annotations

import io
import os
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Iterator

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ._capture import Capture
from ._device import SlowDevice
from ._engine import before_any_step

Part = tuple[Any, ...]

# From the first save on; with nothing to wait for it costs a microsecond.
register_optimizer_step_pre_hook(before_any_step)

# Storages up to this many bytes are copied at the submit: it costs less than
# watching over them, and what changes during forward (BatchNorm's statistics,
# counters) is that small.
COPY_BELOW = 16384

_PLAIN = frozenset([dict, list, tuple, str, int, float, bool, type(None),
                    OrderedDict, bytes, torch.Size, torch.Tensor, type,
                    torch.nn.Parameter, torch.dtype])
_LEGACY = {dtype: getattr(torch, name) for dtype, name in
           torch.storage._dtype_to_storage_type_map().items()
           if not name.startswith("Q")}


def _name_of(state: Any, tensor: torch.Tensor, prefix: str = "") -> str | None:
    """Where in the state a tensor is."""
    if state is tensor:
        return prefix
    items: Iterator[tuple[Any, Any]]
    if isinstance(state, Mapping):
        items = iter(state.items())
    elif isinstance(state, (list, tuple)):
        items = iter(enumerate(state))
    else:
        return None
    for key, value in items:
        found = _name_of(value, tensor, f"{prefix}.{key}" if prefix
                         else str(key))
        if found is not None:
            return found
    return None


class Borrowed:
    """What a capture reads, kept alive until it is captured, and as it was."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.tensors: list[tuple[torch.Tensor, int]] = []
        self.storages: list[tuple[torch.UntypedStorage, int, int]] = []
        self.kept: list[Any] = []

    def note(self, tensor: torch.Tensor, n: int | None = None) -> None:
        """A tensor of which n bytes are saved (None: its whole storage): it is
        watched, if source() borrows so many. Inference tensors have no version
        counter, and some subclasses no storage: those are not watched."""
        try:
            if n is None:
                n = tensor.untyped_storage().nbytes()
            if n > COPY_BELOW:
                self.tensors.append((tensor, tensor._version))
        except (RuntimeError, NotImplementedError):
            pass

    def source(self, storage: Any, at: int, n: int,
               device: SlowDevice | None) -> Part:
        """The part for n bytes at address `at` of a storage."""
        self.kept.append(storage)
        if n == 0:
            return ("bytes", b"")
        where = storage.device
        if where.type not in ("cpu", "cuda"):
            if where.type == "meta" or not storage.data_ptr():
                raise TypeError(f"a storage on {where} has no data to save")
            host = storage.cpu()
            self.kept.append(host)
            return ("host", host.data_ptr() + at - storage.data_ptr(), n)
        if at == 0:
            raise TypeError(f"a storage of {n} bytes has no memory (freed by "
                            "FSDP, or a FakeTensor): nothing to save")
        if n <= COPY_BELOW and where.type == "cpu":
            return ("copy", at, n)
        if n <= COPY_BELOW:
            # On the device: nobody waits for it.
            off = at - storage.data_ptr()
            clone = storage[off:off + n].clone()
            self.kept.append(clone)
            at = clone.data_ptr()
        else:
            self.storages.append((storage, storage.data_ptr(),
                                  storage.nbytes()))
        if where.type == "cuda":
            stream = torch.cuda.current_stream(where).cuda_stream
            return ("cuda", at, n, where.index or 0, stream)
        if device:
            return ("slow", device.handle, at, n)
        return ("host", at, n)

    def changed(self) -> str | None:
        """As Watch.changed()."""
        for tensor, version in self.tensors:
            if tensor._version != version:
                name = _name_of(self.state, tensor)
                return (f"'{name}'" if name else "a tensor of shape "
                        f"{tuple(tensor.shape)}") + " was changed in place"
        for storage, at, n in self.storages:
            if storage.nbytes() != n or storage.data_ptr() != at:
                return f"a storage of {n} bytes was freed or resized"
        return None


# ---- torch's format --------------------------------------------------------

class _Ref:
    """Stands for a storage in the pickle."""

    __slots__ = ("pid",)

    def __init__(self, pid: tuple[Any, ...]) -> None:
        self.pid = pid


class _Storages:
    """Storages by key, as torch.save numbers them."""

    def __init__(self, borrowed: Borrowed, device: SlowDevice | None) -> None:
        self.borrowed = borrowed
        self.device = device
        self.keys: dict[int, str] = {}
        self.dtypes: dict[int, torch.dtype] = {}
        self.refs: dict[tuple[int, torch.dtype], _Ref] = {}
        self.parts: list[tuple[str, Part]] = []
        self.complete = False

    def key(self, storage: torch.UntypedStorage) -> str:
        """Its key; adds it if it is new."""
        key = self.keys.get(storage._cdata)
        if key is not None:
            return key
        if self.complete:
            raise TypeError(
                "an object in the state holds a tensor that is not in a dict, "
                "list or tuple: save it with objects='submit'")
        key = str(len(self.keys))
        part = self.borrowed.source(storage, storage.data_ptr(),
                                    storage.nbytes(), self.device)
        self.keys[storage._cdata] = key
        self.parts.append((key, part))
        return key

    def pid(self, storage: torch.UntypedStorage, dtype: torch.dtype,
            kind: Any) -> tuple[Any, ...]:
        """What torch.load calls a persistent id."""
        n = storage.nbytes()
        at = storage.data_ptr() if storage.device.type != "meta" else 0
        if at and self.dtypes.setdefault(at, dtype) != dtype:
            raise RuntimeError(
                "Cannot save multiple tensors or storages that view the same "
                "data as different types (as torch.save): clone one of them")
        return ("storage", kind, self.key(storage),
                torch.serialization.location_tag(storage), n // dtype.itemsize)

    def ref(self, tensor: torch.Tensor) -> _Ref:
        """For a tensor of a dtype that has a storage class."""
        storage = tensor.untyped_storage()
        known = (storage._cdata, tensor.dtype)
        ref = self.refs.get(known)
        if ref is None:
            kind = _LEGACY[tensor.dtype]
            ref = self.refs[known] = _Ref(self.pid(storage, tensor.dtype,
                                                   kind))
        return ref


def _is_plain(tensor: torch.Tensor) -> bool:
    """Is a tensor of the common kind, which we reduce ourselves?"""
    return (type(tensor) is torch.Tensor and tensor.dtype in _LEGACY
            and tensor.layout is torch.strided
            and tensor.device.type in ("cpu", "cuda")
            and not tensor.is_nested and not tensor.is_conj()
            and not tensor.is_neg() and not tensor.__dict__
            and not tensor._backward_hooks)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, storages: _Storages) -> None:
        super().__init__(file, protocol=2)  # as torch.save
        self.storages = storages

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        if kind in _PLAIN:
            return None
        if kind is _Ref:
            return obj.pid
        if isinstance(obj, torch.storage.TypedStorage):
            name = obj._pickle_storage_type()  # type: ignore[no-untyped-call]
            return self.storages.pid(obj._untyped_storage, obj.dtype,
                                     getattr(torch, name))
        if torch.is_storage(obj):
            untyped: Any = obj
            return self.storages.pid(untyped, torch.uint8,
                                     torch.UntypedStorage)
        return None

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return NotImplemented
        if not self.storages.complete:
            self.storages.borrowed.note(obj)
        if not _is_plain(obj):
            return NotImplemented
        return (torch._utils._rebuild_tensor_v2,
                (self.storages.ref(obj), obj.storage_offset(),
                 tuple(obj.size()), obj.stride(), obj.requires_grad,
                 OrderedDict()))


def _pickled(state: Any, storages: _Storages) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, storages).dump(state)
    return buffer.getvalue()


def _walk(state: Any, storages: _Storages) -> None:
    """Find the tensors without pickling."""
    if isinstance(state, torch.Tensor):
        storages.borrowed.note(state)
        storages.key(state.untyped_storage())
    elif isinstance(state, Mapping):
        for value in state.values():
            _walk(value, storages)
    elif isinstance(state, (list, tuple)):
        for value in state:
            _walk(value, storages)


def _root(path: str) -> str:
    """The folder inside the zip: the file's name, less its extension."""
    stem = os.path.splitext(os.path.basename(path))[0]
    try:
        stem.encode()
    except UnicodeEncodeError:
        return "archive"
    return stem or "archive"


def torch_part(state: Any, capture: Capture, device: SlowDevice | None,
               lazy: bool) -> tuple[Part, Borrowed]:
    """The state as a file of torch.save's format."""
    borrowed = Borrowed(state)
    storages = _Storages(borrowed, device)
    if not lazy:
        data = _pickled(state, storages)
        return ("torch", _root(capture.path), storages.parts,
                ("bytes", data)), borrowed
    _walk(state, storages)
    storages.complete = True

    def pickle_now() -> bytes:
        try:
            return _pickled(state, storages)
        except BaseException as e:
            capture._cause = e
            raise

    return ("torch", _root(capture.path), storages.parts,
            ("call", pickle_now)), borrowed


# ---- safetensors -----------------------------------------------------------

_TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.bool: "BOOL",
}
for _name, _type in (
        ("complex64", "C64"), ("uint16", "U16"), ("uint32", "U32"),
        ("uint64", "U64"), ("float8_e4m3fn", "F8_E4M3"),
        ("float8_e5m2", "F8_E5M2"), ("float8_e8m0fnu", "F8_E8M0"),
        ("float8_e4m3fnuz", "F8_E4M3FNUZ"),
        ("float8_e5m2fnuz", "F8_E5M2FNUZ")):
    if hasattr(torch, _name):
        _TYPES[getattr(torch, _name)] = _type


def _flat(state: Any, prefix: str, out: dict[str, torch.Tensor]) -> None:
    if isinstance(state, torch.Tensor) and prefix:
        if prefix in out:
            raise ValueError(f"two tensors are called {prefix!r}")
        out[prefix] = state
    elif isinstance(state, Mapping):
        for key, value in state.items():
            _flat(value, f"{prefix}.{key}" if prefix else str(key), out)
    else:
        raise TypeError(
            f"safetensors holds named tensors only, and {prefix or 'state'!r} "
            f"is a {type(state).__name__}: save it in torch's format, or as "
            "text in metadata=")


def _contiguous(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype not in _TYPES:
        raise TypeError(f"safetensors has no type for {name!r}, "
                        f"{tensor.dtype}: save it in torch's format")
    if (tensor.layout is not torch.strided or tensor.is_nested
            or type(tensor) not in (torch.Tensor, torch.nn.Parameter)):
        raise TypeError(f"{name!r} ({type(tensor).__name__}, "
                        f"{tensor.layout}) is no dense tensor: make it one, "
                        "or save it in torch's format")
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def safetensors_part(state: Any, metadata: Mapping[str, str],
                     device: SlowDevice | None) -> tuple[Part, Borrowed]:
    """The state as a safetensors file."""
    borrowed = Borrowed(state)
    flat: dict[str, torch.Tensor] = {}
    _flat(state, "", flat)
    tensors = []
    for name, tensor in flat.items():
        whole = _contiguous(name, tensor)
        n = whole.numel() * whole.element_size()
        if whole.data_ptr() == tensor.data_ptr():
            borrowed.note(tensor, n)
        part = borrowed.source(whole.untyped_storage(), whole.data_ptr(), n,
                               device)
        tensors.append((name, _TYPES[tensor.dtype], tuple(tensor.shape), part))
    return ("safetensors", tensors, list(metadata.items())), borrowed


# ---- both ------------------------------------------------------------------

def make(state: Any, capture: Capture, format: str,
         device: SlowDevice | None, lazy: bool,
         metadata: Mapping[str, str]) -> tuple[Part, Borrowed]:
    """The part and what it borrows."""
    if format == "safetensors":
        return safetensors_part(state, metadata, device)
    return torch_part(state, capture, device, lazy)
