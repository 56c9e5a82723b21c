package protocol

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// memory is a Database without faults.
type memory struct {
	mu         sync.Mutex
	partitions map[string]Partition
	members    map[string]Member
	blobs      map[schema.Key]*memoryBlob

	reads, readBytes atomic.Int64
}

type memoryBlob struct {
	row  BlobRow
	data []byte
}

func newMemory() *memory {
	return &memory{partitions: map[string]Partition{}, members: map[string]Member{},
		blobs: map[schema.Key]*memoryBlob{}}
}

func (m *memory) lock(ctx context.Context) (unlock func(), err error) {
	if ctx.Err() != nil {
		return func() {}, context.Cause(ctx)
	}
	m.mu.Lock()
	return m.mu.Unlock, nil
}

func (m *memory) Partitions(ctx context.Context) ([]string, error) {
	unlock, err := m.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return slices.Collect(maps.Keys(m.partitions)), nil
}

func (m *memory) Load(ctx context.Context, name string) (Partition, error) {
	unlock, err := m.lock(ctx)
	if err != nil {
		return Partition{}, err
	}
	defer unlock()
	p := m.partitions[name]
	return Partition{p.Version, maps.Clone(p.Rows)}, nil
}

func (m *memory) Peek(ctx context.Context, name string, rows ...string) (Partition, error) {
	p, err := m.Load(ctx, name)
	if len(rows) > 0 {
		maps.DeleteFunc(p.Rows, func(row string, _ []byte) bool { return !slices.Contains(rows, row) })
	}
	return p, err
}

func (m *memory) Swap(ctx context.Context, name string, version int64, change Change) error {
	unlock, err := m.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	p := m.partitions[name]
	if p.Version != version {
		return ErrMoved
	}
	m.partitions[name] = change.apply(p)
	return nil
}

// apply returns the partition after the change.
func (c Change) apply(p Partition) Partition {
	rows := maps.Clone(p.Rows)
	if rows == nil {
		rows = map[string][]byte{}
	}
	maps.Copy(rows, c.Put)
	for _, row := range c.Delete {
		delete(rows, row)
	}
	return Partition{p.Version + 1, rows}
}

func (m *memory) Announce(ctx context.Context, row Member) error {
	unlock, err := m.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if m.members[row.ID].Beat < row.Beat {
		m.members[row.ID] = row
	}
	return nil
}

func (m *memory) Members(ctx context.Context) ([]Member, error) {
	unlock, err := m.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return slices.Collect(maps.Values(m.members)), nil
}

func (m *memory) Leave(ctx context.Context, id string) error {
	unlock, err := m.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	delete(m.members, id)
	return nil
}

// blob returns a blob's entry, made if there is none.
func (m *memory) blob(key schema.Key) *memoryBlob {
	if m.blobs[key] == nil {
		m.blobs[key] = &memoryBlob{row: BlobRow{Key: key, Size: -1}}
	}
	return m.blobs[key]
}

func (m *memory) Row(ctx context.Context, key schema.Key) (BlobRow, error) {
	unlock, err := m.lock(ctx)
	if err != nil {
		return BlobRow{}, err
	}
	defer unlock()
	if b := m.blobs[key]; b != nil {
		return b.row, nil
	}
	return BlobRow{Key: key, Size: -1}, nil
}

func (m *memory) Touch(ctx context.Context, ref schema.BlobRef, at Epoch) error {
	unlock, err := m.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	b := m.blob(ref.Key)
	b.row.Touched = max(b.row.Touched, at)
	return nil
}

func (m *memory) Write(ctx context.Context, ref schema.BlobRef, data []byte, at Epoch) error {
	unlock, err := m.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	b := m.blob(ref.Key)
	b.row.Size, b.row.Stored, b.row.Touched = ref.Size, max(b.row.Stored, at), max(b.row.Touched, at)
	b.data = bytes.Clone(data)
	return nil
}

func (m *memory) Whole(ctx context.Context, ref schema.BlobRef) (bool, error) {
	row, err := m.Row(ctx, ref.Key)
	return row.Size == ref.Size, err
}

func (m *memory) Read(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	unlock, err := m.lock(ctx)
	if err != nil {
		return schema.Blob{}, err
	}
	defer unlock()
	b := m.blobs[ref.Key]
	if b == nil || b.row.Size < 0 {
		return schema.Blob{}, fmt.Errorf("%w: blob %s", schema.ErrNotFound, ref.Key)
	}
	return schema.NewBlob(b.data, nil), nil
}

func (m *memory) Scan(ctx context.Context, visit func(context.Context, BlobRow) error) error {
	unlock, err := m.lock(ctx)
	if err != nil {
		return err
	}
	var rows []BlobRow
	for _, b := range m.blobs {
		rows = append(rows, b.row)
	}
	unlock()
	for _, row := range rows {
		if err := visit(ctx, row); err != nil {
			return err
		}
	}
	return nil
}

func (m *memory) Delete(ctx context.Context, row BlobRow, before Epoch) error {
	unlock, err := m.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	b := m.blobs[row.Key]
	switch {
	case b == nil || b.row.Stored >= before:
	case b.row.Touched >= before:
		b.row.Size, b.row.Stored, b.data = -1, 0, nil
	default:
		delete(m.blobs, row.Key)
	}
	return nil
}

func (m *memory) Sync(ctx context.Context) error { return ctx.Err() }

// memoryStore is a store.Store over the protocol, as real ones are.
type memoryStore struct {
	*Store
	db *memory
}

var _ store.Store = memoryStore{}

func (memoryStore) Traits() store.Traits { return store.Traits{Replicas: 1} }

func (memoryStore) Where() string { return "memory" }

func (memoryStore) Addressed(schema.Key) (store.AttachedTable, bool) {
	return store.AttachedTable{}, false
}

func (memoryStore) Refer(context.Context, []store.AttachedTable) error { return schema.ErrInvalid }

func (s memoryStore) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if err := s.enter(ctx); err != nil {
		return schema.Blob{}, err
	}
	defer s.calls.done()
	blob, err := s.db.Read(ctx, ref)
	if err == nil {
		s.db.reads.Add(1)
		s.db.readBytes.Add(ref.Size)
	}
	return blob, err
}

func (s memoryStore) Stats() store.Stats {
	c := s.Counters()
	st := store.Stats{BlobWrites: c.BlobWrites, BlobDedups: c.BlobDedups, WrittenBytes: c.WrittenBytes}
	st.BlobReads, st.BlobBytes = s.db.reads.Load(), s.db.readBytes.Load()
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	for _, b := range s.db.blobs {
		if b.row.Size >= 0 {
			st.Blobs++
			st.StoredBytes += b.row.Size
		}
	}
	return st
}
