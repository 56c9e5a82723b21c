package operators

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// processorClock measures the processor time of the calling goroutine, which keeps its
// thread until stop.
type processorClock struct{ began time.Duration }

func startClock() processorClock {
	runtime.LockOSThread()
	return processorClock{threadTime()}
}

// so is the time so far.
func (c processorClock) so() time.Duration { return threadTime() - c.began }

func (c processorClock) stop() time.Duration {
	took := threadTime() - c.began
	runtime.UnlockOSThread()
	return took
}

func threadTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0 // a kernel that does not tell: nothing is counted
	}
	return time.Duration(t.Nano())
}
