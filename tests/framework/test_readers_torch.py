# SPDX-License-Identifier: Apache-2.0
"""The readers against files of the real PyTorch: every name, type, shape,
stride and byte as torch.load has it. Nothing is mounted."""
import collections
import dataclasses
import io
import pathlib
import random
import tarfile
import tempfile
import zipfile

import numpy as np
import pytest
import torch

from readers import images, look, opaque, plain_bytes

pytestmark = pytest.mark.filterwarnings("ignore")

Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Record:
    weight: torch.Tensor
    n: int


class Slotted:
    __slots__ = ("weight", "__dict__")


class Wrapped(torch.nn.Parameter):
    pass


def as_bytes(t):
    t = t.detach().contiguous()
    return t.reshape(-1).view(torch.uint8).numpy().tobytes()


def flat(o, name=None):
    """[(name, tensor)], as reader_torch_walk.c says that names are made."""
    def under(key):
        return str(key) if name is None else f"{name}.{key}"

    if isinstance(o, torch.Tensor):
        return [("tensor" if name is None else name, o)]
    if isinstance(o, dict):
        items = o.items()
    elif isinstance(o, (list, tuple)):
        items = enumerate(o)
    else:
        return []
    return [t for key, value in items for t in flat(value, under(key))]


def check(path, want):
    """want: {name: tensor} or [(name, tensor)], in order."""
    want = dict(want)
    seen = look(path, "torch")
    assert list(seen) == list(want)
    with tempfile.TemporaryDirectory() as folder:
        read = images(path, pathlib.Path(folder) / "out")
    for name, t in want.items():
        s = seen[name]
        assert s["dtype"] == str(t.dtype).removeprefix("torch.")
        assert s["shape"] == list(t.shape), name
        if t.numel():
            assert s["pieces"][0]["stride"] == list(t.stride()), name
        assert plain_bytes(path, s) == as_bytes(t), name
        assert read[name][1] == as_bytes(t), name
    return seen


def saved(path, o, **options):
    torch.save(o, path, **options)
    return torch.load(path, weights_only=False)


DTYPES = [getattr(torch, name) for name in (
    "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 "
    "float32 float64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz "
    "float8_e5m2fnuz float8_e8m0fnu complex32 complex64 complex128 "
    "float4_e2m1fn_x2").split()]


def random_of(dtype, *shape):
    raw = torch.randint(0, 256, [*shape, dtype.itemsize], dtype=torch.uint8)
    if dtype == torch.bool:
        raw &= 1
    return raw.view(dtype).reshape(shape)


def test_dtypes(tmp_path):
    o = {str(d): random_of(d, 3, 5) for d in DTYPES}
    check(tmp_path / "m.pt", flat(saved(tmp_path / "m.pt", o)))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_nested(tmp_path, protocol):
    t = torch.arange(6.)
    o = {"a": {"b": [t, {"c": t + 1}], "d.e": t + 2}, 3: t + 3, -4: [t + 4],
         True: (t + 5, (t + 6,)), None: t + 7, "ünï": t + 8,
         "x" * 300: t + 9,
         "no": [1, 2.5, "s", b"b", 2**70, None, {1, 2}, frozenset([3]),
                range(3), torch.Size([2]), torch.float16, torch.device("cpu"),
                1 + 2j],
         "o": collections.OrderedDict(y=t + 10),
         "d": collections.defaultdict(list, {"z": t + 11}),
         "q": collections.deque([t + 12, t + 13])}
    got = saved(tmp_path / "m.pt", o, pickle_protocol=protocol)
    got["q"] = list(got["q"])
    check(tmp_path / "m.pt", flat(got))


def test_names_that_meet(tmp_path):
    t = torch.arange(3.)
    o = {"a.b": t, "a": {"b": t + 1, "b#2": t + 2}, 1: t + 3, "1": t + 4,
         (1, 2): t + 5, 2.5: t + 6, "": t + 7}
    saved(tmp_path / "m.pt", o)
    check(tmp_path / "m.pt", {
        "a.b": t, "a.b#3": t + 1, "a.b#2": t + 2, "1": t + 3, "1#2": t + 4,
        "[4]": t + 5, "[5]": t + 6, "tensor": t + 7})


@pytest.mark.parametrize("o", [torch.ones(3), [torch.ones(2), torch.zeros(1)],
                               torch.nn.Parameter(torch.ones(4))])
def test_no_dict(tmp_path, o):
    check(tmp_path / "m.pt", flat(saved(tmp_path / "m.pt", o)))


def test_views(tmp_path):
    t = torch.arange(120.).reshape(2, 3, 4, 5)
    big = torch.arange(1000)
    o = {"t": t, "transposed": t.permute(3, 1, 0, 2), "sliced": t[:, ::2, 1:3],
         "last": t[1, 2, 3, 4], "expanded": t[0, 0, 0].expand(7, 5),
         "diagonal": t[0, 0].diagonal(), "empty": t[:0],
         "zero": torch.ones(()),
         "no_size": torch.zeros(3, 0, 2), "middle": big[100:110],
         "other": big[200:300:3], "channels": torch.randn(2, 3, 4, 5).to(
             memory_format=torch.channels_last),
         "imaginary": torch.randn(4, dtype=torch.complex64).imag}
    seen = check(tmp_path / "m.pt", flat(saved(tmp_path / "m.pt", o)))
    assert {n for n, s in seen.items() if s["shared"]} == {
        "transposed", "sliced", "last", "expanded", "diagonal"}


def test_tied(tmp_path):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(10, 4)
            self.head = torch.nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

    seen = check(tmp_path / "m.pt",
                 flat(saved(tmp_path / "m.pt", Tied().state_dict())))
    assert [s["shared"] for s in seen.values()] == [False, True]


def test_parameters_and_objects(tmp_path):
    p = torch.nn.Parameter(torch.arange(3.))
    p.note = "state"
    t = torch.arange(4.)
    t.note = "state"
    s = Slotted()
    s.weight, s.more = torch.ones(2), torch.ones(3)
    o = {"p": p, "t": t, "w": Wrapped(torch.ones(5)),
         "b": torch.nn.Buffer(torch.ones(6)), "pair": Pair(t + 1, [t + 2]),
         "record": Record(t + 3, 1), "s": s}
    got = saved(tmp_path / "m.pt", o)
    check(tmp_path / "m.pt", {
        "p": p, "t": t, "w": got["w"], "b": got["b"], "pair.0": t + 1,
        "pair.1.0": t + 2, "record.weight": t + 3, "s.more": s.more,
        "s.weight": s.weight})


def test_whole_module(tmp_path):
    m = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    saved(tmp_path / "m.pt", m)
    want = {}
    for i, layer in m.named_children():
        for kind in ("_parameters", "_buffers"):
            want |= {f"_modules.{i}.{kind}.{k}": v
                     for k, v in getattr(layer, kind).items()}
    check(tmp_path / "m.pt", want)


def test_optimizer(tmp_path):
    m = torch.nn.Linear(8, 8)
    opt = torch.optim.AdamW(m.parameters())
    m(torch.randn(2, 8)).sum().backward()
    opt.step()
    o = {"model": m.state_dict(), "optimizer": opt.state_dict(), "step": 1,
         "rng": torch.get_rng_state(), "args": {"lr": 1e-3}}
    check(tmp_path / "m.pt", flat(saved(tmp_path / "m.pt", o)))


def test_left_out(tmp_path):
    t = torch.arange(4.)
    o = {"first": t, "sparse": torch.eye(3).to_sparse(),
         "csr": torch.eye(3).to_sparse_csr(),
         "q": torch.quantize_per_tensor(t, 1., 0, torch.qint8),
         "conj": torch.randn(3, dtype=torch.complex64).conj(),
         "neg": torch._neg_view(t), "meta": torch.ones(3, device="meta"),
         "nested": torch.nested.nested_tensor([t, t]),
         "storage": torch.ones(3).untyped_storage(),
         "typed": torch.ones(3).storage(),
         "numpy": np.arange(3), "deep": torch.ones([1] * 40),
         "set": {torch.ones(2)}, "fn": torch.nn.functional.relu, "last": t + 1}
    torch.save(o, tmp_path / "m.pt")
    check(tmp_path / "m.pt", {"first": t, "last": t + 1})


def test_many_references(tmp_path):
    """Small in the file, endless if walked without care."""
    o = [torch.ones(1)]
    barren = []
    for _ in range(50):
        o, barren = [o, o], [barren, barren]
    torch.save(barren, tmp_path / "barren.pt")
    assert look(tmp_path / "barren.pt", "torch") == {}
    torch.save(o, tmp_path / "o.pt")
    assert opaque(tmp_path / "o.pt")
    loop = [torch.ones(1)]
    loop.append(loop)
    torch.save(loop, tmp_path / "loop.pt")
    check(tmp_path / "loop.pt", {"0": loop[0]})


def test_saved_otherwise(tmp_path):
    o = {"w": torch.arange(100.), "b": torch.ones(3, dtype=torch.bfloat16)}
    buf = io.BytesIO()
    torch.save(o, buf)
    (tmp_path / "buffer").write_bytes(buf.getvalue())
    check(tmp_path / "buffer", flat(o))
    check(tmp_path / "m.v1.tar.pt", flat(saved(tmp_path / "m.v1.tar.pt", o)))
    torch.serialization.set_crc32_options(False)
    try:
        check(tmp_path / "m.pt", flat(saved(tmp_path / "m.pt", o)))
    finally:
        torch.serialization.set_crc32_options(True)
    from torch.utils.serialization import config
    with config.patch("save.storage_alignment", 4096):
        torch.save(o, tmp_path / "aligned.pt")
    seen = check(tmp_path / "aligned.pt", flat(o))
    assert all(s["pieces"][0]["off"] % 4096 == 0 for s in seen.values())


def test_larger_than_4_gib(tmp_path):
    """A hole on the disk: torch leaves it out of what it writes."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        o = {"big": torch.empty(5 << 30, dtype=torch.uint8),
             "next": torch.empty(10), "view": torch.empty(3 << 29)[-5:]}
        with torch.serialization.skip_data(materialize_fake_tensors=True):
            torch.save(o, tmp_path / "m.pt")
    seen = look(tmp_path / "m.pt", "torch")
    assert {n: s["shape"] for n, s in seen.items()} == {
        "big": [5 << 30], "next": [10], "view": [5]}
    assert seen["big"]["pieces"][0]["len"] == 5 << 30
    assert seen["next"]["pieces"][0]["off"] > 5 << 30
    mapped = torch.load(tmp_path / "m.pt", mmap=True, weights_only=True)
    for i, (name, s) in enumerate(seen.items()):
        with open(tmp_path / "m.pt", "r+b") as f:
            f.seek(s["pieces"][0]["off"])
            f.write(bytes([i + 1]) * 4)
        got = mapped[name].view(torch.uint8)[:4]
        assert got.tolist() == [i + 1] * 4, name


def test_torchscript(tmp_path):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 4)
            self.list = torch.nn.ModuleList([torch.nn.Linear(4, 4)])
            self.register_buffer("buffer", torch.arange(5))
            self.plain = [torch.ones(2), torch.ones(3)]

        def forward(self, x):
            return self.list[0](self.linear(x)) + torch.tensor([1., 2, 3, 4])

    for make in (lambda n: torch.jit.trace(n, torch.zeros(3)),
                 torch.jit.script):
        m = make(Net())
        m.save(str(tmp_path / "m.pt"))
        seen = look(tmp_path / "m.pt", "torch")
        want = dict(m.state_dict())
        assert want.keys() <= seen.keys()
        extra = seen.keys() - want.keys()
        assert all(n.startswith(("constants.", "plain.")) for n in extra)
        for name, t in want.items():
            assert plain_bytes(tmp_path / "m.pt", seen[name]) == as_bytes(t)


def test_opaque(tmp_path):
    o = {"w": torch.arange(100.)}
    torch.save(o, tmp_path / "legacy.pt",
               _use_new_zipfile_serialization=False)
    assert opaque(tmp_path / "legacy.pt")
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        tar.add(tmp_path / "legacy.pt", "x")
    assert opaque(tmp_path / "t.tar")
    torch.save(o, tmp_path / "m.pt")
    with zipfile.ZipFile(tmp_path / "m.pt") as z:
        for how, name in ((zipfile.ZIP_STORED, "stored.pt"),
                          (zipfile.ZIP_DEFLATED, "deflated.pt")):
            with zipfile.ZipFile(tmp_path / name, "w", how) as again:
                for info in z.infolist():
                    again.writestr(info.filename, z.read(info))
    check(tmp_path / "stored.pt", flat(o))
    assert opaque(tmp_path / "deflated.pt")
    for name in ("empty", "text", "zip"):
        (tmp_path / name).write_bytes({"empty": b"", "text": b"PK\3\4 hello",
                                       "zip": b"PK\5\6" + bytes(18)}[name])
        assert opaque(tmp_path / name)


def test_broken(tmp_path):
    """Whatever bytes change, a file is read or opaque; dump() sees crashes."""
    torch.save({"w": torch.arange(10.), "l": [torch.ones(2).T] * 2, 1: 2},
               tmp_path / "m.pt")
    good = (tmp_path / "m.pt").read_bytes()
    dice = random.Random(1)
    broken = tmp_path / "broken.pt"
    for _ in range(150):
        data = bytearray(good)
        for _ in range(dice.choice([1, 1, 2, 8])):
            data[dice.randrange(len(data))] = dice.randrange(256)
        broken.write_bytes(data)
        opaque(broken)
    for _ in range(50):
        broken.write_bytes(good[:dice.randrange(len(good))])
        assert opaque(broken)
