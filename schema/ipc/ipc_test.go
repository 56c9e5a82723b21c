package ipc

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	arrowipc "github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"
)

var limits = SchemaLimits{Bytes: 1 << 20, Tables: 1000, Depth: 8, Dictionaries: 1}

// options have no memory beyond most bytes.
func options(most int64) Options {
	counted := &counter{most: most}
	return Options{MaxBatchRows: 1000, MaxMessageBytes: 1 << 16, Memory: counted, Kept: counted,
		Work: func(f func() error) error { return f() }}
}

var errFull = errors.New("no more memory")

type counter struct{ used, most int64 }

func (c *counter) Grow(n int64) error {
	if c.used += n; n < 0 || c.used > c.most {
		return errFull
	}
	return nil
}

func (c *counter) Shrink(n int64) { c.used -= n }

// sample is a record of columns of all kinds.
func sample(tb testing.TB) arrow.Record {
	tb.Helper()
	s := arrow.NewSchema([]arrow.Field{
		{Name: "n", Type: arrow.PrimitiveTypes.Int64},
		{Name: "flag", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
		{Name: "text", Type: arrow.BinaryTypes.LargeString, Nullable: true},
		{Name: "kind", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8,
			ValueType: arrow.BinaryTypes.String}, Nullable: true},
		{Name: "list", Type: arrow.ListOf(arrow.PrimitiveTypes.Float32), Nullable: true},
		{Name: "box", Type: arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int16), Nullable: true},
		{Name: "pair", Type: arrow.StructOf(arrow.Field{Name: "a", Type: arrow.BinaryTypes.Binary, Nullable: true}),
			Nullable: true},
	}, nil)
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, s, strings.NewReader(`[
		{"n": 1, "flag": true, "text": "one", "kind": "cat", "list": [1, 2], "box": [1, 2], "pair": {"a": "eA=="}},
		{"n": 2, "flag": null, "text": null, "kind": null, "list": null, "box": null, "pair": null},
		{"n": 3, "flag": false, "text": "", "kind": "dog", "list": [], "box": [3, 4], "pair": {"a": null}}]`))
	if err != nil {
		tb.Fatal(err)
	}
	return rec
}

// message is one as the library writes it.
type message struct{ header, body []byte }

type collected []message

func (*collected) Start() error { return nil }
func (*collected) Close() error { return nil }
func (c *collected) WritePayload(p arrowipc.Payload) error {
	meta := p.Meta()
	defer meta.Release()
	var body bytes.Buffer
	if err := p.SerializeBody(&body); err != nil {
		return err
	}
	*c = append(*c, message{bytes.Clone(meta.Bytes()), body.Bytes()})
	return nil
}

// written are the messages of records: the schema first.
func written(tb testing.TB, opts []arrowipc.Option, records ...arrow.Record) []message {
	tb.Helper()
	var list collected
	w := arrowipc.NewWriterWithPayloadWriter(&list, append(opts, arrowipc.WithSchema(records[0].Schema()))...)
	for _, rec := range records {
		if err := w.Write(rec); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return list
}

// reading reads a schema's message.
func reading(tb testing.TB, m message, o Options) *Reader {
	tb.Helper()
	s, ids, err := DecodeSchema(m.header, limits, Unbounded{})
	if err != nil {
		tb.Fatal(err)
	}
	r, err := NewReader(s, ids, o)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// Output of the library is read correctly, plain and compressed, and at an odd address.
func TestReadsWhatTheLibraryWrites(t *testing.T) {
	rec := sample(t)
	defer rec.Release()
	for name, opts := range map[string][]arrowipc.Option{"plain": nil, "zstd": {arrowipc.WithZstd()},
		"lz4": {arrowipc.WithLZ4()}} {
		t.Run(name, func(t *testing.T) {
			messages := written(t, opts, rec, rec)
			r := reading(t, messages[0], options(1<<20))
			batches := 0
			for _, m := range messages[1:] {
				shifted := append(make([]byte, 3, 3+len(m.body)), m.body...)[3:]
				b, err := r.Read(m.header, shifted)
				if err != nil {
					t.Fatal(err)
				}
				if b == nil {
					continue
				}
				batches++
				if got := array.NewRecord(rec.Schema(), b.Columns, int64(b.Rows)); !array.RecordEqual(got, rec) {
					t.Errorf("%v\nwant\n%v", got, rec)
				}
			}
			if batches != 2 {
				t.Errorf("%d batches were read", batches)
			}
		})
	}
}

// A stream of bytes begins as the library's does, and what is written here is read here.
func TestStreamsOfBytes(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}}, nil)
	var want bytes.Buffer
	if err := arrowipc.NewWriter(&want, arrowipc.WithSchema(s)).Close(); err != nil {
		t.Fatal(err)
	}
	head, err := EncodeSchema(s)
	if err != nil {
		t.Fatal(err)
	}
	b := AppendMessage(nil, head, 8)
	if !bytes.Equal(append(b, EndOfStream...), want.Bytes()) {
		t.Errorf("the stream is\n%q\nwant\n%q", b, want.Bytes())
	}
	body := make([]byte, 64)
	body[8] = 7
	header := EncodeBatch(flatbuffers.NewBuilder(0), 2, [][2]int64{{2, 0}}, [][2]int64{{0, 0}, {0, 16}}, 64)
	b = append(AppendMessage(b, header, 64), body...)
	first, rest, err := NextMessage(b)
	if err != nil || len(first) < len(head) {
		t.Fatalf("a header of %d bytes, want %d: %v", len(first), len(head), err)
	}
	header, rest, err = NextMessage(rest)
	if err != nil || (len(b)-len(rest))%64 != 0 {
		t.Fatalf("the body begins at %d: %v", len(b)-len(rest), err)
	}
	got, err := reading(t, message{header: first}, options(1<<20)).Read(header, rest)
	if err != nil {
		t.Fatal(err)
	}
	if n := got.Columns[0].(*array.Int64); n.Len() != 2 || n.Value(1) != 7 {
		t.Errorf("read %v", n)
	}
	for cut := range b[:len(b)-len(rest)] {
		if _, _, err := NextMessage(b[:min(cut, 7)]); err == nil {
			t.Fatalf("%d bytes are a message", cut)
		}
	}
}

// Limits are named, and beyond them nothing is made.
func TestLimits(t *testing.T) {
	rec := sample(t)
	defer rec.Release()
	messages := written(t, nil, rec)
	for name, c := range map[string]struct {
		change func(*SchemaLimits)
		limit  bool
	}{
		"bytes":        {func(l *SchemaLimits) { l.Bytes = 100 }, true},
		"tables":       {func(l *SchemaLimits) { l.Tables = 5 }, false},
		"depth":        {func(l *SchemaLimits) { l.Depth = 0 }, false},
		"dictionaries": {func(l *SchemaLimits) { l.Dictionaries = 0 }, false},
	} {
		l := limits
		c.change(&l)
		_, _, err := DecodeSchema(messages[0].header, l, Unbounded{})
		if wrong, ok := errors.AsType[*Error](err); !ok || wrong.Limit != c.limit {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := DecodeSchema(messages[0].header, limits, &counter{}); !errors.Is(err, errFull) {
		t.Errorf("a schema without memory: %v", err)
	}
	few := options(1 << 20)
	few.MaxBatchRows = 2
	last := messages[len(messages)-1]
	_, err := reading(t, messages[0], few).Read(last.header, last.body)
	if wrong, ok := errors.AsType[*Error](err); !ok || !wrong.Limit {
		t.Errorf("3 rows of 2: %v", err)
	}
	zipped := written(t, []arrowipc.Option{arrowipc.WithZstd()}, rec)
	r := reading(t, zipped[0], options(0))
	for _, m := range zipped[1:] {
		if _, err = r.Read(m.header, m.body); err != nil {
			break
		}
	}
	if !errors.Is(err, errFull) {
		t.Errorf("decompressing without memory: %v", err)
	}
}

// A wrong count of nulls is put right, or is an error.
func TestNulls(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int8, Nullable: true}}, nil)
	schema, err := EncodeSchema(s)
	if err != nil {
		t.Fatal(err)
	}
	body := make([]byte, 16)
	body[0] = 1 // one of three is there
	header := EncodeBatch(flatbuffers.NewBuilder(0), 3, [][2]int64{{3, 1}}, [][2]int64{{0, 1}, {8, 3}}, 16)
	for _, strict := range []bool{false, true} {
		o := options(math.MaxInt64)
		o.Strict = strict
		b, err := reading(t, message{header: schema}, o).Read(header, body)
		if strict == (err == nil) || !strict && b.Columns[0].NullN() != 2 {
			t.Errorf("strict is %t: %v, %v", strict, b, err)
		}
	}
}

// FuzzRead reads broken messages: nothing panics or reads outside of them, and errors say what is wrong.
func FuzzRead(f *testing.F) {
	rec := sample(f)
	defer rec.Release()
	for _, opts := range [][]arrowipc.Option{nil, {arrowipc.WithZstd()}, {arrowipc.WithLZ4()}} {
		m := written(f, opts, rec)
		f.Add(m[0].header, m[1].header, m[1].body, m[2].header, m[2].body)
	}
	f.Fuzz(func(t *testing.T, schema, one, oneBody, two, twoBody []byte) {
		refused := func(err error) bool {
			if _, ok := errors.AsType[*Error](err); err != nil && !ok && !errors.Is(err, errFull) {
				t.Errorf("refused with %v", err)
			}
			return err != nil
		}
		s, ids, err := DecodeSchema(schema, limits, &counter{most: 1 << 24})
		if refused(err) {
			return
		}
		r, err := NewReader(s, ids, options(1<<20))
		if refused(err) {
			return
		}
		for _, m := range []message{{one, oneBody}, {two, twoBody}} {
			b, err := r.Read(m.header, m.body)
			if refused(err) {
				return
			}
			if b == nil {
				continue
			}
			for _, c := range b.Columns {
				_ = c.String() // touches every value
			}
		}
	})
}
