package fetch

import (
	"time"

	"bowstring/fetch/admission"
	"bowstring/fetch/operators"
	"bowstring/fetch/prefetch"
	"bowstring/fetch/read"
	"bowstring/fetch/spans"
	"bowstring/fetch/store"
	"bowstring/fetch/upcoming"
	"bowstring/spill"
)

// Stats are an engine's counters since it was made, and what it holds now.
type Stats struct {
	Streams     int64 `json:"streams"`      // streams ever opened
	LiveStreams int   `json:"live_streams"` // streams open now
	Waiting     int   `json:"waiting"`      // of those, whose consumers wait for a read
	Reads       int64 `json:"reads"`        // blobs read and found right
	// ReadReasons is why reads were made at the store, by name: see [ReadReasons].
	ReadReasons map[string]int64 `json:"read_reasons"`
	ReadBytes   int64            `json:"read_bytes"`
	ReadNanos   int64            `json:"read_nanos"`   // time in the store, summed over reads
	FailedReads int64            `json:"failed_reads"` // attempts that brought no blob, or a wrong one
	// cells that came with a read made for another, or from its window
	SharedReads int64 `json:"shared_reads"`
	Retries     int64 `json:"retries"`    // attempts after one that failed or was silent for long
	Hedges      int64 `json:"hedges"`     // attempts beside one that was slow
	HedgesWon   int64 `json:"hedges_won"` // of those, which brought the blob first
	Failed      int64 `json:"given_up"`   // blobs that no attempt brought
	Lost        int64 `json:"lost"`       // of those, which are missing or damaged in the store
	Batches     int64 `json:"batches"`    // record batches handed to consumers
	Rows        int64 `json:"rows"`       // rows in them

	ReadsInFlight int     `json:"reads_in_flight"`
	BytesInFlight int64   `json:"bytes_in_flight"`
	InFlightLimit int64   `json:"in_flight_limit"` // bytes that may be, as the path was measured
	Latency       Latency `json:"latency"`
	Path          Path    `json:"path"`

	WindowLimit int64         `json:"window_limit"` // bytes that all streams may hold
	WindowUsed  int64         `json:"window_used"`  // bytes that they hold now
	Windows     []WindowStats `json:"windows"`      // of each live stream, by dataset and job
	// bytes of these that are held for ranks that get what other ranks of the mesh got before them
	RankGroupBytes int64 `json:"rank_group_bytes"`
	// times that such a rank was so far behind that it reads again what the others had
	RankGroupsBehind int64               `json:"rank_groups_behind"`
	Snapshots        int                 `json:"snapshots"` // snapshots open now
	Memory           []admission.Account `json:"memory"`    // that requests take, by what for

	Fills      int64           `json:"fills"`       // blobs read for the spill alone, before a stream wanted them
	Looked     int64           `json:"looked"`      // rows of jobs that were looked for in the spill
	SpillReads int64           `json:"spill_reads"` // blobs found in the spill and right
	SpillBytes int64           `json:"spill_bytes"`
	PeerReads  int64           `json:"peer_reads"` // blobs that other nodes had
	PeerBytes  int64           `json:"peer_bytes"`
	FellBack   int64           `json:"stood_in"` // blobs that other nodes own, and that were read from the store
	Operators  operators.Stats `json:"operators"`
	Spill      *spill.Stats    `json:"spill,omitempty"` // of the cache, if there is one
	Spans      spans.Stats     `json:"spans"`           // what was read of buckets, many blobs by one request
	// Proofs are checksums that the first reads of blobs gave which were attached without being read.
	Proofs store.ProofStats `json:"proofs"`
	Jobs   []JobStats       `json:"jobs"` // that run, by dataset and job
}

// Parts of Stats.
type (
	// JobStats is where the blobs of a job came from.
	JobStats = upcoming.JobStats
	// WindowStats describes what a stream has ahead of its consumer.
	WindowStats = prefetch.WindowStats
	// OperatorStats are those of operators.
	OperatorStats = operators.Stats
	// SpillStats are those of the cache.
	SpillStats = spill.Stats
	// SpillDataset are those of a snapshot in the cache.
	SpillDataset = spill.DatasetStats
)

// Times says how long the reads of a tier took: see [read.Times].
type Times = read.Times

// The buckets of Times.
const (
	TimesSchema = read.TimesSchema
	TimesFirst  = read.TimesFirst
)

// Times returns how long reads took, of each tier in their order, since the engine was made.
func (e *Engine) Times() []Times { return e.reader.Times() }

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

// ReadReasons are all reasons for reads of the store, by which Stats count them. See the
// constants of package read.
func ReadReasons() []string { return read.ReasonNames() }

// Stats returns the engine's counters.
func (e *Engine) Stats() Stats {
	r, s := e.reader.Stats(), e.set.Stats()
	var readTime time.Duration
	if r.Reads > 0 {
		readTime = r.ReadTime / time.Duration(r.Reads)
	}
	st := Stats{
		Streams: s.Streams, LiveStreams: s.Live, Waiting: s.Waiting, Batches: s.Batches, Rows: s.Rows,
		Reads: r.Reads, ReadReasons: r.Reasons.Map(), ReadBytes: r.ReadBytes, ReadNanos: int64(r.ReadTime),
		FailedReads: r.FailedReads,
		SharedReads: r.SharedReads, Retries: r.Retries, Hedges: r.Hedges, HedgesWon: r.HedgesWon, Failed: r.Failed,
		Lost:       r.Lost,
		SpillReads: r.UpperReads, SpillBytes: r.UpperBytes, PeerReads: r.PeerReads, PeerBytes: r.PeerBytes,
		FellBack: r.FellBack, Fills: r.Fills,
		ReadsInFlight: r.InFlight, BytesInFlight: r.BytesInFlight, InFlightLimit: r.Limit,
		Latency:     Latency{r.P50.Microseconds(), r.P95.Microseconds(), r.P99.Microseconds(), r.Max.Microseconds()},
		Path:        Path{r.MinLatency.Microseconds(), r.BytesPerSec},
		WindowLimit: e.opts.WindowBytes, WindowUsed: s.WindowUsed, Windows: s.Windows,
		RankGroupBytes: s.GroupBytes, RankGroupsBehind: s.Behind,
		Snapshots: e.jobs.OpenSnapshots(), Memory: e.ledger.Accounts(), Jobs: e.upcoming.Stats(readTime), Looked: e.upcoming.Looked(),
		Operators: e.stage.Stats(), Spans: e.spans.Stats(),
		Proofs: store.ProofStatsOf(e.store),
	}
	if e.opts.Spill != nil {
		cache := e.opts.Spill.Stats()
		st.Spill = &cache
	}
	return st
}
