//go:build !linux

package operators

import "time"

// processorClock takes the time that passes for that of a processor.
type processorClock struct{ began time.Time }

func startClock() processorClock { return processorClock{time.Now()} }

// so is the time so far.
func (c processorClock) so() time.Duration { return time.Since(c.began) }

func (c processorClock) stop() time.Duration { return time.Since(c.began) }
