#!/usr/bin/env bash
# run.sh FOLDER SECONDS: runs each fuzz target of FOLDER for SECONDS; stops at the first that fails.
set -euo pipefail
for program in "$1"/fuzz_*; do
  [ -x "$program" ] || continue
  name=$(basename "$program")
  corpus="$1/corpus/$name"
  mkdir -p "$corpus"
  echo "== $name for $2 s"
  "$program" -max_total_time="$2" -timeout=10 -rss_limit_mb=4096 -max_len=65536 -print_final_stats=0 \
    -artifact_prefix="$1/$name-" "$corpus" 2>&1 | tail -3
done
echo "all fuzz targets clean"
