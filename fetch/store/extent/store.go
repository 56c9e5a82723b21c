package extent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/fetch/object"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// Options tune a Store.
type Options struct {
	// Buckets opens a bucket by the URL that an object set has for it.
	Buckets func(ctx context.Context, url string) (object.Bucket, error)
	// SetBytes is how much of object sets is kept in memory, 256 MiB if 0; of a store below that maps its blobs, and
	// whose sets take no memory but that of the kernel's cache, 16 times as much.
	SetBytes int64
	// UnitBytes is how much of decoded units is kept, 128 MiB if 0.
	UnitBytes int64
	// Proofs is how many checksums of blobs that were attached without them are in memory, 32 Mi if 0: 20 to 40 bytes
	// each.
	Proofs int64
	Logger *slog.Logger
}

const (
	defaultSetBytes  = 256 << 20
	defaultUnitBytes = 128 << 20
	mappedFactor     = 16
)

// Store is a store with blobs in buckets. It owns the store below.
type Store struct {
	store.Store
	sets    sets
	buckets buckets
	units   units
	scans   scans
	proofs  proofs

	reads, readBytes atomic.Int64

	ctx   context.Context // of what outlives the call that began it, until Close
	end   context.CancelCauseFunc
	tasks sync.WaitGroup

	life   sync.RWMutex // read-locked by each call that reads a bucket, and locked by Close
	closed bool
}

// New returns a store that has the blobs of the one below, and those in buckets. Close
// closes both.
func New(below store.Store, options Options) *Store {
	if options.SetBytes == 0 {
		options.SetBytes = defaultSetBytes
		if below.Traits().Mapped {
			options.SetBytes *= mappedFactor
		}
	}
	if options.UnitBytes == 0 {
		options.UnitBytes = defaultUnitBytes
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	if options.Proofs == 0 {
		options.Proofs = mostProofs
	}
	s := &Store{Store: below}
	s.ctx, s.end = context.WithCancelCause(context.Background())
	s.sets.init(s, options.SetBytes)
	s.buckets.init(s, options.Buckets)
	s.units.init(s, options.UnitBytes)
	s.scans.init(s, options.Logger)
	s.proofs.init(s, options.Logger, options.Proofs)
	return s
}

// Below returns the store that has everything else.
func (s *Store) Below() store.Store { return s.Store }

// enter begins a call that reads a bucket; the caller ends it with s.life.RUnlock.
func (s *Store) enter(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.life.RLock()
	if s.closed {
		s.life.RUnlock()
		return s.isClosed()
	}
	return nil
}

func (s *Store) isClosed() error {
	return fmt.Errorf("%w: the store in %s is closed", schema.ErrUnavailable, s.Where())
}

// Snapshot implements store.Store. The sets that the snapshot names are known from then on.
func (s *Store) Snapshot(ctx context.Context, dataset string, number int64) (*schema.Snapshot, error) {
	snap, err := s.Store.Snapshot(ctx, dataset, number)
	if err == nil {
		s.learn(snap)
	}
	return snap, err
}

// learn takes note of what a snapshot says of its sets.
func (s *Store) learn(snap *schema.Snapshot) {
	s.proofs.learn(snap) // first: what is known of a set says whether it is proven
	s.sets.learn(snap.Sets)
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	prefix := prefixOf(ref.Key)
	switch s.sets.whose(prefix) {
	case belows:
		return s.Store.Get(ctx, ref)
	case unknown:
		blob, err := s.Store.Get(ctx, ref)
		if err == nil || ref.Hashed() || !errors.Is(err, schema.ErrNotFound) {
			return blob, err
		}
		// It may be an address in a set of a snapshot that nothing has opened here.
		if found, failed := s.find(ctx, prefix); failed != nil || !found {
			return schema.Blob{}, errors.Join(err, failed)
		}
	}
	if err := s.enter(ctx); err != nil {
		return schema.Blob{}, err
	}
	defer s.life.RUnlock()
	blob, err := s.get(ctx, ref)
	if err != nil {
		return schema.Blob{}, fmt.Errorf("attached blob %s: %w", ref.Key, err)
	}
	s.reads.Add(1)
	s.readBytes.Add(ref.Size)
	return blob, nil
}

// prefixOf is the prefix of a key that is an address.
func prefixOf(key schema.Key) schema.ObjectPrefix {
	return schema.ObjectPrefix(key[:len(schema.ObjectPrefix{})])
}

// find looks through the catalog for a set, and says whether it is one whose blobs are read here.
func (s *Store) find(ctx context.Context, prefix schema.ObjectPrefix) (bool, error) {
	if err := s.enter(ctx); err != nil {
		return false, err
	}
	defer s.life.RUnlock()
	if err := s.scans.find(ctx, prefix); err != nil {
		return false, err
	}
	return s.sets.whose(prefix) == ours, nil
}

// get reads a blob of a known set.
func (s *Store) get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	at, err := s.place(ctx, ref)
	if err != nil || ref.Size == 0 {
		return schema.Blob{}, err
	}
	if at.unit != nil {
		unit, err := s.units.get(ctx, at)
		if err != nil {
			return schema.Blob{}, err
		}
		// A copy: a small blob must not keep all of its unit in memory.
		blob, to := newBlob(ref.Size)
		copy(to, unit[at.offset:])
		return blob, nil
	}
	bucket, err := s.buckets.open(ctx, at.url)
	if err != nil {
		return schema.Blob{}, err
	}
	blob, to := newBlob(ref.Size)
	if err := read(ctx, bucket, at.object, at.offset, to); err != nil {
		return schema.Blob{}, err
	}
	return blob, nil
}

// read fills buf from an object as it was when it was attached.
func read(ctx context.Context, bucket object.Bucket, o schema.Object, offset int64, buf []byte) error {
	err := bucket.Range(ctx, o.Key, o.Version, offset, buf)
	return Attached(bucket.URL(), o, err)
}

// Attached is the error of a read of an object that is attached: one that is gone is a schema.ErrDataLoss, as one that has
// changed is.
func Attached(url string, o schema.Object, err error) error {
	var changed *object.ChangedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &changed):
		return fmt.Errorf("%w; put the old one back, or attach what is there now", err)
	case errors.Is(err, schema.ErrNotFound):
		gone := err.Error() // what is missing here is lost, not absent
		return fmt.Errorf("%w: object %s of %s, attached with %s, is gone (%s)", schema.ErrDataLoss, schema.Quote(o.Key), url,
			o.Version, gone)
	}
	return fmt.Errorf("read object %s of %s: %w", schema.Quote(o.Key), url, err)
}

// place is where a blob is stored.
type place struct {
	prefix schema.ObjectPrefix
	number uint32 // of the object in the set
	url    string // of the bucket
	object schema.Object
	unit   *schema.Unit
	offset int64 // of the blob in the object, or in the decoded unit
}

// place finds out where a blob of a known set is stored.
func (s *Store) place(ctx context.Context, ref schema.BlobRef) (place, error) {
	address, ok := schema.ParseObjectAddress(ref.Key)
	if !ok {
		return place{}, fmt.Errorf("%w: its key is no address", schema.ErrDataLoss)
	}
	p, err := s.sets.place(ctx, address)
	if err != nil {
		return place{}, err
	}
	within, what := p.object.Size, "object"
	if p.unit != nil {
		within, what = p.unit.Size, "unit"
	}
	if ref.Size < 0 || p.offset > within || ref.Size > within-p.offset {
		return place{}, fmt.Errorf("%w: %d bytes at %d are not within the %d bytes of the %s in %s of %s", schema.ErrDataLoss,
			ref.Size, p.offset, within, what, schema.Quote(p.object.Key), p.url)
	}
	return p, nil
}

// Locate implements store.Store.
func (s *Store) Locate(ctx context.Context, ref schema.BlobRef) (store.Location, bool, error) {
	prefix := prefixOf(ref.Key)
	switch s.sets.whose(prefix) {
	case belows:
		return s.Store.Locate(ctx, ref)
	case unknown:
		at, ok, err := s.Store.Locate(ctx, ref)
		if _, address := s.Store.Addressed(ref.Key); ok || err != nil || address || ref.Hashed() {
			return at, ok, err
		}
		if found, err := s.find(ctx, prefix); err != nil || !found {
			return store.Location{}, false, err
		}
	}
	if err := s.enter(ctx); err != nil {
		return store.Location{}, false, err
	}
	defer s.life.RUnlock()
	p, err := s.place(ctx, ref)
	if err != nil {
		return store.Location{}, false, fmt.Errorf("attached blob %s: %w", ref.Key, err)
	}
	bucket, err := s.buckets.open(ctx, p.url)
	if err != nil {
		return store.Location{}, false, fmt.Errorf("attached blob %s: %w", ref.Key, err)
	}
	at := store.Location{Bucket: bucket, Object: p.object, Offset: p.offset, Length: ref.Size}
	if p.unit != nil {
		at.Unit, at.Offset, at.Length, at.At = p.unit, p.unit.Offset, p.unit.Length, p.offset
	}
	return at, true, nil
}

// Buckets returns the URLs of the buckets that hold samples of a snapshot, or once held
// them. It reads sets that are not in memory.
func (s *Store) Buckets(ctx context.Context, snap *schema.Snapshot) (list []string, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	for _, ref := range snap.Sets {
		if ref.Blob == (schema.BlobRef{}) {
			continue // of the store below
		}
		set, err := s.sets.hold(ctx, ref.Prefix, ref.Blob)
		if err != nil {
			return nil, err
		}
		if url := set.Bucket(); !slices.Contains(list, url) {
			list = append(list, strings.Clone(url))
		}
		set.release()
	}
	return list, nil
}

// Addressed implements store.Store. A blob in an object set is in no table.
func (s *Store) Addressed(key schema.Key) (store.AttachedTable, bool) {
	if s.sets.whose(prefixOf(key)) == ours {
		return store.AttachedTable{}, true
	}
	return s.Store.Addressed(key)
}

// Repair implements store.Store.
func (s *Store) Repair(ctx context.Context, ref schema.BlobRef, data []byte) error {
	if s.sets.whose(prefixOf(ref.Key)) == ours {
		if err := s.enter(ctx); err != nil {
			return err
		}
		defer s.life.RUnlock()
		at, err := s.place(ctx, ref)
		if err != nil {
			return err
		}
		return fmt.Errorf("%w: blob %s is in object %s of %s, which is only read: repair it there", schema.ErrInvalid,
			ref.Key, schema.Quote(at.object.Key), at.url)
	}
	return s.Store.Repair(ctx, ref, data)
}

// Traits implements store.Store.
func (s *Store) Traits() store.Traits {
	t := s.Store.Traits()
	t.Addresses = t.Addresses || s.sets.any()
	return t
}

// Stats implements store.Store: reads of buckets count too.
func (s *Store) Stats() store.Stats {
	st := s.Store.Stats()
	st.BlobReads += s.reads.Load()
	st.BlobBytes += s.readBytes.Load()
	return st
}

// Close implements store.Store.
func (s *Store) Close() error {
	s.end(s.isClosed())
	s.life.Lock()
	was := s.closed
	s.closed = true
	s.life.Unlock()
	s.tasks.Wait()
	if was {
		return s.Store.Close()
	}
	s.sets.close()
	return errors.Join(s.buckets.close(), s.Store.Close())
}

// goAfter has f run in a goroutine that Close waits for. Only calls under way may begin one.
func (s *Store) goAfter(f func()) { s.tasks.Go(f) }

// scanWithin is how long a look through the catalog may take.
const scanWithin = 30 * time.Second

var _ store.Store = (*Store)(nil)
