package predict

import (
	"fmt"

	"bowstring/schema"
)

// Job is what a model needs to know of a job and of where it will run. Where it says all,
// it is of all ranks, or of all nodes, together.
type Job struct {
	Rows     int64   // of an epoch, all ranks
	RowBytes float64 // of a row's blobs, on average
	RowReads float64 // blobs of a row
	Batch    int64   // rows of a global batch
	Ranks    int64
	Epochs   int64
	PaceMS   float64 // what the consumers take for a step, all ranks beside one another; 0: nothing
	Nodes    int64   // that own the dataset together
	Local    bool    // ranks get what their nodes own
	Strict   bool    // batches come in the plan's order

	CacheBytes  int64 // budget of each node's cache; 0: there is none
	HeldBytes   int64 // of the job's blobs, that the caches hold already
	WindowBytes int64 // of each node
	BatchBytes  int64 // of a record batch, at most
	Lookups     int64 // round trips before the first blob can be asked for
}

// check fails with a schema.FieldError where nothing can be said of a job.
func (j *Job) check() error {
	for _, f := range []struct {
		name string
		n    int64
	}{{"rows", j.Rows}, {"batch", j.Batch}, {"ranks", j.Ranks}, {"epochs", j.Epochs}, {"nodes", j.Nodes},
		{"window_bytes", j.WindowBytes}, {"batch_bytes", j.BatchBytes}} {
		if f.n < 1 {
			return &schema.FieldError{Field: f.name, Got: fmt.Sprint(f.n), Want: "1 or more"}
		}
	}
	if !(j.RowBytes >= 0 && j.RowReads >= 0 && j.PaceMS >= 0) || j.CacheBytes < 0 || j.HeldBytes < 0 || j.Lookups < 0 {
		return &schema.FieldError{Field: "job", Got: fmt.Sprintf("%+v", *j), Want: "figures of 0 or more"}
	}
	return nil
}

const (
	// cacheFixed is what a cache's index takes of its budget, and cacheBlob what each blob
	// takes beside its bytes: header, index, and on average half of the alignment.
	cacheFixed = 8 << 20
	cacheBlob  = 288
)

// footprint is what the blobs of all rows take of caches.
func (j *Job) footprint() float64 { return float64(j.Rows) * (j.RowBytes + cacheBlob*j.RowReads) }

// held is the share of the rows that caches of so many bytes each hold. With one job no
// policy does better than to keep what it has: each row is used once an epoch.
func (j *Job) held(cacheBytes int64) float64 {
	if j.RowReads == 0 {
		return 1 // nothing is read
	}
	return min(float64(j.Nodes)*float64(max(cacheBytes-cacheFixed, 0))/j.footprint(), 1)
}

// heldNow is the share of the rows that caches hold already.
func (j *Job) heldNow() float64 {
	if j.RowReads == 0 {
		return 1
	}
	return min(float64(j.HeldBytes)/max(float64(j.Rows)*j.RowBytes, 1), 1)
}
