#!/usr/bin/env bash
# check.sh: starts real ranks with each MPI that is installed and checks what they say. Needs the compilers that
# build-adapters.sh needs. Prints one line per check; an MPI that is missing is named and makes the check fail unless
# CHECK_MPI lists the ones to check (such as CHECK_MPI=mpich).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
ranks=3
read -ra wanted <<<"${CHECK_MPI:-openmpi mpich}"
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
failures=0

"$here/build-adapters.sh" "$place" >/dev/null
for name in "${wanted[@]}"; do
  MPICC=mpicc.$name cargo build --release --manifest-path "$root/Cargo.toml" -p crossmesh-bootstrap-mpi --examples --target-dir "$target/$name"
  cp "$target/$name/release/examples/own_mpi" "$place/own_mpi.$name"
  cp "$target/$name/release/examples"/{join,launch,killed} "$place"
done

# These arrays are used through their names.
# shellcheck disable=SC2034
openmpi=(env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  mpirun.openmpi --oversubscribe --mca pml ob1 --mca btl "self,vader,tcp" -n "$ranks")
# shellcheck disable=SC2034
mpich=(mpirun.mpich -n "$ranks")
# Without these, mpirun itself ends the others.
# shellcheck disable=SC2034
openmpi_survivors=(--enable-recovery)
# shellcheck disable=SC2034
mpich_survivors=(-disable-auto-cleanup)

report() { # WHAT OK OUTPUT
  if [ "$2" = 1 ]; then echo "ok      $1"; else
    echo "FAILED  $1"; sed 's/^/        /' <<<"$3"; failures=$((failures + 1))
  fi
}

passes() { # WHAT COMMAND...: every rank says ok
  local what=$1 output ok=1 rank; shift
  output=$(timeout 60 "$@" 2>&1) || ok=0
  for ((rank = 0; rank < ranks; rank++)); do grep -q "^rank $rank of $ranks: ok$" <<<"$output" || ok=0; done
  report "$what" $ok "$output"
}

fails() { # WHAT TEXT COMMAND...: it fails, and says TEXT
  local what=$1 text=$2 output ok=1; shift 2
  output=$(timeout 60 "$@" 2>&1) && ok=0
  grep -q -- "$text" <<<"$output" || ok=0
  grep -q ": ok$" <<<"$output" && ok=0
  report "$what" $ok "$output"
}


survives() { # WHAT COMMAND...: the last rank dies, every other says so
  local what=$1 output ok=1 rank; shift
  output=$(timeout 60 "$@" 2>&1) || true
  for ((rank = 0; rank < ranks - 1; rank++)); do
    grep -q "^rank $rank: rank $((ranks - 1)) on host here died" <<<"$output" || ok=0
  done
  report "$what" $ok "$output"
}

linked=$(ldd "$place/join")
report "a program that only joins links to no MPI" $((1 - $(grep -c libmpi <<<"$linked" || true))) "$linked"
for name in "${wanted[@]}"; do
  other=$([ "$name" = openmpi ] && echo mpich || echo openmpi)
  declare -n start=$name survivors=${name}_survivors
  passes "$name: ranks join through the adapter" "${start[@]}" "$place/join"
  passes "$name: a program that uses MPI itself" "${start[@]}" "$place/own_mpi.$name"
  adapter=$place/libcrossmesh_bootstrap_$other.so
  if [ -e "$adapter" ]; then
    fails "$name: the other MPI's adapter is refused" "set CROSSMESH_MPI_ADAPTER to the adapter of the other" \
      env CROSSMESH_MPI_ADAPTER="$adapter" "${start[@]}" "$place/join"
  fi
  if [ -e "$place/own_mpi.$other" ]; then
    fails "$name: a program linked to the other MPI is refused" "start it with the mpirun of" \
      "${start[@]}" "$place/own_mpi.$other"
  fi
  survives "$name: the death of a rank is the cause for all" "${start[@]}" "${survivors[@]}" "$place/killed"
  fails "$name: a missing adapter is named" "build-adapters.sh" \
    env CROSSMESH_MPI_ADAPTER=/nonexistent.so CROSSMESH_BOOTSTRAP=mpi "${start[@]}" "$place/join"
done
passes "no MPI: ranks join through a unique id" "$place/launch" $ranks "$place/join"
survives "no MPI: the death of a rank is the cause for all" "$place/launch" $ranks "$place/killed"
fails "no MPI: srun or mpirun is asked for when there is no unique id" "start it with crossmesh run" \
  env CROSSMESH_RANK=1 CROSSMESH_SIZE=$ranks "$place/join"
ranks=1
passes "no starter: a world of one" "$place/join"
[ $failures = 0 ]
