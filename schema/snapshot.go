package schema

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
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
	// Sets are the object sets in which blobs of its rows lie, or once lay; nil if there are none.
	Sets []SetRef

	union *union // of one that stands for several; see NewUnion
}

// SetRef names an object set.
type SetRef struct {
	Prefix ObjectPrefix `json:"prefix"`
	// Blob is the set in the form that docs/formats.md describes. It is the zero value of a set of the store itself, whose objects
	// are found by the prefix alone.
	Blob BlobRef `json:"blob,omitzero"`
	// Unproven is how much of what the snapshot's rows refer to in the set had no checksum when the snapshot was made. It
	// does not change; what was learned since is the store's to say.
	Unproven Unproven `json:"unproven,omitzero"`
	// Altered says that rows that lay in it may have been changed or deleted since the attachment that made them. It stays
	// until an attachment replaces the rows.
	Altered bool `json:"altered,omitempty"`
}

// Unproven is how much has no checksum: each blob counts once.
type Unproven struct {
	Blobs int64 `json:"blobs"`
	Bytes int64 `json:"bytes"`
}

// IsZero reports whether everything has a checksum.
func (u Unproven) IsZero() bool { return u == Unproven{} }

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
	// Content is the SHA-256 of the bitmap where its key is an address; else the zero value.
	Content Key `json:"content,omitzero"`
	Created time.Time
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

// SetBitmap sets the blob in which the positions are stored, and what is known of its bytes.
func (s *Selection) SetBitmap(ref BlobRef, bitmap []byte) {
	s.Bitmap, s.Content = ref, Key{}
	if !ref.Hashed() {
		s.Content = sha256.Sum256(bitmap)
	}
}

// Key is a hash of the snapshot and of the positions: the same positions of another snapshot are another selection.
func (s *Selection) Key() Key {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "selection\x00%s\x00%d\x00", s.Dataset, s.Snapshot)
	content := s.Bitmap.Key
	if s.Content != (Key{}) {
		content = s.Content
	}
	_, _ = h.Write(content[:])
	return Key(h.Sum(nil))
}

// Name is what requests call the selection: its key in hexadecimal digits.
func (s *Selection) Name() string { return s.Key().String() }

// recordVersion is the newest version of a snapshot's record.
const recordVersion = 3

// snapshotJSON is the stored form of a Snapshot.
type snapshotJSON struct {
	Version int       `json:"version,omitempty"` // 0 and 1: no chunk has pages; below 3: no sets
	Dataset string    `json:"dataset"`
	Number  int64     `json:"number"`
	Parent  int64     `json:"parent"`
	Created time.Time `json:"created"`
	Source  string    `json:"source"`
	Schema  []byte    `json:"schema"` // the IPC schema message, in base64
	Splits  []Split   `json:"splits"`
	Chunks  []Chunk   `json:"chunks"`
	Sets    []SetRef  `json:"sets,omitempty"`
}

// MarshalJSON writes the record of the snapshot as stores keep it. The schema
// is its Arrow IPC message in base64.
func (s Snapshot) MarshalJSON() ([]byte, error) {
	message, err := encodeSchema(s.Schema)
	if err != nil {
		return nil, err
	}
	version := 0
	if slices.ContainsFunc(s.Chunks, func(c Chunk) bool { return c.Pages > 0 }) {
		version = 2
	}
	if len(s.Sets) > 0 {
		version = recordVersion
	}
	out := snapshotJSON{version, s.Dataset, s.Number, s.Parent, s.Created.UTC(), s.Source, message, s.Splits, s.Chunks,
		s.Sets}
	if out.Splits == nil {
		out.Splits = []Split{}
	}
	if out.Chunks == nil {
		out.Chunks = []Chunk{}
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON wrote. A record that is not one is an
// ErrDataLoss.
func (s *Snapshot) UnmarshalJSON(b []byte) error {
	var in snapshotJSON
	if err := json.Unmarshal(b, &in); err != nil {
		return fmt.Errorf("%w: snapshot record: %w", ErrDataLoss, err)
	}
	if in.Version < 0 || in.Version > recordVersion {
		return fmt.Errorf("%w: snapshot record of version %d; this bowstring knows up to %d", ErrDataLoss, in.Version,
			recordVersion)
	}
	schema, err := decodeSchema(in.Schema)
	if err != nil {
		return fmt.Errorf("snapshot record: %w", err)
	}
	if err := CheckSchema(schema); err != nil {
		return fmt.Errorf("%w: snapshot record: %s", ErrDataLoss, err.Error()) // the record is broken, not a request
	}
	*s = Snapshot{in.Dataset, in.Number, in.Parent, in.Created, in.Source, schema, in.Splits, in.Chunks, in.Sets, nil}
	return nil
}

// CheckTag reports a FieldError unless tag is fit for a tag: a name as CheckName
// takes it that is not digits alone, as those are the numbers of snapshots.
// field is what the error calls it.
func CheckTag(field, tag string) error {
	if tag != "" && strings.Trim(tag, "0123456789") == "" {
		return &FieldError{Field: field, Got: Quote(tag),
			Want: "a name that is not digits alone: those are the numbers of snapshots"}
	}
	return CheckName(field, tag)
}

// ParseSnapshotName reads a dataset as people write it: NAME for its newest
// snapshot, NAME@NUMBER for one by number, NAME@TAG for the one that has a tag.
// Of number and tag at most one is given. field is what errors call the text.
func ParseSnapshotName(field, text string) (dataset string, number int64, tag string, err error) {
	dataset, version, pinned := strings.Cut(text, "@")
	if err := CheckName(field, dataset); err != nil {
		return "", 0, "", err
	}
	if !pinned {
		return dataset, 0, "", nil
	}
	if strings.Trim(version, "0123456789") == "" {
		number, err := strconv.ParseInt(version, 10, 64)
		if err != nil || number < 1 {
			return "", 0, "", &FieldError{Field: field, Got: Quote(text),
				Want: fmt.Sprintf("a snapshot number from 1 to %d or a tag after the @, as in %s@1",
					int64(math.MaxInt64), dataset)}
		}
		return dataset, number, "", nil
	}
	if CheckTag(field, version) != nil {
		return "", 0, "", &FieldError{Field: field, Got: Quote(text), Want: fmt.Sprintf(
			"after the @ a snapshot number, or a tag of 1 to %d letters, digits, '.', '_' and '-', the first a letter "+
				"or digit", MaxNameLen)}
	}
	return dataset, 0, version, nil
}

// FormatSnapshotName writes what ParseSnapshotName reads.
func FormatSnapshotName(dataset string, number int64, tag string) string {
	switch {
	case tag != "":
		return dataset + "@" + tag
	case number != 0:
		return fmt.Sprintf("%s@%d", dataset, number)
	}
	return dataset
}

// checkSnapshotOrTag checks a tag that a request gives beside the number, which
// must not be given as well.
func checkSnapshotOrTag(number int64, tag string) error {
	if number != 0 && tag != "" {
		return &FieldError{Field: "tag", Got: fmt.Sprintf("it and snapshot %d", number), Want: "one of the two"}
	}
	return CheckTag("tag", tag)
}
