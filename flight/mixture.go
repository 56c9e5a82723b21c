package flight

import (
	"context"
	"sync/atomic"

	"bowstring/fetch"
	"bowstring/flight/audit"
	"bowstring/flight/usage"
)

// sourceRows counts the rows that a stream of a mixture has sent, by source. The stream's
// goroutine adds; usage and audit read concurrently.
type sourceRows struct {
	job   *fetch.Job
	sent  []atomic.Int64
	bytes []int64 // mean size of a row; fixed
}

// countSources makes the call of ctx count the rows of each source. It returns nil, on
// which add does nothing, if the job has no mixture.
func countSources(ctx context.Context, job *fetch.Job) *sourceRows {
	c := callFrom(ctx)
	if c == nil || job.Alone() != nil {
		return nil
	}
	s := &sourceRows{job: job, sent: make([]atomic.Int64, job.Sources()), bytes: make([]int64, job.Sources())}
	for i := range s.bytes {
		s.bytes[i] = job.SourceBytes(i)
	}
	c.sources.Store(s)
	return s
}

// add counts rows by their positions in the mixture.
func (s *sourceRows) add(positions []int64) {
	if s == nil {
		return
	}
	for _, pos := range positions {
		source, _ := s.job.Locate(pos)
		s.sent[source].Add(1)
	}
}

// part is the fraction of a stream's usage that belongs to one dataset.
type part struct {
	dataset string
	rows    int64
	share   float64 // of bytes, time and store reads; all shares sum to 1
}

// parts divides a call's usage among the datasets of its mixture. Each dataset's weight is
// its sent rows multiplied by their mean size. Before any row was sent, the first dataset
// has all of it. Sources of the same dataset are merged. parts returns nil if the call does
// not read a mixture. registry.mu is held.
func (c *call) parts() []part {
	a := &c.access
	if len(a.Sources) == 0 {
		return nil
	}
	list := make([]part, 0, len(a.Sources))
	at := map[string]int{}
	total := 0.0
	sent := c.sources.Load()
	for i := range a.Sources {
		name := a.Sources[i].Dataset
		n, ok := at[name]
		if !ok {
			n = len(list)
			at[name], list = n, append(list, part{dataset: name})
		}
		if sent != nil && i < len(sent.sent) {
			rows := sent.sent[i].Load()
			weight := float64(rows) * float64(max(sent.bytes[i], 1))
			list[n].rows += rows
			list[n].share += weight
			total += weight
		}
	}
	for i := range list {
		switch {
		case total > 0:
			list[i].share /= total
		case i == 0:
			list[i].share = 1
		}
	}
	return list
}

// of returns the part's fraction of an amount. The stream itself counts once, for the first
// dataset: fractions of a stream would not add up after rounding.
func (p *part) of(all usage.Amount, first bool) usage.Amount {
	scale := func(n int64) int64 { return int64(p.share * float64(n)) }
	a := usage.Amount{Rows: p.rows, Bytes: scale(all.Bytes), StoreBytes: scale(all.StoreBytes),
		Seconds: p.share * all.Seconds, ProcessorSeconds: p.share * all.ProcessorSeconds}
	if first {
		a.Streams = all.Streams
	}
	return a
}

// eachSource splits an event of a call into one event for each dataset of its mixture, with
// that dataset's snapshot and rule. An event of another call is returned alone.
func (c *call) eachSource(e audit.Event) []audit.Event {
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	parts := c.parts()
	if parts == nil {
		return []audit.Event{e}
	}
	list := make([]audit.Event, len(parts))
	for i := range parts {
		p, of := &parts[i], e
		for k := range c.access.Sources {
			s := &c.access.Sources[k]
			if s.Dataset != p.dataset {
				continue
			}
			of.Dataset, of.Snapshot = s.Dataset, s.Snapshot
			if s.Decision.Rule != nil {
				of.Rule = s.Decision.Rule.String()
			}
			break
		}
		// Only the event at the end of a read has figures.
		if e.Rows > 0 {
			of.Rows, of.Bytes = p.rows, int64(p.share*float64(e.Bytes))
		}
		list[i] = of
	}
	return list
}
