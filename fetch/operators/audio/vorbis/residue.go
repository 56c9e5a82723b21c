package vorbis

// residue is section 8: what spectra are besides their floors, in partitions that are coded in up to eight passes.
type residue struct {
	kind       int
	begin, end int
	size       int // of a partition
	classes    int
	class      *codebook // a word has the classes of several partitions
	books      [][8]*codebook
}

func (s *setup) readResidue(r *bitReader) (*residue, string) {
	res := &residue{kind: int(r.read(16)), begin: int(r.read(24)), end: int(r.read(24)), size: int(r.read(24)) + 1,
		classes: int(r.read(6)) + 1}
	if res.kind > 2 {
		return nil, "a residue is of no known kind"
	}
	if res.class = s.book(r.read(8), false); res.class == nil {
		return nil, "a residue has a codebook that there is not"
	}
	words := 1
	for range res.class.dims {
		if words *= res.classes; words > len(res.class.lengths) {
			return nil, "a residue has more classes than its codebook"
		}
		if res.classes == 1 {
			break
		}
	}
	passes := make([]uint32, res.classes)
	for i := range passes {
		passes[i] = r.read(3)
		if r.flag() {
			passes[i] |= r.read(5) << 3
		}
	}
	res.books = make([][8]*codebook, res.classes)
	for i, mask := range passes {
		for pass := range 8 {
			if mask>>pass&1 == 0 {
				continue
			}
			if res.books[i][pass] = s.book(r.read(8), true); res.books[i][pass] == nil {
				return nil, "a residue has a codebook that there is not, or has no vectors"
			}
		}
	}
	return res, ""
}

// residueRoom is what decoding residues needs besides.
type residueRoom struct {
	classes []uint8 // of the partitions of all channels
	entries []int32 // of a partition
}

// decode adds to vectors, each as long as half a block, or to one of all channels for kind 2. Where the packet ends,
// it does.
func (res *residue) decode(r *bitReader, vectors [][]float32, room *residueRoom) {
	if len(vectors) == 0 {
		return
	}
	n := len(vectors[0])
	begin, end := min(res.begin, n), min(res.end, n)
	parts := max(end-begin, 0) / res.size
	words, classes := res.class.dims, room.classes
	for pass := range 8 {
		for at := 0; at < parts; at += words {
			if pass == 0 {
				for v := range vectors {
					word := res.class.decode(r)
					if word < 0 {
						return
					}
					last := words - 1
					if res.classes == 1 { // all digits are 0, and there may be far more than partitions
						last = min(last, parts-at-1)
					}
					for k := last; k >= 0; k-- {
						if at+k < parts {
							classes[v*parts+at+k] = uint8(word % res.classes)
						}
						word /= res.classes
					}
				}
			}
			for k := at; k < min(at+words, parts); k++ {
				for v, out := range vectors {
					book := res.books[classes[v*parts+k]][pass]
					if book == nil {
						continue
					}
					from := begin + k*res.size
					part := out[from : from+res.size]
					var more bool
					if res.kind == 0 {
						more = book.addInterleaved(r, part, room.entries)
					} else {
						more = book.add(r, part)
					}
					if !more {
						return
					}
				}
			}
		}
	}
}

// add adds vectors of a codebook to a partition, one after the other.
func (b *codebook) add(r *bitReader, out []float32) bool {
	dims := b.dims
	for len(out) > 0 {
		e := b.decode(r)
		if e < 0 {
			return false
		}
		v := b.vectors[e*dims:][:dims]
		if len(v) > len(out) {
			v = v[:len(out)]
		}
		to := out[:len(v)]
		for k, x := range v {
			to[k] += x
		}
		out = out[len(v):]
	}
	return true
}

// addInterleaved does so as kind 0 has them. Where the packet ends in a partition libvorbis leaves that out, and so do
// we. Entries is room.
func (b *codebook) addInterleaved(r *bitReader, out []float32, entries []int32) bool {
	step := len(out) / b.dims
	entries = entries[:step]
	for i := range entries {
		e := b.decode(r)
		if e < 0 {
			return false
		}
		entries[i] = int32(e)
	}
	for i, e := range entries {
		for k, v := range b.vectors[int(e)*b.dims:][:b.dims] {
			out[i+k*step] += v
		}
	}
	return true
}
