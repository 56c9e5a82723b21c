package object

import (
	"context"
	"iter"
	"time"

	"bowstring/schema"
)

// Bucket stores objects by key. Implementations are safe for concurrent use.
//
// Keys are relative to the bucket. Errors wrap sentinels of package schema:
//
//   - ErrNotFound: no such object or bucket
//   - ErrDataLoss: the object has another version than the caller wants, or the server sent other bytes than it announced
//   - ErrDenied: the credentials do not allow it
//   - ErrUnavailable: network, 5xx; a *ThrottledError if the server asks for fewer requests
//   - ErrNotSupported: archived, or encrypted with the customer's key
//   - ErrInvalid: a key or an argument that the server cannot accept
type Bucket interface {
	// URL names the bucket without secrets, in the form that Open takes. Two buckets with equal URLs are the same.
	URL() string
	// Range fills buf with the bytes of an object from offset on. Either all of buf is
	// filled or the error is not nil. With a version other than the zero value it reads
	// that version only; an object with another one is a *ChangedError. Nothing writes to
	// buf after Range has returned.
	Range(ctx context.Context, key string, v schema.ObjectVersion, offset int64, buf []byte) error
	// Get reads a whole object. An object of more than limit bytes is an ErrLimit.
	Get(ctx context.Context, key string, v schema.ObjectVersion, limit int64) ([]byte, Info, error)
	// Stat describes an object without reading it.
	Stat(ctx context.Context, key string) (Info, error)
	// List lists objects in ascending order of the bytes of their keys. An error ends it.
	List(ctx context.Context, opts ListOptions) iter.Seq2[Info, error]
	// Put writes an object, at most once, if the condition holds. It keeps no reference
	// to body. The outcome says whether the object was made; the error is nil if and only
	// if it was.
	Put(ctx context.Context, key string, body []byte, c Condition) (Info, Outcome, error)
	// Delete removes an object. It is no error if there is none.
	Delete(ctx context.Context, key string) error
	// Close ends idle connections. Calls under way end by themselves.
	Close() error
}

// Info describes an object.
type Info struct {
	Key      string
	Size     int64 // bytes
	Version  schema.ObjectVersion
	Modified time.Time // by the server's clock
	// Date is the server's clock when it answered; zero if the answer has none.
	Date time.Time
	// Prefix marks a common prefix of several objects, which ListOptions.Delimiter asks
	// for, and no object.
	Prefix bool
	// Class is the storage class as the server names it, "" for the usual one.
	Class string
}

// ListOptions say what is listed.
type ListOptions struct {
	Prefix string // of keys
	After  string // only keys greater than it are listed; "" for all
	// Delimiter groups keys that are equal up to it, behind Prefix: each group is listed
	// once, as a prefix.
	Delimiter string
	// Page, if not nil, is called before each request for a page of the list. Its error ends the list.
	Page func(context.Context) error
}

// begin is called before each request for a page.
func (o *ListOptions) begin(ctx context.Context) error {
	if o.Page == nil {
		return nil
	}
	return o.Page(ctx)
}

// Condition says when a Put may write. The zero value: always. At most one field is set.
type Condition struct {
	Absent  bool                 // there must be no object
	Version schema.ObjectVersion // the object must have it
}

// Outcome is what became of a Put.
type Outcome int

// Outcomes of a Put.
const (
	// Failed: nothing was written, nor will be.
	Failed Outcome = iota
	// Made: the object is what was to be written.
	Made
	// Moved: the condition did not hold. Nothing was written.
	Moved
	// Uncertain: the answer was lost, or is neither yes nor no. The object may have been
	// written, or may still be written.
	Uncertain
)

// String names the outcome.
func (o Outcome) String() string {
	switch o {
	case Failed:
		return "failed"
	case Made:
		return "made"
	case Moved:
		return "moved"
	case Uncertain:
		return "uncertain"
	}
	return "unknown"
}
