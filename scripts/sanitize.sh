#!/usr/bin/env bash
# The kernels' tests under the address sanitizer, which sees every access of the unsafe code but those of the AMX assembly
# (their bounds are asserted before it). Only tiebreak-kernels is instrumented: its dependencies are those of any release build.
#
# Run      scripts/sanitize.sh [TEST FILTER]
# Needs    Linux and the pinned stable toolchain, told by RUSTC_BOOTSTRAP to accept an unstable flag.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTC_BOOTSTRAP=1 ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0}
exec cargo test --release -p tiebreak-kernels --lib -Z profile-rustflags \
    --config 'profile.release.package.tiebreak-kernels.rustflags = ["-Zsanitizer=address"]' \
    -- --test-threads 1 "$@"
