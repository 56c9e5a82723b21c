package schema

import (
	"fmt"
	"strconv"
)

// BucketByLength has batches made of samples of like length: those of some steps that follow one another are put in
// order of their length and shared out anew among these steps.
type BucketByLength struct {
	// Column says how long a sample is: a metadata column of integers or of floating point, or a blob column, by the
	// bytes of its cells. Null is 0, as is what is less.
	Column string `json:"column"`
	// Window is in how many steps a sample may move; 0: DefaultBucketWindow, or fewer where that would be more than
	// MaxBucketRows samples.
	Window int64 `json:"window,omitempty"`
}

// check implements checker.
func (b *BucketByLength) check(field string) error {
	switch field {
	case "column":
		if b.Column == "" {
			return &FieldError{Field: "bucket_by_length.column", Got: `""`,
				Want: "the column that says how long samples are"}
		}
	case "window":
		return checkRange("bucket_by_length.window", b.Window, 1, MaxBucketRows)
	}
	return nil
}

// checkBuckets checks BucketByLength, which is given, as far as Batch is.
func (r *Request) checkBuckets() error {
	b := r.BucketByLength
	if err := checkAll(b); err != nil {
		return err
	}
	if mode, _ := r.OrderOf(); mode != OrderStrict {
		return &FieldError{Field: "order", Got: Quote(r.Order),
			Want: fmt.Sprintf("%q, as other orders take batches of bucket_by_length apart", OrderStrict)}
	}
	if r.Batch > MaxBucketRows {
		return &FieldError{Field: "batch", Got: strconv.FormatInt(r.Batch, 10),
			Want: fmt.Sprintf("at most %d with bucket_by_length", MaxBucketRows)}
	}
	if r.Batch > 0 && b.Window > MaxBucketRows/r.Batch {
		return &FieldError{Field: "bucket_by_length.window", Got: strconv.FormatInt(b.Window, 10),
			Want: fmt.Sprintf("at most %d steps of %d samples", MaxBucketRows/r.Batch, r.Batch)}
	}
	return nil
}
