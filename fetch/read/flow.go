package read

import (
	"cmp"
	"time"
)

const (
	// flowGain is how many times bandwidth × latency may be in flight. The extra half shows whether the path carries
	// more.
	flowGain = 1.5
	// flowRound is the shortest time over which bandwidth is measured.
	flowRound = 10 * time.Millisecond
	// flowShare is the weight of a round's bandwidth in the moving average. A maximum would keep the value of a burst
	// after a pause of the store.
	flowShare = 0.25
	// The path counts as full when its bandwidth has not grown by flowFull in flowFullRounds rounds. One round is
	// enough if each of its reads took longer than flowSlower times the minimum latency plus flowSlack. While
	// connections open their windows, reads also take longer, but the rate grows.
	flowFull       = 1.25
	flowFullRounds = 3
	flowSlower     = 1.25
	flowSlack      = 2 * time.Millisecond
	// flowProbe is how often the path is drained, for flowProbeRounds rounds, to measure its minimum latency again:
	// with twice as much in flight as the path carries, every read has waited for others.
	flowProbe       = 10 * time.Second
	flowProbeRounds = 2
	// readOverhead is what a read costs in addition to the bytes of its blob.
	readOverhead = 2 << 10
	// A few reads may always be in flight, whatever was measured. With a store that answers at once the number is
	// fewReads, so that the bytes are still in the CPU cache when they are sent. It grows with latency, up to
	// manyReads at manyLatency.
	//
	// While the store has a queue, the nodes of a cluster divide manyReads among them: 256 nodes would otherwise have
	// 65,536 reads in the queue, where all wait so long that they are taken for lost and repeated. The store has a
	// queue if every read of a round takes more than flowCrowded times the minimum latency. It has none if some read
	// takes less than flowFree times that while streams use the whole limit. An unmeasured path is assumed to have a
	// queue: four nodes could otherwise put a thousand reads into the queue of a slow store before the first answer
	// shows that.
	fewReads    = 8
	manyReads   = 256
	manyLatency = time.Millisecond
	// At first, more reads are in flight to a distant store, up to farReads at farLatency, because each doubling
	// takes a round trip.
	farReads    = 512
	farLatency  = 150 * time.Millisecond
	flowCrowded = 4
	flowFree    = 2
	// bucketLatency is the assumed latency of a bucket that has not answered. If few reads were in flight at first,
	// the first batch would take several round trips.
	bucketLatency = 20 * time.Millisecond
)

// flow decides how much may be in flight to the store, over all streams.
//
// It follows BBR (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 2016): a path is described
// by the rate at which bytes arrive and by the minimum latency of a read. During startup each read that completes
// makes room for one more, which doubles the bytes in flight in every round trip, until the rate stops growing. It
// ends at once if all reads take longer as well, as in HyStart (Ha and Rhee: "Taming the elephants", 2011). From then
// on 1.5 × rate × latency may be in flight: if latency rises and the rate does not, the limit stays, and it falls
// when the rate does. Every ten seconds the path is drained to measure its latency again.
//
// A round in which streams did not use the whole limit only shows that the path carries at least as much.
//
// Reader.mu guards it.
type flow struct {
	maxReads int
	sharers  func() int    // how many nodes share the path
	guess    time.Duration // assumed latency while it is unknown

	limit int64 // bytes that may be in flight
	used  int64 // bytes in flight, with the overhead of each read
	reads int   // reads in flight
	gated bool  // the limit held a stream back in this round

	rate     float64 // in bytes per second, a moving average of rounds
	full     float64 // the rate when it last grew by flowFull
	flat     int     // rounds since full was set
	startup  bool
	crowded  bool          // the store has a queue
	round    time.Time     // when the round began
	returned int64         // bytes received in the round
	answers  int64         // reads completed in the round
	quickest time.Duration // minimum latency in the round; 0: unknown

	latency      time.Duration // recent minimum; 0: unknown
	latencyAfter time.Duration // minimum since the last probe began
	probed       time.Time     // when the last probe began, or the path was drained in it
	probing      bool
	emptied      bool // in this probe, the path holds no more than the limit

	past past
}

// init sets up a flow that has measured nothing.
func (f *flow) init(maxReads int, sharers func() int) {
	f.maxReads, f.sharers, f.startup = maxReads, sharers, true
}

// least is the recent minimum latency, or the assumed one.
func (f *flow) least() time.Duration { return cmp.Or(f.latency, f.guess) }

// floor is how many reads may be in flight whatever was measured.
func (f *flow) floor() int {
	latency := f.least()
	many := min(int(manyReads*latency/manyLatency), manyReads)
	if f.startup {
		many = max(many, min(int(farReads*latency/farLatency), farReads))
	}
	if f.crowded || f.startup {
		many /= max(f.sharers(), 1)
	}
	return min(max(fewReads, many), f.maxReads)
}

// admits reports whether one more read of n bytes may begin.
func (f *flow) admits(n int64) bool {
	if f.reads < f.floor() && !f.probing {
		return true
	}
	if f.reads == 0 || f.used+n+readOverhead <= f.limit && f.reads < f.maxReads {
		return true
	}
	f.gated = true
	return false
}

// admitsFill reports whether one more read of n bytes may begin that no stream waits for. The number that may always
// be in flight is smaller than for streams, so that a stream that starts does not wait for them on a slow path. With
// half, half of the path stays free.
func (f *flow) admitsFill(n int64, half bool) bool {
	share := 1
	if half {
		share = 2
	}
	if f.probing {
		return false
	}
	if share*f.reads < fewReads || int64(share)*(f.used+n+readOverhead) <= f.limit && share*f.reads < f.maxReads {
		return true
	}
	f.gated = f.gated || !half // fills use all that the path carries
	return false
}

// began counts a read that begins.
func (f *flow) began(n int64) {
	f.used += n + readOverhead
	f.reads++
}

// abandoned counts a read that ended without its bytes.
func (f *flow) abandoned(n int64) {
	f.used -= n + readOverhead
	f.reads--
}

// completed counts a read that brought n bytes in that time. If it is joined, its time is not that of the path.
func (f *flow) completed(now time.Time, n int64, took time.Duration, joined bool) {
	n += readOverhead
	if f.startup && f.gated {
		f.limit = max(f.limit, f.used) + n
	}
	f.used -= n
	f.reads--
	f.returned += n
	f.answers++
	if !joined {
		for _, least := range []*time.Duration{&f.latency, &f.quickest, &f.latencyAfter} {
			if *least == 0 || took < *least {
				*least = took
			}
		}
	}
	switch {
	case f.round.IsZero():
		f.round, f.probed, f.returned, f.answers = now, now, 0, 0
	case now.Sub(f.round) >= max(flowRound, f.latency):
		f.nextRound(now)
	}
}

// nextRound evaluates a round, and begins the next.
func (f *flow) nextRound(now time.Time) {
	took := now.Sub(f.round)
	rate := float64(f.returned) / took.Seconds()
	if f.startup || f.probing || !f.gated {
		took = 0 // the rate is lower than what the path carries
	}
	f.past.add(now, took, f.answers, f.returned-f.answers*readOverhead, f.latency)
	if f.startup {
		f.rate = max(f.rate, rate)
		if f.gated {
			f.fill(rate)
		}
	} else if !f.probing && (f.gated || rate > f.rate) {
		f.rate += (rate - f.rate) * flowShare
	}
	switch {
	case f.startup || f.quickest > flowCrowded*f.latency+flowSlack:
		f.crowded = true
	case f.gated && f.quickest > 0 && f.quickest < flowFree*f.latency:
		f.crowded = false
	}
	f.probe(now)
	if !f.startup {
		gain := flowGain
		if f.probing {
			gain = 1
		}
		f.limit = int64(gain * f.rate * f.latency.Seconds())
	}
	f.round, f.returned, f.answers, f.quickest, f.gated = now, 0, 0, 0, false
}

// fill ends the startup when the path is full.
func (f *flow) fill(rate float64) {
	if rate >= f.full*flowFull {
		f.full, f.flat = rate, 0
	} else {
		f.flat++
	}
	slower := f.quickest > time.Duration(flowSlower*float64(f.latency))+flowSlack
	f.startup = (!slower || f.flat == 0) && f.flat < flowFullRounds
}

// probe begins and ends the rounds in which the path is drained.
func (f *flow) probe(now time.Time) {
	since := now.Sub(f.probed)
	switch {
	case f.probing && !f.emptied:
		if f.emptied = f.used <= f.limit; f.emptied {
			f.probed, f.latencyAfter = now, 0
		}
	case f.probing:
		if since >= flowProbeRounds*max(flowRound, f.latency) && f.latencyAfter > 0 {
			f.probing, f.latency = false, f.latencyAfter
		}
	case since >= flowProbe:
		f.probing, f.emptied = !f.startup && f.gated, false
		f.probed = now
	}
}

// Measurements of the path to the last tier are kept by the minute, for half a day.
const (
	spellLength = time.Minute
	spells      = 720
)

// Spell is a measurement of the path to the last tier over some time.
type Spell struct {
	Begin   time.Time
	Latency time.Duration // minimum of a read
	// Full is how long the path was used to its limit. Reads and Bytes are what it carried in that time.
	Full         time.Duration
	Reads, Bytes int64
}

// merge adds the measurement of another time.
func (s *Spell) merge(o *Spell) {
	if s.Begin.IsZero() || o.Begin.Before(s.Begin) {
		s.Begin = o.Begin
	}
	if o.Latency > 0 && (s.Latency == 0 || o.Latency < s.Latency) {
		s.Latency = o.Latency
	}
	s.Full += o.Full
	s.Reads += o.Reads
	s.Bytes += o.Bytes
}

// past holds recent measurements. Reader.mu guards it.
type past struct {
	list [spells]Spell // a ring by the minute; old entries are overwritten
}

// add records a round that ended. full is how long the path was full in it, and reads and bytes are what it carried
// then.
func (p *past) add(now time.Time, full time.Duration, reads, bytes int64, latency time.Duration) {
	begin := now.Truncate(spellLength)
	at := &p.list[begin.Unix()/int64(spellLength/time.Second)%spells]
	if !at.Begin.Equal(begin) {
		*at = Spell{Begin: begin}
	}
	one := Spell{Begin: begin, Latency: latency}
	if full > 0 {
		one.Full, one.Reads, one.Bytes = full, reads, bytes
	}
	at.merge(&one)
}

// between merges the measurements from the minute of from to the minute of to.
func (p *past) between(from, to time.Time) (sum Spell) {
	from = from.Truncate(spellLength)
	for i := range p.list {
		if s := &p.list[i]; !s.Begin.IsZero() && !s.Begin.Before(from) && !s.Begin.After(to) {
			sum.merge(s)
		}
	}
	return sum
}

// Past returns the measurement of the path to the last tier from the minute of from to the minute of to; the zero
// Spell if there is none. It goes back half a day. If there are several paths, it is that of the one that was full
// for longest.
func (r *Reader) Past(from, to time.Time) (seen Spell) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.last.ways {
		if one := r.last.ways[i].past.between(from, to); seen.Begin.IsZero() || one.Full > seen.Full {
			seen = one
		}
	}
	return seen
}
