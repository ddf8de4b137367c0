#!/usr/bin/env python3
"""Looks into a run with a stock Arrow Flight client: tables, statistics, rows by key, how far the run is.

    pip install pyarrow
    python examples/flight_client.py 127.0.0.1:7600 [--token-file FILE] [--ca FILE] [--keys 17,42]

The address is that of a ps process (the first one also knows how far the run is).
"""

import argparse
import json

import pyarrow as pa
import pyarrow.flight as flight


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="HOST:PORT of a ps process")
    parser.add_argument("--token-file", help="the run's token")
    parser.add_argument("--ca", help="the authority that signed the run's certificates, PEM")
    parser.add_argument("--keys", help="keys to read, with commas between; without it, some that the table has")
    args = parser.parse_args()

    ca = open(args.ca, "rb").read() if args.ca else None
    client = flight.FlightClient(f"{'grpc+tls' if ca else 'grpc'}://{args.address}", tls_root_certs=ca)
    token = open(args.token_file).read().strip() if args.token_file else None
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())] if token else [])

    def ask(action: str, body: object = None) -> object:
        answer = client.do_action(flight.Action(action, json.dumps(body).encode()), options)
        return json.loads(next(iter(answer)).body.to_pybytes())

    if "coordinator.status" in (action.type for action in client.list_actions(options)):
        status = ask("coordinator.status")
        print(f"phase {json.dumps(status['phase'])}, {status['counts']['trained']} rows trained on, windows {status['windows_done']} of {status['windows_total']}")

    for info in client.list_flights(options=options):
        _, name = (part.decode() for part in info.descriptor.path)
        shards = ask("table.stats", {"table": name})["shards"]
        rows = sum(shard["rows"] for shard in shards)
        print(f"table {name}: {counted(rows, 'row')} in {counted(len(shards), 'shard')} here, {sum(shard['bytes'] for shard in shards)} bytes")
        keys = [int(key) for key in args.keys.split(",")] if args.keys else some_keys(client, options, name)
        for key, row in zip(keys, peek(client, options, name, keys)):
            print(f"key {key}: {row[:4]} ... {counted(len(row), 'weight')}")


def counted(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def some_keys(client: flight.FlightClient, options: flight.FlightCallOptions, table: str) -> list:
    """The first keys that the process has rows for."""
    ticket = flight.Ticket(json.dumps({"table": table, "at_most": 3}).encode())
    return client.do_get(ticket, options).read_all()["key"].to_pylist()[:3]


def peek(client: flight.FlightClient, options: flight.FlightCallOptions, table: str, keys: list) -> list:
    """The rows of keys, in their order; zeros for a key that has none here."""
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_path("table", table, "peek"), options)
    batch = pa.record_batch({"key": pa.array(keys, pa.uint64())})
    with writer:
        writer.begin(batch.schema)
        writer.write_batch(batch)
        writer.done_writing()
        return reader.read_all()["row"].to_pylist()


if __name__ == "__main__":
    main()
