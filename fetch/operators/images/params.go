package images

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"bowstring/fetch/operators/program"
)

// params reads a step's parameters, and writes the canonical ones. The first mistake
// stays; what is read after it are defaults.
type params struct {
	step  int
	name  string
	raw   map[string]json.RawMessage
	known []string
	out   bytes.Buffer
	err   *program.StepError
}

func paramsOf(at int, s program.Step) *params {
	p := &params{step: at, name: s.Name}
	if len(s.Params) == 0 || string(bytes.TrimSpace(s.Params)) == "null" {
		return p
	}
	if err := json.Unmarshal(s.Params, &p.raw); err != nil {
		p.fail("", "its parameters are %s, and have to be a JSON object", short(s.Params))
	}
	return p
}

// short is what a message shows of a client's JSON.
func short(raw []byte) string {
	if len(raw) > 60 {
		return string(raw[:57]) + "..."
	}
	return string(raw)
}

func (p *params) fail(param, format string, values ...any) {
	if p.err == nil {
		p.err = &program.StepError{Step: p.step, Name: p.name, Param: param, Reason: fmt.Sprintf(format, values...)}
	}
}

// get takes a parameter's JSON. It is nil where there is none, or null.
func (p *params) get(name string) json.RawMessage {
	p.known = append(p.known, name)
	raw := p.raw[name]
	if string(raw) == "null" {
		return nil
	}
	return raw
}

// put writes a parameter in its canonical form.
func (p *params) put(name string, value any) {
	if p.out.Len() > 0 {
		p.out.WriteByte(',')
	}
	text, err := json.Marshal(value)
	if err != nil {
		p.fail(name, "%v", err)
		return
	}
	fmt.Fprintf(&p.out, "%q:%s", name, text)
}

// done fails for a parameter that nobody read.
func (p *params) done() (program.Step, *program.StepError) {
	var names []string
	for name := range p.raw {
		if !slices.Contains(p.known, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) > 0 && len(p.known) == 0 {
		p.fail(names[0], "it has no such parameter, and takes none")
	} else if len(names) > 0 {
		p.fail(names[0], "it has no such parameter, and takes %s", strings.Join(p.known, ", "))
	}
	if p.err != nil {
		return program.Step{}, p.err
	}
	return program.Step{Name: p.name, Params: json.RawMessage("{" + p.out.String() + "}")}, nil
}

// numbers reads a number or a list of them. It is nil where the parameter is absent.
func (p *params) numbers(name, takes string, counts ...int) []float64 {
	raw := p.get(name)
	if raw == nil {
		return nil
	}
	var one float64
	var several []*float64 // a null among them is no number: it would be left as it is, and so count as 0
	list := []float64{}
	if json.Unmarshal(raw, &one) == nil {
		list = append(list, one)
	} else if json.Unmarshal(raw, &several) != nil || slices.Contains(several, nil) {
		p.fail(name, "got %s, takes %s", short(raw), takes)
		return nil
	}
	for _, v := range several {
		list = append(list, *v)
	}
	if !slices.Contains(counts, len(list)) {
		p.fail(name, "got %s, takes %s", short(raw), takes)
		return nil
	}
	return list
}

// number reads one, from low to high.
func (p *params) number(name string, otherwise, low, high float64) float64 {
	takes := "a number from " + text(low) + " to " + text(high)
	v := otherwise
	if list := p.numbers(name, takes, 1); list != nil {
		v = list[0]
		if v < low || v > high {
			p.fail(name, "got %s, takes %s", text(v), takes)
			v = otherwise
		}
	}
	p.put(name, v)
	return v
}

func text(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// integers reads whole numbers from low to high.
func (p *params) integers(name, takes string, low, high int, counts ...int) []int {
	list := p.numbers(name, takes, counts...)
	if list == nil {
		return nil
	}
	whole := make([]int, len(list))
	for i, v := range list {
		if v != math.Trunc(v) || v < float64(low) || v > float64(high) {
			p.fail(name, "got %s, takes %s", text(v), takes)
			return nil
		}
		whole[i] = int(v)
	}
	return whole
}

func (p *params) integer(name string, otherwise, low, high int) int {
	v := otherwise
	if list := p.integers(name, fmt.Sprintf("a whole number from %d to %d", low, high), low, high, 1); list != nil {
		v = list[0]
	}
	p.put(name, v)
	return v
}

func (p *params) boolean(name string, otherwise bool) bool {
	v := otherwise
	if raw := p.get(name); raw != nil && json.Unmarshal(raw, &v) != nil {
		p.fail(name, "got %s, takes true or false", short(raw))
		v = otherwise
	}
	p.put(name, v)
	return v
}

// word reads one of the names given, in any case of letters where that tells them apart.
func (p *params) word(name, otherwise string, allowed ...string) string {
	v := otherwise
	if raw := p.get(name); raw != nil {
		if json.Unmarshal(raw, &v) != nil || !slices.Contains(allowed, v) {
			p.fail(name, "got %s, takes %s", short(raw), quoted(allowed))
			v = otherwise
		}
	}
	p.put(name, v)
	return v
}

func quoted(names []string) string {
	list := make([]string, len(names))
	for i, n := range names {
		list[i] = strconv.Quote(n)
	}
	return strings.Join(list, ", ")
}

// maxSide bounds what a request may ask for. Limits bound what a sample takes.
const maxSide = 1 << 15

// size reads height and width, of which one number is both.
func (p *params) size(name string) (h, w int) {
	takes := "a size in pixels, or [height, width]"
	list := p.integers(name, takes, 1, maxSide, 1, 2)
	switch len(list) {
	case 0:
		p.fail(name, "it has to be given: %s", takes)
		return 1, 1
	case 1:
		h, w = list[0], list[0]
	default:
		h, w = list[0], list[1]
	}
	p.put(name, []int{h, w})
	return h, w
}

// interval reads [low, high] within bounds.
func (p *params) interval(name string, low, high, least, most float64) (float64, float64) {
	takes := fmt.Sprintf("[low, high] with %s <= low <= high <= %s", text(least), text(most))
	if list := p.numbers(name, takes, 2); list != nil {
		if list[0] > list[1] || list[0] < least || list[1] > most {
			p.fail(name, "got [%s, %s], takes %s", text(list[0]), text(list[1]), takes)
		} else {
			low, high = list[0], list[1]
		}
	}
	p.put(name, []float64{low, high})
	return low, high
}
