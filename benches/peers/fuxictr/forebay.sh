#!/usr/bin/env bash
# forebay.sh MODEL SEED TRAIN TEST [forebay arguments]: CPU seconds of `forebay train`, from the files to the saved model, and the AUC.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
program=${FOREBAY:-$here/../../../target/release/forebay}
case $1 in
din) own=(--set model.kind=din --set 'model.attention=[{history="history", target="item"}]'
    --set 'columns.slots=["C1..C26", "item", {column="history", key_space="item"}]') ;;
dssm) own=(--set model.kind=two_towers --set model.similarity=dot --set model.hidden=[256,128] --set model.vector_dim=64
    --set columns.dense=[] --set 'model.user={slots=["C1..C20", "history"]}' --set 'model.item={slots=["item", "C21..C26"]}'
    --set 'columns.slots=["C1..C26", "item", {column="history", key_space="item", pooling="mean"}]') ;;
final_mlp) own=(--set model.kind=final_mlp --set model.heads=10) ;;
wide_deep | deep_fm | dcn_v2) own=(--set model.kind="$1") ;;
fm | lr) own=(--set model.kind="$1" --set model.hidden=[]) ;;
*) echo "no model \`$1\`: din, dssm, final_mlp, wide_deep, deep_fm, dcn_v2, fm, lr" >&2; exit 2 ;;
esac
to=$(mktemp -d)
trap 'rm -rf "$to"' EXIT
TIMEFORMAT="%U %S"
used=$({ time "$program" train "$here/history.toml" --set seed="$2" --set data.train="$3" "${own[@]}" "${@:5}" \
    --set output.model="$to/model" >"$to/log" 2>&1; } 2>&1) || { cat "$to/log" >&2; exit 1; }
echo "$1 seed $2 cpu $(echo "$used" | awk '{ print $1 + $2 }') $("$program" eval --model "$to/model" --data "$4" | grep -o 'AUC [0-9.]*')"
