package cql

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/gocql/gocql"
	"golang.org/x/sync/errgroup"

	"bowstring/schema"
)

// interval is what was scanned between two tokens.
type interval struct {
	ids        []schema.ID
	meta       arrow.Record        // of metaSchema
	blobs      [][]*schema.BlobRef // [row][blob column]
	bytes      int64
	noMetadata int64
	noSample   int64
}

// scan reads the tables, several intervals at once, and takes in what they
// hold in the order of the intervals.
func (a *attachment) scan(ctx context.Context) error {
	ranges := ring(a.opts.ranges)
	g, ctx := errgroup.WithContext(ctx)
	// One waits here for each worker at most, besides those being scanned.
	queue := make(chan chan *interval, a.opts.Workers)
	g.Go(func() error {
		defer close(queue)
		workers, ctx := errgroup.WithContext(ctx)
		workers.SetLimit(a.opts.Workers)
		for _, r := range ranges {
			out := make(chan *interval, 1)
			select {
			case queue <- out:
			case <-ctx.Done():
				return errors.Join(workers.Wait(), context.Cause(ctx))
			}
			workers.Go(func() error {
				defer close(out)
				iv, err := a.scanInterval(ctx, r)
				if err == nil {
					out <- iv
				}
				return err
			})
		}
		return workers.Wait()
	})
	g.Go(func() error {
		n := 0
		for out := range queue {
			iv, ok := <-out
			if !ok {
				break // the scan's own error says why
			}
			n++
			err := a.take(ctx, iv, float64(n)/float64(len(ranges)))
			iv.meta.Release()
			if err != nil {
				return err
			}
		}
		for out := range queue { // what came after a failure
			if iv, ok := <-out; ok {
				iv.meta.Release()
			}
		}
		return nil
	})
	return g.Wait()
}

func (src *source) query(r pair, page int) *gocql.Query {
	names := []string{identifier(src.id)}
	for _, c := range src.columns {
		names = append(names, identifier(c.name))
	}
	id := identifier(src.id)
	stmt := fmt.Sprintf("SELECT %s FROM %s.%s WHERE token(%s) > ? AND token(%s) <= ?",
		strings.Join(names, ", "), identifier(src.keyspace), identifier(src.table), id, id)
	return src.session.Query(stmt, r.start, r.end).PageSize(page)
}

// scanInterval reads one interval of both tables.
func (a *attachment) scanInterval(ctx context.Context, r pair) (*interval, error) {
	meta, err := a.scanMetadata(ctx, r)
	if err != nil {
		return nil, err
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, a.metaSchema)
	defer b.Release()
	iv := &interval{}
	var id gocql.UUID
	dest := []any{&id}
	var cells []*digest
	for _, c := range a.data.columns {
		if c.table != nil {
			d := &digest{table: c.table}
			cells = append(cells, d)
			dest = append(dest, d)
		} else {
			dest = append(dest, c.kind.dest())
		}
	}
	page := 8 // until it is known how large rows are
	if mean := a.meanRow.Load(); mean > 0 {
		page = int(min(max(attachPage/mean, 1), rowsAtOnce))
	}
	iter := a.data.query(r, page).WithContext(ctx).Consistency(foreignLevel).Iter()
	host := iter.Host()
	for iter.Scan(dest...) {
		iv.ids = append(iv.ids, schema.ID(id))
		col := 0
		for i, c := range a.data.columns {
			if c.table == nil {
				c.kind.put(b.Field(col), dest[i+1])
				col++
			}
		}
		row, found := meta[id]
		delete(meta, id)
		if !found && a.opts.Metadata != "" {
			iv.noMetadata++
		}
		for i, c := range a.meta.columns {
			if found {
				c.kind.put(b.Field(col), row[i])
			} else {
				b.Field(col).AppendNull()
			}
			col++
		}
		refs := make([]*schema.BlobRef, len(cells))
		for i, d := range cells {
			if ref, ok := d.ref(schema.ID(id)); ok {
				refs[i] = &ref
				iv.bytes += ref.Size
			}
		}
		iv.blobs = append(iv.blobs, refs)
	}
	if err := iter.Close(); err != nil {
		return nil, a.s.fault(ctx, err, host, a.opts.Data, "scan")
	}
	if n := int64(len(iv.ids)); n > 0 {
		a.meanRow.Store(iv.bytes/n + 1)
	}
	iv.noSample = int64(len(meta))
	rec := b.NewRecord()
	defer rec.Release()
	// A record without columns would not know how many rows it has.
	iv.meta = array.NewRecord(a.metaSchema, rec.Columns(), int64(len(iv.ids)))
	return iv, nil
}

// scanMetadata reads one interval of the metadata table.
func (a *attachment) scanMetadata(ctx context.Context, r pair) (map[gocql.UUID][]any, error) {
	if a.opts.Metadata == "" {
		return nil, nil
	}
	rows := map[gocql.UUID][]any{}
	iter := a.meta.query(r, rowsAtOnce).WithContext(ctx).Consistency(foreignLevel).Iter()
	host := iter.Host()
	for {
		var id gocql.UUID
		dest := []any{&id}
		for _, c := range a.meta.columns {
			dest = append(dest, c.kind.dest())
		}
		if !iter.Scan(dest...) {
			break
		}
		rows[id] = dest[1:]
	}
	if err := iter.Close(); err != nil {
		return nil, a.s.fault(ctx, err, host, a.opts.Metadata, "scan")
	}
	return rows, nil
}

// digest receives a cell and keeps its size and checksum alone.
type digest struct {
	table *foreignTable
	size  int64
	sum   schema.Sum
	null  bool
}

// UnmarshalCQL implements gocql.Unmarshaler.
func (d *digest) UnmarshalCQL(_ gocql.TypeInfo, data []byte) error {
	d.null, d.size, d.sum = data == nil, int64(len(data)), schema.Checksum(data)
	return nil
}

func (d *digest) ref(id schema.ID) (schema.BlobRef, bool) {
	return schema.BlobRef{Key: d.table.key(id, d.sum), Size: d.size, Sum: d.sum}, !d.null
}
