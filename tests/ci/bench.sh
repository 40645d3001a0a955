#!/usr/bin/env bash
# bench.sh reshard|p2p [ARGUMENT...]: builds what the bench needs, then runs crossmesh bench with these arguments: reshard
# on as many ranks as --sources and --destinations say, beside the peers of tests/bench/peers.toml unless --peers is given;
# p2p over every link, or over that of --link.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/ci/common.sh
source tests/ci/common.sh

# A bench takes minutes; one that hangs must not hang its caller.
LIMIT=1800
# What all methods together hold of one tensor of 1 GiB.
NEEDED_KIB=$((13 << 20))
PEERS=$TARGET/bench/crossmesh-bench-peers

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Prints what follows option $1 among the other arguments, or $2.
option() {
  local name=$1 value=$2 word
  shift 2
  while [ $# -gt 0 ]; do
    word=$1
    shift
    case $word in
      "$name") [ $# = 0 ] || value=$1 ;;
      "$name="*) value=${word#*=} ;;
    esac
  done
  printf '%s\n' "$value"
}

build() {
  bash tests/ci/setup.sh build
  cargo build --release --locked -p crossmesh-launcher
}

build_peers() {
  have mpicc.openmpi && have mpirun.openmpi ||
    die "Open MPI is missing, which the peers need: apt-get install libopenmpi-dev openmpi-bin, or use --peers none"
  mkdir -p "$(dirname "$PEERS")"
  mpicc.openmpi -std=c11 -O3 -Wall -Wextra -Werror -o "$PEERS" tests/bench/*.c -lpthread
}

job() {
  local ranks=$1
  shift
  PATH=$(dirname "$PEERS"):$(dirname "$CROSSMESH"):$PATH OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    timeout -k 10 "$LIMIT" "$CROSSMESH" run --starter local -n "$ranks" "$@"
}

reshard() {
  local sources destinations available arguments=("$@")
  sources=$(option --sources 4 "$@")
  destinations=$(option --destinations 4 "$@")
  [[ $sources =~ ^[0-9]{1,5}$ && $destinations =~ ^[0-9]{1,5}$ ]] || die "--sources and --destinations take a number of ranks"
  if [ -z "$(option --peers '' "$@")" ]; then
    build_peers
    arguments+=(--peers tests/bench/peers.toml)
  fi
  if [ -z "$(option --bytes '' "$@")" ]; then
    available=$(awk '$1 == "MemAvailable:" {print $2}' /proc/meminfo)
    [ "$available" -ge $NEEDED_KIB ] ||
      die "$((available >> 20)) GiB of memory are available, $((NEEDED_KIB >> 20)) GiB are needed; use --bytes 64MiB"
  fi
  job $((sources + destinations)) -- "$CROSSMESH" bench reshard "${arguments[@]}"
}

# Runs one link in a job that its ranks are joined by, its results into $folder.
one_link() {
  local link=$1 domains=()
  shift
  [ "$link" != tcp ] || domains=(--domains 2)
  [ "$link" != shm ] || local -x CROSSMESH_MAPPED=staged
  job 2 "${domains[@]}" -- "$CROSSMESH" bench p2p "$@" --link "$link" --json "$folder/$link.json"
}

p2p() {
  local json links link arguments=()
  json=$(option --json '' "$@")
  IFS=, read -ra links <<<"$(option --link mapped,process,shm,tcp "$@")"
  while [ $# -gt 0 ]; do
    case $1 in
      --json | --link) shift ;;
      --json=* | --link=*) ;;
      *) arguments+=("$1") ;;
    esac
    [ $# = 0 ] || shift
  done
  for link in "${links[@]}"; do one_link "$link" "${arguments[@]}"; done
  [ -z "$json" ] || (cd "$folder" && python3 -c '
import json, sys
runs = [json.load(open(f"{link}.json")) for link in sys.argv[1:]]
json.dump(runs[0] | {"links": [link for run in runs for link in run["links"]]}, sys.stdout, indent=2)
' "${links[@]}") >"$json"
}

# Transfers over TCP beside iperf3.
tcp() {
  have iperf3 || die "iperf3 is missing, the peer of TCP transfers: apt-get install iperf3"
  bash tests/bench/tcp.sh "$CROSSMESH" "$@"
}

# What waiting costs, of 80 ranks; and whether many ranks on few cores still move as much as two.
ranks() {
  job 82 -- "$CROSSMESH" bench idle "$@"
  local ranks
  for ranks in 1 8; do
    job $((2 * ranks)) -- "$CROSSMESH" bench reshard --shapes contiguous,columns-1k --sources "$ranks" --destinations "$ranks" \
      --memory shared --peers none --bind none
  done
}

what=${1:-}
case $what in
  reshard | p2p | tcp | ranks) shift ;;
  *) die "usage: ./x bench reshard|p2p|tcp|ranks [ARGUMENT...]; crossmesh bench reshard --help lists the arguments" ;;
esac
build
"$what" "$@"
