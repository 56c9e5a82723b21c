package fetch

import (
	"context"
	"errors"
)

// WarmProgress is how far a Warm is. Each blob counts once, however many
// samples have it.
type WarmProgress struct {
	Job    string `json:"job"`    // as in JobStats
	Rows   int64  `json:"rows"`   // of the epoch
	Seen   int64  `json:"seen"`   // rows looked at so far
	There  int64  `json:"there"`  // blobs that were in the spill
	Stored int64  `json:"stored"` // blobs that were fetched and stored
	Bytes  int64  `json:"bytes"`  // of those
	Failed int64  `json:"failed"` // blobs that could not be read, or not be stored
	Full   bool   `json:"full"`   // the spill would not keep more
	Done   bool   `json:"done"`   // it has come to its end
}

// Warm fills the spill with the samples of a job's epoch, in the order in which
// they will be used, until all are there or the spill would keep no more of
// them. It takes no bandwidth from streams that wait. progress, which may be nil, is called by
// the caller's goroutine a few times a second, and at the end.
func (e *Engine) Warm(ctx context.Context, j *Job, progress func(WarmProgress)) error {
	return errors.New("not there yet")
}
