// Package programtest checks that programs stay within their computed costs, for tests and fuzz targets of code that
// makes samples. It is not part of the server.
package programtest

import (
	"runtime"
	"testing"

	"bowstring/fetch/operators/program"
)

// Slack is what a call may allocate beyond the computed cost: errors, allocations of the test itself, and a fraction
// for the size classes of the allocator.
const (
	Slack     = 128 << 10
	sizeClass = 8 // one part in 8
)

// Allocated is how many bytes f allocates, garbage included. No other goroutine may run.
func Allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// Within calls f, and checks that it allocates no more bytes than computed.
func Within(t testing.TB, counted program.Amount, f func()) {
	t.Helper()
	most := counted.Plus(program.Count(counted.Int64() / sizeClass)).Plus(program.Count(Slack))
	if n := Allocated(f); most.Times(raceFactor) != program.Most && n > most.Times(raceFactor).Int64() {
		t.Errorf("it allocated %d bytes, where %v were counted", n, counted)
	}
}
