package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Limits of operators. Every ticket repeats the operators, also those in batches.
const (
	// MaxOperatorsBytes bounds the JSON of Request.Operators.
	MaxOperatorsBytes = 16 << 10
	// MaxOperatorColumns bounds the columns that have operators.
	MaxOperatorColumns = 64
	// MaxSteps bounds the steps of one column.
	MaxSteps = 64
	// MaxTokenColumns bounds the token columns of a request, and the source columns of
	// each.
	MaxTokenColumns = 16
)

// Places where operators run: values of Request.Place. The place changes the cost of a
// step, and never its result.
const (
	PlaceServer = "server"
	PlaceClient = "client" // blobs are served unchanged
	PlaceAuto   = "auto"   // a client decides, and sends one of the others
)

// Operators are, by blob column, the steps that its cells go through before they are
// sent, and, by the name of a new column, how its values are made.
type Operators map[string]Pipeline

// Pipeline is the operators of one column. Its JSON is a list of steps, or an object if
// it has more than that.
type Pipeline struct {
	// Kind is the kind of the cells, "image" or "audio"; "" takes it from the column's
	// media type.
	Kind string
	// Contract is the version of the rules that results follow, byte by byte; "" means
	// the server's. Tickets name it.
	Contract string
	// Follows names another column with operators. These cells go through its steps as
	// its masks: with the same geometry and the same random numbers, and without steps
	// that mix pixels. "" for none.
	Follows string
	// Expression makes a new column of metadata columns, and excludes all other fields
	// but Contract. "" for none.
	Expression string
	// Tokens names metadata columns. Steps make a new column of token lists from them. nil
	// for none.
	Tokens []string
	// Steps are applied in order. There are none if the column follows another, or is
	// made by an expression.
	Steps []Step
}

// Step is an operator and its parameters. As JSON it is an object with one member:
// {"Resize": {"size": 256}}.
type Step struct {
	Name string
	// Params is a JSON object.
	Params json.RawMessage
}

// MarshalJSON writes the list of steps, or the object if there is more.
func (p Pipeline) MarshalJSON() ([]byte, error) {
	if p.listed() {
		return json.Marshal(p.Steps)
	}
	return json.Marshal(struct {
		Kind       string   `json:"kind,omitempty"`
		Contract   string   `json:"contract,omitempty"`
		Follows    string   `json:"follows,omitempty"`
		Expression string   `json:"expression,omitempty"`
		Tokens     []string `json:"tokens,omitempty"`
		Steps      []Step   `json:"steps,omitempty"`
	}{p.Kind, p.Contract, p.Follows, p.Expression, p.Tokens, p.Steps})
}

// listed reports whether the steps are all there is.
func (p Pipeline) listed() bool {
	return p.Kind == "" && p.Contract == "" && p.Follows == "" && !p.Computes()
}

// Computes reports whether the pipeline makes a new column of metadata.
func (p Pipeline) Computes() bool { return p.Expression != "" || p.Tokens != nil }

// StepsAt is the path of the steps in a request; at is the path of the pipeline.
func (p Pipeline) StepsAt(at string) string {
	if p.listed() {
		return at
	}
	return at + ".steps"
}

// MarshalJSON writes an object with one member.
func (s Step) MarshalJSON() ([]byte, error) {
	params := s.Params
	if len(params) == 0 {
		params = json.RawMessage("{}")
	}
	return json.Marshal(map[string]json.RawMessage{s.Name: params})
}

// ParseOperators decodes the JSON of Request.Operators, as strictly as DecodeJSON does.
func ParseOperators(b []byte) (Operators, error) {
	var r struct {
		Operators Operators `json:"operators"`
	}
	err := DecodeJSON("operators", slices.Concat([]byte(`{"operators":`), b, []byte("}")), &r)
	return r.Operators, err
}

// decodeJSON implements selfDecoder.
func (o *Operators) decodeJSON(path string, raw []byte) error {
	if raw[0] != '{' {
		return wrongType(path, raw, `an object with a list of steps by column, such as {"image": [{"Decode": {}}]}`)
	}
	if len(raw) > MaxOperatorsBytes {
		return &FieldError{Field: path, Got: fmt.Sprintf("%d bytes", len(raw)),
			Want: fmt.Sprintf("at most %d, as each ticket repeats them", MaxOperatorsBytes)}
	}
	*o = Operators{}
	for text, value := range members(raw) {
		column := unquote(text)
		at := path + "." + Shown(column)
		if _, ok := (*o)[column]; ok {
			return givenTwice(at, value)
		}
		var p Pipeline
		if err := p.decode(at, value); err != nil {
			return err
		}
		(*o)[column] = p
	}
	return nil
}

func (p *Pipeline) decode(path string, raw []byte) error {
	const want = `a list of steps, or an object {"kind": …, "steps": […]}, {"follows": …}, {"expression": …} or ` +
		`{"tokens": […], "steps": […]}`
	texts := map[string]*string{"kind": &p.Kind, "contract": &p.Contract, "follows": &p.Follows,
		"expression": &p.Expression}
	switch raw[0] {
	case '[':
		return p.decodeSteps(path, raw)
	case '{':
	default:
		return wrongType(path, raw, want)
	}
	seen := map[string]bool{}
	for text, value := range members(raw) {
		name := unquote(text)
		at := path + "." + Shown(name)
		if seen[name] {
			return givenTwice(at, value)
		}
		seen[name] = true
		switch name {
		case "steps":
			if value[0] != '[' {
				return wrongType(at, value, "a list of steps")
			}
			if err := p.decodeSteps(at, value); err != nil {
				return err
			}
		case "tokens":
			if err := decodeValue(at, value, reflect.ValueOf(&p.Tokens).Elem()); err != nil {
				return err
			}
		case "kind", "contract", "follows", "expression":
			if value[0] != '"' || len(value) == len(`""`) || len(value) > MaxNameLen && name != "expression" {
				return wrongType(at, value, map[string]string{
					"kind": `"image" or "audio"`, "follows": "the name of a column that has operators",
					"contract": "the version of a contract", "expression": "an expression over metadata columns"}[name])
			}
			*texts[name] = unquote(value)
		default:
			return unknownField(path+".", name, []string{"kind", "contract", "follows", "expression", "tokens", "steps"})
		}
	}
	if !seen["steps"] && !seen["follows"] && !seen["expression"] {
		return &FieldError{Field: path + ".steps", Got: "nothing", Want: "a list of steps"}
	}
	return nil
}

func (p *Pipeline) decodeSteps(path string, raw []byte) error {
	const want = `an object with one operator, such as {"Resize": {"size": 256}}`
	p.Steps = []Step{}
	for rest := inside(raw); len(rest) > 0; {
		var item []byte
		item, rest = cut(rest)
		at := path + "[" + strconv.Itoa(len(p.Steps)) + "]"
		if item[0] != '{' {
			return wrongType(at, item, want)
		}
		n := 0
		for text, value := range members(item) {
			if n++; n > 1 {
				return wrongType(at, item, want+"; each step is an object of its own")
			}
			name := unquote(text)
			if value[0] != '{' {
				return wrongType(at+"."+Shown(name), value, "an object of parameters, {} for none")
			}
			var compact bytes.Buffer
			if err := json.Compact(&compact, value); err != nil {
				return wrongType(at, item, want)
			}
			p.Steps = append(p.Steps, Step{Name: name, Params: compact.Bytes()})
		}
		if n == 0 {
			return wrongType(at, item, want)
		}
		if len(p.Steps) > MaxSteps {
			return &FieldError{Field: path, Got: "more steps", Want: fmt.Sprintf("at most %d", MaxSteps)}
		}
	}
	return nil
}

// Columns are the names of the blob columns that have operators, sorted.
func (o Operators) Columns() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(o)), func(name string) bool { return o[name].Computes() })
}

// Computed are the names of the new columns that are made of metadata, sorted.
func (o Operators) Computed() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(o)), func(name string) bool { return !o[name].Computes() })
}

// Resolved reports whether the operators are complete, as a server writes them: with
// every parameter and the versions of contracts.
func (o Operators) Resolved() bool {
	for _, p := range o {
		if p.Contract == "" {
			return false
		}
	}
	return true
}

// checkOperators checks Operators, which are set, and Layout.
func (r *Request) checkOperators() error {
	if err := r.Operators.check(); err != nil {
		return err
	}
	if r.Layout == LayoutHuggingFace && len(r.Operators.Columns()) > 0 {
		return &FieldError{Field: "layout", Got: Quote(string(r.Layout)) + " with operators",
			Want: "it left out: the datasets library decodes by itself"}
	}
	return nil
}

// check checks operators, which are set, as far as that needs no knowledge of the
// operators themselves.
func (o Operators) check() error {
	if n := len(o); n == 0 || n > MaxOperatorColumns {
		return &FieldError{Field: "operators", Got: fmt.Sprintf("%d columns", n),
			Want: fmt.Sprintf("1 to %d; leave the field out for cells as they are", MaxOperatorColumns)}
	}
	made := 0
	for _, column := range o.Computed() {
		if err := o[column].checkComputed(column); err != nil {
			return err
		}
		if o[column].Tokens != nil {
			made++
		}
	}
	if made > MaxTokenColumns {
		return &FieldError{Field: "operators", Got: fmt.Sprintf("%d columns of tokens", made),
			Want: fmt.Sprintf("at most %d", MaxTokenColumns)}
	}
	for _, column := range o.Columns() {
		p, at := o[column], "operators."+Shown(column)
		if n := len(p.Steps); p.Follows == "" && (n == 0 || n > MaxSteps) {
			return &FieldError{Field: at, Got: fmt.Sprintf("%d steps", n),
				Want: fmt.Sprintf("1 to %d; leave the column out for its cells as they are", MaxSteps)}
		}
		if p.Follows == "" {
			continue
		}
		other, ok := o[p.Follows]
		switch {
		case len(p.Steps) > 0:
			return &FieldError{Field: at + ".steps", Got: fmt.Sprintf("%d steps", len(p.Steps)),
				Want: fmt.Sprintf("it left out: the steps are those of %s", Shown(p.Follows))}
		case !ok || p.Follows == column || other.Computes():
			return &FieldError{Field: at + ".follows", Got: Quote(p.Follows), Want: "another column that has operators"}
		case other.Follows != "":
			return &FieldError{Field: at + ".follows", Got: fmt.Sprintf("%q, which follows %q itself", p.Follows,
				other.Follows), Want: "a column that follows none"}
		}
	}
	if n := len(marshal(o)); n > MaxOperatorsBytes {
		return &FieldError{Field: "operators", Got: fmt.Sprintf("%d bytes", n),
			Want: fmt.Sprintf("at most %d, as each ticket repeats them", MaxOperatorsBytes)}
	}
	return nil
}

// checkComputed checks a pipeline that makes a column of metadata, and the column's name.
func (p Pipeline) checkComputed(column string) error {
	at := "operators." + Shown(column)
	what := "an expression"
	if p.Tokens != nil {
		what = "tokens"
	}
	switch {
	case p.Tokens == nil && len(p.Steps) > 0 || p.Kind != "" || p.Follows != "":
		return &FieldError{Field: at, Got: what + ", and steps, a kind or what it follows", Want: "one of them: " +
			"an expression makes a column of metadata, steps make something of blobs"}
	case p.Tokens != nil && p.Expression != "":
		return &FieldError{Field: at, Got: "tokens and an expression", Want: "one of them"}
	case column == IDColumn || checkColumnName(column) != nil:
		return &FieldError{Field: "operators", Got: Quote(column) + " with " + what, Want: fmt.Sprintf(
			"the name of a new column, of 1 to %d bytes, that is neither id, position nor split", MaxNameLen)}
	case p.Tokens != nil:
		return p.checkTokens(at)
	case strings.TrimSpace(p.Expression) == "":
		return &FieldError{Field: at + ".expression", Got: Quote(p.Expression),
			Want: "an expression over metadata columns"}
	}
	return nil
}

// checkTokens checks a pipeline that makes lists of tokens.
func (p Pipeline) checkTokens(at string) error {
	if n := len(p.Tokens); n == 0 || n > MaxTokenColumns {
		return &FieldError{Field: at + ".tokens", Got: fmt.Sprintf("%d columns", n),
			Want: fmt.Sprintf("1 to %d columns of lists of integers", MaxTokenColumns)}
	}
	if n := len(p.Steps); n == 0 || n > MaxSteps {
		return &FieldError{Field: at + ".steps", Got: fmt.Sprintf("%d steps", n), Want: fmt.Sprintf("1 to %d", MaxSteps)}
	}
	return nil
}

// checkPlace checks Place, which is set.
func (r *Request) checkPlace() error {
	switch r.Place {
	case PlaceServer:
		return r.checkWithOperators("place")
	case PlaceClient:
		if r.OnError == OnErrorSkip {
			return &FieldError{Field: "on_error", Got: Quote(r.OnError) + ` with place "client"`,
				Want: `"fail" or "null": who runs the operators has no other samples to put in`}
		}
		return r.checkWithOperators("place")
	case PlaceAuto:
		return &FieldError{Field: "place", Got: Quote(r.Place),
			Want: `"server" or "client": between them clients decide, as they see both ends`}
	}
	return &FieldError{Field: "place", Got: Quote(r.Place), Want: `"server" or "client"`}
}

func (r *Request) checkWithOperators(field string) error {
	if r.Operators == nil {
		return &FieldError{Field: field, Got: "it without operators", Want: "it left out, or operators"}
	}
	return nil
}
