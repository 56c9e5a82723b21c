package object

import (
	"fmt"
	"time"

	"bowstring/schema"
)

// ChangedError is the schema.ErrDataLoss of a read that wants another version of an object than there is.
type ChangedError struct {
	Bucket, Key string
	Want        schema.ObjectVersion
	Have        schema.ObjectVersion // zero where the server did not say
}

// Error implements error.
func (e *ChangedError) Error() string {
	have := ""
	if !e.Have.IsZero() {
		have = fmt.Sprintf(", it has %s now", e.Have)
	}
	return fmt.Sprintf("%s: object %s of %s is not the one with %s any more%s", schema.ErrDataLoss, e.Key, e.Bucket,
		e.Want, have)
}

// Unwrap makes it a schema.ErrDataLoss.
func (e *ChangedError) Unwrap() error { return schema.ErrDataLoss }

// ThrottledError is the schema.ErrUnavailable of a server that asks for fewer requests (503 Slow Down, 429).
type ThrottledError struct {
	Bucket, Key string
	Status      int           // of HTTP
	After       time.Duration // when to ask again, as the server says; 0 if it does not
}

// Error implements error.
func (e *ThrottledError) Error() string {
	return fmt.Sprintf("%s: %s asks for fewer requests (status %d) at %s", schema.ErrUnavailable, e.Bucket, e.Status, e.Key)
}

// Unwrap makes it a schema.ErrUnavailable: another attempt, later, makes sense.
func (e *ThrottledError) Unwrap() error { return schema.ErrUnavailable }
