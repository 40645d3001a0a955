#!/usr/bin/env bash
# Runs slurm/refit.sbatch as a user does, on a Slurm of its own: two nodes, each an emulated host where that is possible.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/ci/common.sh
source tests/ci/common.sh

NODES=2
RANKS_PER_NODE=4
folder=$(mktemp -d)
# Slurm's own variables of an allocation that this may run in would confuse its clients.
for name in $(compgen -e | grep -E '^(SLURM|SBATCH)_' || true); do unset "$name"; done
export SLURM_CONF=$folder/slurm/slurm.conf

on_first() { "$@"; }
hosts=()
domains=$NODES
if can_make_hosts; then
  hosts=("$folder/hosts")
  domains=
  on_first() { bash tests/rig/hosts.sh exec "$folder/hosts" n1 "$@"; }
fi

clean_up() {
  local status=$?
  [ "$status" = 0 ] || tail -n 50 "$folder"/slurm/log/*.log "$folder"/*.out >&2 || true
  bash tests/slurm/cluster.sh down "$folder/slurm"
  [ ${#hosts[@]} = 0 ] || bash tests/rig/hosts.sh down "$folder/hosts"
  rm -rf "$folder"
  exit "$status"
}

# Submits the batch file by sbatch itself and waits for its end.
submit() {
  on_first timeout 300 env CROSSMESH="$CROSSMESH" RESULTS="$folder/results" DOMAINS="$domains" "$@" \
    sbatch --wait --parsable --nodes=$NODES --ntasks-per-node=$RANKS_PER_NODE --output="$folder/%j.out" slurm/refit.sbatch
}

check_results() {
  local job=$1 output last
  output=$folder/$job.out
  cat "$output"
  last=$(tail -n 2 "$output" | head -n 1)
  grep -qxE "[1-9][0-9]* tensors, [1-9][0-9]* bytes, bit-exact on $((NODES * RANKS_PER_NODE)) ranks" <<<"$last" ||
    die "the batch did not end with a verified table: $last"
  # Layers of 256 columns over 4 trainers and 2 x 2 generators: each route crosses what its design says.
  python3 - "$folder/results/$job" <<'PYTHON'
import json, pathlib, sys

runs = {path.stem: json.loads(path.read_text()) for path in pathlib.Path(sys.argv[1]).glob("*.json")}
assert sorted(runs) == ["flat", "gather-broadcast", "hierarchical"], sorted(runs)
total = runs["flat"]["bytes"]
crossed = {route: run["inter_domain_bytes"] for route, run in runs.items()}
assert crossed["hierarchical"] == total, (crossed, total)
assert crossed["gather-broadcast"] == total, (crossed, total)
assert crossed["flat"] >= 2 * total, (crossed, total)
PYTHON
}

check_failure() {
  local status=0
  submit MODEL=/nonexistent.safetensors >"$folder/failed" || status=$?
  [ "$status" != 0 ] || die "a batch whose model is missing succeeded"
  grep -q nonexistent "$folder/$(cut -d';' -f1 "$folder/failed").out" || die "the batch does not name the missing model"
}

trap clean_up EXIT
[ ${#hosts[@]} = 0 ] || bash tests/rig/hosts.sh up "$folder/hosts" "$NODES"
bash tests/slurm/cluster.sh up "$folder/slurm" "$NODES" "$RANKS_PER_NODE" "${hosts[@]}"
job=$(submit | cut -d';' -f1)
check_results "$job"
check_failure
say "slurm/refit.sbatch ran on $NODES nodes${hosts:+, each a host of its own}"
