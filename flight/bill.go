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

// Bill is the estimate of a job's requests to buckets, and of their cost at list prices.
type Bill struct {
	// Share is the fraction of the sampled blobs of the job that are in buckets. Looked
	// is the size of the sample.
	Share  float64 `json:"share"`
	Looked int     `json:"looked"`
	// Buckets are sorted by their number of blobs, largest first.
	Buckets []BilledBucket `json:"buckets"`
	Dated   string         `json:"prices_dated"`
	// Transfer is the route of the bytes from the bucket to this node. It decides the
	// price.
	Transfer object.Transfer `json:"transfer"`
	Plans    []BilledPlan    `json:"plans"`
	// Elsewhere is the transfer cost of the first plan over each other route.
	Elsewhere map[object.Transfer]object.Money `json:"transfer_usd"`
}

// BilledBucket is a bucket that contains blobs of a job.
type BilledBucket struct {
	Bucket string `json:"bucket"` // its URL
	// Share is the fraction of the job's blobs in buckets that are in this one.
	Share  float64 `json:"share"`
	Priced string  `json:"priced,omitempty"`
	// PerSecond is the number of reads a second that the bucket allows, 0 if there is no
	// limit. Learned is set if the bucket has shown the limit. Otherwise the limit is the
	// price list's.
	PerSecond float64 `json:"requests_per_s"`
	Learned   bool    `json:"learned"`
	// Gap is the largest distance in bytes between two wanted blobs that are read as one
	// span. Up to this distance the extra bytes cost less than another request: see
	// [spans.Costs].
	Gap int64 `json:"gap_bytes"`
}

// Plans of reading that a bill compares.
const (
	// Each name is also the label that clients show.
	PlanRun     = "this run"        // as the conditions are
	PlanSingles = "no cache"        // each sample by a request of its own, in each epoch
	PlanHeld    = "a cache for all" // each byte is read once, in spans
	PlanPacked  = "packed, a cache for all"
	PlanCluster = "one cache of four times the nodes"
	PlanApart   = "each node by itself"
)

// BilledPlan is the cost of all epochs of a job for one way of reading.
type BilledPlan struct {
	Plan     string `json:"plan"`
	Requests int64  `json:"requests"`
	// Bytes counts all bytes that are read. It includes those between the wanted blobs of a
	// span, which are discarded.
	Bytes int64       `json:"bytes"`
	Cost  object.Bill `json:"cost_usd"`
	// Hours is how long the requests take at the rate that the buckets allow. It is 0 if
	// the rate is unknown.
	Hours float64 `json:"hours"`
}

// spanBytes is the largest span that the estimate uses.
const spanBytes = 8 << 20

// bill estimates the cost of a job. It returns nil if the store has no buckets, or if no
// sampled blob is in one.
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

// pricedExtent is a sampled extent with its price. The extents of the sample represent all
// blobs of the job.
type pricedExtent struct {
	fetch.Extent
	price *object.Price
	// rate is the allowed reads a second; 0 if it is unlimited or unknown.
	rate float64
}

// samples returns how many blobs of the extent's size fit into one span. Today's object
// bounds a span as well. A packed dataset has objects of any size, so only spanBytes
// counts.
func (b *pricedExtent) samples(packed bool) float64 {
	span := float64(spanBytes)
	if !packed {
		span = min(span, float64(b.ObjectSize))
	}
	return max(span/float64(max(b.Length, 1)), 1)
}

// epoch returns the requests and bytes of one epoch for one blob. There are two ways to
// read it, and epoch returns the cheaper one:
//
//   - one request for each blob that the cache misses, if the cache keeps the blobs with the
//     soonest next use;
//   - spans over all wanted blobs (spans.Requests).
//
// missing, held and wanted are fractions of the job's blobs. Spans that would bring more
// than mostWaste times the wanted bytes are excluded.
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

// mostWaste bounds the bytes that spans read, as a multiple of the wanted bytes.
const mostWaste = 10

// cost returns the price of requests and bytes, for comparisons only. If the bucket has no
// price, it returns the number of requests: fewer requests are then the better way.
func (b *pricedExtent) cost(requests, bytes float64, way object.Transfer) float64 {
	if b.price == nil {
		return requests
	}
	const many = 1_000_000_000 // scales fractions of requests to integer counts
	c := object.Cost(object.Counts{Gets: int64(requests * many)}, b.price, way)
	of := object.Cost(object.Counts{BytesIn: 1 << 50}, b.price, way)
	return float64(c.Total)/many + float64(of.Total)*bytes/(1<<50)
}

// billOf computes the bill from the sampled extents, without access to the store. limits
// has the learned rates of buckets by URL; it is empty if the caller may not see them.
func billOf(found fetch.Extents, c *predict.Job, p *predict.Prediction, prices *object.Prices, way object.Transfer,
	limits map[string]float64) *Bill {
	bill := &Bill{Looked: found.Looked, Share: float64(len(found.Extents)) / float64(found.Looked), Dated: prices.Dated,
		Transfer: way, Elsewhere: map[object.Transfer]object.Money{}}
	// First the buckets: each sampled extent adds its share to its bucket, and gets the
	// bucket's price and rate.
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
	// blobs is how many reads of one epoch each sampled extent represents.
	blobs := float64(c.Rows) * c.RowReads * bill.Share / float64(len(all)) // that one extent stands for
	later := float64(c.Epochs - 1)
	first := 1 - p.First.HitShare
	// Then the plans. They share the sample, so their figures can be compared with each
	// other.
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
	// In the first epoch the cache is empty; hits come only from blobs that were there
	// before. Later epochs hit as often as the prediction says.
	held := p.Later.HitShare
	plan(PlanRun, cached(held))
	plan(PlanSingles, func(b *pricedExtent) (float64, float64) {
		n := 1 + later
		return n, n * float64(b.Length)
	})
	plan(PlanHeld, cached(1))
	plan(PlanPacked, func(b *pricedExtent) (float64, float64) { return b.epoch(first, 1, first, true, true, way) })
	// A larger cluster helps only if today's cache does not hold the whole job.
	if held < 1 && c.CacheBytes > 0 {
		plan(PlanCluster, cached(min(4*held, 1)))
	}
	// Without a shared cache each node reads the whole job, with its own part of the cache.
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

// planOf sums the requests and bytes of all extents, each multiplied by the number of blobs
// that it represents. It sums by price first, because costs are rounded to whole requests.
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

// sortBuckets sorts by share, largest first. The sort is stable: equal buckets keep the
// order of the sample, so that an answer can be reproduced.
func sortBuckets(list []BilledBucket) {
	slices.SortStableFunc(list, func(a, b BilledBucket) int { return cmp.Compare(b.Share, a.Share) })
}
