#!/usr/bin/env bash
# Refit between two emulated hosts: only the wire joins them, and its counters say how much crossed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/ci/common.sh
source tests/ci/common.sh

MODEL=slurm/small.model.json
LIMIT=120
# As of a card of 10 Gbit/s; measuring the rate would put more on the wire than the model has.
NIC_RATE=1250MB
# The start of the job, control messages and headers may add this much to what the route says crosses.
START_BYTES=2000000
HEADERS_PERCENT=5

folder=$(mktemp -d)
export HOSTS_FOLDER=$folder/hosts
hosts() { bash tests/rig/hosts.sh "$1" "$HOSTS_FOLDER" "${@:2}"; }
trap 'hosts down; rm -rf "$folder"' EXIT

# Open MPI reaches the other host through the agent, over the emulated card, with its plain transports.
export OMPI_MCA_plm=rsh OMPI_MCA_plm_rsh_agent=$PWD/tests/rig/agent OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp
export OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0
export CROSSMESH_INTERFACE=eth0

received() { hosts bytes n2 | awk '{print $2}'; }
field() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$folder/$1.json" "$2"; }

refit() {
  local route=$1 before crossed planned
  before=$(received)
  hosts exec n1 timeout -k 10 $LIMIT "$CROSSMESH" run --starter openmpi --host n1:4,n2:4 -n 8 -- "$CROSSMESH" refit $MODEL \
    --src tp=4 --dst tp=2,dp=2 --route "$route" --nic-rate $NIC_RATE --verify --json "$folder/$route.json"
  crossed=$(($(received) - before))
  planned=$(field "$route" inter_domain_bytes)
  [ "$crossed" -ge "$planned" ] || die "$route: $planned bytes cross between domains, but the wire carried $crossed"
  [ "$crossed" -le $((planned + planned * HEADERS_PERCENT / 100 + START_BYTES)) ] ||
    die "$route: the wire carried $crossed bytes, far more than the $planned that cross between domains"
  say "$route: $planned bytes between domains, $crossed on the wire"
}

hosts up 2
for route in flat gather-broadcast hierarchical; do refit "$route"; done
python3 slurm/report.py --folder "$folder" --ranks 8 flat gather-broadcast hierarchical
