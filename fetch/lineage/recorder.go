package lineage

import (
	"encoding/json"
	"errors"
	"strings"
	"sync"

	"bowstring/schema"
)

// Batch is a batch that a stream delivers.
type Batch struct {
	Rows int64
	// Seqs are the numbers of the batch's rows among the rows that the stream's ticket
	// covers, counted in plan order from its step and row. They ascend. nil stands for
	// the first undelivered rows.
	Seqs []int64
	// Faults are the samples of the batch that could not be read. Their Row counts from
	// the beginning of the batch.
	Faults []Fault
	// Next is the ticket that resumes the stream after the batch.
	Next schema.Ticket
}

// Recorder records one stream. It is safe for concurrent use; a nil Recorder records
// nothing. It holds no file open, so it needs no Close.
type Recorder struct {
	log  *Log
	head Head // with the ticket at which the next piece begins

	mu    sync.Mutex
	loose bool     // the stream may deliver rows out of plan order
	rest  undone   // the undelivered rows, if loose
	in    *segment // the file of the current piece; nil between pieces
	// The current piece: its number, and the offset of the record whose count is
	// overwritten for rows in order.
	piece   uint32
	home    int64 // offset of that record
	counted int64 // that count
	rows    int64 // rows that the piece has delivered
	bytes   int64 // size of its deviations and faults
	refuse  bool  // its head is larger than a record may be, so the stream is not recorded
}

// Begin begins to record a stream. The request of its ticket has the restriction of its
// caller. Nothing is written before the stream delivers rows, so that a stream that is
// opened and closed leaves no record.
func (l *Log) Begin(h Head) *Recorder {
	if l == nil {
		return nil
	}
	h.Stream = l.stream()
	h.restrict(&h.Ticket.Request)
	mode, _ := h.Ticket.OrderOf()
	r := &Recorder{log: l, head: h, loose: mode != schema.OrderStrict}
	if r.loose {
		r.rest = newUndone(h.Ticket.Served)
	}
	return r
}

// Batch records a batch. The stream calls it before it sends the batch, so that the
// record has every row that a client may have received. It never fails: rows that cannot
// be written are missing in the record, and the next piece begins after them.
func (r *Recorder) Batch(b Batch) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	moves := r.movesLocked(&b)
	switch {
	case r.refuse || !r.log.ready():
		r.in = nil
	default:
		err := r.writeLocked(&b, moves)
		switch {
		case err == nil:
			r.log.wrote()
		case errors.Is(err, schema.ErrLimit):
			r.in, r.refuse = nil, true
			r.log.opts.Logger.Warn("what a stream hands out is not recorded", "plan", r.head.Plan, "error", err)
		default:
			r.in = nil
			r.log.failed(err)
		}
	}
	r.head.Ticket = b.Next
}

// movesLocked returns how a batch deviates from plan order, nil if it does not. It marks
// the rows as delivered even if nothing is written, because later batches count from
// them.
func (r *Recorder) movesLocked(b *Batch) []byte {
	switch {
	case !r.loose:
		return nil
	case b.Seqs == nil:
		r.rest.apply([]run{{0, b.Rows}}, func(int64, int64) {})
		return nil
	}
	list := r.rest.runs(b.Seqs)
	if len(list) == 1 && list[0].skip == 0 {
		return nil
	}
	return encodeRuns(list)
}

// writeLocked writes a batch. It begins a new piece if there is none, if the piece has
// too many deviations, or if another file is current.
func (r *Recorder) writeLocked(b *Batch, moves []byte) error {
	if r.in == nil || r.bytes > r.log.opts.PieceBytes || !r.log.isCurrent(r.in) {
		if err := r.beginLocked(); err != nil {
			return err
		}
	}
	err := r.addLocked(b, moves)
	if errors.Is(err, errMoved) { // the file has no room for the batch
		if err = r.beginLocked(); err == nil {
			err = r.addLocked(b, moves)
		}
	}
	return err
}

// beginLocked begins a piece with a head. The piece's rows count from the head's ticket.
func (r *Recorder) beginLocked() error {
	body, err := json.Marshal(&r.head)
	if err != nil {
		return err
	}
	var piece uint32
	s, at, err := r.log.append(nil, func(next uint32) []byte {
		piece = next
		return appendRecord(nil, kindHead, next, body)
	})
	if err != nil {
		return err
	}
	r.in, r.piece, r.home, r.counted, r.rows, r.bytes = s, piece, at, 0, 0, 0
	return nil
}

// addLocked adds a batch to the piece. Faults come first and the rows last: if the
// process is killed between them, a reader drops the faults of rows that were not
// recorded.
func (r *Recorder) addLocked(b *Batch, moves []byte) error {
	if len(b.Faults) > 0 {
		list := make([]Fault, len(b.Faults))
		for i, f := range b.Faults {
			f.Row += r.rows
			f.Cause = strings.ToValidUTF8(f.Cause[:min(len(f.Cause), maxCause)], "")
			list[i] = f
		}
		body, err := json.Marshal(list)
		if err != nil {
			return err
		}
		if _, err := r.appendLocked(kindFaults, body); err != nil {
			return err
		}
	}
	if moves != nil {
		at, err := r.appendLocked(kindMoves, moves)
		if err != nil {
			return err
		}
		r.home, r.counted = at, 0
	} else {
		if err := r.log.count(r.in, r.home, r.counted+b.Rows); err != nil {
			return err
		}
		r.counted += b.Rows
	}
	r.rows += b.Rows
	return nil
}

// appendLocked adds a record to the piece.
func (r *Recorder) appendLocked(kind byte, body []byte) (at int64, err error) {
	_, at, err = r.log.append(r.in, func(uint32) []byte { return appendRecord(nil, kind, r.piece, body) })
	if err == nil {
		r.bytes += headerSize + int64(len(body))
	}
	return at, err
}
