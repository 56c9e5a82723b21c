package schema

import (
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
)

// Snapshot is the record of one committed version of a dataset: everything
// about it but its rows, which lie in manifest chunks. It is immutable.
type Snapshot struct {
	Dataset string
	// Number counts a dataset's snapshots from 1; a store never gives one out twice.
	Number int64
	// Parent is the snapshot that was newest when this one was begun, 0 for none.
	Parent  int64
	Created time.Time
	// Source says where the rows came from, for people ("imagefolder /data/in1k").
	Source string
	// Schema is the logical schema: "id" first, then metadata columns, then blob
	// columns. See Columns for what their field metadata says.
	Schema *arrow.Schema
	Splits []Split
	Chunks []Chunk
}

// Chunk is a run of consecutive manifest rows, stored in the form that docs/formats.md
// describes: as one blob, a page, or as several pages and a blob that lists them.
type Chunk struct {
	BlobRef
	Rows int64 `json:"rows"`
	// BlobBytes is the sum of the sizes of the blob cells in the chunk, by blob
	// column in schema order.
	BlobBytes []int64 `json:"blob_bytes"`
	// Pages is how many pages the blob lists, and PageBytes their size; 0 if it is a page itself.
	Pages     int   `json:"pages,omitempty"`
	PageBytes int64 `json:"page_bytes,omitempty"`
	// Statistics are what the list of pages tells of a page's columns, for Form.Statistics; nil if that is
	// nothing. They are no part of the record.
	Statistics []byte `json:"-"`
}

// Split is a named part of a snapshot: disjoint, ascending ranges of positions.
type Split struct {
	Name   string  `json:"name"`
	Ranges []Range `json:"ranges"`
}

// Range is the half-open interval [Start, End) of positions.
type Range struct {
	Start int64 `json:"start"`
	End   int64 `json:"end"`
}

// Rows is the number of samples in the snapshot.
func (s *Snapshot) Rows() int64 {
	var n int64
	for _, c := range s.Chunks {
		n += c.Rows
	}
	return n
}

// Rows is the number of samples in the split.
func (s Split) Rows() int64 {
	var n int64
	for _, r := range s.Ranges {
		n += r.End - r.Start
	}
	return n
}

// Selection is an uploaded list of positions of one snapshot, kept by the
// store under the hash of its content so that a ticket can name it.
type Selection struct {
	Dataset  string  `json:"dataset"`
	Snapshot int64   `json:"snapshot"`
	Rows     int64   `json:"rows"`
	Bitmap   BlobRef `json:"bitmap"` // one bit per position, little-endian 64-bit words
	Created  time.Time
	// Owner is the principal who uploaded it first, empty where nobody has a name.
	Owner string `json:"owner,omitempty"`
	// Expires is when it may go; zero if never. Use moves it on.
	Expires time.Time `json:"expires,omitzero"`
	// Most is how many the owner may have in the dataset that have not expired, where it is saved; 0: any number. It is
	// not stored.
	Most int `json:"-"`
}

// Expired reports whether the selection's time is over.
func (s *Selection) Expired(now time.Time) bool { return !s.Expires.IsZero() && !now.Before(s.Expires) }

// Extend has the selection live until then at least, zero for ever. It reports
// whether that changes anything.
func (s *Selection) Extend(until time.Time) bool {
	if s.Expires.IsZero() || !until.IsZero() && !until.After(s.Expires) {
		return false
	}
	s.Expires = until
	return true
}

// Key is a hash of the snapshot and of the positions: the same positions of another snapshot are another selection.
func (s *Selection) Key() Key {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "selection\x00%s\x00%d\x00", s.Dataset, s.Snapshot)
	_, _ = h.Write(s.Bitmap.Key[:])
	return Key(h.Sum(nil))
}

// Name is what requests call the selection: its key in hexadecimal digits.
func (s *Selection) Name() string { return s.Key().String() }
