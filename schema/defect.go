package schema

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
)

// DefectError is a panic that was recovered. It is a defect of the server, and of no request or data, so it wraps none
// of the kinds of failure. Its message has an id and not the text of the panic, which may hold data of others or
// addresses in memory: the message goes to clients. The log has the id, the text and the stack.
type DefectError struct {
	// ID is in the message and in the log.
	ID string

	text, stack string
	logging     sync.Once
}

// Recovered makes an error of what recover has returned. It is called by the deferred function that recovers, as it
// takes the stack.
func Recovered(p any) *DefectError {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails; it would end the process
	return &DefectError{ID: hex.EncodeToString(id[:]), text: fmt.Sprint(p), stack: string(debug.Stack())}
}

func (d *DefectError) Error() string {
	return "a defect of the server; its log says more under the id " + d.ID
}

// Log logs the panic with its stack, once for each error. It returns d.
func (d *DefectError) Log(ctx context.Context, logger *slog.Logger, what string, attrs ...slog.Attr) *DefectError {
	d.logging.Do(func() {
		attrs = append(attrs, slog.String("id", d.ID), slog.String("panic", d.text), slog.String("stack", d.stack))
		logger.LogAttrs(ctx, slog.LevelError, what, attrs...) //nolint:sloglint // a constant of the caller
	})
	return d
}
