package schema

import (
	"errors"
	"fmt"
)

// The kinds of failure a caller can act upon. Every error that crosses a
// package border wraps at most one of them; package flight maps each to one
// gRPC code, in one table.
var (
	// ErrInvalid: the request itself is wrong; repeating it cannot help.
	ErrInvalid = errors.New("invalid")
	// ErrNotFound: a dataset, snapshot, split, selection, sample or blob does not exist.
	ErrNotFound = errors.New("not found")
	// ErrExists: what was to be created is there already.
	ErrExists = errors.New("already exists")
	// ErrDenied: whoever asks may not do it, to something that he may know of.
	ErrDenied = errors.New("permission denied")
	// ErrLimit: a configured limit was reached; the message names it.
	ErrLimit = errors.New("limit reached")
	// ErrConflict: another writer committed first; taking a fresh look and trying again can help.
	ErrConflict = errors.New("conflict")
	// ErrUnavailable: a resource is busy, draining or out of reach just now.
	ErrUnavailable = errors.New("unavailable")
	// ErrDataLoss: stored bytes do not match their checksum, or are gone though the manifest names them.
	ErrDataLoss = errors.New("data loss")
	// ErrNotSupported: the data may well be what it says, and is of a kind that this server does not read.
	ErrNotSupported = errors.New("not supported")
	// ErrUnauthenticated: nobody knows who asks. The message never says what is wrong with the credentials.
	ErrUnauthenticated = errors.New("unauthenticated")
)

// FieldError is ErrInvalid with the place: which field of a request, what it
// held, and what it takes.
type FieldError struct {
	Field string // path in the request, such as "shuffle.seed"
	Got   string // the offending value as the client wrote it, abridged
	Want  string // what is allowed
}

func (e *FieldError) Error() string {
	if e.Got == "" {
		return fmt.Sprintf("%s: want %s", e.Field, e.Want)
	}
	return fmt.Sprintf("%s: got %s, want %s", e.Field, e.Got, e.Want)
}

// Unwrap makes every FieldError an ErrInvalid.
func (e *FieldError) Unwrap() error { return ErrInvalid }
