package spill

import "time"

// Demand is what consumers need, counted since some beginning: no field ever falls. What is asked of it is the
// difference between two times.
type Demand struct {
	// Waited is for how long consumers waited for a batch of which some blob was not there yet, and came from the
	// store. The times of all streams are added up.
	Waited time.Duration `json:"waited_ns"`
	// Streamed is for how long streams were open, those that are open now included, added up. So Waited is a part of
	// it.
	Streamed time.Duration `json:"streamed_ns"`
	// StoreBytes are those of blobs that streams got from the store, SpillBytes of those that they got from the cache.
	StoreBytes int64 `json:"store_bytes"`
	SpillBytes int64 `json:"spill_bytes"`
}

// Sub is what was added since an earlier time.
func (d Demand) Sub(earlier Demand) Demand {
	return Demand{
		Waited: d.Waited - earlier.Waited, Streamed: d.Streamed - earlier.Streamed,
		StoreBytes: d.StoreBytes - earlier.StoreBytes, SpillBytes: d.SpillBytes - earlier.SpillBytes,
	}
}
