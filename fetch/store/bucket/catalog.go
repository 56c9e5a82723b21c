package bucket

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"bowstring/fetch/object"
	"bowstring/fetch/store/protocol"
	"bowstring/schema"
)

// Directories of the store's objects.
const (
	dirCatalog  = "cat/"
	dirLost     = "lost/" // what Rebuild has found in the catalog and knows nothing of
	dirBackup   = "bak/"
	dirMembers  = "mem/"
	dirSegments = "seg/"
	dirProof    = "proof/" // what proofs of conditional writes write, and remove
)

// maxPartition is the size of the largest partition that is read.
const maxPartition = 1 << 30

// database is the store as the protocol sees it.
type database struct{ s *Store }

var (
	_ protocol.Database = database{}
	_ protocol.Segments = database{}
)

// partitionFile is the content of a partition's object, as JSON in a zstd frame with a checksum. The nonce is of the
// swap that wrote it: no two versions have the same bytes, and so the same ETag.
type partitionFile struct {
	Format  string            `json:"format"`
	Name    string            `json:"name"`
	Version int64             `json:"version"`
	Nonce   string            `json:"nonce"`
	Rows    map[string][]byte `json:"rows"`
}

const partitionFormat = "bowstring-partition"

var (
	encoder, _ = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(true)) // nil writers cannot fail
	decoder, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(4<<30))
)

func encodePartition(name string, p protocol.Partition) ([]byte, error) {
	text, err := json.Marshal(partitionFile{partitionFormat, name, p.Version, rand.Text(), p.Rows})
	if err != nil {
		return nil, err
	}
	return encoder.EncodeAll(text, nil), nil
}

func decodePartition(name string, data []byte) (protocol.Partition, error) {
	var f partitionFile
	text, err := decoder.DecodeAll(data, nil)
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	switch {
	case err != nil:
	case f.Format != partitionFormat || f.Version <= 0:
		err = fmt.Errorf("it has format %q, version %d", f.Format, f.Version)
	case f.Name != name:
		err = fmt.Errorf("it is partition %q", f.Name)
	}
	if err != nil {
		return protocol.Partition{}, fmt.Errorf("%w: partition %q of the catalog is damaged (%w); bowstring store rebuild mends it",
			schema.ErrDataLoss, name, err)
	}
	if f.Rows == nil {
		f.Rows = map[string][]byte{}
	}
	return protocol.Partition{Version: f.Version, Rows: f.Rows}, nil
}

// seen is a partition as it was loaded, with the version of its object.
type seen struct {
	protocol.Partition
	object schema.ObjectVersion
}

// seenPartitions remembers what swaps are made for: the versions that were loaded recently.
type seenPartitions struct {
	mu   sync.Mutex
	list map[string]seen
}

// mostSeen is how many partitions are remembered.
const mostSeen = 64

func (p *seenPartitions) put(name string, s seen) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old, ok := p.list[name]; ok && old.Version > s.Version {
		return
	}
	if p.list == nil {
		p.list = map[string]seen{}
	}
	for other := range p.list {
		if len(p.list) < mostSeen {
			break
		}
		delete(p.list, other)
	}
	p.list[name] = s
}

func (p *seenPartitions) get(name string) (seen, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.list[name]
	return s, ok
}

func (p *seenPartitions) forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.list, name)
}

// Partitions implements protocol.Catalog.
func (d database) Partitions(ctx context.Context) ([]string, error) {
	var names []string
	err := d.s.list(ctx, dirCatalog, func(name string, _ object.Info) error {
		names = append(names, name)
		return nil
	})
	return names, err
}

// Load implements protocol.Catalog. An object is read as its last write has left it, and a write that was begun for
// another version can never be made: it has the condition that the object is that one.
func (d database) Load(ctx context.Context, name string) (protocol.Partition, error) {
	p, err := d.load(ctx, name)
	return p.Partition, err
}

func (d database) load(ctx context.Context, name string) (p seen, err error) {
	s := d.s
	err = s.again(ctx, func(ctx context.Context) error {
		data, info, err := s.bucket.Get(ctx, s.key(dirCatalog+name), schema.ObjectVersion{}, maxPartition)
		if errors.Is(err, schema.ErrNotFound) {
			p = seen{}
			return nil
		}
		if err != nil {
			return err
		}
		p.object = info.Version
		p.Partition, err = decodePartition(name, data)
		return err
	})
	if err != nil {
		return seen{}, fmt.Errorf("read partition %q of the catalog of %s: %w", name, s, err)
	}
	s.partitions.put(name, p)
	return p, nil
}

// Peek implements protocol.Catalog. It costs what Load does.
func (d database) Peek(ctx context.Context, name string, rows ...string) (protocol.Partition, error) {
	p, err := d.Load(ctx, name)
	if err != nil || len(rows) == 0 {
		return p, err
	}
	some := map[string][]byte{}
	for _, row := range rows {
		if value, ok := p.Rows[row]; ok {
			some[row] = value
		}
	}
	p.Rows = some
	return p, nil
}

// swapWithin is how long the answer to a conditional write is waited for.
const swapWithin = 30 * time.Second

// Swap implements protocol.Catalog. The write is never repeated, because it cannot
// distinguish its own success from another's.
func (d database) Swap(ctx context.Context, name string, version int64, change protocol.Change) error {
	s := d.s
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	old, ok := s.partitions.get(name)
	if !ok || old.Version != version {
		var err error
		if old, err = d.load(ctx, name); err != nil {
			return err
		}
	}
	doing := fmt.Sprintf("change partition %q of the catalog of %s", name, s)
	if old.Version != version {
		return fmt.Errorf("%s: %w", doing, protocol.ErrMoved)
	}
	next := protocol.Partition{Version: version + 1, Rows: maps.Clone(old.Rows)}
	if next.Rows == nil {
		next.Rows = map[string][]byte{}
	}
	lasting := false
	for _, row := range change.Delete {
		delete(next.Rows, row)
		lasting = lasting || !protocol.Passing(row)
	}
	for row, value := range change.Put {
		next.Rows[row] = slices.Clone(value)
		lasting = lasting || !protocol.Passing(row)
	}
	body, err := encodePartition(name, next)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	condition := object.Condition{Absent: version == 0}
	if version > 0 {
		condition.Version = old.object
	}
	within, cancel := context.WithTimeout(ctx, swapWithin)
	defer cancel()
	info, outcome, err := s.bucket.Put(within, s.key(dirCatalog+name), body, condition)
	s.partitions.forget(name)
	switch outcome {
	case object.Made:
		if !info.Version.IsZero() {
			s.partitions.put(name, seen{next, info.Version})
		}
		if lasting && name != protocol.Control {
			d.backup(ctx, name, body)
		}
		return nil
	case object.Moved:
		return fmt.Errorf("%s: %w", doing, protocol.ErrMoved)
	case object.Failed:
		return fmt.Errorf("%s: %w", doing, err)
	default:
		return fmt.Errorf("%w: %s: %w", protocol.ErrUncertain, doing, err)
	}
}

// backup keeps a copy of a partition. Where it cannot, Rebuild has the one before.
func (d database) backup(ctx context.Context, name string, body []byte) {
	ctx, cancel := context.WithTimeout(ctx, swapWithin)
	defer cancel()
	if _, _, err := d.s.bucket.Put(ctx, d.s.key(dirBackup+name), body, object.Condition{}); err != nil {
		d.s.log.WarnContext(ctx, "a partition of the catalog has no new copy", "partition", name, "error", err)
	}
}

// Read implements protocol.Blobs.
func (d database) Read(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	var b schema.Blob
	err := d.s.again(ctx, func(ctx context.Context) (err error) {
		b, err = d.s.get(ctx, ref)
		return err
	})
	return b, err
}

// scanners is how many parts of the segments are listed at once.
const scanners = 16

// Scan implements protocol.Blobs: the rows are those of the segments. Their prefixes are as good as random, so that the
// lists of their first digits are about equal.
func (d database) Scan(ctx context.Context, visit func(context.Context, protocol.BlobRow) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for i := range scanners {
		g.Go(func() error {
			under := fmt.Sprintf("%s%x", dirSegments, i)
			return d.s.list(ctx, under, func(name string, info object.Info) error {
				prefix, number, ok := parseSegmentName(strings.TrimPrefix(under, dirSegments) + name)
				if !ok {
					return nil
				}
				at := protocol.EpochOf(prefix)
				return visit(ctx, protocol.BlobRow{
					Key:  schema.ObjectAddress{Prefix: prefix, Object: number}.Key(0),
					Size: info.Size, Stored: at, Touched: at,
				})
			})
		})
	}
	return g.Wait()
}

// Delete implements protocol.Blobs. No segment is ever written again under the name, so it is no matter when a
// deletion arrives.
func (d database) Delete(ctx context.Context, row protocol.BlobRow, before protocol.Epoch) error {
	a, ok := schema.ParseObjectAddress(row.Key)
	if !ok || row.Stored >= before {
		return nil
	}
	s := d.s
	return s.again(ctx, func(ctx context.Context) error { return s.bucket.Delete(ctx, s.segmentKey(a.Prefix, a.Object)) })
}

// Sync implements protocol.Blobs: what a server has answered is durable.
func (d database) Sync(context.Context) error { return nil }
