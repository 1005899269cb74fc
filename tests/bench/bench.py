# SPDX-License-Identifier: Apache-2.0
"""bench.py save|meta|capture [--json FILE] [--only NAME]...: see
scripts/bench."""
import argparse
import os
import signal
import subprocess
import sys

import capture
import meta
import save
from harness import Places, Report

BENCHES = dict(save=save, meta=meta, capture=capture)


def parse():
    names = "; ".join(f"{bench}: {', '.join(module.FIGURES)}"
                      for bench, module in BENCHES.items())
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description="Measures ckptfs against the best "
        "that this machine can do without it, in turn, in one run.")
    parser.add_argument("bench", choices=BENCHES)
    parser.add_argument("--json", metavar="FILE",
                        help="raw samples and what the machine is")
    parser.add_argument("--only", metavar="NAME", action="append", default=[],
                        help=f"only these figures ({names})")
    parser.add_argument("--quick", action="store_true",
                        help="capture: small, to see that it works")
    parser.add_argument("--method", metavar="NAME", action="append",
                        default=[], help="capture: only these ways to save")
    args = parser.parse_args()
    if (args.quick or args.method) and args.bench != "capture":
        parser.error(f"{args.bench} has no --quick and no --method")
    figures = BENCHES[args.bench].FIGURES
    for name in args.only:
        if name not in figures:
            parser.error(f"{args.bench} has no {name}, but "
                         f"{', '.join(figures)}")
    return args


def end_by_signal(number, _):
    sys.exit(128 + number)  # what is mounted is unmounted on the way out


def main():
    args = parse()
    if os.geteuid() != 0:
        sys.exit("bench: its baselines must be mounted: run it as root")
    for number in signal.SIGTERM, signal.SIGHUP:
        signal.signal(number, end_by_signal)
    capture.configure(args.quick, args.method)
    figures = BENCHES[args.bench].FIGURES
    report = Report(args.bench)
    places = Places()
    try:
        for name in args.only or figures:
            figures[name](report, places)
    finally:
        places.close()
    report.end(args.json)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except (AssertionError, OSError, RuntimeError,
            subprocess.CalledProcessError) as e:
        sys.exit(f"bench: {e}")
