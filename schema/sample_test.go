package schema

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestSampleOfRequests holds what a request's sample may be, that it is written as it was read, and what is said of one
// that cannot be.
func TestSampleOfRequests(t *testing.T) {
	request := func(sample string) string {
		return `{"dataset":"a","shuffle":{"seed":1,"epoch":2},"sample":` + sample + `}`
	}
	for _, sample := range []string{
		`{"weights":"loss"}`, `{"weights":"loss ?? 1","replacement":true}`, `{"weights":"w","replacement":false}`,
		`{"weights":"w","epoch_size":4611686018427387903}`, `{"balance":"label"}`,
		`{"balance":"label","shares":{"a":0.25,"b":0,"c":3},"epoch_size":1}`,
	} {
		r, err := ParseRequest([]byte(request(sample)))
		if err != nil || string(r.Marshal()) != request(sample) {
			t.Errorf("%s: %s %v", sample, r.Marshal(), err)
		}
		if r.Sample != nil && r.Sample.Replaces() != !strings.Contains(sample, "false") {
			t.Errorf("%s: Replaces() = %t", sample, r.Sample.Replaces())
		}
	}
	var many []string
	for i := range MaxShares + 1 {
		many = append(many, fmt.Sprintf(`"%d":1`, i))
	}
	for sample, want := range map[string]string{
		`{}`:               "sample: got neither weights nor balance, want one of them",
		`"loss"`:           `sample: got "loss", want an object`,
		`{"weights":""}`:   `sample.weights: got "", want a column or an expression`,
		`{"weights":"  "}`: `sample.weights: got "  ", want a column or an expression`,
		`{"weights":"` + strings.Repeat("x", MaxWhereBytes+1) + `"}`: "sample.weights: got 16385 bytes, want at most 16384",
		`{"balance":""}`: `sample.balance: got "", want the column`,
		`{"balance":"` + strings.Repeat("x", 200) + `"}`:             `sample.balance: got "xxx`,
		`{"weights":"w","balance":"c"}`:                              "sample: got both weights and balance",
		`{"balance":"c","replacement":false}`:                        "sample.replacement: got it without weights",
		`{"weights":"w","replacement":1}`:                            "sample.replacement: got 1, want true or false",
		`{"weights":"w","shares":{"a":1}}`:                           "sample.shares: got it without balance",
		`{"balance":"c","shares":{}}`:                                "sample.shares: got 0 classes, want 1 to 1024",
		`{"balance":"c","shares":[1]}`:                               "sample.shares: got [1], want an object of numbers",
		`{"balance":"c","shares":{"a":-1}}`:                          "sample.shares.a: got -1, want a number from 0",
		`{"balance":"c","shares":{"a":0}}`:                           "sample.shares: got nothing but 0",
		`{"balance":"c","shares":{"a":1,"a":2}}`:                     "sample.shares.a: got it a second time",
		`{"balance":"c","shares":{` + strings.Join(many, ",") + `}}`: "sample.shares: got 1025 classes",
		`{"weights":"w","epoch_size":0}`:                             "sample.epoch_size: got 0, want an integer from 1",
		`{"weights":"w","epoch_size":4611686018427387904}`:           "sample.epoch_size: got 4611686018427387904",
		`{"weight":"w"}`:                                             `sample.weight: got an unknown field`,
	} {
		_, err := ParseRequest([]byte(request(sample)))
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v, want %s", sample, err, want)
		}
	}
	mixed := `{"mixture":{"sources":[{"dataset":"b","weight":1}]},"shuffle":{"seed":1},"sample":{"weights":"w"}}`
	if _, err := ParseRequest([]byte(mixed)); err == nil || !strings.Contains(err.Error(), "sample: got it beside mixture") {
		t.Errorf("%s: %v", mixed, err)
	}
	for with, want := range map[string]string{
		``:                                     "sample: got it without shuffle",
		`"shuffle":{"seed":1,"block":"1MiB"},`: "sample: got it with shuffle.block",
		`"shuffle":{"seed":1},"bucket_by_length":{"column":"c"},`: "sample: got it with bucket_by_length",
	} {
		_, err := ParseRequest([]byte(`{"dataset":"a",` + with + `"sample":{"weights":"w"}}`))
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", with, err, want)
		}
	}
}
