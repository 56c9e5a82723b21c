package fetch

import "sync/atomic"

// Stats are an engine's counters since it was made, and what it holds now.
type Stats struct {
	Streams     int64 `json:"streams"`      // streams ever opened
	LiveStreams int   `json:"live_streams"` // streams open now
	Reads       int64 `json:"reads"`        // blobs read and found right
	ReadBytes   int64 `json:"read_bytes"`
	ReadNanos   int64 `json:"read_nanos"`   // time in the store, summed over reads
	FailedReads int64 `json:"failed_reads"` // missing, unreadable or wrong blobs
	Batches     int64 `json:"batches"`      // record batches handed to consumers
	Rows        int64 `json:"rows"`         // rows in them
	WindowLimit int64 `json:"window_limit"` // bytes that all streams may hold ahead
	WindowUsed  int64 `json:"window_used"`  // bytes that they hold now
	Snapshots   int   `json:"snapshots"`    // snapshots open now
}

type counters struct {
	streams, reads, readBytes, readNanos, failedReads, batches, rows atomic.Int64
}

// Stats returns the engine's counters.
func (e *Engine) Stats() Stats {
	st := Stats{
		Streams:     e.stats.streams.Load(),
		Reads:       e.stats.reads.Load(),
		ReadBytes:   e.stats.readBytes.Load(),
		ReadNanos:   e.stats.readNanos.Load(),
		FailedReads: e.stats.failedReads.Load(),
		Batches:     e.stats.batches.Load(),
		Rows:        e.stats.rows.Load(),
		WindowLimit: e.opts.WindowBytes,
		Snapshots:   e.snapshots.open(),
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	st.LiveStreams = len(e.streams)
	for s := range e.streams {
		st.WindowUsed += s.window.inUse()
	}
	return st
}
