// Package audio compiles pipelines for sound: files are decoded, resampled, cut,
// converted to log-mel spectrograms and augmented, until a sample is what a model needs.
//
// Operators have the names, parameters and semantics of torchaudio.transforms where it
// has them: see each operator's type. Computations are in single precision, whatever the
// result's type, and equal bit for bit on every machine.
//
// Package codec reads files, package vorbis Ogg Vorbis, package sndfile formats that need
// a C library, and package dsp computes. This package defines names, shapes and order. It
// does no I/O of its own, and starts no goroutine. Operators on waveforms are in wave.go,
// those on spectrograms in spectrum.go; run.go applies them.
package audio

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"bowstring/fetch/operators/audio/codec"
	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

// ContractVersion changes when equal pipelines of equal cells may give other bytes with
// the same engine.
const ContractVersion = "audio-3"

// Contract names everything that the bytes of a result depend on besides the canonical
// list and the cell: the version, and the decoder of MP3 and Ogg, because decoders of
// these differ by rounding. Which files a list will meet is unknown, so all lists have
// it. It fails with program.ErrUnavailable if the decoder cannot be determined at the
// moment. Once known, the contract does not change.
func Contract() (string, error) {
	lossy, err := codec.Lossy()
	if err != nil {
		return "", err
	}
	return ContractVersion + "/" + lossy, nil
}

// Engine names the decoders of this process: "go", or "go, libsndfile 1.2.2" if that
// library was configured and found. Both give equal samples for WAV and FLAC. Those of
// MP3 and Ogg Vorbis differ by rounding (about 100 dB below the signal), and Opus needs
// the library.
func Engine() string { return codec.Engine() }

// step is a checked operator. Its exported fields are its parameters.
type step interface {
	// check checks the parameters, and computes what follows from them.
	check() error
	// draws reports whether run uses random numbers.
	draws() bool
	// next returns the extent of a cell after the step, with unknown sizes where they
	// vary, or the reason why the step cannot take it.
	next(e extent) (extent, error)
	// work bounds the steps of run for a cell with known sizes.
	work(e extent) program.Amount
	// tables bounds the memory of the tables that run makes for such a cell.
	tables(e extent) program.Amount
	// run applies the step to a cell that next has accepted. It spends steps before it
	// takes them, and returns the random choices.
	run(s *sound, from *draw.Source) ([]program.Value, error)
}

// plain has the defaults of most steps: any parameters, no random numbers, no tables, and
// cells keep their extent.
type plain struct{}

func (plain) check() error                  { return nil }
func (plain) draws() bool                   { return false }
func (plain) next(e extent) (extent, error) { return e, nil }
func (plain) tables(extent) program.Amount  { return program.Amount{} }

// ofWaveform is for steps that take waveforms, and keep their extent.
type ofWaveform struct{ plain }

// next implements step.
func (ofWaveform) next(e extent) (extent, error) { return e.waveform() }

// ofSpectrogram is the same for spectrograms.
type ofSpectrogram struct{ plain }

// next implements step.
func (ofSpectrogram) next(e extent) (extent, error) { return e.spectral() }

// makers return each operator with its default parameters, which are torchaudio's.
var makers = map[string]func() step{
	"Decode": func() step { return &decode{NumFrames: -1} },
	"Resample": func() step {
		return &resample{NewFreq: 16000, Method: "sinc_interp_hann", FilterWidth: 6, Rolloff: 0.99, Beta: 14.769656459379492}
	},
	"Mono":        func() step { return &mono{} },
	"Vol":         func() step { return &vol{Gain: -1, GainType: "amplitude"} },
	"RandomGain":  func() step { return &randomGain{Low: -6, High: 6, P: 1} },
	"Preemphasis": func() step { return &preemphasis{Coeff: 0.97} },
	"Trim":        func() step { return &trim{TopDB: 60, Length: 2048, Hop: 512} },
	"Truncate":    func() step { return &truncate{} },
	"Pad":         func() step { return &pad{Side: "end"} },
	"RandomCrop":  func() step { return &randomCrop{PadIfNeeded: true} },
	"Spectrogram": func() step { s := specDefaults; return &s },
	"MelSpectrogram": func() step {
		return &melSpectrogram{SampleRate: 16000, NMels: 128, MelScale: "htk", spectrogram: specDefaults}
	},
	"AmplitudeToDB":    func() step { return &amplitudeToDB{Stype: "power"} },
	"Log":              func() step { return &logOf{Offset: 1e-6} },
	"FrequencyMasking": func() step { return &frequencyMasking{} },
	"TimeMasking":      func() step { return &timeMasking{P: 1} },
	"SpecAugment":      func() step { return &specAugment{IID: true, P: 1} },
	"Normalize":        func() step { return &normalize{} },
	"Standardize":      func() step { return &standardize{Per: "cell", Eps: 1e-7} },
	"ToDtype":          func() step { return &toDtype{} },
	"Layout":           func() step { return &layout{} },
}

// Names are the operators on sound, sorted.
func Names() []string { return slices.Sorted(maps.Keys(makers)) }

// pipeline is a compiled list. It is immutable except for tables that its steps cache.
type pipeline struct {
	between []extent // extents before each step, and after the last
	names   []string
	steps   []step
	listed  []program.Step
}

// maxSteps is far above any use.
const maxSteps = 64

// Compile checks a list of steps for sound files. Errors are *program.StepError, except
// for an empty list.
func Compile(steps []program.Step) (program.Program, error) {
	if len(steps) == 0 {
		return nil, errors.New("audio: a list of operators begins with Decode")
	}
	p := &pipeline{between: []extent{{channels: unknown, frames: unknown}}}
	if len(steps) > maxSteps {
		return nil, &program.StepError{Step: maxSteps, Name: steps[maxSteps].Name,
			Reason: fmt.Sprintf("got %d steps; a list takes %d", len(steps), maxSteps)}
	}
	for i, s := range steps {
		next, err := p.add(i, s)
		if err != nil {
			var w *paramError
			out := &program.StepError{Step: i, Name: s.Name, Reason: err.Error()}
			if errors.As(err, &w) {
				out.Param, out.Reason = w.param, w.reason
			}
			return nil, out
		}
		p.between = append(p.between, next)
	}
	return p, nil
}

// add checks step i, and returns the extent after it.
func (p *pipeline) add(i int, s program.Step) (extent, error) {
	e := p.between[i]
	make, ok := makers[s.Name]
	if !ok {
		return e, wrong("", "no such operator of sound; there are %s", strings.Join(Names(), ", "))
	}
	if first := i == 0; first != (s.Name == "Decode") {
		if first {
			return e, wrong("", "files are decoded first: the list begins with Decode")
		}
		return e, wrong("", "only files are decoded, once and first")
	}
	made := make()
	if err := parse(s.Params, made); err != nil {
		return e, err
	}
	if err := made.check(); err != nil {
		return e, err
	}
	switch made.(type) {
	case *toDtype, *layout, *decode:
	default:
		if !e.computed() {
			return e, wrong("", "nothing is computed after ToDtype and Layout; they come last")
		}
	}
	next, err := made.next(e)
	if err != nil {
		return e, err
	}
	params, err := json.Marshal(made)
	if err != nil {
		return e, err
	}
	p.names = append(p.names, s.Name)
	p.steps = append(p.steps, made)
	p.listed = append(p.listed, program.Step{Name: s.Name, Params: params})
	return next, nil
}

// Result implements program.Program.
func (p *pipeline) Result() program.Form { return p.between[len(p.steps)].form() }

// Steps implements program.Program.
func (p *pipeline) Steps() []program.Step {
	out := slices.Clone(p.listed)
	for i := range out {
		out[i].Params = slices.Clone(out[i].Params)
	}
	return out
}

// Deterministic implements program.Program.
func (p *pipeline) Deterministic() int {
	for i, s := range p.steps {
		if s.draws() {
			return i
		}
	}
	return len(p.steps)
}

// paramError is an error of a parameter. Compile adds the step.
type paramError struct{ param, reason string }

// Error implements error.
func (e *paramError) Error() string {
	if e.param == "" {
		return e.reason
	}
	return e.param + ": " + e.reason
}

// wrong is a paramError; param is "" for an error of the whole step.
func wrong(param, format string, args ...any) error {
	return &paramError{param, fmt.Sprintf(format, args...)}
}

// parse overwrites the defaults in into, which points to a struct, by the parameters of a
// request. Unknown parameters are errors.
func parse(raw json.RawMessage, into any) error {
	if t := bytes.TrimSpace(raw); len(t) == 0 || string(t) == "null" {
		raw = json.RawMessage("{}")
	}
	if t := bytes.TrimSpace(raw); t[0] != '{' || !json.Valid(raw) {
		return wrong("", "its parameters have to be a JSON object")
	}
	var given map[string]json.RawMessage
	if err := json.Unmarshal(raw, &given); err != nil {
		return wrong("", "its parameters have to be a JSON object: %v", err)
	}
	known := fields(into)
	for name := range given {
		if !slices.Contains(known, name) {
			if len(known) == 0 {
				return wrong(name, "it takes no parameters")
			}
			return wrong(name, "no such parameter; it takes %s", strings.Join(known, ", "))
		}
	}
	if err := json.Unmarshal(raw, into); err != nil {
		var mistyped *json.UnmarshalTypeError
		if errors.As(err, &mistyped) {
			return wrong(mistyped.Field, "got a %s; it takes %s", mistyped.Value, kindOf(mistyped.Type))
		}
		return wrong("", "%v", err)
	}
	return nil
}

// fields are the names of a struct's parameters.
func fields(of any) []string {
	var names []string
	for _, f := range reflect.VisibleFields(reflect.TypeOf(of).Elem()) {
		if name := f.Tag.Get("json"); name != "" {
			names = append(names, strings.TrimSuffix(name, ",omitempty"))
		}
	}
	return names
}

// kindOf names the JSON type of a parameter for messages.
func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	default:
		return "a " + t.String()
	}
}

// oneOf checks that a word is allowed.
func oneOf(param, got string, words ...string) error {
	if slices.Contains(words, got) {
		return nil
	}
	return wrong(param, "got %q; it takes %s", got, strings.Join(words, ", "))
}

// within checks the range of an integer.
func within(param string, got, low, high int) error {
	if got < low || got > high {
		return wrong(param, "got %d; it takes %d to %d", got, low, high)
	}
	return nil
}

// between checks the range of a number; NaN is outside of any.
func between(param string, got, low, high float64) error {
	if !(got >= low && got <= high) {
		return wrong(param, "got %g; it takes %g to %g", got, low, high)
	}
	return nil
}

// numbers is a number or a list of numbers.
type numbers []float64

// UnmarshalJSON implements json.Unmarshaler.
func (n *numbers) UnmarshalJSON(b []byte) error {
	var several []*float64 // null would leave a number unchanged, so it would count as 0
	if err := json.Unmarshal(b, &several); err == nil && !slices.Contains(several, nil) {
		*n = numbers{}
		for _, v := range several {
			*n = append(*n, *v)
		}
		return nil
	}
	var one float64
	if err := json.Unmarshal(b, &one); err != nil {
		return errors.New("mean and std take a number or a list of numbers")
	}
	*n = numbers{one}
	return nil
}

// unknown is a size that depends on the file.
const unknown = program.Unknown

// extent is what is known of a cell between two steps: of all cells, or of a single one.
type extent struct {
	kind program.Kind
	// Sizes, or unknown. Waveforms have no features.
	channels, features, frames int
	// rate is 0 if it differs between cells.
	rate  int
	dtype program.DType
	// axes is the order of the axes in the result. Between steps data has the native
	// order.
	axes string
}

// native is the order of axes between steps, which is also torchaudio's.
func (e extent) native() string {
	if e.kind == program.Spectrogram {
		return "CFT"
	}
	return "CT"
}

// size is how many numbers a cell has; all sizes must be known.
func (e extent) size() program.Amount {
	return program.Product(e.channels, max(e.features, 1), e.frames)
}

// along is the length of an axis.
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

// dims are the lengths of the axes in their order in the result.
func (e extent) dims() []int {
	var dims []int
	for _, axis := range e.axes {
		dims = append(dims, e.along(axis))
	}
	return dims
}

// form is the form of the result.
func (e extent) form() program.Form {
	return program.Form{Kind: e.kind, Type: e.dtype, Dims: e.dims(), Axes: e.axes, Rate: e.rate}
}

// computed reports whether further steps may compute: nothing was rounded, and no axis
// moved.
func (e extent) computed() bool { return e.dtype == program.Float32 && e.axes == e.native() }

// widths are the sizes of elements in bytes.
var widths = map[program.DType]int{program.Int16: 2, program.Float16: 2, program.Float32: 4}

// arranged checks that axes has each letter of native once; C is optional.
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
