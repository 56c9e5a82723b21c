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

// Kind is one kind of samples, with the compilation of its operators.
type Kind struct {
	// Contract names the rules that results follow, byte by byte. A release that changes
	// a byte of any result has another contract. Each request calls it; it fails with
	// program.ErrUnavailable if the contract cannot be determined at the moment. Once
	// known, it stays the same.
	Contract func() (string, error)
	// Operators are the names of all operators.
	Operators []string
	// Compile checks a list of steps and makes a program of it. Errors are
	// [program.StepError].
	Compile func(steps []program.Step) (program.Program, error)
	// Follow makes the program for data that accompanies samples, such as the masks of
	// images, from the list of the samples; nil if the kind has no such data.
	Follow func(steps []program.Step) (program.Program, error)
}

// Always is a contract that is known in advance.
func Always(contract string) func() (string, error) {
	return func() (string, error) { return contract, nil }
}

// Kinds are the kinds of samples, by their names in requests and in the media of columns.
type Kinds map[string]Kind

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

	kind  string
	draws string // column whose random numbers are used
	steps []program.Step
	whole bool     // no step is random
	id    [32]byte // hash of the canonical steps, the kind and the contract
	// prefix is the steps before the first random one; nil if they cannot run on their
	// own.
	prefix *prefix
}

// CompileSet compiles the operators of a request for a snapshot with that schema. Errors
// wrap schema.ErrInvalid and name the place in the request.
func CompileSet(kinds Kinds, snapshot *arrow.Schema, within *schema.Restriction,
	wanted schema.Operators) (*Set, error) {
	set := &Set{columns: map[string]*Column{}, canonical: schema.Operators{}}
	blobs := slices.DeleteFunc(schema.BlobFields(snapshot), func(f arrow.Field) bool {
		return within.Hides(snapshot, f.Name)
	})
	for _, name := range wanted.Computed() {
		set.canonical[name] = wanted[name] // compiled by the package that reads metadata
	}
	for _, name := range wanted.Columns() {
		i := slices.IndexFunc(blobs, func(f arrow.Field) bool { return f.Name == name })
		if i < 0 {
			return nil, noColumn(name, blobs)
		}
		c, err := compileColumn(kinds, blobs, blobs[i], wanted)
		if err != nil {
			return nil, err
		}
		set.columns[name] = c
		p := schema.Pipeline{Kind: c.kind, Contract: c.Form.Contract, Follows: wanted[name].Follows}
		if p.Follows == "" {
			p.Steps = stepsOf(c.steps)
		}
		set.canonical[name] = p
	}
	return set, nil
}

// Together is a set for the columns of several sets, with that canonical form. If several
// sets have a column, the first one's is used.
func Together(sets []*Set, canonical schema.Operators) *Set {
	all := &Set{columns: map[string]*Column{}, canonical: canonical}
	for _, s := range slices.Backward(sets) {
		maps.Copy(all.columns, s.columns)
	}
	return all
}

// noColumn is the error of a name that is not a column of blobs.
func noColumn(name string, blobs []arrow.Field) error {
	names := make([]string, len(blobs))
	for i, f := range blobs {
		names[i] = f.Name
	}
	want := "a column of blobs, of which there are none"
	if len(names) > 0 {
		want = "one of the columns of blobs: " + schema.ShownList(names)
	}
	if n := schema.Nearest(name, names); n != "" {
		want += fmt.Sprintf(" (did you mean %q?)", n)
	}
	return &schema.FieldError{Field: "operators", Got: schema.Quote(name), Want: want}
}

// kindOf returns the kind of a column's cells, and its contract, which must be that of
// the request if the request names one.
func kindOf(kinds Kinds, field arrow.Field, p schema.Pipeline) (name string, kind Kind, contract string, err error) {
	at := "operators." + schema.Shown(field.Name)
	if name = p.Kind; name == "" {
		name = schema.Media(field)
	}
	known := strings.Join(slices.Sorted(maps.Keys(kinds)), ", ")
	kind, ok := kinds[name]
	switch {
	case len(kinds) == 0:
		err = &schema.FieldError{Field: "operators", Got: "some", Want: "none, as this server has no operators"}
	case name == "":
		err = &schema.FieldError{Field: at + ".kind", Got: "nothing, and the column does not say what it holds",
			Want: "one of " + known}
	case !ok && p.Kind == "":
		err = &schema.FieldError{Field: at, Got: fmt.Sprintf("a column of media %q", name),
			Want: "media, or a kind, that is one of " + known}
	case !ok:
		err = &schema.FieldError{Field: at + ".kind", Got: schema.Quote(name), Want: "one of " + known}
	}
	if err != nil {
		return name, kind, "", err
	}
	if contract, err = kind.Contract(); errors.Is(err, program.ErrUnavailable) {
		err = fmt.Errorf("%s: %w: %w", at, schema.ErrUnavailable, err)
	} else if err == nil && p.Contract != "" && p.Contract != contract {
		err = &schema.FieldError{Field: at + ".contract", Got: schema.Quote(p.Contract),
			Want: strconv.Quote(contract) + ", the version of what runs here: others make other bytes"}
	}
	return name, kind, contract, err
}

// compileColumn compiles the steps of a column, or of the column that it follows.
func compileColumn(kinds Kinds, blobs []arrow.Field, field arrow.Field, wanted schema.Operators) (*Column, error) {
	p, at := wanted[field.Name], "operators."+schema.Shown(field.Name)
	name, kind, contract, err := kindOf(kinds, field, p)
	if err != nil {
		return nil, err
	}
	compile, list, draws := kind.Compile, p, field.Name
	if p.Follows != "" {
		led := slices.IndexFunc(blobs, func(f arrow.Field) bool { return f.Name == p.Follows })
		if led < 0 {
			return nil, noColumn(p.Follows, blobs)
		}
		ledName, _, _, err := kindOf(kinds, blobs[led], wanted[p.Follows])
		if err != nil {
			return nil, err
		}
		if kind.Follow == nil || ledName != name {
			return nil, &schema.FieldError{Field: at + ".follows",
				Got:  fmt.Sprintf("%s of kind %s, for what is of kind %s", schema.Shown(p.Follows), ledName, name),
				Want: "images that follow images"}
		}
		compile, list, draws, at = kind.Follow, wanted[p.Follows], p.Follows, "operators."+schema.Shown(p.Follows)
	}
	steps := make([]program.Step, len(list.Steps))
	for i, s := range list.Steps {
		steps[i] = program.Step{Name: s.Name, Params: s.Params}
	}
	prog, err := compile(steps)
	if err != nil {
		return nil, placed(list.StepsAt(at), err, kind.Operators)
	}
	form := formOf(prog.Result(), contract)
	if err := form.Check(); err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	c := &Column{Name: field.Name, Program: prog, Form: form, kind: name, draws: draws, steps: prog.Steps()}
	c.whole = prog.Deterministic() >= len(c.steps)
	if c.id, err = c.identify("operators", c.steps, p.Follows != ""); err != nil {
		return nil, fmt.Errorf("%s: the canonical steps: %w", at, err)
	}
	if splits, ok := prog.(program.Splitter); ok {
		if head, tail, ok := splits.Split(); ok {
			c.prefix = &prefix{head: head, tail: tail}
			if c.prefix.id, err = c.identify("prefix", head.Steps(), p.Follows != ""); err != nil {
				return nil, fmt.Errorf("%s: the canonical steps: %w", at, err)
			}
		}
	}
	return c, nil
}

// identify is the hash of everything that determines the result of some steps: the steps,
// the kind of samples and its contract.
func (c *Column) identify(what string, steps []program.Step, follows bool) ([32]byte, error) {
	named, err := json.Marshal(stepsOf(steps))
	return sha256.Sum256(fmt.Appendf(nil, "bowstring %s\x00%s\x00%s\x00%t\x00%s", what, c.kind, c.Form.Contract,
		follows, named)), err
}

// stepsOf converts steps for the schema package.
func stepsOf(steps []program.Step) []schema.Step {
	out := make([]schema.Step, len(steps))
	for i, s := range steps {
		out[i] = schema.Step{Name: s.Name, Params: s.Params}
	}
	return out
}

// placed adds the place in the request to the error of a step.
func placed(at string, err error, operators []string) error {
	wrong, ok := errors.AsType[*program.StepError](err)
	if !ok {
		return fmt.Errorf("%w: %s: %w", schema.ErrInvalid, at, err)
	}
	at += "[" + strconv.Itoa(wrong.Step) + "]"
	for _, part := range []string{wrong.Name, wrong.Param} {
		if part != "" {
			at += "." + schema.Shown(part)
		}
	}
	hint := ""
	if n := schema.Nearest(wrong.Name, operators); n != "" && !slices.Contains(operators, wrong.Name) {
		hint = fmt.Sprintf(" (did you mean %q?)", n)
	}
	return fmt.Errorf("%w: %s: %s%s", schema.ErrInvalid, at, wrong.Reason, hint)
}

// dtypes are the names of element types in schemas.
var dtypes = map[program.DType]string{
	program.Uint8: "uint8", program.Uint16: "uint16", program.Int16: "int16", program.Float16: "float16",
	program.Float32: "float32",
}

// formOf is the form of a program's result in terms of schemas.
func formOf(f program.Form, contract string) *schema.MadeForm {
	form := &schema.MadeForm{
		Kind: map[program.Kind]string{program.Encoded: "encoded", program.Image: "image", program.Audio: "audio",
			program.Spectrogram: "spectrogram"}[f.Kind],
		DType: dtypes[f.Type],
		Axes:  f.Axes, Rate: f.Rate, MIME: f.MIME, Contract: contract,
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

// Column returns the operators of a column; nil if it has none. A nil Set has none.
func (s *Set) Column(name string) *Column {
	if s == nil {
		return nil
	}
	return s.columns[name]
}

// Forms are the forms of results, by column.
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

// Canonical is the request of the set with every parameter filled in. It means the same
// to a later release, whose defaults may differ.
func (s *Set) Canonical() schema.Operators { return s.canonical }

// Draws is the source of random numbers for a sample's cell.
func (c *Column) Draws(key draw.Key) program.Draws { return program.Draws{Key: key, Column: c.draws} }

// Named is the name of a step; "" if there is no step of that index.
func (c *Column) Named(step int) string {
	if step < 0 || step >= len(c.steps) {
		return ""
	}
	return c.steps[step].Name
}
