#!/bin/sh
# ps.sh NAME OUT WORKERS bench_paddle_ps.py-args...   (1 server, WORKERS trainers on loopback)
cd "$(dirname "$0")"; N=$1; O=$2; W=$3; shift 3; C=${PEERS_CACHE:-$HOME/.cache/peers}; L=$C/logs/ps-$N; rm -rf "$L"; mkdir -p "$L"
exec timeout -s INT 420 "$C"/venvs/base/bin/python measure.py $N $O -- "$C"/venvs/${PADDLE:-paddle262}/bin/python -m paddle.distributed.fleet.launch --log_dir "$L" --server_num 1 --worker_num $W bench_paddle_ps.py "$@"
