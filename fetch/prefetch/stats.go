package prefetch

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"bowstring/fetch/admission"
	"bowstring/fetch/peers"
)

// WindowStats describes what a stream has ahead of its consumer.
type WindowStats struct {
	Job         string `json:"job"` // the plan's id
	Dataset     string `json:"dataset"`
	Order       string `json:"order"`
	Epoch       uint64 `json:"epoch"`
	Step        int64  `json:"step"`
	Steps       int64  `json:"steps"` // of an epoch; 0 where there is no plan
	Rank        int    `json:"rank"`
	WindowLimit int64  `json:"window_limit"` // bytes that it may hold now
	WindowUsed  int64  `json:"window_used"`
	InFlight    int    `json:"reads_in_flight"` // or waiting for their turn
	Ready       int    `json:"rows_ready"`      // rows that wait for the consumer
	StoreWait   int64  `json:"store_wait_ns"`
	SpillWait   int64  `json:"spill_wait_ns"`
	PeerWait    int64  `json:"peer_wait_ns"`
	WindowWait  int64  `json:"window_wait_ns"`
	MakingWait  int64  `json:"operators_wait_ns"`
}

// Stats are the counters of a set since it was made, and what its streams hold now.
type Stats struct {
	Streams, Batches, Rows int64
	Live                   int
	Waiting                int           // of those, whose consumers wait for a read
	WindowUsed             int64         // bytes, with batches that were not released
	Windows                []WindowStats // of each stream that reads, by dataset and job
}

// Stats returns the counters. It waits for no stream: of one that is busy it has
// what was true before.
func (s *Set) Stats() Stats {
	c := &s.count
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Stats{
		Streams: c.streams.Load(), Batches: c.batches.Load(), Rows: c.rows.Load(), Live: len(s.streams),
		Waiting:    int(s.waiting.Load()),
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

// Progress lists the streams that go on in the order of a plan, and of which others may know: all
// but those that see a part of their dataset alone.
func (s *Set) Progress() []peers.Progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]peers.Progress, 0, len(s.streams))
	for st := range s.streams {
		if len(st.columns) == 0 || st.steps == 0 || st.ticket.Within != nil {
			continue
		}
		list = append(list, peers.Progress{ID: st.id, Ticket: st.named, Tenant: st.caller.Tenant,
			Lap: st.told.lap.Load(), Index: st.told.at.Load()})
	}
	return list
}

// told is how a stream stood when its goroutine last had nothing to do, number by number.
type told struct {
	lap, step, at      atomic.Int64
	limit, used        atomic.Int64
	inFlight, ready    atomic.Int64
	store, spill, peer atomic.Int64 // waited, in ns
	making             atomic.Int64 // likewise
	// stood still, and since when after the stream was opened, 0 if it does not, in ns
	full, fullSinceOpened atomic.Int64
}

// tell says how the stream stands, for those who only look.
func (s *owner) tell() {
	t := &s.told
	tell(&t.lap, s.slot.lap)
	tell(&t.step, s.slot.step)
	at := s.slot.at
	if s.slot.list == nil && s.job.Layout() != nil {
		at = s.slot.step * s.job.Request().Batch // its rows lie anywhere in the step
	}
	tell(&t.at, at)
	tell(&t.limit, s.window.size)
	tell(&t.used, s.window.used)
	tell(&t.inFlight, int64(s.ahead.inFlight))
	tell(&t.ready, int64(s.ahead.ready))
	tell(&t.full, int64(s.fullOnce+s.fullFor))
	var since int64
	if !s.fullSince.IsZero() {
		since = max(1, int64(s.fullSince.Sub(s.opened)))
	}
	tell(&t.fullSinceOpened, since)
}

// tell stores what has changed: a store costs ten times a look.
func tell(to *atomic.Int64, v int64) {
	if to.Load() != v {
		to.Store(v)
	}
}

// stats describes the stream.
func (s *Stream) stats() WindowStats {
	t := &s.told
	full := t.full.Load()
	if since := t.fullSinceOpened.Load(); since != 0 {
		full += int64(time.Since(s.opened)) - since
	}
	return WindowStats{
		Job: s.job.ID(), Dataset: s.job.SnapshotName(), Order: cmp.Or(s.job.Request().Order, "strict"),
		Epoch: s.epochOf(t.lap.Load()), Step: t.step.Load(), Steps: s.steps, Rank: s.ticket.Rank,
		WindowLimit: t.limit.Load(), WindowUsed: t.used.Load(),
		InFlight: int(t.inFlight.Load()), Ready: int(t.ready.Load()),
		StoreWait: t.store.Load(), SpillWait: t.spill.Load(), PeerWait: t.peer.Load(), WindowWait: full,
		MakingWait: t.making.Load(),
	}
}
