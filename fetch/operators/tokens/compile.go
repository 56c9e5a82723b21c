// Package tokens makes columns of token lists from other such columns: joined, shifted,
// cut and padded. It is a pure function of a row's metadata. Steps are checked in
// compile.go, defined in steps.go, and applied to batches in make.go.
package tokens

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// Contract is the version of the meaning of the steps. It changes whenever any value of a
// column changes.
const Contract = "tokens/1"

// Limits of requests and rows.
const (
	// MaxLength bounds the tokens of a list of fixed length, and those of all pieces of
	// fixed length in a cell.
	MaxLength = 1 << 20
	// MaxPieces bounds a fixed number of pieces.
	MaxPieces = 4096
	// MaxCell bounds the tokens of a cell, before and after its steps.
	MaxCell = 1 << 21
)

// Maker makes a column by the steps of a request. It is immutable and safe for concurrent
// use.
type Maker struct {
	field   arrow.Field
	columns []string
	concat  *concat // nil: there is one column, and no tokens are added
	steps   []placed
	listed  []schema.Step // with all parameters
	form    form
	of      arrow.DataType // type of the tokens that are read
	place   string         // path of the pipeline in the request
	fails   bool           // the first row that fails ends Make
}

// placed is a step with its path in the request.
type placed struct {
	step
	at string
}

// form is what is known of all cells.
type form struct {
	dtype  arrow.DataType // type of a token
	cut    bool           // a cell is a list of pieces
	pieces int64          // of each cell; 0 if it varies
	most   int64          // maximum of tokens in a piece; 0: unlimited
	length int64          // tokens in each piece; 0 if it varies
	last   stage
}

// stage is a position in the order of steps: each step has the stage of the one before,
// or a later one. A fixed order keeps the meaning of padding and masks unambiguous.
type stage int

const (
	begun stage = iota
	shifted
	split
	filled
	masked
)

// step is an operator that was checked.
type step interface {
	// next checks the parameters, and returns the form of cells after the step.
	next(form) (form, error)
	// run changes a cell in place.
	run(*cell) error
}

// steps returns each operator with its default parameters.
var steps = map[string]func() step{
	"Concat":  func() step { return &concat{} },
	"Shift":   func() step { return &shift{} },
	"Split":   func() step { return &cut{Long: tooLong} },
	"Pad":     func() step { return &pad{Side: right, Long: tooLong} },
	"Mask":    func() step { return &mask{} },
	"ToDtype": func() step { return &toDtype{} },
}

// Names are the operators on lists of tokens, sorted.
func Names() []string { return slices.Sorted(maps.Keys(steps)) }

// Compile checks a pipeline of tokens against a logical schema and compiles it to the
// maker of the column of that name. at is its path in the request, onError the request's
// policy. Errors wrap schema.ErrInvalid.
func Compile(name, at string, p schema.Pipeline, s *arrow.Schema, onError string) (*Maker, error) {
	m := &Maker{columns: p.Tokens, place: at, fails: onError != schema.OnErrorNull && onError != schema.OnErrorSkip}
	nullable, err := m.find(s)
	if err != nil {
		return nil, err
	}
	// The source columns' type is the first form; each step changes it.
	m.form.dtype = m.of
	for i, s := range p.Steps {
		if err := m.add(i, s); err != nil {
			return nil, err
		}
	}
	// Several columns need a rule to join them.
	if m.concat == nil && len(m.columns) > 1 {
		return nil, &schema.FieldError{Field: at + ".steps[0]", Got: schema.Quote(p.Steps[0].Name),
			Want: fmt.Sprintf("Concat, as there are %d columns", len(m.columns))}
	}
	m.field = arrow.Field{Name: name, Type: m.form.list(), Nullable: nullable || onError == schema.OnErrorNull}
	return m, nil
}

// find resolves the source columns, which must have one type. Tokens are int64
// internally, so uint64 is refused.
func (m *Maker) find(s *arrow.Schema) (nullable bool, err error) {
	var have []string
	for _, f := range s.Fields() {
		if list, ok := schema.TokenList(f.Type); ok && list.Elem().ID() != arrow.UINT64 {
			have = append(have, f.Name)
		}
	}
	for i, name := range m.columns {
		at := fmt.Sprintf("%s.tokens[%d]", m.place, i)
		if !slices.Contains(have, name) {
			want := "a column of lists of integers, not of uint64: " + schema.ShownList(have)
			if n := schema.Nearest(name, have); n != "" {
				want += fmt.Sprintf(" (did you mean %q?)", n)
			}
			return false, &schema.FieldError{Field: at, Got: schema.Quote(name), Want: want}
		}
		f := s.Field(s.FieldIndices(name)[0])
		list, _ := schema.TokenList(f.Type)
		if m.of == nil {
			m.of = list.Elem()
		}
		if !arrow.TypeEqual(m.of, list.Elem()) {
			return false, &schema.FieldError{Field: at, Got: schema.Quote(name) + " of " + list.Elem().String(),
				Want: fmt.Sprintf("lists of %s, as of %s", m.of, schema.Quote(m.columns[0]))}
		}
		nullable = nullable || f.Nullable
	}
	return nullable, nil
}

// add checks step i and appends it.
func (m *Maker) add(i int, s schema.Step) error {
	at := fmt.Sprintf("%s.steps[%d].%s", m.place, i, schema.Shown(s.Name))
	made, ok := steps[s.Name]
	if !ok {
		want := "one of " + schema.ShownList(Names())
		if n := schema.Nearest(s.Name, Names()); n != "" {
			want += fmt.Sprintf(" (did you mean %q?)", n)
		}
		return &schema.FieldError{Field: fmt.Sprintf("%s.steps[%d]", m.place, i), Got: schema.Quote(s.Name), Want: want}
	}
	one := made()
	err := parse(s.Params, one)
	if err == nil {
		m.form, err = one.next(m.form)
	}
	if err != nil {
		return locate(at, err)
	}
	// The listed parameters include the defaults, so they are canonical.
	params, err := json.Marshal(one)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	m.listed = append(m.listed, schema.Step{Name: s.Name, Params: params})
	if c, ok := one.(*concat); ok {
		if i > 0 {
			return &schema.FieldError{Field: at, Got: "it behind another step", Want: "it first, as it joins the columns"}
		}
		m.concat = c
		return nil
	}
	m.steps = append(m.steps, placed{one, at})
	return nil
}

// locate adds the path of a step to its error.
func locate(at string, err error) error {
	f, ok := errors.AsType[*schema.FieldError](err)
	if !ok {
		return fmt.Errorf("%w: %s: %w", schema.ErrInvalid, at, err)
	}
	there := *f
	there.Field = at
	if f.Field != "" {
		there.Field += "." + f.Field
	}
	return &there
}

// parse fills in the parameters of a step from a request. Unknown parameters are errors.
func parse(raw json.RawMessage, into step) error {
	if len(raw) == 0 {
		return nil
	}
	var given map[string]json.RawMessage
	known, err := json.Marshal(into)
	if err == nil {
		err = json.Unmarshal(raw, &given)
	}
	// The parameters of a step are the JSON fields of its type.
	var takes map[string]json.RawMessage
	if err == nil {
		err = json.Unmarshal(known, &takes)
	}
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(takes))
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if _, ok := takes[name]; !ok {
			want := "no parameters"
			if len(names) > 0 {
				want = "one of " + schema.ShownList(names)
			}
			return &schema.FieldError{Field: schema.Shown(name), Got: "a parameter that there is not", Want: want}
		}
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if err := d.Decode(into); err != nil {
		if mistyped, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return &schema.FieldError{Field: mistyped.Field, Got: "a " + mistyped.Value, Want: "a " + mistyped.Type.String()}
		}
		return err
	}
	return nil
}

// check fails if a parameter is out of range.
func check(name string, v, lo, hi int64) error {
	if v < lo || v > hi {
		return &schema.FieldError{Field: name, Got: strconv.FormatInt(v, 10), Want: fmt.Sprintf("an integer from %d to %d", lo, hi)}
	}
	return nil
}

// range64 is the least and the largest token of a type.
func range64(dtype arrow.DataType) (lo, hi int64) {
	bits := dtype.(arrow.FixedWidthDataType).BitWidth()
	if arrow.IsSignedInteger(dtype.ID()) {
		return -1 << (bits - 1), 1<<(bits-1) - 1
	}
	return 0, 1<<bits - 1
}

// checkToken fails if a token parameter, which may be nil, does not fit the type.
func (f form) checkToken(name string, token *int64) error {
	lo, hi := range64(f.dtype)
	if token == nil || *token >= lo && *token <= hi {
		return nil
	}
	return &schema.FieldError{Field: name, Got: strconv.FormatInt(*token, 10), Want: fmt.Sprintf(
		"an integer from %d to %d, as tokens are %s here; ToDtype before it makes others of them", lo, hi, f.dtype)}
}

// after is the form after a step of a stage. It fails if the stage has passed, or has had
// its step, except that Shift may be repeated.
func (f form) after(s stage, name, order string) (form, error) {
	if f.last > s || f.last == s && s != shifted {
		return f, &schema.FieldError{Got: name + " here", Want: "this order: " + order}
	}
	f.last = s
	return f, nil
}

// stepOrder describes the required order of steps for errors.
const stepOrder = "Concat, Shift, Split, Pad, Mask, each but Shift once, and ToDtype anywhere behind Concat"

// list is the type of the column.
func (f form) list() arrow.DataType {
	list := func(n int64, of arrow.DataType) arrow.DataType {
		if n > 0 {
			return arrow.FixedSizeListOfNonNullable(int32(n), of)
		}
		return arrow.ListOfNonNullable(of)
	}
	// A piece, or the whole cell if it is not cut.
	piece := list(f.length, f.dtype)
	if !f.cut {
		return piece
	}
	return list(f.pieces, piece)
}

// Steps are the steps of the request with every parameter filled in.
func (m *Maker) Steps() []schema.Step { return m.listed }

// Field is the field of the column.
func (m *Maker) Field() arrow.Field { return m.field }

// Bytes bounds the memory of the maker itself.
func (m *Maker) Bytes() int64 { return 256 * int64(1+len(m.steps)+len(m.columns)) }

// width is the size of a token in bytes.
func width(dtype arrow.DataType) int64 { return int64(dtype.(arrow.FixedWidthDataType).BitWidth() / 8) }

// RowBytes bounds the mean size of a row of the column in bytes, from the mean size of
// its metadata.
func (m *Maker) RowBytes(metadata int64) int64 {
	const offset = 4
	tokens := int64(len(m.columns)) * (metadata/width(m.of) + 2)
	n := offset*(2+m.form.pieces) + m.bound(tokens)*width(m.form.dtype)
	if m.form.cut && m.form.pieces == 0 {
		n += offset * (tokens/m.form.most + 1)
	}
	return n
}

// bound bounds the tokens of a cell that is made of n tokens.
func (m *Maker) bound(n int64) int64 {
	f := &m.form
	if f.length > 0 && (!f.cut || f.pieces > 0) {
		return f.length * max(f.pieces, 1)
	}
	for _, s := range m.steps {
		p, ok := s.step.(*pad)
		switch {
		// Padding adds tokens.
		case ok && f.cut && f.pieces == 0: // each piece, except the last, grows to less than twice its tokens
			n += n + p.adds()
		case ok:
			n += p.adds() * max(f.pieces, 1)
		}
	}
	return n
}
