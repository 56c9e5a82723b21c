#!/usr/bin/env bash
# Real object stores for tests, of fixed versions: versitygw (S3) and fake-gcs-server (Google Cloud Storage), compiled
# from their Go modules, and Azurite (Azure Blob Storage), from npm.
#
#   objects.sh fetch           get versitygw and fake-gcs-server into build/objects, once
#   objects.sh fetch-azurite   get Azurite there, once (needs Node.js 20 and npm)
#   objects.sh with COMMAND... run a command that finds them: they are fetched, and BOWSTRING_OBJECT_SERVERS is set
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=${BOWSTRING_OBJECT_SERVERS:-$root/build/objects}
versity=github.com/versity/versitygw/cmd/versitygw@v1.8.0
gcs=github.com/fsouza/fake-gcs-server@v1.56.1

die() { echo "objects.sh: $*" >&2; exit 1; }

locked() {
  mkdir -p "$cache"
  exec 9>"$cache/lock"
  flock 9 # tests of several packages start at once
}

# install MODULE: compile a program into the cache, unless that version is there.
install() {
  local name=${1%@*}
  name=${name##*/}
  [ "$(cat "$cache/$name.version" 2>/dev/null)" = "$1" ] && [ -x "$cache/$name" ] && return
  GOFLAGS='' GOBIN=$cache ${GO:-go} install "$1" >"$cache/$name.log" 2>&1 || die "$1 cannot be installed; see $cache/$name.log"
  echo "$1" >"$cache/$name.version"
}

fetch() {
  locked
  install "$versity"
  install "$gcs"
  exec 9>&-
}

fetch_azurite() {
  locked
  if ! cmp -s "$here/package-lock.json" "$cache/azurite/package-lock.json" || [ ! -x "$cache/azurite-blob" ]; then
    command -v npm >/dev/null || die "npm is missing: install Node.js 20 or later (Debian, Ubuntu: apt install nodejs npm)"
    rm -rf "$cache/azurite" "$cache/azurite-blob"
    mkdir -p "$cache/azurite"
    cp "$here/package.json" "$here/package-lock.json" "$cache/azurite/"
    (cd "$cache/azurite" && npm ci --no-audit --no-fund --ignore-scripts) >"$cache/azurite.log" 2>&1 ||
      { rm -rf "$cache/azurite"; die "npm could not get Azurite; see $cache/azurite.log"; }
    printf '#!/bin/sh\nexec node "%s/azurite/node_modules/azurite/dist/src/blob/main.js" "$@"\n' "$cache" >"$cache/azurite-blob"
    chmod +x "$cache/azurite-blob"
  fi
  exec 9>&-
}

command=${1:-help}
shift || true
case $command in
  fetch) fetch ;;
  fetch-azurite) fetch_azurite ;;
  with) fetch; BOWSTRING_OBJECT_SERVERS=$cache exec "$@" ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; [ "$command" = help ] ;;
esac
