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

// sender sends batches, on the account of a call. It is used by one goroutine, and has another one while it sends all
// batches of a stream.
type sender struct {
	server *Server
	ctx    context.Context // the call's
	stop   func()          // ends ctx
	wire   *wire.Sender
	moves  bool // its client can go on elsewhere, from the last batch

	began bool      // a batch was sent
	last  wire.Sent // what became of the batch before
}

// outgoing is a batch of a stream that is ready to be sent.
type outgoing struct {
	wire.Outgoing
	fetched *fetch.Batch  // what it is of
	quota   time.Duration // it was held back
}

// all sends every batch with the metadata that describe makes of it. While one is being sent, another goroutine makes
// the next one ready.
func (s *sender) all(batches *fetch.Stream, describe func(*fetch.Batch, waitMetadata) any) error {
	if err := s.wire.Open(); err != nil {
		return err
	}
	ready := make(chan outgoing)
	sent := make(chan struct{}, 1) // for each batch of ready, when it was sent
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
		// The goroutine ends before what it uses: the ring, the stream.
		s.stop()
		for o := range ready {
			o.Drop()
		}
	}()
	for o := range ready {
		if err := s.fetched(&o, describe); err != nil {
			return err
		}
		sent <- struct{}{} // there is room: it has waited for the one before
	}
	over = true
	return failed
}

// makeReady makes one batch after another ready. A batch is taken from its stream before the one ahead of it was sent
// only if it is there by then: what is waited for, be it a read or the tenant's turn, keeps nothing else from its way,
// and counts as waited for by the consumer.
func (s *sender) makeReady(batches *fetch.Stream, ready chan<- outgoing, sent <-chan struct{}) error {
	tenant := fetch.CallerFrom(s.ctx).Tenant
	var stored int64
	defer func() { countStored(s.ctx, batches.StoreBytes()-stored) }()
	for sending := false; ; sending = true {
		early := sending && s.server.paces.Unlimited(tenant) && batches.Ready()
		if sending && !early {
			if err := s.await(sent); err != nil {
				return err
			}
		}
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

// await waits until the batch that was handed over last was sent.
func (s *sender) await(sent <-chan struct{}) error {
	select {
	case <-sent:
		return nil
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

// take takes the next batch of a stream, and makes it ready.
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
		// Only reads are waited for here; a stream that was cancelled in the meantime has
		// no batch to say so.
		countWaits(s.ctx, fetch.Wait{Store: time.Since(start)}, 0, 0)
		return o, err
	}
	countProcessor(s.ctx, b.Processor) // whether it will be sent or not
	o.Outgoing, err = s.wire.Prepare(b.Batch, b.Again)
	o.fetched, o.quota = b, quota
	return o, err
}

// fetched sends a batch of a stream with the metadata that describe makes of it.
func (s *sender) fetched(o *outgoing, describe func(*fetch.Batch, waitMetadata) any) error {
	b := o.fetched
	b.Wait.Encode += o.Took
	wait := waitMetadata{
		Store:     b.Wait.Store.Microseconds(),
		Spill:     b.Wait.Spill.Microseconds(),
		Peer:      b.Wait.Peer.Microseconds(),
		Operators: b.Wait.Operators.Microseconds(),
		Window:    b.Wait.Window.Microseconds(),
		Encode:    (b.Wait.Encode + s.last.Frame).Microseconds(), // its own frame's time is not known yet
		Consumer:  s.last.Took.Microseconds(),
		Quota:     o.quota.Microseconds(),
	}
	err := s.send(&o.Outgoing, describe(b, wait))
	b.Wait.Encode += s.last.Frame
	countWaits(s.ctx, b.Wait, s.last.Took, len(b.Faults))
	return err
}

// batch sends one batch, which it takes over.
func (s *sender) batch(b *schema.Batch, metadata any) error {
	o, err := s.wire.Prepare(b, nil)
	if err != nil {
		return err
	}
	return s.send(&o, metadata)
}

// send sends a batch that is ready, which it takes over.
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
