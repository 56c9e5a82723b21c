package faults

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// envProcess is set for a process of a run, which is this binary again.
const envProcess = "BOWSTRING_FAULTS_PROCESS"

var (
	asProcess func(config string) error // what such a process does
	atEnd     = func() {}               // ends what tests have started
)

func TestMain(m *testing.M) {
	if config := os.Getenv(envProcess); config != "" {
		if err := asProcess(config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	atEnd()
	// The driver's attempts to connect sleep a second each even after their session is closed.
	err := goleak.Find(driverLeaks...)
	for end := time.Now().Add(20 * time.Second); err != nil && time.Now().Before(end); {
		err = goleak.Find(driverLeaks...)
	}
	if err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// driverLeaks are goroutines that ScyllaDB's fork leaves behind where a session could not be opened.
var driverLeaks = []goleak.Option{
	goleak.IgnoreAnyFunction("github.com/gocql/gocql/tablets.(*opQueue).run"),
	goleak.IgnoreAnyFunction("github.com/gocql/gocql/debounce.(*RefreshDebouncer).flusher"),
	goleak.IgnoreAnyFunction("github.com/gocql/gocql.(*eventDebouncer).flusher"),
	goleak.IgnoreAnyFunction("github.com/gocql/gocql/internal/eventbus.(*EventBus[...]).run"),
}
