package local

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// reindexBatch is how many entries of a new index are written at once.
const reindexBatch = 4096

// indexSegments makes the index from the headers in all segments that there are, those
// among them that the catalog does not know.
func (b *rebuilding) indexSegments() error {
	dir := filepath.Join(b.s.dir, segmentsDir)
	ids, err := segment.List(dir)
	if err != nil {
		return err
	}
	sizes := map[uint32]int64{}
	p := RebuildProgress{OfSegments: len(ids)}
	for _, id := range ids {
		st, err := os.Stat(filepath.Join(dir, segment.FileName(id)))
		if err != nil {
			return err
		}
		sizes[id] = st.Size()
		p.OfBytes += st.Size()
	}
	b.opts.Progress(p)
	total := count{}
	for _, id := range ids {
		if err := b.indexSegment(id, sizes[id], &total, func(at int64) {
			b.opts.Progress(RebuildProgress{p.Segments, p.OfSegments, p.Bytes + at, p.OfBytes})
		}); err != nil {
			return fmt.Errorf("segment %d: %w", id, err)
		}
		p.Segments, p.Bytes = p.Segments+1, p.Bytes+sizes[id]
		b.opts.Progress(p)
	}
	b.settleRecords(ids)
	b.report.Segments, b.report.Blobs, b.report.Bytes = len(ids), total.blobs, total.bytes
	if err := b.s.db.Merge(keyCount, total.encode(), pebble.NoSync); err != nil {
		return fmt.Errorf("write the database: %w", err)
	}
	return nil
}

// settleRecords leaves those records of segments of which there is a file, or was.
func (b *rebuilding) settleRecords(ids []uint32) {
	next := uint32(0)
	if v := b.rows[string(keySegment)]; len(v) == 4 {
		next = binary.LittleEndian.Uint32(v)
	}
	for _, id := range ids {
		next = max(next, id+1)
		// What is in it has been taken in, so that it is no more to be unlinked.
		delete(b.rows, string(freedKey(id)))
	}
	b.rows[string(keySegment)] = binary.LittleEndian.AppendUint32(nil, next)
}

// indexSegment takes in one segment. What lies beyond the length that is known to be
// stored is stored again and read, where the store is not just to be read.
func (b *rebuilding) indexSegment(id uint32, size int64, total *count, progress func(at int64)) error {
	record, known := segmentRecord{}, false
	if v := b.rows[string(segmentKey(id))]; v != nil {
		r, err := decodeSegmentRecord(v)
		record, known = r, err == nil
	}
	durable := min(record.durable, size)
	if !known || durable < segment.HeaderSize {
		durable = 0
	}
	if size > durable && !b.reading {
		if err := b.s.set.Rewrite(id, durable, size); err != nil {
			b.note(fmt.Errorf("what was not known to be stored cannot be: %w", err))
			size = durable
		}
	}
	b.rows[string(segmentKey(id))] = segmentRecord{durable: size, end: max(size, segment.HeaderSize)}.encode()
	g, err := b.s.set.Attach(id, size, size, false)
	if err != nil {
		b.note(err)
		return nil
	}
	w := indexWriter{b: b, batch: b.s.db.NewIndexedBatch(), total: total}
	defer func() { _ = w.batch.Close() }() // what is left in it was to be given up
	read := func(opts segment.ScanOptions, end int64) error {
		n := 0
		for rec, err := range g.Scan(opts) {
			if n++; n%1024 == 0 {
				progress(rec.Offset)
				if b.ctx.Err() != nil {
					return b.ctx.Err()
				}
			}
			switch {
			case errors.Is(err, schema.ErrDataLoss):
				b.note(err)
			case err != nil:
				return err
			case rec.Offset >= end:
				return nil
			case !rec.Void:
				if err := w.add(id, rec); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if b.opts.Payloads || durable == 0 {
		err = read(segment.ScanOptions{Payloads: true}, size)
	} else {
		err = read(segment.ScanOptions{}, durable)
		if err == nil && durable < size {
			err = read(segment.ScanOptions{From: durable, Payloads: true}, size)
		}
	}
	if err != nil {
		return err
	}
	return w.flush()
}

func (b *rebuilding) note(damage error) { b.report.Damage = append(b.report.Damage, damage.Error()) }

// indexWriter writes entries in batches.
type indexWriter struct {
	b     *rebuilding
	batch *pebble.Batch
	total *count
}

func (w *indexWriter) add(id uint32, rec segment.Record) error {
	e := entry{Location: segment.Location{Segment: id, Offset: rec.Offset, Length: rec.Length}, sum: rec.Sum}
	var key [33]byte
	v, closer, err := w.batch.Get(blobKey(&key, &rec.Key))
	switch {
	case err == nil:
		old, err := decodeEntry(v)
		if err := errors.Join(err, closer.Close()); err != nil {
			return err
		}
		// A collection that was killed leaves a blob twice. The first one stays if it is whole.
		if w.b.holds(old) {
			return nil
		}
		w.total.blobs--
		w.total.bytes -= old.Length
	case !errors.Is(err, pebble.ErrNotFound):
		return err
	}
	var value [entrySize]byte
	if err := w.batch.Set(blobKey(&key, &rec.Key), e.encode(&value), nil); err != nil {
		return err
	}
	w.total.blobs++
	w.total.bytes += rec.Length
	if w.batch.Count() >= reindexBatch {
		return w.flush()
	}
	return nil
}

// holds says whether a blob is at its place, whole.
func (b *rebuilding) holds(e entry) bool {
	blob, err := b.s.set.Get(e.Location)
	if err != nil {
		return false
	}
	defer blob.Release()
	return schema.BlobRef{Size: e.Length, Sum: e.sum}.Check(blob.Bytes()) == nil
}

func (w *indexWriter) flush() error {
	if err := errors.Join(w.batch.Commit(pebble.NoSync), w.batch.Close()); err != nil {
		return fmt.Errorf("write the database: %w", err)
	}
	w.batch = w.b.s.db.NewIndexedBatch()
	return nil
}

// lookForAll looks for everything that the snapshots refer to.
func (b *rebuilding) lookForAll() error {
	list, err := b.s.Datasets(b.ctx)
	if err != nil {
		return err
	}
	whole := map[schema.Key]bool{} // chunks that snapshots share are read once
	for _, d := range list {
		for _, number := range d.Snapshots {
			snap, err := b.s.Snapshot(b.ctx, d.Name, number)
			if errors.Is(err, schema.ErrDataLoss) {
				b.note(err)
				continue
			} else if err != nil {
				return err
			}
			missing := MissingBlobs{Dataset: d.Name, Snapshot: number}
			for _, c := range snap.Chunks {
				if b.ctx.Err() != nil {
					return b.ctx.Err()
				}
				if whole[c.Key] {
					continue
				}
				blobs, err := b.missingOf(snap, c)
				if errors.Is(err, schema.ErrDataLoss) || errors.Is(err, schema.ErrNotFound) {
					missing.Chunks++
					continue
				} else if err != nil {
					return err
				}
				missing.Blobs += blobs
				whole[c.Key] = blobs == 0
			}
			if missing.Blobs+missing.Chunks > 0 {
				b.report.Missing = append(b.report.Missing, missing)
			}
		}
	}
	return nil
}

// missingOf counts the blobs that a chunk of a manifest refers to and that are not there.
func (b *rebuilding) missingOf(snap *schema.Snapshot, c schema.Chunk) (missing int64, err error) {
	err = b.s.eachRef(snap, c, func(ref schema.BlobRef) error {
		e, ok, err := b.s.entry(ref.Key)
		if err == nil && (!ok || e.Length != ref.Size || e.sum != ref.Sum || !b.s.set.Holds(e.Location)) {
			missing++
		}
		return err
	})
	return missing, err
}

// eachRef visits the references in a chunk of a snapshot's manifest, and those of its pages.
func (s *Store) eachRef(snap *schema.Snapshot, c schema.Chunk, visit func(schema.BlobRef) error) error {
	get := func(ref schema.BlobRef) (schema.Blob, error) {
		blob, _, err := s.get(ref.Key)
		return blob, err
	}
	return schema.EachPage(snap, c, get, func(page schema.Chunk, _ int64, man *schema.Manifest) error {
		if c.Pages > 0 {
			if err := visit(page.BlobRef); err != nil {
				return err
			}
		}
		for col := range schema.BlobFields(snap.Schema) {
			for pos := range man.Rows() {
				if ref, ok := man.Blob(col, pos); ok {
					if err := visit(ref); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
}
