package flight

import (
	"context"
	"errors"
	"io"
	"time"

	"bowstring/fetch"
	"bowstring/flight/wire"
	"bowstring/schema"
)

// sender sends batches for one call. One goroutine uses it. While it sends all batches of a
// stream, a second goroutine prepares the next one.
type sender struct {
	server *Server
	ctx    context.Context // the call's
	stop   func()          // ends ctx
	wire   *wire.Sender
	moves  bool // the client can continue on another node from the last batch

	began bool      // a batch was sent
	last  wire.Sent // figures of the previous batch
}

// outgoing is a batch of a stream that is ready to be sent. Its receiver sends or drops it.
type outgoing struct {
	wire.Outgoing
	fetched *fetch.Batch  // the batch before it was encoded
	quota   time.Duration // delay by the tenant's rate limit
}

// all sends every batch with the metadata that describe returns for it. While one batch is
// being sent, another goroutine prepares the next one. Encoding thus overlaps with the
// network. all returns after that goroutine has ended.
func (s *sender) all(batches *fetch.Stream, describe func(*fetch.Batch, waitMetadata) any) error {
	if err := s.wire.Open(); err != nil {
		return err
	}
	ready := make(chan outgoing)
	sent := make(chan struct{}, 1) // one value for each batch of ready that was sent
	var failed error
	s.server.sending.Go(func() {
		defer close(ready)
		failed = s.server.guard(s.ctx, "sending", func() error { return s.makeReady(batches, ready, sent) })
	})
	over := false
	defer func() {
		if over {
			return
		}
		// The goroutine must end before the ring and the stream, which it uses.
		s.stop()
		for o := range ready {
			o.Drop()
		}
	}()
	for o := range ready {
		if err := s.fetched(&o, describe); err != nil {
			return err
		}
		sent <- struct{}{} // does not block: makeReady has taken the previous value
	}
	over = true
	return failed
}

// makeReady prepares one batch after another. It takes a batch before the previous one was
// sent only if the batch is available without waiting. Otherwise a wait for a read or for
// the tenant's turn would delay the batch that is ready. Such a wait counts as the
// consumer's.
func (s *sender) makeReady(batches *fetch.Stream, ready chan<- outgoing, sent <-chan struct{}) error {
	tenant := fetch.CallerFrom(s.ctx).Tenant
	var stored int64
	defer func() { countStored(s.ctx, batches.StoreBytes()-stored) }()
	for sending := false; ; sending = true {
		// A tenant with a rate limit is never early: it has to wait for its turn first.
		early := sending && s.server.paces.Unlimited(tenant) && batches.Ready()
		if sending && !early {
			if err := s.await(sent); err != nil {
				return err
			}
		}
		// Store reads are charged as they happen and not at the end: a stream can run for
		// days.
		now := batches.StoreBytes()
		countStored(s.ctx, now-stored)
		stored = now
		o, err := s.take(batches)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if early {
			err = s.await(sent)
		}
		if err == nil {
			select {
			case ready <- o:
				continue
			case <-s.ctx.Done():
				err = context.Cause(s.ctx)
			}
		}
		o.Drop()
		return err
	}
}

// await waits until the last batch that was handed over is sent.
func (s *sender) await(sent <-chan struct{}) error {
	select {
	case <-sent:
		return nil
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

// take takes the next batch of a stream and prepares it. It fails with a movedError if the
// stream must continue on another node.
func (s *sender) take(batches *fetch.Stream) (o outgoing, err error) {
	if s.moves {
		if err := s.server.moved(); err != nil {
			return o, err
		}
	}
	quota, err := s.server.pace(s.ctx)
	if err != nil {
		return o, err
	}
	start := time.Now()
	b, err := batches.Next()
	if err != nil {
		// Next waits only for reads. A stream that was cancelled during the wait returns
		// no batch with waiting times, so the time is counted here.
		countWaits(s.ctx, fetch.Wait{Store: time.Since(start)}, 0, 0)
		return o, err
	}
	countProcessor(s.ctx, b.Processor) // also if the batch will not be sent
	o.Outgoing, err = s.wire.Prepare(b.Batch, b.Again)
	o.fetched, o.quota = b, quota
	return o, err
}

// fetched sends a batch of a stream with the metadata that describe returns for it.
func (s *sender) fetched(o *outgoing, describe func(*fetch.Batch, waitMetadata) any) error {
	b := o.fetched
	b.Wait.Encode += o.Took
	wait := waitMetadata{
		Store:     b.Wait.Store.Microseconds(),
		Spill:     b.Wait.Spill.Microseconds(),
		Peer:      b.Wait.Peer.Microseconds(),
		Operators: b.Wait.Operators.Microseconds(),
		Window:    b.Wait.Window.Microseconds(),
		Encode:    (b.Wait.Encode + s.last.Frame).Microseconds(), // the previous frame's time: its own is unknown yet
		Consumer:  s.last.Took.Microseconds(),
		Quota:     o.quota.Microseconds(),
	}
	err := s.send(&o.Outgoing, describe(b, wait))
	b.Wait.Encode += s.last.Frame
	countWaits(s.ctx, b.Wait, s.last.Took, len(b.Faults))
	return err
}

// batch prepares and sends one batch that belongs to no stream. It takes ownership of b.
func (s *sender) batch(b *schema.Batch, metadata any) error {
	o, err := s.wire.Prepare(b, nil)
	if err != nil {
		return err
	}
	return s.send(&o, metadata)
}

// send sends a prepared batch and counts it. It takes ownership of o, also if it fails.
func (s *sender) send(o *wire.Outgoing, metadata any) error {
	var err error
	s.last, err = s.wire.Send(o, metadata)
	if err == nil {
		count(s.ctx, s.last.Rows, s.last.Bytes)
		s.server.paces.Served(fetch.CallerFrom(s.ctx).Tenant, s.last.Bytes)
		if !s.began {
			s.began = true
			observeFirst(s.ctx)
		}
	}
	return err
}
