package vorbis

import (
	"math/bits"
	"sync"
)

// transforms are made once for each size that there is.
var transforms = func() (t [13]func() *transform) {
	for i := range t {
		t[i] = sync.OnceValue(func() *transform { return newTransform(1 << i) })
	}
	return t
}()

func transformOf(half int) *transform {
	i := 0
	for 1<<i < half {
		i++
	}
	return transforms[i]()
}

// decoder decodes packets.
type decoder struct {
	*setup
	transform [2]*transform
	spectra   [][]float32 // of each channel
	before    [][]float32 // what the block before left, likewise
	previous  int         // half the samples of that block; 0 for none
	curves    []curve
	flat      []float32 // of all channels, side by side, for residues of kind 2
	room      residueRoom
	points    []point
	vectors   [][]float32
}

func newDecoder(s *setup) *decoder {
	d := &decoder{setup: s, curves: make([]curve, s.channels)}
	for i, half := range s.half {
		d.transform[i] = transformOf(half)
	}
	n := s.half[1]
	room := make([]float32, 3*n*s.channels)
	for range s.channels {
		d.spectra, room = append(d.spectra, room[:n:n]), room[n:]
		d.before, room = append(d.before, room[:n:n]), room[n:]
	}
	d.flat = room
	d.room = residueRoom{classes: make([]uint8, n*s.channels), entries: make([]int32, n)}
	d.points = make([]point, n/2)
	return d
}

// block decodes a packet's spectra, and gives half the samples of its block, or 0 for what is no packet of sound.
func (d *decoder) block(packet []byte) int {
	mode := d.mode(packet)
	if mode == nil {
		return 0
	}
	r := &bitReader{data: packet}
	r.read(1 + bits.Len(uint(len(d.modes)-1)))
	if mode.long == 1 {
		r.read(2) // the shapes of windows, which follow from the blocks beside
	}
	m, half := mode.mapping, d.half[mode.long]
	for c := range d.curves {
		d.curves[c].silent = !m.submaps[m.of[c]].floor.read(r, &d.curves[c])
		clear(d.spectra[c][:half])
	}
	// A channel that is coupled to one with sound has a residue.
	var sounds [256]bool
	for c := range d.curves {
		sounds[c] = !d.curves[c].silent
	}
	for _, pair := range m.coupled {
		if sounds[pair[0]] || sounds[pair[1]] {
			sounds[pair[0]], sounds[pair[1]] = true, true
		}
	}
	for i := range m.submaps {
		d.residues(r, m, i, half, &sounds)
	}
	for i := len(m.coupled) - 1; i >= 0; i-- {
		decouple(d.spectra[m.coupled[i][0]][:half], d.spectra[m.coupled[i][1]][:half])
	}
	for c := range d.curves {
		x := d.spectra[c][:half]
		if d.curves[c].silent {
			clear(x)
			continue
		}
		m.submaps[m.of[c]].floor.multiply(x, &d.curves[c], mode.long)
		d.transform[mode.long].run(x, d.points)
	}
	return half
}

// residues decodes those of one submap's channels.
func (d *decoder) residues(r *bitReader, m *mapping, number, half int, sounds *[256]bool) {
	res := m.submaps[number].residue
	d.vectors = d.vectors[:0]
	any, count := false, 0
	for c, of := range m.of {
		if of != number {
			continue
		}
		any = any || sounds[c]
		count++
		if sounds[c] && res.kind != 2 {
			d.vectors = append(d.vectors, d.spectra[c][:half])
		}
	}
	if res.kind != 2 {
		res.decode(r, d.vectors, &d.room)
		return
	}
	if !any {
		return
	}
	flat := d.flat[:count*half]
	clear(flat)
	res.decode(r, append(d.vectors, flat), &d.room)
	at := 0
	for c, of := range m.of {
		if of == number {
			x := d.spectra[c][:half]
			for i, k := 0, at; i < len(x); i, k = i+1, k+count {
				x[i] = flat[k]
			}
			at++
		}
	}
}

// decouple is section 4.3.5: it makes two channels of magnitudes and angles.
func decouple(magnitude, angle []float32) {
	angle = angle[:len(magnitude)]
	for i, m := range magnitude {
		a := angle[i]
		switch {
		case m > 0 && a > 0:
			angle[i] = m - a
		case m > 0:
			magnitude[i], angle[i] = m+a, m
		case a > 0:
			angle[i] = m + a
		default:
			magnitude[i], angle[i] = m-a, m
		}
	}
}

// overlap puts what two blocks have together into out, from one's middle to the other's.
func (t *transform) overlap(out, before, now []float32) {
	p, c, s := len(before), len(now), t.m
	lead := (p - s) / 2
	for j := range lead {
		out[j] = -before[p/2-1-j]
	}
	h, w := s/2, t.window[:s]
	cross := out[lead:][:s]
	for i := range h {
		a, b := -before[h-1-i], now[c-h+i]
		up, down := w[i], w[s-1-i]
		cross[i] = float32(a*down) + float32(b*up)
		cross[s-1-i] = float32(a*up) - float32(b*down)
	}
	trail := out[lead+s:]
	for k := range (c - s) / 2 {
		trail[k] = -now[c-1-h-k]
	}
}

// swap makes the block that was decoded the one before.
func (d *decoder) swap() { d.spectra, d.before = d.before, d.spectra }

// sound decodes a packet whose samples begin at a position, and puts what lies from sample first on into each
// channel's out. It gives how many samples the packet completes.
func (d *decoder) sound(packet []byte, position, first int64, out [][]float32) (int, error) {
	half := d.block(packet)
	if half == 0 {
		return 0, nil
	}
	before := d.previous
	d.previous = half
	defer d.swap()
	if before == 0 {
		return 0, nil
	}
	t := d.transform[0]
	if before == half && half == d.half[1] {
		t = d.transform[1]
	}
	n := (before + half) / 2
	from, to := max(first-position, 0), min(first-position+int64(len(out[0])), int64(n))
	for c := range out {
		if from >= to {
			break
		}
		whole, direct := d.flat[:n], from == 0 && to == int64(n)
		if direct {
			whole = out[c][position-first:][:n]
		}
		t.overlap(whole, d.before[c][:before], d.spectra[c][:half])
		part := whole[from:to]
		if !finite(part) {
			return n, damaged("the samples from %d on are no finite numbers", position+from)
		}
		if !direct {
			copy(out[c][position+from-first:], part)
		}
	}
	return n, nil
}

func finite(x []float32) bool {
	sum := float32(0)
	for _, v := range x {
		sum += float32(v * 0)
	}
	return sum == 0
}
