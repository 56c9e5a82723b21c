package spans

import (
	"fmt"
	"time"

	"bowstring/fetch/object"
	"bowstring/schema"
)

// Costs are what requests and bytes cost, in US dollars and seconds of a processor. What is zero has its default: list
// prices of S3 within a region in November 2026, and what net/http takes.
type Costs struct {
	Request       float64       // of one, in dollars. Default 0.0000004
	Byte          float64       // in dollars, as between regions. Default 0
	RequestTime   time.Duration // of a processor, for a request. Default 60 µs
	GigabyteTime  time.Duration // of a processor, for 10^9 bytes. Default 500 ms
	ProcessorHour float64       // an hour of a processor, in dollars. Default 0.04

	priced bool // Request and Byte are what they are, if they are zero, too
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

// Validate returns an error that names what is negative.
func (c *Costs) Validate() error {
	if c.Request < 0 || c.Byte < 0 || c.RequestTime < 0 || c.GigabyteTime < 0 || c.ProcessorHour < 0 {
		return fmt.Errorf("%w: costs of spans are negative: %+v", schema.ErrInvalid, *c)
	}
	return nil
}

const (
	// nearGap is how many bytes between two blobs that are wanted now are read along at most.
	nearGap = 1 << 20
	// inFlight is how many requests are under way at once on a link that consumers wait for.
	inFlight = 256
)

// maxCosts bounds the buckets whose costs are kept.
const maxCosts = 1024

// costsLocked are what requests to a bucket and its bytes cost.
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

// nearLocked is how many bytes between two blobs that are wanted now are read along.
func (t *Tier) nearLocked(b object.Bucket) int64 { return min(nearGap, t.costsLocked(b).Gap()) }

// Gap is how many bytes between two blobs that are wanted are read along at most to spare a request, while no consumer
// waits for the store.
func (c *Costs) Gap() int64 {
	c.ensureDefaults()
	return c.gap(&link{}, false)
}

// gap is how many unwanted bytes are read at most to spare a request: as many as cost as much. Where consumers
// wait for the link, it is time that counts: as many bytes as the link carries while a request is answered, shared by
// all that are under way at once.
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

// link is what was measured of the way to buckets. It is guarded by Tier.mu.
type link struct {
	latency time.Duration // the least that a span took
	perByte float64       // seconds that a byte of a span took, as a moving average
	rate    float64       // bytes a second that all spans brought, as a moving average; 0: not known
	round   time.Time     // since when it is measured
	came    int64         // bytes that came since
}

const (
	// linkShare is the part that a span has in the average, and roundShare that of a round.
	linkShare, roundShare = 0.125, 0.25
	// linkSlack is how many bytes a request counts for beside its own.
	linkSlack = 256 << 10
	// linkRound is how long a rate is measured at least, and linkPause after what time without a span it is begun anew.
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

// takes is how long a span of n bytes usually takes.
func (l *link) takes(bytes int64) time.Duration {
	return time.Duration(l.perByte * float64(bytes+linkSlack) * float64(time.Second))
}
