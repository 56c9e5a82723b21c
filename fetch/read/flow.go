package read

import (
	"cmp"
	"time"
)

const (
	// flowGain is how many times bandwidth × latency may be in flight. The half
	// lets the path show that it carries more when more is asked of it.
	flowGain = 1.5
	// flowRound is how long bandwidth is measured at least.
	flowRound = 10 * time.Millisecond
	// flowShare is the part of a round's bandwidth in the average. A greatest
	// one would be that of some burst after a pause of the store.
	flowShare = 0.25
	// flowFull is by how much the bandwidth must have grown over a round for the
	// path to be taken for not yet full, flowFullRounds for how many rounds it
	// must not have: one is enough where every read of it took longer than flowSlower
	// times the least latency, and flowSlack. Reads also take longer, and the rate
	// grows, while connections open their windows.
	flowFull       = 1.25
	flowFullRounds = 3
	flowSlower     = 1.25
	flowSlack      = 2 * time.Millisecond
	// flowProbe is how often the path is emptied, for flowProbeRounds rounds, to
	// see its least latency again: with twice as much in flight as it carries,
	// every read has waited for others.
	flowProbe       = 10 * time.Second
	flowProbeRounds = 2
	// readOverhead is what a read costs beside the bytes of its blob.
	readOverhead = 2 << 10
	// A store is asked for some blobs at once whatever was measured: for few
	// where it answers at once, so that their bytes are still in the processor's
	// cache when they are sent, and for more the further away it is, up to
	// manyReads at manyLatency. While the store has a queue, in which every read of a round waits for more than
	// flowCrowded times the least latency, nodes of a cluster divide the latter: 256 of them would have 65,536 reads in
	// it, which all wait so long that they are taken for lost and made again. It has none when some read takes less
	// than flowFree times that though streams have all in flight that they may. Until a way is known, it is taken for
	// one with a queue: four nodes would have a thousand reads in that of a slow one before the first of them came
	// late.
	fewReads    = 8
	manyReads   = 256
	manyLatency = time.Millisecond
	// At first, more is in flight to a store that is far away: farReads at farLatency. To double what is in
	// flight takes a round trip.
	farReads    = 512
	farLatency  = 150 * time.Millisecond
	flowCrowded = 4
	flowFree    = 2
	// bucketLatency is what a bucket's is taken for before it has answered: its first batch would come in a handful of
	// round trips if few were read at first.
	bucketLatency = 20 * time.Millisecond
)

// flow says how much may be in flight to the store, over all streams.
//
// It follows BBR (Cardwell et al., "BBR: Congestion-Based Congestion Control",
// ACM Queue 2016): the path is known by the rate at which bytes come back and
// the least latency of a read. At first each read that completes makes room for
// one more, which doubles what is in flight in every round trip, until the rate
// stands still, at once if, as HyStart has it (Ha and Rhee: "Taming the elephants", 2011),
// all reads take longer as well. Then one and a half times rate × latency may be in
// flight: where latency rises and the rate does not, the limit stays, and it
// falls when the rate does. Every ten seconds the path is emptied to measure its
// latency again.
//
// A round in which streams had no use for all of the limit says nothing about
// the path but that it carries at least as much.
//
// It is guarded by Reader.mu.
type flow struct {
	maxReads int
	sharers  func() int    // how many share the way
	guess    time.Duration // what the latency is taken for while it is not known

	limit int64 // bytes that may be in flight
	used  int64 // bytes in flight, with the overhead of each read
	reads int   // reads in flight
	gated bool  // a stream was held back by the limit in this round

	rate     float64 // in bytes per second, a moving average of rounds
	full     float64 // the rate when it last grew by flowFull
	still    int     // rounds since
	startup  bool
	crowded  bool          // the store has a queue
	round    time.Time     // when the round began
	returned int64         // bytes that came back in it
	answers  int64         // reads that did
	quickest time.Duration // the least latency in it

	latency      time.Duration // the least of late; 0: not known
	latencyAfter time.Duration // the least since the last probe began
	probed       time.Time     // when the last probe began, or the path was empty in it
	probing      bool
	emptied      bool // in this probe, no more is in flight than the path holds

	past past
}

func (f *flow) init(maxReads int, sharers func() int) {
	f.maxReads, f.sharers, f.startup = maxReads, sharers, true
}

// least is the least recent latency, or what it is taken for.
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

// admitsFill reports whether one more read of n bytes may begin that no stream
// waits for. Few may whatever was measured, or a stream that comes next would
// wait for them on a slow path; and with half, half of the path is left to others.
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
	f.gated = f.gated || !half // the path is asked for all that it carries
	return false
}

// began counts a read in.
func (f *flow) began(n int64) {
	f.used += n + readOverhead
	f.reads++
}

// abandoned counts a read out that nobody waits for any more.
func (f *flow) abandoned(n int64) {
	f.used -= n + readOverhead
	f.reads--
}

// completed counts a read out that brought n bytes and took that long.
func (f *flow) completed(now time.Time, n int64, took time.Duration) {
	n += readOverhead
	if f.startup && f.gated {
		f.limit = max(f.limit, f.used) + n
	}
	f.used -= n
	f.reads--
	f.returned += n
	f.answers++
	if f.latency == 0 || took < f.latency {
		f.latency = took
	}
	if f.quickest == 0 || took < f.quickest {
		f.quickest = took
	}
	if f.latencyAfter == 0 || took < f.latencyAfter {
		f.latencyAfter = took
	}
	switch {
	case f.round.IsZero():
		f.round, f.probed, f.returned, f.answers = now, now, 0, 0
	case now.Sub(f.round) >= max(flowRound, f.latency):
		f.nextRound(now)
	}
}

// nextRound draws its conclusions from a round.
func (f *flow) nextRound(now time.Time) {
	took := now.Sub(f.round)
	rate := float64(f.returned) / took.Seconds()
	if f.startup || f.probing || !f.gated {
		took = 0 // it shows less than the path carries
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
	case f.gated && f.quickest < flowFree*f.latency:
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

// fill ends the start when the path is full.
func (f *flow) fill(rate float64) {
	if rate >= f.full*flowFull {
		f.full, f.still = rate, 0
	} else {
		f.still++
	}
	slower := f.quickest > time.Duration(flowSlower*float64(f.latency))+flowSlack
	f.startup = (!slower || f.still == 0) && f.still < flowFullRounds
}

// probe begins and ends the rounds in which the path is emptied.
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

// What the way to the last tier gave is remembered by the minute, for half a day.
const (
	spellLength = time.Minute
	spells      = 720
)

// Spell is what was seen of the way to the last tier in some time.
type Spell struct {
	Begin   time.Time
	Latency time.Duration // the least of a read
	// Full is for how long the way was asked for all that it carries, Reads and Bytes are what it
	// gave then.
	Full         time.Duration
	Reads, Bytes int64
}

// merge adds what was seen in another time.
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

// past is what was seen of late. It is guarded by Reader.mu.
type past struct {
	list [spells]Spell // a ring by the minute; what is too old is overwritten
}

// add takes note of a round that ended: in it the path was full for so long, and gave
// so many reads then.
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

// between is what was seen in the minutes that from and to lie in, and between them.
func (p *past) between(from, to time.Time) (sum Spell) {
	from = from.Truncate(spellLength)
	for i := range p.list {
		if s := &p.list[i]; !s.Begin.IsZero() && !s.Begin.Before(from) && !s.Begin.After(to) {
			sum.merge(s)
		}
	}
	return sum
}

// Past returns what was seen of the way to the last tier in the minutes that from and to lie
// in, and between them; the zero Spell if nothing was. It goes back half a day. Of several ways it is the one that was
// full for longest.
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
