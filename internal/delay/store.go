package delay

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Sequences of random numbers that no connection uses.
const (
	getJitters = ^uint64(iota)
	getSlow
	callJitters
)

// Store returns a store at the far end of the link, which has what inner has: a stand-in for a remote one. It owns
// inner from then on, and closes it.
//
// A Get takes the RTT, the blob's share of Bandwidth and a jitter; Window does not apply. For SlowShare of the calls
// it takes SlowBy longer: the n-th is one of them if Seed and n say so, whatever the blob. It returns at once when
// its context ends. Each blob is read from inner once and kept in memory until GC or the end of the store, so that
// what is measured is the link; the first read of a blob takes as long as inner does if that is longer.
//
// Calls of the catalog take an RTT and a jitter, then do what inner does. An ingest, once begun, is inner's own.
// Stats counts what was read through the link.
//
// The store has the method SetAddr if inner has it.
func (l *Link) Store(inner store.Store) store.Store {
	s := &distant{Store: inner, link: l, blobs: map[schema.Key][]byte{}, loading: map[schema.Key]chan struct{}{}}
	if holder, ok := inner.(addrHolder); ok {
		return struct {
			*distant
			addrHolder
		}{s, holder}
	}
	return s
}

// addrHolder is a store of one process that publishes the address at which it is served.
type addrHolder interface{ SetAddr(addr string) error }

// distant is a store behind a link. Maintenance of the store has no added latency.
type distant struct {
	store.Store
	link *Link

	gets, calls      atomic.Uint64 // begun
	reads, readBytes atomic.Int64

	// life is read-locked by each call and locked by Close.
	life   sync.RWMutex
	closed bool

	mu      sync.RWMutex
	blobs   map[schema.Key][]byte
	loading map[schema.Key]chan struct{} // closed when the attempt has ended
}

// Get implements store.Store.
func (s *distant) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if err := s.enter(); err != nil {
		return schema.Blob{}, err
	}
	defer s.life.RUnlock()
	n := s.gets.Add(1) - 1
	l := s.link
	due, _ := l.down.send(l.now()+l.config.RTT, ref.Size)
	due += l.jitter(getJitters, n)
	if s.slow(n) {
		due += l.config.SlowBy
	}
	data, err := s.load(ctx, ref)
	if cut := l.sleep(ctx, due); cut != nil {
		return schema.Blob{}, cut
	}
	if err != nil {
		return schema.Blob{}, err
	}
	s.reads.Add(1)
	s.readBytes.Add(int64(len(data)))
	return schema.NewBlob(data, nil), nil
}

// slow says whether the n-th Get takes longer.
func (s *distant) slow(n uint64) bool {
	share := s.link.config.SlowShare
	return share > 0 && float64(s.link.draw(getSlow, n)>>11)/(1<<53) < share
}

// load returns a blob's bytes, from memory or, once, from the inner store.
func (s *distant) load(ctx context.Context, ref schema.BlobRef) ([]byte, error) {
	for {
		s.mu.RLock()
		data, ok := s.blobs[ref.Key]
		s.mu.RUnlock()
		if ok {
			return data, nil
		}
		s.mu.Lock()
		if data, ok := s.blobs[ref.Key]; ok {
			s.mu.Unlock()
			return data, nil
		}
		other := s.loading[ref.Key]
		loaded := make(chan struct{})
		if other == nil {
			s.loading[ref.Key] = loaded
		}
		s.mu.Unlock()
		if other == nil {
			return s.loadAs(ctx, ref, loaded)
		}
		select {
		case <-other: // if that attempt failed, this call tries next
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (s *distant) loadAs(ctx context.Context, ref schema.BlobRef, loaded chan struct{}) ([]byte, error) {
	blob, err := s.Store.Get(ctx, ref)
	var data []byte
	if err == nil {
		data = slices.Clone(blob.Bytes())
		blob.Release()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.loading, ref.Key)
	if err == nil {
		s.blobs[ref.Key] = data
	}
	close(loaded)
	return data, err
}

// enter begins a call; the caller ends it with s.life.RUnlock.
func (s *distant) enter() error {
	s.life.RLock()
	if s.closed {
		s.life.RUnlock()
		return fmt.Errorf("%w: the store is closed", schema.ErrUnavailable)
	}
	return nil
}

// call waits for the latency of a call of the catalog.
func (s *distant) call(ctx context.Context) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.life.RUnlock()
	l := s.link
	return l.sleep(ctx, l.now()+l.config.RTT+l.jitter(callJitters, s.calls.Add(1)-1))
}

// Datasets implements store.Store.
func (s *distant) Datasets(ctx context.Context) ([]store.Dataset, error) {
	if err := s.call(ctx); err != nil {
		return nil, err
	}
	return s.Store.Datasets(ctx)
}

// Snapshot implements store.Store.
func (s *distant) Snapshot(ctx context.Context, dataset string, number int64) (*schema.Snapshot, error) {
	if err := s.call(ctx); err != nil {
		return nil, err
	}
	return s.Store.Snapshot(ctx, dataset, number)
}

// Begin implements store.Store.
func (s *distant) Begin(ctx context.Context, dataset string) (store.Ingest, error) {
	if err := s.call(ctx); err != nil {
		return nil, err
	}
	return s.Store.Begin(ctx, dataset)
}

// Drop implements store.Store.
func (s *distant) Drop(ctx context.Context, dataset string, number int64) error {
	if err := s.call(ctx); err != nil {
		return err
	}
	return s.Store.Drop(ctx, dataset, number)
}

// Selection implements store.Store.
func (s *distant) Selection(ctx context.Context, dataset, name string) (*schema.Selection, error) {
	if err := s.call(ctx); err != nil {
		return nil, err
	}
	return s.Store.Selection(ctx, dataset, name)
}

// RenewSelection implements store.Store.
func (s *distant) RenewSelection(ctx context.Context, dataset, name string, until time.Time) error {
	if err := s.call(ctx); err != nil {
		return err
	}
	return s.Store.RenewSelection(ctx, dataset, name, until)
}

// Run implements store.Store.
func (s *distant) Run(ctx context.Context, dataset, name string) (*store.Run, error) {
	if err := s.call(ctx); err != nil {
		return nil, err
	}
	return s.Store.Run(ctx, dataset, name)
}

// ChangeRun implements store.Store.
func (s *distant) ChangeRun(ctx context.Context, dataset, name string,
	change func(*store.Run) (*store.Run, error)) (*store.Run, error) {
	if err := s.call(ctx); err != nil {
		return nil, err
	}
	return s.Store.ChangeRun(ctx, dataset, name, change)
}

// Names implements store.Store.
func (s *distant) Names(ctx context.Context) ([]string, error) {
	if err := s.call(ctx); err != nil {
		return nil, err
	}
	return s.Store.Names(ctx)
}

// Traits implements store.Store: blobs that come over the link are copied.
func (s *distant) Traits() store.Traits {
	traits := s.Store.Traits()
	traits.Mapped = false
	return traits
}

// Tag implements store.Store.
func (s *distant) Tag(ctx context.Context, dataset, name string, number int64) error {
	if err := s.call(ctx); err != nil {
		return err
	}
	return s.Store.Tag(ctx, dataset, name, number)
}

// Untag implements store.Store.
func (s *distant) Untag(ctx context.Context, dataset, name string) error {
	if err := s.call(ctx); err != nil {
		return err
	}
	return s.Store.Untag(ctx, dataset, name)
}

// Tagged implements store.Store.
func (s *distant) Tagged(ctx context.Context, dataset, name string) (int64, error) {
	if err := s.call(ctx); err != nil {
		return 0, err
	}
	return s.Store.Tagged(ctx, dataset, name)
}

// GC implements store.Store. It also empties the memory, which may hold what is freed.
func (s *distant) GC(ctx context.Context, opts store.GCOptions,
	inUse func() []*schema.Snapshot) (store.GCReport, error) {
	if err := s.call(ctx); err != nil {
		return store.GCReport{}, err
	}
	report, err := s.Store.GC(ctx, opts, inUse)
	if !opts.DryRun {
		s.mu.Lock()
		clear(s.blobs)
		s.mu.Unlock()
	}
	return report, err
}

// Stats implements store.Store.
func (s *distant) Stats() store.Stats {
	st := s.Store.Stats()
	st.BlobReads, st.BlobBytes = s.reads.Load(), s.readBytes.Load()
	return st
}

// Close implements store.Store.
func (s *distant) Close() error {
	s.life.Lock()
	s.closed = true
	s.life.Unlock()
	return s.Store.Close()
}

var (
	_ store.Store = (*distant)(nil)
	_ Dialer      = (*Link)(nil)
)
