// Package predict says how fast a job will be served, what will limit it and how long it
// will wait, from measured rates and the job's figures. It is a model in closed form: pure
// arithmetic, no I/O, no clock, no goroutine. What measures the rates and what runs the
// job lie elsewhere.
//
// The model is that of Yang and Cong ("Accelerating Data Loading in Deep Neural Network
// Training", HiPC 2019), whose own formulas are in hipc.go: parts that work beside one
// another take as long as the slowest of them, and training hides what loading takes as far
// as it takes as long itself. To it are added what a server of Bowstring has: a bounded
// window over a store of some latency (Little's law), caches that hold a part of the dataset,
// and nodes that own it together.
package predict

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"bowstring/schema"
)

// Limit is a part of the way that samples take, as what limits a job.
type Limit string

// What limits a job.
const (
	ByStore    Limit = "store"    // reads a second, or its latency with a window of this size
	ByLink     Limit = "link"     // bytes a second from the store
	BySpill    Limit = "spill"    // bytes a second from the disks of caches
	ByNode     Limit = "node"     // the processors of the nodes
	ByNetwork  Limit = "network"  // bytes a second between nodes, or to the consumers of a lone one
	ByConsumer Limit = "consumer" // the consumers themselves: they do not wait
)

// Part is what a part of the way carries, if nothing else limits.
type Part struct {
	Limit      Limit   `json:"limit"`
	Because    string  `json:"because"` // of which rate
	SamplesPer float64 `json:"samples_per_s"`
}

// Rate is samples a second, infinite where nothing that is known limits them. JSON has no infinity: there it is null.
type Rate float64

// Unlimited is the rate that nothing limits.
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

// Epoch is what is said of an epoch.
type Epoch struct {
	SamplesPerSec Rate    `json:"samples_per_s"` // of all ranks together
	Limit         Limit   `json:"limit"`
	Because       string  `json:"because"`
	Seconds       float64 `json:"seconds"`
	WaitSeconds   float64 `json:"wait_s"`     // that each rank waits
	HitShare      float64 `json:"hit_share"`  // of the rows, that come from caches
	MovedShare    float64 `json:"peer_share"` // of the rows, that come from another node
	Parts         []Part  `json:"parts"`      // the slowest first
}

// Scaled is what another number of nodes would bring, with the same ranks at the same pace.
type Scaled struct {
	Nodes int64 `json:"nodes"`
	First Epoch `json:"first_epoch"`
	Later Epoch `json:"later_epochs"`
}

// Prediction is what the model says of a job.
type Prediction struct {
	FirstBatchMS  float64 `json:"first_batch_ms"`
	SamplesPerSec Rate    `json:"samples_per_s"` // over all epochs
	Limit         Limit   `json:"limit"`         // of the epochs in which the job spends most time
	Because       string  `json:"because"`
	Seconds       float64 `json:"seconds"` // of all epochs
	WaitSeconds   float64 `json:"wait_s"`
	First         Epoch   `json:"first_epoch"`
	Later         Epoch   `json:"later_epochs"` // each of them
	// SmallestCache is the least budget of each node's cache with which later epochs do not
	// wait, and SmallestWindow the least window of each node with which no epoch waits that
	// need not for another reason; nil if there is none.
	SmallestCache  *int64   `json:"smallest_cache_bytes"`
	SmallestWindow *int64   `json:"smallest_window_bytes"`
	More           []Scaled `json:"more_nodes"`
}

// Of says how a job will run. It fails with a schema.FieldError where rates or job have no
// sensible values.
func Of(r Rates, j Job) (*Prediction, error) {
	if err := r.Check("rates."); err != nil {
		return nil, err
	}
	if err := j.check(); err != nil {
		return nil, err
	}
	p := &Prediction{First: epoch(r, &j, j.heldNow()), Later: epoch(r, &j, j.held(j.CacheBytes))}
	// Of the first batch, latency comes before all else in the epoch.
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

// At says how a part of an epoch goes of whose rows a share comes from caches. Rates and job are
// those of a prediction, which has checked them.
func At(r Rates, j Job, hits float64) Epoch { return epoch(r, &j, min(max(hits, 0), 1)) }

// epoch says what limits an epoch of which caches hold a share.
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

// over is a quotient, infinite where nothing is taken of what there is.
func over(a, b float64) float64 {
	if b <= 0 {
		return math.Inf(1)
	}
	return a / b
}

// known is a rate as a limit: one that is not known limits nothing.
func known(rate float64) float64 {
	if rate == 0 {
		return math.Inf(1)
	}
	return rate
}

// maxReads is how many reads of the store a node has in flight at most.
const maxReads = 4096

// parts says what each part of the way carries, in samples a second of all nodes together.
func parts(r Rates, j *Job, held float64) []Part {
	nodes, size, moved := float64(j.Nodes), j.RowBytes, j.moved()
	reads := (1 - held) * j.RowReads // of the store, for a row
	latency := r.Store.LatencyMS / 1000
	list := []Part{
		{ByStore, "store.reads_per_s", over(known(r.Store.ReadsPerS), reads)},
		{ByLink, "store.bytes_per_s", over(known(r.Store.BytesPerSec), (1-held)*size)},
		{ByStore, "store.latency_ms with as many reads in flight as there may be", over(nodes*maxReads, reads*latency)},
		{BySpill, "spill.read_bytes_per_s", over(nodes*known(r.Spill.ReadBytesPerSec), held*size)},
		// A read by way of another node costs both together 2.2 times what one costs here.
		{ByNode, "node.us_per_sample and node.s_per_gb",
			over(nodes*known(r.Node.Cores), (1+1.2*moved)*r.Node.seconds(size))},
	}
	// What a window holds is on its way for as long as a read takes. In strict order what
	// comes from the cache waits for what is read beside it.
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

// seconds is the processor time that a sample of so many bytes takes.
func (n Node) seconds(bytes float64) float64 {
	return n.MicrosPerSample*1e-6 + n.SecondsPerGB*1e-9*bytes
}

// moved is the share of rows that come from another node than their rank's. Where ranks get
// what their nodes own it is the surplus of a binomial share over its quota:
// E|X-E(X)|/2 of N nodes with B/N rows each.
func (j *Job) moved() float64 {
	n, b := float64(j.Nodes), float64(j.Batch)
	elsewhere := 1 - 1/n
	if j.Local {
		return min(0.40*math.Sqrt(elsewhere/(b/n)), elsewhere)
	}
	return elsewhere
}

const (
	// A record batch takes an eighth of the memory at most, and while one is put together and
	// sent, it is of no use to reads.
	batchShare = 1.0 / 8
	// readOverhead is what a read takes of the window beside its bytes.
	readOverhead = 2 << 10
)

// inWindow is how many rows the windows of all nodes have on their way.
func (j *Job) inWindow() float64 {
	window := float64(j.WindowBytes)
	step := float64(j.Batch) / float64(j.Nodes) * j.RowBytes // of a node
	batch := min(step, float64(j.BatchBytes)*math.Ceil(float64(j.Ranks)/float64(j.Nodes)), batchShare*window)
	return over(float64(j.Nodes)*(window-batch), j.RowBytes)
}

const (
	// firstReads is how many reads are in flight at once to a store that is not near; then
	// they double in every round trip.
	firstReads = 256
	// nearMS is the latency from which on that holds; a nearer store is asked for less, for
	// fewReads at least.
	nearMS   = 1.0
	fewReads = 8
)

// firstBatch is how long the first batch takes, in seconds, the slowest rank's: round trips,
// and then work that goes on side by side.
func firstBatch(r Rates, j *Job) (wait, work float64) {
	latency := r.Store.LatencyMS / 1000
	rows := float64(min(j.Batch, j.Rows))
	reads := rows * j.RowReads * (1 - j.heldNow()) / float64(j.Nodes) // of a node
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

// Job is what a model needs to know of a job and of where it will run. Where it says all,
// it is of all ranks, or of all nodes, together.
type Job struct {
	Rows     int64   // of an epoch, all ranks
	RowBytes float64 // of a row's blobs, on average
	RowReads float64 // blobs of a row
	Batch    int64   // rows of a global batch
	Ranks    int64
	Epochs   int64
	PaceMS   float64 // what the consumers take for a step, all ranks beside one another; 0: nothing
	Nodes    int64   // that own the dataset together
	Local    bool    // ranks get what their nodes own
	Strict   bool    // batches come in the plan's order

	CacheBytes  int64 // budget of each node's cache; 0: there is none
	HeldBytes   int64 // of the job's blobs, that the caches hold already
	WindowBytes int64 // of each node
	BatchBytes  int64 // of a record batch, at most
	Lookups     int64 // round trips before the first blob can be asked for
}

// check fails with a schema.FieldError where nothing can be said of a job.
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
	// cacheFixed is what a cache's index takes of its budget, and cacheBlob what each blob
	// takes beside its bytes: header, index, and on average half of the alignment.
	cacheFixed = 8 << 20
	cacheBlob  = 288
)

// footprint is what the blobs of all rows take of caches.
func (j *Job) footprint() float64 { return float64(j.Rows) * (j.RowBytes + cacheBlob*j.RowReads) }

// held is the share of the rows that caches of so many bytes each hold. With one job no
// policy does better than to keep what it has: each row is used once an epoch.
func (j *Job) held(cacheBytes int64) float64 {
	if j.RowReads == 0 {
		return 1 // nothing is read
	}
	return min(float64(j.Nodes)*float64(max(cacheBytes-cacheFixed, 0))/j.footprint(), 1)
}

// heldNow is the share of the rows that caches hold already.
func (j *Job) heldNow() float64 {
	if j.RowReads == 0 {
		return 1
	}
	return min(float64(j.HeldBytes)/max(float64(j.Rows)*j.RowBytes, 1), 1)
}

// waits reports whether consumers wait in an epoch of which caches hold a share, after its
// first batch. Consumers without a pace wait always.
func waits(r Rates, j *Job, held float64) bool {
	pace := over(float64(j.Batch), j.PaceMS/1000)
	for _, p := range parts(r, j, held) {
		if p.SamplesPer < pace {
			return true
		}
	}
	return math.IsInf(pace, 1)
}

// smallestCache is the least budget of each node's cache with which later epochs do not
// wait; nil if they do with any.
func smallestCache(r Rates, j Job) *int64 {
	enough := func(bytes int64) bool { return !waits(r, &j, j.held(bytes)) }
	most := cacheFixed + int64(math.Ceil(j.footprint()/float64(j.Nodes))) + 1
	return least(most, enough)
}

// smallestWindow is the least window of each node with which no epoch waits, or, where the
// first one does with any window, no later one; nil if those do, too.
func smallestWindow(r Rates, j Job) *int64 {
	now, later := j.heldNow(), j.held(j.CacheBytes)
	at := func(bytes int64, held float64) bool {
		j.WindowBytes = bytes
		return !waits(r, &j, held)
	}
	// More than this, nobody has a use for: reads in flight are bounded.
	most := int64(min(2*maxReads*(j.RowBytes+readOverhead)+4*float64(j.Batch)*j.RowBytes, math.MaxInt64/4)) + 1
	if found := least(most, func(b int64) bool { return at(b, now) && (j.Epochs == 1 || at(b, later)) }); found != nil {
		return found
	}
	if j.Epochs == 1 {
		return nil
	}
	return least(most, func(b int64) bool { return at(b, later) })
}

// least is the smallest number up to most that is enough, as all above it are; nil if none is.
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
