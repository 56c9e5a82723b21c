package images

import (
	"fmt"

	"bowstring/fetch/operators/images/jpeg"
	"bowstring/fetch/operators/program"
)

// encodeJPEG ends a list: the bytes that Pillow saves.
type encodeJPEG struct{ quality int }

func newEncodeJPEG(b *builder, p *params) *program.StepError {
	o := &encodeJPEG{quality: p.integer("quality", 75, 1, 100)}
	if b.mask {
		return b.fail("a mask is not encoded: its classes would be others")
	}
	if b.table != nil {
		return b.fail("it takes uint8; leave ToDtype out")
	}
	if err := b.bytes(); err != nil {
		return err
	}
	if b.channels != 1 && b.channels != 3 {
		return b.fail("it takes images of 1 or 3 channels, and gets %s; Decode can make RGB", known(b.channels))
	}
	b.encoder, b.ended = o, true
	return nil
}

// bound is what it takes to encode an image, and the most bytes of the result. As many are worked in: planes, and the
// result before it is copied.
func (o *encodeJPEG) bound(e extent) (takes program.Cost, result program.Amount) {
	result = program.Count(jpeg.MaxEncoded(e.w, e.h))
	side := e.of(e.w+15, e.h+15) // whole units
	takes = side.each(encodeSteps)
	takes.Working = result
	return takes, result
}

// encode makes the result of what the steps before have made.
func (p *compiled) encode(c *canvas, alloc func(n int) []byte) error {
	step := p.from + len(p.steps) - 1
	pix := c.raster()
	if c.err != nil {
		return about(p.from, p.steps[0].Name, program.ErrDamaged, c.err)
	}
	if max(c.width, c.height) > 0xFFFF {
		return about(step, "EncodeJPEG", program.ErrDamaged,
			fmt.Errorf("an image of %d x %d is larger than a JPEG may be", c.width, c.height))
	}
	c.s.step, c.s.name = step, "EncodeJPEG"
	c.s.hold(jpeg.MaxEncoded(c.width, c.height))
	out, err := c.s.encoder.Encode(pix, c.width, c.height, c.channels, p.encoder.quality, func(rows int) error {
		return c.s.meter.Spend(int64(rows) * int64(c.width+15) * encodeSteps)
	})
	if err != nil {
		return err
	}
	to := alloc(len(out))
	if len(to) < len(out) {
		return about(step, "EncodeJPEG", program.ErrTooLarge, fmt.Errorf("there is no memory for %d bytes", len(out)))
	}
	copy(to, out)
	return nil
}
