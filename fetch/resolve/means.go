package resolve

import (
	"context"
	"fmt"
	"math/big"
	"sync/atomic"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch/plan"
	"bowstring/schema"
)

// means sets the mean of each source: that of the column by which the mixture's weights
// are, over the selected samples. If the weights are by samples, it does nothing.
func (rv *Resolver) means(ctx context.Context, sources []source, req schema.Request) error {
	m := req.Mixture
	if m == nil || m.By == "" || m.By == schema.BySamples {
		return nil
	}
	return each(ctx, sources, func(ctx context.Context, s *source) error {
		n := s.selection.Len()
		if n == 0 {
			return nil // it can have no weight
		}
		sum, err := rv.sumOf(ctx, s, m.By)
		if err != nil {
			return err
		}
		if sum == 0 {
			return &schema.FieldError{Field: "mixture.by", Got: fmt.Sprintf("%q, of which the %d samples have nothing", m.By, n),
				Want: "a column of numbers above 0"}
		}
		s.mean = big.NewRat(sum, n)
		return nil
	})
}

// sumOf adds up a column over the selected samples of a source. The values are whole
// numbers, so that the sum does not depend on the order of addition. Null and negative
// values count as 0, and values of 2^32 or more as 2^32-1. The sum is cached for all jobs
// that select the same samples.
func (rv *Resolver) sumOf(ctx context.Context, s *source, name string) (int64, error) {
	snap, sees := s.snapshot.manifest.Snapshot(), s.asks.Within
	ordinal, blob, err := summed(snap, sees, name)
	if err != nil {
		return 0, err
	}
	if !blob {
		if ordinal, err = s.snapshot.manifest.Form().ColumnIndex(name); err != nil {
			return 0, err
		}
	}
	// The key has everything that determines the sum, and nothing else, so that jobs
	// share it.
	what := schema.Request{Split: s.asks.Split, Where: s.asks.Where, Within: sees}
	key := string(within(what, fmt.Sprintf("sum\x00%t\x00%d\x00%s", blob, ordinal, what.Marshal())))
	r, err := rv.derive(ctx, s.snapshot.key, key, s.snapshot, func(ctx context.Context) (*result, error) {
		var total atomic.Int64
		selection := s.selection
		need := func(start int64, run *schema.Chunk) bool { return selection.CountIn(start, start+run.Rows) > 0 }
		visit := func(ctx context.Context, start int64, p *schema.Page) error {
			return rv.turn(ctx, func() error {
				return schema.Guard(func() error {
					n, err := sumPage(p, ordinal, blob, start, selection)
					total.Add(n)
					return err
				})
			})
		}
		if err := s.snapshot.manifest.Walk(ctx, 0, s.snapshot.manifest.Rows(), need, visit); err != nil {
			return nil, fmt.Errorf("adding up column %q of snapshot %s: %w", name, s.snapshot.key, err)
		}
		return &result{sum: total.Load()}, nil
	})
	if err != nil {
		return 0, err
	}
	defer r.Release()
	return r.sum, nil
}

// summed finds a column that can be added up: a column of integers, or the size of a blob
// column. For the latter, blob is true and ordinal is that of the blob column.
func summed(snap *schema.Snapshot, within *schema.Restriction, name string) (ordinal int, blob bool, err error) {
	var have []string
	for _, f := range schema.MetaFields(snap.Schema) {
		if !arrow.IsInteger(f.Type.ID()) || within.Hides(snap.Schema, f.Name) {
			continue
		}
		if f.Name == name {
			return 0, false, nil
		}
		have = append(have, f.Name)
	}
	for i, f := range schema.BlobFields(snap.Schema) {
		if within.Hides(snap.Schema, f.Name) {
			continue
		}
		size := f.Name + "." + schema.SizePart
		if size == name && !snap.Schema.HasField(name) {
			return i, true, nil
		}
		have = append(have, size)
	}
	return 0, false, &schema.FieldError{Field: "mixture.by", Got: schema.Quote(name),
		Want: fmt.Sprintf("%q, or a column of integers or sizes: %s", schema.BySamples, schema.ShownList(have))}
}

// sumPage adds up the column over the selected rows of a page that begins at start.
func sumPage(p *schema.Page, ordinal int, blob bool, start int64, selection plan.Selection) (sum int64, err error) {
	values := make(plan.Lengths, p.Rows())
	if blob {
		for row := range values {
			ref, _ := p.Blob(ordinal, row)
			values[row] = uint32(min(ref.Size, 1<<32-1))
		}
	} else if err := measure(p.Column(ordinal), values); err != nil {
		return 0, err
	}
	for row, v := range values {
		if _, ok := selection.Index(start + int64(row)); ok {
			sum += int64(v)
		}
	}
	return sum, nil
}
