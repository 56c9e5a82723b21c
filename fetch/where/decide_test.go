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
	"github.com/apache/arrow/go/v17/arrow/decimal128"
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

// decideSchema is testSchema without the column that hides the function date.
func decideSchema(t *testing.T) *arrow.Schema {
	s := testSchema(t)
	var fields []arrow.Field
	for _, f := range s.Fields() {
		if f.Name != "date" {
			fields = append(fields, f)
		}
	}
	return arrow.NewSchema(fields, nil)
}

// oddSchema is decideSchema with times that do not fit into a time.Time, and a field that is null only where its
// struct is.
func oddSchema(t *testing.T) *arrow.Schema {
	fields := decideSchema(t).Fields()
	return arrow.NewSchema(slices.Insert(slices.Clone(fields), len(fields)-1,
		arrow.Field{Name: "when", Type: arrow.FixedWidthTypes.Timestamp_s, Nullable: true},
		arrow.Field{Name: "pt", Type: arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Int32}),
			Nullable: true},
	), nil)
}

// filler fills columns of a page with values near to each other, or odd ones.
type filler struct {
	*rand.Rand
	center int
	nulls  int // of ten
	odd    int // of ten
}

var oddFloats = []float64{math.NaN(), math.Copysign(0, -1), 0, math.Inf(1), math.Inf(-1), math.MaxFloat32}

var oddTexts = []string{
	"", "\xff", strings.Repeat("\xff", 40), "train/" + strings.Repeat("x", 40), "train/" + strings.Repeat("x", 41),
	"train/" + strings.Repeat("x", 25) + "\xff\xff",
	"train/" + strings.Repeat("x", 30) + "é",
}

func (f *filler) int() int64 { return int64(f.center + f.IntN(4)) }

func (f *filler) text() string {
	if f.IntN(10) < f.odd {
		return oddTexts[f.IntN(len(oddTexts))]
	}
	return fmt.Sprintf("train/%d/%s", f.int(), strings.Repeat("y", f.IntN(40)))
}

func (f *filler) oddInt(normal int64, odd ...int64) int64 {
	if f.IntN(10) < f.odd {
		return odd[f.IntN(len(odd))]
	}
	return normal
}

func (f *filler) fill(b array.Builder, nullable bool) {
	if nullable && f.IntN(10) < f.nulls {
		b.AppendNull()
		return
	}
	switch b := b.(type) {
	case *array.Int64Builder:
		b.Append(f.oddInt(f.int(), math.MinInt64, math.MaxInt64, 1<<53, 1<<53+1))
	case *array.Int32Builder:
		b.Append(int32(f.oddInt(f.int(), math.MinInt32, math.MaxInt32)))
	case *array.Int16Builder:
		b.Append(int16(f.oddInt(f.int(), math.MinInt16, math.MaxInt16)))
	case *array.Int8Builder:
		b.Append(int8(f.oddInt(f.int(), -128, 127)))
	case *array.Uint16Builder:
		b.Append(uint16(f.oddInt(max(f.int(), 0), 0, 65535)))
	case *array.Uint64Builder:
		b.Append(uint64(f.oddInt(max(f.int(), 0), 0, -1, math.MaxInt64, math.MinInt64)))
	case *array.Float32Builder:
		if f.IntN(10) < f.odd {
			b.Append(float32(oddFloats[f.IntN(len(oddFloats))]))
		} else {
			b.Append(float32(f.int()) / 2)
		}
	case *array.Float64Builder:
		b.Append(float64(f.int()))
	case *array.Decimal128Builder:
		b.Append(decimal128.FromI64(f.oddInt(25*f.int(), 9999999999, -9999999999)))
	case *array.BooleanBuilder:
		b.Append(f.IntN(4) < f.center%5)
	case *array.StringBuilder:
		b.Append(f.text())
	case *array.BinaryBuilder:
		b.Append([]byte(f.text()))
	case *array.TimestampBuilder:
		b.Append(arrow.Timestamp(f.oddInt(86_400_000*f.int(), -1, 1, math.MaxInt64, math.MinInt64)))
	case *array.Date32Builder:
		b.Append(arrow.Date32(f.oddInt(f.int(), -1, math.MaxInt32, math.MinInt32)))
	case *array.DurationBuilder:
		b.Append(arrow.Duration(f.oddInt(f.int(), -1, math.MaxInt64, 1<<35)))
	case *array.ListBuilder:
		b.Append(true)
		for range f.IntN(3) {
			f.fill(b.ValueBuilder(), true)
		}
	case *array.FixedSizeListBuilder:
		b.Append(true)
		for range 2 {
			f.fill(b.ValueBuilder(), true)
		}
	case *array.StructBuilder:
		b.Append(true)
		for i := range b.NumField() {
			f.fill(b.FieldBuilder(i), b.Type().(*arrow.StructType).Field(i).Nullable)
		}
	default:
		panic(fmt.Sprintf("%T", b))
	}
}

func (f *filler) record(s *arrow.Schema, n int) arrow.Record {
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(schema.MetaFields(s), nil))
	defer b.Release()
	f.center, f.nulls, f.odd = f.IntN(12)-2, []int{0, 2, 10}[f.IntN(3)], []int{0, 0, 0, 2, 10}[f.IntN(5)]
	for i, field := range b.Schema().Fields() {
		for range n {
			f.fill(b.Field(i), field.Nullable)
		}
	}
	return b.NewRecord()
}

// expression makes one up.
func (f *filler) expression(depth int) string {
	if depth > 0 {
		switch f.IntN(8) {
		case 0, 1:
			return f.expression(depth-1) + " and " + f.expression(depth-1)
		case 2, 3:
			return "(" + f.expression(depth-1) + " or " + f.expression(depth-1) + ")"
		case 4:
			return "not (" + f.expression(depth-1) + ")"
		case 5:
			return "(" + f.expression(0) + " ? " + f.expression(0) + " : " + f.expression(depth-1) + ")"
		}
	}
	pick := func(of ...string) string { return of[f.IntN(len(of))] }
	number := func() string { return fmt.Sprint(f.IntN(14) - 3) }
	compare := func() string { return pick(" < ", " <= ", " > ", " >= ", " == ", " != ") }
	whole := pick("label", "width", "height", "big", `$env["odd name"]`, "box.w", "image.size", "position", "box?.w",
		"pt.x")
	numeric := pick(whole, "score", "price", "score", "vec[0]")
	text := pick("file_name", "raw", "box.tag", "split")
	literal := pick(`""`, `"train"`, `"train/`+number()+`"`, `"train/`+number()+`/yy"`,
		`"train/`+strings.Repeat("x", 36)+`"`, `"val"`, `"x"`)
	day := fmt.Sprintf(`date("1970-01-%02d")`, 1+f.IntN(14))
	switch f.IntN(22) {
	case 0, 1, 2, 3:
		return numeric + compare() + number()
	case 4:
		return number() + compare() + numeric
	case 5:
		return numeric + compare() + number() + ".5"
	case 6:
		return whole + pick(" in ", " not in ") + number() + ".." + number()
	case 7:
		return numeric + pick(" in ", " not in ") + "[" + number() + ", " + number() + "]"
	case 8, 9:
		return text + compare() + literal
	case 10:
		return text + pick(" in ", " not in ") + "[" + literal + ", " + literal + "]"
	case 11:
		return text + pick(" startsWith ", " startsWith ", " contains ", " endsWith ", " matches ") + literal
	case 12:
		return pick(numeric, text, "ok", "taken", "box", "tags", "box.w", "boxes", "image.key", "pt", "pt.x",
			"score ?? nil") + pick(" == nil", " != nil")
	case 13:
		return pick("ok", "not ok", "ok == true", "ok != false", "(ok ?? true)")
	case 14:
		return pick("taken", "day", "when") + compare() + day
	case 15:
		return "took" + compare() + `duration("` + number() + `s")`
	case 16:
		return "(" + pick(whole, "score", "score", "price") + " ?? " + pick(number(), "score", "1.5") + ")" +
			compare() + number()
	case 17:
		return numeric + compare() + numeric
	case 18:
		return pick("any", "all", "none") + "(tags, # startsWith " + literal + ")"
	case 19:
		// they may fail
		return pick("12 % height == 0", "tags[0] == "+literal, "width % (height - 3) == 1", "boxes[0].w > 1")
	case 20:
		return whole + " * 2 + 1" + compare() + number() + " * 2"
	}
	return "label" + compare() + pick("9223372036854775807", "9007199254740993", "9007199254740992.0",
		"-9223372036854775807", "big")
}

// What statistics decide is what reading the rows gives, errors included.
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
			e, err := Compile(text, s)
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
		e, err := Compile(expr, s)
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

// Of pages with rows that the caller may not see nothing depends on what these hold.
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
	e, err := Compile("height < 0", s)
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

// Every number of nanoseconds is a time, so statistics of them tell, and keep the order of the times.
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
