#!/usr/bin/env python3
"""The floor: CPU seconds of two processes that only move the bytes of rows over loopback TCP, with plain sockets.

usage: floor.py [BYTES PER ROW]...
"""
import os, resource, socket, sys

ROWS, BATCH = 20_000_000, 2048


def moved(bytes_per_row):
    """CPU seconds of both ends per million rows, in batches, received into one buffer that stays."""
    size, batches = bytes_per_row * BATCH, ROWS // BATCH
    listener = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(listener.getsockname())
    receiver, _ = listener.accept()
    buffer = bytearray(os.urandom(size))
    before = used()
    if not (child := os.fork()):
        for _ in range(batches):
            sender.sendall(buffer)
        os._exit(0)
    view = memoryview(buffer)
    for _ in range(batches):
        got = 0
        while got < size:
            got += receiver.recv_into(view[got:])
    os.waitpid(child, 0)
    return (used() - before) / (batches * BATCH) * 1e6


def used():
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    for bytes_per_row in map(int, sys.argv[1:] or ["162", "214"]):
        print(f"{bytes_per_row} bytes per row: {moved(bytes_per_row):.3f} CPU s per M rows")
