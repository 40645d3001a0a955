#!/usr/bin/env bash
# A Slurm of one's own: munged, slurmctld and a slurmd a node, without systemd and without touching the machine's.
#
#   cluster.sh up FOLDER NODES CPUS [HOSTS]   HOSTS: folder of tests/rig/hosts.sh, to give each node a host of its own
#   cluster.sh down FOLDER
#
# Everything lies in FOLDER; clients find it by SLURM_CONF=FOLDER/slurm.conf. Without HOSTS all nodes are this machine,
# told apart by ports only: enough for the launcher, not for what depends on which host a rank is on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() {
  sed -n '4,5s/^# *//p' tests/slurm/cluster.sh >&2
  exit 2
}

# Runs a command on the host of a node, or here when the nodes have no hosts of their own.
on() {
  local node=$1
  shift
  if [ -n "$hosts" ]; then bash tests/rig/hosts.sh exec "$hosts" "$node" "$@"; else "$@"; fi
}

start_munge() {
  (
    umask 077
    head -c 1024 /dev/urandom >"$folder/munge.key"
  )
  munged --force --key-file="$folder/munge.key" --socket="$folder/run/munge.sock" --pid-file="$folder/run/munged.pid" \
    --log-file="$folder/log/munged.log" --seed-file="$folder/run/munged.seed"
}

# The first of COUNT free ports, below the range that the kernel hands out.
free_ports() {
  python3 - "$1" <<'PYTHON'
import random, socket, sys

def free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

count = int(sys.argv[1])
for _ in range(100):
    first = random.randrange(20000, 32000)
    if all(free(port) for port in range(first, first + count)):
        print(first)
        sys.exit(0)
sys.exit("no run of free ports found")
PYTHON
}

# Where the controller and the nodes are: own addresses on emulated hosts, own ports on this machine.
addresses() {
  local nodes=$1 first
  if [ -n "$hosts" ]; then
    echo "SlurmctldHost=n1(10.77.0.1)"
    echo "NodeName=DEFAULT NodeAddr=10.77.0.[1-$nodes]"
  else
    first=$(free_ports $((nodes + 1)))
    echo "SlurmctldHost=$(hostname -s)(127.0.0.1)"
    echo "SlurmctldPort=$first"
    echo "NodeName=DEFAULT NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=[$((first + 1))-$((first + nodes))]"
  fi
}

write_configuration() {
  local nodes=$1 cpus=$2 placed
  placed=$(addresses "$nodes")
  cat >"$folder/slurm.conf" <<TEXT
ClusterName=crossmesh
$(grep -v ^NodeName <<<"$placed")
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/run/munge.sock
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/run/slurmctld.pid
SlurmdPidFile=$folder/run/slurmd.%n.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd.%n.log
TmpFS=$folder/tmp/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1
ReturnToService=2
KillWait=2
NodeName=n[1-$nodes] $(sed -n 's/^NodeName=DEFAULT //p' <<<"$placed") CPUs=$cpus Boards=1 SocketsPerBoard=1 CoresPerSocket=$cpus ThreadsPerCore=1 RealMemory=1024 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
TEXT
  printf 'CgroupPlugin=%s\nConstrainCores=no\nConstrainRAMSpace=no\n' "$(cgroup_plugin)" >"$folder/cgroup.conf"
}

# Slurm 23.02 can leave cgroups alone; before that the old plugin is the one that does not touch them here.
cgroup_plugin() {
  local version
  version=$(slurmctld -V | awk '{print $2}')
  if [ "$(printf '%s\n23.02\n' "$version" | sort -V | head -n 1)" = 23.02 ]; then echo disabled; else echo cgroup/v1; fi
}

idle_nodes() { on n1 sinfo -h -t idle -o %D 2>/dev/null | awk '{sum += $1} END {print sum + 0}'; }

up() {
  local nodes=$1 cpus=$2 index _
  mkdir -p "$folder"/{state,spool,log,run,tmp}
  echo "$hosts" >"$folder/hosts-folder"
  trap 'half_up $?' EXIT
  start_munge
  write_configuration "$nodes" "$cpus"
  on n1 slurmctld -c -f "$folder/slurm.conf"
  for index in $(seq "$nodes"); do
    mkdir -p "$folder/spool/n$index" "$folder/tmp/n$index"
    on "n$index" slurmd -N "n$index" -f "$folder/slurm.conf"
  done
  for _ in $(seq 200); do
    [ "$(idle_nodes)" != "$nodes" ] || return 0
    sleep 0.1
  done
  tail -n 20 "$folder"/log/*.log >&2
  echo "cluster.sh: $(idle_nodes) of $nodes nodes are idle after 20 s" >&2
  return 1
}

# What is half up when `up` fails goes down again.
half_up() {
  [ "$1" = 0 ] || down
  exit "$1"
}

daemons() { cat "$folder"/run/*.pid 2>/dev/null || true; }

# Whether a daemon still runs; one that has ended and that nobody has waited for does not.
running() {
  local pid
  for pid in $(daemons); do
    ! grep -qs '^State:[[:space:]]*[^Z[:space:]]' "/proc/$pid/status" || return 0
  done
  return 1
}

down() {
  local pid signal _
  on n1 timeout 10 scancel -u root 2>/dev/null || true
  for signal in TERM KILL; do
    for pid in $(daemons); do kill -s $signal "$pid" 2>/dev/null || true; done
    for _ in $(seq 50); do
      running || break 2
      sleep 0.1
    done
  done
}

[ $# -ge 2 ] || usage
command=$1
folder=$(realpath -m "$2")
export SLURM_CONF=$folder/slurm.conf
case $command in
  up)
    [ $# -ge 4 ] || usage
    hosts=${5:-}
    [ -z "$hosts" ] || hosts=$(realpath "$hosts")
    up "$3" "$4"
    ;;
  down)
    hosts=$(cat "$folder/hosts-folder" 2>/dev/null || true)
    down
    ;;
  *) usage ;;
esac
