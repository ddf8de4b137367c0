#!/usr/bin/env bash
# forebay.sh FILES TEST [forebay arguments]: one run of the program for measure.py, which reads the marks.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp)
trap 'rm -f "$out"' EXIT
mark() { echo "$1" >"${PEERS_MARK:-/dev/stdout}"; }
mark "MARK start"
"$here/../../target/release/forebay" train "$here/ctr_dnn.toml" --set data.train="$1" "${@:3}" \
    --set output.model="$out.model" >"$out" 2>/dev/null
mark "MARK end rows=$(sed -nE 's/^trained on ([0-9,]+) rows.*/\1/p' "$out" | tr -d ,)"
auc=$("$here/../../target/release/forebay" eval --model "$out.model" --data "$2" | sed -nE 's/.*AUC ([0-9.]+).*/\1/p')
mark "RES {\"auc\": $auc}"
rm -rf "$out.model"
