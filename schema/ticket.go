package schema

import (
	"encoding/json"
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
	if err := decodeObject("ticket", b, ticketFields, &t); err != nil {
		return Ticket{}, err
	}
	if err := t.Check(); err != nil {
		return Ticket{}, err
	}
	return t, nil
}

// Marshal returns the canonical JSON. ParseTicket reads it back as t.
func (t Ticket) Marshal() []byte { return marshal(t) }

// Check reports the first field that is impossible, as a FieldError.
func (t Ticket) Check() error {
	if err := t.Request.Check(); err != nil {
		return err
	}
	if n := t.WorldSize(); t.Rank < 0 || int64(t.Rank) >= n {
		want := fmt.Sprintf("an integer from 0 to %d, as world.size is %d", n-1, n)
		if t.World == nil {
			want = "0, as the ticket has no world"
		}
		return &FieldError{Field: "rank", Got: strconv.Itoa(t.Rank), Want: want}
	}
	if err := checkRange("step", t.Step, 0, math.MaxInt64); err != nil {
		return err
	}
	if err := checkRange("row", t.Row, 0, MaxBatch); err != nil {
		return err
	}
	if t.Stride != 0 {
		if err := checkRange("stride", t.Stride, 1, MaxStride); err != nil {
			return err
		}
	}
	if t.Stop != nil && *t.Stop < t.Step {
		return &FieldError{Field: "stop", Got: strconv.FormatInt(*t.Stop, 10),
			Want: fmt.Sprintf("an integer from step, which is %d, to 2^63-1", t.Step)}
	}
	return nil
}

// MaxStride bounds Ticket.Stride.
const MaxStride = 1<<31 - 1

var ticketFields = func() []field[Ticket] {
	var fs []field[Ticket]
	for _, f := range requestFields {
		fs = append(fs, field[Ticket]{f.name, func(t *Ticket, p string, v json.RawMessage) error {
			return f.set(&t.Request, p, v)
		}})
	}
	return append(fs,
		field[Ticket]{"rank", func(t *Ticket, p string, v json.RawMessage) error {
			n, err := asInt(p, v, 0, MaxWorld-1)
			t.Rank = int(n)
			return err
		}},
		field[Ticket]{"step", func(t *Ticket, p string, v json.RawMessage) (err error) {
			t.Step, err = asInt(p, v, 0, math.MaxInt64)
			return err
		}},
		field[Ticket]{"row", func(t *Ticket, p string, v json.RawMessage) (err error) {
			t.Row, err = asInt(p, v, 0, MaxBatch)
			return err
		}},
		field[Ticket]{"stride", func(t *Ticket, p string, v json.RawMessage) (err error) {
			t.Stride, err = asInt(p, v, 1, MaxStride)
			return err
		}},
		field[Ticket]{"stop", func(t *Ticket, p string, v json.RawMessage) error {
			n, err := asInt(p, v, 0, math.MaxInt64)
			t.Stop = &n
			return err
		}})
}()
