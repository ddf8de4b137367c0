"""Rows of `forebay data synth --history 20` as FuxiCTR's dataset: rows.py TRAIN TEST DIR. Values that the training rows lack share one id."""
import json, os, sys
import numpy as np, pyarrow as pa, pyarrow.compute as pc, pyarrow.parquet as pq

train, test, folder = sys.argv[1:]
os.makedirs(folder, exist_ok=True)
tables = [pq.read_table(train), pq.read_table(test)]
arrays = [{}, {}]
features = []

def column(table, name):
    return table[name].combine_chunks()

def encode(values, seen):
    """0 is padding, 1 to n the values of `seen`, n + 1 all others."""
    at = np.searchsorted(seen, values).clip(max=len(seen) - 1)
    return np.where(seen[at] == values, at + 1, len(seen) + 1)

for name in (f"I{i}" for i in range(1, 14)):
    for table, out in zip(tables, arrays):
        out[name] = np.log1p(column(table, name).fill_null(0).to_numpy().astype(np.float64))
    features.append({name: {"source": "user", "type": "numeric"}})
for i in range(1, 27):
    name = f"C{i}"
    values = [column(t, name).cast(pa.int64()).fill_null(-1).to_numpy() for t in tables]
    seen = np.unique(values[0])
    for v, out in zip(values, arrays):
        out[name] = encode(v, seen)
    side = "user" if i <= 20 else "item"
    features.append({name: {"source": side, "type": "categorical", "padding_idx": 0, "vocab_size": len(seen) + 2}})
seen = np.unique(np.concatenate([column(tables[0], "item").to_numpy(), column(tables[0], "history").flatten().to_numpy()]))
longest = pc.max(pc.list_value_length(tables[0]["history"])).as_py()
for table, out in zip(tables, arrays):
    out["item"] = encode(column(table, "item").to_numpy(), seen)
    lists = column(table, "history")
    lengths = pc.list_value_length(lists).to_numpy()
    out["history"] = np.zeros((len(lists), longest), np.int64)
    out["history"][np.arange(longest) < lengths[:, None]] = encode(lists.flatten().to_numpy(), seen)
    out["label"] = column(table, "label").to_numpy()
spec = {"padding_idx": 0, "vocab_size": len(seen) + 2}
features.append({"item": {"source": "item", "type": "categorical", **spec}})
features.append({"history": {"source": "user", "type": "sequence", "max_len": longest, "share_embedding": "item", **spec}})
for part, out in zip(("train", "test"), arrays):
    np.savez(f"{folder}/{part}.npz", **out)
with open(f"{folder}/feature_map.json", "w") as file:
    json.dump({"dataset_id": "history", "labels": ["label"], "features": features}, file)
