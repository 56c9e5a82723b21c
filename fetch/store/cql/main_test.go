package cql

import (
	"fmt"
	"log/slog"
	"os"
	"testing"

	"bowstring/internal/cassandratest"
	"bowstring/internal/leaktest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	cassandratest.Stop()
	if code == 0 {
		// The driver's attempts to connect sleep for a second each, and are not stopped when their session is closed.
		if err := leaktest.Find(); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// quiet drops what stores log.
var quiet = slog.New(slog.DiscardHandler)
