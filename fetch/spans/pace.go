package spans

import (
	"maps"
	"math"
)

const (
	// maxChunks is of how many chunks it is known until when they were read for. Of a chunk that is not known it is taken
	// that it is read for the first time.
	maxChunks = 1 << 20
	// golden spreads numbers that are counted evenly over an interval, however many there are.
	golden = 0.6180339887498949
	// A pace becomes slower by fewerGain a round through the chunks while all that is to be kept is, and quicker by the share
	// that the cache refuses, if that is more than refusedShare. It is at most mostFactor of what is computed.
	fewerGain    = 0.1
	refusedShare = 0.05
	mostFactor   = 1.5
	leastFactor  = 0.2
)

// pace says for how long chunks are read: until when what lies in them is kept. docs/spans.md derives it.
//
// Were each chunk read for the same time from its beginning on, all would be due again at one time, and the cache would
// be half empty in the mean. So chunks that are read for the first time are read for a part of that, spread
// evenly. From then on they are due one after the other, and the cache is full all the time.
type pace struct {
	until  map[uint64]float64 // by chunk, in turns
	begun  int                // chunks that were read for the first time
	factor float64            // of the horizon, as far as it was found out
}

func newPace() pace { return pace{until: map[uint64]float64{}, factor: 1} }

// next is until when a chunk is read that is read now. horizon is for how long chunks are kept; all are in turns of jobs.
func (p *pace) next(chunk uint64, now, horizon float64) float64 {
	h := horizon * p.factor
	if before, known := p.until[chunk]; !known || before < now-h {
		_, part := math.Modf(float64(p.begun+1) * golden)
		h *= part
	}
	return now + h
}

// read notes that a chunk was read until a time, as next said.
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

// kept takes note of how many blobs of a chunk were to be kept, and how many of them the cache refused. chunks
// is how many the data has.
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
