package metamorphic

import (
	"context"
	"fmt"
	"iter"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// SaveSelection implements store.Ingest.
func (in *intake) SaveSelection(ctx context.Context, sel schema.Selection) error {
	m := in.memory
	if err := wait(ctx, time.Millisecond); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.current[sel.Dataset][sel.Snapshot] == nil {
		return store.NoSnapshot(m.listLocked(), sel.Dataset, sel.Snapshot)
	}
	if m.blobs[sel.Bitmap.Key] == nil {
		return fmt.Errorf("%w: the bitmap was not put", schema.ErrInvalid)
	}
	if sel.Created.IsZero() {
		sel.Created = time.Now()
	}
	if old := m.selections[sel.Dataset+"/"+sel.Name()]; old != nil && !old.Expired(time.Now()) {
		sel.Owner = old.Owner
		sel.Extend(old.Expires)
	} else if err := store.SelectionLimit(&sel, m.selectionsLocked(sel.Dataset), time.Now()); err != nil {
		return err
	}
	m.selections[sel.Dataset+"/"+sel.Name()] = &sel
	return nil
}

func (m *ram) selectionsLocked(dataset string) iter.Seq[*schema.Selection] {
	return func(yield func(*schema.Selection) bool) {
		for _, sel := range m.selections {
			if sel.Dataset == dataset && !yield(sel) {
				return
			}
		}
	}
}

// Selection implements store.Store.
func (m *ram) Selection(ctx context.Context, dataset, name string) (*schema.Selection, error) {
	if _, err := schema.ParseKey(name); err != nil {
		return nil, err
	}
	if err := wait(ctx, time.Millisecond); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.selections[dataset+"/"+name]; s != nil && !s.Expired(time.Now()) {
		c := *s
		return &c, nil
	}
	return nil, fmt.Errorf("%w: no selection %s of %s", schema.ErrNotFound, name, dataset)
}

// RenewSelection implements store.Store.
func (m *ram) RenewSelection(ctx context.Context, dataset, name string, until time.Time) error {
	if _, err := m.Selection(ctx, dataset, name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.selections[dataset+"/"+name]; s != nil {
		s.Extend(until)
	}
	return nil
}
