// Package predict estimates a job's throughput, its bottleneck and how long its consumers wait, from measured
// rates and the job's figures. It is a closed-form model: pure arithmetic, without I/O, clock or goroutine.
// Other packages measure the rates and run the job.
//
// The model is that of Yang and Cong ("Accelerating Data Loading in Deep Neural Network Training", HiPC 2019);
// hipc.go has their formulas. Parallel stages take as long as the slowest stage, and training hides loading up
// to the time that training takes. This package adds what a Bowstring server has: a bounded window over a store
// with latency (Little's law), caches that hold a share of the dataset, and nodes that own it together.
package predict

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"bowstring/schema"
)

// Limit names the stage of the data path that limits a job.
type Limit string

// The stages that can limit a job.
const (
	ByStore    Limit = "store"    // reads per second, or latency with a window of this size
	ByLink     Limit = "link"     // bytes per second from the store
	BySpill    Limit = "spill"    // bytes per second from the caches' disks
	ByNode     Limit = "node"     // the nodes' CPUs
	ByNetwork  Limit = "network"  // bytes per second between nodes, or to the consumers of a single node
	ByConsumer Limit = "consumer" // the consumers do not wait
)

// Part is the throughput of one stage, if no other stage limits it.
type Part struct {
	Limit      Limit   `json:"limit"`
	Because    string  `json:"because"` // the rate that determines it
	SamplesPer float64 `json:"samples_per_s"`
}

// Rate is in samples per second. It is infinite if no known rate limits it; JSON has no infinity and uses null.
type Rate float64

// Unlimited is the infinite rate.
var Unlimited = Rate(math.Inf(1))

// MarshalJSON implements json.Marshaler.
func (r Rate) MarshalJSON() ([]byte, error) {
	if r == Unlimited {
		return []byte("null"), nil
	}
	return json.Marshal(float64(r))
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *Rate) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*r = Unlimited
		return nil
	}
	return json.Unmarshal(b, (*float64)(r))
}

// Epoch is the estimate for one epoch.
type Epoch struct {
	SamplesPerSec Rate    `json:"samples_per_s"` // all ranks together
	Limit         Limit   `json:"limit"`
	Because       string  `json:"because"`
	Seconds       float64 `json:"seconds"`
	WaitSeconds   float64 `json:"wait_s"`     // per rank
	HitShare      float64 `json:"hit_share"`  // share of rows from caches
	MovedShare    float64 `json:"peer_share"` // share of rows from another node
	Parts         []Part  `json:"parts"`      // slowest first
}

// Scaled is the estimate for another number of nodes, with the same ranks at the same pace.
type Scaled struct {
	Nodes int64 `json:"nodes"`
	First Epoch `json:"first_epoch"`
	Later Epoch `json:"later_epochs"`
}

// Prediction is the estimate for a job.
type Prediction struct {
	FirstBatchMS  float64 `json:"first_batch_ms"`
	SamplesPerSec Rate    `json:"samples_per_s"` // over all epochs
	Limit         Limit   `json:"limit"`         // of the epochs that take most of the time
	Because       string  `json:"because"`
	Seconds       float64 `json:"seconds"` // all epochs
	WaitSeconds   float64 `json:"wait_s"`
	First         Epoch   `json:"first_epoch"`
	Later         Epoch   `json:"later_epochs"` // per epoch
	// SmallestCache is the smallest cache budget per node with which consumers do not wait in later epochs.
	// SmallestWindow is the smallest window per node with which they do not wait in any epoch, or, if the first
	// epoch waits with any window, in no later one. Both are nil if no size is enough.
	SmallestCache  *int64   `json:"smallest_cache_bytes"`
	SmallestWindow *int64   `json:"smallest_window_bytes"`
	More           []Scaled `json:"more_nodes"`
}

// Of estimates how a job will run. It returns a schema.FieldError if a rate or a figure of the job is not
// valid.
func Of(r Rates, j Job) (*Prediction, error) {
	if err := r.Check("rates."); err != nil {
		return nil, err
	}
	if err := j.check(); err != nil {
		return nil, err
	}
	p := &Prediction{First: epoch(r, &j, j.heldNow()), Later: epoch(r, &j, j.held(j.CacheBytes))}
	// The first batch pays the latency before anything else of the epoch.
	begin, work := firstBatch(r, &j)
	p.FirstBatchMS = 1000 * (begin + work)
	p.First.Seconds += begin
	p.First.WaitSeconds += begin
	later := float64(j.Epochs - 1)
	p.Seconds = p.First.Seconds + later*p.Later.Seconds
	p.WaitSeconds = p.First.WaitSeconds + later*p.Later.WaitSeconds
	p.SamplesPerSec = Rate(over(float64(j.Rows)*float64(j.Epochs), p.Seconds))
	most := &p.First
	if later*p.Later.Seconds > p.First.Seconds {
		most = &p.Later
	}
	p.Limit, p.Because = most.Limit, most.Because
	p.SmallestCache, p.SmallestWindow = smallestCache(r, j), smallestWindow(r, j)
	for _, times := range []int64{2, 4} {
		more := j
		more.Nodes *= times
		p.More = append(p.More, Scaled{more.Nodes, epoch(r, &more, more.heldNow()),
			epoch(r, &more, more.held(more.CacheBytes))})
	}
	return p, nil
}

// At estimates an epoch in which caches supply the share hits of the rows. Rates and job must be those of a
// Prediction, which has checked them.
func At(r Rates, j Job, hits float64) Epoch { return epoch(r, &j, min(max(hits, 0), 1)) }

// epoch estimates an epoch if caches hold a share of its data.
func epoch(r Rates, j *Job, held float64) Epoch {
	e := Epoch{HitShare: held, MovedShare: j.moved()}
	e.Parts = append(parts(r, j, held), Part{ByConsumer, "pace", over(float64(j.Batch), j.PaceMS/1000)})
	e.Parts = slices.DeleteFunc(e.Parts, func(p Part) bool { return math.IsInf(p.SamplesPer, 1) })
	slices.SortStableFunc(e.Parts, func(a, b Part) int { return cmp.Compare(a.SamplesPer, b.SamplesPer) })
	if len(e.Parts) == 0 {
		e.Limit, e.Because, e.SamplesPerSec, e.Parts = ByConsumer, "no rate is known that limits", Unlimited, []Part{}
		return e
	}
	least := e.Parts[0]
	e.Limit, e.Because, e.SamplesPerSec = least.Limit, least.Because, Rate(least.SamplesPer)
	e.Seconds = float64(j.Rows) / least.SamplesPer
	e.WaitSeconds = max(0, e.Seconds-j.consumed())
	return e
}

// consumed is how long the consumers take for an epoch, in seconds.
func (j *Job) consumed() float64 { return float64(j.Rows) / float64(j.Batch) * j.PaceMS / 1000 }

// over is a/b, infinite if b is 0.
func over(a, b float64) float64 {
	if b <= 0 {
		return math.Inf(1)
	}
	return a / b
}

// known returns a rate as a limit: an unknown rate limits nothing.
func known(rate float64) float64 {
	if rate == 0 {
		return math.Inf(1)
	}
	return rate
}

// maxReads is the most reads of the store that a node has in flight.
const maxReads = 4096

// parts returns the throughput of each stage, in samples per second of all nodes together.
func parts(r Rates, j *Job, held float64) []Part {
	nodes, size, moved := float64(j.Nodes), j.RowBytes, j.moved()
	reads := (1 - held) * j.RowReads // store reads per row
	latency := r.Store.LatencyMS / 1000
	list := []Part{
		{ByStore, "store.reads_per_s", over(known(r.Store.ReadsPerS), reads)},
		{ByLink, "store.bytes_per_s", over(known(r.Store.BytesPerSec), (1-held)*size)},
		{ByStore, "store.latency_ms with as many reads in flight as there may be", over(nodes*maxReads, reads*latency)},
		{BySpill, "spill.read_bytes_per_s", over(nodes*known(r.Spill.ReadBytesPerSec), held*size)},
		// A read through another node costs both nodes together 2.2 times the CPU time of a local one.
		{ByNode, "node.us_per_sample and node.s_per_gb",
			over(nodes*known(r.Node.Cores), (1+1.2*moved)*r.Node.seconds(size))},
	}
	// A blob occupies the window for the time of its read. In strict order, blobs from the cache wait in the
	// window for the reads before them.
	if reads > 0 {
		share := 1.0
		if !j.Strict {
			share = 1 - held
		}
		list = append(list, Part{ByStore, "store.latency_ms with a window of this size",
			over(j.inWindow(), share*latency)})
	}
	if j.Nodes > 1 {
		list = append(list,
			Part{ByNetwork, "network.bytes_per_s", over(nodes*known(r.Network.BytesPerSec), moved*size)},
			Part{ByNetwork, "network.latency_ms with a window of this size",
				over(j.inWindow(), moved*r.Network.LatencyMS/1000)})
	} else {
		list = append(list, Part{ByNetwork, "network.bytes_per_s", over(known(r.Network.BytesPerSec), size)})
	}
	return list
}

// seconds is the CPU time of a sample, given its bytes.
func (n Node) seconds(bytes float64) float64 {
	return n.MicrosPerSample*1e-6 + n.SecondsPerGB*1e-9*bytes
}

// moved is the share of rows that come from a node other than the rank's. With locality it is the surplus of a
// binomial share over its quota: E|X-E(X)|/2 of N nodes with B/N rows each.
func (j *Job) moved() float64 {
	n, b := float64(j.Nodes), float64(j.Batch)
	elsewhere := 1 - 1/n
	if j.Local {
		return min(0.40*math.Sqrt(elsewhere/(b/n)), elsewhere)
	}
	return elsewhere
}

const (
	// A record batch takes at most an eighth of the memory. While it is assembled and sent, reads cannot use
	// that memory.
	batchShare = 1.0 / 8
	// readOverhead is the memory of the window that a read takes in addition to its bytes.
	readOverhead = 2 << 10
)

// inWindow is how many rows are in flight in the windows of all nodes.
func (j *Job) inWindow() float64 {
	window := float64(j.WindowBytes)
	step := float64(j.Batch) / float64(j.Nodes) * j.RowBytes // per node
	batch := min(step, float64(j.BatchBytes)*math.Ceil(float64(j.Ranks)/float64(j.Nodes)), batchShare*window)
	return over(float64(j.Nodes)*(window-batch), j.RowBytes)
}

const (
	// firstReads is how many reads a node starts at once, if the store is not near; the number doubles with
	// each round trip.
	firstReads = 256
	// nearMS is the latency from which firstReads applies. A nearer store gets proportionally fewer, at least
	// fewReads.
	nearMS   = 1.0
	fewReads = 8
)

// firstBatch is how long the slowest rank waits for its first batch, in seconds: round trips, then work that
// runs in parallel.
func firstBatch(r Rates, j *Job) (wait, work float64) {
	latency := r.Store.LatencyMS / 1000
	rows := float64(min(j.Batch, j.Rows))
	reads := rows * j.RowReads * (1 - j.heldNow()) / float64(j.Nodes) // per node
	wait = float64(j.Lookups)*latency + r.Network.LatencyMS/1000
	if reads > 0 {
		trips := math.Log2(reads/max(fewReads, firstReads*min(r.Store.LatencyMS/nearMS, 1)) + 1)
		if r.Store.LatencyMS >= nearMS {
			trips = math.Ceil(trips)
		}
		wait += latency * max(1, trips)
	}
	for _, p := range parts(r.withoutLatency(), j, j.heldNow()) {
		work = max(work, rows/p.SamplesPer)
	}
	return wait, work
}

func (r Rates) withoutLatency() Rates {
	r.Store.LatencyMS, r.Network.LatencyMS = 0, 0
	return r
}

// Job holds the model's figures of a job and of the nodes that serve it. Totals are over all ranks, or all
// nodes.
type Job struct {
	Rows     int64   // per epoch, all ranks
	RowBytes float64 // mean size of a row's blobs together
	RowReads float64 // blobs per row
	Batch    int64   // rows per global batch
	Ranks    int64
	Epochs   int64
	PaceMS   float64 // time of the consumers for a step, with all ranks in parallel; 0: none
	Nodes    int64   // that own the dataset together
	Local    bool    // ranks get the rows that their nodes own
	Strict   bool    // batches come in the plan's order

	CacheBytes  int64 // cache budget per node; 0: no cache
	HeldBytes   int64 // bytes of the job's blobs that the caches already hold
	WindowBytes int64 // per node
	BatchBytes  int64 // most bytes of a record batch
	Lookups     int64 // round trips before the first blob can be requested
}

// check returns a schema.FieldError if the model cannot use a job's figures.
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
	// cacheFixed is what a cache's index takes of its budget. cacheBlob is what each blob takes in addition to
	// its bytes: header, index, and on average half of the alignment.
	cacheFixed = 8 << 20
	cacheBlob  = 288
)

// footprint is how many bytes of caches the blobs of all rows take.
func (j *Job) footprint() float64 { return float64(j.Rows) * (j.RowBytes + cacheBlob*j.RowReads) }

// held is the share of rows that caches of cacheBytes each hold. With one job, no policy is better than to keep
// what is cached, because each row is used once an epoch.
func (j *Job) held(cacheBytes int64) float64 {
	if j.RowReads == 0 {
		return 1 // the store is not read
	}
	return min(float64(j.Nodes)*float64(max(cacheBytes-cacheFixed, 0))/j.footprint(), 1)
}

// heldNow is the share of rows that caches already hold.
func (j *Job) heldNow() float64 {
	if j.RowReads == 0 {
		return 1
	}
	return min(float64(j.HeldBytes)/max(float64(j.Rows)*j.RowBytes, 1), 1)
}

// waits reports whether consumers wait after the first batch of an epoch, if caches hold a share of its data.
// Consumers without a pace always wait.
func waits(r Rates, j *Job, held float64) bool {
	pace := over(float64(j.Batch), j.PaceMS/1000)
	for _, p := range parts(r, j, held) {
		if p.SamplesPer < pace {
			return true
		}
	}
	return math.IsInf(pace, 1)
}

// smallestCache returns the smallest cache budget per node with which consumers do not wait in later epochs,
// nil if there is none.
func smallestCache(r Rates, j Job) *int64 {
	enough := func(bytes int64) bool { return !waits(r, &j, j.held(bytes)) }
	most := cacheFixed + int64(math.Ceil(j.footprint()/float64(j.Nodes))) + 1
	return least(most, enough)
}

// smallestWindow returns the smallest window per node with which consumers wait in no epoch, or, if they wait
// in the first one with any window, in no later one. It returns nil if there is none.
func smallestWindow(r Rates, j Job) *int64 {
	now, later := j.heldNow(), j.held(j.CacheBytes)
	at := func(bytes int64, held float64) bool {
		j.WindowBytes = bytes
		return !waits(r, &j, held)
	}
	// A larger window is of no use, because the reads in flight are bounded.
	most := int64(min(2*maxReads*(j.RowBytes+readOverhead)+4*float64(j.Batch)*j.RowBytes, math.MaxInt64/4)) + 1
	if found := least(most, func(b int64) bool { return at(b, now) && (j.Epochs == 1 || at(b, later)) }); found != nil {
		return found
	}
	if j.Epochs == 1 {
		return nil
	}
	return least(most, func(b int64) bool { return at(b, later) })
}

// least returns the smallest number up to most that is enough, nil if most is not. All numbers above one that
// is enough are enough.
func least(most int64, enough func(int64) bool) *int64 {
	if !enough(most) {
		return nil
	}
	low, high := int64(-1), most // low is not enough
	for high-low > 1 {
		if mid := low + (high-low)/2; enough(mid) {
			high = mid
		} else {
			low = mid
		}
	}
	return &high
}
