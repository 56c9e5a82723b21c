// Package programtest holds programs to the costs that they count, for tests and fuzz targets of what makes samples. It is
// no part of the server.
package programtest

import (
	"runtime"
	"testing"

	"bowstring/fetch/operators/program"
)

// Slack is what a call may allocate beyond what was counted: errors, what a test itself allocates, and a part for the
// classes of sizes that memory comes in.
const (
	Slack     = 128 << 10
	sizeClass = 8 // one part in so many
)

// Allocated is how many bytes f allocates, whether they are garbage afterwards or not. Nothing else may run.
func Allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// Within calls f, and holds that it allocates no more bytes than were counted.
func Within(t testing.TB, counted program.Amount, f func()) {
	t.Helper()
	most := counted.Plus(program.Count(counted.Int64() / sizeClass)).Plus(program.Count(Slack))
	if n := Allocated(f); most.Times(raceFactor) != program.Most && n > most.Times(raceFactor).Int64() {
		t.Errorf("it allocated %d bytes, where %v were counted", n, counted)
	}
}
