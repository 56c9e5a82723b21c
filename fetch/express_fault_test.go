package fetch_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/fetch"
	"bowstring/schema"
)

// If an expression has no value for a row, the stream follows on_error, with blobs and without.
func TestExpressionsFollowOnError(t *testing.T) {
	st := newStore(t)
	const n = 300
	put(t, st, "d", n)
	e := newEngine(t, st, fetch.Options{})
	// The expression has no value at positions 10 k.
	const text = "60 % (position % 10)"
	wanted := schema.Operators{"made": {Expression: text}, "even": {Expression: text + " == 0"}}
	lost := func(pos int64) bool { return pos%10 == 0 }
	shuffle := &schema.Shuffle{Seed: 9, Epoch: 1}
	for name, columns := range map[string][]string{
		"metadata": {"made", "even", "label"}, "blobs": {"image", "made", "even"},
	} {
		req := schema.Request{Dataset: "d", Columns: columns, Operators: wanted, Batch: 32, Shuffle: shuffle}
		t.Run(name+" null", func(t *testing.T) {
			req.OnError = schema.OnErrorNull
			j := open(t, e, req)
			s := start(t, e, j, ticket(j.Request(), 0))
			defer s.Close()
			rows := 0
			for b := range batches(t, s) {
				rows += len(b.Positions)
				var want []string
				for _, name := range []string{"made", "even"} {
					column(t, b, name, func(a arrow.Array) {
						for row, pos := range b.Positions {
							if a.IsNull(row) != lost(pos) {
								t.Errorf("%s of position %d is %s", name, pos, a.ValueStr(row))
							}
						}
					})
				}
				for _, pos := range b.Positions {
					if lost(pos) {
						want = append(want, fmt.Sprint(pos, " even"), fmt.Sprint(pos, " made"))
					}
				}
				slices.Sort(want)
				checkComputedFaults(t, b, want, false)
			}
			if rows != n {
				t.Errorf("%d rows of %d", rows, n)
			}
		})
		t.Run(name+" skip", func(t *testing.T) {
			req.OnError = schema.OnErrorSkip
			j := open(t, e, req)
			var first []int64
			for range 2 {
				s := start(t, e, j, ticket(j.Request(), 0))
				var all []int64
				faults := 0
				for b := range batches(t, s) {
					all = append(all, b.Positions...)
					faults += len(b.Faults)
					for _, f := range b.Faults {
						if !lost(f.Position) || f.Substitute == nil || lost(*f.Substitute) ||
							!slices.Contains(b.Positions, *f.Substitute) {
							t.Errorf("fault %+v of a batch of %v", f, b.Positions)
						}
					}
					column(t, b, "made", func(a arrow.Array) {
						for row, pos := range b.Positions {
							if lost(pos) || a.IsNull(row) || a.(*array.Int64).Value(row) != 60%(pos%10) {
								t.Errorf("made of position %d is %s", pos, a.ValueStr(row))
							}
						}
					})
				}
				s.Close()
				if len(all) != n || faults != 2*n/10 {
					t.Errorf("%d rows and %d faults of %d", len(all), faults, n)
				}
				if first != nil && !slices.Equal(first, all) {
					t.Error("served again, the substitutes are others")
				}
				first = all
			}
		})
		t.Run(name+" fail", func(t *testing.T) {
			req.OnError = ""
			j := open(t, e, req)
			s := start(t, e, j, ticket(j.Request(), 0))
			defer s.Close()
			_, err := s.Next()
			for _, part := range []string{"(position ", "of d@1)", `column "`, ".expression:1:4: runtime error: integer divide by zero"} {
				if !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), part) {
					t.Errorf("%v; want %q", err, part)
				}
			}
		})
	}
	t.Run("no row has a value", func(t *testing.T) {
		req := schema.Request{Dataset: "d", Columns: []string{"none"}, OnError: schema.OnErrorSkip,
			Operators: schema.Operators{"none": {Expression: "1 % (position * 0)"}}}
		j := open(t, e, req)
		s := start(t, e, j, ticket(j.Request(), 0))
		defer s.Close()
		if _, err := s.Next(); !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), "no substitute") {
			t.Error(err)
		}
	})
	t.Run("a lost blob beside", func(t *testing.T) {
		req := schema.Request{Dataset: "d", Columns: []string{"image", "made"}, OnError: schema.OnErrorSkip, Batch: 30,
			Operators: schema.Operators{"made": {Expression: text}}}
		j := open(t, e, req)
		st.inject(faulty(t, j, false, 5, 20, 33))
		defer st.inject(nil)
		s := start(t, e, j, ticket(j.Request(), 0))
		defer s.Close()
		var computed []int64
		for b := range batches(t, s) {
			for _, f := range b.Faults {
				computed = append(computed, f.Position)
				if f.Substitute == nil || lost(*f.Substitute) || slices.Contains([]int64{5, 20, 33}, *f.Substitute) {
					t.Errorf("fault %+v", f)
				}
			}
		}
		slices.Sort(computed)
		want := []int64{5, 33}
		for pos := int64(0); pos < n; pos += 10 {
			want = append(want, pos) // that of 20 is its blob
		}
		slices.Sort(want)
		if !slices.Equal(computed, want) {
			t.Errorf("faults of %v, want %v", computed, want)
		}
	})
}

// checkComputedFaults compares the faults of a batch, sorted, as position and column.
func checkComputedFaults(t *testing.T, b *fetch.Batch, want []string, substituted bool) {
	t.Helper()
	var got []string
	for _, f := range b.Faults {
		got = append(got, fmt.Sprint(f.Position, " ", f.Column))
		if f.ID != schema.FormatID(sampleID("d", int(f.Position))) || (f.Substitute != nil) != substituted ||
			!strings.Contains(f.Cause, "operators."+f.Column+".expression:1:4: runtime error: integer divide by zero") ||
			strings.Contains(f.Cause, "\n") {
			t.Errorf("fault %+v", f)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("faults %v, want %v", got, want)
	}
}
