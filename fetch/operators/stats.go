package operators

import "sync/atomic"

// Stats are the counters of a stage since it was made, and what it does now.
type Stats struct {
	Workers       int   `json:"workers"`         // cells that may be made at once
	Running       int   `json:"running"`         // cells being made
	Waiting       int   `json:"waiting"`         // cells that wait for their turn
	Cells         int64 `json:"cells"`           // made, or found that they cannot be
	Faults        int64 `json:"faults"`          // of those, which could not be made
	Panics        int64 `json:"panics"`          // of those, at which a program panicked
	Kept          int64 `json:"kept"`            // results that were offered to the spill
	Found         int64 `json:"found"`           // results that were found there, and not made again
	PrefixesKept  int64 `json:"prefixes_kept"`   // what the first steps made, that was offered to the spill
	PrefixesFound int64 `json:"prefixes_found"`  // and was found there, and not made again
	PrefixTrials  int64 `json:"prefix_trials"`   // cells that were made both ways, to compare
	InBytes       int64 `json:"in_bytes"`        // of the blobs
	OutBytes      int64 `json:"out_bytes"`       // of the results
	Processor     int64 `json:"processor_nanos"` // processor time
	Queued        int64 `json:"queued_nanos"`    // that cells waited for their turn
}

type counters struct {
	prefixesKept, prefixesFound, prefixTrials                      atomic.Int64
	kept, found, cells, faults, panics, in, out, processor, queued atomic.Int64
}

func (c *counters) add(t *Task, o *Outcome) {
	c.cells.Add(1)
	if o.Kept {
		c.found.Add(1)
	}
	if o.Err != nil {
		c.faults.Add(1)
	}
	c.in.Add(int64(len(t.Cell.Bytes())))
	c.out.Add(int64(len(o.Blob.Bytes())))
	c.processor.Add(int64(o.Processor))
	c.queued.Add(int64(o.Queued))
}

// Stats returns the counters.
func (s *Stage) Stats() Stats {
	c := &s.count
	st := Stats{
		Workers: s.opts.Workers, Waiting: s.queue.Waiting(), Cells: c.cells.Load(), Faults: c.faults.Load(),
		Panics: c.panics.Load(),
		Kept:   c.kept.Load(), Found: c.found.Load(),
		PrefixesKept: c.prefixesKept.Load(), PrefixesFound: c.prefixesFound.Load(), PrefixTrials: c.prefixTrials.Load(),
		InBytes: c.in.Load(), OutBytes: c.out.Load(), Processor: c.processor.Load(), Queued: c.queued.Load(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tenants {
		st.Running += int(t.running.Load())
	}
	return st
}
