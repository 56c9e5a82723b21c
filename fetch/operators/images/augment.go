package images

import (
	"math"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

// randAugment is Cubuk et al.: "RandAugment: Practical automated data augmentation with
// a reduced search space", 2019, as torchvision has it.
type randAugment struct {
	ops, magnitude, bins int
	bilinear, mask       bool
	fill                 []byte
}

const (
	augIdentity = iota
	augShearX
	augShearY
	augTranslateX
	augTranslateY
	augRotate
	augBrightness
	augColor
	augContrast
	augSharpness
	augPosterize
	augSolarize
	augAutoContrast
	augEqualize
	augments
)

func newRandAugment(b *builder, p *params) *program.StepError {
	o := &randAugment{mask: b.mask}
	o.ops = p.integer("num_ops", 2, 0, 16)
	o.magnitude = p.integer("magnitude", 9, 0, 1000)
	o.bins = p.integer("num_magnitude_bins", 31, 2, 1001)
	if o.magnitude >= o.bins {
		p.fail("magnitude", "got %d, takes less than num_magnitude_bins, %d", o.magnitude, o.bins)
	}
	o.bilinear = p.word("interpolation", "nearest", "nearest", "bilinear") == "bilinear" && !b.mask
	o.fill = p.fill(b, "fill")
	if b.mask {
		return b.pixels(o, true)
	}
	return b.colours(o, true, 1, 3)
}

// linear is torch.linspace(from, to, bins)[magnitude], in single precision.
func (o *randAugment) linear(from, to float64) float64 {
	step := float32(to-from) / float32(o.bins-1)
	if o.magnitude < o.bins/2 {
		return float64(float32(from) + float32(step*float32(o.magnitude)))
	}
	return float64(float32(to) - float32(step*float32(o.bins-1-o.magnitude)))
}

func (o *randAugment) apply(c *canvas, numbers *draw.Source) ([]program.Value, error) {
	var values []program.Value
	for range o.ops {
		kind, negative := numbers.IntN(augments), numbers.Chance(0.5)
		m := o.strength(c, kind)
		if negative && kind >= augShearX && kind <= augSharpness {
			m = -m
		}
		values = append(values, program.Value{Name: "op", Number: float64(kind)},
			program.Value{Name: "magnitude", Number: m})
		if kind <= augRotate {
			o.geometry(c, kind, m)
		} else if !o.mask {
			colour(c, kind, m)
		}
	}
	return values, nil
}

func (o *randAugment) strength(c *canvas, kind int) float64 {
	w, h := c.size()
	switch kind {
	case augShearX, augShearY:
		return o.linear(0, 0.3)
	case augTranslateX:
		return o.linear(0, 150.0/331.0*float64(w))
	case augTranslateY:
		return o.linear(0, 150.0/331.0*float64(h))
	case augRotate:
		return o.linear(0, 30)
	case augBrightness, augColor, augContrast, augSharpness:
		return o.linear(0, 0.9)
	case augPosterize:
		return math.RoundToEven(float64(8 - float32(o.magnitude)/(float32(o.bins-1)/4)))
	case augSolarize:
		return o.linear(1, 0)
	}
	return 0
}

func (o *randAugment) geometry(c *canvas, kind int, m float64) {
	w, h := c.size()
	inverse := affine{1, 0, 0, 0, 1, 0}
	switch kind {
	case augShearX:
		inverse[1] = math.Tan(radians(degrees(m)))
	case augShearY:
		// torchvision's matrix of a shear along y, without rotation: its terms are those that are left.
		shear := radians(degrees(m))
		a, b := math.Cos(-shear)/math.Cos(shear), math.Sin(-shear)/math.Cos(shear)
		inverse[3], inverse[4] = -b, a
	case augTranslateX:
		inverse[2] = -math.Trunc(m)
	case augTranslateY:
		inverse[5] = -math.Trunc(m)
	case augRotate:
		c.rotate(m, o.bilinear, false, nil, o.fill)
		return
	default:
		return
	}
	c.transform(inverse, w, h, o.bilinear, o.fill)
}

// degrees and radians round as Python's do.
func degrees(shear float64) float64 { return math.Atan(shear) * (180 / math.Pi) }

func radians(angle float64) float64 { return angle * (math.Pi / 180) }

func colour(c *canvas, kind int, m float64) {
	switch kind {
	case augBrightness:
		c.brightness(1 + m)
	case augColor:
		c.saturation(1 + m)
	case augContrast:
		c.contrast(1 + m)
	case augSharpness:
		c.sharpness(1 + m)
	case augPosterize:
		c.posterize(int(m))
	case augSolarize:
		c.solarize(255 * m)
	case augAutoContrast:
		c.perChannel(autoContrast)
	case augEqualize:
		c.perChannel(equalize)
	}
}

func (o *randAugment) bound(e extent) (extent, program.Cost) {
	// The one that takes most, and pixels that are laid out for it.
	most := max(warped(o.bilinear), saturateSteps, (sharpenSteps+1)*e.channels, binSteps*e.channels,
		lumaSteps+mapSteps*e.channels)
	return e, e.each(o.ops * (most + (2*rowSteps+1)*e.channels))
}
