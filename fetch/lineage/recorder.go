package lineage

import (
	"encoding/json"
	"errors"
	"strings"
	"sync"

	"bowstring/schema"
)

// Batch is what a stream hands out.
type Batch struct {
	Rows int64
	// Seqs are the rows' numbers in what the stream's ticket covers, counted in the plan's order from its step and row;
	// in ascending order. nil says that they are the first ones that were not handed out before.
	Seqs []int64
	// Faults are those of the batch; their rows count from its beginning.
	Faults []Fault
	// Next is the ticket that goes on after it.
	Next schema.Ticket
}

// Recorder records a stream. It is safe for concurrent use; a nil Recorder records nothing.
type Recorder struct {
	log  *Log
	head Head // with the ticket that the next piece begins with

	mu      sync.Mutex
	loose   bool
	rest    undone   // of a loose order
	in      *segment // of the piece; nil between pieces
	piece   uint32
	home    int64 // the record in whose header rows in order are counted
	counted int64 // rows counted there
	rows    int64 // of the piece
	bytes   int64 // of its deviations
	refuse  bool  // its ticket is too long to be recorded
}

// Begin begins to record a stream. The request of its ticket holds the restriction of its
// caller. Nothing is written before the stream has delivered rows.
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

// Batch records a batch, before it is sent. It never fails: what cannot be written is missing in the record.
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

// movesLocked is how a batch deviates from the plan's order, nil if it does not. The rows count as handed out.
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

// writeLocked writes a batch down.
func (r *Recorder) writeLocked(b *Batch, moves []byte) error {
	if r.in == nil || r.bytes > r.log.opts.PieceBytes || !r.log.isCurrent(r.in) {
		if err := r.beginLocked(); err != nil {
			return err
		}
	}
	err := r.addLocked(b, moves)
	if errors.Is(err, errMoved) { // it has no room for this
		if err = r.beginLocked(); err == nil {
			err = r.addLocked(b, moves)
		}
	}
	return err
}

// beginLocked begins a piece.
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
