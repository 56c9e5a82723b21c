package spans_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"bowstring/fetch/object"
	"bowstring/fetch/read"
	"bowstring/fetch/store"
	"bowstring/internal/leaktest"
	"bowstring/schema"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// bucket keeps objects in memory, records ranges, and can block.
type bucket struct {
	object.Bucket // nil: only the methods below are called

	mu      sync.Mutex
	objects map[string][]byte
	shut    chan struct{} // nil: ranges are answered
	fail    func(key string, begin, n int64) error
	half    func() error // called when half of a range has been read, if not nil
	ranges  []stretch
	stats   int // calls of Stat
	reading atomic.Int64
}

// stretch is the range of a request.
type stretch struct {
	key        string
	begin, end int64
}

func newBucket() *bucket { return &bucket{objects: map[string][]byte{}} }

// Range implements object.Bucket.
func (b *bucket) Range(ctx context.Context, key string, _ schema.ObjectVersion, offset int64, buf []byte) error {
	b.reading.Add(1)
	defer b.reading.Add(-1)
	b.mu.Lock()
	b.ranges = append(b.ranges, stretch{key, offset, offset + int64(len(buf))})
	shut, fail, half := b.shut, b.fail, b.half
	b.mu.Unlock()
	if fail != nil {
		if err := fail(key, offset, int64(len(buf))); err != nil {
			return err
		}
	}
	if shut != nil {
		select {
		case <-shut:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if half != nil {
		b.mu.Lock()
		n := copy(buf[:len(buf)/2], b.objects[key][offset:])
		b.mu.Unlock()
		object.Progress(ctx)(n)
		if err := half(); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	data, ok := b.objects[key]
	if !ok {
		return fmt.Errorf("%w: no object %s", schema.ErrNotFound, key)
	}
	if copy(buf, data[min(offset, int64(len(data))):]) < len(buf) {
		return fmt.Errorf("%w: object %s ends before byte %d", schema.ErrDataLoss, key, offset+int64(len(buf)))
	}
	return nil
}

// URL implements object.Bucket.
func (*bucket) URL() string { return "s3://bucket" }

// Stat implements object.Bucket.
func (b *bucket) Stat(_ context.Context, key string) (object.Info, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats++
	data, ok := b.objects[key]
	if !ok {
		return object.Info{}, fmt.Errorf("%w: no object %s", schema.ErrNotFound, key)
	}
	return object.Info{Key: key, Size: int64(len(data))}, nil
}

// hang blocks ranges until release is called.
func (b *bucket) hang() (release func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := make(chan struct{})
	b.shut = c
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.shut = nil
		close(c)
	})
}

// asked returns the ranges requested since its last call.
func (b *bucket) asked() []stretch {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.ranges
	b.ranges = nil
	return list
}

// lying is a store whose blobs are in a bucket.
type lying struct {
	store.Store // nil: only the methods below are called

	bucket *bucket
	mu     sync.Mutex
	places map[schema.BlobRef]store.Location

	unsized bool // it does not report the length of objects
}

func newLying() *lying {
	return &lying{bucket: newBucket(), places: map[schema.BlobRef]store.Location{}}
}

// put appends a blob to an object, after gap bytes of other data.
func (s *lying) put(key string, gap int, data []byte) schema.BlobRef {
	ref := schema.RefOf(data)
	s.bucket.mu.Lock()
	defer s.bucket.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	o := append(s.bucket.objects[key], make([]byte, gap)...)
	s.places[ref] = store.Location{Bucket: s.bucket, Object: schema.Object{Key: key}, Offset: int64(len(o)),
		Length: ref.Size}
	s.bucket.objects[key] = append(o, data...)
	return ref
}

// Locate implements store.Store.
func (s *lying) Locate(_ context.Context, ref schema.BlobRef) (store.Location, bool, error) {
	s.mu.Lock()
	loc, ok := s.places[ref]
	s.mu.Unlock()
	if ok && !s.unsized {
		s.bucket.mu.Lock()
		loc.Object.Size = int64(len(s.bucket.objects[loc.Object.Key]))
		s.bucket.mu.Unlock()
	}
	return loc, ok, nil
}

// Get implements store.Store.
func (s *lying) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	loc, ok, _ := s.Locate(ctx, ref)
	if !ok {
		return schema.Blob{}, fmt.Errorf("%w: no blob %s", schema.ErrNotFound, ref.Key)
	}
	data := make([]byte, loc.Length)
	if err := s.bucket.Range(ctx, loc.Object.Key, loc.Object.Version, loc.Offset, data); err != nil {
		return schema.Blob{}, err
	}
	return schema.NewBlob(data, nil), nil
}

// Traits implements store.Store.
func (*lying) Traits() store.Traits { return store.Traits{} }

// Where implements store.Store.
func (*lying) Where() string { return "a bucket" }

// allIn puts all blobs into one set.
func allIn(schema.BlobRef) (schema.ObjectPrefix, bool) { return schema.ObjectPrefix{}, true }

// taken records answers.
type taken struct {
	mu   sync.Mutex
	list map[int]read.Answer
	t    testing.TB
}

func newTaken(t testing.TB) *taken { return &taken{list: map[int]read.Answer{}, t: t} }

// Answer implements read.Answers.
func (a *taken) Answer(n int, answer read.Answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.list[n]; ok {
		a.t.Errorf("cell %d is answered twice", n)
	}
	a.list[n] = answer
}

func (a *taken) len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.list)
}

// content returns n bytes that depend only on number.
func content(number, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(number), byte(number >> 8), byte(number >> 16)}).Read(b) // never fails
	return b
}
