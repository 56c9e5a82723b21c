package plan

import (
	"math/bits"
	"slices"
)

// part is what is packed: a document, or a part of one.
type part struct {
	doc          int32 // in the window
	from, length uint32
}

// packer packs one window after the other. One goroutine uses it at a time, and what it has made holds until the next
// window.
type packer struct {
	cfg   *PackConfig
	docs  []part // of the window, as they are to be packed
	held  int64  // pieces that they become at most
	items []part // the pieces, in the order of the documents
	bins  []int32
	count int32 // of sequences; bins has that of each part

	long int32   // the first document that must not be as long as it is, absent if none is
	sums Packing // of the window: all but pieces and sequences

	byLength, other []uint64 // the length of an item, then which it is
	rooms           rooms
	firsts          firsts
	numbers         []int32
}

// begin forgets the last window.
func (k *packer) begin() {
	k.docs, k.held, k.long, k.sums = k.docs[:0], 0, absent, Packing{}
}

// add says how long the next document of the window is. It is false, and the document is not added, where the window
// would have more than MaxWindowPieces.
func (k *packer) add(doc int32, length uint32) bool {
	limit := uint32(k.cfg.Length)
	cut := uint32(0)
	switch {
	case length == 0:
		k.sums.Empty++
		return true
	case length <= limit || k.cfg.By == Concat:
	case k.cfg.Long == LongDrop:
		k.sums.Long++
		k.sums.Cut += int64(length)
		return true
	case k.cfg.Long == LongCut:
		length, cut = limit, length-limit
	case k.cfg.Long == LongError && k.long == absent:
		k.long = doc
		return true
	}
	parts := (int64(length) + int64(limit) - 1) / int64(limit)
	if k.cfg.By == Concat {
		parts++ // as it may begin in the middle of a sequence
	}
	if k.held+parts > MaxWindowPieces {
		return false
	}
	k.held += parts
	k.sums.Tokens += int64(length)
	k.docs = append(k.docs, part{doc, 0, length})
	if cut > 0 || length > limit {
		k.sums.Long++
		k.sums.Cut += int64(cut)
	}
	return true
}

// pack puts the documents into sequences. The numbers of the sequences are in no
// particular order, except with Concat.
func (k *packer) pack() {
	k.items, k.bins, k.count = k.items[:0], k.bins[:0], 0
	if k.cfg.By == Concat {
		k.concat()
		return
	}
	limit := uint32(k.cfg.Length)
	for _, d := range k.docs {
		for ; d.length > limit; d.from, d.length = d.from+limit, d.length-limit {
			k.items = append(k.items, part{d.doc, d.from, limit})
		}
		k.items = append(k.items, d)
	}
	k.bins = slices.Grow(k.bins, len(k.items))[:len(k.items)]
	k.sort()
	if k.cfg.By == FirstFit {
		k.firstFit()
	} else {
		k.bestFit()
	}
}

// sort puts the items in order of their length, the longest first, and those of equal length in the order that they have:
// by one digit, or by two from the last on.
func (k *packer) sort() {
	n := len(k.items)
	k.byLength = slices.Grow(k.byLength[:0], n)[:n]
	k.other = slices.Grow(k.other[:0], n)[:n]
	for i := range k.items {
		k.byLength[i] = uint64(k.items[i].length)<<32 | uint64(i)
	}
	const most = 13 // bits of a digit
	digits := (bits.Len64(uint64(k.cfg.Length)) + most - 1) / most
	digit := (bits.Len64(uint64(k.cfg.Length)) + digits - 1) / digits
	mask := uint64(1)<<digit - 1
	var counts [1 << most]int32
	for shift := 32; shift < 32+digits*digit; shift += digit {
		starts := counts[:mask+1]
		clear(starts)
		for _, key := range k.byLength {
			starts[key>>shift&mask]++
		}
		sum := int32(0)
		for d := len(starts) - 1; d >= 0; d-- {
			starts[d], sum = sum, sum+starts[d]
		}
		for _, key := range k.byLength {
			at := &starts[key>>shift&mask]
			k.other[*at] = key
			*at++
		}
		k.byLength, k.other = k.other, k.byLength
	}
}

// bestFit puts each part, from the longest on, into the sequence that has least room left of those into which it fits:
// best-fit decreasing, whose sequences are at most 11/9 of the least number, and a few (Johnson et al., "Worst-case
// performance bounds for simple one-dimensional packing algorithms", SIAM J. Comput. 3, 1974; of documents, Ding et al.,
// "Fewer truncations improve language modeling", ICML 2024).
func (k *packer) bestFit() {
	r := &k.rooms
	r.begin(int(k.cfg.Length), len(k.items))
	for _, key := range k.byLength {
		length, i := int(key>>32), uint32(key)
		bin, room := k.count, r.atLeast(length)
		if room != absent {
			bin = r.take(room)
		} else {
			room = int(k.cfg.Length)
			k.count++
		}
		k.bins[i] = bin
		r.put(room-length, bin)
	}
	r.end()
}

// firstFit puts each part, from the longest on, into the first sequence into which it fits: first-fit decreasing, with
// the same bound as bestFit.
func (k *packer) firstFit() {
	f := &k.firsts
	f.begin(len(k.items), uint32(k.cfg.Length))
	for _, key := range k.byLength {
		bin, i := f.take(uint32(key>>32)), uint32(key)
		k.bins[i] = bin
		k.count = max(k.count, bin+1)
	}
}

// concat lays the documents end to end, and cuts that into sequences.
func (k *packer) concat() {
	room := uint32(0)
	for _, d := range k.docs {
		for d.length > 0 {
			if room == 0 {
				room = uint32(k.cfg.Length)
				k.count++
			}
			n := min(d.length, room)
			k.items = append(k.items, part{d.doc, d.from, n})
			k.bins = append(k.bins, k.count-1)
			d.from, d.length, room = d.from+n, d.length-n, room-n
		}
	}
}

// number numbers the sequences in the order in which their first documents come.
func (k *packer) number() {
	k.numbers = slices.Grow(k.numbers[:0], int(k.count))[:k.count]
	for i := range k.numbers {
		k.numbers[i] = absent
	}
	next := int32(0)
	for i, bin := range k.bins {
		if k.numbers[bin] == absent {
			k.numbers[bin] = next
			next++
		}
		k.bins[i] = k.numbers[bin]
	}
}

// rooms has sequences by the room that they have left. A tree of bits has the occurring
// rooms: a word of a level says which of 64 words of the level below are not 0. Among
// sequences with the same room, the one that was put last comes first.
type rooms struct {
	levels [][]uint64 // from the leaves up to a single word
	heads  []int32    // by room
	next   []int32    // by sequence: another one with the same room
	used   []int32    // by sequence: its room
}

// begin allocates for rooms up to most and that many sequences. It has no sequence yet.
func (r *rooms) begin(most, sequences int) {
	if len(r.heads) <= most {
		r.heads = make([]int32, most+1)
		for i := range r.heads {
			r.heads[i] = absent
		}
		r.levels = nil
		for n := most + 1; ; {
			n = (n + 63) / 64
			r.levels = append(r.levels, make([]uint64, n))
			if n == 1 {
				break
			}
		}
	}
	r.next = slices.Grow(r.next[:0], sequences)[:sequences]
	r.used = r.used[:0]
}

// end takes all sequences out. That takes a step for each.
func (r *rooms) end() {
	for _, room := range r.used {
		for r.heads[room] != absent {
			r.take(int(room))
		}
	}
}

// atLeast is the least room of a sequence that is not less than a length; absent if there is none.
func (r *rooms) atLeast(length int) int {
	at := length
	for level, words := range r.levels {
		if at>>6 >= len(words) {
			return absent
		}
		if word := words[at>>6] >> (at & 63); word != 0 {
			at += bits.TrailingZeros64(word)
			for ; level > 0; level-- {
				at = at<<6 + bits.TrailingZeros64(r.levels[level-1][at])
			}
			return at
		}
		at = at>>6 + 1
	}
	return absent
}

// take takes a sequence out that has just this room.
func (r *rooms) take(room int) int32 {
	bin := r.heads[room]
	r.heads[room] = r.next[bin]
	if r.heads[room] == absent {
		for at, level := room, 0; level < len(r.levels); level++ {
			word := &r.levels[level][at>>6]
			*word &^= 1 << (at & 63)
			if *word != 0 {
				break
			}
			at >>= 6
		}
	}
	return bin
}

// put puts a sequence in, with its number, which is at most that of all before.
func (r *rooms) put(room int, bin int32) {
	r.next[bin] = r.heads[room]
	r.heads[room] = bin
	if int(bin) == len(r.used) {
		r.used = append(r.used, int32(room))
	} else {
		r.used[bin] = int32(room)
	}
	if r.next[bin] == absent {
		for at, level := room, 0; level < len(r.levels); level++ {
			r.levels[level][at>>6] |= 1 << (at & 63)
			at >>= 6
		}
	}
}

// firsts finds the first sequence with enough room: a tree of the largest rooms, over as many sequences as there may be.
type firsts struct {
	leaves int
	most   []uint32 // by node: the root is 1, the halves of n are 2n and 2n+1
}

// begin allocates that many sequences, all of them empty.
func (f *firsts) begin(sequences int, room uint32) {
	f.leaves = 1 << bits.Len(uint(max(sequences, 1)-1))
	f.most = slices.Grow(f.most[:0], 2*f.leaves)[:2*f.leaves]
	for i := range f.most {
		f.most[i] = room
	}
}

// take takes a length of the first sequence that has room for it. There is one.
func (f *firsts) take(length uint32) int32 {
	node := 1
	for node < f.leaves {
		node *= 2
		if f.most[node] < length {
			node++
		}
	}
	f.most[node] -= length
	for bin := node; bin > 1; bin /= 2 {
		f.most[bin/2] = max(f.most[bin], f.most[bin^1])
	}
	return int32(node - f.leaves)
}
