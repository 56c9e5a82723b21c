package streams

import (
	"cmp"
	"slices"
	"time"

	"bowstring/fetch/admission"
)

// WindowStats describes what a stream has ahead of its consumer.
type WindowStats struct {
	Job         string `json:"job"` // the plan's id
	Dataset     string `json:"dataset"`
	Order       string `json:"order"`
	Epoch       uint64 `json:"epoch"`
	Step        int64  `json:"step"`
	WindowLimit int64  `json:"window_limit"` // bytes that it may hold now
	WindowUsed  int64  `json:"window_used"`
	InFlight    int    `json:"reads_in_flight"` // or waiting for their turn
	Ready       int    `json:"rows_ready"`      // rows that wait for the consumer
	StoreWait   int64  `json:"store_wait_ns"`
	SpillWait   int64  `json:"spill_wait_ns"`
	WindowWait  int64  `json:"window_wait_ns"`
}

// Stats are the counters of a set since it was made, and what its streams hold now.
type Stats struct {
	Streams, Batches, Rows int64
	Live                   int
	WindowUsed             int64         // bytes, with batches that were not released
	Windows                []WindowStats // of each stream that reads, by dataset and job
}

// Stats returns the counters. It waits for a stream that is busy: those plan in
// slices, so that is not for long.
func (s *Set) Stats() Stats {
	c := &s.count
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Stats{
		Streams: c.streams.Load(), Batches: c.batches.Load(), Rows: c.rows.Load(), Live: len(s.streams),
		Windows:    make([]WindowStats, 0, len(s.streams)),
		WindowUsed: s.opts.Ledger.Accounts()[admission.Windows].Used,
	}
	for stream := range s.streams {
		if len(stream.columns) > 0 {
			st.Windows = append(st.Windows, stream.stats())
		}
	}
	slices.SortFunc(st.Windows, func(a, b WindowStats) int {
		return cmp.Or(cmp.Compare(a.Dataset, b.Dataset), cmp.Compare(a.Job, b.Job), cmp.Compare(a.Step, b.Step))
	})
	return st
}

// stats describes the stream.
func (s *Stream) stats() WindowStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.statsLocked()
}

func (s *Stream) statsLocked() WindowStats {
	full := s.waited.Window + s.fullFor
	if !s.fullSince.IsZero() {
		full += time.Since(s.fullSince)
	}
	return WindowStats{
		Job: s.job.ID(), Dataset: s.job.SnapshotName(), Order: cmp.Or(s.job.Request().Order, "strict"),
		Epoch: s.epochOf(s.slot.lap), Step: s.slot.step,
		WindowLimit: s.window.size, WindowUsed: s.window.used,
		InFlight: s.ahead.inFlight, Ready: s.ahead.ready,
		StoreWait: int64(s.waited.Store), SpillWait: int64(s.waited.Spill), WindowWait: int64(full),
	}
}
