#!/bin/bash
# The long form of random_access_test.py, by hand: 1 GiB at 25 % local, 10 minutes over each of shm
# and tcp. soak_random_access.sh [SECONDS [MIB]]
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
export FARPAGE_BUILD=${FARPAGE_BUILD:-$PWD/build/release}
export FARPAGE_SOAK_SECONDS=${1:-600} FARPAGE_SOAK_MIB=${2:-1024}
exec python3 tests/e2e/random_access_test.py -v
