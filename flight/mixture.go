package flight

import (
	"context"
	"sync/atomic"

	"bowstring/fetch"
	"bowstring/flight/audit"
	"bowstring/flight/usage"
)

// sourceRows counts the rows of each source that a stream of a mixture has sent.
type sourceRows struct {
	job   *fetch.Job
	sent  []atomic.Int64
	bytes []int64 // of a row, in the mean
}

// countSources has the rows of a job's sources be counted apart, if it is of a mixture. ctx is the call's.
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

// add counts rows.
func (s *sourceRows) add(positions []int64) {
	if s == nil {
		return
	}
	for _, pos := range positions {
		source, _ := s.job.Locate(pos)
		s.sent[source].Add(1)
	}
}

// part is what of all that a stream used goes to a dataset of it.
type part struct {
	dataset string
	rows    int64
	share   float64 // of the bytes, and of what else there is
}

// parts divides what a call uses between the datasets of its mixture: by the rows that it has sent of each, and by their
// mean size. Before it has sent any, all goes to the first. It is nil of a call that is not of a mixture.
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

// of is the part's of an amount. A stream counts once, with the first dataset.
func (p *part) of(all usage.Amount, first bool) usage.Amount {
	scale := func(n int64) int64 { return int64(p.share * float64(n)) }
	a := usage.Amount{Rows: p.rows, Bytes: scale(all.Bytes), StoreBytes: scale(all.StoreBytes),
		Seconds: p.share * all.Seconds, ProcessorSeconds: p.share * all.ProcessorSeconds}
	if first {
		a.Streams = all.Streams
	}
	return a
}

// eachSource makes of an event of a call that reads a mixture one for each of its datasets.
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
		if e.Rows > 0 {
			of.Rows, of.Bytes = p.rows, int64(p.share*float64(e.Bytes))
		}
		list[i] = of
	}
	return list
}
