package fetch_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"bowstring/fetch"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// A stalled consumer takes only its share from the others.
func TestStalledConsumerBlocksNoOther(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 600)
	e := newEngine(t, st, fetch.Options{WindowBytes: 60_000, MaxReads: 4})
	req := schema.Request{Dataset: "d", Batch: 10}
	j := open(t, e, req)
	var stalled []*fetch.Stream
	for range 5 {
		s := start(t, e, j, ticket(req, 0))
		defer s.Close()
		stalled = append(stalled, s)
	}
	if got := drain(t, e, j, ticket(req, 0)); len(got.positions) != 600 {
		t.Fatalf("%d rows beside stalled streams, want 600", len(got.positions))
	}
	for _, s := range stalled {
		if got := consume(t, j, s); len(got.positions) != 600 {
			t.Fatalf("a stream that was idle served %d rows, want 600", len(got.positions))
		}
	}
}

// Closing a stream in the middle frees what it had read (newStore checks).
func TestCloseInTheMiddle(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 600)
	e := newEngine(t, st, fetch.Options{})
	req := schema.Request{Dataset: "d", Batch: 16}
	j := open(t, e, req)
	for after := range 5 {
		ctx, cancel := context.WithCancelCause(t.Context())
		s, err := e.Stream(ctx, j, ticket(req, 0))
		if err != nil {
			t.Fatal(err)
		}
		for range after {
			b, err := s.Next()
			if err != nil {
				t.Fatal(err)
			}
			b.Release()
		}
		gone := errors.New("the client is gone")
		if after%2 == 0 {
			cancel(gone)
			if _, err := s.Next(); !errors.Is(err, gone) {
				t.Errorf("Next after the context's end: %v, want its cause", err)
			}
		}
		s.Close()
		s.Close()
		cancel(nil)
	}
	if n := e.Stats().LiveStreams; n != 0 {
		t.Errorf("%d streams are live", n)
	}
}

func TestEngineCloseEndsStreams(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 100)
	e := must(fetch.NewEngine(st, fetch.Options{}))
	req := schema.Request{Dataset: "d", Batch: 16}
	j, err := e.Open(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, e, j, ticket(req, 0))
	j.Close() // the stream keeps the snapshot open
	var wg sync.WaitGroup
	wg.Go(func() { _ = e.Close() })
	for {
		b, err := s.Next()
		if errors.Is(err, schema.ErrUnavailable) {
			break
		}
		if err != nil && !errors.Is(err, io.EOF) {
			t.Errorf("Next while the engine closes: %v", err)
		}
		if err == nil {
			b.Release()
		}
	}
	s.Close()
	wg.Wait()
	if _, err := e.Open(t.Context(), req); err == nil {
		t.Error("a closed engine opened a job")
	}
}

// Streams read a dropped snapshot to its end though garbage is collected; then
// its blobs are free.
func TestDropAndCollectUnderStream(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 300)
	e := newEngine(t, st, fetch.Options{WindowBytes: 20_000})
	req := schema.Request{Dataset: "d", Batch: 10}
	j, err := e.Open(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, e, j, ticket(req, 0))
	j.Close()
	if err := st.Drop(t.Context(), "d", 0); err != nil {
		t.Fatal(err)
	}
	report, err := e.GC(t.Context(), store.GCOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if report.DeadBlobs != 0 {
		t.Errorf("%d blobs of a snapshot that is being read were taken for dead", report.DeadBlobs)
	}
	if _, err := e.Open(t.Context(), req); !errors.Is(err, schema.ErrNotFound) {
		t.Errorf("opening the dropped dataset: %v, want not found", err)
	}
	if got := consume(t, j, s); len(got.positions) != 300 {
		t.Errorf("%d rows of the dropped snapshot, want 300", len(got.positions))
	}
	s.Close()
	if report, err = e.GC(t.Context(), store.GCOptions{}); err != nil {
		t.Fatal(err)
	}
	if report.LiveBlobs != 0 || report.DeadBlobs == 0 {
		t.Errorf("after the stream: %+v, want no live blob", report)
	}
}
