#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the Debian packages that berth is built and tested with, if one is
# missing. Does nothing, and needs no network, if all are there.
set -euo pipefail

# What each is for:
#   gcc libc6-dev                       pause; runc (cgo); the race detector
#   libseccomp-dev pkg-config           runc
#   iptables iproute2 util-linux        port mappings and namespaces, in tests
#   busybox-static                      the file system of test and demo images
#   isal                                igzip, which decompresses large layers
#   uidmap                              user namespaces of a user without root, in tests
#   make git ca-certificates            make itself, versions, modules
packages=(gcc libc6-dev libseccomp-dev pkg-config iptables iproute2 busybox-static
  make git ca-certificates util-linux uidmap isal)
# Where the kernel has AppArmor, apparmor_parser loads the profile of containers.
if [[ $(cat /sys/module/apparmor/parameters/enabled 2>/dev/null) == Y ]]; then packages+=(apparmor); fi

if ! command -v go >/dev/null; then
  echo "setup: no go in PATH or /usr/local/go/bin: install Go $(sed -n 's/^go //p' go.mod) or newer, see https://go.dev/doc/install" >&2
  exit 1
fi

if ! command -v dpkg >/dev/null; then
  missing=()
  for command in gcc pkg-config iptables ip busybox git nsenter newuidmap igzip; do
    command -v "$command" >/dev/null || missing+=("$command")
  done
  command -v pkg-config >/dev/null && ! pkg-config --exists libseccomp && missing+=("libseccomp (headers)")
  if ((${#missing[@]})); then
    echo "setup: not a Debian system, and missing: ${missing[*]}: install what provides them" >&2
    exit 1
  fi
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
done
((${#missing[@]})) || exit 0

if ((EUID != 0)); then
  echo "setup: missing packages: ${missing[*]}: run 'sudo make setup' once, or install them yourself" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
echo "setup: installing ${missing[*]}"
apt-get update -q
apt-get install -q -y --no-install-recommends "${missing[@]}"
