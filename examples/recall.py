#!/usr/bin/env python3
"""Recall of items by the vectors that `forebay embed` wrote: of the rows with label 1, how many have their item among the k nearest.

    python recall.py ITEMS USERS

ITEMS: what `embed --tower item --keep item,label` wrote for the rows of the training; their items are the catalogue. USERS: what `embed
--tower user --keep item,label` wrote for other rows. Beside the model stands the order of all items by their rows with label 1 in
ITEMS. Needs numpy and pyarrow. Neighbours are exact, by one matrix product for each block of users.
"""
import sys

import numpy as np
import pyarrow.parquet as pq

AT = [10, 50, 100]


def columns(folder):
    table = pq.read_table(folder)
    vectors = table["vector"].combine_chunks()
    return (table["item"].to_numpy(), table["label"].to_numpy(), vectors.flatten().to_numpy().reshape(len(vectors), -1))


def main():
    items, labels, vectors = columns(sys.argv[1])
    catalogue, first, of_row = np.unique(items, return_index=True, return_inverse=True)
    vectors = vectors[first]
    popularity = np.bincount(of_row, weights=labels, minlength=len(catalogue))

    wanted, labels, users = columns(sys.argv[2])
    place = np.searchsorted(catalogue, wanted).clip(max=len(catalogue) - 1)
    there = (labels == 1) & (catalogue[place] == wanted)
    users, place = users[there], place[there]

    found, popular = [], []
    for begin in range(0, len(users), 1000):
        scores, own = users[begin:begin + 1000] @ vectors.T, place[begin:begin + 1000]
        of_own = scores[np.arange(len(own)), own][:, None]
        found.append((scores > of_own).sum(1))
        popular.append((popularity > popularity[own][:, None]).sum(1))
    found, popular = np.concatenate(found), np.concatenate(popular)
    print(f"{len(users)} rows with label 1, {len(catalogue)} items")
    for k in AT:
        print(f"recall@{k}: {(found < k).mean():.4f}, by popularity {(popular < k).mean():.4f}")


if __name__ == "__main__":
    main()
