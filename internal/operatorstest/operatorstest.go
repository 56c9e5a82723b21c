// Package operatorstest has operators of the kind "bytes", for tests of code that runs
// operators. They are small but real programs that need no codec. The server does not use
// them.
package operatorstest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"bowstring/fetch/operators"
	"bowstring/fetch/operators/program"
)

// Kinds returns the kind "bytes", and images and audio made of the same operators.
func Kinds() operators.Kinds {
	kind := operators.Kind{Contract: operators.Always("test/1"), Operators: []string{"Decode", "Reverse", "RandomBytes", "RandomRepeat",
		"Crop", "Encode"}, Compile: Compile, Follow: Compile}
	return operators.Kinds{"bytes": kind, "image": kind, "audio": kind}
}

// The operators, in the words of Compile. Decode comes first.
//
//	Decode          bytes as they are; "bad" first bytes are damaged, "bomb" would become 2^40 bytes, "panic" panics
//	Reverse         the last byte first
//	RandomBytes     each byte is one drawn, exclusive-or the cell's
//	Crop size that many bytes, zeros where there are fewer: a tensor of one shape
//	RandomRepeat    the bytes once to four times
//	Encode          no tensor: bytes of a file
//
// step is a step of a program, with its parsed parameters. random steps depend on the
// draws.
type step struct {
	name   string
	size   int
	random bool
}

// prog is a compiled list of steps. It is constant, and safe for concurrent use.
type prog struct {
	// form is the form of the result.
	steps []step
	form  program.Form
	most  int64 // the result is at most that many times as large as the input
	fixed int64 // size of the result in bytes, if a Crop fixed it; otherwise 0
}

// Compile implements operators.Kind. It returns a *program.StepError for a wrong step.
func Compile(list []program.Step) (program.Program, error) {
	p := &prog{form: program.Form{Kind: program.Audio, Type: program.Uint8, Dims: []int{program.Unknown}, Axes: "T",
		Rate: 8000}, most: 1}
	for i, s := range list {
		st := step{name: s.Name}
		wrong := func(param, reason string) error {
			return &program.StepError{Step: i, Name: s.Name, Param: param, Reason: reason}
		}
		var params struct{ Size *int }
		d := json.NewDecoder(bytes.NewReader(s.Params))
		d.DisallowUnknownFields()
		if err := d.Decode(&params); err != nil {
			return nil, wrong("", err.Error())
		}
		if (i == 0) != (s.Name == "Decode") {
			return nil, wrong("", "want Decode as the first step, and nowhere else")
		}
		switch s.Name {
		case "Decode", "Reverse":
		case "RandomBytes":
			st.random = true
		case "RandomRepeat":
			st.random = true
			p.most *= 4
			p.fixed = 0
			p.form.Dims = []int{program.Unknown}
		case "Crop":
			if params.Size == nil || *params.Size < 1 {
				return nil, wrong("size", "want 1 or more bytes")
			}
			st.size = *params.Size
			p.fixed, p.form.Dims = int64(st.size), []int{st.size}
		case "Encode":
			p.form = program.Form{Kind: program.Encoded, MIME: "application/octet-stream"}
		default:
			return nil, wrong("", "no such operator; want Decode, Reverse, RandomBytes, RandomRepeat, Crop or Encode")
		}
		p.steps = append(p.steps, st)
	}
	return p, nil
}

// Result implements program.Program.
func (p *prog) Result() program.Form { return p.form }

// Steps implements program.Program.
func (p *prog) Steps() []program.Step {
	out := make([]program.Step, len(p.steps))
	for i, s := range p.steps {
		params := "{}"
		if s.size > 0 {
			params = fmt.Sprintf(`{"size":%d}`, s.size)
		}
		out[i] = program.Step{Name: s.name, Params: json.RawMessage(params)}
	}
	return out
}

// Deterministic implements program.Program.
func (p *prog) Deterministic() int {
	// Everything before the first random step is equal in each epoch, and can be cached.
	if i := slices.IndexFunc(p.steps, func(s step) bool { return s.random }); i >= 0 {
		return i
	}
	return len(p.steps)
}

// Cost implements program.Program. Working memory is twice the result, because a step
// reads one buffer and writes another one.
func (p *prog) Cost(cell []byte, limits program.Limits) (program.Cost, error) {
	if bytes.HasPrefix(cell, []byte("bomb")) {
		return program.Cost{}, fmt.Errorf("%w: 2^40 bytes, at most %d are allowed", program.ErrTooLarge, limits.Bytes)
	}
	n := p.most * int64(len(cell))
	if p.fixed > 0 {
		n = p.most * max(p.fixed, int64(len(cell)))
	}
	return program.Cost{Working: program.Count(2 * n), Result: program.Count(n)}, nil
}

// Run implements program.Program. Each step has a source of its own, so that the draws of
// a step do not depend on the others.
func (p *prog) Run(ctx context.Context, cell []byte, by program.Draws,
	alloc func(int) []byte) (program.Outcome, error) {
	var o program.Outcome
	b := bytes.Clone(cell)
	for i, s := range p.steps {
		source := by.Source(i)
		switch s.name {
		case "Decode":
			switch {
			case bytes.HasPrefix(cell, []byte("bad")):
				return o, fmt.Errorf("%w: it begins with bad", program.ErrDamaged)
			case bytes.HasPrefix(cell, []byte("panic")):
				panic("as the cell wants")
			}
		case "Reverse":
			slices.Reverse(b)
		case "RandomBytes":
			first := source.IntN(256)
			o.Drawn = append(o.Drawn, program.Drawn{Step: i,
				Values: []program.Value{{Name: "first", Number: float64(first)}}})
			for k := range b {
				b[k] ^= byte(first)
				first = source.IntN(256)
			}
		case "RandomRepeat":
			times := 1 + source.IntN(4)
			o.Drawn = append(o.Drawn, program.Drawn{Step: i,
				Values: []program.Value{{Name: "times", Number: float64(times)}}})
			b = bytes.Repeat(b, times)
		case "Crop":
			b = append(b, make([]byte, max(s.size-len(b), 0))...)[:s.size]
		}
	}
	copy(alloc(len(b)), b)
	if p.form.Kind != program.Encoded {
		o.Dims = []int{len(b)}
	}
	return o, nil
}
