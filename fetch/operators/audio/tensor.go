package audio

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"bowstring/fetch/operators/audio/dsp"
	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

// toDtype says what numbers the result has.
type toDtype struct {
	Dtype string `json:"dtype"`
}

var dtypes = map[string]program.DType{"float32": program.Float32, "float16": program.Float16, "int16": program.Int16}

func newToDtype(raw json.RawMessage) (step, error) {
	t := &toDtype{}
	if err := parse(raw, t); err != nil {
		return nil, err
	}
	return t, oneOf("dtype", t.Dtype, "float32", "float16", "int16")
}

func (t *toDtype) next(e extent) (extent, error) {
	if t.Dtype == "int16" && e.kind != program.Audio {
		return e, wrong("dtype", "got int16; a spectrogram takes float16 and float32")
	}
	if e.dtype != program.Float32 && e.dtype != dtypes[t.Dtype] {
		return e, wrong("dtype", "the numbers were rounded before; there is one ToDtype")
	}
	e.dtype = dtypes[t.Dtype]
	return e, nil
}

func (t *toDtype) work(extent) program.Amount { return program.Amount{} }

func (t *toDtype) run(*sound, *draw.Source) ([]program.Value, error) { return nil, nil }

// layout says in which order the result's axes are: C (channels), F (features), T (time). C may be left out of what has
// one channel.
type layout struct {
	Axes string `json:"axes"`
}

func newLayout(raw json.RawMessage) (step, error) {
	l := &layout{}
	return l, parse(raw, l)
}

func (l *layout) next(e extent) (extent, error) {
	if err := arranged(l.Axes, e.native()); err != nil {
		return e, wrong("axes", "%v", err)
	}
	if !strings.Contains(l.Axes, "C") && e.channels != 1 {
		return e, wrong("axes", "got %q; C is left out only where there is one channel: put Mono before", l.Axes)
	}
	e.axes = l.Axes
	return e, nil
}

func (l *layout) work(extent) program.Amount { return program.Amount{} }

func (l *layout) run(*sound, *draw.Source) ([]program.Value, error) { return nil, nil }

// strides are the steps of a cell's axes in its bytes' elements, by their place in native.
func (e extent) strides() (channel, feature, frame int) {
	step := 1
	for i := len(e.axes) - 1; i >= 0; i-- {
		switch e.axes[i] {
		case 'C':
			channel = step
		case 'F':
			feature = step
		default:
			frame = step
		}
		step *= e.along(rune(e.axes[i]))
	}
	return channel, feature, frame
}

// layingOut is how many steps a number takes between the bytes of a cell and the numbers that steps work on.
const layingOut = 4

// rowsOf calls f for parts of each row of the data with where their elements lie in the bytes: at, and step apart.
func (s *sound) rowsOf(f func(row []float32, at, step int)) error {
	channel, feature, frame := s.strides()
	for c := range s.channels {
		for k := range max(s.features, 1) {
			at := c*channel + k*feature
			if err := s.inParts(s.row(c*max(s.features, 1)+k), layingOut, func(part []float32) {
				f(part, at, frame)
				at += len(part) * frame
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// write puts the bytes of the result into memory that alloc gives, behind a header of so many bytes.
func (s *sound) write(alloc func(n int) []byte, header int) error {
	n := header + int(s.size().Int64())*widths[s.dtype]
	to := alloc(n)
	if len(to) < n {
		return fmt.Errorf("%w: the result has %d bytes, more than were counted for it", program.ErrTooLarge, n)
	}
	to = to[header:]
	return s.rowsOf(func(row []float32, at, step int) {
		switch s.dtype {
		case program.Float32:
			for i, v := range row {
				binary.LittleEndian.PutUint32(to[4*(at+i*step):], math.Float32bits(v))
			}
		case program.Float16:
			for i, v := range row {
				binary.LittleEndian.PutUint16(to[2*(at+i*step):], dsp.Half(v))
			}
		default:
			for i, v := range row {
				binary.LittleEndian.PutUint16(to[2*(at+i*step):], uint16(toInt16(v)))
			}
		}
	})
}

// toInt16 is the nearest sample; of two, the even one.
func toInt16(v float32) int16 {
	x := math.RoundToEven(float64(v) * 32768)
	if !(x > -32768) { // what is no number, too
		return -32768
	}
	return int16(min(x, 32767))
}

// read has the numbers of a cell that is decoded.
func read(s *sound, from []byte) error {
	return s.rowsOf(func(row []float32, at, step int) {
		switch s.dtype {
		case program.Float32:
			for i := range row {
				row[i] = math.Float32frombits(binary.LittleEndian.Uint32(from[4*(at+i*step):]))
			}
		case program.Float16:
			for i := range row {
				row[i] = dsp.FromHalf(binary.LittleEndian.Uint16(from[2*(at+i*step):]))
			}
		default:
			for i := range row {
				row[i] = float32(int16(binary.LittleEndian.Uint16(from[2*(at+i*step):]))) * 0x1p-15
			}
		}
	})
}
