#!/usr/bin/env bash
# Forebay beside TensorFlow and Paddle's parameter server, in one run, one after the other. See README.md.
set -euo pipefail
cd "$(dirname "$0")"
cache=${PEERS_CACHE:-$HOME/.cache/peers}
data=${PEERS_DATA:-$cache/data}
export OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0
out=${1:-$cache/results.jsonl}
measure() { "$cache/venvs/base/bin/python" measure.py "$1" "$out" -- "${@:2}"; }
for batch in 4096 512; do
    measure "forebay-$batch" ./forebay.sh "$data/pq/train-*.parquet" "$data/pq/test-0.parquet" --set train.batch_rows=$batch
    measure "tensorflow-$batch" "$cache/venvs/tf/bin/python" bench_tf.py --bs $batch --rows 1000000
    PADDLE=paddle262 ./ps.sh "paddle-ps-$batch" "$out" 1 --rule SparseAdamSGDRule --slr 0.01 --rows 250000 --bs $batch
    measure "forebay-lr-$batch" ./forebay.sh "$data/pq/train-*.parquet" "$data/pq/test-0.parquet" --set train.batch_rows=$batch \
        --set model.kind=lr --set train.staleness=2
done
