package flight

import (
	"context"

	"github.com/apache/arrow/go/v17/arrow/flight"

	"bowstring/flight/upload"
)

// putHandler answers DoPut.
type putHandler struct{ *Server }

// DoPut stores rows as a snapshot, or positions as a selection: see [upload.Put].
func (s putHandler) DoPut(stream flight.FlightService_DoPutServer) error {
	in := s.incoming(stream.Context(), stream)
	defer in.Close()
	d, err := in.Descriptor()
	if err != nil {
		return err
	}
	ctx, done, err := s.beginStream(stream.Context(), "DoPut", "")
	if err != nil {
		return err
	}
	defer done()
	req, err := upload.Parse(d)
	if err != nil {
		return err
	}
	// Results are sent by a goroutine of their own. A client may send all rows before it
	// reads the first result; a handler that blocked on results would then block the
	// upload.
	out := upload.NewResults(ctx, stream.Send)
	defer out.Abandon()
	s.sending.Go(out.Run)
	if err := upload.Put(ctx, s.catalog(ctx), req, in, out); err != nil {
		return err
	}
	return out.Flush()
}

// incoming returns a reader of a call's stream. The caller closes it. ctx is the call's
// context.
func (s *Server) incoming(ctx context.Context, stream flight.DataStreamReader) *upload.Incoming {
	c := callFrom(ctx)
	return upload.NewIncoming(ctx, stream, upload.Config{MaxBatchRows: s.opts.MaxBatchRows,
		MaxMessageBytes: s.opts.MaxMessageBytes, Work: s.work, Account: c.host, Mem: s.mem, Lease: c.incoming, Moved: c})
}
