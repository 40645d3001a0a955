#!/usr/bin/env bash
# mpi.sh openmpi|mpich: whole jobs started by one MPI: through crossmesh run, by its plain mpirun, with a rank killed in
# the middle, and with the adapter library of the other MPI.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/ci/common.sh
source tests/ci/common.sh

MPI=${1:?openmpi or mpich}
MODEL=slurm/small.model.json
LIMIT=120
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# A plain mpirun that starts more ranks than there are cores and does not spin.
mpirun() {
  local ranks=$1 options=()
  shift
  [ "$MPI" = mpich ] || options=(--oversubscribe --mca mpi_yield_when_idle 1)
  timeout -k 10 $LIMIT "mpirun.$MPI" "${options[@]}" -n "$ranks" "$@"
}

routes() {
  local route
  for route in flat gather-broadcast hierarchical; do
    timeout -k 10 $LIMIT "$CROSSMESH" run --starter "$MPI" -n 8 --domains 2 -- "$CROSSMESH" refit $MODEL \
      --src tp=4 --dst tp=2,dp=2 --route "$route" --verify --json "$folder/$route.json"
  done
  python3 slurm/report.py --folder "$folder" --ranks 8 flat gather-broadcast hierarchical
}

without_launcher() {
  CROSSMESH_DOMAINS=2 mpirun 4 "$CROSSMESH" refit $MODEL --src tp=2 --dst dp=2 --verify --json "$folder/hierarchical.json"
  python3 slurm/report.py --folder "$folder" --ranks 4 hierarchical
}

# The pid of the program of rank $1 among the processes that carry the mark $2 in their environment.
pid_of_rank() {
  local rank=$1 mark=$2 process
  for process in /proc/[0-9]*; do
    if grep -zqsxF "CROSSMESH_TEST_MARK=$mark" "$process/environ" &&
      grep -zqsxF "CROSSMESH_RANK=$rank" "$process/environ" &&
      tr '\0' ' ' 2>/dev/null <"$process/cmdline" | grep -q '^[^ ]*crossmesh refit '; then
      basename "$process"
      return
    fi
  done
}

killed_rank() {
  local mark=$$-$RANDOM log=$folder/killed.log job pid="" began status=0
  CROSSMESH_TEST_MARK=$mark timeout -k 10 $LIMIT "$CROSSMESH" run --starter "$MPI" -n 4 --domains 2 -- \
    "$CROSSMESH" refit $MODEL --src tp=2 --dst tp=2 --repeat 1000000 >"$log" 2>&1 &
  job=$!
  for _ in $(seq 100); do
    pid=$(pid_of_rank 2 "$mark")
    [ -z "$pid" ] || break
    sleep 0.1
  done
  [ -n "$pid" ] || die "rank 2 did not start: $(cat "$log")"
  # Into the middle of the transfers.
  sleep 2
  began=$SECONDS
  kill -KILL "$pid"
  wait "$job" || status=$?
  [ $((SECONDS - began)) -le 7 ] || die "the others took $((SECONDS - began)) s to end after rank 2 was killed: $(cat "$log")"
  [ "$status" = 137 ] || die "exit code $status instead of 137 (SIGKILL): $(cat "$log")"
  grep -q 'rank 2.*SIGKILL' "$log" || die "the killed rank is not named: $(cat "$log")"
  [ -z "$(for rank in 0 1 3; do pid_of_rank $rank "$mark"; done)" ] || die "a rank outlived the job"
  say "a killed rank ends the job in $((SECONDS - began)) s, named"
}

wrong_adapter() {
  local other=mpich library status=0
  [ "$MPI" = openmpi ] || other=openmpi
  library=$TARGET/release/libcrossmesh_bootstrap_$other.so
  if [ ! -e "$library" ]; then
    say "the adapter of $other is not built; its mix-up is not tried"
    return
  fi
  CROSSMESH_BOOTSTRAP=mpi CROSSMESH_MPI_ADAPTER=$library mpirun 2 "$CROSSMESH" refit $MODEL --src tp=1 --dst tp=1 \
    >"$folder/wrong.log" 2>&1 || status=$?
  [ "$status" != 0 ] && [ "$status" != 124 ] || die "exit code $status with the adapter of $other: $(cat "$folder/wrong.log")"
  grep -qi 'mpi' "$folder/wrong.log" || die "the mix-up is not named: $(cat "$folder/wrong.log")"
  say "the adapter of $other under mpirun.$MPI is refused: $(grep -im 1 mpi "$folder/wrong.log")"
}

routes
without_launcher
killed_rank
wrong_adapter
