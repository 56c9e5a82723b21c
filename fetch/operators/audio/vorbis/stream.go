package vorbis

import "bowstring/fetch/operators/program"

// Working bounds what decoding holds besides its result and a packet of the file, in bytes.
func Working(channels int) int64 {
	const half = 1 << 12
	tables := int64(maxEntries*(1+16) + maxValues*6 + 256*(4<<firstBits) + 4<<20)
	return tables + int64(channels)*half*4*4
}

// SetupSteps bounds the work of reading a stream's headers and of making its tables.
const SetupSteps = 1 << 26

// LongestBlock is the most samples of each channel that a packet completes.
const LongestBlock = 1 << 12

// Length gives how many samples each channel has, where the last page's position is known, and how many steps of work
// each of them takes at most.
func Length(file []byte, last int64) (samples, steps int64, err error) {
	s, b, err := open(file, false)
	if err != nil {
		return 0, 0, err
	}
	return max(last-max(b.start, 0), 0), s.steps(), nil
}

// seek finds the last page that ends at a position of at most first, and the page on which the last packet begins
// that ends on it: there decoding begins, and the samples after that packet have known positions. It looks at pages'
// headers only. Without such a page it gives that of the first sound, and 0.
func (b *begin) seek(first int64) (from, sought int, err error) {
	from = b.audio
	at, opened := b.audio, b.audio
	var p page
	for {
		more, err := readPage(b.packets.file, at, b.packets.serial, &p)
		if err != nil || !more || p.position > first {
			return from, sought, err
		}
		at = p.end
		ends := p.ends()
		if ends > 1 || ends == 1 && !p.continued {
			opened = p.at
		}
		if ends > 0 && p.position >= 0 {
			from, sought = opened, p.at
		}
		if n := len(p.segments); n > 0 && p.segments[n-1] == 255 && (ends > 0 || !p.continued) {
			opened = p.at
		}
	}
}

// Decode gives samples from frame offset on, which is 0 at least, each channel's in one slice of out, all of one
// length. It gives how many there were: the file may have fewer than its last page says. It spends steps of m before it
// takes them.
func Decode(m *program.Meter, file []byte, offset int, out [][]float32) (int, error) {
	if err := m.Spend(SetupSteps); err != nil {
		return 0, err
	}
	s, b, err := open(file, true)
	if err != nil {
		return 0, err
	}
	if s.channels != len(out) {
		return 0, damaged("it has %d channels where %d are asked for", s.channels, len(out))
	}
	first := int64(offset) + max(b.start, 0)
	from, sought, err := b.seek(first)
	if err != nil {
		return 0, err
	}
	d := newDecoder(s)
	p := &b.packets
	p.from(from)
	done, position := 0, b.start
	for done < len(out[0]) {
		packet, err := p.next()
		if err != nil || packet == nil {
			return done, err
		}
		if err := m.Spend(s.work(packet)); err != nil {
			return done, err
		}
		if sought > 0 {
			if p.page.at < sought || !p.done() {
				continue
			}
			// The last packet of the page is what the next one overlaps.
			sought, position = 0, p.page.position
			if d.previous = d.block(packet); d.previous == 0 {
				// It is none of sound. From the beginning nothing has to be sought.
				p.from(b.audio)
				position = b.start
				continue
			}
			d.swap()
			continue
		}
		n, err := d.sound(packet, position, first, out)
		if err != nil {
			return done, err
		}
		done = min(max(int(position+int64(n)-first), done), len(out[0]))
		position += int64(n)
		if p.done() && position != p.page.position && done < len(out[0]) {
			if p.page.last {
				return done, nil
			}
			return done, damaged("the page at byte %d ends at sample %d, and says it is %d", p.page.at, position,
				p.page.position)
		}
	}
	return done, nil
}
