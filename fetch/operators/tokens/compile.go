// Package tokens makes columns of lists of tokens out of others: joined, shifted, cut and padded. It needs a row's
// metadata alone, and is a pure function of it.
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

// Contract is the version of what the steps mean. It changes whenever a value of a column does.
const Contract = "tokens/1"

const (
	// MaxLength bounds the tokens of a list of fixed length, and those of all pieces of fixed length together.
	MaxLength = 1 << 20
	// MaxPieces bounds the pieces of a fixed number.
	MaxPieces = 4096
	// MaxCell bounds the tokens of a cell, before and after its steps.
	MaxCell = 1 << 21
)

// Maker makes a column by the steps of a request. It is immutable and safe for concurrent use.
type Maker struct {
	field   arrow.Field
	columns []string
	concat  *concat // nil: there is one column, and nothing is added
	steps   []placed
	listed  []schema.Step
	form    form
	of      arrow.DataType // of the tokens that are read
	place   string         // in the request
	fails   bool           // a row that cannot be made ends the making
}

// placed is a step, and where in the request it stands.
type placed struct {
	step
	at string
}

// form is what is known of all cells.
type form struct {
	dtype  arrow.DataType // of a token
	cut    bool           // a cell is a list of pieces
	pieces int64          // of a cell; 0: each has as many as it has
	most   int64          // tokens that a piece has at most; 0: any number
	length int64          // tokens that each piece has; 0: as many as it has
	last   stage
}

// stage is how far a list of steps has come: a step is of the same stage as the one before, or of a later one.
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
	// next checks the parameters, and says what cells are after the step.
	next(form) (form, error)
	// run changes a cell.
	run(*cell) error
}

// steps make the steps that there are, with the defaults of their parameters.
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

// Compile checks a pipeline of tokens against a logical schema and compiles it to what makes the column of that name. at is
// where in the request it stands, onError the request's. Errors wrap schema.ErrInvalid.
func Compile(name, at string, p schema.Pipeline, s *arrow.Schema, onError string) (*Maker, error) {
	m := &Maker{columns: p.Tokens, place: at, fails: onError != schema.OnErrorNull && onError != schema.OnErrorSkip}
	nullable, err := m.find(s)
	if err != nil {
		return nil, err
	}
	m.form.dtype = m.of
	for i, s := range p.Steps {
		if err := m.add(i, s); err != nil {
			return nil, err
		}
	}
	if m.concat == nil && len(m.columns) > 1 {
		return nil, &schema.FieldError{Field: at + ".steps[0]", Got: schema.Quote(p.Steps[0].Name),
			Want: fmt.Sprintf("Concat, as there are %d columns", len(m.columns))}
	}
	m.field = arrow.Field{Name: name, Type: m.form.list(), Nullable: nullable || onError == schema.OnErrorNull}
	return m, nil
}

// find finds the columns that are read.
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

// add checks step i.
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

// locate says where in a request an error of a step belongs.
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

// parse fills in what a request says of a step's parameters.
func parse(raw json.RawMessage, into step) error {
	if len(raw) == 0 {
		return nil
	}
	var given map[string]json.RawMessage
	known, err := json.Marshal(into)
	if err == nil {
		err = json.Unmarshal(raw, &given)
	}
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

// range64 are the least and the largest token of a type.
func range64(dtype arrow.DataType) (lo, hi int64) {
	bits := dtype.(arrow.FixedWidthDataType).BitWidth()
	if arrow.IsSignedInteger(dtype.ID()) {
		return -1 << (bits - 1), 1<<(bits-1) - 1
	}
	return 0, 1<<bits - 1
}

// checkToken fails if a token that is given, which may be left out, does not fit the type.
func (f form) checkToken(name string, token *int64) error {
	lo, hi := range64(f.dtype)
	if token == nil || *token >= lo && *token <= hi {
		return nil
	}
	return &schema.FieldError{Field: name, Got: strconv.FormatInt(*token, 10), Want: fmt.Sprintf(
		"an integer from %d to %d, as tokens are %s here; ToDtype before it makes others of them", lo, hi, f.dtype)}
}

// after says that a step of a stage has come.
func (f form) after(s stage, name, order string) (form, error) {
	if f.last > s || f.last == s && s != shifted {
		return f, &schema.FieldError{Got: name + " here", Want: "this order: " + order}
	}
	f.last = s
	return f, nil
}

const stepOrder = "Concat, Shift, Split, Pad, Mask, each but Shift once, and ToDtype anywhere behind Concat"

// list is the type of the column.
func (f form) list() arrow.DataType {
	list := func(n int64, of arrow.DataType) arrow.DataType {
		if n > 0 {
			return arrow.FixedSizeListOfNonNullable(int32(n), of)
		}
		return arrow.ListOfNonNullable(of)
	}
	piece := list(f.length, f.dtype)
	if !f.cut {
		return piece
	}
	return list(f.pieces, piece)
}

// Steps are those of the request with every parameter filled in.
func (m *Maker) Steps() []schema.Step { return m.listed }

// Field is the column's.
func (m *Maker) Field() arrow.Field { return m.field }

// Bytes bounds what the maker itself takes in memory.
func (m *Maker) Bytes() int64 { return 256 * int64(1+len(m.steps)+len(m.columns)) }

// width is how many bytes a token has.
func width(dtype arrow.DataType) int64 { return int64(dtype.(arrow.FixedWidthDataType).BitWidth() / 8) }

// RowBytes bounds the mean bytes of a row of the column, given the mean bytes of its metadata.
func (m *Maker) RowBytes(metadata int64) int64 {
	const offset = 4
	tokens := int64(len(m.columns)) * (metadata/width(m.of) + 2)
	n := offset*(2+m.form.pieces) + m.bound(tokens)*width(m.form.dtype)
	if m.form.cut && m.form.pieces == 0 {
		n += offset * (tokens/m.form.most + 1)
	}
	return n
}

// bound bounds the tokens of a cell that is made of n.
func (m *Maker) bound(n int64) int64 {
	f := &m.form
	if f.length > 0 && (!f.cut || f.pieces > 0) {
		return f.length * max(f.pieces, 1)
	}
	for _, s := range m.steps {
		p, ok := s.step.(*pad)
		switch {
		case ok && f.cut && f.pieces == 0: // each piece, except the last, to less than twice its tokens
			n += n + p.adds()
		case ok:
			n += p.adds() * max(f.pieces, 1)
		}
	}
	return n
}
