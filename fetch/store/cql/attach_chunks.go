package cql

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// take adds an interval's rows to the chunks of their splits.
func (a *attachment) take(ctx context.Context, iv *interval, done float64) error {
	var names *array.String
	meta := iv.meta
	if a.splitAt >= 0 {
		names = meta.Column(a.splitAt).(*array.String)
	}
	if a.splitOnly {
		fields := slices.Delete(slices.Clone(meta.Schema().Fields()), a.splitAt, a.splitAt+1)
		columns := slices.Delete(slices.Clone(meta.Columns()), a.splitAt, a.splitAt+1)
		meta = array.NewRecord(arrow.NewSchema(fields, nil), columns, meta.NumRows())
		defer meta.Release()
	}
	skipped := int64(0)
	for row, id := range iv.ids {
		if a.known.has(id) {
			skipped++
			for _, ref := range iv.blobs[row] {
				if ref != nil {
					iv.bytes -= ref.Size
				}
			}
			continue
		}
		split := a.opts.Split
		if names != nil && names.IsValid(row) {
			split = names.Value(row)
		}
		sp, err := a.split(split)
		if err != nil {
			return err
		}
		if err := sp.builder.Append(id, meta, row, iv.blobs[row]); err != nil {
			return err
		}
		sp.rows++
		if sp.builder.Full(schema.PageRows) {
			if err := a.flushPage(ctx, sp); err != nil {
				return err
			}
		}
		if sp.pages.Len() == schema.ChunkPages {
			if err := a.flush(ctx, sp); err != nil {
				return err
			}
		}
	}
	a.report.Rows += int64(len(iv.ids)) - skipped
	a.report.Skipped += skipped
	a.report.Bytes += iv.bytes
	a.report.NoMetadata += iv.noMetadata
	a.report.NoSample += iv.noSample
	a.report.Done = done
	if a.opts.Progress != nil {
		a.opts.Progress(a.report)
	}
	return nil
}

func (a *attachment) split(name string) (*splitBuilder, error) {
	for _, sp := range a.splits {
		if sp.name == name {
			return sp, nil
		}
	}
	if name != "" {
		if err := schema.CheckName("split", name); err != nil {
			return nil, err
		}
	}
	const most = 256
	if len(a.splits) == most {
		return nil, bad("split column", a.opts.SplitColumn, fmt.Sprintf("a column of at most %d values", most))
	}
	sp := &splitBuilder{name: name, builder: schema.NewChunkBuilder(memory.DefaultAllocator, a.schema)}
	a.splits = append(a.splits, sp)
	return sp, nil
}

// flush stores a chunk of a split.
func (a *attachment) flush(ctx context.Context, sp *splitBuilder) error {
	if err := a.flushPage(ctx, sp); err != nil || sp.pages.Len() == 0 {
		return err
	}
	data, chunk := sp.pages.Finish()
	if data != nil {
		var err error
		if chunk.BlobRef, err = a.in.Put(ctx, data); err != nil {
			return err
		}
	}
	sp.chunks = append(sp.chunks, chunk)
	return nil
}

// flushPage stores a page of a split.
func (a *attachment) flushPage(ctx context.Context, sp *splitBuilder) error {
	if sp.builder.Rows() == 0 {
		return nil
	}
	data, page, err := sp.builder.Finish()
	if err != nil {
		return err
	}
	if page.BlobRef, err = a.in.Put(ctx, data); err != nil {
		return err
	}
	sp.pages.Add(page)
	return nil
}

// snapshot puts the splits one after the other.
func (a *attachment) snapshot(ctx context.Context, parent *schema.Snapshot) (*schema.Snapshot, error) {
	source := "table " + a.opts.Data
	if a.opts.Metadata != "" {
		source += " with " + a.opts.Metadata
	}
	snap := &schema.Snapshot{Source: source, Schema: a.schema}
	if parent != nil {
		snap.Parent = parent.Number
		if a.opts.Append {
			snap.Splits, snap.Chunks = slices.Clone(parent.Splits), slices.Clone(parent.Chunks)
		}
	}
	slices.SortFunc(a.splits, func(x, y *splitBuilder) int { return strings.Compare(x.name, y.name) })
	at := snap.Rows()
	for _, sp := range a.splits {
		if err := a.flush(ctx, sp); err != nil {
			return nil, err
		}
		snap.Chunks = append(snap.Chunks, sp.chunks...)
		rows := schema.Range{Start: at, End: at + sp.rows}
		at = rows.End
		if sp.name == "" {
			continue
		}
		i := slices.IndexFunc(snap.Splits, func(s schema.Split) bool { return s.Name == sp.name })
		if i < 0 {
			snap.Splits = append(snap.Splits, schema.Split{Name: sp.name, Ranges: []schema.Range{rows}})
			continue
		}
		ranges := slices.Clone(snap.Splits[i].Ranges)
		if last := &ranges[len(ranges)-1]; last.End == rows.Start {
			last.End = rows.End
		} else {
			ranges = append(ranges, rows)
		}
		snap.Splits[i].Ranges = ranges
	}
	return snap, nil
}
