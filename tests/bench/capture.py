# SPDX-License-Identifier: Apache-2.0
"""scripts/bench capture: checkpoints while training computes.

The experiment of DataStates-LLM (HPDC'24), scaled to this machine: a training
loop whose forward and backward keep an imitated GPU busy for a set time, and
whose update then changes all of the state in place; checkpoints at every n-th
update, the last two kept. All ways to save run in one process (train.py), in
turn, on the same state; what is on the GPU can be read at its speed only, by
all of them (savers.py says how each does it).

Checkpoint throughput is that paper's: bytes of the checkpoints / time for which
training was blocked, in the call that saves and before the update. End to end
is from the first iteration until all checkpoints are durable.
"""
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time

import save
from harness import GIB, MIB, say, sync_filesystem

HERE = os.path.dirname(os.path.abspath(__file__))
RATE = 2e9  # of the imitated device, bytes/s
# Counted in the targets. There is one more for --method, "DCP async staging":
# an option of DCP's that needs CUDA.
OTHERS = ["torch.save", "DCP save", "DCP async_save", "torchsnapshot",
          "copy, then flush"]
# The library: to a mount?
OURS = {"library, disk": False, "library, ckptfs": True}
WARM = 4  # checkpoints' worth of touched memory at the start of a run


class Size:
    total, one, iterations, intervals, rounds = 2 * GIB, GIB, 20, (5, 2, 1), 3
    cpu = dict(iterations=2, every=1)
    dram = 4 * total  # three checkpoints at once, and what is leased ahead


class Quick(Size):
    total, one, iterations, intervals, rounds = GIB // 4, GIB // 8, 6, (2, 1), 3
    dram = 7 * total


size = Size
methods = []  # all


def configure(quick, only_methods):
    """Quick: small, for whoever changes the bench; its figures are none."""
    global size, methods
    size = Quick if quick else Size
    methods = only_methods


# ---- the process that trains -----------------------------------------------

class Trainer:
    def __init__(self):
        environment = dict(os.environ)
        # Freed host copies are used again instead of being given back: all
        # ways to save have warm memory then, as with a pinned pool.
        environment.update(MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_=str(
            1 << 60), MALLOC_ARENA_MAX="1")
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "train.py"), str(size.total),
             str(RATE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env=environment)
        self.about = self._answer()

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the training process ended with "
                               f"{self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def do(self, what, **how):
        print(json.dumps(dict(do=what, **how)), file=self.process.stdin,
              flush=True)
        return self._answer()

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def trainer_of(places, report):
    """One for all figures; it ends with the places."""
    if "trainer" not in places.shared:
        trainer = Trainer()
        places.stack.callback(trainer.close)
        places.shared["trainer"] = trainer
        tell_about(trainer.about)
        report.more["trainer"] = trainer.about
    return places.shared["trainer"]


def tell_about(about):
    say(f"state {about['bytes'] / 1e9:.2f} GB in {about['files']} files, "
        f"{about['tensors']} tensors; copy {about['copy_s']:.2f} s at "
        f"{RATE / 1e9:g} GB/s; compute {about['compute_s']:.2f} s; torch "
        f"{about['torch']}; the library by {about['library']}")
    if about["missing"]:
        say(f"without torchsnapshot: {about['missing']}")


# ---- runs ------------------------------------------------------------------

@contextlib.contextmanager
def mount(places):
    with places.ckptfs("passthrough", size.dram) as m:
        yield m


def run_one(places, trainer, name, **how):
    """A run of one method, by its name in the table."""
    if not OURS.get(name):
        # The library leaves the page cache alone: nothing to hold warm.
        warm, method = (0, "library") if name in OURS else (WARM, name)
        root = places.disk / "run"
        root.mkdir()
        try:
            return trainer.do("train", root=str(root), warm=warm,
                              method=method, **how)
        finally:
            shutil.rmtree(root)
            sync_filesystem(places.disk)
    trainer.do("rest")
    with mount(places) as m:
        got = trainer.do("train", root=str(m.path), method="library",
                         daemon=m.process.pid, tier=m.dram_dir, **how)
        save.wait_deleted(m)
    sync_filesystem(places.disk)
    return got


def nvme_speed(places):
    """What the disk does now, bytes/s: the same file each time."""
    seconds = save.fio(places.disk)
    sync_filesystem(places.disk)
    return save.SIZE / seconds


def run_all(report, places, every, label, **how):
    """{name: result}, and the disk's speed before and after."""
    trainer = trainer_of(places, report)
    names = methods or [*OTHERS, *OURS]
    names = [n for n in names if n != "torchsnapshot" or
             not trainer.about["missing"]]
    if every % 2:  # nobody is always the last
        names.reverse()
    speed = [nvme_speed(places)]
    runs = {n: run_one(places, trainer, n, every=every, **how) for n in names}
    speed.append(nvme_speed(places))
    if every % 2:
        runs = dict(reversed(runs.items()))
    show(label, runs, speed)
    report.more.setdefault("runs", {})[label] = dict(nvme=speed, methods=runs)
    return runs, speed


# ---- what comes out --------------------------------------------------------

def blocked(r):
    """Seconds per checkpoint; no update follows the last one of a run."""
    return statistics.mean(r["called"]) + statistics.mean(r["waited"])


def throughput(r):
    """GB/s by the paper's metric."""
    return r["bytes"] / blocked(r) / 1e9


def written(r):
    """GB/s, from the first submit until the last is durable."""
    return r["bytes"] * len(r["called"]) / r["writing"] / 1e9


def total(r):
    return r["total"]


def best(runs, value, of=max):
    """Of the others: its name and value."""
    name = of((n for n in OTHERS if n in runs), key=lambda n: value(runs[n]))
    return name, value(runs[name])


def step_seconds(runs):
    """An iteration without a checkpoint."""
    return statistics.median(statistics.median(r["computed"]) +
                             statistics.median(r["updated"])
                             for r in runs.values())


def show(label, runs, speed):
    speeds = " and ".join(f"{s / 1e9:.2f}" for s in speed)
    say(f"\n{label}: NVMe {speeds} GB/s, an iteration without a checkpoint "
        f"{step_seconds(runs):.2f} s\n"
        f"{'':18}{'compute':>8}{'blocked ms':>16}{'through-':>10}"
        f"{'end to':>8}{'durable after':>15}{'peak extra memory, MB':>25}\n"
        f"{'':18}{'s':>8}{'save':>8}{'update':>8}{'put GB/s':>10}{'end s':>8}"
        f"{'mean s':>8}{'last s':>7}{'own':>7}{'daemon':>7}{'cache':>6}"
        f"{'tier':>6}")
    for name, r in runs.items():
        p = {k: v / 1e6 for k, v in r["peak"].items()}
        say(f"{name:18}{statistics.mean(r['computed']):8.2f}"
            f"{1e3 * statistics.mean(r['called']):8.1f}"
            f"{1e3 * statistics.mean(r['waited']):8.1f}"
            f"{throughput(r):10.1f}{total(r):8.2f}"
            f"{statistics.mean(r['durable']):8.2f}{r['durable'][-1]:7.2f}"
            f"{p['own']:7.0f}{p['daemon']:7.0f}{p['cache']:6.0f}"
            f"{p['tier']:6.0f}")


def judge(report, trainer, every, runs, speed):
    speed = statistics.median(speed)
    sustained = (trainer.about["bytes"] / speed <=
                 every * step_seconds(runs))
    say(f"every {every}: the NVMe can{'' if sustained else 'not'} sustain it")
    for name in OURS:
        if methods and not {name, "torch.save"} <= set(methods):
            continue  # nothing to compare
        r, where = runs[name], name.split(", ")[1]
        head = f"every {every}, {where}: "
        other, most = best(runs, throughput)
        report.ratio(head + "throughput", "GB/s", [throughput(r)], [most],
                     4 if sustained else 1, other)
        if not sustained:
            report.ratio("  NVMe written", "GB/s", [written(r)],
                         [speed / 1e9], 0.95, "fio")
        report.ratio("  end to end, torch.save", "s", [total(r)],
                     [total(runs["torch.save"])], 2.2 if every <= 2 else None,
                     "torch.save", higher_is_better=False)
        other, least = best(runs, total, min)
        report.ratio("  end to end, best other", "s", [total(r)], [least], 1,
                     other, higher_is_better=False)
        report.value("  blocked, of the copy's time", "%",
                     [r["called"], r["waited"]], 100 *
                     blocked(r) / trainer.about["copy_s"], 5)
        judge_memory(report, trainer, name, r)


def judge_memory(report, trainer, name, r):
    p = r["peak"]
    own = p["own"] + p["daemon"]
    if OURS[name]:
        report.value("  extra memory, DRAM tier's", "MB", [p],
                     (own + p["tier"]) / 1e6, size.dram / 1e6)
        # No second copy: what is not the tier's is no checkpoint.
        report.value("  extra memory beside the tier", "MB", [p], own / 1e6,
                     0.1 * trainer.about["bytes"] / 1e6)
    else:
        report.value("  staging", "MB", [r["staged"]], r["staged"] / 1e6,
                     (256 * MIB + 1) / 1e6)


# ---- figures ---------------------------------------------------------------

def idle_cpu(report, places):
    for every in size.intervals:
        runs, speed = run_all(report, places, every, f"every {every}",
                              iterations=size.iterations)
        judge(report, trainer_of(places, report), every, runs, speed)


def busy_cpu(report, places):
    """Compute on one thread of the CPU: no targets, what it costs shows."""
    run_all(report, places, label="compute on the CPU, every "
            f"{size.cpu['every']}", on="cpu", **size.cpu)


def write_bytes(pid):
    with open(f"/proc/{pid}/io", encoding="ascii") as f:
        for line in f:
            if line.startswith("write_bytes:"):
                return int(line.split()[1])
    raise RuntimeError(f"process {pid} tells no write_bytes")


class FirstByte(threading.Thread):
    """When a process has sent 1 MiB to the disk: no journal is so much."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.at = pid, None
        self.over = threading.Event()
        self.base = write_bytes(pid)
        self.start()

    def run(self):
        while not self.over.wait(0.0005):
            if write_bytes(self.pid) - self.base >= MIB:
                self.at = time.monotonic()
                return

    def end(self):
        self.over.set()
        self.join()
        if self.at is None:
            raise RuntimeError("nothing was written")
        return self.at


def first_byte(report, places):
    trainer = trainer_of(places, report)
    samples = []
    trainer.do("rest")
    with mount(places) as m:
        for _ in range(size.rounds + 1):  # the first save is nobody's figure
            seen = FirstByte(m.process.pid)
            got = trainer.do("first", path=str(m.path / "one"), size=size.one)
            samples.append(1e3 * (seen.end() - got["submitted"]))
            (m.path / "one").unlink()
            save.wait_deleted(m)
            sync_filesystem(places.disk)
    samples = samples[1:]
    report.value(f"submit to first byte, {size.one >> 20} MiB", "ms", samples,
                 statistics.median(samples), 100)


def by_name(report, places):
    trainer = trainer_of(places, report)
    if not trainer.about["opens"]:
        say("reading by name: this build's package has no ckptfs.open()")
        return
    trainer.do("rest")
    with mount(places) as m:
        got = trainer.do("read", root=str(m.path), rounds=size.rounds)
    report.ratio("read one tensor by name: raw", "GB/s",
                 save.rate(got["named"], got["bytes"]),
                 save.rate(got["raw"], got["bytes"]), 0.8,
                 "pread of the same bytes")


FIGURES = dict(idle=idle_cpu, cpu=busy_cpu, first=first_byte, read=by_name)
