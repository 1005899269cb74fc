# SPDX-License-Identifier: Apache-2.0
"""A trainer that resumes: FOLDER LAST [EVERY]. It goes on from the newest
checkpoint in FOLDER to step LAST and saves every EVERY steps, in both
formats. Prints each step's number when it is done."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "lib"))

from states import ckptfs, model, step, torch  # noqa: E402


def newest(folder):
    found = [int(p.stem.split("-")[1]) for p in folder.glob("step-*.pt")]
    return max(found, default=None)


def state_of(net, optimizer, number):
    return {"net": net.state_dict(), "optimizer": optimizer.state_dict(),
            "step": number}


def resume(folder, net, optimizer):
    number = newest(folder)
    if number is None:
        return 0
    state = torch.load(folder / f"step-{number}.pt", weights_only=True,
                       mmap=True)
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    assert state["step"] == number
    return number


def train(folder, last, every, told=lambda number: None):
    net, optimizer = model()
    hook = ckptfs.fence_before_step(optimizer)
    number = resume(folder, net, optimizer)
    while number < last:
        step(net, optimizer, number)
        number += 1
        if number % every == 0:
            ckptfs.save_async(state_of(net, optimizer, number),
                              folder / f"step-{number}.pt")
            ckptfs.save_async(net.state_dict(),
                              folder / f"net-{number}.safetensors")
        told(number)
    hook.remove()
    return state_of(net, optimizer, number)


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(pathlib.Path(sys.argv[1]), int(sys.argv[2]),
          int(sys.argv[3]) if len(sys.argv) > 3 else 1,
          lambda number: print(number, flush=True))
