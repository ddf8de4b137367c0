#!/usr/bin/env python3
"""What the meters, the report, the trace and the page with three viewers cost: CPU seconds of the same run with and without them, in turns.

usage: overhead.py ROWS [--unmetered PROGRAM] [--rounds 5] [-- --set KEY=VALUE ...]      ROWS: a folder of `forebay data synth`

A round runs each kind once, in an order that changes from round to round. `FOREBAY` names another program. Prints the median of each
kind, and the median over the rounds of its difference to the first kind in the same round, in percent, with the smallest and the largest.
The first kind is the plain run, or with `--unmetered` that of a program without meters (docs/performance.md says how to compile it).
"""

import argparse, os, random, shutil, statistics, subprocess, sys, tempfile, threading, time, urllib.request

PAGE = "127.0.0.1:9617"
KINDS = ["plain", "report", "page"]


def view(stop):
    """What a browser does: the page once, then the run each second."""
    for path in ["/"] + ["/run.json"] * 100_000:
        try:
            urllib.request.urlopen(f"http://{PAGE}{path}", timeout=5).read()
        except OSError:
            pass
        if stop.wait(1.0):
            return


def run(kind, rows, unmetered, more):
    """CPU seconds of one run, user and system."""
    metered = os.environ.get("FOREBAY", "target/release/forebay")
    program = unmetered if kind.startswith("unmetered") else metered
    folder = tempfile.mkdtemp()
    command = [program, "-q", "train", "--set", f"data.train={rows}", *more]
    if kind in ("report", "page"):
        command += ["--report", folder]
    if kind == "page":
        command += ["--dashboard", PAGE]
    stop = threading.Event()
    viewers = [threading.Thread(target=view, args=(stop,)) for _ in range(3 if kind == "page" else 0)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    for viewer in viewers:
        viewer.start()
    _, status, usage = os.wait4(child.pid, 0)
    stop.set()
    for viewer in viewers:
        viewer.join()
    shutil.rmtree(folder)
    if status:
        raise SystemExit(f"{command} ended with {status}")
    return usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows")
    parser.add_argument("--unmetered")
    parser.add_argument("--rounds", type=int, default=5)
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    own, more = sys.argv[1:split], sys.argv[split + 1 :]
    args = parser.parse_args(own)
    kinds = ["unmetered"] * bool(args.unmetered) + KINDS
    kinds += [f"{kinds[0]} again"]
    run("plain", args.rows, None, more)  # Files are in the page cache then.
    all_rounds = []
    for number in range(args.rounds):
        order = kinds[:]
        random.Random(number).shuffle(order)
        begin, cpu = time.time(), {}
        for kind in order:
            cpu[kind] = run(kind, args.rows, args.unmetered, more)
        all_rounds.append(cpu)
        seconds = " ".join(f"{kind} {cpu[kind]:.2f}" for kind in kinds)
        print(f"round {number + 1}: {seconds} ({time.time() - begin:.0f} s)", flush=True)
    for kind in kinds:
        differences = sorted(100 * (cpu[kind] / cpu[kinds[0]] - 1) for cpu in all_rounds)
        median = statistics.median(cpu[kind] for cpu in all_rounds)
        print(f"{kind:15} {median:7.2f} CPU s, {statistics.median(differences):+.1f}% ({differences[0]:+.1f} to {differences[-1]:+.1f})")


main()
