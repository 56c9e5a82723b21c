package schema

import (
	"fmt"
	"math"
	"strconv"
)

// Ticket says which part of a request's epoch one stream serves: the share of
// a rank in steps Step, Step+Stride, Step+2·Stride, … below Stop; and how many
// epochs, one after another. It is all the state there is, so a client can
// resume from one that it kept or wrote.
type Ticket struct {
	Request
	// Rank is in [0, world.size).
	Rank int `json:"rank"`
	// Step is the first step served, from 0.
	Step int64 `json:"step"`
	// Row is how many samples of this rank's share of Step are left out, because
	// they were served before.
	Row int64 `json:"row,omitempty"`
	// Stride is the distance from one step served to the next; 0 means 1. With N
	// workers, worker w takes Step w and Stride N.
	Stride int64 `json:"stride,omitempty"`
	// Stop is the first step not served; nil means the end of the epoch.
	Stop *int64 `json:"stop,omitempty"`
	// Epochs is how many epochs are served, from shuffle.epoch on; 0 means 1.
	// Step, Row and Served are of the first. With stride N each later one begins
	// at step Step mod N, so that workers keep to their steps. Not with Stop.
	Epochs int64 `json:"epochs,omitempty"`
	// Served says what a stream out of the plan's order has left behind: bit i
	// (of byte i/8, the least significant first) is set if the i-th row of the
	// first epoch was served before, counted in the plan's order from Row of Step
	// over what this ticket covers. It ends with a byte that is not 0; nil means
	// none. Only with orders other than strict.
	Served []byte `json:"served,omitempty"`
}

// ParseTicket decodes and checks the JSON of a ticket, as strictly as
// ParseRequest does.
func ParseTicket(b []byte) (Ticket, error) {
	var t Ticket
	if err := DecodeJSON("ticket", b, &t); err != nil {
		return Ticket{}, err
	}
	t.Selection.sort()
	if err := t.Check(); err != nil {
		return Ticket{}, err
	}
	return t, nil
}

// Marshal returns the canonical JSON. ParseTicket reads it back as t.
func (t Ticket) Marshal() []byte { return marshal(t) }

// Check reports the first field that is impossible, as a FieldError.
func (t Ticket) Check() error {
	if err := checkAll(&t); err != nil {
		return err
	}
	if n := t.WorldSize(); t.Rank < 0 || int64(t.Rank) >= n {
		want := fmt.Sprintf("an integer from 0 to %d, as world.size is %d", n-1, n)
		if t.World == nil {
			want = "0, as the ticket has no world"
		}
		return &FieldError{Field: "rank", Got: strconv.Itoa(t.Rank), Want: want}
	}
	if t.Stop != nil && *t.Stop < t.Step {
		return &FieldError{Field: "stop", Got: strconv.FormatInt(*t.Stop, 10),
			Want: fmt.Sprintf("an integer from step, which is %d, to 2^63-1", t.Step)}
	}
	if t.Epochs != 0 {
		if err := t.checkEpochs(); err != nil {
			return err
		}
	}
	if mode, _ := t.OrderOf(); t.Served != nil && mode == OrderStrict {
		return &FieldError{Field: "served", Got: "it with order " + strconv.Quote(mode),
			Want: "it left out, as step and row say where an exact order stands; or the order that the stream had"}
	}
	return nil
}

// checkEpochs checks Epochs, which is given, against other fields.
func (t Ticket) checkEpochs() error {
	got := strconv.FormatInt(t.Epochs, 10)
	if t.Stop != nil {
		return &FieldError{Field: "epochs", Got: fmt.Sprintf("%s and stop %d", got, *t.Stop),
			Want: "one of the two: stop ends a stream within its epoch"}
	}
	if t.Shuffle != nil && uint64(t.Epochs-1) > math.MaxUint64-t.Shuffle.Epoch {
		return &FieldError{Field: "epochs", Got: got,
			Want: fmt.Sprintf("an integer from 1 to %d, as shuffle.epoch is %d and the last is 2^64-1",
				math.MaxUint64-t.Shuffle.Epoch+1, t.Shuffle.Epoch)}
	}
	return nil
}

// check checks a field that is given.
func (t *Ticket) check(field string) error {
	switch field {
	case "rank":
		return checkRange(field, int64(t.Rank), 0, MaxWorld-1)
	case "step":
		return checkRange(field, t.Step, 0, math.MaxInt64)
	case "row":
		return checkRange(field, t.Row, 0, MaxBatch)
	case "stride":
		return checkRange(field, t.Stride, 1, MaxStride)
	case "epochs":
		return checkRange(field, t.Epochs, 1, MaxEpochs)
	case "served":
		return checkServed(t.Served)
	}
	return t.Request.check(field)
}

func checkServed(bits []byte) error {
	n := len(bits)
	switch {
	case n == 0:
		return &FieldError{Field: "served", Got: "no bits",
			Want: "a bitmap with a bit set; leave the field out if nothing was served"}
	case n > MaxServedBytes:
		return &FieldError{Field: "served", Got: fmt.Sprintf("%d bytes", n),
			Want: fmt.Sprintf("at most %d, decoded", MaxServedBytes)}
	case bits[n-1] == 0:
		return &FieldError{Field: "served", Got: fmt.Sprintf("a last byte of 0, of %d", n),
			Want: "the bitmap to end with the byte of the last bit set; leave the field out if none is"}
	}
	return nil
}

// Limits of tickets.
const (
	// MaxStride bounds Ticket.Stride.
	MaxStride = 1<<31 - 1
	// MaxEpochs bounds Ticket.Epochs.
	MaxEpochs = 1<<31 - 1
	// MaxServedBytes bounds Ticket.Served: a stream out of order may stand over
	// at most eight times as many rows.
	MaxServedBytes = 16 << 10
)
