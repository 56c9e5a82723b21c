package where

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/plan"
	"bowstring/schema"
)

// paged is a snapshot whose pages are listed, with their statistics.
type paged struct {
	form   *schema.Form
	chunks []schema.Chunk
	pages  []*schema.Page
	blind  bool // its statistics are not shown
	read   int  // pages
}

func (p *paged) Form() *schema.Form { return p.form }

// Walk visits the pages that are needed, in order.
func (p *paged) Walk(ctx context.Context, _, _ int64, need func(int64, *schema.Chunk) bool,
	visit func(ctx context.Context, start int64, p *schema.Page) error) error {
	start := int64(0)
	for i, c := range p.chunks {
		if p.blind || need(start, &c) {
			p.read++
			if err := visit(ctx, start, p.pages[i]); err != nil {
				return err
			}
		}
		start += c.Rows
	}
	return nil
}

// pagedOf makes a snapshot of the records, one a page, whose images have up to 100 bytes, or are null.
func pagedOf(t *testing.T, rng *rand.Rand, s *arrow.Schema, recs ...arrow.Record) *paged {
	t.Helper()
	snap := &schema.Snapshot{Dataset: "test", Number: 1, Schema: s}
	b := schema.NewChunkBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	p, n := &paged{}, int64(0)
	var data [][]byte
	for _, rec := range recs {
		ids, refs := make([]schema.ID, rec.NumRows()), make([]*schema.BlobRef, rec.NumRows())
		size := rng.Int64N(100)
		for i := range ids {
			ids[i] = schema.SampleID("test", fmt.Sprint(n))
			n++
			if rng.IntN(5) > 0 {
				refs[i] = &schema.BlobRef{Size: size + rng.Int64N(3)}
			}
		}
		if err := b.AppendBatch(ids, rec, [][]*schema.BlobRef{refs}); err != nil {
			t.Fatal(err)
		}
		page, c, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		c.BlobRef = schema.RefOf(page)
		p.chunks, data = append(p.chunks, c), append(data, page)
	}
	snap.Chunks = p.chunks
	third := n / 3
	snap.Splits = []schema.Split{{Name: "train", Ranges: []schema.Range{{Start: 0, End: third}}},
		{Name: "val", Ranges: []schema.Range{{Start: third, End: n - third/2}}}}
	var err error
	if p.form, err = schema.NewForm(snap); err != nil {
		t.Fatal(err)
	}
	for i, c := range p.chunks {
		page, err := p.form.OpenPage(c, schema.NewBlob(data[i], nil))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(page.Release)
		p.pages = append(p.pages, page)
	}
	return p
}

// Decisions by statistics agree with reading the rows, errors included.
func TestStatisticsDecideRight(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	s := oddSchema(t)
	f := &filler{Rand: rng}
	read, all, failed, tried := 0, 0, 0, 0
	for range 60 {
		var recs []arrow.Record
		for range 1 + rng.IntN(8) {
			recs = append(recs, f.record(s, 1+rng.IntN(9)))
		}
		p := pagedOf(t, rng, s, recs...)
		for _, rec := range recs {
			rec.Release()
		}
		for range 60 {
			text := f.expression(rng.IntN(4))
			e, err := Compile(t.Context(), text, s, now)
			if err != nil {
				continue // two kinds of values
			}
			tried++
			var within *plan.Bitmap
			if rng.IntN(4) == 0 {
				within = plan.NewBitmap(p.form.Rows())
				for pos := range p.form.Rows() {
					if rng.IntN(5) > 0 || pos < 10 {
						within.Set(pos)
					}
				}
				within.Freeze()
			}
			p.blind = true
			want, wantErr := e.EvalWithin(t.Context(), p, within, now)
			p.blind, p.read = false, 0
			got, gotErr := e.EvalWithin(t.Context(), p, within, now)
			read, all = read+p.read, all+len(p.pages)
			if wantErr != nil {
				failed++
			}
			if fmt.Sprint(wantErr) != fmt.Sprint(gotErr) {
				t.Fatalf("%s: %v; want %v", text, gotErr, wantErr)
			}
			if wantErr == nil && string(got.Bytes()) != string(want.Bytes()) {
				t.Fatalf("%s: %064b; want %064b; %v", text, got.Words(), want.Words(), p.chunks)
			}
		}
	}
	t.Logf("%d expressions, %d of which fail, read %d of %d pages", tried, failed, read, all)
	if read > all*3/4 || tried < 1000 || failed == 0 {
		t.Error("that tests little")
	}
}

// Pages whose statistics decide are not read.
func TestPagesThatAreNotRead(t *testing.T) {
	s := decideSchema(t)
	meta := arrow.NewSchema(schema.MetaFields(s), nil)
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, meta, strings.NewReader(rows))
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	var recs []arrow.Record
	for i := range rec.NumRows() {
		one := rec.NewSlice(i, i+1)
		defer one.Release()
		recs = append(recs, one)
	}
	p := pagedOf(t, rand.New(rand.NewPCG(1, 1)), s, recs...)
	for expr, want := range map[string]int{
		`width == 300`:                      0,
		`not (width > 250)`:                 0,
		`width == nil`:                      0,
		`(width ?? 7) == 7`:                 0,
		`box.w > 6`:                         0,
		`box.tag == nil`:                    0,
		`split == "train" and position < 1`: 0,
		`big > 5`:                           0,
		`price < 1`:                         0,
		`taken >= date("2024-06-01")`:       0,
		`took > duration("30m")`:            0,
		`ok`:                                0,
		`file_name startsWith "a/"`:         0,
		`label in [1, 5] and score != 1.5`:  0,
		`day == date("2024-01-01")`:         0,
		`width > 550 and file_name contains "Zebra"`: 1,
		`file_name contains "Zebra" and width > 550`: 1, // the test of the name cannot fail
		`10 % height == 0 and width > 550`:           6, // that can
		`len(tags) > 1`:                              6,
	} {
		e, err := Compile(t.Context(), expr, s, now)
		if err != nil {
			t.Fatal(err)
		}
		p.read = 0
		if _, err := e.Eval(t.Context(), p, now); err != nil {
			t.Errorf("%s: %v", expr, err)
		}
		if p.read != want {
			t.Errorf("%s: %d pages were read, want %d", expr, p.read, want)
		}
	}
}

// If a page has rows that the caller may not see, no result and no reading depends on
// what they hold.
func TestStatisticsOfHiddenRows(t *testing.T) {
	s := decideSchema(t)
	f := &filler{Rand: rand.New(rand.NewPCG(2, 2))}
	rec := f.record(s, 5)
	defer rec.Release()
	p := pagedOf(t, f.Rand, s, rec, rec, rec)
	within := plan.NewBitmap(15)
	// all but one of the first page, none of the second, all of the third
	for _, pos := range []int64{0, 1, 2, 3, 10, 11, 12, 13, 14} {
		within.Set(pos)
	}
	e, err := Compile(t.Context(), "height < 0", s, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.EvalWithin(t.Context(), p, within.Freeze(), now); err != nil {
		t.Fatal(err)
	}
	if p.read != 1 {
		t.Errorf("%d pages were read, want the first alone", p.read)
	}
}

// Every count of nanoseconds is a time, so their statistics have bounds, in the order of
// the times.
func TestBoundsOfNanoseconds(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	numbers := []int64{math.MinInt64, -1, 0, 1, 1_735_689_600_000_000_000, math.MaxInt64}
	for range 100 {
		numbers = append(numbers, int64(rng.Uint64()))
	}
	slices.Sort(numbers)
	last, _ := integerOf(numbers[0], arrow.FixedWidthTypes.Timestamp_ns)
	for _, n := range numbers {
		v, ok := integerOf(n, arrow.FixedWidthTypes.Timestamp_ns)
		if !ok || v.less(last, kindTime) || !v.t.Equal(arrow.Timestamp(n).ToTime(arrow.Nanosecond)) {
			t.Errorf("%d: %v, %v", n, v.t, ok)
		}
		last = v
	}
}
