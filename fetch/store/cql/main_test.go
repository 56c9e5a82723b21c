package cql

import (
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bowstring/internal/cassandratest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	cassandratest.Stop()
	if code == 0 {
		if err := findLeaks(); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// findLeaks waits for the driver's attempts to connect, which sleep for a second each and are not stopped when their
// session is closed.
func findLeaks(ignore ...goleak.Option) error {
	err := goleak.Find(ignore...)
	for end := time.Now().Add(20 * time.Second); err != nil && time.Now().Before(end); {
		err = goleak.Find(ignore...)
	}
	return err
}

// quiet drops what stores log.
var quiet = slog.New(slog.DiscardHandler)
