#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# older.sh DIR DAYS [VERSION...] builds older versions of berth, each with the programs that it runs
# pods with, in DIR/COMMIT: the VERSIONs, or the last commit of each of the last DAYS days that have
# one, and each tag. What is built already stays; versions of earlier calls are removed.
set -eu -o pipefail
dir=$1 days=$2
shift 2
versions=("$@")
if ((${#versions[@]} == 0)); then
  if [[ $(git rev-parse --is-shallow-repository) == true ]]; then
    echo "older.sh: this clone is shallow: days before its first commit are left out; git fetch --unshallow gets them" >&2
  fi
  for ((day = 1; day <= days; day++)); do
    versions+=($(git log -1 --format=%h --since="$day days ago 00:00" --until="$((day - 1)) days ago 00:00"))
  done
  versions+=($(git tag --list 'v*'))
fi
commits=()
for v in ${versions[@]+"${versions[@]}"}; do
  commits+=("$(git rev-parse --short "$v^{commit}")")
done
if ((${#commits[@]} == 0)); then
  echo "older.sh: the history has no commit of the last $days days before today, and no tag: name versions" >&2
  exit 1
fi
mkdir -p "$dir"
for there in "$dir"/*; do
  [[ " ${commits[*]} " == *" ${there##*/} "* ]] || rm -rf "$there"
done
for commit in $(printf '%s\n' "${commits[@]}" | sort -u); do
  at=$dir/$commit
  [[ -x $at/build/bin/berth ]] && continue
  echo "building $(git log -1 --format='%h of %cs: %s' "$commit")"
  rm -rf "$at" && mkdir "$at"
  git archive "$commit" | tar -x -C "$at"
  make -s -C "$at" tools build > "$at/build.log" 2>&1 || { tail -5 "$at/build.log" >&2; exit 1; }
done
