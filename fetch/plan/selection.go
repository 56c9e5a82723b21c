package plan

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	"bowstring/schema"
)

// Selection is the set of positions a job trains on, in ascending order, with
// the way back from a position to its place in it. It is immutable, safe for
// concurrent use, and allocates nothing when asked. There are those of [All],
// [FromRanges] and [Bitmap].
type Selection interface {
	// Len is the number of positions.
	Len() int64
	// At returns the i-th position in ascending order. It panics unless
	// 0 <= i < Len().
	At(i int64) int64
	// Index is the inverse of At: which of the selected positions pos is. ok is
	// false if pos is not selected.
	Index(pos int64) (i int64, ok bool)
	// CountIn returns how many of the selected positions are in [start, end).
	CountIn(start, end int64) int64

	// intersect sets the bits of out, of the same n as b, that are set in b and
	// selected too.
	intersect(b, out *Bitmap)
}

// All selects every position of a snapshot of n samples.
func All(n int64) Selection { return span{0, n} }

// FromRanges selects the positions of ranges, which must be disjoint and in
// ascending order, as those of a split are. Empty ranges are allowed. Both ways
// cost a binary search over the ranges. The error is a [schema.FieldError].
func FromRanges(in []schema.Range) (Selection, error) {
	s := &rangeSet{}
	var end, n int64
	for i, r := range in {
		if r.Start < end || r.End < r.Start {
			return nil, &schema.FieldError{
				Field: fmt.Sprintf("ranges[%d]", i),
				Got:   fmt.Sprintf("[%d, %d)", r.Start, r.End),
				Want:  fmt.Sprintf("a range that starts at %d or later and does not end before it starts", end),
			}
		}
		if r.Start == r.End {
			continue
		}
		if len(s.starts) == 0 || r.Start > end {
			s.starts = append(s.starts, r.Start)
			s.first = append(s.first, n)
		}
		n += r.End - r.Start
		end = r.End
	}
	switch len(s.starts) {
	case 0:
		return span{}, nil
	case 1:
		return span{s.starts[0], end}, nil
	}
	s.first = append(s.first, n)
	return s, nil
}

// span is the positions [start, end).
type span struct{ start, end int64 }

func (s span) Len() int64 { return s.end - s.start }

func (s span) At(i int64) int64 {
	if i < 0 || i >= s.end-s.start {
		panic(outside(i, s.Len()))
	}
	return s.start + i
}

func (s span) Index(pos int64) (int64, bool) {
	if pos < s.start || pos >= s.end {
		return 0, false
	}
	return pos - s.start, true
}

func (s span) CountIn(start, end int64) int64 { return max(min(end, s.end)-max(start, s.start), 0) }

func (s span) intersect(b, out *Bitmap) { b.copyRange(out, s.start, s.end) }

// rangeSet is two or more ranges with gaps between them.
type rangeSet struct {
	starts []int64 // of each range, ascending
	first  []int64 // index of each range's first position, then Len
}

func (s *rangeSet) Len() int64 { return s.first[len(s.first)-1] }

func (s *rangeSet) At(i int64) int64 {
	if i < 0 || i >= s.Len() {
		panic(outside(i, s.Len()))
	}
	k := lastAtMost(s.first, i)
	return s.starts[k] + i - s.first[k]
}

func (s *rangeSet) Index(pos int64) (int64, bool) {
	k := lastAtMost(s.starts, pos)
	if k < 0 || pos-s.starts[k] >= s.first[k+1]-s.first[k] {
		return 0, false
	}
	return s.first[k] + pos - s.starts[k], true
}

func (s *rangeSet) CountIn(start, end int64) int64 {
	if start >= end {
		return 0
	}
	return s.below(end) - s.below(start)
}

// below is how many of the positions are less than pos.
func (s *rangeSet) below(pos int64) int64 {
	k := lastAtMost(s.starts, pos)
	if k < 0 {
		return 0
	}
	return min(s.first[k]+pos-s.starts[k], s.first[k+1])
}

func (s *rangeSet) intersect(b, out *Bitmap) {
	for k, start := range s.starts {
		b.copyRange(out, start, start+s.first[k+1]-s.first[k])
	}
}

// lastAtMost returns the index of the last element of s, ascending and without
// repeats, that is at most v; -1 if there is none.
func lastAtMost(s []int64, v int64) int {
	k, found := slices.BinarySearch(s, v)
	if !found {
		k--
	}
	return k
}

func outside(i, n int64) string {
	return fmt.Sprintf("plan: index %d in a selection of %d", i, n)
}

const (
	blockWords  = 8    // 64-bit words between two entries of the rank directory: a cache line
	sampleEvery = 4096 // ones between two entries of the select directory
)

// Bitmap is a set of positions in [0, n), one bit each. It is built by setting
// bits and then frozen, which makes it a [Selection] and immutable.
//
// Rank is a directory of running counts every 512 bits (Jacobson, "Space-efficient
// static trees and graphs", 1989) and select a binary search in it between
// samples every 4,096 ones, then within a word as in Vigna, "Broadword
// implementation of rank/select queries", 2008. The directories add an eighth to
// the n bits, and 64 bits for every 4,096 ones.
//
// RoaringBitmap (v2.30) counts containers from the first one at each select and rank: with 10^9 positions of which a half,
// a hundredth or a ten-thousandth are set, its select takes 67, 36 and 23 times as long and its rank with a look up 106,
// 109 and 77 times, and planning asks for one or the other with each row. It is faster to select in, 10 times, only in sets of
// one container or few, 10^6 positions of which a hundredth are set, and smaller in sparse sets: 20 MB and 0.2 MB, where
// these take 141 MB.
type Bitmap struct {
	n     int64
	words []uint64
	// rank[k] is the number of ones before block k; the last entry, after the
	// last block, is the number of all ones. nil until frozen.
	rank []int64
	// sample[k] is the block that one number k·sampleEvery is in.
	sample []int64
}

// NewBitmap returns the empty set of positions in [0, n). It panics if n is
// negative.
func NewBitmap(n int64) *Bitmap {
	if n < 0 {
		panic(fmt.Sprintf("plan: bitmap of %d positions", n))
	}
	return &Bitmap{n: n, words: make([]uint64, wordsFor(n))}
}

// BitmapSize is how many bytes of memory a bitmap of n positions takes at most,
// frozen.
func BitmapSize(n int64) int64 {
	words := wordsFor(n)
	return 8*words + 8*(words/blockWords+2) + 8*(n/sampleEvery+1)
}

// BitmapFromBytes returns the frozen bitmap of n positions that [Bitmap.Bytes]
// wrote. A wrong length, or a bit set at n or after it, is a [schema.FieldError].
// data is not kept.
func BitmapFromBytes(n int64, data []byte) (*Bitmap, error) {
	if n < 0 || int64(len(data)) != 8*wordsFor(n) {
		return nil, &schema.FieldError{
			Field: "bitmap",
			Got:   fmt.Sprintf("%d bytes", len(data)),
			Want:  fmt.Sprintf("whole 64-bit words with one bit for each of %d positions", n),
		}
	}
	b := NewBitmap(n)
	for i := range b.words {
		b.words[i] = binary.LittleEndian.Uint64(data[8*i:])
	}
	if tail := n % 64; tail != 0 && b.words[len(b.words)-1]>>tail != 0 {
		return nil, &schema.FieldError{
			Field: "bitmap",
			Got:   fmt.Sprintf("position %d", n-n%64+int64(bits.Len64(b.words[len(b.words)-1]))-1),
			Want:  fmt.Sprintf("positions below %d", n),
		}
	}
	return b.Freeze(), nil
}

// wordsFor is ⌈n/64⌉, also where n is close to 2^63.
func wordsFor(n int64) int64 { return n/64 + (n%64+63)/64 }

// Set adds a position. It panics if the position is not in [0, n) or the bitmap
// is frozen. Goroutines may set bits at the same time as long as no two touch
// the same 64-bit word.
func (b *Bitmap) Set(pos int64) {
	if b.rank != nil {
		panic("plan: a frozen bitmap cannot change")
	}
	if pos < 0 || pos >= b.n {
		panic(fmt.Sprintf("plan: position %d in a bitmap of %d", pos, b.n))
	}
	b.words[pos>>6] |= 1 << (pos & 63)
}

// SetRange adds the positions [start, end), as Set does each.
func (b *Bitmap) SetRange(start, end int64) {
	if b.rank != nil {
		panic("plan: a frozen bitmap cannot change")
	}
	if start < 0 || end > b.n {
		panic(fmt.Sprintf("plan: positions %d to %d in a bitmap of %d", start, end, b.n))
	}
	for k := start >> 6; start < end; k++ {
		stop := min(end, (k+1)<<6)
		b.words[k] |= ^uint64(0) >> (64 - (stop - start)) << (start & 63)
		start = stop
	}
}

// Words returns the bits, position p being bit p%64 of word p/64. The slice is
// the bitmap's own: until Freeze it may be written to, afterwards only read.
func (b *Bitmap) Words() []uint64 { return b.words }

// Bytes returns the words in little-endian order: the form in which a selection
// is stored.
func (b *Bitmap) Bytes() []byte {
	out := make([]byte, 0, 8*len(b.words))
	for _, w := range b.words {
		out = binary.LittleEndian.AppendUint64(out, w)
	}
	return out
}

// Freeze ends the building: it clears bits at n and beyond that were written
// through Words, builds the directories, and returns b, now a [Selection].
// Freezing a frozen bitmap does nothing.
func (b *Bitmap) Freeze() *Bitmap {
	if b.rank != nil {
		return b
	}
	if tail := b.n % 64; tail != 0 {
		b.words[len(b.words)-1] &= 1<<tail - 1
	}
	blocks := (len(b.words) + blockWords - 1) / blockWords
	b.rank = make([]int64, blocks+1)
	var ones int64
	for k := range blocks {
		b.rank[k] = ones
		for _, w := range b.block(k) {
			ones += int64(bits.OnesCount64(w))
		}
		for int64(len(b.sample))*sampleEvery < ones {
			b.sample = append(b.sample, int64(k))
		}
	}
	b.rank[blocks] = ones
	return b
}

func (b *Bitmap) block(k int) []uint64 {
	return b.words[k*blockWords : min((k+1)*blockWords, len(b.words))]
}

// Len is the number of positions in the set.
func (b *Bitmap) Len() int64 {
	if b.rank == nil {
		panic("plan: a bitmap is no selection until it is frozen")
	}
	return b.rank[len(b.rank)-1]
}

// At returns the i-th position in ascending order (select). It panics unless
// 0 <= i < Len().
func (b *Bitmap) At(i int64) int64 {
	if i < 0 || i >= b.Len() {
		panic(outside(i, b.Len()))
	}
	// The last block that starts with at most i ones before it holds the one.
	lo, hi := int(b.sample[i/sampleEvery]), len(b.rank)-2
	if s := int(i/sampleEvery) + 1; s < len(b.sample) {
		hi = int(b.sample[s])
	}
	for lo < hi {
		if mid := int(uint(lo+hi+1) >> 1); b.rank[mid] <= i {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	left := int(i - b.rank[lo])
	for k := lo * blockWords; ; k++ {
		w := b.words[k]
		c := bits.OnesCount64(w)
		if left < c {
			return int64(k)<<6 + int64(selectInWord(w, left))
		}
		left -= c
	}
}

// Index returns how many positions of the set come before pos (rank), and
// whether pos is in it. If it is not, or not in [0, n), ok is false.
func (b *Bitmap) Index(pos int64) (i int64, ok bool) {
	if pos < 0 || pos >= b.n {
		return 0, false
	}
	k := pos >> 6
	bit := uint64(1) << (pos & 63)
	if b.words[k]&bit == 0 {
		return 0, false
	}
	i = b.rank[k/blockWords]
	for _, w := range b.words[k&^(blockWords-1) : k] {
		i += int64(bits.OnesCount64(w))
	}
	return i + int64(bits.OnesCount64(b.words[k]&(bit-1))), true
}

// Has reports whether pos is in the set.
func (b *Bitmap) Has(pos int64) bool {
	return pos >= 0 && pos < b.n && b.words[pos>>6]&(1<<(pos&63)) != 0
}

// CountIn returns how many positions of the set are in [start, end).
func (b *Bitmap) CountIn(start, end int64) (n int64) {
	start, end = max(start, 0), min(end, b.n)
	for k := start >> 6; start < end; k++ {
		stop := min(end, (k+1)<<6)
		n += int64(bits.OnesCount64(b.words[k] & (^uint64(0) >> (64 - (stop - start)) << (start & 63))))
		start = stop
	}
	return n
}

// And returns the positions of b that other selects too, as a new frozen bitmap
// over the same n.
func (b *Bitmap) And(other Selection) *Bitmap {
	out := NewBitmap(b.n)
	other.intersect(b, out)
	return out.Freeze()
}

func (b *Bitmap) intersect(with, out *Bitmap) {
	for k := range min(len(b.words), len(with.words)) {
		out.words[k] = b.words[k] & with.words[k]
	}
}

// copyRange sets the bits of out, of the same n, that are set in [start, end).
func (b *Bitmap) copyRange(out *Bitmap, start, end int64) {
	end = min(end, b.n)
	for k := start >> 6; start < end; k++ {
		stop := min(end, (k+1)<<6)
		out.words[k] |= b.words[k] & (^uint64(0) >> (64 - (stop - start)) << (start & 63))
		start = stop
	}
}

// selectInWord returns the index of the i-th one of w, i being less than their
// number: running counts of ones by byte in one multiplication, then the bits of
// the byte they point at.
func selectInWord(w uint64, i int) int {
	const (
		ones = 0x0101010101010101
		tops = 0x8080808080808080
	)
	s := w - w>>1&0x5555555555555555
	s = s&0x3333333333333333 + s>>2&0x3333333333333333
	s = (s + s>>4) & 0x0f0f0f0f0f0f0f0f * ones // byte k: ones in bytes 0 to k
	// A byte of (i|0x80) - s keeps its top bit where s <= i: such bytes are skipped.
	skip := bits.OnesCount64(((uint64(i)*ones|tops)-s)&tops) * 8
	i -= int(s << 8 >> skip & 0xff)
	w >>= skip
	for ; i > 0; i-- {
		w &= w - 1
	}
	return skip + bits.TrailingZeros64(w)
}
