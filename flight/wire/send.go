package wire

import (
	"context"
	"encoding/json"
	"time"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/flight/shm"
	"bowstring/schema"
)

// MessageStream is the sending half of a stream of grpc.
type MessageStream interface {
	SendMsg(any) error
}

// Sender sends the batches of a call, the schema first. Prepare may be called by one goroutine while another one calls
// the other methods.
type Sender struct {
	ctx      context.Context // the call's
	stream   MessageStream
	lane     *Lane
	sideband *shm.Sideband // nil if all goes by the connection
	encoder  *encoder

	opened bool
	sentAt time.Time // when the batch before was taken by the transport
}

// NewSender returns a sender of batches of a schema by a call's stream and lane. sideband and lane may be nil.
func NewSender(ctx context.Context, stream MessageStream, lane *Lane, sideband *shm.Sideband,
	s *arrow.Schema) *Sender {
	return &Sender{ctx: ctx, stream: stream, lane: lane, sideband: sideband, encoder: newEncoder(s)}
}

// Outgoing is a batch that is ready to be sent: its blobs are checked, and those that go by the sideband are copied there.
// It owns the batch, until it is sent or dropped.
type Outgoing struct {
	Took time.Duration // to make it ready, without the wait for room in the sideband

	batch  *schema.Batch
	aside  *shm.Extents // what goes by the sideband; nil if nothing does
	began  time.Time    // when it began to be made ready
	memory time.Time    // until when its bytes are known to be in memory; zero for always
}

// Drop releases a batch that will not be sent.
func (o *Outgoing) Drop() {
	o.aside.Dropped()
	o.batch.Release()
}

// Sent says what became of a batch.
type Sent struct {
	Rows  int
	Bytes int64
	Took  time.Duration // by the transport, and before that by the sideband to have room: what the client's pace cost
	Frame time.Duration // to put its frame together
}

// Open sends the schema, once.
func (s *Sender) Open() error {
	if s.opened {
		return nil
	}
	f, err := s.encoder.schemaFrame()
	if err != nil {
		return err
	}
	s.opened = true
	return s.stream.SendMsg(f)
}

// Prepare takes a batch over and makes it ready: blobs that were not checked yet are so now, those that go by the sideband
// in their copies there; again brings what is wrong.
func (s *Sender) Prepare(b *schema.Batch, again shm.Reread) (Outgoing, error) {
	start := time.Now()
	aside, err := s.sideband.Share(s.ctx, b, again)
	if err == nil {
		err = checkInPlace(s.ctx, b, aside.Aside(), again)
	}
	ready := time.Now()
	o := Outgoing{batch: b, aside: aside, began: start, Took: ready.Sub(start), memory: FreshUntil(b, ready)}
	if aside != nil {
		o.Took -= aside.Waited
	}
	if err != nil {
		o.Drop()
	}
	return o, err
}

// Send sends a batch that is ready, which it takes over, with its metadata as JSON.
func (s *Sender) Send(o *Outgoing, metadata any) (sent Sent, err error) {
	begun := time.Now()
	meta, err := json.Marshal(metadata)
	if err == nil {
		meta, err = o.aside.AddTo(meta)
	}
	if err != nil {
		o.Drop()
		return sent, err
	}
	sent.Rows = o.batch.Rows
	f, err := s.encoder.batchFrame(o.batch, o.aside.Aside(), meta, o.memory)
	if err != nil {
		o.aside.Dropped()
		return sent, err
	}
	o.aside.Sent()
	sent.Bytes = f.Size() + o.aside.Bytes()
	waited := o.waited(s.sentAt)
	start := time.Now()
	sent.Frame = start.Sub(begun)
	err = s.lane.Send(s.ctx, s.stream, f)
	s.sentAt = time.Now()
	sent.Took = s.sentAt.Sub(start) + waited
	return sent, err
}

// waited is how long the consumer let it wait for room in the sideband since the batch before it was sent: until then that
// one's time is counted.
func (o *Outgoing) waited(sentBefore time.Time) time.Duration {
	if o.aside == nil {
		return 0
	}
	return max(0, min(o.aside.Waited, o.began.Add(o.aside.Waited).Sub(sentBefore)))
}
