package protocol

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"bowstring/schema"
)

// Seeds with this bit simulate a database that is a bucket. Blobs are in segments, each
// written once, by messages that are lost, delayed and repeated like all others. Lists
// are as old as their pages. Deletions have no condition. A swap is a conditional write,
// which is made or not when it arrives.
const packedSeeds = 1 << 60

// bucketClient is the Database that a process has in such a world.
type bucketClient struct{ *client }

var (
	_ Database = bucketClient{}
	_ Segments = bucketClient{}
)

// database is what a process's store is over.
func (w *world) database(p *process) Database {
	c := &client{p, w.db}
	if w.packed {
		return bucketClient{c}
	}
	return c
}

// drawBucketFaults draws what goes wrong in a bucket.
func (w *world) drawBucketFaults() {
	pick := func(values ...int) int { return values[w.rng.IntN(len(values))] }
	w.faults = faults{
		lose: pick(0, 0, 200, 30), silence: pick(0, 20, 5), slow: pick(0, 20, 5), delay: pick(0, 0, 100, 20),
		double: pick(0, 0, 30), suspends: pick(0, 1, 2, 3), kills: pick(0, 0, 1), clocks: w.chance(2),
		deletions: pick(0, 0, 2), scans: pick(0, 0, 2), bytes: pick(0, 0, 4), states: pick(0, 0, 4), patient: w.chance(4),
	}
}

// segmentKey is the address of the first byte of a blob's segment.
func segmentKey(key schema.Key) schema.Key {
	a, _ := schema.ParseObjectAddress(key)
	return schema.ObjectAddress{Prefix: a.Prefix, Object: a.Object}.Key(0)
}

// simPack is the segments of an ingest.
type simPack struct {
	c      bucketClient
	prefix schema.ObjectPrefix
	number uint32 // of the open segment
	offset int64
	put    map[schema.BlobRef]bool
	unsure map[uint32]bool // sealed segments that are not known to be there
	closed bool
}

func (c bucketClient) Pack(prefix schema.ObjectPrefix) Pack {
	return &simPack{c: c, prefix: prefix, put: map[schema.BlobRef]bool{}, unsure: map[uint32]bool{}}
}

func (p *simPack) Put(ctx context.Context, data []byte) (schema.BlobRef, error) {
	a := schema.ObjectAddress{Prefix: p.prefix, Object: p.number, Offset: p.offset}
	sum := schema.Checksum(data)
	ref := schema.BlobRef{Key: a.Key(sum), Size: int64(len(data)), Sum: sum}
	p.c.r.content[ref.Key] = slices.Clone(data)
	p.put[ref] = true
	p.offset += 64
	if p.c.r.w.chance(3) { // the segment is full, and written in the background
		p.seal()
		_ = p.write(ctx, p.number-1)
	}
	return ref, nil
}

func (p *simPack) Record(ctx context.Context, record []byte) (schema.BlobRef, error) {
	return p.Put(ctx, record)
}

func (p *simPack) seal() {
	if p.offset > 0 {
		p.unsure[p.number] = true
		p.number++
		p.offset = 0
	}
}

// write writes a segment. An existing one is left as it is.
func (p *simPack) write(ctx context.Context, number uint32) error {
	key := schema.ObjectAddress{Prefix: p.prefix, Object: number}.Key(0)
	err := p.c.call(ctx, "bytes", 1, 1, func(int) { p.c.r.segments[key] = true })
	if err == nil {
		delete(p.unsure, number)
	}
	return err
}

func (p *simPack) Has(ref schema.BlobRef) bool { return p.put[ref] }

func (p *simPack) Sync(ctx context.Context) error {
	p.seal()
	for _, number := range slices.Sorted(maps.Keys(p.unsure)) {
		for try := 0; ; try++ {
			err := p.write(ctx, number)
			if err == nil {
				break
			}
			if try == 2 || ctx.Err() != nil {
				return err
			}
		}
	}
	return nil
}

func (p *simPack) Close() { p.closed = true }

func (c bucketClient) Read(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	there, err := one(ctx, c.client, "read", func() bool { return c.r.segments[segmentKey(ref.Key)] })
	if err != nil {
		return schema.Blob{}, err
	}
	if !there {
		return schema.Blob{}, fmt.Errorf("%w: blob %s", schema.ErrNotFound, ref.Key)
	}
	return schema.NewBlob(c.r.content[ref.Key], nil), nil
}

func (c bucketClient) Scan(ctx context.Context, visit func(context.Context, BlobRow) error) error {
	var after schema.Key
	for {
		page, err := one(ctx, c.client, "scan", func() []schema.Key {
			keys := slices.SortedFunc(maps.Keys(c.r.segments), func(a, b schema.Key) int { return slices.Compare(a[:], b[:]) })
			keys = slices.DeleteFunc(keys, func(k schema.Key) bool { return slices.Compare(k[:], after[:]) <= 0 })
			return keys[:min(4, len(keys))]
		})
		if err != nil || len(page) == 0 {
			return err
		}
		for _, key := range page {
			at := EpochOf(prefixOf(key))
			if err := visit(ctx, BlobRow{Key: key, Size: 1, Stored: at, Touched: at}); err != nil {
				return err
			}
		}
		after = page[len(page)-1]
	}
}

func (c bucketClient) Delete(ctx context.Context, row BlobRow, before Epoch) error {
	if row.Stored >= before {
		return nil
	}
	c.r.w.say(c.p, "deletes segment %s", row.Key.String()[:8])
	return c.call(ctx, "unbytes", 1, 1, func(int) {
		delete(c.r.segments, row.Key)
		c.r.w.oracle.deletedSegment(row.Key)
	})
}

// deletedSegment is called when a segment is taken away.
func (o *oracle) deletedSegment(segment schema.Key) {
	for key := range o.refs {
		if segmentKey(key) == segment {
			o.w.wrong("segment %s is deleted, which %s refers to", segment.String()[:8], o.referrer(key))
			return
		}
	}
}

// leakedSegments lists segments that no visible snapshot names and that hold no
// selection.
func (o *oracle) leakedSegments() []string {
	named := map[schema.ObjectPrefix]bool{}
	for key := range o.refs {
		named[prefixOf(key)] = true
	}
	var list []string
	for key := range o.w.db.segments {
		if !named[prefixOf(key)] {
			list = append(list, key.String()[:8])
		}
	}
	slices.Sort(list)
	return list
}

// carries has a snapshot name the chunks of any snapshot that is there, as a copy does that shares them.
func (a *actor) carries(ctx context.Context, dataset string, snap *schema.Snapshot) {
	list, err := a.s.Datasets(ctx)
	if a.failed("list the datasets", err) {
		return
	}
	for _, d := range list {
		if d.Name != dataset {
			continue
		}
		other, err := a.s.Snapshot(ctx, dataset, d.Snapshots[a.w.rng.IntN(len(d.Snapshots))])
		if a.failed("open a snapshot", err, schema.ErrNotFound) {
			return
		}
		snap.Chunks = append(snap.Chunks, other.Chunks...)
		for _, set := range other.Sets {
			if !slices.Contains(snap.Sets, set) {
				snap.Sets = append(snap.Sets, set)
			}
		}
	}
}
