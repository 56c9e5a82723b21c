package schema

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// LimitError is an ErrLimit with a name that programs can tell, and with the time
// after which trying again may help.
type LimitError struct {
	Limit   string        // its name, such as "tenant.streams"
	Message string        // what was asked for, and what there may be
	After   time.Duration // when to try again; 0: that does not help by itself
}

// Error ends in when to try again, for people. Programs read the google.rpc.RetryInfo of the status.
func (e *LimitError) Error() string {
	if e.After <= 0 {
		return fmt.Sprintf("%s: %s: %s", ErrLimit, e.Limit, e.Message)
	}
	return fmt.Sprintf("%s: %s: %s (try again in %.3f s)", ErrLimit, e.Limit, e.Message, e.After.Seconds())
}

// Unwrap makes every LimitError an ErrLimit.
func (e *LimitError) Unwrap() error { return ErrLimit }

// Jittered is d, up to a quarter more or less by chance: those who were refused
// together do not come back together.
func Jittered(d time.Duration) time.Duration {
	return d*3/4 + rand.N(max(d/2, 1))
}
