package metamorphic

import (
	"context"
	"maps"
	"slices"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Run implements store.Store.
func (m *ram) Run(ctx context.Context, dataset, name string) (*store.Run, error) {
	return m.ChangeRun(ctx, dataset, name, func(*store.Run) (*store.Run, error) { return nil, nil })
}

// Runs implements store.Store.
func (m *ram) Runs(ctx context.Context, dataset string) (list []*store.Run, err error) {
	if err := wait(ctx, time.Millisecond); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, run := range m.runs {
		if run.Dataset == dataset && !run.Expired(time.Now()) {
			list = append(list, run)
		}
	}
	return list, nil
}

func (m *ram) runNamesLocked(dataset string) (names []string) {
	for _, run := range m.runs {
		if run.Dataset == dataset {
			names = append(names, run.Name)
		}
	}
	slices.Sort(names)
	return names
}

// ChangeRun implements store.Store.
func (m *ram) ChangeRun(ctx context.Context, dataset, name string,
	change func(*store.Run) (*store.Run, error)) (*store.Run, error) {
	if err := wait(ctx, time.Millisecond); err != nil {
		return nil, err
	}
	if err := schema.CheckName("run", name); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.current[dataset]) == 0 {
		return nil, store.NoSnapshot(m.listLocked(), dataset, 0)
	}
	old := m.runs[dataset+"/"+name]
	if old != nil && old.Expired(time.Now()) {
		old = nil
	}
	run, err := change(old)
	switch {
	case err != nil:
		return nil, err
	case run == nil && old == nil:
		return nil, store.NoRun(dataset, name, m.runNamesLocked(dataset))
	case run == nil:
		return old, nil
	}
	if err := store.CheckRun(run, old == nil, maps.Values(m.runs), time.Now()); err != nil {
		return nil, err
	}
	m.runs[dataset+"/"+name] = run
	return run, nil
}
