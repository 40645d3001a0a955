#!/usr/bin/env bash
# Hosts emulated on this machine: each is a set of network, UTS, IPC and mount namespaces with its own name, address,
# /dev/shm and network card, joined by a switch that nothing else is connected to.
#
#   hosts.sh up FOLDER COUNT [RATE]   hosts n1..nCOUNT at 10.77.0.1..; RATE (tc's spelling, 2gbit) limits each card both ways
#   hosts.sh exec FOLDER HOST CMD...  runs CMD on HOST, in the same working directory
#   hosts.sh bytes FOLDER HOST        bytes that HOST's card has sent and received
#   hosts.sh down FOLDER              ends what still runs on the hosts and removes them; harmless when they are gone
#
# Processes keep one pid namespace: pids are no proof of a shared host, exactly what the library must not assume.
# A host that nobody takes down ends by itself after an hour.
set -euo pipefail

SELF=${BASH_SOURCE[0]}
LIFETIME=3600
MTU=9000
# One burst of 256 KiB passes unshaped; short enough next to what the tests send.
BURST=256kb

usage() {
  sed -n '5,8s/^# *//p' "$SELF" >&2
  exit 2
}

# The folder's name makes the namespaces' names, so that several sets can stand at once.
prefix() { printf 'xm%s' "$(realpath -m "$1" | cksum | cut -c1-7)"; }

inside() {
  local namespace=$1
  shift
  ip netns exec "$namespace" "$@"
}

add_host() {
  local folder=$1 names=$2 index=$3 rate=$4 host
  host=$names-n$index
  ip netns add "$host"
  ip link add "port$index" netns "$names-sw" mtu $MTU type veth peer name eth0 netns "$host" mtu $MTU
  ip -n "$names-sw" link set "port$index" master switch up
  ip -n "$host" link set lo up
  ip -n "$host" addr add "10.77.0.$index/24" dev eth0
  ip -n "$host" link set eth0 up
  if [ -n "$rate" ]; then
    tc -n "$host" qdisc add dev eth0 root tbf rate "$rate" burst $BURST latency 5ms
    tc -n "$names-sw" qdisc add dev "port$index" root tbf rate "$rate" burst $BURST latency 5ms
  fi
  # The holder keeps the other namespaces alive; its pid is how they are entered.
  inside "$host" setsid unshare --uts --ipc --mount sh -c '
    hostname "$2" && mount --make-rprivate / && mount -t tmpfs -o size=8g tmpfs /dev/shm &&
      mount --bind "$1/hosts" /etc/hosts && echo $$ >"$1/$2.new" && mv "$1/$2.new" "$1/$2.pid" && exec sleep "$3"
    ' sh "$folder" "n$index" $LIFETIME </dev/null >"$folder/n$index.log" 2>&1 &
}

await_host() {
  local folder=$1 host=$2 _
  for _ in $(seq 500); do
    [ ! -s "$folder/$host.pid" ] || return 0
    sleep 0.01
  done
  cat "$folder/$host.log" >&2
  echo "hosts.sh: $host did not come up within 5 s" >&2
  return 1
}

# What is half up when `up` fails goes down again.
half_up() {
  [ "$1" = 0 ] || down "$folder"
  exit "$1"
}

up() {
  local folder=$1 count=$2 rate=${3:-} names index
  names=$(prefix "$folder")
  mkdir -p "$folder"
  echo "$names" >"$folder/prefix"
  trap 'half_up $?' EXIT
  {
    echo "127.0.0.1 localhost"
    for index in $(seq "$count"); do echo "10.77.0.$index n$index"; done
  } >"$folder/hosts"
  ip netns add "$names-sw"
  ip -n "$names-sw" link add switch mtu $MTU type bridge
  ip -n "$names-sw" link set switch up
  for index in $(seq "$count"); do add_host "$folder" "$names" "$index" "$rate"; done
  for index in $(seq "$count"); do await_host "$folder" "n$index"; done
}

enter() {
  local folder=$1 host=$2 pid
  shift 2
  pid=$(cat "$folder/$host.pid" 2>/dev/null) || {
    echo "hosts.sh: no host $host in $folder" >&2
    exit 1
  }
  exec nsenter -t "$pid" -n -u -i -m --wdns="$PWD" -- "$@"
}

# Ends by pid whatever runs in a host's network, politely first.
end_processes() {
  local host=$1 signal pids _
  for signal in TERM KILL; do
    for _ in $(seq 50); do
      pids=$(ip netns pids "$host" 2>/dev/null || true)
      [ -n "$pids" ] || return 0
      # shellcheck disable=SC2086 # one word a pid
      kill -s $signal $pids 2>/dev/null || true
      sleep 0.02
    done
  done
}

down() {
  local folder=$1 names host
  names=$(prefix "$folder")
  for host in $(ip netns list | awk -v names="^$names-" '$1 ~ names {print $1}'); do
    end_processes "$host"
    ip netns del "$host"
  done
  rm -f "$folder"/n*.pid "$folder"/n*.log "$folder/hosts" "$folder/prefix"
  rmdir "$folder" 2>/dev/null || true
}

need() { [ "$1" -ge "$2" ] || usage; }

need $# 2
command=$1
folder=$(realpath -m "$2")
shift 2
case $command in
  up)
    need $# 1
    up "$folder" "$@"
    ;;
  exec)
    need $# 2
    enter "$folder" "$@"
    ;;
  bytes)
    need $# 1
    enter "$folder" "$1" awk '$1 == "eth0:" {print $10, $2}' /proc/net/dev
    ;;
  down) down "$folder" ;;
  *) usage ;;
esac
