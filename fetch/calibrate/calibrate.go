// Package calibrate measures the throughput of a store. It reads blobs at rising
// concurrency until the rate stops growing. The caller chooses the blobs, and bounds the
// reads in flight and the time. Package predict draws conclusions from the rates.
package calibrate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/fetch/predict"
	"bowstring/schema"
)

// Options bound a probe. The zero value of each field stands for its default.
type Options struct {
	// Time is how long reads are begun, all together. Default 5 s.
	Time time.Duration
	// Reads is how many are in flight at most. Default 1,024.
	Reads int
	// Bytes is how many bytes are in flight at most. Default 64 MiB.
	Bytes int64
}

// EnsureDefaults fills in the fields that are zero.
func (o *Options) EnsureDefaults() {
	if o.Time == 0 {
		o.Time = 5 * time.Second
	}
	if o.Reads == 0 {
		o.Reads = 1024
	}
	if o.Bytes == 0 {
		o.Bytes = 64 << 20
	}
}

// Validate returns an error that names the first field without a sensible value.
func (o *Options) Validate() error {
	if o.Time < 0 || o.Reads < 1 || o.Bytes < 1 {
		return fmt.Errorf("%w: Time, Reads and Bytes are %s, %d, %d; want positive ones", schema.ErrInvalid, o.Time,
			o.Reads, o.Bytes)
	}
	return nil
}

// Get reads a blob. It is called by several goroutines at once.
type Get func(ctx context.Context, ref schema.BlobRef) (schema.Blob, error)

// Uncertain says how sure a rate is.
type Uncertain struct {
	// Spread is by which share measurements of it differed.
	Spread float64 `json:"spread"`
	// AtLeast says that nothing showed that there is not more.
	AtLeast bool `json:"at_least,omitempty"`
	// Samples is how many reads, or samples, it was measured by.
	Samples int64 `json:"samples"`
	// Why is what is to be known of it besides.
	Why string `json:"why,omitempty"`
}

// Result is what was found, and by the names of rates as in "store.latency_ms" how sure it is.
type Result struct {
	Store     predict.Store
	Uncertain map[string]Uncertain
	Reads     int64 // that were made
	Bytes     int64
	// Sizes are the largest size of a small blob and the least size of a large one, in
	// bytes, if the two were measured apart; else zeroes.
	Sizes [2]int64
}

const (
	// rungTrips is how many round trips, and rungLeast how long, a number of reads in flight
	// is kept up.
	rungTrips = 3
	rungLeast = 100 * time.Millisecond
	// grows is the factor by which the rate has to grow with twice the reads in flight.
	// After plateau rungs in a row with less growth, the rate counts as the maximum.
	grows     = 1.1
	plateau   = 2
	latencyOf = 16 // reads that latency is the median of
	// The first rung has few reads in flight, or more where the store is not near. While twice as
	// many bring soaring times as much, four times as many come next.
	fewReads, moreReads = 4, 16
	nearStore           = time.Millisecond
	soaring             = 1.7
	// Small blobs show reads a second and large ones bytes a second, if they differ in size by
	// apart at least.
	apart = 2
)

// Store finds out how fast a store gives the blobs of a list, which are read as often as it
// takes, in an order that is good by itself: at random. An error is that of ctx, or of a store
// that gave none.
func Store(ctx context.Context, get Get, refs []schema.BlobRef, opts Options) (*Result, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	if len(refs) == 0 {
		return nil, fmt.Errorf("%w: there is no blob to read", schema.ErrNotFound)
	}
	bySize := slices.Clone(refs)
	slices.SortStableFunc(bySize, func(a, b schema.BlobRef) int { return cmp.Compare(a.Size, b.Size) })
	classes := [][]schema.BlobRef{bySize}
	third := max(len(bySize)/3, 1)
	if small, large := bySize[:third], bySize[len(bySize)-third:]; meanSize(large) >= apart*meanSize(small) {
		classes = [][]schema.BlobRef{small, large}
	}
	p := &prober{ctx: ctx, get: get, opts: opts}
	res := &Result{Uncertain: map[string]Uncertain{}}
	if len(classes) == 2 {
		res.Sizes = [2]int64{classes[0][third-1].Size, classes[1][0].Size}
	}
	latency, spread, err := p.latency(classes[0])
	if err != nil {
		return nil, err
	}
	res.Store.LatencyMS = float64(latency) / float64(time.Millisecond)
	res.Uncertain["store.latency_ms"] = Uncertain{Spread: spread, Samples: p.reads.Load()}
	var found []ladder
	for i, class := range classes {
		l, err := p.climb(class, latency, opts.Time/time.Duration(len(classes)), i)
		if err != nil {
			return nil, err
		}
		found = append(found, l)
	}
	res.conclude(found)
	res.Reads, res.Bytes = p.reads.Load(), p.bytes.Load()
	return res, nil
}

// conclude sets the limits that the measurements show. The store limits reads if small
// blobs have a far lower byte rate than large ones. It limits bytes if large blobs have a
// far lower read rate than small ones. Otherwise the limit is unknown.
func (r *Result) conclude(found []ladder) {
	small, large := found[0], found[len(found)-1]
	reads := Uncertain{Spread: small.spread, AtLeast: true, Samples: small.reads}
	bytes := Uncertain{Spread: large.spread, AtLeast: true, Samples: large.reads}
	byBytes, byReads := small.byteRate > 0.7*large.byteRate, large.readRate > 0.7*small.readRate
	const another = "the rate still grew when the time was up, or as much was in flight as may be; there were " +
		"%.4g a second"
	switch {
	case !small.flat:
		reads.Why = fmt.Sprintf(another, small.readRate)
	case len(found) == 1:
		r.Store.ReadsPerS, r.Store.BytesPerSec = small.readRate, large.byteRate
		reads.Why = "all blobs are of about one size: which of the two limits was not to be seen"
		bytes.Why = reads.Why
	case byBytes && !byReads:
		reads.Why = fmt.Sprintf("not seen: bytes were the limit, at %.4g a second", small.readRate)
	default:
		r.Store.ReadsPerS, reads.AtLeast = small.readRate, false
	}
	switch {
	case !large.flat:
		bytes.Why = fmt.Sprintf(another, large.byteRate)
	case len(found) == 1:
	case byReads && !byBytes:
		bytes.Why = fmt.Sprintf("not seen: reads were the limit, at %.4g a second", large.byteRate)
	default:
		r.Store.BytesPerSec, bytes.AtLeast = large.byteRate, false
	}
	r.Uncertain["store.reads_per_s"], r.Uncertain["store.bytes_per_s"] = reads, bytes
}

func meanSize(refs []schema.BlobRef) float64 {
	var sum int64
	for i := range refs {
		sum += refs[i].Size
	}
	return float64(sum) / float64(len(refs))
}

// prober reads. Its counters are of all that it has read.
type prober struct {
	ctx          context.Context //nolint:containedctx // a prober lives as long as the call
	get          Get
	opts         Options
	reads, bytes atomic.Int64
}

// read reads a blob and returns how long that took.
func (p *prober) read(ref schema.BlobRef) (time.Duration, error) {
	start := time.Now()
	blob, err := p.get(p.ctx, ref)
	if err != nil {
		return 0, fmt.Errorf("reading blob %s of the store: %w", ref.Key, err)
	}
	took := time.Since(start)
	p.reads.Add(1)
	p.bytes.Add(int64(len(blob.Bytes())))
	blob.Release()
	return took, nil
}

// latency is the median of reads one after another, and by how much the quarter above and
// below differ from it.
func (p *prober) latency(refs []schema.BlobRef) (time.Duration, float64, error) {
	var took []time.Duration
	end := time.Now().Add(p.opts.Time / 4)
	for i := range latencyOf + 1 {
		d, err := p.read(refs[i%len(refs)])
		if err != nil {
			return 0, 0, err
		}
		if i > 0 { // the first one may have opened a connection
			took = append(took, d)
		}
		if i >= 2 && time.Now().After(end) {
			break
		}
	}
	slices.Sort(took)
	median := took[len(took)/2]
	return median, float64(took[len(took)*3/4]-took[len(took)/4]) / float64(max(median, 1)), nil
}

// ladder is what rising concurrency came to.
type ladder struct {
	readRate, byteRate float64 // the best
	spread             float64 // of the rungs that are about as good
	flat               bool    // it grew no more
	reads              int64
}

// climb reads with twice as much in flight each time until the rate grows no more.
func (p *prober) climb(refs []schema.BlobRef, latency, limit time.Duration, class int) (ladder, error) {
	var l ladder
	var rates []float64
	mean := max(meanSize(refs), 1)
	most := max(min(p.opts.Reads, int(float64(p.opts.Bytes)/mean)), 1)
	end := time.Now().Add(limit)
	inFlight, flat := fewReads, 0
	if latency >= nearStore {
		inFlight = moreReads
	}
	for {
		n, bytes, took, err := p.rung(refs, min(inFlight, most), latency, class)
		if err != nil {
			return l, err
		}
		rate := float64(n) / took.Seconds()
		grew := rate / max(l.readRate, 1e-9)
		l.reads += n
		if grew < grows {
			flat++
		} else {
			flat = 0
		}
		l.flat = flat > 0
		rates = append(rates, rate)
		if rate > l.readRate {
			l.readRate, l.byteRate = rate, float64(bytes)/took.Seconds()
		}
		if flat == plateau || inFlight >= most || time.Now().After(end) {
			break
		}
		if inFlight *= 2; grew > soaring {
			inFlight *= 2
		}
	}
	// Only the last rungs count: earlier ones had too few reads in flight to fill the path.
	last := rates[max(0, len(rates)-plateau):]
	l.spread = (slices.Max(last) - slices.Min(last)) / slices.Max(last)
	return l, nil
}

// rung keeps inFlight reads in flight for a while, and then waits for the rest of them. It
// leaves out the first round trip, because the path is not full yet.
func (p *prober) rung(refs []schema.BlobRef, inFlight int, latency time.Duration,
	class int) (n, bytes int64, took time.Duration, err error) {
	var next, made, size atomic.Int64
	var once sync.Once
	var workers sync.WaitGroup
	start := time.Now().Add(latency + latency/20)
	until := start.Add(max(rungLeast, rungTrips*latency))
	next.Store(int64(class) + p.reads.Load()) // another place in the list than the rung before
	for range inFlight {
		workers.Go(func() {
			for time.Now().Before(until) {
				ref := refs[next.Add(1)%int64(len(refs))]
				if _, failed := p.read(ref); failed != nil {
					once.Do(func() { err = failed })
					return
				}
				if time.Now().After(start) {
					made.Add(1)
					size.Add(ref.Size)
				}
			}
		})
	}
	workers.Wait()
	return made.Load(), size.Load(), time.Since(start), err
}
