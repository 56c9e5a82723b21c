package audio

import (
	"fmt"
	"slices"
	"strings"

	"bowstring/fetch/operators/program"
)

const unknown = program.Unknown

// extent is what is known of a cell between two steps, of all cells or of one.
type extent struct {
	kind program.Kind
	// Sizes, or unknown. Waveforms have no features.
	channels, features, frames int
	// rate is 0 where every cell has its own.
	rate  int
	dtype program.DType
	// axes is the order of the result. Between steps data lies as native has it.
	axes string
}

// native is the order in which steps keep data, and which torchaudio's have.
func (e extent) native() string {
	if e.kind == program.Spectrogram {
		return "CFT"
	}
	return "CT"
}

// size is how many numbers a cell has, of which all sizes are known.
func (e extent) size() program.Amount {
	return program.Product(e.channels, max(e.features, 1), e.frames)
}

func (e extent) along(axis rune) int {
	switch axis {
	case 'C':
		return e.channels
	case 'F':
		return e.features
	default:
		return e.frames
	}
}

func (e extent) dims() []int {
	var dims []int
	for _, axis := range e.axes {
		dims = append(dims, e.along(axis))
	}
	return dims
}

func (e extent) form() program.Form {
	return program.Form{Kind: e.kind, Type: e.dtype, Dims: e.dims(), Axes: e.axes, Rate: e.rate}
}

// computed says that steps may still compute: nothing was rounded, and no axis moved.
func (e extent) computed() bool { return e.dtype == program.Float32 && e.axes == e.native() }

// widths are the bytes of a number.
var widths = map[program.DType]int{program.Int16: 2, program.Float16: 2, program.Float32: 4}

// extentOf checks the form of what is decoded already.
func extentOf(in program.Form) (extent, error) {
	e := extent{kind: in.Kind, channels: 1, frames: 1, rate: in.Rate, dtype: in.Type, axes: in.Axes}
	if in.Kind != program.Audio && in.Kind != program.Spectrogram {
		return e, fmt.Errorf("audio: cells of kind %d; it takes encoded files, waveforms and spectrograms", in.Kind)
	}
	if widths[in.Type] == 0 || in.Type == program.Int16 && in.Kind == program.Spectrogram {
		return e, fmt.Errorf("audio: cells of type %d; it takes int16 of waveforms, float16 and float32", in.Type)
	}
	if err := arranged(in.Axes, e.native()); err != nil || len(in.Dims) != len(in.Axes) {
		return e, fmt.Errorf("audio: cells of axes %q and dimensions %v; it takes those of %s, C only where there is "+
			"more than one",
			in.Axes, in.Dims, e.native())
	}
	open := 0
	for i, axis := range in.Axes {
		n := in.Dims[i]
		if n < 1 && n != unknown {
			return e, fmt.Errorf("audio: cells of dimensions %v", in.Dims)
		}
		if n == unknown {
			open++
		}
		switch axis {
		case 'C':
			e.channels = n
		case 'F':
			e.features = n
		default:
			e.frames = n
		}
	}
	if open > 1 {
		return e, fmt.Errorf("audio: cells of dimensions %v: a length cannot tell more than one", in.Dims)
	}
	return e, nil
}

// arranged checks that axes has each of native's once, C being optional.
func arranged(axes, native string) error {
	for _, axis := range native {
		if n := strings.Count(axes, string(axis)); n != 1 && (axis != 'C' || n != 0) {
			return fmt.Errorf("got %q; it takes each letter of %s once, in any order, and C only where wanted", axes,
				native)
		}
	}
	if strings.Trim(axes, native) != "" {
		return fmt.Errorf("got %q; it takes the letters of %s", axes, native)
	}
	return nil
}

// filled has the one unknown size by the length of a cell.
func (e extent) filled(bytes int) (extent, error) {
	dims, width := e.dims(), widths[e.dtype]
	known := 1
	for _, n := range dims {
		if n != unknown {
			known *= n
		}
	}
	n := bytes / width / known
	if open := slices.Index(dims, unknown); open >= 0 {
		switch e.axes[open] {
		case 'C':
			e.channels = n
		case 'F':
			e.features = n
		default:
			e.frames = n
		}
	}
	if e.size().Times(int64(width)).Int64() != int64(bytes) || n == 0 {
		return e, fmt.Errorf("%w: %d bytes are no tensor of dimensions %v with elements of %d bytes",
			program.ErrDamaged, bytes, dims, width)
	}
	return e, nil
}
