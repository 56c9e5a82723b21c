package flight

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/object"
	"bowstring/fetch/predict"
	"bowstring/fetch/spans"
	"bowstring/flight/catalog"
)

// Bill is what a job will ask of buckets, and what that costs by list prices.
type Bill struct {
	// Share is the fraction of the sampled blobs of the job that are in buckets. Looked
	// is the size of the sample.
	Share  float64 `json:"share"`
	Looked int     `json:"looked"`
	// Buckets are their buckets, the one with most blobs first.
	Buckets  []BilledBucket  `json:"buckets"`
	Dated    string          `json:"prices_dated"`
	Transfer object.Transfer `json:"transfer"` // which way bytes go
	Plans    []BilledPlan    `json:"plans"`
	// Elsewhere is what the bytes of the first plan cost on other ways.
	Elsewhere map[object.Transfer]object.Money `json:"transfer_usd"`
}

// BilledBucket is a bucket that contains blobs of a job.
type BilledBucket struct {
	Bucket string  `json:"bucket"` // its URL
	Share  float64 `json:"share"`  // of the blobs in buckets
	Priced string  `json:"priced,omitempty"`
	// PerSecond is how many reads a second are taken to be allowed; Learned says that the bucket has shown it. 0: any.
	PerSecond float64 `json:"requests_per_s"`
	Learned   bool    `json:"learned"`
	// Gap is how many bytes between two blobs that are wanted are read along at most, as a request costs as much: see
	// [spans.Costs].
	Gap int64 `json:"gap_bytes"`
}

// Plans of reading that a bill compares.
const (
	PlanRun     = "this run"        // as the conditions are
	PlanSingles = "no cache"        // each sample by a request of its own, in each epoch
	PlanHeld    = "a cache for all" // each byte is read once, in spans
	PlanPacked  = "packed, a cache for all"
	PlanCluster = "one cache of four times the nodes"
	PlanApart   = "each node by itself"
)

// BilledPlan is what all epochs of a job take if it is read in one way.
type BilledPlan struct {
	Plan     string `json:"plan"`
	Requests int64  `json:"requests"`
	// Bytes are read, those that come with spans and are not kept included.
	Bytes int64       `json:"bytes"`
	Cost  object.Bill `json:"cost_usd"`
	// Hours is how long the requests take at what the buckets allow; 0 where that is not known.
	Hours float64 `json:"hours"`
}

// spanBytes is what a span has at most.
const spanBytes = 8 << 20

// bill estimates the cost of a job; it is nil if no sampled blob is in a bucket.
func (s actionHandler) bill(ctx context.Context, cat *catalog.Catalog, job *fetch.Job, c *predict.Job,
	p *predict.Prediction) (*Bill, error) {
	requests := s.opts.Requests
	if requests == nil {
		return nil, nil //nolint:nilnil // that there are no buckets is no error
	}
	found, err := cat.Extents(ctx, job)
	if err != nil || len(found.Extents) == 0 {
		return nil, err
	}
	limits := map[string]float64{}
	for _, l := range requests.Budget.Limits() {
		if !cat.SeesAll() {
			break // the measured rates reveal the jobs of others
		}
		if l.Prefix == "" && l.Class == object.Reads.String() {
			limits[l.Bucket] = l.PerSecond
		}
	}
	return billOf(found, c, p, requests.Prices, requests.Transfer, limits), nil
}

// pricedExtent is an extent of those that stand for all, with its price.
type pricedExtent struct {
	fetch.Extent
	price *object.Price
	rate  float64
}

// samples is how many of the extent a span of it may have; packed, of any of its size.
func (b *pricedExtent) samples(packed bool) float64 {
	span := float64(spanBytes)
	if !packed {
		span = min(span, float64(b.ObjectSize))
	}
	return max(span/float64(max(b.Length, 1)), 1)
}

// epoch is the requests and bytes of one epoch for a blob of a bucket: one request for
// each blob that the cache does not have, if the cache keeps the blobs with the soonest
// next use; or spans over all wanted blobs (spans.Requests). It is what costs less; by
// spans that bring more than mostWaste times the bytes that are wanted nothing is read.
func (b *pricedExtent) epoch(missing, held, wanted float64, first, packed bool, way object.Transfer) (requests,
	bytes float64) {
	length := float64(b.Length)
	requests, bytes = missing, missing*length
	k := b.samples(packed)
	if lasts := spans.Lasts(min(held, 0.5)); mostWaste*lasts < 1 {
		k = min(k, max(mostWaste*(1-lasts)/(1-mostWaste*lasts), 1))
	}
	n := spans.Requests(wanted, k, held, first)
	if in := max(n*k, wanted) * length; b.cost(n, in, way) < b.cost(requests, bytes, way) {
		return n, in
	}
	return requests, bytes
}

// mostWaste is how many times the bytes that are wanted spans bring at most.
const mostWaste = 10

// cost is what requests and bytes cost, to compare; where nothing has a price, it is requests.
func (b *pricedExtent) cost(requests, bytes float64, way object.Transfer) float64 {
	if b.price == nil {
		return requests
	}
	const many = 1_000_000_000 // so that fractions of requests count
	c := object.Cost(object.Counts{Gets: int64(requests * many)}, b.price, way)
	of := object.Cost(object.Counts{BytesIn: 1 << 50}, b.price, way)
	return float64(c.Total)/many + float64(of.Total)*bytes/(1<<50)
}

func billOf(found fetch.Extents, c *predict.Job, p *predict.Prediction, prices *object.Prices, way object.Transfer,
	limits map[string]float64) *Bill {
	bill := &Bill{Looked: found.Looked, Share: float64(len(found.Extents)) / float64(found.Looked), Dated: prices.Dated,
		Transfer: way, Elsewhere: map[object.Transfer]object.Money{}}
	all := make([]pricedExtent, len(found.Extents))
	at := map[string]int{}
	for i, e := range found.Extents {
		price, exact := prices.Find(e.Bucket)
		n, ok := at[e.Bucket]
		if !ok {
			n = len(bill.Buckets)
			at[e.Bucket] = n
			one := BilledBucket{Bucket: e.Bucket, PerSecond: limits[e.Bucket], Learned: limits[e.Bucket] > 0}
			costs := spans.Costs{}
			if price != nil {
				costs = costs.At(price.Each(way))
				one.Priced = price.Name(exact)
				if !one.Learned {
					one.PerSecond = price.PerSecond
				}
			}
			one.Gap = costs.Gap()
			bill.Buckets = append(bill.Buckets, one)
		}
		bill.Buckets[n].Share += 1 / float64(len(found.Extents))
		all[i] = pricedExtent{e, price, bill.Buckets[n].PerSecond}
	}
	sortBuckets(bill.Buckets)
	blobs := float64(c.Rows) * c.RowReads * bill.Share / float64(len(all)) // that one extent stands for
	later := float64(c.Epochs - 1)
	first := 1 - p.First.HitShare
	plan := func(name string, epochs func(*pricedExtent) (requests, bytes float64)) {
		bill.Plans = append(bill.Plans, planOf(name, all, blobs, way, epochs))
	}
	cached := func(held float64) func(*pricedExtent) (float64, float64) {
		return func(b *pricedExtent) (float64, float64) {
			r1, b1 := b.epoch(first, held, first, true, false, way)
			if held >= 1 {
				return r1, b1
			}
			r2, b2 := b.epoch(1-held, held, 1, false, false, way)
			return r1 + later*r2, b1 + later*b2
		}
	}
	held := p.Later.HitShare
	plan(PlanRun, cached(held))
	plan(PlanSingles, func(b *pricedExtent) (float64, float64) {
		n := 1 + later
		return n, n * float64(b.Length)
	})
	plan(PlanHeld, cached(1))
	plan(PlanPacked, func(b *pricedExtent) (float64, float64) { return b.epoch(first, 1, first, true, true, way) })
	if held < 1 && c.CacheBytes > 0 {
		plan(PlanCluster, cached(min(4*held, 1)))
	}
	if c.Nodes > 1 {
		nodes := float64(c.Nodes)
		own := cached(held / nodes)
		plan(PlanApart, func(b *pricedExtent) (float64, float64) {
			requests, bytes := own(b)
			return nodes * requests, nodes * bytes
		})
	}
	for _, t := range object.Transfers() {
		if t != way {
			bill.Elsewhere[t] = planOf(PlanRun, all, blobs, t, cached(held)).Cost.Transfer
		}
	}
	return bill
}

// planOf adds up what the extents take, each for as many blobs as it stands for.
func planOf(name string, all []pricedExtent, blobs float64, way object.Transfer,
	epochs func(*pricedExtent) (requests, bytes float64)) BilledPlan {
	type sum struct{ requests, bytes float64 }
	var hours float64
	by := map[*object.Price]*sum{}
	for i := range all {
		b := &all[i]
		s := by[b.price]
		if s == nil {
			s = &sum{}
			by[b.price] = s
		}
		requests, bytes := epochs(b)
		s.requests += blobs * requests
		s.bytes += blobs * bytes
		if b.rate > 0 {
			hours += blobs * requests / b.rate / time.Hour.Seconds()
		}
	}
	one := BilledPlan{Plan: name, Hours: math.Round(1e4*hours) / 1e4}
	for price, s := range by {
		counts := object.Counts{Gets: int64(math.Ceil(s.requests)), BytesIn: int64(math.Ceil(s.bytes))}
		cost := object.Cost(counts, price, way)
		one.Requests += counts.Gets
		one.Bytes += counts.BytesIn
		one.Cost.Requests += cost.Requests
		one.Cost.Transfer += cost.Transfer
		one.Cost.Total += cost.Total
	}
	return one
}

func sortBuckets(list []BilledBucket) {
	slices.SortStableFunc(list, func(a, b BilledBucket) int { return cmp.Compare(b.Share, a.Share) })
}
