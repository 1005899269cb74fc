# SPDX-License-Identifier: Apache-2.0
"""train.py LOSSES STEPS [--save DIR --every K] [--resume DIR]

Trains up to STEPS and appends "step loss" to the file LOSSES, the loss as a
hexadecimal float: what is compared later is every bit of it.
"""
import argparse
import os
import sys
import time

import formats
from model import Training


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("losses")
    parser.add_argument("steps", type=int)
    parser.add_argument("--save")
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--resume")
    return parser.parse_args()


def save(training, root):
    name = f"step-{training.step}"
    began = time.monotonic()
    formats.save(training.state(), os.path.join(root, name))
    formats.write_latest(root, name)
    print(f"      {name} saved in {time.monotonic() - began:.2f} s",
          flush=True)


def main():
    args = parse()
    training = Training()
    if args.resume:
        name = formats.read_latest(args.resume)
        training.restore(formats.load(os.path.join(args.resume, name)))
        print(f"      latest names {name}; torch.load, safetensors and DCP "
              "read\n      the same bits from it", flush=True)
    with open(args.losses, "a", buffering=1, encoding="ascii") as losses:
        while training.step < args.steps:
            loss = training.advance()
            losses.write(f"{training.step} {loss.hex()}\n")
            if args.save and training.step % args.every == 0:
                print(f"      step {training.step}: loss {loss:.3f}",
                      flush=True)
                save(training, args.save)
    print(f"      step {training.step}: loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, RuntimeError) as e:
        sys.exit(f"quickstart: training stopped: {e}")
