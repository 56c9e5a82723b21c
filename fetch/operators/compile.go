package operators

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
	"bowstring/schema"
)

// Contract is the version of the rules that results keep to, byte by byte. Where a release
// changes a byte of any result, it has another one.
const Contract = 1

// Compile checks a list of steps and makes a program of it. Its errors are of type
// [program.StepError].
type Compile func(steps []program.Step) (program.Program, error)

// Kinds has what compiles the steps of each kind of samples, by the name that requests and
// the media of columns have for it.
type Kinds map[string]Compile

// Set is the compiled operators of a request. It is immutable and safe for concurrent use.
type Set struct {
	columns   map[string]*Column
	canonical schema.Operators
}

// Column is the compiled operators of one column. It is immutable and safe for concurrent use.
type Column struct {
	Name    string
	Program program.Program
	Form    *schema.MadeForm

	draws string // whose numbers are drawn
	steps []program.Step
	whole bool     // nothing is drawn
	id    [32]byte // of the canonical steps, kind and contract
}

// CompileSet compiles what a request wants, for a snapshot of that schema. Errors wrap
// schema.ErrInvalid and name the place.
func CompileSet(kinds Kinds, snapshot *arrow.Schema, within *schema.Restriction, wanted schema.Operators) (*Set, error) {
	set := &Set{columns: map[string]*Column{}, canonical: schema.Operators{}}
	blobs := slices.DeleteFunc(schema.BlobFields(snapshot), func(f arrow.Field) bool { return within.Hides(snapshot, f.Name) })
	for _, name := range wanted.Columns() {
		i := slices.IndexFunc(blobs, func(f arrow.Field) bool { return f.Name == name })
		if i < 0 {
			return nil, noColumn(name, blobs)
		}
		c, kind, err := compileColumn(kinds, blobs[i], wanted[name])
		if err != nil {
			return nil, err
		}
		set.columns[name] = c
		set.canonical[name] = schema.Pipeline{Kind: kind, Follows: wanted[name].Follows, Steps: stepsOf(c.steps)}
	}
	for _, name := range wanted.Columns() {
		if err := checkFollows(name, wanted); err != nil {
			return nil, err
		}
	}
	return set, nil
}

func noColumn(name string, blobs []arrow.Field) error {
	names := make([]string, len(blobs))
	for i, f := range blobs {
		names[i] = f.Name
	}
	want := "a column of blobs, of which there are none"
	if len(names) > 0 {
		want = "one of the columns of blobs: " + strings.Join(names, ", ")
	}
	if n := schema.Nearest(name, names); n != "" {
		want += fmt.Sprintf(" (did you mean %q?)", n)
	}
	return &schema.FieldError{Field: "operators", Got: schema.Quote(name), Want: want}
}

func compileColumn(kinds Kinds, field arrow.Field, p schema.Pipeline) (*Column, string, error) {
	at := "operators." + field.Name
	kind := p.Kind
	if kind == "" {
		kind = schema.Media(field)
	}
	known := slices.Sorted(maps.Keys(kinds))
	compile := kinds[kind]
	switch quoted := strings.Join(known, ", "); {
	case kind == "":
		return nil, "", &schema.FieldError{Field: at + ".kind", Got: "nothing, and the column does not say what it holds", Want: "one of " + quoted}
	case compile == nil && p.Kind == "":
		return nil, "", &schema.FieldError{Field: at, Got: fmt.Sprintf("a column of media %q", kind), Want: "media, or a kind, that is one of " + quoted}
	case compile == nil:
		return nil, "", &schema.FieldError{Field: at + ".kind", Got: schema.Quote(kind), Want: "one of " + quoted}
	}
	steps := make([]program.Step, len(p.Steps))
	for i, s := range p.Steps {
		steps[i] = program.Step{Name: s.Name, Params: s.Params}
	}
	prog, err := compile(steps)
	if err != nil {
		return nil, "", placed(stepsAt(at, p), err)
	}
	form := formOf(prog.Result())
	if err := form.Check(); err != nil {
		return nil, "", fmt.Errorf("%s: %w", at, err)
	}
	c := &Column{Name: field.Name, Program: prog, Form: form, draws: field.Name, steps: prog.Steps()}
	if p.Follows != "" {
		c.draws = p.Follows
	}
	c.whole = prog.Deterministic() == len(c.steps)
	named, err := json.Marshal(schema.Pipeline{Kind: kind, Steps: stepsOf(c.steps)})
	if err != nil {
		return nil, "", fmt.Errorf("%s: the canonical steps: %w", at, err)
	}
	c.id = sha256.Sum256(fmt.Appendf(nil, "bowstring operators %d\x00%s", Contract, named))
	return c, kind, nil
}

func stepsOf(steps []program.Step) []schema.Step {
	out := make([]schema.Step, len(steps))
	for i, s := range steps {
		out[i] = schema.Step{Name: s.Name, Params: s.Params}
	}
	return out
}

// stepsAt is where the steps stand in the request.
func stepsAt(at string, p schema.Pipeline) string {
	if p.Kind == "" && p.Follows == "" {
		return at
	}
	return at + ".steps"
}

// placed says where in the request a step is wrong.
func placed(at string, err error) error {
	wrong, ok := errors.AsType[*program.StepError](err)
	if !ok {
		return fmt.Errorf("%w: %s: %w", schema.ErrInvalid, at, err)
	}
	at += "[" + strconv.Itoa(wrong.Step) + "]"
	for _, part := range []string{wrong.Name, wrong.Param} {
		if part != "" {
			at += "." + part
		}
	}
	return fmt.Errorf("%w: %s: %s", schema.ErrInvalid, at, wrong.Reason)
}

// checkFollows fails if a step of a column that follows another cannot draw what is drawn there: numbers
// go by a step's index.
func checkFollows(name string, wanted schema.Operators) error {
	p := wanted[name]
	if p.Follows == "" {
		return nil
	}
	led := wanted[p.Follows].Steps
	for i, s := range p.Steps {
		if !strings.HasPrefix(s.Name, "Random") || i < len(led) && led[i].Name == s.Name {
			continue
		}
		want := fmt.Sprintf("a step that draws nothing, as %s has no %s", p.Follows, s.Name)
		if at := slices.IndexFunc(led, func(l schema.Step) bool { return l.Name == s.Name }); at >= 0 {
			want = fmt.Sprintf("it to be step %d, as in %s: steps of the same index draw the same numbers", at, p.Follows)
		}
		return &schema.FieldError{Field: fmt.Sprintf("operators.%s.steps[%d]", name, i), Got: s.Name, Want: want}
	}
	return nil
}

// formOf is a program's result in the words of schemas.
func formOf(f program.Form) *schema.MadeForm {
	form := &schema.MadeForm{
		Kind:  map[program.Kind]string{program.Encoded: "encoded", program.Image: "image", program.Audio: "audio", program.Spectrogram: "spectrogram"}[f.Kind],
		DType: map[program.DType]string{program.Uint8: "uint8", program.Uint16: "uint16", program.Float16: "float16", program.Float32: "float32"}[f.Type],
		Axes:  f.Axes, Rate: f.Rate, MIME: f.MIME, Contract: Contract,
	}
	if f.Kind == program.Encoded {
		form.DType, form.Axes = "", ""
		return form
	}
	for _, d := range f.Dims {
		if d == program.Unknown {
			form.Shape = append(form.Shape, nil)
		} else {
			form.Shape = append(form.Shape, &d)
		}
	}
	return form
}

// Column returns the operators of a column; nil if it has none. A nil Set has none for any.
func (s *Set) Column(name string) *Column {
	if s == nil {
		return nil
	}
	return s.columns[name]
}

// Forms are what columns become, by name.
func (s *Set) Forms() map[string]*schema.MadeForm {
	if s == nil {
		return nil
	}
	forms := make(map[string]*schema.MadeForm, len(s.columns))
	for name, c := range s.columns {
		forms[name] = c.Form
	}
	return forms
}

// Canonical is the request that the set was compiled of with every parameter filled in: it
// means the same to a later release, whose defaults may be others.
func (s *Set) Canonical() schema.Operators { return s.canonical }

// Draws says where the numbers of a sample's cell come from.
func (c *Column) Draws(key draw.Key) program.Draws { return program.Draws{Key: key, Column: c.draws} }

// Named says what a step is called; "" if there is none of that index.
func (c *Column) Named(step int) string {
	if step < 0 || step >= len(c.steps) {
		return ""
	}
	return c.steps[step].Name
}
