package flight

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"bowstring/flight/upload"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"google.golang.org/grpc/codes"
)

// uploading begins an upload and has its first batch acknowledged.
func (f *fixture) uploading(ctx context.Context, c flight.Client,
	d *flight.FlightDescriptor) (flight.FlightService_DoPutClient, *flight.Writer) {
	f.t.Helper()
	stream, err := c.DoPut(ctx)
	if err != nil {
		f.t.Fatal(err)
	}
	w := flight.NewRecordWriter(stream, ipc.WithSchema(sampleSchema))
	w.SetFlightDescriptor(d)
	if err := w.Write(samples(0, 50)); err != nil {
		f.t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		f.t.Fatal(err)
	}
	return stream, w
}

// untilIdle waits until no call runs.
func (f *fixture) untilIdle() {
	f.t.Helper()
	if _, err := f.server.calls.wait(f.t.Context(), func(c *call) bool { return isFlight(c.method) }); err != nil {
		f.t.Fatal(err)
	}
}

// TestPutBrokenOff: a client that does not close its stream in good order leaves nothing.
func TestPutBrokenOff(t *testing.T) {
	f := serve(t, Options{})
	f.leaky = true
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f.uploading(ctx, f.client, path("d"))
		cancel()
		f.untilIdle()
		f.wantDatasets()
	})
	t.Run("connection lost", func(t *testing.T) {
		c := f.dial()
		f.uploading(t.Context(), c, path("d"))
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		f.untilIdle()
		f.wantDatasets()
	})
	t.Run("half a message", func(t *testing.T) {
		stream, _ := f.uploading(t.Context(), f.client, path("d"))
		fd := recordMessage(t, samples(50, 60))
		fd.DataBody = fd.DataBody[:len(fd.DataBody)/2]
		if err := stream.Send(fd); err != nil {
			t.Fatal(err)
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		_, err := resultsOf(stream)
		wantCode(t, err, codes.InvalidArgument, "")
		f.wantDatasets()
	})
	t.Run("no batch", func(t *testing.T) {
		stream, err := f.client.DoPut(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&flight.FlightData{FlightDescriptor: path("d")}); err != nil {
			t.Fatal(err)
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		_, err = resultsOf(stream)
		wantCode(t, err, codes.InvalidArgument, "a schema")
		f.wantDatasets()
	})
	t.Run("nothing at all", func(t *testing.T) {
		stream, err := f.client.DoPut(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		_, err = resultsOf(stream)
		wantCode(t, err, codes.InvalidArgument, "descriptor")
	})
	// The uploaded blobs are garbage now.
	results, err := f.act("gc", `{}`)
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Live int64 `json:"live_blobs"`
	}
	mustUnmarshal(t, results[0], &report)
	if report.Live != 0 {
		t.Errorf("%d blobs are still in use", report.Live)
	}
}

// recordMessage is the Flight message of a record.
func recordMessage(t testing.TB, rec arrow.Record) *flight.FlightData {
	t.Helper()
	messages := messagesOf(t, rec)
	return messages[len(messages)-1]
}

type sendFunc func(*flight.FlightData) error

func (f sendFunc) Send(fd *flight.FlightData) error { return f(fd) }

// TestPutCommitMessage: a client can require that closing the stream alone commits nothing.
func TestPutCommitMessage(t *testing.T) {
	f := serve(t, Options{})
	d := command(`{"put": {"dataset": "d", "commit": "message"}}`)
	for _, tt := range []struct {
		name     string
		messages []string
		more     bool // a batch behind the messages
		want     string
	}{
		{"none", nil, false, "nothing was committed"},
		{"wrong rows", []string{`{"commit": true, "rows": 51}`}, false, "commit.rows: got 51, want 50"},
		{"false", []string{`{"commit": false}`}, false, "want true"},
		{"unknown", []string{`{"rows": 50, "comit": true}`}, false, `did you mean "commit"?`},
		{"twice", []string{`{"commit": true}`, `{"commit": true}`}, false, "a second time"},
		{"too early", []string{`{"commit": true}`}, true, "a batch after the commit"},
		{"right", []string{`{"commit": true, "rows": 50}`}, false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stream, w := f.uploading(t.Context(), f.client, d)
			for _, m := range tt.messages {
				if err := w.WriteMetadata([]byte(m)); err != nil {
					t.Fatal(err)
				}
			}
			if tt.more {
				if err := w.Write(samples(50, 51)); err != nil {
					t.Fatal(err)
				}
			}
			if err := stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
			results, err := resultsOf(stream)
			if tt.want != "" {
				wantCode(t, err, codes.InvalidArgument, tt.want)
				f.wantDatasets()
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got, want := last[putAck](t, results), (putAck{"d", 1, 50, true}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

// TestPutUnreadResults: a client that writes everything before it reads is not
// held up by its results, and finds the sums in order.
func TestPutUnreadResults(t *testing.T) {
	f := serve(t, Options{})
	const batches = 3 * upload.MaxUnread
	rec := oneColumn(t, arrow.Field{Name: "n", Type: arrow.PrimitiveTypes.Int64}, `[1]`)
	results, err := f.put(path("d"), slices.Repeat([]arrow.Record{rec}, batches)...)
	if err != nil {
		t.Fatal(err)
	}
	if got := last[putAck](t, results); got.Rows != batches {
		t.Errorf("got %+v, want %d rows", got, batches)
	}
	before := int64(-1)
	for _, b := range results[:len(results)-1] {
		ack := decoded[batchAck](t, b)
		if ack.Batch <= before || ack.Rows != ack.Batch+1 {
			t.Fatalf("got %+v after batch %d", ack, before)
		}
		before = ack.Batch
	}
	t.Logf("%d results for %d batches", len(results), batches)
}

// messagesOf are the messages that carry a record: schema, dictionaries, batch.
func messagesOf(t testing.TB, rec arrow.Record, opts ...ipc.Option) []*flight.FlightData {
	t.Helper()
	var out []*flight.FlightData
	w := flight.NewRecordWriter(sendFunc(func(fd *flight.FlightData) error {
		out = append(out, &flight.FlightData{DataHeader: bytes.Clone(fd.DataHeader),
			DataBody: bytes.Clone(fd.DataBody)})
		return nil
	}), append(opts, ipc.WithSchema(rec.Schema()))...)
	if err := w.Write(rec); err != nil {
		t.Fatal(err)
	}
	return out
}
