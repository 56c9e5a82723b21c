//go:build !linux

package operators

import "time"

// cpuClock measures elapsed time in place of CPU time, which other systems do not report
// for a thread.
type cpuClock struct{ began time.Time }

// startClock begins a measurement.
func startClock() cpuClock { return cpuClock{time.Now()} }

// so is the time so far.
func (c cpuClock) so() time.Duration { return time.Since(c.began) }

// stop returns the time. It must be called exactly once.
func (c cpuClock) stop() time.Duration { return time.Since(c.began) }
