package local

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"bowstring/fetch/store/protocol"
	"bowstring/schema"
	"bowstring/spill/segment"
)

// blobs implements the protocol's Blobs and Contents.
//
// A touch and a deletion of a blob are serialized by its stripe, and a deletion spares
// what was touched in its epoch or later. So a touch is as good as a write of the bytes
// in that epoch, and the index has one epoch for both.
type blobs struct{ *Store }

// row is the protocol's view of an entry: Stored and Touched are the same epoch.
func (e entry) row(key schema.Key) protocol.BlobRow {
	return protocol.BlobRow{Key: key, Size: e.Length, Stored: protocol.Epoch(e.touch), Touched: protocol.Epoch(e.touch)}
}

// Row implements protocol.Contents. A blob whose bytes were lost in a crash has no row.
func (b blobs) Row(ctx context.Context, key schema.Key) (protocol.BlobRow, error) {
	if err := b.enter(ctx); err != nil {
		return protocol.BlobRow{}, err
	}
	defer b.life.RUnlock()
	e, ok, err := b.entry(key)
	if err != nil || !ok || !b.set.Holds(e.Location) {
		return protocol.BlobRow{Key: key, Size: -1}, err
	}
	return e.row(key), nil
}

// Touch implements protocol.Contents. A missing blob needs no row, because segments show
// what they hold.
func (b blobs) Touch(ctx context.Context, ref schema.BlobRef, at protocol.Epoch) error {
	if err := b.enterToWrite(ctx); err != nil {
		return err
	}
	defer b.life.RUnlock()
	stripe := b.stripe(&ref.Key)
	stripe.Lock()
	defer stripe.Unlock()
	e, ok, err := b.entry(ref.Key)
	if err != nil || !ok || e.touch >= uint32(at) {
		return err
	}
	e.touch = uint32(at)
	return b.putEntry(&ref.Key, e, count{})
}

// putEntry writes an entry of the index, and adds grown to the totals in the same batch.
// It does not sync: the commit that refers to the blob does. The caller holds the key's
// stripe.
func (s *Store) putEntry(key *schema.Key, e entry, grown count) error {
	var buf [33]byte
	var value [entrySize]byte
	var err error
	if grown == (count{}) {
		err = s.db.Set(blobKey(&buf, key), e.encode(&value), pebble.NoSync)
	} else {
		b := s.db.NewBatch()
		defer b.Close()
		err = errors.Join(
			b.Set(blobKey(&buf, key), e.encode(&value), nil),
			b.Merge(keyCount, grown.encode(), nil),
			b.Commit(pebble.NoSync),
		)
	}
	if err != nil {
		return dbError(fmt.Sprintf("index blob %s", key), err)
	}
	s.count.blobs.Add(grown.blobs)
	s.count.bytes.Add(grown.bytes)
	return nil
}

// Write implements protocol.Contents. It appends the bytes to the segments. A later
// collection frees the old ones.
func (b blobs) Write(ctx context.Context, ref schema.BlobRef, data []byte, at protocol.Epoch) error {
	if err := b.enterToWrite(ctx); err != nil {
		return err
	}
	defer b.life.RUnlock()
	if err := b.write(ref, data, at); err != nil {
		return err
	}
	return b.syncSealed()
}

// write appends the bytes and then sets the entry, so that no entry names bytes that do
// not exist.
func (b blobs) write(ref schema.BlobRef, data []byte, at protocol.Epoch) error {
	stripe := b.stripe(&ref.Key)
	stripe.Lock()
	defer stripe.Unlock()
	old, found, err := b.entry(ref.Key)
	if err != nil && !errors.Is(err, schema.ErrDataLoss) {
		return err
	}
	loc, err := b.set.Append(ref.Key, ref.Sum, data)
	if err != nil {
		return err
	}
	defer b.places.forget(&ref.Key)
	grown := count{1, ref.Size}
	if found {
		grown = count{0, ref.Size - old.Length}
		// The index may reach the disk at any time. It must not lead to nothing then, where it led to bytes before.
		if err := b.set.Sync(); err != nil {
			return err
		}
	}
	return b.putEntry(&ref.Key, entry{Location: loc, sum: ref.Sum, touch: uint32(at)}, grown)
}

// Whole implements protocol.Contents. A row exists only if the bytes do.
func (b blobs) Whole(context.Context, schema.BlobRef) (bool, error) { return true, nil }

// Read implements protocol.Blobs.
func (b blobs) Read(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if err := b.enter(ctx); err != nil {
		return schema.Blob{}, err
	}
	defer b.life.RUnlock()
	blob, _, err := b.get(ref.Key)
	return blob, err
}

// Scan implements protocol.Blobs.
func (b blobs) Scan(ctx context.Context, visit func(context.Context, protocol.BlobRow) error) error {
	return b.eachIndexed(ctx, func(x indexed) error { return visit(ctx, x.row(x.key)) })
}

// Delete implements protocol.Blobs. It removes the index entry. The bytes stay until
// their segment is freed, so readers that have mapped them are not disturbed.
func (b blobs) Delete(ctx context.Context, row protocol.BlobRow, before protocol.Epoch) error {
	if err := b.enterToWrite(ctx); err != nil {
		return err
	}
	defer b.life.RUnlock()
	stripe := b.stripe(&row.Key)
	stripe.Lock()
	defer stripe.Unlock()
	e, ok, err := b.entry(row.Key)
	if err != nil || !ok || protocol.Epoch(e.touch) >= before {
		return err
	}
	defer b.places.forget(&row.Key)
	var buf [33]byte
	batch := b.db.NewBatch()
	defer batch.Close()
	err = errors.Join(
		batch.Delete(blobKey(&buf, &row.Key), nil),
		batch.Merge(keyCount, count{-1, -e.Length}.encode(), nil),
		batch.Commit(pebble.NoSync),
	)
	if err != nil {
		return dbError(fmt.Sprintf("remove blob %s from the index", row.Key), err)
	}
	b.count.blobs.Add(-1)
	b.count.bytes.Add(-e.Length)
	return nil
}

// indexed is an entry of the index with its key.
type indexed struct {
	key schema.Key
	entry
}

// indexPart is how many entries are read at a time. The store's life is unlocked between
// two parts, so that another call may open the store for writing, or close it, during a
// scan of millions of entries.
const indexPart = 1024

// eachIndexed visits the index in key order, in the caller's goroutine. Entries that are
// written meanwhile may be visited or not. No lock is held while visit runs.
func (s *Store) eachIndexed(ctx context.Context, visit func(indexed) error) error {
	from := []byte{prefixBlob}
	for {
		part, err := s.indexPart(ctx, from)
		if err != nil {
			return err
		}
		for _, x := range part {
			if err := visit(x); err != nil {
				return err
			}
		}
		if len(part) < indexPart {
			return nil
		}
		from = append(append([]byte{prefixBlob}, part[len(part)-1].key[:]...), 0)
	}
}

// indexPart reads up to indexPart entries of the index, from a key of the database on.
func (s *Store) indexPart(ctx context.Context, from []byte) (part []indexed, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	if s.ending.Err() != nil {
		return nil, fmt.Errorf("%w: the store in %s is being closed", schema.ErrUnavailable, s.dir)
	}
	bounds := within(prefixBlob)
	bounds.LowerBound = from
	it, err := s.db.NewIter(bounds)
	if err != nil {
		return nil, dbError("read the index", err)
	}
	defer func() { err = errors.Join(err, dbError("read the index", it.Close())) }()
	for it.First(); it.Valid() && len(part) < indexPart; it.Next() {
		if len(it.Key()) != 1+len(schema.Key{}) {
			return nil, fmt.Errorf("%w: an index key of %d bytes", schema.ErrDataLoss, len(it.Key()))
		}
		e, err := decodeEntry(it.Value())
		if err != nil {
			return nil, err
		}
		part = append(part, indexed{schema.Key(it.Key()[1:]), e})
	}
	return part, nil
}

const (
	// placeShards is the number of shards, so that readers on different CPUs seldom meet
	// at a lock.
	placeShards = 64
	// placesEach is how many blobs a shard caches: 131,072 in all, in about 12 MiB.
	placesEach = 2048
)

// places caches where recently read blobs are, according to the index, because a look-up in the index costs up to a
// fifth of verifying 100 KB by checksum. If it is full, it evicts any blob.
//
// It never contradicts the index. A writer that changes an entry calls forget after the change and before it unlocks
// the key's stripe. A reader that has read the index before the change and calls put after it is rejected, because
// the number of changes differs.
type places [placeShards]placeShard

// placeShard caches the blobs of one range of keys.
type placeShard struct {
	mu      sync.Mutex
	known   map[schema.Key]segment.Location
	changes uint64 // changes of entries in this range so far; guarded by mu, as is known
}

// of returns the shard of a key.
func (p *places) of(key *schema.Key) *placeShard { return &p[key[0]%placeShards] }

// find returns where a blob is, if it is cached. If not, the caller passes changes to put.
func (p *places) find(key *schema.Key) (at segment.Location, changes uint64, ok bool) {
	s := p.of(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok = s.known[*key]
	return at, s.changes, ok
}

// put caches what the index returned after find, which returned changes.
func (p *places) put(key *schema.Key, at segment.Location, changes uint64) {
	s := p.of(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changes != changes {
		return
	}
	if s.known == nil {
		s.known = map[schema.Key]segment.Location{}
	}
	if len(s.known) >= placesEach {
		for other := range s.known {
			delete(s.known, other)
			break
		}
	}
	s.known[*key] = at
}

// forget records that the entry of a blob has changed, or may have.
func (p *places) forget(key *schema.Key) {
	s := p.of(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
	delete(s.known, *key)
}
