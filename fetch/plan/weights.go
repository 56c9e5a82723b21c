package plan

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
)

const (
	// weightPage is how many samples, and how many of their pages, are gone through one after the other to find one.
	weightPage = 64
	// weightBlock is how many samples a block of pages has.
	weightBlock = weightPage * weightPage
	// weightBits bounds the bits of the sum of all weights.
	weightBits = 62
	// weightPiece is how many blocks are added up at a turn: less than a millisecond.
	weightPiece = 128
	// spreadShift is by how many bits a float32 is shortened to say in which class of the spread it is: four of its
	// fraction are left.
	spreadShift = 19
)

// SampleWeights say how much each sample of a selection counts. They are filled in by index in the selection, and then
// frozen: from then on they only are read, and safe for concurrent use.
//
// A weight is stored as a float32, and counts as a whole number of units. The unit is
// chosen so that the sum of all weights has at most 62 bits. Weights are rounded down, but
// a weight above 0 counts at least 1. So sums are exact in any order of addition, and equal
// weights give the same order on any machine.
//
// All weights laid end to end are a line. A sample has the points of its weight, and is found by the sums of the blocks
// before, then those of the pages of its block, then the weights of its page: some hundred nanoseconds, with 4.1 bytes
// a sample.
type SampleWeights struct {
	n      int64
	values []float32     // of whole blocks; 0 beyond n
	pages  []uint64      // sums
	before []uint64      // sums of the blocks before each, and then of all
	scale  float64       // units of 1
	most   uint64        // of a sample
	count  int64         // samples of more than 0
	spread []spreadClass // of weights that are more than 0, from small to large
}

// spreadClass has about equal weights.
type spreadClass struct {
	count int64
	sum   uint64
}

// NewSampleWeights returns the weights of n samples, each 0. They take SampleWeightsBytes.
func NewSampleWeights(n int64) *SampleWeights {
	blocks := (n + weightBlock - 1) / weightBlock
	return &SampleWeights{n: n, values: make([]float32, blocks*weightBlock), pages: make([]uint64, blocks*weightPage),
		before: make([]uint64, blocks+1)}
}

// SampleWeightsBytes is what the weights of n samples take.
func SampleWeightsBytes(n int64) int64 {
	blocks := (n + weightBlock - 1) / weightBlock
	return blocks*(4*weightBlock+8*weightPage+8) + spreadBytes
}

// spreadBytes bounds what is noted of the spread of weights.
const spreadBytes = 2 * 16 << (32 - spreadShift - 1)

// IsWeight reports whether v can be a weight: it is a number, not below 0, and not too large.
func IsWeight(v float64) bool { return v >= 0 && v <= math.MaxFloat32 }

// Set says the weight of a sample, which IsWeight lets pass. Goroutines may set those of different samples at once.
func (w *SampleWeights) Set(i int64, v float64) {
	f := float32(v)
	if f == 0 && v > 0 {
		f = math.SmallestNonzeroFloat32
	}
	w.values[i] = f
}

// Freeze sums the weights, in pieces through turn. It fails only with a turn's error.
func (w *SampleWeights) Freeze(turn func(piece func() error) error) error {
	var largest float32
	var spread [1 << (32 - spreadShift - 1)]spreadClass
	blocks := int64(len(w.before) - 1)
	err := InPieces(blocks, weightPiece, turn, func(from, to int64) {
		for _, v := range w.values[from*weightBlock : to*weightBlock] {
			largest = max(largest, v)
		}
	})
	if err != nil || largest == 0 {
		return err
	}
	_, exponent := math.Frexp(float64(largest))
	w.scale = math.Ldexp(1, weightBits-bits.Len64(uint64(w.n))-exponent)
	err = InPieces(blocks, weightPiece, turn, func(from, to int64) {
		for b := from; b < to; b++ {
			sum := w.before[b]
			for p := b * weightPage; p < (b+1)*weightPage; p++ {
				var page uint64
				for _, v := range w.values[p*weightPage : (p+1)*weightPage] {
					if v == 0 {
						continue
					}
					units := w.units(v)
					page += units
					s := &spread[math.Float32bits(v)>>spreadShift]
					s.count++
					s.sum += units
				}
				w.pages[p] = page
				sum += page
			}
			w.before[b+1] = sum
		}
	})
	if err != nil {
		return err
	}
	w.most = w.units(largest)
	w.spread = slices.Clip(slices.DeleteFunc(slices.Clone(spread[:]), func(s spreadClass) bool { return s.count == 0 }))
	for _, s := range w.spread {
		w.count += s.count
	}
	return nil
}

// units is what counts of a weight.
func (w *SampleWeights) units(v float32) uint64 {
	if v == 0 {
		return 0
	}
	return max(uint64(int64(float64(v)*w.scale)), 1) // times a power of two: exact
}

// Len is the number of samples.
func (w *SampleWeights) Len() int64 { return w.n }

// Positive is how many samples have a weight of more than 0: the others are never served.
func (w *SampleWeights) Positive() int64 { return w.count }

// total is the length of the line.
func (w *SampleWeights) total() uint64 { return w.before[len(w.before)-1] }

// of is what counts of a sample's weight.
func (w *SampleWeights) of(i int64) uint64 { return w.units(w.values[i]) }

// Distinct is the expected number of different samples in an epoch of that many rows.
func (w *SampleWeights) Distinct(rows int64, replacement bool) float64 {
	var sum float64
	for _, s := range w.spread {
		p := float64(s.sum) / float64(s.count) / float64(w.total())
		if replacement {
			sum -= float64(s.count) * math.Expm1(float64(rows)*math.Log1p(-p))
		} else {
			sum += float64(s.count) * min(p*float64(rows), 1)
		}
	}
	return sum
}

// Most is how often the sample with the largest weight is expected in an epoch of that many
// rows.
func (w *SampleWeights) Most(rows int64) float64 {
	if w.count == 0 {
		return 0
	}
	return float64(w.most) / float64(w.total()) * float64(rows)
}

// turned is an order of weightPage things: the k-th is that of number at(k).
type turned struct{ step, start uint64 }

func (t turned) at(k uint64) uint64 { return (k*t.step + t.start) % weightPage }

// lines is the order on the line of the pages of a block and of the samples of a page: that
// of the selection, or one drawn for each of them.
type lines struct {
	drawn bool
	key   uint64
}

// turn is the order of a block's pages, or of a page's samples, by the number of the block or the page among all.
func (l lines) turn(kind, number int64) turned {
	if !l.drawn {
		return turned{step: 1}
	}
	s := splitmix64(l.key ^ uint64(2*number+kind)*splitmixStep)
	r := s.next()
	return turned{step: r>>32 | 1, start: r & (weightPage - 1)}
}

const ofPages, ofSamples = 0, 1

// find returns which sample has a point of the line, which is less than total.
func (w *SampleWeights) find(point uint64, l lines) int64 {
	// The first block that ends beyond the point.
	lo, hi := 0, len(w.before)-2
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); w.before[mid+1] > point {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	block := int64(lo)
	point -= w.before[block]
	turn, k := l.turn(ofPages, block), uint64(0)
	page := block * weightPage
	for sums := w.pages[page : page+weightPage]; ; k++ {
		sum := sums[turn.at(k)]
		if point < sum {
			break
		}
		point -= sum
	}
	page += int64(turn.at(k))
	turn, k = l.turn(ofSamples, page), 0
	for values := w.values[page*weightPage : (page+1)*weightPage]; ; k++ {
		units := w.units(values[turn.at(k)])
		if point < units {
			break
		}
		point -= units
	}
	return page*weightPage + int64(turn.at(k))
}

// points returns the part [from, to) of the line that a sample has.
func (w *SampleWeights) points(i int64, l lines) (from, to uint64) {
	page := i / weightPage
	block := page / weightPage
	from = w.before[block]
	turn := l.turn(ofPages, block)
	for k := uint64(0); turn.at(k) != uint64(page%weightPage); k++ {
		from += w.pages[block*weightPage+int64(turn.at(k))]
	}
	turn = l.turn(ofSamples, page)
	for k := uint64(0); turn.at(k) != uint64(i%weightPage); k++ {
		from += w.units(w.values[page*weightPage+int64(turn.at(k))])
	}
	return from, from + w.of(i)
}

// sampleSeed is a seed for a purpose, eight bytes, which is not that of the epoch's order.
func sampleSeed(seed, epoch uint64, purpose string) splitmix64 {
	s := splitmix64(seed ^ binary.LittleEndian.Uint64([]byte(purpose)))
	s = splitmix64(s.next() ^ epoch)
	return splitmix64(s.next())
}

// below128 maps two uniform numbers to [0, n): no number of it is more likely than another by 1 in 2^64.
func below128(hi, lo, n uint64) uint64 {
	high, low := bits.Mul64(hi, n)
	more, _ := bits.Mul64(lo, n)
	_, carry := bits.Add64(low, more, 0)
	return high + carry
}

// drawn is an order of draws with replacement: at each index stands a sample drawn by weight, whatever the others are.
// The draws of an index come from a generator that counts (Steele, Lea and Flood, as splitmix64).
type drawn struct {
	weights *SampleWeights
	rows    int64
	keys    [2]uint64
}

func newDrawn(w *SampleWeights, rows int64, seed, epoch uint64) *drawn {
	s := sampleSeed(seed, epoch, "draws\x00\x00\x00")
	return &drawn{w, rows, [2]uint64{s.next(), s.next()}}
}

// at is which sample stands at an index.
func (d *drawn) at(index int64) int64 {
	hi, lo := splitmix64(d.keys[0]+uint64(index)*splitmixStep), splitmix64(d.keys[1]+uint64(index)*splitmixStep)
	return d.weights.find(below128(hi.next(), lo.next(), d.weights.total()), lines{})
}

// next is roughly the next index of a sample, from an index on. The exact one is unknown
// without drawing all samples, so it is the expected one, or the epoch's end if that is
// later.
func (d *drawn) next(sample, from int64) (int64, bool) {
	units := d.weights.of(sample)
	if units == 0 || from >= d.rows {
		return 0, false
	}
	gap := d.weights.total() / units
	if gap >= uint64(d.rows-from) {
		return d.rows - 1, true
	}
	return from + int64(gap), true
}

func (d *drawn) estimates() bool { return true }

// byShare is an order in which the number of times that a sample comes is its share of the epoch, rounded down or up; a
// sample whose share is no more than one comes once at most. Which of the two it is differs from epoch to epoch, and
// has just the probability by which the expected number is the share.
//
// It is systematic sampling: points as far from each other as an epoch's rows have it are set on the line from a random
// start, with samples and pages in an order drawn for the epoch within each page and block; and what they hit comes in
// the order of a permutation.
type byShare struct {
	weights *SampleWeights
	rows    int64
	start   uint64 // of the points, in units of 1/rows
	lines   lines
	places  Perm
}

func newByShare(w *SampleWeights, rows int64, seed, epoch uint64) *byShare {
	s := sampleSeed(seed, epoch, "dealt\x00\x00\x00")
	d := &byShare{weights: w, rows: rows, lines: lines{drawn: true, key: s.next()}}
	d.start = below128(s.next(), s.next(), w.total())
	d.places = NewPerm(uint64(rows), s.next(), epoch)
	return d
}

// at is which sample stands at an index.
func (d *byShare) at(index int64) int64 {
	// Point k is ⌊(k·total + start) / rows⌋.
	hi, lo := bits.Mul64(d.places.At(uint64(index)), d.weights.total())
	lo, carry := bits.Add64(lo, d.start, 0)
	point, _ := bits.Div64(hi+carry, lo, uint64(d.rows))
	return d.weights.find(point, d.lines)
}

// first is the number of the first point that is not less than one of the line.
func (d *byShare) first(point uint64) uint64 {
	hi, lo := bits.Mul64(point, uint64(d.rows))
	lo, borrow := bits.Sub64(lo, d.start, 0)
	hi, borrow = bits.Sub64(hi, 0, borrow)
	if borrow > 0 {
		return 0
	}
	k, rest := bits.Div64(hi, lo, d.weights.total())
	if rest > 0 {
		k++
	}
	return k
}

// dealtPlaces is how many places of a sample next checks to find the next one.
const dealtPlaces = 64

// next is the next index of a sample, from an index on. It is approximate for a sample that
// comes very often.
func (d *byShare) next(sample, from int64) (index int64, ok bool) {
	if d.weights.of(sample) == 0 || from >= d.rows {
		return 0, false
	}
	start, end := d.weights.points(sample, d.lines)
	lo, hi := d.first(start), d.first(end)
	if hi-lo > dealtPlaces {
		return min(from+d.rows/int64(hi-lo), d.rows-1), true
	}
	for k := lo; k < hi; k++ {
		if i := int64(d.places.Index(k)); i >= from && (!ok || i < index) {
			index, ok = i, true
		}
	}
	return index, ok
}

func (d *byShare) estimates() bool { return d.weights.Most(d.rows) >= dealtPlaces-1 }
