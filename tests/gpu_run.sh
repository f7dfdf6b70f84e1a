#!/usr/bin/env bash
# Installs, without a network, what `gpu_wheels.py fetch` has put into a folder, and
# writes the report:   bash tests/gpu_run.sh WHEELS [OUTPUT]
# PYTHON is the one that has PyTorch; MINUTES is the time of the report, CHECKS are those
# to be done, all without it.
set -euo pipefail
wheels=$(realpath "$1")
output=$(realpath -m "${2:-$(dirname "$0")/../bench/results}")
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
"$python" tests/gpu_wheels.py install "$wheels" "$site" ||
  echo "not all of it could be installed: the report says what that breaks"
echo "installed after $SECONDS s"
export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1
[ ! -e "$site/libdnnl.so.3" ] || export MEMCFG_ONEDNN_LIBRARY="$site/libdnnl.so.3"
"$python" tests/gpu_report.py --minutes "${MINUTES:-8}" --output "$output" \
  ${CHECKS:+--only $CHECKS}
