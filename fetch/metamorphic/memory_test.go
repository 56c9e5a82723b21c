package metamorphic

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// ram is a store in memory, in virtual time: each call takes some, and reads fail as
// configured. Released bytes are overwritten, and chunks of manifests are mapped memory
// that must not be read after release.
type ram struct {
	store.Store // nil: what an engine does not ask for

	seed   maphash.Seed
	pinned atomic.Int64

	mu         sync.Mutex
	blobs      map[schema.Key][]byte
	chunks     map[schema.Key][]schema.Key // of committed manifests, and what they came with
	current    map[string]map[int64]*schema.Snapshot
	selections map[string]*schema.Selection
	runs       map[string]*store.Run
	ingests    map[*intake]struct{}
	log        map[string]*history // of each snapshot ever committed, by name
	last       map[string]int64    // the last number given out
	clock      int64               // of events
	regimes    []regime            // the faults so far, the last of which is in force
	reads      map[schema.Key]uint64
	mapped     [][]byte
}

// history is when a snapshot was in the catalog, in events.
type history struct {
	snap               *schema.Snapshot
	committed, dropped int64 // 0: not yet
	gone               int64 // when its drop was answered
}

// regime is how reads fail for a while.
type regime struct {
	kind  string
	share uint64 // of reads, in percent
	over  chan struct{}
}

func newRAM() *ram {
	return &ram{
		seed: maphash.MakeSeed(), blobs: map[schema.Key][]byte{}, chunks: map[schema.Key][]schema.Key{},
		current: map[string]map[int64]*schema.Snapshot{}, selections: map[string]*schema.Selection{},
		runs:    map[string]*store.Run{},
		ingests: map[*intake]struct{}{}, log: map[string]*history{}, last: map[string]int64{},
		reads: map[schema.Key]uint64{}, clock: 1, regimes: []regime{{kind: "none", over: make(chan struct{})}},
	}
}

// name is how the model calls a snapshot.
func name(dataset string, number int64) string { return fmt.Sprintf("%s@%d", dataset, number) }

// now is the present event; what happens later has a greater one.
func (m *ram) now() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clock++
	return m.clock
}

// fail sets how reads fail from now on.
func (m *ram) fail(kind string, share int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.regimes[len(m.regimes)-1].over)
	m.regimes = append(m.regimes, regime{kind, uint64(share), make(chan struct{})})
}

// faults counts the regimes so far: what is in force is the last.
func (m *ram) faults() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.regimes) - 1
}

// failed says whether reads failed in one of these ways since then.
func (m *ram) failed(since int, kinds ...string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.regimes[since:], func(r regime) bool { return slices.Contains(kinds, r.kind) })
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// chance is a number in [0, 10,000) that depends on the key and n alone.
func (m *ram) chance(key schema.Key, n uint64) uint64 {
	var h maphash.Hash
	h.SetSeed(m.seed)
	_, _ = h.Write(key[:])
	_ = h.WriteByte(byte(n))
	return h.Sum64() % 10_000
}

// Get implements store.Store.
func (m *ram) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	m.mu.Lock()
	m.reads[ref.Key]++
	nth := m.reads[ref.Key]
	fault := m.regimes[len(m.regimes)-1]
	m.mu.Unlock()
	luck := m.chance(ref.Key, nth)
	took := time.Duration(luck) * time.Microsecond / 2
	if luck%100 == 0 {
		took = time.Second // all that come after it overtake it
	}
	whole := m.chance(ref.Key, 0)/100 < fault.share // the blob, whenever it is read
	this := luck/100 < fault.share                  // this attempt alone
	switch {
	case fault.kind == "slow" && this:
		took += slowRead
	case fault.kind == "silent" && this:
		select {
		case <-fault.over:
		case <-ctx.Done():
			return schema.Blob{}, context.Cause(ctx)
		}
	}
	if err := wait(ctx, took); err != nil {
		return schema.Blob{}, err
	}
	switch {
	case fault.kind == "unavailable" && this:
		return schema.Blob{}, fmt.Errorf("%w: a fault of the test", schema.ErrUnavailable)
	case fault.kind == "missing" && whole:
		return schema.Blob{}, fmt.Errorf("%w: a fault of the test", schema.ErrNotFound)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	kept, ok := m.blobs[ref.Key]
	if !ok {
		return schema.Blob{}, fmt.Errorf("%w: no blob %s", schema.ErrNotFound, ref.Key)
	}
	out := &handed{memory: m}
	if m.chunks[ref.Key] != nil {
		out.data = m.mapLocked(len(kept))
		out.mapped = true
	} else {
		out.data = make([]byte, len(kept))
	}
	if copy(out.data, kept); fault.kind == "wrong" && whole && len(kept) > 0 {
		out.data[luck%uint64(len(kept))]++
	}
	m.pinned.Add(1)
	return schema.NewBlob(out.data[:len(kept)], out), nil
}

// handed is a blob that is out.
type handed struct {
	memory *ram
	data   []byte
	mapped bool
}

// Unpin implements schema.Owner: a later read of the bytes sees that they are gone.
func (h *handed) Unpin() {
	if h.mapped {
		if err := syscall.Mprotect(h.data, syscall.PROT_NONE); err != nil {
			panic(err)
		}
	} else {
		for i := range h.data {
			h.data[i] = 0xdb
		}
	}
	if h.memory.pinned.Add(-1) < 0 {
		panic("a blob was released twice")
	}
}

func (m *ram) mapLocked(n int) []byte {
	b, err := syscall.Mmap(-1, 0, max(n, 1), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	m.mapped = append(m.mapped, b)
	return b
}

// unmap gives the mapped memory back.
func (m *ram) unmap() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.mapped {
		_ = syscall.Munmap(b)
	}
	m.mapped = nil
}

// Datasets implements store.Store.
func (m *ram) Datasets(ctx context.Context) ([]store.Dataset, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.listLocked(), nil
}

func (m *ram) listLocked() (list []store.Dataset) {
	for _, d := range slices.Sorted(maps.Keys(m.current)) {
		if len(m.current[d]) > 0 {
			list = append(list, store.Dataset{Name: d, Snapshots: slices.Sorted(maps.Keys(m.current[d]))})
		}
	}
	return list
}

func (m *ram) newestLocked(dataset string) (newest int64) {
	for n := range m.current[dataset] {
		newest = max(newest, n)
	}
	return newest
}

// Snapshot implements store.Store.
func (m *ram) Snapshot(ctx context.Context, dataset string, number int64) (*schema.Snapshot, error) {
	if err := wait(ctx, time.Millisecond); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if number == 0 {
		number = m.newestLocked(dataset)
	}
	if s := m.current[dataset][number]; s != nil {
		return s, nil
	}
	return nil, store.NoSnapshot(m.listLocked(), dataset, number)
}

// Drop implements store.Store.
func (m *ram) Drop(ctx context.Context, dataset string, number int64) error {
	if err := wait(ctx, time.Millisecond); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.current[dataset]) == 0 || number != 0 && m.current[dataset][number] == nil {
		return store.NoSnapshot(m.listLocked(), dataset, number)
	}
	m.clock++
	for n := range m.current[dataset] {
		if number == 0 || n == number {
			delete(m.current[dataset], n)
			m.log[name(dataset, n)].dropped = m.clock
		}
	}
	maps.DeleteFunc(m.selections, func(_ string, s *schema.Selection) bool {
		return s.Dataset == dataset && (number == 0 || s.Snapshot == number)
	})
	maps.DeleteFunc(m.runs, func(_ string, r *store.Run) bool { return r.Dataset == dataset && number == 0 })
	return nil
}

// GC implements store.Store. Other calls may run during the time that passes between its
// steps.
func (m *ram) GC(ctx context.Context, opts store.GCOptions,
	inUse func() []*schema.Snapshot) (report store.GCReport, err error) {
	live := map[schema.Key]bool{}
	mark := func(s *schema.Snapshot) {
		for _, set := range s.Sets {
			live[set.Blob.Key] = true
		}
		for _, c := range s.Chunks {
			live[c.Key] = true
			for _, key := range m.chunks[c.Key] {
				live[key] = true
			}
		}
	}
	catalog := func() {
		for _, d := range m.current {
			for _, s := range d {
				mark(s)
			}
		}
		for _, s := range m.selections {
			live[s.Bitmap.Key] = true
		}
	}
	m.mu.Lock()
	maps.DeleteFunc(m.selections, func(_ string, s *schema.Selection) bool {
		return !opts.DryRun && s.Expired(time.Now().Add(-store.ExpiredGrace))
	})
	maps.DeleteFunc(m.runs, func(_ string, r *store.Run) bool {
		return !opts.DryRun && r.Expired(time.Now().Add(-store.ExpiredGrace))
	})
	catalog()
	m.mu.Unlock()
	if err := wait(ctx, 2*time.Millisecond); err != nil {
		return report, err
	}
	var used []*schema.Snapshot
	if inUse != nil {
		used = inUse()
	}
	if err := wait(ctx, 2*time.Millisecond); err != nil {
		return report, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	catalog()
	for _, s := range used {
		mark(s)
	}
	for in := range m.ingests {
		for key := range in.keys {
			live[key] = true
		}
	}
	for key, b := range m.blobs {
		if live[key] {
			report.LiveBlobs++
			continue
		}
		report.DeadBlobs++
		report.DeadBytes += int64(len(b))
		if !opts.DryRun {
			delete(m.blobs, key)
		}
	}
	return report, nil
}

// Tagged implements store.Store.
func (m *ram) Tagged(ctx context.Context, dataset, name string) (int64, error) {
	list, err := m.Datasets(ctx)
	if err != nil || !slices.ContainsFunc(list, func(d store.Dataset) bool { return d.Name == dataset }) {
		return 0, errors.Join(err, store.NoSnapshot(list, dataset, 0))
	}
	return 0, store.NoTag(dataset, name, nil)
}

// SetInUse implements store.Store.
func (m *ram) SetInUse(func() []*schema.Snapshot) {}

// Traits implements store.Store.
func (m *ram) Traits() store.Traits { return store.Traits{Replicas: 1} }

// Where implements store.Store.
func (m *ram) Where() string { return "memory" }

// Stats implements store.Store.
func (m *ram) Stats() store.Stats { return store.Stats{} }

// Close implements store.Store.
func (m *ram) Close() error { return nil }
