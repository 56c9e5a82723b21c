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

// Directories of the store's objects, as prefixes of their keys.
const (
	dirCatalog  = "cat/"
	dirLost     = "lost/" // unknown objects that Rebuild has moved out of the catalog
	dirBackup   = "bak/"
	dirMembers  = "mem/"
	dirSegments = "seg/"
	dirProof    = "proof/" // objects of proofs of conditional writes, which remove them
)

// maxPartition is the size of the largest partition object that is read. It protects the
// process from an object that is no partition.
const maxPartition = 1 << 30

// database is the store as the protocol sees it. It has no state of its own.
type database struct{ s *Store }

var (
	_ protocol.Database = database{}
	_ protocol.Segments = database{}
)

// partitionFile is the content of a partition's object: JSON in a zstd frame with a
// checksum. The nonce is chosen by each swap. So no two versions have the same bytes, and
// no two have the same ETag, which a condition compares.
type partitionFile struct {
	Format  string            `json:"format"`
	Name    string            `json:"name"`
	Version int64             `json:"version"`
	Nonce   string            `json:"nonce"`
	Rows    map[string][]byte `json:"rows"`
}

// partitionFormat is the value of partitionFile.Format.
const partitionFormat = "bowstring-partition"

// The encoder and the decoder are shared: EncodeAll and DecodeAll are safe for concurrent
// use.
var (
	encoder, _ = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(true)) // nil writers cannot fail
	decoder, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(4<<30))
)

// encodePartition returns the content of a partition's object, with a new nonce.
func encodePartition(name string, p protocol.Partition) ([]byte, error) {
	text, err := json.Marshal(partitionFile{partitionFormat, name, p.Version, rand.Text(), p.Rows})
	if err != nil {
		return nil, err
	}
	return encoder.EncodeAll(text, nil), nil
}

// decodePartition is the inverse of encodePartition. An object that is not the partition
// of that name is a schema.ErrDataLoss.
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

// seen is a partition as it was loaded, with the version of its object. A swap is made on
// the condition that the object still has it.
type seen struct {
	protocol.Partition
	object schema.ObjectVersion
}

// seenPartitions caches the partitions that were loaded recently, so that a swap need not
// load the partition again. An outdated entry does no harm: the condition of the swap
// fails. It is safe for concurrent use.
type seenPartitions struct {
	mu   sync.Mutex
	list map[string]seen
}

// mostSeen is how many partitions are cached. When there are more, any of them is
// evicted.
const mostSeen = 64

// put caches a partition, unless a newer version is cached.
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

// get returns the cached version of a partition.
func (p *seenPartitions) get(name string) (seen, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.list[name]
	return s, ok
}

// forget removes a partition that may have changed.
func (p *seenPartitions) forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.list, name)
}

// Partitions implements protocol.Catalog.
func (d database) Partitions(ctx context.Context) ([]string, error) {
	var names []string
	err := d.s.list(ctx, dirCatalog, func(name string, _ object.Info) error {
		// A partition without rows is listed as well, which does no harm.
		names = append(names, name)
		return nil
	})
	return names, err
}

// Load implements protocol.Catalog. The object is read as its last write has left it. A
// write that was begun for another version can never be made, because its condition names
// the version. So what Load returns is settled.
func (d database) Load(ctx context.Context, name string) (protocol.Partition, error) {
	p, err := d.load(ctx, name)
	return p.Partition, err
}

// load is Load, with the version of the object. A missing object is the zero value.
func (d database) load(ctx context.Context, name string) (p seen, err error) {
	s := d.s
	err = s.again(ctx, func(ctx context.Context) error {
		// No version is named, so the newest one is read.
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

// Peek implements protocol.Catalog. It costs as much as Load: the object is read as a
// whole, and reads of a bucket are strongly consistent. So it shows every swap that was
// answered.
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

// swapWithin is how long a conditional write may take. After that its outcome is unknown.
const swapWithin = 30 * time.Second

// Swap implements protocol.Catalog. The write is never repeated, because it cannot
// distinguish its own success from another's.
func (d database) Swap(ctx context.Context, name string, version int64, change protocol.Change) error {
	s := d.s
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// The protocol has just loaded the version. Its object's version is in the cache, or
	// the partition is loaded again.
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
	// Rows that mean nothing without their process are not worth a new copy of the
	// partition.
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
	// Version 0 is a partition without an object.
	condition := object.Condition{Absent: version == 0}
	if version > 0 {
		condition.Version = old.object
	}
	within, cancel := context.WithTimeout(ctx, swapWithin)
	defer cancel()
	info, outcome, err := s.bucket.Put(within, s.key(dirCatalog+name), body, condition)
	// The object may have changed, whatever the answer is.
	s.partitions.forget(name)
	// Only an answer that names the object's new version may be cached.
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

// backup writes the copy of a partition. If that fails, Rebuild has the copy before it,
// and the swap counts all the same.
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

// scanners is how many parts of the segments are listed at once. Prefixes begin with a
// random hexadecimal digit, so there are 16 parts of about the same size.
const scanners = 16

// Scan implements protocol.Blobs: the rows are those of segments. A row needs no request
// of its own: the epoch is in the segment's name, and the size in the list.
func (d database) Scan(ctx context.Context, visit func(context.Context, protocol.BlobRow) error) error {
	// Listing is sequential within a part: a page of a list begins where the one before
	// ends.
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

// Delete implements protocol.Blobs. No segment is ever written again under the same name,
// so a deletion may arrive at any time.
func (d database) Delete(ctx context.Context, row protocol.BlobRow, before protocol.Epoch) error {
	a, ok := schema.ParseObjectAddress(row.Key)
	if !ok || row.Stored >= before {
		return nil
	}
	s := d.s
	return s.again(ctx, func(ctx context.Context) error { return s.bucket.Delete(ctx, s.segmentKey(a.Prefix, a.Object)) })
}

// Sync implements protocol.Blobs. A write that a server has answered is durable.
func (d database) Sync(context.Context) error { return nil }
