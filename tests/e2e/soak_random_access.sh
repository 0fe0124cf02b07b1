#!/bin/bash
# The long form of random_access_test.py, by hand: 1 GiB at 25 % local, 10 minutes over each of shm
# and tcp; with --lab in the lab VM over verbs, 256 MiB for 4 minutes.
#   soak_random_access.sh [--lab] [SECONDS [MIB]]
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
test=$PWD/tests/e2e/random_access_test.py build=${FARPAGE_BUILD:-$PWD/build/release}
if [ "${1:-}" = --lab ]; then
  seconds=${2:-240}
  exec tests/lab/vm.sh -m 4096 -t $((seconds * 3 + 300)) -- "FARPAGE_BUILD=$build PYTHONDONTWRITEBYTECODE=1 \
    FARPAGE_SOAK_SECONDS=$seconds FARPAGE_SOAK_MIB=${3:-256} /usr/bin/python3 $test -v RandomAccess.over_verbs"
fi
export FARPAGE_BUILD=$build FARPAGE_SOAK_SECONDS=${1:-600} FARPAGE_SOAK_MIB=${2:-1024}
exec python3 "$test" -v
