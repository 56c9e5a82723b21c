package schema

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxShares bounds the classes in Sample.Shares, because each ticket repeats them.
const MaxShares = 1024

// Sample makes an epoch of samples by weight, or by class. Either Weights or Balance is
// set.
type Sample struct {
	// Weights is the weight of each sample: a metadata column of numbers, or an
	// expression that gives one.
	Weights string `json:"weights,omitempty"`
	// Replacement selects sampling with replacement, each position independently; nil
	// means true. Otherwise a sample occurs as often as its share of the epoch, rounded
	// down or up.
	Replacement *bool `json:"replacement,omitempty"`
	// Balance is the column whose values are the classes.
	Balance string `json:"balance,omitempty"`
	// Shares are the weights of classes, by their values as text; nil: all equal.
	Shares map[string]float64 `json:"shares,omitempty"`
	// EpochSize is the number of samples in an epoch; 0 means the number of selected
	// samples.
	EpochSize int64 `json:"epoch_size,omitempty"`
}

// Replaces reports whether samples are chosen with replacement.
func (s *Sample) Replaces() bool { return s.Replacement == nil || *s.Replacement }

// check implements checker.
func (s *Sample) check(field string) error {
	switch path := "sample." + field; field {
	case "weights":
		return checkExpression(path, s.Weights, "a column or an expression that says how much each sample counts")
	case "balance":
		if s.Balance == "" || len(s.Balance) > MaxNameLen || !utf8.ValidString(s.Balance) {
			return &FieldError{Field: path, Got: Quote(s.Balance), Want: "the column whose values are the classes"}
		}
	case "replacement":
		if s.Weights == "" {
			return &FieldError{Field: path, Got: "it without weights", Want: "weights, or neither"}
		}
	case "shares":
		return s.checkShares(path)
	case "epoch_size":
		return checkRange(path, s.EpochSize, 1, MaxEpochSize)
	}
	return nil
}

// checkShares checks the weights of classes: at least one must be above 0.
func (s *Sample) checkShares(path string) error {
	if s.Balance == "" {
		return &FieldError{Field: path, Got: "it without balance", Want: "balance, or neither"}
	}
	if n := len(s.Shares); n == 0 || n > MaxShares {
		return &FieldError{Field: path, Got: fmt.Sprintf("%d classes", n),
			Want: fmt.Sprintf("1 to %d; leave the field out for equal shares", MaxShares)}
	}
	var sum float64
	for _, class := range slices.Sorted(maps.Keys(s.Shares)) {
		share := s.Shares[class]
		if !(share >= 0) || math.IsInf(share, 0) {
			return &FieldError{Field: path + "." + Shown(class), Got: strconv.FormatFloat(share, 'g', -1, 64),
				Want: "a number from 0"}
		}
		sum = max(sum, share)
	}
	if sum == 0 {
		return &FieldError{Field: path, Got: "nothing but 0", Want: "a class with a share of more than 0"}
	}
	return nil
}

// checkSample checks Sample, which is set, against other fields.
func (r *Request) checkSample() error {
	s := r.Sample
	switch {
	case s.Weights != "" && s.Balance != "":
		return &FieldError{Field: "sample", Got: "both weights and balance", Want: "one of them"}
	case s.Weights == "" && s.Balance == "":
		return &FieldError{Field: "sample", Got: "neither weights nor balance", Want: "one of them"}
	}
	if err := checkAll(s); err != nil {
		return err
	}
	switch {
	case r.Shuffle == nil:
		return &FieldError{Field: "sample", Got: "it without shuffle",
			Want: `"shuffle": {"seed": …, "epoch": …}, by which samples are drawn`}
	case r.Shuffle.InBlocks():
		return &FieldError{Field: "sample", Got: "it with shuffle.block",
			Want: "one of them: what is drawn may be anywhere, and blocks keep neighbours together"}
	case r.BucketByLength != nil:
		return &FieldError{Field: "sample", Got: "it with bucket_by_length", Want: "one of them"}
	}
	return nil
}

// checkExpression checks the text of an expression, which is set.
func checkExpression(field, text, want string) error {
	switch {
	case strings.TrimSpace(text) == "":
		return &FieldError{Field: field, Got: Quote(text), Want: want}
	case len(text) > MaxWhereBytes:
		return &FieldError{Field: field, Got: fmt.Sprintf("%d bytes", len(text)),
			Want: fmt.Sprintf("at most %d", MaxWhereBytes)}
	case !utf8.ValidString(text):
		return &FieldError{Field: field, Got: Quote(text), Want: "valid UTF-8"}
	}
	return nil
}
