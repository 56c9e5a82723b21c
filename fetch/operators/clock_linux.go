package operators

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// cpuClock measures the CPU time of the calling goroutine, which stays on its thread
// until stop.
type cpuClock struct{ began time.Duration }

// startClock locks the goroutine to its thread: CLOCK_THREAD_CPUTIME_ID belongs to the
// thread.
func startClock() cpuClock {
	runtime.LockOSThread()
	return cpuClock{threadTime()}
}

// so is the CPU time so far.
func (c cpuClock) so() time.Duration { return threadTime() - c.began }

// stop returns the CPU time, and unlocks the goroutine. It must be called exactly once.
func (c cpuClock) stop() time.Duration {
	took := threadTime() - c.began
	runtime.UnlockOSThread()
	return took
}

// threadTime is the CPU time of the current thread.
func threadTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0 // a kernel without this clock: nothing is counted
	}
	return time.Duration(t.Nano())
}
