#!/usr/bin/env bash
# The GPU tests and benches, built and run here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/ci/common.sh
source tests/ci/common.sh

bash tests/ci/gpu_bundle.sh
RESULTS=$TARGET/gpu-results bash "$TARGET/gpu-bundle/run.sh"
