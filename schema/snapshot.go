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

// Snapshot is the record of one committed version of a dataset. It has everything except
// the rows, which are stored in manifest chunks. It is immutable.
type Snapshot struct {
	Dataset string
	// Number counts a dataset's snapshots from 1. A store never uses a number twice.
	Number int64
	// Parent is the newest snapshot at the time when this one was begun, 0 for none.
	Parent  int64
	Created time.Time
	// Source says where the rows came from, for people ("imagefolder /data/in1k").
	Source string
	// Schema is the logical schema: "id" first, then metadata columns, then blob columns.
	Schema *arrow.Schema
	Splits []Split
	Chunks []Chunk
	// Sets are the object sets that contain, or once contained, blobs of its rows; nil if
	// there are none.
	Sets []SetRef

	union *union // set if it represents several snapshots; see NewUnion
}

// SetRef names an object set.
type SetRef struct {
	Prefix ObjectPrefix `json:"prefix"`
	// Blob is the set in the format of docs/formats.md. It is zero for a set of the store
	// itself, whose objects are found by the prefix alone.
	Blob BlobRef `json:"blob,omitzero"`
	// Unproven counts the blobs of the snapshot's rows in the set that had no checksum
	// when the snapshot was made. It does not change; the store knows what was learned
	// since.
	Unproven Unproven `json:"unproven,omitzero"`
	// Altered says that rows of the set may have been changed or deleted since the
	// attachment that made them. It stays set until an attachment replaces the rows.
	Altered bool `json:"altered,omitempty"`
}

// Unproven counts blobs without a checksum, each once.
type Unproven struct {
	Blobs int64 `json:"blobs"`
	Bytes int64 `json:"bytes"`
}

// IsZero reports whether everything has a checksum.
func (u Unproven) IsZero() bool { return u == Unproven{} }

// Chunk is a run of consecutive manifest rows, in the format of docs/formats.md: one page
// as a blob, or several pages and a blob that lists them.
type Chunk struct {
	BlobRef
	Rows int64 `json:"rows"`
	// BlobBytes is the total size of the blob cells in the chunk, by blob column in
	// schema order.
	BlobBytes []int64 `json:"blob_bytes"`
	// Pages is the number of pages that the blob lists, and PageBytes their total size; 0
	// if the blob is a page itself.
	Pages     int   `json:"pages,omitempty"`
	PageBytes int64 `json:"page_bytes,omitempty"`
	// Statistics are the statistics of a page's columns in the list of pages, for
	// Form.Statistics; nil if there are none. They are not part of the record.
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

// Selection is an uploaded list of positions of one snapshot. The store names it by the
// hash of its content, so that a ticket can name it.
type Selection struct {
	Dataset  string  `json:"dataset"`
	Snapshot int64   `json:"snapshot"`
	Rows     int64   `json:"rows"`
	Bitmap   BlobRef `json:"bitmap"` // one bit per position, little-endian 64-bit words
	// Content is the SHA-256 of the bitmap if its key is an address; else zero.
	Content Key `json:"content,omitzero"`
	Created time.Time
	// Owner is the principal who uploaded it first, "" if callers have no names.
	Owner string `json:"owner,omitempty"`
	// Expires is the time when it may be removed; zero if never. Each use extends it.
	Expires time.Time `json:"expires,omitzero"`
	// Most is how many unexpired selections the owner may have in the dataset when it is
	// saved; 0: any number. It is not stored.
	Most int `json:"-"`
}

// Expired reports whether the selection's time is over.
func (s *Selection) Expired(now time.Time) bool { return !s.Expires.IsZero() && !now.Before(s.Expires) }

// Extend makes the selection live at least until that time, zero for ever. It reports
// whether that changes anything.
func (s *Selection) Extend(until time.Time) bool {
	if s.Expires.IsZero() || !until.IsZero() && !until.After(s.Expires) {
		return false
	}
	s.Expires = until
	return true
}

// SetBitmap sets the blob with the positions, and the hash of its bytes if its key is
// none.
func (s *Selection) SetBitmap(ref BlobRef, bitmap []byte) {
	s.Bitmap, s.Content = ref, Key{}
	if !ref.Hashed() {
		s.Content = sha256.Sum256(bitmap)
	}
}

// Key is a hash of the snapshot and the positions: equal positions of another snapshot
// are another selection.
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

// Name is the name of the selection in requests: its key in hexadecimal digits.
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

// MarshalJSON writes the record of the snapshot in the form of stores. The schema is its
// Arrow IPC message in base64. The version is the lowest that can express the snapshot,
// so that older programs can read it.
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

// UnmarshalJSON parses the output of MarshalJSON. A malformed record is an ErrDataLoss.
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

// CheckTag returns a FieldError unless tag is fit for a tag: a name as in CheckName that
// does not consist of digits only, since those are snapshot numbers. field is the name of
// the field in the error.
func CheckTag(field, tag string) error {
	if tag != "" && strings.Trim(tag, "0123456789") == "" {
		return &FieldError{Field: field, Got: Quote(tag),
			Want: "a name that is not digits alone: those are the numbers of snapshots"}
	}
	return CheckName(field, tag)
}

// ParseSnapshotName parses a dataset in the form that people write: NAME for its newest
// snapshot, NAME@NUMBER for one by number, NAME@TAG for the one with a tag. The result
// has a number or a tag, or neither. field is the name of the text in errors.
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

// FormatSnapshotName writes the form that ParseSnapshotName parses.
func FormatSnapshotName(dataset string, number int64, tag string) string {
	switch {
	case tag != "":
		return dataset + "@" + tag
	case number != 0:
		return fmt.Sprintf("%s@%d", dataset, number)
	}
	return dataset
}

// checkSnapshotOrTag checks a tag of a request, which must not be set together with the
// number.
func checkSnapshotOrTag(number int64, tag string) error {
	if number != 0 && tag != "" {
		return &FieldError{Field: "tag", Got: fmt.Sprintf("it and snapshot %d", number), Want: "one of the two"}
	}
	return CheckTag("tag", tag)
}
