package admission

import (
	"context"
	"errors"
	"testing"
)

// Long work that pauses lets other work run, and work that waits for something occupies no slot.
func TestTurnPauses(t *testing.T) {
	w := NewWork(1)
	var order []string
	other := make(chan error, 1)
	err := w.DoInPieces(t.Context(), "long", func(turn *Turn) error {
		order = append(order, "long")
		asked := make(chan struct{})
		go func() {
			close(asked)
			other <- w.Do(context.Background(), "other", func() error {
				order = append(order, "other")
				return nil
			})
		}()
		<-asked
		for !waits(w, "other") { // until it waits
		}
		if err := turn.Pause(); err != nil {
			return err
		}
		order = append(order, "long")
		return turn.Without(func() error { // as if it waited for memory
			return w.Do(t.Context(), "another", func() error {
				order = append(order, "another")
				return nil
			})
		})
	})
	if err := errors.Join(err, <-other); err != nil {
		t.Fatal(err)
	}
	if len(order) != 4 || order[1] != "other" || order[3] != "another" {
		t.Errorf("the order was %q", order)
	}
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	err = w.DoInPieces(ctx, "long", func(turn *Turn) error {
		return turn.Without(func() error {
			cancel(gone)
			return turn.Pause() // on a Turn without a slot
		})
	})
	if err != nil && !errors.Is(err, gone) {
		t.Error(err)
	}
	var none *Turn
	if err := none.Pause(); err != nil {
		t.Error(err)
	}
	if len(w.tenants) != 0 || w.running != 0 {
		t.Errorf("%d tenants and %d places are left", len(w.tenants), w.running)
	}
}

// waits reports whether a piece of a tenant waits.
func waits(w *Work, tenant string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.tenantLocked(tenant)
	return t != nil && len(t.pieces) > 0
}
