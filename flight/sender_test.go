package flight

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"bowstring/fetch"
	"bowstring/fetch/admission"
	"bowstring/flight/wire"
	"bowstring/schema"
)

// held is a stream whose messages the test takes one by one.
type held struct {
	came chan struct{}   // a message is there
	take chan error      // how it is taken
	over <-chan struct{} // closed when the test is, which may have failed in between
}

func (h *held) SendMsg(any) error {
	select {
	case h.came <- struct{}{}:
	case <-h.over:
		return context.Canceled
	}
	select {
	case err := <-h.take:
		return err
	case <-h.over:
		return context.Canceled
	}
}

// sending sends a dataset of n rows in batches of one to a held stream, after the schema.
// ended brings the outcome.
func (f *fixture) sending(n int) (h *held, ended chan error) {
	return f.describing(n, func(b *fetch.Batch, _ waitMetadata) any { return b.Step })
}

// describing is sending with metadata of its own. A panic is an outcome.
func (f *fixture) describing(n int, describe func(*fetch.Batch, waitMetadata) any) (h *held, ended chan error) {
	f.t.Helper()
	f.fill("few", n)
	ctx, stop := context.WithCancel(f.t.Context())
	job, err := f.engine.Open(ctx, schema.Request{Dataset: "few", Batch: 1})
	if err != nil {
		f.t.Fatal(err)
	}
	before := f.engine.Stats().Reads
	batches, err := f.engine.Serve(ctx, job, schema.Ticket{Request: schema.Request{Dataset: "few",
		Batch: 1}}, fetch.Serving{CheckedLate: true})
	if err != nil {
		f.t.Fatal(err)
	}
	h, ended = &held{make(chan struct{}), make(chan error), f.t.Context().Done()}, make(chan error, 1)
	send := &sender{server: f.server, ctx: ctx, stop: stop,
		wire: wire.NewSender(ctx, h, nil, nil, job.Projection().Schema)}
	go func() {
		defer stop()
		defer job.Close()
		defer batches.Close()
		defer func() {
			if p := recover(); p != nil {
				ended <- fmt.Errorf("panic: %v", p)
			}
		}()
		ended <- send.all(batches, describe)
	}()
	<-h.came
	// A batch that is not there yet when the one ahead of it is handed over is not made ready beside it.
	waitFor(f.t, "all to be read", func() bool {
		st := f.engine.Stats()
		return st.Reads-before >= int64(n) && st.ReadsInFlight == 0
	})
	h.take <- nil
	return h, ended
}

// While a batch is being sent the next one is made ready, and no more than that.
func TestNextIsMadeReady(t *testing.T) {
	f := serve(t, Options{})
	const rows = 6
	h, ended := f.sending(rows)
	for i := int64(1); i <= rows; i++ {
		<-h.came
		if got := f.engine.Stats().Batches; got > i+1 {
			t.Errorf("while batch %d is being sent, %d are taken", i, got)
		}
		waitFor(t, "the next batch", func() bool { return f.engine.Stats().Batches == min(i+1, rows) })
		h.take <- nil
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A tenant that is served only so fast gets no batch made ready before the one ahead is sent, and counted.
func TestNextWaitsForTurn(t *testing.T) {
	f := serve(t, Options{})
	f.server.paces.SetTerms(func(string) admission.Terms { return admission.Terms{BytesPerSecond: 1 << 40} })
	const rows = 6
	h, ended := f.sending(rows)
	for i := int64(1); i <= rows; i++ {
		<-h.came
		if got := f.engine.Stats().Batches; got != i {
			t.Errorf("while batch %d is being sent, %d are taken", i, got)
		}
		h.take <- nil
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A batch that was made ready is released if the batch before it cannot be sent.
func TestReadyIsDropped(t *testing.T) {
	f := serve(t, Options{})
	h, ended := f.sending(6)
	<-h.came
	waitFor(t, "the next batch", func() bool { return f.engine.Stats().Batches == 2 })
	broken := errors.New("the connection is gone")
	h.take <- broken
	if err := <-ended; !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	waitFor(t, "memory", func() bool { return f.engine.Stats().WindowUsed == 0 })
}

// The goroutine that makes batches ready has ended when a call ends by a panic: its
// memory is returned right after.
func TestPanicWaitsForReady(t *testing.T) {
	f := serve(t, Options{})
	h, ended := f.describing(6, func(b *fetch.Batch, _ waitMetadata) any {
		if b.Step == 1 {
			panic("a defect")
		}
		return b.Step
	})
	<-h.came
	h.take <- nil
	if err := <-ended; err == nil || err.Error() != "panic: a defect" {
		t.Errorf("got %v", err)
	}
	stacks := make([]byte, 1<<20)
	if bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("(*sender).makeReady")) {
		t.Error("the goroutine goes on")
	}
}
