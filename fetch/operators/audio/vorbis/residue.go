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

// decode adds to vectors, each as long as half a block, or to one of all channels for kind 2. Where the packet ends,
// it does. Classes is room.
func (res *residue) decode(r *bitReader, vectors [][]float32, classes []uint8) {
	if len(vectors) == 0 {
		return
	}
	n := len(vectors[0])
	begin, end := min(res.begin, n), min(res.end, n)
	parts := max(end-begin, 0) / res.size
	words := res.class.dims
	for pass := range 8 {
		for at := 0; at < parts; at += words {
			if pass == 0 {
				for v := range vectors {
					word := res.class.decode(r)
					if word < 0 {
						return
					}
					for k := words - 1; k >= 0; k-- {
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
					if !book.add(r, out[from:from+res.size], res.kind == 0) {
						return
					}
				}
			}
		}
	}
}

// add adds vectors of a codebook to a partition: one after the other, or interleaved as kind 0 has them.
func (b *codebook) add(r *bitReader, out []float32, interleaved bool) bool {
	dims := b.dims
	if interleaved {
		step := len(out) / dims
		for i := range step {
			e := b.decode(r)
			if e < 0 {
				return false
			}
			for k, v := range b.vectors[e*dims:][:dims] {
				out[i+k*step] += v
			}
		}
		return true
	}
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
