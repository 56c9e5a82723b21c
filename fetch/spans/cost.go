package spans

import (
	"fmt"
	"time"

	"bowstring/fetch/object"
	"bowstring/schema"
)

// Costs are what requests and bytes cost, in US dollars and CPU seconds. Zero fields have defaults: list prices of S3
// within a region in November 2026, and what net/http takes.
type Costs struct {
	Request       float64       // dollars per request. Default 0.0000004
	Byte          float64       // dollars per byte, as between regions. Default 0
	RequestTime   time.Duration // CPU time per request. Default 60 µs
	GigabyteTime  time.Duration // CPU time per 10^9 bytes. Default 500 ms
	ProcessorHour float64       // dollars per CPU hour. Default 0.04

	priced bool // Request and Byte are set, even if they are zero
}

func (c *Costs) ensureDefaults() {
	if c.Request == 0 && !c.priced {
		c.Request = 0.4e-6
	}
	if c.RequestTime == 0 {
		c.RequestTime = 60 * time.Microsecond
	}
	if c.GigabyteTime == 0 {
		c.GigabyteTime = 500 * time.Millisecond
	}
	if c.ProcessorHour == 0 {
		c.ProcessorHour = 0.04
	}
}

// Validate returns an error if a cost is negative.
func (c *Costs) Validate() error {
	if c.Request < 0 || c.Byte < 0 || c.RequestTime < 0 || c.GigabyteTime < 0 || c.ProcessorHour < 0 {
		return fmt.Errorf("%w: costs of spans are negative: %+v", schema.ErrInvalid, *c)
	}
	return nil
}

const (
	// nearGap is the largest gap, in bytes, between two blobs wanted now that is read along.
	nearGap = 1 << 20
	// inFlight is how many requests are assumed in flight on a link that consumers wait for.
	inFlight = 256
)

// maxCosts bounds the number of buckets whose costs are cached.
const maxCosts = 1024

// costsLocked returns the costs of requests to a bucket.
func (t *Tier) costsLocked(b object.Bucket) *Costs {
	if t.opts.Price == nil {
		return &t.opts.Costs
	}
	c, known := t.costs[b]
	if !known {
		if len(t.costs) >= maxCosts {
			clear(t.costs)
		}
		c = t.opts.Costs
		if request, each, ok := t.opts.Price(b.URL()); ok {
			c = c.At(request, each)
		}
		t.costs[b] = c
	}
	return &c
}

// At returns c with other prices of a request and a byte, in dollars.
func (c Costs) At(request, each float64) Costs {
	c.ensureDefaults()
	c.Request, c.Byte, c.priced = request, each, true
	return c
}

// nearLocked is the largest gap between two blobs wanted now that is read along.
func (t *Tier) nearLocked(b object.Bucket) int64 { return min(nearGap, t.costsLocked(b).Gap()) }

// Gap is the largest gap, in bytes, between two wanted blobs that is read along to save a request, while no consumer
// waits for the store.
func (c *Costs) Gap() int64 {
	c.ensureDefaults()
	return c.gap(&link{}, false)
}

// gap is how many unwanted bytes are read at most to save a request: as many as cost as much as the request. If
// consumers wait for the link, time counts as well: as many bytes as the link carries in the latency of a request,
// divided among all requests in flight.
func (c *Costs) gap(l *link, waits bool) int64 {
	second := c.ProcessorHour / 3600
	request := c.Request + c.RequestTime.Seconds()*second
	byte1 := c.Byte + c.GigabyteTime.Seconds()/1e9*second
	gap := int64(MaxSpan)
	if most := request / byte1; most < MaxSpan {
		gap = int64(most)
	}
	if waits && l.rate > 0 {
		each := max(l.latency.Seconds()/inFlight, c.RequestTime.Seconds())
		gap = min(gap, max(int64(each*l.rate), nearGap))
	}
	return gap
}

// link is what was measured of the network to buckets. Tier.mu guards it.
type link struct {
	latency time.Duration // minimum time of a span
	perByte float64       // seconds per byte of a span, a moving average
	rate    float64       // bytes per second of all spans, a moving average; 0: unknown
	round   time.Time     // start of the current measurement
	came    int64         // bytes received since round
}

const (
	// linkShare is the weight of a span in the moving average, and roundShare that of a round.
	linkShare, roundShare = 0.125, 0.25
	// linkSlack is added to the size of each request, for its fixed cost.
	linkSlack = 256 << 10
	// linkRound is the shortest time over which a rate is measured. After linkPause without a span the measurement
	// starts anew.
	linkRound, linkPause = 200 * time.Millisecond, 2 * time.Second
)

func (l *link) add(now time.Time, bytes int64, took time.Duration) {
	if l.latency == 0 || took < l.latency {
		l.latency = took
	}
	per := took.Seconds() / float64(bytes+linkSlack)
	if l.perByte == 0 {
		l.perByte = per
	}
	l.perByte += (per - l.perByte) * linkShare
	l.came += bytes
	switch since := now.Sub(l.round); {
	case since > linkPause:
		l.round, l.came = now, 0
	case since >= linkRound:
		rate := float64(l.came) / since.Seconds()
		if l.rate == 0 {
			l.rate = rate
		}
		l.rate += (rate - l.rate) * roundShare
		l.round, l.came = now, 0
	}
}

// takes is how long a span of that many bytes usually takes.
func (l *link) takes(bytes int64) time.Duration {
	return time.Duration(l.perByte * float64(bytes+linkSlack) * float64(time.Second))
}
