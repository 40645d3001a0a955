#!/usr/bin/env bash
# Lints every shell script of the repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

mapfile -t scripts < <(git ls-files -co --exclude-standard -- x .ci/run '*.sh' '*.sbatch' '*.env' tests/rig/agent)
shellcheck --severity=warning --external-sources "${scripts[@]}"
printf '%d scripts, no findings\n' "${#scripts[@]}"
