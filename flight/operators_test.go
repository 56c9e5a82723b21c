package flight

import (
	"bytes"
	"encoding/json"
	"image"
	"image/color"
	"image/png"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"google.golang.org/grpc/codes"

	"bowstring/fetch"
	"bowstring/schema"
)

// picture is image i, of 40 by 30 pixels.
func picture(i int) []byte {
	img := image.NewNRGBA(image.Rect(0, 0, 40, 30))
	for y := range 30 {
		for x := range 40 {
			img.Set(x, y, color.NRGBA{uint8(x * 6), uint8(y * 8), uint8(i * 9), 255})
		}
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// pictures uploads n images, the last of which is damaged.
func (f *fixture) pictures(n int) {
	f.t.Helper()
	b := array.NewRecordBuilder(memory.DefaultAllocator, sampleSchema)
	defer b.Release()
	for i := range n {
		b.Field(0).(*array.StringBuilder).Append(string(rune('a'+i)) + ".png")
		b.Field(1).(*array.Int64Builder).Append(int64(i))
		data := picture(i)
		if i == n-1 {
			data = data[:len(data)/2]
		}
		b.Field(2).(*array.BinaryBuilder).Append(data)
	}
	rec := b.NewRecord()
	defer rec.Release()
	if _, err := f.put(command(`{"put": {"dataset": "p", "key": "file_name", "media": {"image": "image"}}}`),
		rec); err != nil {
		f.t.Fatal(err)
	}
}

const cropped = `"operators": {"image": [{"Decode": {}}, {"RandomResizedCrop": {"size": [16, 16]}}, {"RandomHorizontalFlip": {}}]}`

// Samples are sent as tensors. GetFlightInfo and GetSchema announce that, and DoGet and
// DoExchange serve the same. An image that cannot be decoded is reported with its operator.
func TestOperators(t *testing.T) {
	f := serve(t, Options{})
	const n = 12
	f.pictures(n)
	request := `{"dataset": "p", "columns": ["position", "image", "image.params"], "on_error": "null", "shuffle": {"seed": 7, "epoch": 2}, ` + cropped + `}`
	info, err := f.client.GetFlightInfo(t.Context(), command("%s", request))
	if err != nil {
		t.Fatal(err)
	}
	only, err := f.client.GetSchema(t.Context(), command("%s", request))
	if err != nil || !bytes.Equal(only.Schema, info.Schema) {
		t.Errorf("GetSchema and GetFlightInfo differ: %v", err)
	}
	s, err := flight.DeserializeSchema(info.Schema, memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	field := s.Field(1)
	meta := map[string]string{}
	for i, k := range field.Metadata.Keys() {
		meta[k] = field.Metadata.Values()[i]
	}
	var about schema.MadeForm
	mustUnmarshal(t, []byte(meta["bowstring.made"]), &about)
	if meta["ARROW:extension:name"] != "arrow.fixed_shape_tensor" || about.Contract == "" ||
		about.CellBytes() != 16*16*3 {
		t.Errorf("the field is %s", field)
	}
	if info.TotalBytes != -1 { // the size of the drawn values is unknown
		t.Errorf("%d bytes", info.TotalBytes)
	}
	ctx := t.Context()
	stream, err := f.client.DoGet(ctx, info.Endpoint[0].Ticket)
	if err != nil {
		t.Fatal(err)
	}
	served := map[int64]string{}
	collect := func(rec arrow.Record) {
		at := rec.Column(0).(*array.Int64)
		cells := rec.Column(1).(*array.FixedSizeList)
		for row := range int(rec.NumRows()) {
			lo, hi := cells.ValueOffsets(row)
			text := string(cells.ListValues().(*array.Uint8).Uint8Values()[lo:hi]) + rec.Column(2).ValueStr(row)
			if was, ok := served[at.Value(row)]; ok && was != text {
				t.Errorf("position %d is another tensor by DoExchange", at.Value(row))
			}
			served[at.Value(row)] = text
			if cells.IsNull(row) != (at.Value(row) == n-1) {
				t.Errorf("position %d: null is %t", at.Value(row), cells.IsNull(row))
			}
		}
	}
	rdr, err := flight.NewRecordReader(stream)
	if err != nil {
		t.Fatal(err)
	}
	defer rdr.Release()
	var faults []fetch.Fault
	for rdr.Next() {
		collect(rdr.Record())
		m := decoded[batchMetadata](t, rdr.LatestAppMetadata())
		faults = append(faults, m.Faults...)
		if m.Resume == nil || !strings.Contains(string(m.Resume), `"contract"`) {
			t.Errorf("the ticket has no contract: %s", m.Resume)
		}
	}
	if rdr.Err() != nil || len(served) != n {
		t.Fatalf("%d rows: %v", len(served), rdr.Err())
	}
	if len(faults) != 1 || faults[0].Position != n-1 || faults[0].Operator != "Decode" {
		t.Errorf("faults %+v", faults)
	}
	distinct := map[string]bool{}
	for _, text := range served {
		distinct[text] = true
	}
	if len(distinct) != n {
		t.Errorf("%d different tensors of %d", len(distinct), n)
	}

	exchange, err := f.client.DoExchange(ctx)
	if err != nil {
		t.Fatal(err)
	}
	b := array.NewInt64Builder(memory.DefaultAllocator)
	defer b.Release()
	b.AppendValues([]int64{5, 0, 5, 10}, nil)
	col := b.NewArray()
	defer col.Release()
	in := arrow.NewSchema([]arrow.Field{{Name: "position", Type: arrow.PrimitiveTypes.Int64}}, nil)
	rec := array.NewRecord(in, []arrow.Array{col}, 4)
	defer rec.Release()
	w := flight.NewRecordWriter(exchange, ipc.WithSchema(in))
	w.SetFlightDescriptor(command(`{"take": {"dataset": "p", "columns": ["position", "image", "image.params"], "shuffle": {"seed": 7, "epoch": 2}, %s}}`, cropped))
	if err := w.Write(rec); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := exchange.CloseSend(); err != nil {
		t.Fatal(err)
	}
	recs, err := records(exchange)
	if err != nil || rowsOf(recs) != 4 {
		t.Fatalf("%d rows: %v", rowsOf(recs), err)
	}
	for _, r := range recs {
		collect(r)
		r.Release()
	}

	// If all sizes of a column are known, its bytes are exact.
	sized, err := f.client.GetFlightInfo(ctx, command(`{"dataset": "p", "columns": ["image"], %s}`, cropped))
	if err != nil || sized.TotalBytes != n*16*16*3 {
		t.Errorf("%d bytes: %v", sized.GetTotalBytes(), err)
	}
	_, err = f.get(sized.Endpoint[0].Ticket)
	wantCode(t, err, codes.DataLoss, "position 11 of p@1")
	_, err = f.client.GetSchema(ctx,
		command(`{"dataset": "p", "operators": {"image": [{"Decode": {}}, {"RandomResizedCrop": {"size": [0, 16]}}]}}`))
	wantCode(t, err, codes.InvalidArgument, "operators.image[1].RandomResizedCrop.size")
	var st struct {
		Engine  struct{ Operators struct{ Cells, Faults int64 } }
		Tenants []struct {
			Processor int64 `json:"processor_ns"`
		}
	}
	out, err := f.act("stats", `{}`)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out[0], &st); err != nil || st.Engine.Operators.Cells < n ||
		st.Engine.Operators.Faults < 1 || len(st.Tenants) == 0 || st.Tenants[0].Processor == 0 {
		t.Errorf("%+v: %v", st, err)
	}
}
