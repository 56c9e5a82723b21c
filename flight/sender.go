package flight

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"bowstring/fetch"
	"bowstring/flight/shm"
	"bowstring/flight/wire"
	"bowstring/schema"
)

// sender sends batches as frames, the schema first. It is used by one goroutine, and has another one while it sends all
// batches of a stream.
type sender struct {
	server  *Server
	ctx     context.Context // the call's
	stop    func()          // ends ctx
	stream  wire.MessageStream
	encoder *wire.Encoder
	ring    *shm.Sideband // nil if all goes by the connection
	moves   bool          // its client can go on elsewhere, from the last batch

	opened    bool
	began     bool          // a batch was sent
	sentAt    time.Time     // when the batch before was taken by the transport
	lastSend  time.Duration // how long that took, and before it the ring to have room
	lastFrame time.Duration // how long its frame took to be put together
}

// outgoing is a batch that is ready to be sent: its blobs are checked, and those that go by a ring are copied there.
type outgoing struct {
	batch  *schema.Batch
	beside *shm.Extents  // what goes by the ring; nil if nothing does
	began  time.Time     // when it began to be made ready
	took   time.Duration // to make it ready, without the wait for room in the ring
	// resident is until when its bytes are known to be in memory; zero for always
	resident time.Time

	fetched *fetch.Batch  // what it is of
	quota   time.Duration // it was held back
}

// drop releases a batch that will not be sent.
func (o *outgoing) drop() {
	o.beside.Dropped()
	o.batch.Release()
}

// all sends every batch with the metadata that describe makes of it. While one is being sent, another goroutine makes
// the next one ready.
func (s *sender) all(batches *fetch.Stream, describe func(*fetch.Batch, waitMetadata) any) error {
	if err := s.open(); err != nil {
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
			o.drop()
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
		beside := sending && s.server.paces.Unlimited(tenant) && batches.Ready()
		if sending && !beside {
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
		if beside {
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
		o.drop()
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

// waited is how long the consumer let it wait for room in the ring since the batch before it was sent: until then that
// one's time is counted.
func (o *outgoing) waited(sentBefore time.Time) time.Duration {
	if o.beside == nil {
		return 0
	}
	return max(0, min(o.beside.Waited, o.began.Add(o.beside.Waited).Sub(sentBefore)))
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
		// What there is to wait for here are reads; a stream that was given up in
		// the meantime has no batch that tells.
		countWaits(s.ctx, fetch.Wait{Store: time.Since(start)}, 0, 0)
		return o, err
	}
	countProcessor(s.ctx, b.Processor) // whether it will be sent or not
	o, err = s.prepare(b.Batch, b.Again)
	o.fetched, o.quota = b, quota
	return o, err
}

// prepare takes a batch over and makes it ready: blobs that were not checked yet are so now, those that go by a ring in
// their copies there; again brings what is wrong.
func (s *sender) prepare(b *schema.Batch, again shm.Reread) (outgoing, error) {
	start := time.Now()
	beside, err := s.ring.Share(s.ctx, b, again)
	if err == nil {
		err = wire.CheckInPlace(s.ctx, b, beside.Aside(), again)
	}
	ready := time.Now()
	o := outgoing{batch: b, beside: beside, began: start, took: ready.Sub(start), resident: wire.FreshUntil(b, ready)}
	if beside != nil {
		o.took -= beside.Waited
	}
	if err != nil {
		o.drop()
	}
	return o, err
}

// open sends the schema, once.
func (s *sender) open() error {
	if s.opened {
		return nil
	}
	f, err := s.encoder.Schema()
	if err != nil {
		return err
	}
	s.opened = true
	return s.stream.SendMsg(f)
}

// fetched sends a batch of a stream with the metadata that describe makes of it.
func (s *sender) fetched(o *outgoing, describe func(*fetch.Batch, waitMetadata) any) error {
	b := o.fetched
	b.Wait.Encode += o.took
	wait := waitMetadata{
		Store:     b.Wait.Store.Microseconds(),
		Spill:     b.Wait.Spill.Microseconds(),
		Peer:      b.Wait.Peer.Microseconds(),
		Operators: b.Wait.Operators.Microseconds(),
		Window:    b.Wait.Window.Microseconds(),
		Encode:    (b.Wait.Encode + s.lastFrame).Microseconds(), // its own frame's time is not known yet
		Consumer:  s.lastSend.Microseconds(),
		Quota:     o.quota.Microseconds(),
	}
	err := s.send(o, describe(b, wait))
	b.Wait.Encode += s.lastFrame
	countWaits(s.ctx, b.Wait, s.lastSend, len(b.Faults))
	return err
}

// batch sends one batch, which it takes over.
func (s *sender) batch(b *schema.Batch, metadata any) error {
	o, err := s.prepare(b, nil)
	if err != nil {
		return err
	}
	return s.send(&o, metadata)
}

// send sends a batch that is ready, which it takes over.
func (s *sender) send(o *outgoing, metadata any) error {
	s.lastSend, s.lastFrame = 0, 0
	begun := time.Now()
	meta, err := json.Marshal(metadata)
	if err == nil {
		meta, err = o.beside.Told(meta)
	}
	if err != nil {
		o.drop()
		return err
	}
	f, err := s.encoder.Batch(o.batch, o.beside.Aside(), meta, o.resident)
	if err != nil {
		o.beside.Dropped()
		return err
	}
	o.beside.Sent()
	rows, size := o.batch.Rows, f.Size()+o.beside.Bytes()
	waited := o.waited(s.sentAt)
	start := time.Now()
	s.lastFrame = start.Sub(begun)
	err = laneOf(s.ctx).Send(s.ctx, s.stream, f)
	s.sentAt = time.Now()
	s.lastSend = s.sentAt.Sub(start) + waited
	if err == nil {
		count(s.ctx, rows, size)
		s.server.paces.Served(fetch.CallerFrom(s.ctx).Tenant, size)
		if !s.began {
			s.began = true
			observeFirst(s.ctx)
		}
	}
	return err
}
