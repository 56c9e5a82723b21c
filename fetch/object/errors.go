package object

import (
	"context"
	"fmt"
	"time"

	"bowstring/schema"
)

// ChangedError is the schema.ErrDataLoss of a read whose object no longer has the wanted
// version.
type ChangedError struct {
	Bucket, Key string
	Want        schema.ObjectVersion
	Have        schema.ObjectVersion // zero if the server did not say
	Gone        bool                 // the object no longer exists
}

// Error implements error.
func (e *ChangedError) Error() string {
	if e.Gone {
		return fmt.Sprintf("%s: object %q of %s, which had %s, is gone", schema.ErrDataLoss, e.Key, e.Bucket, e.Want)
	}
	have := ""
	if !e.Have.IsZero() {
		have = fmt.Sprintf(", it has %s now", e.Have)
	}
	return fmt.Sprintf("%s: object %q of %s is not the one with %s any more%s", schema.ErrDataLoss, e.Key, e.Bucket,
		e.Want, have)
}

// Unwrap makes it a schema.ErrDataLoss.
func (e *ChangedError) Unwrap() error { return schema.ErrDataLoss }

// ThrottledError is the schema.ErrUnavailable of a server that asks for fewer requests
// (503 Slow Down, 429).
type ThrottledError struct {
	Bucket, Key string
	Status      int           // of HTTP
	After       time.Duration // how long to wait, as the server says; 0 if it does not
}

// Error implements error.
func (e *ThrottledError) Error() string {
	return fmt.Sprintf("%s: %s asks for fewer requests (status %d) at %q", schema.ErrUnavailable, e.Bucket, e.Status,
		e.Key)
}

// Unwrap makes it a schema.ErrUnavailable: a later attempt may succeed.
func (e *ThrottledError) Unwrap() error { return schema.ErrUnavailable }

// errorf is an error of a kind with a message.
func errorf(kind error, format string, args ...any) error {
	return fmt.Errorf("%w: %s", kind, fmt.Sprintf(format, args...))
}

// ended is the error of a call whose context has ended.
func ended(ctx context.Context, bucket, key string) error {
	if key == "" {
		return fmt.Errorf("%s: %w", bucket, context.Cause(ctx))
	}
	return fmt.Errorf("object %q of %s: %w", key, bucket, context.Cause(ctx))
}

func beyond(bucket, key string, offset int64, length int, size int64) error {
	return errorf(schema.ErrInvalid, "object %q of %s has %d bytes; %d from %d on reach beyond its end", key, bucket,
		size, length, offset)
}

func tooLarge(bucket, key string, size, limit int64) error {
	return errorf(schema.ErrLimit, "object %q of %s has %d bytes, more than the %d that are read at once", key, bucket,
		size, limit)
}

func moved(bucket, key string) error {
	return errorf(schema.ErrConflict, "object %q of %s was not written: it is not in the state that the write wants",
		key, bucket)
}

func checkCondition(bucket, key string, c Condition) error {
	if c.Absent && !c.Version.IsZero() {
		return errorf(schema.ErrInvalid, "object %q of %s is to be absent and to have %s", key, bucket, c.Version)
	}
	return nil
}
