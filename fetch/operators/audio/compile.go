package audio

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

// step is a checked operator.
type step interface {
	// next says what a cell becomes, where sizes may be unknown, or why it cannot be taken.
	next(e extent) (extent, error)
	// work bounds the steps that run takes for a cell all of whose sizes are known.
	work(e extent) program.Amount
	// run does it to a cell that next has let pass, and spends steps before it takes them. It says what it drew.
	run(s *sound, from *draw.Source) ([]program.Value, error)
}

// random is a step that draws.
type random interface{ draws() }

// makers give a step with its parameters filled in and checked. The step's exported fields are its parameters.
var makers = map[string]func(json.RawMessage) (step, error){
	"Decode":           newDecode,
	"Resample":         newResample,
	"Mono":             newMono,
	"Vol":              newVol,
	"RandomGain":       newRandomGain,
	"Preemphasis":      newPreemphasis,
	"Trim":             newTrim,
	"Truncate":         newTruncate,
	"Pad":              newPad,
	"RandomCrop":       newRandomCrop,
	"Spectrogram":      newSpectrogram,
	"MelSpectrogram":   newMelSpectrogram,
	"AmplitudeToDB":    newAmplitudeToDB,
	"Log":              newLog,
	"FrequencyMasking": newFrequencyMasking,
	"TimeMasking":      newTimeMasking,
	"SpecAugment":      newSpecAugment,
	"Normalize":        newNormalize,
	"Standardize":      newStandardize,
	"ToDtype":          newToDtype,
	"Layout":           newLayout,
}

// Names are the operators of sound, sorted.
func Names() []string { return slices.Sorted(maps.Keys(makers)) }

// pipeline is a compiled list. It is immutable but for tables that its steps keep.
type pipeline struct {
	in      program.Form
	between []extent // before each step, and after the last; the first is unset where cells are encoded
	names   []string
	steps   []step
	listed  []program.Step
}

// maxSteps is far above what anyone needs.
const maxSteps = 64

// Compile checks a list of steps for cells of a form: files, or what another pipeline
// of sound has made of them. Errors are *program.StepError, but for those of the form.
func Compile(in program.Form, steps []program.Step) (program.Program, error) {
	p := &pipeline{in: in}
	e := extent{channels: unknown, frames: unknown}
	if in.Kind != program.Encoded {
		var err error
		if e, err = extentOf(in); err != nil {
			return nil, err
		}
	} else if len(steps) == 0 {
		return nil, errors.New("audio: a list of operators begins with Decode")
	}
	p.between = append(p.between, e)
	if len(steps) > maxSteps {
		return nil, &program.StepError{Step: maxSteps, Name: steps[maxSteps].Name,
			Reason: fmt.Sprintf("got %d steps; a list takes %d", len(steps), maxSteps)}
	}
	for i, s := range steps {
		next, err := p.add(i, s, e)
		if err != nil {
			var w *paramError
			out := &program.StepError{Step: i, Name: s.Name, Reason: err.Error()}
			if errors.As(err, &w) {
				out.Param, out.Reason = w.param, w.reason
			}
			return nil, out
		}
		e = next
		p.between = append(p.between, e)
	}
	return p, nil
}

// add checks step i, of which cells are e.
func (p *pipeline) add(i int, s program.Step, e extent) (extent, error) {
	make, ok := makers[s.Name]
	if !ok {
		return e, wrong("", "no such operator of sound; there are %s", strings.Join(Names(), ", "))
	}
	if encoded := i == 0 && p.in.Kind == program.Encoded; encoded != (s.Name == "Decode") {
		if encoded {
			return e, wrong("", "files are decoded first: the list begins with Decode")
		}
		return e, wrong("", "only files are decoded, once and first")
	}
	made, err := make(s.Params)
	if err != nil {
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
func (p *pipeline) Result() program.Form {
	if len(p.steps) == 0 {
		return p.in
	}
	return p.between[len(p.steps)].form()
}

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
		if _, ok := s.(random); ok {
			return i
		}
	}
	return len(p.steps)
}
