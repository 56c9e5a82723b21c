package local

import (
	"context"
	"fmt"
	"log/slog"
)

// pebbleLogger passes what the database says to slog.
type pebbleLogger struct{ log *slog.Logger }

func (l pebbleLogger) Infof(format string, args ...any) {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.log.Debug("database", "message", fmt.Sprintf(format, args...))
	}
}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.log.Error("database", "message", fmt.Sprintf(format, args...))
}

// Fatalf ends the process: the database calls it when it can neither go on nor
// return an error, such as after a failed write of its log.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	msg := fmt.Sprintf(format, args...)
	l.log.Error("database cannot go on", "message", msg)
	panic("local: the database cannot go on: " + msg)
}
