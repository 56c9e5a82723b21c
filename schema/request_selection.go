package schema

import (
	"fmt"
	"slices"
	"strconv"
)

// SelectionRef gives a set of positions: by the name of an uploaded selection,
// or as a list. Exactly one of the two is set.
type SelectionRef struct {
	Name      string  `json:"name,omitempty"`      // as Selection.Name
	Positions []int64 `json:"positions,omitempty"` // ascending and unique; ParseRequest sorts them
}

// sort brings the positions, if there are any, in ascending order.
func (s *SelectionRef) sort() {
	if s != nil {
		slices.Sort(s.Positions)
	}
}

// checkSet checks that one of the fields is given, and it.
func (s *SelectionRef) checkSet() error {
	switch {
	case s.Name != "" && s.Positions != nil:
		return &FieldError{Field: "selection", Got: "both name and positions", Want: "one of them"}
	case s.Name == "" && s.Positions == nil:
		return &FieldError{Field: "selection", Got: "neither name nor positions", Want: "one of them"}
	}
	return checkAll(s)
}

// check checks a field that is given.
func (s *SelectionRef) check(field string) error {
	path := "selection." + field
	if field == "name" {
		if k, err := ParseKey(s.Name); err != nil || k.String() != s.Name {
			return &FieldError{Field: path, Got: Quote(s.Name),
				Want: "the 64 lower-case hexadecimal digits that name an uploaded selection"}
		}
		return nil
	}
	if n := len(s.Positions); n == 0 || n > MaxPositions {
		return &FieldError{Field: path, Got: fmt.Sprintf("%d positions", n),
			Want: fmt.Sprintf("1 to %d, as each ticket repeats them; upload a longer selection by DoPut with "+
				"the command "+
				`{"selection": {"dataset": …}} and a column "position", and give the name that it answers`,
				MaxPositions)}
	}
	for i, p := range s.Positions {
		if p < 0 {
			return &FieldError{Field: path, Got: strconv.FormatInt(p, 10), Want: "positions from 0"}
		}
		if i > 0 && p == s.Positions[i-1] {
			return &FieldError{Field: path, Got: fmt.Sprintf("%d twice", p), Want: "each position once"}
		}
		if i > 0 && p < s.Positions[i-1] {
			return &FieldError{Field: path, Got: fmt.Sprintf("%d after %d", p, s.Positions[i-1]),
				Want: "ascending positions"}
		}
	}
	return nil
}
