package audio

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// paramError says which parameter is wrong, and how. Compile adds the step.
type paramError struct{ param, reason string }

func (e *paramError) Error() string {
	if e.param == "" {
		return e.reason
	}
	return e.param + ": " + e.reason
}

func wrong(param, format string, args ...any) error {
	return &paramError{param, fmt.Sprintf(format, args...)}
}

// parse fills in what a request says of a step's parameters, over the defaults in into, which points to a struct.
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

// oneOf checks a word.
func oneOf(param, got string, words ...string) error {
	if slices.Contains(words, got) {
		return nil
	}
	return wrong(param, "got %q; it takes %s", got, strings.Join(words, ", "))
}

// within checks a whole number.
func within(param string, got, low, high int) error {
	if got < low || got > high {
		return wrong(param, "got %d; it takes %d to %d", got, low, high)
	}
	return nil
}

// between checks a number.
func between(param string, got, low, high float64) error {
	if !(got >= low && got <= high) {
		return wrong(param, "got %g; it takes %g to %g", got, low, high)
	}
	return nil
}

// numbers is a number, or a list of them.
type numbers []float64

func (n *numbers) UnmarshalJSON(b []byte) error {
	var several []*float64 // a null among them is no number: it would be left as it is, and so count as 0
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
