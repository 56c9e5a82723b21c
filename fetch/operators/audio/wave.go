package audio

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"

	"bowstring/fetch/operators/audio/codec"
	"bowstring/fetch/operators/audio/dsp"
	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

// maxFrames bounds parameters that count samples.
const maxFrames = 1 << 31

// waveform accepts waveforms.
func (e extent) waveform() (extent, error) {
	if e.kind != program.Audio {
		return e, wrong("", "got a spectrogram; it takes a waveform")
	}
	return e, nil
}

// decode is torchaudio.load: samples from -1 to 1, of all channels.
type decode struct {
	plain
	FrameOffset int `json:"frame_offset"`
	NumFrames   int `json:"num_frames"` // -1: all
}

// check implements step.
func (d *decode) check() error {
	if d.NumFrames == 0 || d.NumFrames < -1 || d.NumFrames > maxFrames {
		return wrong("num_frames", "got %d; it takes 1 to %d, and -1 for all", d.NumFrames, maxFrames)
	}
	return within("frame_offset", d.FrameOffset, 0, maxFrames)
}

// next implements step. The sizes are known when a file is opened.
func (d *decode) next(extent) (extent, error) {
	return extent{kind: program.Audio, channels: unknown, frames: unknown, dtype: program.Float32, axes: "CT"}, nil
}

// opened is the extent of a file's waveform.
func (d *decode) opened(info codec.Info) (extent, error) {
	e, _ := d.next(extent{})
	if err := info.Readable(); err != nil {
		return e, err
	}
	e.channels, e.rate = info.Channels, info.Rate
	if d.FrameOffset > 0 && d.FrameOffset >= info.Frames {
		return e, fmt.Errorf("frame_offset is %d; the file has %d samples of each channel", d.FrameOffset, info.Frames)
	}
	e.frames = info.Frames - d.FrameOffset
	if d.NumFrames > 0 {
		e.frames = min(e.frames, d.NumFrames)
	}
	return e, nil
}

// work is zero: codec.Info.Work has the cost of decoding.
func (d *decode) work(extent) program.Amount { return program.Amount{} }

// run implements step. The codec has decoded the file before the first run.
func (d *decode) run(*sound, *draw.Source) ([]program.Value, error) { return nil, nil }

// resample is torchaudio.transforms.Resample. A waveform that already has the rate is not
// changed. Its table cache is guarded by its own mutex; the rest is immutable.
type resample struct {
	plain
	OrigFreq     int     `json:"orig_freq,omitempty"` // 0: the file's; otherwise files with another rate are refused
	NewFreq      int     `json:"new_freq"`
	Method       string  `json:"resampling_method"`
	FilterWidth  int     `json:"lowpass_filter_width"`
	Rolloff      float64 `json:"rolloff"`
	Beta         float64 `json:"beta"`
	tablesByRate resamplers
}

// resamplers caches tables by source rate. A dataset has few rates; tables for more than
// the cached ones are made each time.
type resamplers struct {
	mu   sync.Mutex
	kept map[int]*dsp.Resampler
}

// keptResamplers is the maximum number of cached tables of a step.
const keptResamplers = 8

// check implements step. Rates are samples per second.
func (r *resample) check() error {
	return cmp.Or(within("orig_freq", r.OrigFreq, 0, 768000), within("new_freq", r.NewFreq, 1, 768000),
		within("lowpass_filter_width", r.FilterWidth, 1, 256), between("rolloff", r.Rolloff, 0.01, 1),
		between("beta", r.Beta, 0, 100), oneOf("resampling_method", r.Method, "sinc_interp_hann", "sinc_interp_kaiser"))
}

// options are those of the table for a source rate. They are computed for each cell,
// because files of a dataset can have different rates.
func (r *resample) options(from int) dsp.ResampleOptions {
	return dsp.ResampleOptions{From: from, To: r.NewFreq, Width: r.FilterWidth, Rolloff: r.Rolloff,
		Kaiser: r.Method == "sinc_interp_kaiser", Beta: r.Beta}
}

// next implements step. The length is ceil(frames * to / from), as in torchaudio.
func (r *resample) next(e extent) (extent, error) {
	e, err := e.waveform()
	if err != nil {
		return e, err
	}
	from := e.rate
	if from == 0 {
		from = r.OrigFreq
	}
	if r.OrigFreq != 0 && from != r.OrigFreq {
		return e, wrong("orig_freq", "is %d samples a second; the waveform has %d", r.OrigFreq, from)
	}
	if from != 0 && from != r.NewFreq {
		if err := r.options(from).Check(); err != nil {
			return e, wrong("new_freq", "%v", err)
		}
		if e.frames != unknown {
			e.frames = dsp.ResampledLength(e.frames, from, r.NewFreq)
		}
	} else if from == 0 {
		e.frames = unknown
	}
	e.rate = r.NewFreq
	return e, nil
}

// tables implements step.
func (r *resample) tables(e extent) program.Amount {
	if e.rate == r.NewFreq {
		return program.Amount{}
	}
	return program.Count(r.options(e.rate).Bytes())
}

// work includes making the table, which may be cached.
func (r *resample) work(e extent) program.Amount {
	if e.rate == r.NewFreq {
		return program.Amount{}
	}
	o := r.options(e.rate)
	n := dsp.ResampledLength(e.frames, e.rate, r.NewFreq)
	return program.Product(e.channels, n, o.Taps()+filtering).Plus(program.Count(o.Steps()))
}

// filtering is how many steps an output sample takes besides its taps.
const filtering = 8

// table returns the table for a source rate, cached or made now. Two runs may make the same
// table at once; one of them is discarded.
func (r *resample) table(s *sound, from int) (*dsp.Resampler, error) {
	r.tablesByRate.mu.Lock()
	t := r.tablesByRate.kept[from]
	r.tablesByRate.mu.Unlock()
	if t != nil {
		return t, nil
	}
	o := r.options(from)
	if err := errors.Join(s.meter.Hold(o.Bytes()), s.meter.Spend(o.Steps())); err != nil {
		return nil, err
	}
	t = dsp.NewResampler(o)
	r.tablesByRate.mu.Lock()
	defer r.tablesByRate.mu.Unlock()
	if len(r.tablesByRate.kept) < keptResamplers {
		if r.tablesByRate.kept == nil {
			r.tablesByRate.kept = map[int]*dsp.Resampler{}
		}
		r.tablesByRate.kept[from] = t
	}
	return t, nil
}

// run implements step. It makes each channel in parts, so that a long cell checks its
// context.
func (r *resample) run(s *sound, _ *draw.Source) ([]program.Value, error) {
	if s.rate == r.NewFreq {
		return nil, nil
	}
	n := dsp.ResampledLength(s.frames, s.rate, r.NewFreq)
	out, err := s.spare(s.channels * n)
	if err != nil {
		return nil, err
	}
	t, err := r.table(s, s.rate)
	if err != nil {
		return nil, err
	}
	each := r.options(s.rate).Taps() + filtering
	for c := range s.channels {
		x, y := s.row(c), out[c*n:(c+1)*n]
		for at := 0; at < n; {
			part := y[at:min(n, at+max(1, chunk/each))]
			if err := s.spend(len(part), int64(each)); err != nil {
				return nil, err
			}
			t.Run(x, part, at)
			at += len(part)
		}
	}
	s.take(out)
	s.frames = n
	return nil, nil
}

// mono is the mean of the channels, as waveform.mean(0, keepdim=True).
type mono struct{ plain }

// next implements step.
func (m *mono) next(e extent) (extent, error) {
	e, err := e.waveform()
	e.channels = 1
	return e, err
}

// work implements step.
func (m *mono) work(e extent) program.Amount { return e.size().Times(4) }

// run implements step. Channels are added in their order, in single precision, then
// divided. The first row is the result, so no second buffer is needed.
func (m *mono) run(s *sound, _ *draw.Source) ([]program.Value, error) {
	if s.channels == 1 {
		return nil, nil
	}
	sum := s.row(0)
	for c := 1; c < s.channels; c++ {
		at := 0
		if err := s.inParts(s.row(c), 2, func(x []float32) {
			for i, v := range x {
				sum[at+i] += v
			}
			at += len(x)
		}); err != nil {
			return nil, err
		}
	}
	n := float32(s.channels)
	if err := s.inParts(sum, 4, func(x []float32) {
		for i := range x {
			x[i] /= n
		}
	}); err != nil {
		return nil, err
	}
	s.data, s.channels = sum, 1
	return nil, nil
}

// vol is torchaudio.transforms.Vol: samples times a ratio, clamped to -1 to 1.
type vol struct {
	ofWaveform
	Gain     float64 `json:"gain"`
	GainType string  `json:"gain_type"`
}

// check implements step.
func (v *vol) check() error {
	if err := oneOf("gain_type", v.GainType, "amplitude", "power", "db"); err != nil {
		return err
	}
	if v.GainType == "db" {
		return between("gain", v.Gain, -200, 200)
	}
	return between("gain", v.Gain, 0, 1e10)
}

// amplifying is how many steps a sample takes.
const amplifying = 4

// work implements step.
func (v *vol) work(e extent) program.Amount { return e.size().Times(amplifying) }

// run implements step. The ratio of gain in decibels is 10^(gain/20), of power its square
// root.
func (v *vol) run(s *sound, _ *draw.Source) ([]program.Value, error) {
	switch {
	case v.GainType == "db":
		return nil, s.amplify(float32(dsp.Exp10(v.Gain / 20)))
	case v.GainType == "power" && v.Gain > 0:
		return nil, s.amplify(float32(dsp.Exp10(dsp.Log10(v.Gain) / 2)))
	default:
		return nil, s.amplify(float32(v.Gain))
	}
}

// amplify multiplies all samples, and clamps them to -1 to 1. NaN stays NaN.
func (s *sound) amplify(ratio float32) error {
	return s.inParts(s.data, amplifying, func(x []float32) {
		for i, v := range x {
			x[i] = min(max(float32(v*ratio), -1), 1)
		}
	})
}

// randomGain is Vol in decibels with probability p. The gain is uniform between two bounds,
// in whole thousandths, so that its JSON form is exact. It draws whether it applies, and
// then the gain.
type randomGain struct {
	ofWaveform
	Low  float64 `json:"min_gain_db"`
	High float64 `json:"max_gain_db"`
	P    float64 `json:"p"`
}

// check implements step.
func (g *randomGain) check() error {
	return cmp.Or(between("min_gain_db", g.Low, -200, 200), between("max_gain_db", g.High, g.Low, 200),
		between("p", g.P, 0, 1))
}

func (g *randomGain) draws() bool                  { return true }
func (g *randomGain) work(e extent) program.Amount { return e.size().Times(amplifying) }

// run implements step. Both numbers are drawn even if the gain is not applied.
func (g *randomGain) run(s *sound, from *draw.Source) ([]program.Value, error) {
	applied, low := from.Chance(g.P), g.Low
	db := float64(int(float64(from.Uniform(low, g.High)*1000))) / 1000
	if !applied {
		return []program.Value{{Name: "gain_db", Number: 0}}, nil
	}
	return []program.Value{{Name: "gain_db", Number: db}}, s.amplify(float32(dsp.Exp10(db / 20)))
}

// preemphasis is torchaudio.transforms.Preemphasis: each sample minus coeff times the one
// before.
type preemphasis struct {
	ofWaveform
	Coeff float64 `json:"coeff"`
}

func (p *preemphasis) check() error                 { return between("coeff", p.Coeff, -1, 1) }
func (p *preemphasis) work(e extent) program.Amount { return e.size().Times(2) }

// run implements step. The first sample is not changed.
func (p *preemphasis) run(s *sound, _ *draw.Source) ([]program.Value, error) {
	k := float32(p.Coeff)
	for c := range s.channels {
		x := s.row(c)
		for end := len(x); end > 1; end -= min(chunk, end) { // from the end, as a sample needs the original value of the one before
			if err := s.spend(min(chunk, end), 2); err != nil {
				return nil, err
			}
			for i := end - 1; i >= max(end-chunk, 1); i-- {
				x[i] -= float32(k * x[i-1])
			}
		}
	}
	return nil, nil
}

// These steps change the length of the last axis: samples of waveforms, frames of
// spectrograms.

// moving is how many steps copying a number takes.
const moving = 1

// moved is the work of copying a cell once, in its larger size.
func moved(e, next extent) program.Amount { return e.size().Or(next.size()).Times(moving) }

// cut keeps n frames of each row, from start on. It works in place: rows move towards the
// beginning, never past unread data.
func (s *sound) cut(start, n int) error {
	for i := range s.rows() {
		if err := s.spend(n, moving); err != nil {
			return err
		}
		copy(s.data[i*n:(i+1)*n], s.data[i*s.frames+start:])
	}
	s.data, s.frames = s.data[:s.rows()*n], n
	return nil
}

// lengthen extends each row to n frames with value: before frames precede the row, the rest follow. It needs
// the second buffer, because rows move towards the end.
func (s *sound) lengthen(before, n int, value float32) error {
	out, err := s.spare(s.rows() * n)
	if err != nil {
		return err
	}
	for i := range s.rows() {
		if err := s.spend(n, moving); err != nil {
			return err
		}
		to := out[i*n : (i+1)*n]
		for k := range to[:before] {
			to[k] = value
		}
		end := before + copy(to[before:], s.row(i))
		for k := range to[end:] {
			to[end+k] = value
		}
	}
	s.take(out)
	s.frames = n
	return nil
}

// trim removes silence at both ends, as librosa.effects.trim: frames that are more than
// top_db decibels below the loudest. Only the samples decide the length of its result. Its
// cost assumes that nothing is removed.
type trim struct {
	ofWaveform
	TopDB  float64 `json:"top_db"`
	Length int     `json:"frame_length"`
	Hop    int     `json:"hop_length"`
}

// check implements step. A hop far shorter than the window would be too much work.
func (t *trim) check() error {
	return cmp.Or(between("top_db", t.TopDB, 0, 200), within("frame_length", t.Length, 2, 1<<16),
		within("hop_length", t.Hop, max(1, t.Length/64), 1<<16))
}

// tables is the memory for the energies of all frames.
func (t *trim) tables(e extent) program.Amount { return program.Product(8, e.frames/t.Hop+1) }

// work implements step.
func (t *trim) work(e extent) program.Amount {
	windows := program.Product(e.channels, e.frames/t.Hop+1, min(t.Length, e.frames)+8).Times(2)
	return windows.Plus(moved(e, e))
}

// run implements step. The energy of a frame is the mean square around its centre; beyond
// the ends are zeros. The maximum over the channels decides, and the loudest frame is the
// reference. Squares are summed in double precision: a long frame would lose quiet samples
// otherwise.
func (t *trim) run(s *sound, _ *draw.Source) ([]program.Value, error) {
	if err := s.meter.Hold(t.tables(s.extent).Int64()); err != nil {
		return nil, err
	}
	energy := make([]float64, s.frames/t.Hop+1)
	for c := range s.channels {
		x := s.row(c)
		for k := range energy {
			middle, sum := k*t.Hop, 0.0
			window := x[min(max(0, middle-t.Length/2), len(x)):min(len(x), middle-t.Length/2+t.Length)]
			if err := s.spend(len(window)+8, 2); err != nil {
				return nil, err
			}
			for _, v := range window {
				sum += float64(float64(v) * float64(v))
			}
			energy[k] = max(energy[k], sum/float64(t.Length))
		}
	}
	// Below this energy everything counts as silence, as in librosa.
	const floor = 1e-10
	loudest := floor
	for _, v := range energy {
		loudest = max(loudest, v)
	}
	limit := float64(loudest * dsp.Exp10(-t.TopDB/10))
	// The result is from the first to the last frame that is loud enough.
	first, last := -1, -1
	for k, v := range energy {
		if max(floor, v) > limit {
			if first < 0 {
				first = k
			}
			last = k
		}
	}
	if first < 0 {
		return nil, s.cut(0, 0)
	}
	start := min(first*t.Hop, s.frames)
	return nil, s.cut(start, min((last+1)*t.Hop, s.frames)-start)
}

// truncate keeps the first length frames.
type truncate struct {
	plain
	Length int `json:"length"`
}

func (t *truncate) check() error { return within("length", t.Length, 1, maxFrames) }

// next implements step.
func (t *truncate) next(e extent) (extent, error) {
	if e.frames != unknown {
		e.frames = min(e.frames, t.Length)
	}
	return e, nil
}

func (t *truncate) work(e extent) program.Amount { return moved(e, e) }

// run implements step.
func (t *truncate) run(s *sound, _ *draw.Source) ([]program.Value, error) {
	if s.frames > t.Length {
		return nil, s.cut(0, t.Length)
	}
	return nil, nil
}

// pad extends to length frames. A longer cell keeps its length, or is cut with truncate,
// as torchaudio's former PadTrim did.
type pad struct {
	plain
	Length int     `json:"length"`
	Value  float64 `json:"value"`
	Side   string  `json:"side"`
	Cut    bool    `json:"truncate"`
}

// check implements step.
func (p *pad) check() error {
	return cmp.Or(within("length", p.Length, 1, maxFrames), between("value", p.Value, -1e30, 1e30),
		oneOf("side", p.Side, "end", "start", "both"))
}

// next implements step.
func (p *pad) next(e extent) (extent, error) {
	switch {
	case p.Cut:
		e.frames = p.Length
	case e.frames != unknown:
		e.frames = max(e.frames, p.Length)
	}
	return e, nil
}

func (p *pad) work(e extent) program.Amount { return lengthened(e, p.Length) }

// lengthened is the work of cutting or extending a cell to that number of frames.
func lengthened(e extent, frames int) program.Amount {
	next := e
	next.frames = frames
	return moved(e, next)
}

// run implements step. With "both" the odd frame is at the end.
func (p *pad) run(s *sound, _ *draw.Source) ([]program.Value, error) {
	if s.frames > p.Length && p.Cut {
		return nil, s.cut(0, p.Length)
	}
	if missing := p.Length - s.frames; missing > 0 {
		before := map[string]int{"end": 0, "start": missing, "both": missing / 2}[p.Side]
		return nil, s.lengthen(before, p.Length, float32(p.Value))
	}
	return nil, nil
}

// randomCrop keeps length frames from a uniform start on. A shorter cell is extended at its
// end, or not changed if pad_if_needed is false. Directly after Decode, only the crop is
// decoded: see pipeline.open.
type randomCrop struct {
	plain
	Length      int     `json:"length"`
	PadIfNeeded bool    `json:"pad_if_needed"`
	Fill        float64 `json:"fill"`
}

// check implements step.
func (r *randomCrop) check() error {
	return cmp.Or(within("length", r.Length, 1, maxFrames), between("fill", r.Fill, -1e30, 1e30))
}

func (r *randomCrop) draws() bool { return true }

// next implements step.
func (r *randomCrop) next(e extent) (extent, error) {
	switch {
	case r.PadIfNeeded:
		e.frames = r.Length
	case e.frames != unknown:
		e.frames = min(e.frames, r.Length)
	}
	return e, nil
}

// start chooses the first frame. It takes one number from the source, whatever the length.
func (r *randomCrop) start(frames int, from *draw.Source) int {
	return from.IntN(max(frames-r.Length, 0) + 1)
}

// drawn describes the crop, of that number of frames.
func (r *randomCrop) drawn(start, frames int) []program.Value {
	return []program.Value{{Name: "start", Number: float64(start)},
		{Name: "length", Number: float64(min(frames, r.Length))}}
}

// fill extends a cell that was shorter.
func (r *randomCrop) fill(s *sound) error {
	if r.PadIfNeeded && s.frames < r.Length {
		return s.lengthen(0, r.Length, float32(r.Fill))
	}
	return nil
}

func (r *randomCrop) work(e extent) program.Amount { return lengthened(e, r.Length) }

// run implements step. The start is drawn for short cells, too.
func (r *randomCrop) run(s *sound, from *draw.Source) ([]program.Value, error) {
	whole := s.frames
	start := r.start(whole, from)
	if whole > r.Length {
		if err := s.cut(start, r.Length); err != nil {
			return nil, err
		}
	}
	return r.drawn(start, whole), r.fill(s)
}

// toDtype sets the element type of the result.
type toDtype struct {
	plain
	Dtype string `json:"dtype"`
}

// dtypes are the types of elements by their names in torch.
var dtypes = map[string]program.DType{"float32": program.Float32, "float16": program.Float16, "int16": program.Int16}

func (t *toDtype) check() error { return oneOf("dtype", t.Dtype, "float32", "float16", "int16") }

// next implements step. int16 is for samples only: they are scaled by 32768.
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

// run implements step. Numbers are rounded when the result is written.
func (t *toDtype) run(*sound, *draw.Source) ([]program.Value, error) { return nil, nil }

// layout sets the order of the result's axes: C (channels), F (features), T (time). C may
// be left out if there is one channel.
type layout struct {
	plain
	Axes string `json:"axes"`
}

// next implements step.
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

// run implements step. The axes are ordered when the result is written.
func (l *layout) run(*sound, *draw.Source) ([]program.Value, error) { return nil, nil }

// strides are the distances of neighbours along each axis in the result, in elements. The
// last axis is contiguous.
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

// layingOut is how many steps converting a number from or to the bytes of a cell takes.
const layingOut = 4

// rowsOf calls f for parts of each row of the data, with the place of their elements in the
// result: the first one, and the distance of the following ones. Both directions use it, so
// a cached prefix is read in the order in which it was written.
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

// write writes the result, after a header of that number of bytes, into memory from alloc.
// Rounding to the result's type happens here, once for each number.
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

// toInt16 is the nearest 16-bit sample, ties to even. Values beyond the range are clipped.
func toInt16(v float32) int16 {
	x := math.RoundToEven(float64(v) * 32768)
	if !(x > -32768) { // also for NaN
		return -32768
	}
	return int16(min(x, 32767))
}

// read reads the numbers of a prefix, in single precision.
func read(s *sound, from []byte) error {
	return s.rowsOf(func(row []float32, at, step int) {
		for i := range row {
			row[i] = math.Float32frombits(binary.LittleEndian.Uint32(from[4*(at+i*step):]))
		}
	})
}
