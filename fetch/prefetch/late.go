package prefetch

import (
	"context"

	"bowstring/schema"
	"bowstring/spill"
)

// Serving says how a stream is served.
type Serving struct {
	// CheckedLate lets the stream hand out blobs that were not compared with their references: [schema.Buffer] says
	// which. The consumer copies each, compares the copy, and asks [Batch.Again] for what is wrong. So a byte is read
	// from memory once, and those that were checked are those that are delivered. Blobs in mapped files alone come so,
	// and only where the request has a sample that cannot be read end the stream: a batch that is put together has no
	// place for a substitute.
	CheckedLate bool
	// Unrecorded keeps the stream off the record: it only looks at data.
	Unrecorded bool
}

// Again reads the blob of a row once more, compares it, and returns it for the caller to release: what it was handed
// out as has proved wrong, or unreadable. It is found in the tiers, so that one with a wrong copy forgets it and the
// next is asked. The error names the sample.
func (b *Batch) Again(ctx context.Context, row int, ref schema.BlobRef) (schema.Blob, error) {
	s := b.hold.stream
	pos := b.Positions[row]
	blob, err := s.set.opts.Reader.GetAt(ctx, ref, spill.Place{Dataset: s.dataset, Tenant: s.payer, Position: pos})
	if err == nil {
		return blob, nil
	}
	if ctx.Err() != nil {
		return schema.Blob{}, context.Cause(ctx)
	}
	column := 0
	for c := range s.columns {
		if own, ok, err := b.rows[row].TryBlob(s.columns[c].ordinal); err == nil && ok && own == ref {
			column = c
		}
	}
	err = s.sampleError(pos, b.rows[row], s.columns[column].name, err)
	s.fail(err)
	return schema.Blob{}, err
}
