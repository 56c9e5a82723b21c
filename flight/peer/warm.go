package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
)

// Warm has the node bring its part of a request, and calls progress with what it says: the results of the action warm.
// It is a call of its own, over a connection of its own, on which both sides get to know each other first.
func (l *Link) Warm(ctx context.Context, what Warm, progress func([]byte)) error {
	if !l.up.Load() {
		return errDown
	}
	b, err := json.Marshal(what)
	if err != nil {
		return fmt.Errorf("encoding what to warm: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w, _, stop, err := l.open(ctx, cancel, WarmMethod)
	if err != nil {
		return err
	}
	defer stop()
	defer func() { _ = w.close() }() // it has ended
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel(nil)
	watching.Go(func() { w.watch(ctx, cancel) })
	if err := w.send(b); err != nil {
		return because(ctx, err)
	}
	for {
		said, err := w.message(maxProgress)
		switch {
		case errors.Is(err, errEnded):
			return nil
		case err != nil:
			return because(ctx, err)
		}
		progress(said)
	}
}
