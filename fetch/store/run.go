package store

import (
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"bowstring/schema"
)

// Run is what a store keeps of a training run by a mixture, whose weights may be changed from outside while it goes
// on.
//
// Steps before Settled have the weights that Steered gives them for good: a stream serves none of the others, and a
// change is made at none of them. Both are decided by one swap of the whole record, so a stream knows a change, or
// the change comes after all that the stream serves.
type Run struct {
	Dataset string `json:"dataset"` // that of the mixture's first source, beside which the run is kept
	Name    string `json:"name"`
	// Owner is the principal that began it; empty if callers have no names.
	Owner string `json:"owner,omitempty"`
	// Request is what all its requests have in common: what steps hold follows from it, and from Steered.
	Request json.RawMessage `json:"request"`
	// Steered are the changes, in the order in which they were made. It only grows.
	Steered []Steer `json:"steered,omitempty"`
	Settled int64   `json:"settled"`
	// Created is when it was begun, and Expires when it may go: use moves it on.
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
}

// Steer is a change of weights from outside.
type Steer struct {
	schema.MixtureChange
	ID string    `json:"id"`           // names the call, which may be repeated
	By string    `json:"by,omitempty"` // the principal
	At time.Time `json:"at,omitzero"`
}

const (
	// MaxRuns is how many runs that have not expired one owner may have beside a dataset.
	MaxRuns = 100
	// MaxRunBytes bounds the request of a run.
	MaxRunBytes = 64 << 10
)

// Expired reports whether the run's time is over.
func (r *Run) Expired(now time.Time) bool { return !now.Before(r.Expires) }

// Changes are the changes as requests have them.
func (r *Run) Changes() []schema.MixtureChange {
	var list []schema.MixtureChange
	for i := range r.Steered {
		list = append(list, r.Steered[i].MixtureChange)
	}
	return list
}

// NoRun is the schema.ErrNotFound for a run that is not there. It says which there are.
func NoRun(dataset, name string, have []string) error {
	hint := "it begins with its first stream"
	if near := schema.Nearest(name, have); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	return fmt.Errorf("%w: beside dataset %q there is no run %q (%s)", schema.ErrNotFound, dataset, name, hint)
}

// CheckRun checks what is to be kept of a run, beside the others of its dataset, where it is new.
func CheckRun(run *Run, isNew bool, others iter.Seq[*Run], now time.Time) error {
	if n := len(run.Request); n > MaxRunBytes {
		return fmt.Errorf("%w: the mixture of run %q takes %d bytes, at most %d are kept of one", schema.ErrLimit, run.Name,
			n, MaxRunBytes)
	}
	if !isNew {
		return nil
	}
	n := 0
	for other := range others {
		if other.Owner == run.Owner && !other.Expired(now) {
			n++
		}
	}
	if n < MaxRuns {
		return nil
	}
	owner := "callers without a name have"
	if run.Owner != "" {
		owner = schema.Quote(run.Owner) + " has"
	}
	return fmt.Errorf("%w: MaxRuns: %s %d runs beside dataset %q, at most %d are allowed: one goes when it was not used "+
		"for long", schema.ErrLimit, owner, n, run.Dataset, MaxRuns)
}
