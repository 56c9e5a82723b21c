package flight

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"google.golang.org/grpc/codes"

	"bowstring/schema"
)

// token is token j of document i: j follows from it and i.
func token(i, j int) uint16 { return uint16(i*31 + j) }

// documents are rows of documents with the given numbers of tokens.
func documents(lengths []int) arrow.Record {
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{
		{Name: "name", Type: arrow.BinaryTypes.String},
		{Name: "n", Type: arrow.PrimitiveTypes.Int32},
		{Name: "tokens", Type: arrow.ListOf(arrow.PrimitiveTypes.Uint16)},
		{Name: "wrong", Type: arrow.PrimitiveTypes.Int64},
	}, nil))
	defer b.Release()
	for i, n := range lengths {
		b.Field(0).(*array.StringBuilder).Append(fmt.Sprintf("document %05d", i))
		b.Field(1).(*array.Int32Builder).Append(int32(n))
		list := b.Field(2).(*array.ListBuilder)
		list.Append(true)
		for j := range n {
			list.ValueBuilder().(*array.Uint16Builder).Append(token(i, j))
		}
		b.Field(3).(*array.Int64Builder).Append(int64(n - i/400))
	}
	return b.NewRecord()
}

// fillDocuments uploads n documents and returns their lengths. A few are empty, and some
// are long.
func (f *fixture) fillDocuments(dataset string, n, longest int) []int {
	f.t.Helper()
	seed := uint64(time.Now().UnixNano())
	f.t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	lengths := make([]int, n)
	for i := range lengths {
		if r.IntN(40) > 0 {
			lengths[i] = min(1+int(math.Exp(r.NormFloat64()+3)), longest)
		}
	}
	rec := documents(lengths)
	defer rec.Release()
	if _, err := f.put(command(`{"put": {"dataset": %q, "key": "name"}}`, dataset), rec); err != nil {
		f.t.Fatal(err)
	}
	return lengths
}

// sequence is a row of a packed batch.
type sequence struct {
	tokens    []uint16
	ids       []int32
	segments  []int32
	ends      []int32
	positions []int64
	names     []string
}

// packedBatch is a record batch of sequences.
type packedBatch struct {
	about     batchMetadata
	sequences []sequence
}

func packedPart[T any](t *testing.T, rec arrow.Record, name string, row int, values func(arrow.Array) []T) []T {
	t.Helper()
	at := rec.Schema().FieldIndices(name)
	if len(at) != 1 {
		t.Fatalf("no column %q in %s", name, rec.Schema())
	}
	list := rec.Column(at[0]).(array.ListLike)
	from, to := list.ValueOffsets(row)
	return slices.Clone(values(list.ListValues())[from:to])
}

// packed reads a ticket of sequences.
func (f *fixture) packed(ticket string) (out []packedBatch, err error) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	defer cancel()
	stream, err := f.client.DoGet(ctx, &flight.Ticket{Ticket: []byte(ticket)})
	if err != nil {
		f.t.Fatal(err)
	}
	rdr, err := flight.NewRecordReader(stream)
	if err != nil {
		return nil, err
	}
	defer rdr.Release()
	ints := func(a arrow.Array) []int32 { return a.(*array.Int32).Int32Values() }
	for rdr.Next() {
		rec := rdr.Record()
		b := packedBatch{about: decoded[batchMetadata](f.t, rdr.LatestAppMetadata())}
		for row := range int(rec.NumRows()) {
			b.sequences = append(b.sequences, sequence{
				tokens: packedPart(f.t, rec, "tokens", row, func(a arrow.Array) []uint16 { return a.(*array.Uint16).Uint16Values() }),
				ids:    packedPart(f.t, rec, "position_ids", row, ints), segments: packedPart(f.t, rec, "segment_ids", row, ints),
				ends:      packedPart(f.t, rec, "cu_seqlens", row, ints),
				positions: packedPart(f.t, rec, "position", row, func(a arrow.Array) []int64 { return a.(*array.Int64).Int64Values() }),
				names: packedPart(f.t, rec, "name", row, func(a arrow.Array) (names []string) {
					for i := range a.Len() {
						names = append(names, a.(*array.String).Value(i))
					}
					return names
				}),
			})
		}
		out = append(out, b)
	}
	return out, rdr.Err()
}

const packColumns = `"columns":["name","tokens","position_ids","segment_ids","cu_seqlens","position"]`

// check checks that a sequence describes itself correctly, and counts its tokens.
func (s *sequence) check(t *testing.T, length int, pad int, seen [][]int) {
	t.Helper()
	n := int(s.ends[len(s.ends)-1])
	if pad >= 0 && len(s.tokens) != length || pad < 0 && len(s.tokens) != n || n > length || n == 0 {
		t.Fatalf("a sequence of %d tokens, %d with padding, of at most %d", n, len(s.tokens), length)
	}
	if s.ends[0] != 0 || len(s.ends) != len(s.positions)+1 || len(s.ids) != len(s.tokens) || len(s.segments) != len(s.tokens) {
		t.Fatalf("documents of %d positions at %v, %d ids, %d segments", len(s.positions), s.ends, len(s.ids), len(s.segments))
	}
	for k, pos := range s.positions {
		if s.names[k] != fmt.Sprintf("document %05d", pos) {
			t.Fatalf("position %d is %s", pos, s.names[k])
		}
		first := int(s.tokens[s.ends[k]] - token(int(pos), 0))
		for j := s.ends[k]; j < s.ends[k+1]; j++ {
			at := first + int(j-s.ends[k])
			if at >= len(seen[pos]) || s.tokens[j] != token(int(pos), at) || s.ids[j] != j-s.ends[k] || s.segments[j] != int32(k+1) {
				t.Fatalf("token %d of a sequence, %d of document %d, is %d, place %d, segment %d", j, at, pos, s.tokens[j], s.ids[j],
					s.segments[j])
			}
			seen[pos][at]++
		}
	}
	for j := n; j < len(s.tokens); j++ {
		if int(s.tokens[j]) != pad || s.ids[j] != 0 || s.segments[j] != 0 {
			t.Fatalf("padding is %d, place %d, segment %d", s.tokens[j], s.ids[j], s.segments[j])
		}
	}
}

func unseen(lengths []int) [][]int {
	seen := make([][]int, len(lengths))
	for i, n := range lengths {
		seen[i] = make([]int, n)
	}
	return seen
}

// steps reads the steps [from, stop) of all ranks of a world, and returns their sequences
// by step.
func (f *fixture) steps(request string, world int, from, stop int64) map[int64][]sequence {
	f.t.Helper()
	out := map[int64][]sequence{}
	for rank := range world {
		batches, err := f.packed(fmt.Sprintf(`%s,"world":{"size":%d},"rank":%d,"step":%d,"stop":%d}`, request, world, rank, from, stop))
		if err != nil {
			f.t.Fatal(err)
		}
		row := map[int64]int64{}
		for _, b := range batches {
			if b.about.Row != row[b.about.Step] || b.about.Rows != len(b.sequences) || b.about.Rank != rank {
				f.t.Fatalf("rank %d: %+v, and row %d is next in its step", rank, b.about, row[b.about.Step])
			}
			row[b.about.Step] += int64(b.about.Rows)
			out[b.about.Step] = append(out[b.about.Step], b.sequences...)
		}
	}
	return out
}

// TestPackedServesEachTokenOnce: for all worlds an epoch has each token once, in the same
// sequences. A job that stops at a step can continue in another world.
func TestPackedServesEachTokenOnce(t *testing.T) {
	f := serve(t, Options{})
	const length = 120
	lengths := f.fillDocuments("d", 700, length)
	for _, test := range []struct {
		pack, more string
		pad        int
	}{
		{``, `"shuffle":{"seed":7,"epoch":3}`, -1},
		{`,"lengths":"n","window":100`, `"shuffle":{"seed":7,"epoch":3},"batch_bytes":9000`, -1},
		{`,"by":"first_fit","pad":65535`, `"shuffle":{"seed":7,"epoch":0,"block_rows":20}`, 65535},
		{`,"by":"split","window":90`, `"shuffle":{"seed":8,"epoch":1}`, -1},
		{`,"by":"split","pad":0`, `"batch_bytes":20000`, 0},
	} {
		request := fmt.Sprintf(`{"dataset":"d",%s,"batch":10,%s,"pack":{"length":%d,"column":"tokens"%s}`, packColumns, test.more,
			length, test.pack)
		info, err := f.client.GetFlightInfo(t.Context(), command("%s}", request))
		if err != nil {
			t.Fatal(err)
		}
		about := decoded[listedInfo](t, info.AppMetadata)
		whole := f.steps(request, 1, 0, about.Steps)
		seen := unseen(lengths)
		rows := int64(0)
		for step := range about.Steps {
			rows += int64(len(whole[step]))
			if step+1 < about.Steps && len(whole[step]) != 10 {
				t.Fatalf("%s: step %d has %d sequences", request, step, len(whole[step]))
			}
			for i := range whole[step] {
				whole[step][i].check(t, length, test.pad, seen)
			}
		}
		tokens := int64(0)
		for i := range seen {
			for j, n := range seen[i] {
				if n != 1 {
					t.Fatalf("%s: token %d of document %d is served %d times", request, j, i, n)
				}
				tokens++
			}
		}
		p := about.Packing
		if rows != about.Rows || info.TotalRecords != rows || p == nil || p.Tokens != tokens || p.Sequences != rows || p.Documents != 700 ||
			math.Abs(p.Padding-(1-float64(tokens)/float64(rows*length))) > 1e-9 || p.Dropped+p.Padded+p.Long+p.LeftOut != 0 {
			t.Errorf("%s: %d sequences of %d tokens, and the server says %s", request, rows, tokens, info.AppMetadata)
		}
		if got := fmt.Sprint(schemaOf(t, info)); got != f.schemaOf(t, request+"}") {
			t.Errorf("the schema is %s, and %s", got, f.schemaOf(t, request+"}"))
		}
		for i, world := range []int{2, 3, 8} {
			stop := about.Steps * int64(i+1) / 5
			parts := f.steps(request, world, 0, stop)
			for step, list := range f.steps(request, []int{3, 1, 2}[i], stop, about.Steps) {
				parts[step] = list
			}
			if fmt.Sprint(parts) != fmt.Sprint(whole) {
				t.Errorf("%s: %d ranks that stop at step %d, and others that go on, have other sequences", request, world, stop)
			}
		}
	}
}

func schemaOf(t *testing.T, info *flight.FlightInfo) *arrow.Schema {
	t.Helper()
	s, err := flight.DeserializeSchema(info.Schema, memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (f *fixture) schemaOf(t *testing.T, request string) string {
	t.Helper()
	answer, err := f.client.GetSchema(t.Context(), command("%s", request))
	if err != nil {
		t.Fatal(err)
	}
	s, err := flight.DeserializeSchema(answer.Schema, memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	return s.String()
}

// TestPackedResumes: the ticket of any batch continues after it, within a step and into the
// next epochs. The digest does not depend on how the step was divided.
func TestPackedResumes(t *testing.T) {
	f := serve(t, Options{})
	lengths := f.fillDocuments("d", 150, 64)
	request := fmt.Sprintf(`{"dataset":"d",%s,"batch":8,"batch_bytes":%%d,"shuffle":{"seed":7,"epoch":3},"digest":true,`+
		`"pack":{"length":64,"column":"tokens"},"world":{"size":2},"rank":1,"step":2,"epochs":3}`, packColumns)
	all, err := f.packed(fmt.Sprintf(request, 2000))
	if err != nil {
		t.Fatal(err)
	}
	within := 0
	digests := map[string]string{}
	for i := range all {
		rest, err := f.packed(string(all[i].about.Resume))
		if err != nil {
			t.Fatal(err)
		}
		if all[i].about.Row > 0 {
			within++
		}
		if all[i].about.Last {
			digests[fmt.Sprint(all[i].about.Epoch, all[i].about.Step)] = all[i].about.Digest
		}
		if len(rest) != len(all)-i-1 {
			t.Fatalf("%d batches after %d of %d", len(rest), i+1, len(all))
		}
		for j, b := range rest {
			want := all[i+1+j]
			b.about.Wait, want.about.Wait = waitMetadata{}, waitMetadata{}
			b.about.Plan, want.about.Plan = "", ""
			b.about.Resume, want.about.Resume = nil, nil
			if fmt.Sprint(b) != fmt.Sprint(want) {
				t.Fatalf("batch %d after %d is %v, want %v", j, i, b, want)
			}
		}
	}
	if within == 0 || len(lengths) == 0 {
		t.Error("no step was cut")
	}
	large, err := f.packed(fmt.Sprintf(request, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range large {
		if d := digests[fmt.Sprint(b.about.Epoch, b.about.Step)]; !b.about.Last || d == "" || d != b.about.Digest {
			t.Errorf("step %d of epoch %d has the digest %q whole, and %q in parts", b.about.Step, b.about.Epoch, b.about.Digest, d)
		}
	}
}

// TestPackedLong: documents that are longer than a sequence are cut, dropped or split as
// the request says.
func TestPackedLong(t *testing.T) {
	f := serve(t, Options{})
	const length = 30
	lengths := f.fillDocuments("d", 300, 200)
	request := `{"dataset":"d",` + packColumns + `,"shuffle":{"seed":7,"epoch":3},"pack":{"length":30,"column":"tokens"`
	_, err := f.packed(request + `}}`)
	wantCode(t, err, codes.InvalidArgument, "pack.length")
	for long, want := range map[string]func(n, j int) bool{
		"cut":   func(_, j int) bool { return j < length },
		"drop":  func(n, _ int) bool { return n <= length },
		"split": func(int, int) bool { return true },
	} {
		batches, err := f.packed(request + `,"long":"` + long + `"}}`)
		if err != nil {
			t.Fatal(err)
		}
		seen := unseen(lengths)
		for _, b := range batches {
			for i := range b.sequences {
				b.sequences[i].check(t, length, -1, seen)
			}
		}
		for i := range seen {
			for j, n := range seen[i] {
				if (n == 1) != want(lengths[i], j) || n > 1 {
					t.Fatalf("%s: token %d of %d of document %d is served %d times", long, j, lengths[i], i, n)
				}
			}
		}
	}
}

// TestPackedBalance: with balance the ranks of a step have about the same cost, and without
// it they differ by far. Each token is served once, and explain reports both.
func TestPackedBalance(t *testing.T) {
	f := serve(t, Options{})
	const length, world = 256, 4
	lengths := f.fillDocuments("d", 3000, length)
	imbalance := map[string]float64{}
	for _, balance := range []string{``, `,"balance":{"cost":"len ** 2"}`} {
		request := fmt.Sprintf(`{"dataset":"d",%s,"shuffle":{"seed":7,"epoch":3},"batch":16,"remainder":"uneven",`+
			`"pack":{"length":%d,"column":"tokens"%s}`, packColumns, length, balance)
		info, err := f.client.GetFlightInfo(t.Context(), command("%s}", request))
		if err != nil {
			t.Fatal(err)
		}
		about := decoded[listedInfo](t, info.AppMetadata)
		seen := unseen(lengths)
		var slowest, all float64
		for step, list := range f.steps(request, world, 0, about.Steps) {
			costs := make([]float64, world)
			for i, s := range list {
				s.check(t, length, -1, seen)
				for k := range s.positions {
					n := float64(s.ends[k+1] - s.ends[k])
					costs[i*world/len(list)] += n * n
				}
			}
			if step+1 == about.Steps {
				continue // shares differ by a sequence there
			}
			slowest += slices.Max(costs)
			for _, c := range costs {
				all += c
			}
		}
		for i := range seen {
			for j, n := range seen[i] {
				if n != 1 {
					t.Fatalf("%s: token %d of document %d is served %d times", request, j, i, n)
				}
			}
		}
		imbalance[balance] = slowest * world / all
		answers, err := f.act("explain", fmt.Sprintf(`%s,"world":{"size":%d},%s}`, request, world, someRates))
		if err != nil {
			t.Fatal(err)
		}
		var answer struct{ Packing struct{ Imbalance float64 } }
		if err := json.Unmarshal(answers[0], &answer); err != nil {
			t.Fatal(err)
		}
		said := answer.Packing.Imbalance
		t.Logf("%q: ranks are %.3f apart, explain says %.3f", balance, imbalance[balance], said)
		if said < 1 || balance != "" && said > 1.2 {
			t.Errorf("explain says that ranks are %.3f apart", said)
		}
	}
	if with, without := imbalance[`,"balance":{"cost":"len ** 2"}`], imbalance[``]; with > 1.05 || without < 1.1 {
		t.Errorf("ranks are %.3f apart, %.3f without balance", with, without)
	}
}

// TestBucketingExplained: explain reports how much the ranks differ in cost if samples are
// bucketed by length.
func TestBucketingExplained(t *testing.T) {
	f := serve(t, Options{})
	f.fillDocuments("d", 500, 30)
	answers, err := f.act("explain", fmt.Sprintf(`{"dataset":"d","batch":16,"shuffle":{"seed":1},"world":{"size":4},
		"bucket_by_length":{"balance":{"cost":"len(tokens) ** 2"}},%s}`, someRates))
	if err != nil {
		t.Fatal(err)
	}
	var answer struct{ Bucketing struct{ Imbalance float64 } }
	if err := json.Unmarshal(answers[0], &answer); err != nil {
		t.Fatal(err)
	}
	if said := answer.Bucketing.Imbalance; said < 1 || said > 1.1 {
		t.Errorf("explain says that ranks are %.3f apart", said)
	}
}

// TestPackedRefused checks the errors of impossible requests.
func TestPackedRefused(t *testing.T) {
	f := serve(t, Options{})
	f.fillDocuments("d", 500, 30)
	f.fill("images", 10)
	for want, request := range map[string]string{
		`pack.column: got "name", want a column of lists of integers: tokens`: `{"dataset":"d","pack":{"length":64,"column":"name"}}`,
		`pack.lengths: got "name", want a column of integers: n, wrong`:       `{"dataset":"d","pack":{"length":64,"column":"tokens","lengths":"name"}}`,
		`pack.pad: got 65536`:                        `{"dataset":"d","pack":{"length":64,"column":"tokens","pad":65536}}`,
		`pack.lengths: got "wrong" with `:            `{"dataset":"d","pack":{"length":64,"column":"tokens","lengths":"wrong"}}`,
		`columns[0]: got "toke", want one of`:        `{"dataset":"d","columns":["toke"],"pack":{"length":64,"column":"tokens"}}`,
		`pack.column: got "tokens"`:                  `{"dataset":"images","pack":{"length":64,"column":"tokens"}}`,
		`order: got "free" with pack, want "strict"`: `{"dataset":"d","order":"free","pack":{"length":64,"column":"tokens"}}`,
		`pack.balance.cost`:                          `{"dataset":"d","pack":{"length":64,"column":"tokens","balance":{"cost":"tokens * 2"}}}`,
		`pack.balance.cost: got -64 for 64 tokens`:   `{"dataset":"d","pack":{"length":64,"column":"tokens","balance":{"cost":"len < 64 ? 1 : -len"}}}`,
		`row: got 65, want 0 to`:                     `{"dataset":"d","pack":{"length":64,"column":"tokens"},"row":65}`,
	} {
		_, err := f.packed(strings.Replace(request, `"pack"`, `"batch":64,"pack"`, 1))
		wantCode(t, err, codes.InvalidArgument, want)
	}
}

// TestPackedIsOnRecord: the record names the documents of the sequences of a step.
func TestPackedIsOnRecord(t *testing.T) {
	f := serve(t, Options{})
	f.fillDocuments("d", 300, 100)
	request := fmt.Sprintf(`{"dataset":"d",%s,"batch":10,"shuffle":{"seed":7,"epoch":3},"batch_bytes":9000,`+
		`"pack":{"length":100,"column":"tokens","by":"split"},"world":{"size":2},"rank":1}`, packColumns)
	batches, err := f.packed(request)
	if err != nil {
		t.Fatal(err)
	}
	var list []sequence
	var job string
	for _, b := range batches {
		if b.about.Step == 1 {
			list = append(list, b.sequences...)
		}
		parsed, err := schema.ParseTicket(b.about.Resume)
		if err != nil || parsed.Pack == nil || parsed.Pack.Window == 0 {
			t.Fatalf("a ticket %s: %v", b.about.Resume, err)
		}
	}
	waitFor(t, "the record", func() bool {
		answers, err := f.act("lineage", `{}`)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range answers {
			var j lineageJob
			if json.Unmarshal(a, &j) == nil && j.Rows > 0 {
				job = j.Job
			}
		}
		return job != ""
	})
	answers, err := f.act("lineage", fmt.Sprintf(`{"job":%q,"epoch":3,"step":1}`, job))
	if err != nil {
		t.Fatal(err)
	}
	type held struct {
		position, from, tokens int64
	}
	got := make([][]held, len(list))
	for _, a := range answers[1:] {
		share := decoded[lineageShare](t, a)
		if len(share.Parts) != len(share.Positions) || *share.Of != int64(len(list)) {
			t.Fatalf("%s of %d rows", a, len(list))
		}
		for i, p := range share.Parts {
			got[*p.Row] = append(got[*p.Row], held{share.Positions[i], p.From, p.Tokens})
		}
	}
	for i := range list {
		for k, pos := range list[i].positions {
			part := got[i][k]
			if part.position != pos || part.tokens != int64(list[i].ends[k+1]-list[i].ends[k]) ||
				token(int(pos), int(part.from)) != list[i].tokens[list[i].ends[k]] {
				t.Fatalf("part %d of sequence %d is %+v on record", k, i, part)
			}
		}
	}
}
