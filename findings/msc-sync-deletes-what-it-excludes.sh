#!/usr/bin/env bash
# sync() of NVIDIA's multi-storage-client (msc sync) with delete_unmatched_files deletes at the target what its patterns exclude: logs
# that a job wrote beside its synced data, in a sync with --exclude "*.log", are gone, although the same pattern keeps those of the
# source from being copied. So they are in a sync of --exclude "*" --include "*.bin". Nothing is said of it.
# Expected: what is excluded is left alone on both sides, as by rsync, rclone and `aws s3 sync`, whose patterns these are said to be
# compatible with. What helps: --dryrun. Seen with multi-storage-client 1.3.1.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'multi-storage-client==1.3.1'
export MSC_CONFIG="$home/config.yaml"
printf 'profiles: {}\n' >"$MSC_CONFIG"
mkdir "$home/source"
printf 'new' >"$home/source/shard.bin"
printf 'of the source' >"$home/source/source.log"
for patterns in "--exclude *.log" "--exclude * --include *.bin"; do
  rm -rf "$home/target"
  mkdir "$home/target"
  printf 'of the job' >"$home/target/job.log"
  printf 'old' >"$home/target/gone.bin"
  read -ra options <<<"$patterns"
  "$home/v/bin/msc" sync "$home/source" "${options[@]}" --delete-unmatched-files --target-url "$home/target" >"$home/output" 2>&1
  echo "$patterns leaves $(ls "$home/target")"
  test "$(ls "$home/target")" = shard.bin
done
