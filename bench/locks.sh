#!/usr/bin/env bash
# locks.sh [4k]: how many locks of package sync a sample takes in the engine's benchmark: the package is replaced by a copy
# that counts. Run it in the directory of the repository.
set -euo pipefail
bench="BenchmarkEngine${1:-}/strict"
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
goroot=$(go env GOROOT)
sed -e 's/^func (m \*Mutex) Lock() {/var Locks atomicCount\n\nfunc (m *Mutex) Lock() {\n\tLocks.add()/' \
	"$goroot/src/sync/mutex.go" >"$dir/mutex.go"
sed -e 's/^func (rw \*RWMutex) Lock() {/&\n\tLocks.add()/' -e 's/^func (rw \*RWMutex) RLock() {/&\n\tLocks.add()/' \
	"$goroot/src/sync/rwmutex.go" >"$dir/rwmutex.go"
cat >"$dir/count.go" <<'GO'
package sync

import "sync/atomic"

type atomicCount struct{ n atomic.Int64 }

func (c *atomicCount) add()        { c.n.Add(1) }
func (c *atomicCount) Load() int64 { return c.n.Load() }
GO
# The benchmark reports what its hook returns.
cat >"$dir/locks_test.go" <<'GO'
package fetch_test

import "sync"

func init() { locks = func() int64 { return sync.Locks.Load() } }
GO
cat >"$dir/overlay.json" <<JSON
{"Replace": {
  "$goroot/src/sync/mutex.go": "$dir/mutex.go",
  "$goroot/src/sync/rwmutex.go": "$dir/rwmutex.go",
  "$goroot/src/sync/count.go": "$dir/count.go",
  "$PWD/fetch/locks_overlay_test.go": "$dir/locks_test.go"
}}
JSON
go test -overlay "$dir/overlay.json" ./fetch -run xxx -bench "$bench" -count 1
