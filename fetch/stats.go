package fetch

import (
	"cmp"
	"slices"
	"time"

	"bowstring/spill"
)

// Stats are an engine's counters since it was made, and what it holds now.
type Stats struct {
	Streams     int64 `json:"streams"`      // streams ever opened
	LiveStreams int   `json:"live_streams"` // streams open now
	Reads       int64 `json:"reads"`        // blobs read and found right
	ReadBytes   int64 `json:"read_bytes"`
	ReadNanos   int64 `json:"read_nanos"`   // time in the store, summed over reads
	FailedReads int64 `json:"failed_reads"` // attempts that brought no blob, or a wrong one
	SharedReads int64 `json:"shared_reads"` // cells that came with a read made for another
	Retries     int64 `json:"retries"`      // attempts after one that failed or was silent for long
	Hedges      int64 `json:"hedges"`       // attempts beside one that was slow
	HedgesWon   int64 `json:"hedges_won"`   // of those, which brought the blob first
	Batches     int64 `json:"batches"`      // record batches handed to consumers
	Rows        int64 `json:"rows"`         // rows in them

	ReadsInFlight int     `json:"reads_in_flight"`
	BytesInFlight int64   `json:"bytes_in_flight"`
	InFlightLimit int64   `json:"in_flight_limit"` // bytes that may be, as the path was measured
	Latency       Latency `json:"latency"`
	Path          Path    `json:"path"`

	WindowLimit int64         `json:"window_limit"` // bytes that all streams may hold ahead
	WindowUsed  int64         `json:"window_used"`  // bytes that they hold now
	Windows     []WindowStats `json:"windows"`      // of each live stream, by dataset and job
	Snapshots   int           `json:"snapshots"`    // snapshots open now

	Fills      int64        `json:"fills"`       // blobs read for the spill alone, before a stream wanted them
	SpillReads int64        `json:"spill_reads"` // blobs found in the spill and right
	SpillBytes int64        `json:"spill_bytes"`
	Spill      *spill.Stats `json:"spill,omitempty"` // of the cache, if there is one
	Jobs       []JobStats   `json:"jobs"`            // that run, by dataset and job
}

// JobStats is where the blobs of a job came from, whatever streams it has had
// since it began.
type JobStats struct {
	Job        string `json:"job"`     // what is the same in the plans of all epochs
	Dataset    string `json:"dataset"` // with the snapshot's number
	Streams    int    `json:"streams"` // open now
	Epoch      uint64 `json:"epoch"`   // where it is
	Row        int64  `json:"row"`     // in the epoch's order
	Rows       int64  `json:"rows"`    // of an epoch
	RowTime    int64  `json:"row_time_ns"`
	SpillReads int64  `json:"spill_reads"`
	SpillBytes int64  `json:"spill_bytes"`
	StoreReads int64  `json:"store_reads"`
	StoreBytes int64  `json:"store_bytes"`
	// SavedNanos is the time in the store that the blobs from the spill would have
	// taken, at what the others took.
	SavedNanos int64 `json:"saved_ns"`
}

// Latency is how long the reads of the last five to ten seconds took, in
// microseconds; the quantiles are zero where there were too few.
type Latency struct {
	P50 int64 `json:"p50_us"`
	P95 int64 `json:"p95_us"`
	P99 int64 `json:"p99_us"`
	Max int64 `json:"max_us"`
}

// Path is what was measured of the way to the store.
type Path struct {
	MinLatency  int64   `json:"min_latency_us"`
	BytesPerSec float64 `json:"bytes_per_s"` // as a moving average
}

// WindowStats describes what a stream has ahead of its consumer.
type WindowStats struct {
	Job         string `json:"job"` // the plan's id
	Dataset     string `json:"dataset"`
	Order       string `json:"order"`
	Epoch       uint64 `json:"epoch"`
	Step        int64  `json:"step"`
	WindowLimit int64  `json:"window_limit"` // bytes that it may hold now
	WindowUsed  int64  `json:"window_used"`
	InFlight    int    `json:"reads_in_flight"`
	Ready       int    `json:"rows_ready"` // rows that wait for the consumer
	StoreWait   int64  `json:"store_wait_ns"`
	SpillWait   int64  `json:"spill_wait_ns"`
	WindowWait  int64  `json:"window_wait_ns"`
}

// counters are guarded by scheduler.mu.
type counters struct {
	streams, reads, readBytes, readNanos, failedReads int64
	sharedReads, retries, hedges, hedgesWon           int64
	batches, rows                                     int64
	spillReads, spillBytes, fills                     int64
	streamed, waited                                  time.Duration // of streams, in all; of those that are closed; for the store
}

// Stats returns the engine's counters.
func (e *Engine) Stats() Stats {
	snapshots := e.snapshots.OpenSnapshots()
	var cache *spill.Stats
	if e.opts.Spill != nil {
		st := e.opts.Spill.Stats()
		cache = &st
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	c := &e.stats
	st := Stats{
		Streams: c.streams, LiveStreams: len(e.streams),
		Reads: c.reads, ReadBytes: c.readBytes, ReadNanos: c.readNanos, FailedReads: c.failedReads,
		SharedReads: c.sharedReads, Retries: c.retries, Hedges: c.hedges, HedgesWon: c.hedgesWon,
		Batches: c.batches, Rows: c.rows, SpillReads: c.spillReads, SpillBytes: c.spillBytes, Fills: c.fills,
		ReadsInFlight: e.flow.reads, BytesInFlight: e.flow.used, InFlightLimit: e.flow.limit,
		Path:        Path{MinLatency: e.flow.latency.Microseconds(), BytesPerSec: e.flow.rate},
		WindowLimit: e.opts.WindowBytes, Windows: []WindowStats{}, Snapshots: snapshots,
		Spill: cache, Jobs: e.jobStats(),
	}
	quantile := func(q float64) int64 {
		d, _ := e.latency.quantile(q)
		return d.Microseconds()
	}
	st.Latency = Latency{quantile(0.5), quantile(0.95), quantile(0.99), e.latency.greatest().Microseconds()}
	for s := range e.streams {
		st.WindowUsed += s.window.used
		if len(s.columns) == 0 {
			continue // it reads nothing, and Next goes on without the lock
		}
		full := s.waited.Window + s.fullFor
		if !s.fullSince.IsZero() {
			full += time.Since(s.fullSince)
		}
		st.Windows = append(st.Windows, WindowStats{
			Job: s.job.ID(), Dataset: s.job.SnapshotName(), Order: cmp.Or(s.job.Request().Order, "strict"),
			Epoch: s.epochOf(s.slot.lap), Step: s.slot.step,
			WindowLimit: s.window.size, WindowUsed: s.window.used,
			InFlight: s.ahead.inFlight, Ready: s.ahead.ready,
			StoreWait: int64(s.waited.Store), SpillWait: int64(s.waited.Spill), WindowWait: int64(full),
		})
	}
	slices.SortFunc(st.Windows, func(a, b WindowStats) int {
		return cmp.Or(cmp.Compare(a.Dataset, b.Dataset), cmp.Compare(a.Job, b.Job), cmp.Compare(a.Step, b.Step))
	})
	return st
}

// jobStats lists the jobs that run. s.mu is held.
func (s *scheduler) jobStats() []JobStats {
	jobs := make([]JobStats, 0, len(s.jobs))
	for _, l := range s.jobs {
		rows, served := l.order.Rows(), l.future.Served()
		js := JobStats{
			Job: l.group, Dataset: l.dataset, Streams: l.streams, Epoch: l.base + uint64(served/rows), Row: served % rows, Rows: rows,
			RowTime: int64(l.future.RowTime()), SpillReads: l.spillReads, SpillBytes: l.spillBytes, StoreReads: l.storeReads, StoreBytes: l.storeBytes,
		}
		if s.stats.reads > 0 {
			js.SavedNanos = int64(float64(s.stats.readNanos) / float64(s.stats.reads) * float64(l.spillReads))
		}
		jobs = append(jobs, js)
	}
	slices.SortStableFunc(jobs, func(a, b JobStats) int {
		return cmp.Or(cmp.Compare(a.Dataset, b.Dataset), cmp.Compare(a.Job, b.Job))
	})
	return jobs
}

// delivered counts a batch.
func (s *scheduler) delivered(st *Stream, rows int, w Wait) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.batches++
	s.stats.rows += int64(rows)
	s.stats.waited += w.Store
	s.progress(st)
	st.waited.Store += w.Store
	st.waited.Spill += w.Spill
	st.waited.Window += w.Window
	st.waited.Encode += w.Encode
}
