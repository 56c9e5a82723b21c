package fetch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"bowstring/fetch/admission"
	"bowstring/fetch/calibrate"
	"bowstring/fetch/predict"
	"bowstring/fetch/read"
	"bowstring/schema"
)

// Types for predictions of how fast jobs will be.
type (
	// Rates are what was measured.
	Rates = predict.Rates
	// Uncertain says how sure a rate is.
	Uncertain = calibrate.Uncertain
)

// Where rates come from.
const (
	FromCalibration = "calibration" // they were measured by asking for it
	FromStreams     = "streams"     // they were seen while streams ran
)

// RatesFrom says where rates come from; "" where they are not known.
type RatesFrom struct {
	Store   string `json:"store,omitempty"`
	Spill   string `json:"spill,omitempty"`
	Node    string `json:"node,omitempty"`
	Network string `json:"network,omitempty"`
}

const (
	// ratesNear is from how long before and after a time what was seen counts for it.
	ratesNear = 2 * time.Minute
	// ratesLate is how long ago that may be if nothing was seen since.
	ratesLate = time.Hour
	// ratesFull is for how long the way to the store has to have been full.
	ratesFull = time.Second
	// ratesReads is the least number of reads, or of rows, for a mean.
	ratesReads = 1000
	// ratesAlike is by how many times blobs that were read may be larger or smaller than those that
	// it is about: the rates of others say little of them.
	ratesAlike = 2
	// usualPerGB is the assumed cost of serving a gigabyte, without the cost of each sample,
	// in CPU seconds, if the two were not measured apart.
	usualPerGB = 0.2
)

// calibrated is what calibration found last.
type calibrated struct {
	running sync.Mutex // held by the one that runs

	mu    sync.Mutex
	rates Rates
	at    time.Time
}

// SetRates has the engine take rates for those of now, until something else is measured.
func (e *Engine) SetRates(r Rates) {
	c := &e.calibrated
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rates, c.at = r, time.Now()
}

// Rates returns the known rates at a time within the last half day, for blobs of size
// bytes: the results of calibration, and the measurements of streams since then.
func (e *Engine) Rates(at time.Time, size float64) (Rates, RatesFrom) {
	c := &e.calibrated
	c.mu.Lock()
	r, when := c.rates, c.at
	c.mu.Unlock()
	from := RatesFrom{}
	for to, known := range map[*string]bool{
		&from.Store: r.Known(), &from.Spill: r.Spill.ReadBytesPerSec > 0, &from.Node: r.Node.Cores > 0,
		&from.Network: r.Network.BytesPerSec > 0,
	} {
		if known {
			*to = FromCalibration
		}
	}
	if e.storeSeen(&r, at, when, size) {
		from.Store = FromStreams
	}
	e.hereSeen(&r, &from)
	return r, from
}

// storeSeen corrects the store's rates in r by the measurements of streams around a time,
// after a calibration, for blobs of about that size. It reports whether there are any.
func (e *Engine) storeSeen(r *Rates, at, calibrated time.Time, size float64) bool {
	seen := e.reader.Past(at.Add(-ratesNear), at.Add(ratesNear))
	if seen.Full < ratesFull {
		since := at.Add(-ratesLate)
		if since.Before(calibrated) { // which is newer
			since = calibrated
		}
		seen = e.reader.Past(since, at.Add(ratesNear))
	}
	// The latency alone, as any read shows it, would have the store carry as much as may ever be in flight.
	if seen.Full < ratesFull {
		return false
	}
	now, ok := seenOf(r.Store, &seen, size)
	r.Store = now
	return ok
}

// seenOf is what was known of the store, made good by what was seen of it while the way there was
// full, and whether that says anything of blobs of a size.
func seenOf(s predict.Store, seen *read.Spell, size float64) (predict.Store, bool) {
	known := s != predict.Store{}
	mean := float64(seen.Bytes) / float64(max(seen.Reads, 1))
	if known && (mean > ratesAlike*size || mean < size/ratesAlike) {
		return s, false
	}
	secs := seen.Full.Seconds()
	reads, bytes := float64(seen.Reads)/secs, float64(seen.Bytes)/secs
	s.LatencyMS = ms(seen.Latency)
	if s.ReadsPerS == 0 && s.BytesPerSec == 0 {
		s.ReadsPerS, s.BytesPerSec = reads, bytes
		return s, true
	}
	// One point shows by how much the store is faster or slower than measured, but not which
	// of the two limits has changed. The nearer one counts.
	factor := 0.0
	if s.ReadsPerS > 0 {
		factor = reads / s.ReadsPerS
	}
	if s.BytesPerSec > 0 {
		factor = max(factor, bytes/s.BytesPerSec)
	}
	s.ReadsPerS *= factor
	s.BytesPerSec *= factor
	return s, true
}

// hereSeen puts into r what was seen of the spill and of the processors since the engine was made, where
// nothing is known.
func (e *Engine) hereSeen(r *Rates, from *RatesFrom) {
	st := e.reader.Stats()
	for _, tier := range e.reader.Times() {
		// Eight are read at once: see read.Spill.
		if tier.Tier == "spill" && tier.Count >= ratesReads && tier.Sum > 0 && from.Spill == "" {
			r.Spill.ReadBytesPerSec = 8 * float64(st.UpperBytes) / tier.Sum.Seconds()
			from.Spill = FromStreams
		}
	}
	rows := float64(e.set.Stats().Rows)
	if from.Node != "" || rows < 10*ratesReads {
		return
	}
	gigabytes := float64(st.ReadBytes+st.UpperBytes+st.PeerBytes) / 1e9
	cpu := CPU().Seconds()
	n := &r.Node
	n.Cores, n.SecondsPerGB = float64(runtime.GOMAXPROCS(0)), usualPerGB
	if n.MicrosPerSample = 1e6 * (cpu - usualPerGB*gigabytes) / rows; n.MicrosPerSample < 0 {
		n.MicrosPerSample, n.SecondsPerGB = 0, cpu/gigabytes
	}
	from.Node = FromStreams
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// CPU is the CPU time that the process has used.
func CPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// CalibrateOptions bound a calibration.
type CalibrateOptions struct {
	Time time.Duration // that reads of the store are begun; default 5 s
	Busy bool          // though streams read, which have less then
}

// Calibration is the result of a calibration.
type Calibration struct {
	Rates
	Uncertainty map[string]Uncertain `json:"uncertainty"` // by rate, such as "store.latency_ms"
	Reads       int64                `json:"reads"`       // of the store, that were made for it
	Bytes       int64                `json:"bytes"`       // of those
	// Positions are positions of some rows with small blobs and of some with large ones, if
	// the two were measured apart, or else of some rows. Reading these rows shows the cost of
	// serving.
	Positions [][]int64 `json:"positions,omitempty"`
}

const (
	// probeBlobs is how many blobs are drawn, and read as often as it takes; probePages how many where
	// each costs a page of a manifest.
	probeBlobs = 1024
	probePages = 128
	// probeSpill is how much is written to the disk of the spill.
	probeSpill = 128 << 20
	// someRows is how many rows of a size are named, and someBytes what they may have together.
	someRows, someBytes = 256, 16 << 20
)

// Calibrate measures the store by reading blobs of a job, and the disk of the spill. Only one
// calibration runs at a time, and none while streams read, unless the options say so: Rates
// returns what streams have measured.
func (e *Engine) Calibrate(ctx context.Context, j *Job, opts CalibrateOptions) (*Calibration, error) {
	if !e.calibrated.running.TryLock() {
		return nil, fmt.Errorf("%w: another calibration runs", schema.ErrUnavailable)
	}
	defer e.calibrated.running.Unlock()
	if n := e.set.Reading(); n > 0 && !opts.Busy {
		return nil, fmt.Errorf("%w: %d streams read, and a calibration would take from them; wait for them to end, "+
			"or set \"busy\"", schema.ErrUnavailable, n)
	}
	blobs, err := e.drawBlobs(ctx, j)
	if err != nil {
		return nil, err
	}
	refs := make([]schema.BlobRef, len(blobs))
	for i := range blobs {
		refs[i] = blobs[i].ref
	}
	probe := calibrate.Options{Time: opts.Time, Reads: min(e.opts.MaxReads, 1024),
		Bytes: min(e.opts.WindowBytes/2, 64<<20)}
	if probe.Reads == 0 {
		probe.Reads = 1024
	}
	memory, ok := e.ledger.Try(admission.Windows, probe.Bytes)
	if !ok {
		return nil, fmt.Errorf("%w: streams hold the memory that a calibration needs, %d bytes of WindowBytes",
			schema.ErrLimit, probe.Bytes)
	}
	defer memory.Release()
	found, err := calibrate.Store(ctx, e.store.Get, refs, probe)
	if err != nil {
		return nil, err
	}
	c := &Calibration{Uncertainty: found.Uncertain, Reads: found.Reads, Bytes: found.Bytes,
		Positions: someOf(blobs, found.Sizes)}
	c.Store = found.Store
	c.Node.Cores = float64(runtime.GOMAXPROCS(0))
	if e.opts.Spill != nil {
		p, err := e.opts.Spill.Probe(ctx, probeSpill)
		if err != nil {
			c.Uncertainty["spill.read_bytes_per_s"] = Uncertain{Why: err.Error()}
			return c, context.Cause(ctx)
		}
		c.Spill.ReadBytesPerSec = float64(p.Bytes) / p.ReadBack.Seconds()
		c.Spill.WriteBytesPerSec = float64(p.Bytes) / p.Wrote.Seconds()
		why := Uncertain{Samples: p.Bytes >> 22, Why: "of the disk; what is in memory is read faster"}
		c.Uncertainty["spill.read_bytes_per_s"], c.Uncertainty["spill.write_bytes_per_s"] = why, why
	}
	return c, nil
}

// drawn is a blob that was drawn, and the row that has it.
type drawn struct {
	ref schema.BlobRef
	at  int64
}

// someOf are the positions of some of the blobs up to a size, and of some from a size on; or
// of some of all, where there are no sizes.
func someOf(blobs []drawn, sizes [2]int64) [][]int64 {
	classes := make([][]int64, 2)
	var bytes [2]int64
	for _, b := range blobs {
		class := 0
		switch {
		case sizes == [2]int64{}:
		case b.ref.Size >= sizes[1]:
			class = 1
		case b.ref.Size > sizes[0]:
			continue
		}
		if len(classes[class]) < someRows && bytes[class]+b.ref.Size <= someBytes &&
			!slices.Contains(classes[class], b.at) {
			classes[class] = append(classes[class], b.at)
			bytes[class] += b.ref.Size
		}
	}
	return slices.DeleteFunc(classes, func(c []int64) bool { return len(c) == 0 })
}

// drawBlobs draws blobs of a job at random.
func (e *Engine) drawBlobs(ctx context.Context, j *Job) ([]drawn, error) {
	n := int64(probeBlobs)
	if !j.Manifest().Resident() {
		n = probePages
	}
	draw, all := j.Plan().Position, j.Plan().Rows()
	if j.Alone() != nil {
		// Rows of the selection, not of the plan: if lengths order the plan, each row would
		// need a sorted window.
		draw, all = j.Selection().At, j.Selection().Len()
	}
	positions := make([]int64, min(n, all))
	for i := range positions {
		positions[i] = draw(rand.Int64N(all))
	}
	slices.Sort(positions)
	positions = slices.Compact(positions)
	list, err := j.Manifest().At(ctx, positions)
	if err != nil {
		return nil, err
	}
	var blobs []drawn
	for i, row := range list {
		for _, column := range j.Projection().BlobColumns() {
			ref, ok, err := row.TryBlob(column)
			if err != nil {
				return nil, err
			}
			if ok {
				blobs = append(blobs, drawn{ref, positions[i]})
			}
		}
	}
	if len(blobs) == 0 {
		return nil, fmt.Errorf("%w: %s has no blob to read", schema.ErrInvalid, j.SnapshotName())
	}
	rand.Shuffle(len(blobs), func(a, b int) { blobs[a], blobs[b] = blobs[b], blobs[a] })
	return blobs, nil
}

// Conditions describes a job that would run now to the model: see [predict.Job]. total is
// its TotalBytes. The caller sets epochs and pace.
func (e *Engine) Conditions(j *Job, total int64) predict.Job {
	req, rows := j.Request(), j.Plan().Rows()
	if total < 0 || j.Alone() == nil {
		total = j.MeanBytes() * rows // it is not counted exactly
	}
	c := predict.Job{
		Rows: rows, RowBytes: float64(total) / float64(max(rows, 1)),
		RowReads: float64(len(j.Projection().BlobColumns())),
		Batch:    req.Batch, Ranks: req.DataRanks(), Epochs: 1, Nodes: 1, Local: req.Assign == schema.AssignLocal,
		Strict: req.Order == "" || req.Order == schema.OrderStrict, WindowBytes: e.opts.WindowBytes,
		BatchBytes: req.BatchBytes,
	}
	if c.BatchBytes == 0 {
		c.BatchBytes = schema.DefaultBatchBytes
	}
	if !j.Manifest().Resident() {
		c.Lookups = 1
	}
	if e.opts.Peers != nil {
		c.Nodes += int64(len(e.opts.Peers.Stats()))
	}
	if e.opts.Spill != nil {
		st := e.opts.Spill.Stats()
		c.CacheBytes = st.BudgetBytes
		// The part of each snapshot's bytes that the job reads.
		for i := range j.Sources() {
			of := j.Source(i)
			all := j.SourceBytes(i) * (of.End - of.Base)
			if all == 0 {
				continue
			}
			share := min(float64(st.Datasets[of.SnapshotName()].Bytes)/float64(all), 1)
			reads := float64(total)
			if j.Alone() == nil {
				reads = float64(j.SourceBytes(i) * min(j.SourceRows(i), of.End-of.Base))
			}
			c.HeldBytes += int64(share * reads * float64(c.Nodes))
		}
	}
	return c
}
