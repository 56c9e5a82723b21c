package spans

import (
	"maps"
	"math"
)

const (
	// maxChunks bounds the chunks whose times are remembered. An unknown chunk counts as read for the first time.
	maxChunks = 1 << 20
	// golden is the golden ratio's fraction: its multiples modulo 1 are spread evenly over an interval, however many
	// there are.
	golden = 0.6180339887498949
	// If the cache keeps all that it is given, a pace reads for longer, by fewerGain a round through the chunks. If
	// the cache rejects more than refusedShare, the pace reads for less long, by the share rejected. It stays between
	// leastFactor and mostFactor of the computed time.
	fewerGain    = 0.1
	refusedShare = 0.05
	mostFactor   = 1.5
	leastFactor  = 0.2
)

// pace decides for how long chunks are read: until when the blobs in them are kept. docs/spans.md derives it.
//
// If each chunk were read for the same time from its first read, all chunks would be due again at once, and the cache
// would be half empty on average. So the first read of a chunk is for a part of that time, spread evenly. From then
// on chunks are due one after the other, and the cache stays full.
type pace struct {
	until  map[uint64]float64 // by chunk, in turns of jobs
	begun  int                // chunks that were read for the first time
	factor float64            // of the horizon, adapted by kept
}

func newPace() pace { return pace{until: map[uint64]float64{}, factor: 1} }

// next is until when a chunk is kept that is read now. horizon is for how long chunks are kept. All times are in
// turns of jobs.
func (p *pace) next(chunk uint64, now, horizon float64) float64 {
	h := horizon * p.factor
	if before, known := p.until[chunk]; !known || before < now-h {
		_, part := math.Modf(float64(p.begun+1) * golden)
		h *= part
	}
	return now + h
}

// read records that a chunk was read and is kept until a time that next returned.
func (p *pace) read(chunk uint64, now, horizon, until float64) {
	if before, known := p.until[chunk]; !known || before < now-horizon*p.factor {
		p.begun++
	}
	if _, known := p.until[chunk]; !known && len(p.until) >= maxChunks {
		maps.DeleteFunc(p.until, func(_ uint64, until float64) bool { return until < now-horizon })
		if len(p.until) >= maxChunks {
			return
		}
	}
	p.until[chunk] = until
}

// kept records how many blobs of a chunk were to be kept, and how many of them the cache rejected. chunks is the
// number of chunks of the data.
func (p *pace) kept(blobs, refused int, chunks float64) {
	if blobs == 0 {
		return
	}
	if part := float64(refused) / float64(blobs); part > refusedShare {
		p.factor = max(p.factor*(1-part/max(chunks, 1)), leastFactor)
	} else {
		p.factor = min(p.factor*(1+fewerGain/max(chunks, 1)), mostFactor)
	}
}
