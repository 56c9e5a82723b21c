package schema

import (
	"fmt"
	"math"
	"strconv"
)

// Ticket says which part of a request's epoch one stream serves: the share of
// a rank in steps Step, Step+Stride, Step+2·Stride, … below Stop. It is all the
// state there is, so a client can resume from one that it kept or wrote.
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
	}
	return t.Request.check(field)
}

// MaxStride bounds Ticket.Stride.
const MaxStride = 1<<31 - 1
