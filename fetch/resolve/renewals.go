package resolve

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
)

const (
	// renewEvery is how often at most a selection that is used is renewed. Reading
	// writes nothing else.
	renewEvery = 24 * time.Hour
	// maxDue is how many selections are known to need no renewal.
	maxDue = 4096
)

// renewals has selections that are used live on.
type renewals struct {
	store    store.Store
	logger   *slog.Logger
	lifetime time.Duration
	most     int // of an owner in a dataset; 0: any number

	mu  sync.Mutex
	due map[string]time.Time // when a selection is to be looked at again, by dataset and name; guarded by mu
}

// expiry is when a selection expires that is used now.
func (r *renewals) expiry() time.Time {
	return time.Now().Add(r.lifetime).UTC().Truncate(time.Second)
}

// use is called before a selection is used. It fails with schema.ErrNotFound if
// there is none, or it has expired.
func (r *renewals) use(ctx context.Context, dataset, name string) error {
	key := dataset + "\x00" + name
	r.mu.Lock()
	due := r.due[key]
	r.mu.Unlock()
	if time.Now().Before(due) {
		return nil
	}
	sel, err := r.store.Selection(ctx, dataset, name)
	if err != nil {
		return err
	}
	every := min(renewEvery, r.lifetime/2)
	next := time.Now().Add(every)
	if until := r.expiry(); !sel.Expires.IsZero() && until.Sub(sel.Expires) > every {
		if err := r.store.RenewSelection(ctx, dataset, name, until); err != nil {
			if errors.Is(err, schema.ErrNotFound) || ctx.Err() != nil {
				return err
			}
			// It can be used all the same, and is tried again.
			r.logger.WarnContext(ctx, "a selection could not be renewed", "dataset", dataset, "selection", name,
				"expires", sel.Expires, "error", err)
			return nil
		}
	} else if !sel.Expires.IsZero() && sel.Expires.Before(next) {
		next = sel.Expires
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.due) >= maxDue {
		clear(r.due)
	}
	r.due[key] = next
	return nil
}
