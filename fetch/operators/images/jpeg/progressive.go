package jpeg

// storedScan decodes a scan into the coefficients of all blocks: one of a progressive
// stream, or of a sequential one that has a scan for each component.
func (d *Decoder) storedScan(sc *scan) error {
	d.store()
	sc.stored = d.header.Progressive
	unit := d.unitOf(sc)
	in := reader{data: d.data, at: sc.at}
	var predicted [4]int32
	left, next := d.restart, byte(0)
	d.eobRun = 0
	from := in.at
	for n := range sc.count {
		if n%sc.across == 0 {
			if err := d.meter.Spend(sc.steps(sc.across, len(unit)) + int64(in.at-from)*byteSteps); err != nil {
				return err
			}
			from = in.at
		}
		if d.restart > 0 {
			if left == 0 {
				if err := in.restart(next); err != nil {
					return err
				}
				predicted, next, left, d.eobRun = [4]int32{}, (next+1)&7, d.restart, 0
			}
			left--
		}
		x, y := n%sc.across, n/sc.across
		for i := range unit {
			b := &unit[i]
			bx, by := x, y
			if sc.interleaved {
				bx, by = x*b.c.h+b.x, y*b.c.v+b.y
			}
			at := (by*b.c.padded + bx) * blockSize
			block := (*[blockSize]int16)(b.c.coefficients[at:])
			if !d.storedBlock(&in, sc, b, &predicted[b.index], block) {
				return damaged("a block's codes make no sense")
			}
		}
		// Without the second condition a long run of empty blocks would be checked for nothing.
		if x == 0 && in.over() {
			return damaged("a scan's data ends early")
		}
	}
	if in.over() {
		return damaged("a scan's data ends early")
	}
	d.at = in.at
	return d.meter.Spend(int64(in.at-from) * byteSteps)
}

// store gives the coefficients of all blocks memory, before the first scan.
func (d *Decoder) store() {
	if d.frame[0].coefficients != nil {
		return
	}
	total := 0
	for i := range d.frame {
		total += d.frame[i].padded * d.frame[i].paddedDown * blockSize
	}
	if cap(d.stored) < total {
		d.stored = make([]int16, total)
	}
	rest := d.stored[:total]
	clear(rest)
	for i := range d.frame {
		c := &d.frame[i]
		n := c.padded * c.paddedDown * blockSize
		c.coefficients, rest = rest[:n:n], rest[n:]
	}
}

// storedBlock decodes what a scan says of a block.
func (d *Decoder) storedBlock(in *reader, sc *scan, u *unitBlock, predicted *int32, block *[blockSize]int16) bool {
	switch {
	case sc.first == 0 && sc.high == 0:
		diff, ok := in.difference(u.dc)
		if !ok {
			return false
		}
		*predicted = int32(int16(*predicted + diff))
		block[0] = int16(*predicted << sc.low)
		if sc.last == 0 {
			return true
		}
		return d.firstBits(in, u.ac, 1, sc.last, 0, block)
	case sc.first == 0:
		in.fill()
		if in.take(1) == 1 {
			block[0] |= 1 << sc.low
		}
		return true
	case sc.high == 0:
		return d.firstBits(in, u.ac, sc.first, sc.last, sc.low, block)
	default:
		return d.refine(in, u.ac, sc, block)
	}
}

// firstBits decodes coefficients that have not come before. Sequential streams know no
// runs of empty blocks but that of one.
func (d *Decoder) firstBits(in *reader, ac *huffman, first, last int, low uint, block *[blockSize]int16) bool {
	if d.eobRun > 0 {
		d.eobRun--
		return true
	}
	for k := first; k <= last; k++ {
		symbol, ok := in.symbol(ac)
		if !ok {
			return false
		}
		run, size := int(symbol>>4), uint(symbol&15)
		if size == 0 {
			if run == 15 {
				k += 15
				continue
			}
			if run > 0 && d.header.Progressive {
				in.fill()
				d.eobRun = 1<<run + int(in.take(uint(run))) - 1
			}
			return true
		}
		k += run
		in.fill()
		block[zigzag[k]] = int16(extend(in.take(size), size) << low)
	}
	return true
}

// refine adds one bit to coefficients that have come, and brings new ones.
func (d *Decoder) refine(in *reader, ac *huffman, sc *scan, block *[blockSize]int16) bool {
	k, plus := sc.first, int16(1)<<sc.low
	for d.eobRun == 0 && k <= sc.last {
		symbol, ok := in.symbol(ac)
		if !ok || symbol&15 > 1 {
			return false
		}
		in.fill()
		run, value := int(symbol>>4), int16(0)
		switch {
		case symbol&15 == 1:
			if value = plus; in.take(1) == 0 {
				value = -plus
			}
		case run != 15:
			d.eobRun = 1<<run + int(in.take(uint(run)))
		}
		if d.eobRun > 0 {
			break
		}
		k = in.correct(block, k, sc.last, run, plus)
		if value != 0 {
			block[zigzag[k]] = value
		}
		k++
	}
	if d.eobRun > 0 {
		in.correct(block, k, sc.last, blockSize, plus)
		d.eobRun--
	}
	return true
}

// correct reads a bit for each coefficient that is there already, until it has passed
// by run that are not and has come to another, or past the last.
func (b *reader) correct(block *[blockSize]int16, k, last, run int, plus int16) int {
	for ; k <= last; k++ {
		c := &block[zigzag[k]]
		if *c == 0 {
			if run--; run < 0 {
				break
			}
			continue
		}
		b.fill()
		if b.take(1) == 1 && *c&plus == 0 {
			if *c > 0 {
				*c += plus
			} else {
				*c -= plus
			}
		}
	}
	return k
}

// transformStored makes samples of the blocks that the region needs.
func (d *Decoder) transformStored() error {
	var block [blockSize]int32
	for i := range d.frame {
		c := &d.frame[i]
		quant := &d.quant[c.quant]
		for by := c.top; by < c.bottom; by++ {
			if err := d.meter.Spend(int64(c.right-c.left) * transformSteps); err != nil {
				return err
			}
			for bx := c.left; bx < c.right; bx++ {
				at := (by*c.padded + bx) * blockSize
				columns := uint8(0)
				for j, v := range (*[blockSize]int16)(c.coefficients[at:]) {
					block[j] = int32(v) * quant[j]
					if v != 0 {
						columns |= below[j]
					}
				}
				inverse(&block, columns, c.samples[(by-c.top)*8*c.stride+(bx-c.left)*8:], c.stride)
			}
		}
	}
	return nil
}
