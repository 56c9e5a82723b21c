// Copyright 2014 The Go Authors. All rights reserved.
// Use of this source code is governed by a BSD-style
// license that can be found in the LICENSE file.

package webp

// pixelSteps are those of a pixel that is decoded.
const pixelSteps = 30

// cache is the colours that were seen last.
type cache struct {
	colours []uint32
	shift   uint32
	at      int // bytes of pixels that are in it
}

// see puts pixels in, up to byte p.
func (c *cache) see(pix []byte, p int) {
	for ; c.at < p; c.at += 4 {
		argb := uint32(pix[c.at])<<16 | uint32(pix[c.at+1])<<8 | uint32(pix[c.at+2]) | uint32(pix[c.at+3])<<24
		c.colours[(argb*cacheMultiplier)>>c.shift] = argb
	}
}

// cache reads how large the colour cache is. bits is 0 where there is none.
func (d *decoder) cache() (c cache, bits uint32, err error) {
	some, err := d.read(1)
	if err != nil || some == 0 {
		return c, 0, err
	}
	if bits, err = d.read(4); err != nil {
		return c, 0, err
	}
	if bits < 1 || bits > maxCache {
		return c, 0, errCache
	}
	if err := d.meter.Hold(4 << bits); err != nil {
		return c, 0, err
	}
	return cache{colours: make([]uint32, 1<<bits), shift: 32 - bits}, bits, nil
}

// pixels decodes an image of four bytes a pixel, with room for so many bytes at least.
func (d *decoder) pixels(w, h, room int, topLevel bool) ([]byte, error) {
	c, cacheBits, err := d.cache()
	if err != nil {
		return nil, err
	}
	t, err := d.groups(w, h, topLevel, cacheBits)
	if err != nil {
		return nil, err
	}
	room = max(room, 4*w*h)
	if err := d.meter.Hold(int64(room)); err != nil {
		return nil, err
	}
	pix := make([]byte, 4*w*h, room)
	mask := 0
	if t.bits != 0 {
		mask = 1<<t.bits - 1
	}
	g, p, x, y := &t.groups[0], 0, 0, 0
	for look, paid := mask != 0, 0; p < len(pix); {
		if p >= paid { // rows, or what a copy has of them
			n := max(4*w, p-paid)
			if err := d.meter.Spend(int64(min(n, len(pix)-paid)) / 4 * pixelSteps); err != nil {
				return nil, err
			}
			paid += n
		}
		if look {
			i := 4 * (t.across*(y>>t.bits) + x>>t.bits)
			g = &t.groups[int(t.pix[i])<<8|int(t.pix[i+1])]
		}
		v, err := g[green].next(d)
		if err != nil {
			return nil, err
		}
		if v >= literals && v < literals+lengthCodes {
			n, err := d.copy(g, pix, p, w, v-literals)
			if err != nil {
				return nil, err
			}
			p += 4 * n
			x += n
			y, x = y+x/w, x%w
			look = mask != 0
			continue
		}
		if px := pix[p : p+4 : p+4]; v < literals {
			err = d.literal(g, px, v)
		} else {
			c.see(pix, p)
			err = c.get(px, int(v-literals-lengthCodes))
		}
		if err != nil {
			return nil, err
		}
		p += 4
		if x++; x == w {
			x, y = 0, y+1
		}
		look = mask != 0 && x&mask == 0
	}
	return pix, nil
}

// literal reads a pixel whose green is known.
func (d *decoder) literal(g *group, px []byte, v uint32) error {
	r, err := g[red].next(d)
	if err != nil {
		return err
	}
	b, err := g[blue].next(d)
	if err != nil {
		return err
	}
	a, err := g[alpha].next(d)
	if err != nil {
		return err
	}
	px[0], px[1], px[2], px[3] = uint8(r), uint8(v), uint8(b), uint8(a)
	return nil
}

// get gives a colour of the cache.
func (c *cache) get(px []byte, i int) error {
	if i >= len(c.colours) {
		return errCache
	}
	argb := c.colours[i]
	px[0], px[1], px[2], px[3] = uint8(argb>>16), uint8(argb>>8), uint8(argb), uint8(argb>>24)
	return nil
}

// copy repeats earlier pixels, and says how many.
func (d *decoder) copy(g *group, pix []byte, p, w int, symbol uint32) (int, error) {
	length, err := d.parameter(symbol)
	if err != nil {
		return 0, err
	}
	code, err := g[distanceTree].next(d)
	if err != nil {
		return 0, err
	}
	if code, err = d.parameter(code); err != nil {
		return 0, err
	}
	end, q := p+4*int(length), p-4*distance(w, code)
	if end > len(pix) || q < 0 {
		return 0, errCopy
	}
	for ; p < end; p, q = p+1, q+1 {
		pix[p] = pix[q]
	}
	return int(length), nil
}

// parameter reads a length or a distance, of section 5.2.2.
func (d *decoder) parameter(symbol uint32) (uint32, error) {
	if symbol < 4 {
		return symbol + 1, nil
	}
	extra := (symbol - 2) >> 1
	n, err := d.read(extra)
	return (2+symbol&1)<<extra + n + 1, err
}
