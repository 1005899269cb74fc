# SPDX-License-Identifier: Apache-2.0
"""A model trains with save_async() under its steps, is killed (the trainer
alone; everything, as by a power cut), and resumes bit for bit from a state that
existed."""
import pathlib
import random
import subprocess
import sys
import threading

import pytest
import safetensors.torch

from capture_trainer import newest, state_of, train
from states import (ckptfs, ended, model, place, same,  # noqa: F401
                    step, torch)

pytestmark = [pytest.mark.modes("passthrough", "served"),
              pytest.mark.limit(300)]

TRAINER = pathlib.Path(__file__).parent / "capture_trainer.py"
LAST = 40


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Sums in one order, here and in the trainer."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def copied(state):
    if isinstance(state, torch.Tensor):
        return state.clone()
    if isinstance(state, dict):
        return type(state)((k, copied(v)) for k, v in state.items())
    return state


@pytest.fixture(scope="module")
def true_states():
    """The state after each step of a training that nothing disturbs."""
    net, optimizer = model()
    states = {}
    for number in range(LAST):
        step(net, optimizer, number)
        states[number + 1] = copied(state_of(net, optimizer, number + 1))
    return states


def existed(folder, true_states):
    """Every file there is a state that existed; how many there are."""
    files = list(folder.glob("step-*.pt"))
    for path in files:
        number = int(path.stem.split("-")[1])
        assert same(torch.load(path, weights_only=True), true_states[number])
    for path in folder.glob("net-*.safetensors"):
        number = int(path.stem.split("-")[1])
        got = safetensors.torch.load_file(path)
        want = true_states[number]["net"]
        assert same({k: got[k] for k in want}, dict(want))
    return len(files)


@pytest.mark.parametrize("every", [1, 3])
def test_resumed_bit_for_bit(place, true_states, every):
    train(place, 20, every)
    ckptfs.wait("nvme")
    assert existed(place, true_states) == 20 // every
    got = train(place, LAST, every)  # from the newest
    assert same(got, true_states[LAST])
    ckptfs.close()


def test_from_a_device(place, true_states):
    """As from a GPU: the fence waits for what forward did not hide."""
    with ckptfs.SlowDevice(300e6):
        train(place, 12, 2)
        ckptfs.wait("dram")
    assert existed(place, true_states) == 6


def run_and_kill(folder, after):
    """Starts the trainer and kills it when it has done some steps."""
    with subprocess.Popen([sys.executable, TRAINER, folder, str(LAST)],
                          stdout=subprocess.PIPE, text=True) as p:
        for line in p.stdout:
            after -= 1
            if after == 0:
                p.kill()
        p.wait()
    return p.returncode


def test_trainer_killed_and_resumed(place, true_states):
    chance = random.Random(7)
    for _ in range(2):
        run_and_kill(place, chance.randint(1, 12))
        existed(place, true_states)
    assert newest(place) is not None
    assert run_and_kill(place, -1) == 0
    assert same(torch.load(place / f"step-{LAST}.pt"), true_states[LAST])
    assert existed(place, true_states) > 1


def test_power_cut(fresh, true_states):
    """What is left of a training that lost its memory."""
    m = fresh()
    folder = m.path / "run"
    folder.mkdir()
    for after in (5, 9):
        run_and_kill(folder, after)
        m.lose_dram()
        existed(folder, true_states)
    train(folder, 12, 1)
    ckptfs.wait("nvme")
    ckptfs.close()
    m.lose_dram()
    existed(folder, true_states)
    assert newest(folder) == 12


def test_loaded_while_it_trains(place, true_states):
    """Under one name, replaced at every step: a reader sees whole states."""
    name = place / "latest.pt"
    errors, seen = [], set()
    stop = threading.Event()

    def read():
        while not stop.is_set():
            if not name.exists():
                continue
            try:
                got = torch.load(name, weights_only=True)
                seen.add(got["step"])
                if not same(got, true_states[got["step"]]):
                    errors.append(got["step"])
            except Exception as e:
                errors.append(e)
                raise

    reader = threading.Thread(target=read)
    reader.start()
    net, optimizer = model()
    ckptfs.fence_before_step(optimizer)
    for number in range(LAST):
        step(net, optimizer, number)
        ckptfs.save_async(state_of(net, optimizer, number + 1), name)
    ckptfs.wait("dram")
    stop.set()
    reader.join()
    assert not errors and seen
    assert same(torch.load(name), true_states[LAST])
