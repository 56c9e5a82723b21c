package bucket

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/object"
	"bowstring/fetch/store/protocol"
	"bowstring/schema"
)

// RebuildOptions configures Rebuild.
type RebuildOptions struct {
	Options
	// Payloads also reads every segment as a whole, and verifies each blob by its
	// checksum.
	Payloads bool
	// Progress, if not nil, is called after each segment that was read, by one goroutine
	// at a time.
	Progress func(RebuildProgress)
}

// RebuildProgress is the progress of Rebuild.
type RebuildProgress struct {
	Segments, OfSegments int
	Bytes, OfBytes       int64
}

// RebuildReport is the result of Rebuild.
type RebuildReport struct {
	Store    string `json:"store"`
	Segments int    `json:"segments"`
	Bytes    int64  `json:"bytes"`
	// Datasets are the datasets whose catalog was rebuilt.
	Datasets []RebuiltDataset `json:"datasets"`
	// Damage describes the damaged parts of the store.
	Damage []string `json:"damage"`
	// Missing are the snapshots that lack segments.
	Missing []MissingSegments `json:"missing"`
}

// RebuiltDataset is a dataset whose catalog was rebuilt.
type RebuiltDataset struct {
	Dataset string `json:"dataset"`
	// From is "copy" if the source was the catalog's copy, as the last commit, drop or
	// tag has left it. It is "records" if it was the records in segments. Then there are
	// no tags and selections, and the numbers of snapshots may differ from the original
	// ones.
	From      string `json:"from"`
	Snapshots int    `json:"snapshots"`
}

// MissingSegments is a snapshot that lacks segments.
type MissingSegments struct {
	Dataset  string   `json:"dataset"`
	Snapshot int64    `json:"snapshot"`
	Segments []string `json:"segments"`
}

// rebuilder is one run of Rebuild.
type rebuilder struct {
	s    *Store
	opts RebuildOptions
	log  *slog.Logger

	// One goroutine sets these before segments are read.
	sizes map[string]int64 // of the existing segments, by name
	bytes int64
	epoch protocol.Epoch // the latest in a segment's name

	mu     sync.Mutex
	report RebuildReport
	done   RebuildProgress
	found  map[string]*foundRecords // by dataset; nil until segments were read; guarded by mu
}

// foundRecords are the records of a dataset's snapshots, each with its address.
type foundRecords struct {
	records [][]byte
	at      []schema.BlobRef
}

// Rebuild rebuilds the catalog of a store where it is damaged or missing: from its
// copies, or, if there are none, from the records in segments. Intact parts are left as
// they are. Nothing else should use the store meanwhile. An interrupted Rebuild can be
// repeated.
func Rebuild(ctx context.Context, url string, opts RebuildOptions) (report RebuildReport, err error) {
	s, err := reach(ctx, url, opts.Options)
	if err != nil {
		return report, fmt.Errorf("rebuild store: %w", err)
	}
	defer func() {
		s.end()
		err = errors.Join(err, s.bucket.Close())
	}()
	r := &rebuilder{s: s, opts: opts, log: s.log, sizes: map[string]int64{}}
	r.report = RebuildReport{Store: s.String(), Datasets: []RebuiltDataset{}, Damage: []string{}, Missing: []MissingSegments{}}
	if err := r.run(ctx); err != nil {
		return r.report, fmt.Errorf("rebuild store %s: %w", s, err)
	}
	return r.report, nil
}

// run rebuilds partitions, control partition and FORMAT, in this order: with FORMAT the
// store can be opened.
func (r *rebuilder) run(ctx context.Context) error {
	s := r.s
	err := s.list(ctx, dirSegments, func(name string, info object.Info) error {
		if prefix, _, ok := parseSegmentName(name); ok {
			r.sizes[name] = info.Size
			r.bytes += info.Size
			r.epoch = max(r.epoch, protocol.EpochOf(prefix))
		}
		return nil
	})
	if err != nil {
		return err
	}
	// A partition may be missing from the catalog and still have a copy, or the other way
	// round.
	r.report.Segments, r.report.Bytes = len(r.sizes), r.bytes
	names := map[string]bool{}
	for _, dir := range []string{dirCatalog, dirBackup} {
		if err := s.list(ctx, dir, func(name string, _ object.Info) error { names[name] = true; return nil }); err != nil {
			return err
		}
	}
	// An empty place is probably a wrong URL, so no store is made in it.
	if len(names) == 0 && len(r.sizes) == 0 {
		return fmt.Errorf("%w: there is nothing of a store in it", schema.ErrNotFound)
	}
	delete(names, protocol.Control)
	if err := r.mend(ctx, slices.Sorted(maps.Keys(names))); err != nil {
		return err
	}
	if err := r.control(ctx); err != nil {
		return err
	}
	if _, err := s.format(ctx); err != nil {
		if !errors.Is(err, schema.ErrNotFound) && !errors.Is(err, schema.ErrInvalid) {
			return err
		}
		r.damaged("%v", err)
		if err := s.bucket.Delete(ctx, s.key(keyFormat)); err != nil {
			return err
		}
		if err := s.make(ctx); err != nil {
			return err
		}
	}
	return r.missing(ctx)
}

// damaged adds a line to the report's Damage.
func (r *rebuilder) damaged(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Damage = append(r.report.Damage, fmt.Sprintf(format, args...))
}

// mend rebuilds the damaged or missing partitions of datasets.
func (r *rebuilder) mend(ctx context.Context, names []string) error {
	s, none := r.s, 0
	// Copies are exact, so they come first.
	for _, name := range names {
		p, err := database{s}.load(ctx, name)
		switch {
		case err == nil && p.Version > 0:
			continue
		case err != nil && !errors.Is(err, schema.ErrDataLoss):
			return err
		case err != nil:
			r.damaged("%v", err)
		}
		copied, err := r.backup(ctx, name)
		if err != nil {
			return err
		}
		if copied.Version > 0 {
			if err := r.write(ctx, name, copied.Version, protocol.Merge(name, copied.Rows), "copy"); err != nil {
				return err
			}
			continue
		}
		none++
	}
	// Segments are read only if there is no other source: a little of each.
	if none == 0 && !r.opts.Payloads && len(names) > 0 {
		return nil
	}
	if err := r.readSegments(ctx); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(r.found)) {
		p, err := database{s}.load(ctx, name)
		if err == nil && p.Version > 0 {
			continue
		}
		if err != nil && !errors.Is(err, schema.ErrDataLoss) {
			return err
		}
		// Tags, selections and the original numbers are lost in this case.
		found := r.found[name]
		rows, _ := protocol.Recover(name, found.records, found.at)
		if err := r.write(ctx, name, 0, rows, "records"); err != nil {
			return err
		}
	}
	// Partitions that are still damaged have no source. They are moved away, because no
	// collection runs while a partition cannot be read.
	for _, name := range names {
		if _, err := (database{s}).load(ctx, name); errors.Is(err, schema.ErrDataLoss) {
			if err := r.putAside(ctx, name); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
	}
	return nil
}

// putAside moves an object out of the catalog: it belongs to another program, or is a
// partition that cannot be rebuilt.
func (r *rebuilder) putAside(ctx context.Context, name string) error {
	s := r.s
	data, _, err := s.bucket.Get(ctx, s.key(dirCatalog+name), schema.ObjectVersion{}, maxPartition)
	if err == nil {
		_, _, err = s.bucket.Put(ctx, s.key(dirLost+name), data, object.Condition{})
	}
	if err == nil {
		err = s.bucket.Delete(ctx, s.key(dirCatalog+name))
	}
	if err != nil {
		return fmt.Errorf("move %s of the catalog to %s: %w", name, s.key(dirLost+name), err)
	}
	r.damaged("%s of the catalog is no partition, and no copy or segment knows of a dataset of this name: it is now %s", name,
		s.key(dirLost+name))
	return nil
}

// backup reads the copy of a partition; the zero value if no intact one exists.
func (r *rebuilder) backup(ctx context.Context, name string) (p protocol.Partition, err error) {
	s := r.s
	err = s.again(ctx, func(ctx context.Context) error {
		data, _, err := s.bucket.Get(ctx, s.key(dirBackup+name), schema.ObjectVersion{}, maxPartition)
		if err == nil {
			p, err = decodePartition(name, data)
		}
		return err
	})
	if errors.Is(err, schema.ErrDataLoss) || errors.Is(err, schema.ErrNotFound) {
		r.damaged("the copy of partition %q of the catalog: %v", name, err)
		return protocol.Partition{}, nil
	}
	return p, err
}

// write writes a rebuilt partition and its copy, with a version after that of the copy.
func (r *rebuilder) write(ctx context.Context, name string, after int64, rows map[string][]byte, from string) error {
	s := r.s
	body, err := encodePartition(name, protocol.Partition{Version: after + 1, Rows: rows})
	if err != nil {
		return err
	}
	// The copy is written as well, because the old one may be missing or older.
	for _, dir := range []string{dirCatalog, dirBackup} {
		if _, _, err := s.bucket.Put(ctx, s.key(dir+name), body, object.Condition{}); err != nil {
			return fmt.Errorf("write partition %q of the catalog: %w", name, err)
		}
	}
	snapshots, err := protocol.Snapshots(name, rows)
	if err != nil {
		return err
	}
	r.report.Datasets = append(r.report.Datasets, RebuiltDataset{name, from, len(snapshots)})
	return nil
}

// control rebuilds the control partition if it is damaged or missing. The new epoch is
// after those in the segments' names.
func (r *rebuilder) control(ctx context.Context) error {
	s := r.s
	_, err := database{s}.load(ctx, protocol.Control)
	if errors.Is(err, schema.ErrDataLoss) {
		r.damaged("%v", err)
		if err := s.bucket.Delete(ctx, s.key(dirCatalog+protocol.Control)); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	return protocol.FoundAfter(ctx, database{s}, r.epoch)
}

// segmentsAtOnce is how many segments are read at the same time.
const segmentsAtOnce = 4

// readSegments reads the index of each segment and the records in it, and all blobs if
// Payloads is set. Damage is reported, and does not end it.
func (r *rebuilder) readSegments(ctx context.Context) error {
	r.found = map[string]*foundRecords{}
	r.done.OfSegments, r.done.OfBytes = len(r.sizes), r.bytes
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(segmentsAtOnce)
	for _, name := range slices.Sorted(maps.Keys(r.sizes)) {
		g.Go(func() error {
			err := r.readSegment(ctx, name)
			if errors.Is(err, schema.ErrDataLoss) || errors.Is(err, schema.ErrNotFound) {
				r.damaged("%v", err)
				err = nil
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.done.Segments++
			r.done.Bytes += r.sizes[name]
			if r.opts.Progress != nil {
				r.opts.Progress(r.done)
			}
			return err
		})
	}
	return g.Wait()
}

// readSegment reads one segment.
func (r *rebuilder) readSegment(ctx context.Context, name string) error {
	s, size := r.s, r.sizes[name]
	prefix, number, _ := parseSegmentName(name)
	entries, err := s.readIndex(ctx, prefix, number, size)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.kind != kindRecord && !r.opts.Payloads {
			continue
		}
		// Only records are read unless Payloads is set, so a rebuild reads little of each
		// segment.
		ref := e.ref(prefix, number)
		b, err := database{s}.Read(ctx, ref)
		if err == nil {
			err = ref.Check(b.Bytes())
		}
		if errors.Is(err, schema.ErrDataLoss) {
			r.damaged("segment %s: %v", name, err)
			continue
		} else if err != nil {
			return err
		}
		if e.kind == kindRecord {
			r.note(b.Bytes(), ref)
		}
	}
	return nil
}

// note adds a record to those found of its dataset.
func (r *rebuilder) note(record []byte, ref schema.BlobRef) {
	name := protocol.DatasetOf(record)
	if name == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.found[name] == nil {
		r.found[name] = &foundRecords{}
	}
	f := r.found[name]
	f.records, f.at = append(f.records, record), append(f.at, ref)
}

// readIndex reads the index of a segment of size bytes: first the trailer, then the
// index, with two small requests.
func (s *Store) readIndex(ctx context.Context, prefix schema.ObjectPrefix, number uint32, size int64) ([]entry, error) {
	name, key := segmentName(prefix, number), s.segmentKey(prefix, number)
	if size < headerSize+trailerSize {
		return nil, fmt.Errorf("%w: segment %s has %d bytes", schema.ErrDataLoss, name, size)
	}
	read := func(at int64, b []byte) error {
		return s.again(ctx, func(ctx context.Context) error {
			return s.bucket.Range(ctx, key, schema.ObjectVersion{}, at, b)
		})
	}
	end := make([]byte, trailerSize)
	if err := read(size-trailerSize, end); err != nil {
		return nil, fmt.Errorf("segment %s: %w", name, err)
	}
	t, err := decodeTrailer(end, size, prefix, number)
	if err != nil {
		return nil, err
	}
	at, length := t.index(size)
	index := make([]byte, length)
	if length > 0 {
		if err := read(at, index); err != nil {
			return nil, fmt.Errorf("segment %s: %w", name, err)
		}
	}
	return decodeIndex(index, t, size)
}

// missing reports the snapshots that lack segments.
func (r *rebuilder) missing(ctx context.Context) (err error) {
	r.report.Missing, err = r.s.lacking(ctx, r.sizes)
	return err
}

// lacking returns the snapshots that lack segments. It judges by the names of the
// existing segments, and reads none. A missing segment is noticed if it has a part of the
// manifest, or if the set has a segment with a greater number.
func (s *Store) lacking(ctx context.Context, sizes map[string]int64) ([]MissingSegments, error) {
	list := []MissingSegments{}
	last := map[schema.ObjectPrefix]int64{}
	for name := range sizes {
		prefix, number, _ := parseSegmentName(name)
		last[prefix] = max(last[prefix], int64(number))
	}
	names, err := database{s}.Partitions(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if name == protocol.Control {
			continue
		}
		p, err := database{s}.Load(ctx, name)
		if err != nil {
			return nil, err
		}
		snaps, err := protocol.Snapshots(name, p.Rows)
		if err != nil {
			return nil, err
		}
		for number, snap := range snaps {
			var lacks []string
			note := func(prefix schema.ObjectPrefix, n uint32) {
				if seg := segmentName(prefix, n); sizes[seg] == 0 && !slices.Contains(lacks, seg) {
					lacks = append(lacks, seg)
				}
			}
			// The record, the manifest's chunks, and each set from 0 to its greatest
			// existing number must be there.
			if snap.Record != nil {
				a, _ := s.address(*snap.Record)
				note(a.Prefix, a.Object)
			}
			for i := range snap.Chunks {
				a, _ := s.address(snap.Chunks[i].BlobRef)
				note(a.Prefix, a.Object)
			}
			for _, set := range snap.Sets {
				for n := int64(0); set.Blob == (schema.BlobRef{}) && n <= last[set.Prefix]; n++ {
					note(set.Prefix, uint32(n))
				}
			}
			if len(lacks) > 0 {
				slices.Sort(lacks)
				list = append(list, MissingSegments{name, number, lacks})
			}
		}
	}
	slices.SortFunc(list, func(a, b MissingSegments) int {
		if c := strings.Compare(a.Dataset, b.Dataset); c != 0 {
			return c
		}
		return int(a.Snapshot - b.Snapshot)
	})
	return list, nil
}
