#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints how many compilations to run at once: one per core, and no more than memory has room for.
set -euo pipefail
kb_per_job=2000000 # the largest translation units (HTTP server, JSON) take about 1.5 GB with g++ 12
cores=$(nproc)
available=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
jobs=$((available / kb_per_job))
[ "$jobs" -lt "$cores" ] || jobs=$cores
[ "$jobs" -ge 1 ] || jobs=1
echo "$jobs"
