#!/usr/bin/env bash
# tcp.sh CROSSMESH [ROUNDS]: transfers between two domains of this host over TCP on loopback, beside iperf3 with as many
# connections, in turns. Prints GB/s of both and the ratio of each round.
set -euo pipefail
CROSSMESH=$1
ROUNDS=${2:-7}
PORT=${IPERF_PORT:-27931}
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT

iperf3 -s -p "$PORT" -B 127.0.0.1 >"$folder/server.log" 2>&1 &
server=$!
for _ in $(seq 100); do
  iperf3 -c 127.0.0.1 -p "$PORT" -n 1M >/dev/null 2>&1 && break
  sleep 0.05
done

# Bytes per second of iperf3 over $1 connections.
iperf() { iperf3 -c 127.0.0.1 -p "$PORT" -P "$1" -t 2 -O 1 -J | python3 -c '
import json, sys
print(json.load(sys.stdin)["end"]["sum_received"]["bits_per_second"] / 8e9)'; }

# The same of crossmesh: $1 sources to $1 destinations of another domain, one connection a pair.
ours() {
  "$CROSSMESH" run --starter local -n $((2 * $1)) --domains 2 -- "$CROSSMESH" bench reshard --shapes contiguous \
    --sources "$1" --destinations "$1" --memory shared --peers none --repeat 9 --bind none --json "$folder/out.json" >"$folder/table" 2>&1 ||
    { cat "$folder/table" >&2; return 1; }
  python3 -c '
import json, sys
print(json.load(sys.stdin)["shapes"][0]["methods"][0]["gb_per_s"]["median"])' <"$folder/out.json"
}

for connections in 1 4; do
  echo "connections $connections: crossmesh GB/s, iperf3 GB/s, ratio"
  for _ in $(seq "$ROUNDS"); do
    a=$(ours "$connections")
    b=$(iperf "$connections")
    python3 -c "print(f'  {$a:7.3f} {$b:7.3f} {$a / $b:6.3f}')"
  done
done
