// Package leaktest fails the tests of a package that leave goroutines behind.
package leaktest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long goroutines may take to end after the tests. goleak itself waits for .4 s, and on a busy machine
// a goroutine may get no CPU for longer.
const patience = 30 * time.Second

// Main runs the tests of a package and exits with their status, for TestMain. The status is 1 if tests that passed leave
// goroutines behind.
func Main(m *testing.M) { os.Exit(Run(m)) }

// Run is Main without the exit, for a TestMain that has something to remove.
func Run(m interface{ Run() int }) (status int) {
	status = m.Run()
	if status != 0 {
		return status
	}
	if err := Find(); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "the tests passed, and leave goroutines behind:", err)
		return 1
	}
	return 0
}

// Find returns an error with the goroutines that have not ended after patience, without those that options ignore.
func Find(options ...goleak.Option) error {
	err := goleak.Find(options...)
	for end := time.Now().Add(patience); err != nil && time.Now().Before(end); {
		err = goleak.Find(options...)
	}
	return err
}
